"""What differs between two runs: what was put in, what they ran on, and how often their cells failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aorta._jsonio import read_json
from aorta.plan.changes import IN_THE_VARIABLES, Change, find_changes, show_side, without
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout
from aorta.plan.rundir import read_plan, read_request

_SETTINGS = (
    *("steps", "trials", "stop_after", "retry_errors", "mitigations", "isolation", "launch", "collect"),
    "trial_timeout_sec",
)
_RATES = ("trials_counted", "failure_rate", "event_rate", "event_rate_ci95", "error_rate", "mean_step_time_ms")
_VOLATILE = frozenset({"captured_at", "duration_sec"})
"""Fields of a snapshot that differ each time."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run directory says of itself.

    Attributes:
        run_dir: The directory.
        plan: Its plan.
        requests: Cell name to its frozen request.
        rows: Cell name to its row in the matrix; empty while there is no matrix.
        snapshots: Place of each snapshot (``host_env.json``, ``environments/<name>/env.json``) to its content, for
            those that can be read.
    """

    run_dir: Path
    plan: Plan
    requests: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, Any]]
    snapshots: Mapping[str, Mapping[str, Any]]


def read_run(run_dir: Path) -> Run:
    """Reads a run directory, finished or not.

    Raises:
        PlanFileError: It is no run directory, or its plan is damaged.
    """
    plan = read_plan(run_dir)
    layout = RunLayout(run_dir, plan.workload)
    matrix = _read_or_none(layout.matrix_json) or {}
    places = [layout.host_env, *(layout.environment(name) for name in plan.environments)]
    snapshots = {str(path.relative_to(run_dir)): _read_or_none(path) for path in places}
    return Run(
        run_dir=run_dir,
        plan=plan,
        requests={cell.name: read_request(layout.cell(cell.name)) for cell in plan.cells},
        rows={row["name"]: row for row in matrix.get("cells", [])},
        snapshots={place: content for place, content in snapshots.items() if content is not None},
    )


def _read_or_none(path: Path) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def diff_runs(a: Run, b: Run) -> dict[str, Any]:
    """Compares two runs.

    Returns:
        ``a`` and ``b`` (which runs these are); ``run``, the changes of workload, command, version, baseline, threshold
        and order; ``cells_only_in_a`` and ``cells_only_in_b``; ``cells``, for each common cell that changed its
        ``variables``, ``environment``, ``workload_config``, ``settings`` and ``probe`` (how a command is watched and
        judged); ``snapshots``, the changes of each common snapshot, and ``snapshots_only_in_a`` and ``_b``; ``rates``,
        for each common cell both sides' figures and whether they ``differ``; ``inputs_differ``, whether anything but
        the rates does.
    """
    common = [name for name in a.requests if name in b.requests]
    cells = {name: _cell_changes(a.requests[name], b.requests[name]) for name in common}
    shared = [place for place in a.snapshots if place in b.snapshots]
    snapshots = {
        place: list(find_changes(_steady(a.snapshots[place]), _steady(b.snapshots[place]))) for place in shared
    }
    found: dict[str, Any] = {
        "run": list(find_changes(_run_facts(a), _run_facts(b))),
        "cells_only_in_a": [name for name in a.requests if name not in b.requests],
        "cells_only_in_b": [name for name in b.requests if name not in a.requests],
        "cells": {name: parts for name, parts in cells.items() if parts},
        "snapshots": {place: changes for place, changes in snapshots.items() if changes},
        "snapshots_only_in_a": [place for place in a.snapshots if place not in b.snapshots],
        "snapshots_only_in_b": [place for place in b.snapshots if place not in a.snapshots],
    }
    rates = {name: _rates(a.rows[name], b.rows[name]) for name in common if name in a.rows and name in b.rows}
    return {
        "a": _identity(a),
        "b": _identity(b),
        "inputs_differ": any(found.values()),
        **found,
        "rates": rates,
    }


def _identity(run: Run) -> dict[str, Any]:
    plan = run.plan
    return {
        "run_dir": str(run.run_dir),
        "created_at": plan.created_at,
        "ticket": plan.ticket,
        "recipe_source": plan.recipe_source,
        "plan_key": plan.key,
    }


def _run_facts(run: Run) -> dict[str, Any]:
    plan = run.plan
    return {
        "workload": plan.workload,
        **({} if plan.command is None else {"command": dict(plan.command)}),
        "aorta_version": plan.aorta_version,
        "order_seed": plan.order_seed,
        "confound": dict(plan.confound),
    }


def _watching(request: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.get("probe", {}).items() if key not in ("argv", "cwd")}


def _cell_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Change]]:
    """Returns the parts of a cell that changed; the variables with the layer that each value came from."""
    parts = {
        "variables": list(find_changes(a.get("env", {}), b.get("env", {}), "", deep=False)),
        "environment": list(
            find_changes(without(a["environment"], IN_THE_VARIABLES), without(b["environment"], IN_THE_VARIABLES))
        ),
        "workload_config": list(find_changes(a["workload_config"], b["workload_config"])),
        "settings": list(find_changes(_only(a, _SETTINGS), _only(b, _SETTINGS))),
        # Which command it is, the runs themselves say.
        "probe": list(find_changes(_watching(a), _watching(b))),
    }
    return {name: changes for name, changes in parts.items() if changes}


def _only(value: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}


def _steady(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a snapshot without what differs each time."""
    steady = without(snapshot, _VOLATILE)
    python = steady.get("python")
    if isinstance(python, Mapping) and isinstance(python.get("path"), list):
        # The first entry is the folder in which the command was started.
        steady["python"] = {**python, "path": python["path"][1:]}
    return steady


def _rates(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    counts = ("failure_rate", "event_rate", "error_rate")
    sides = {"a": _only(a, _RATES), "b": _only(b, _RATES)}
    return {"differ": any(a.get(name) != b.get(name) for name in counts), **sides}


def render(found: Mapping[str, Any]) -> list[str]:
    """Returns the comparison as lines for a person."""
    lines = [f"{side}: {found[side]['run_dir']} (planned {found[side]['created_at']})" for side in ("a", "b")]
    lines += _block("run", found["run"])
    for side in ("a", "b"):
        for what in ("cells", "snapshots"):
            names = found[f"{what}_only_in_{side}"]
            lines += [f"{what} only in {side}: {', '.join(names)}"] if names else []
    for name, parts in found["cells"].items():
        for part, changes in parts.items():
            lines += _block(f"cell {name}, {part}", changes)
    for place, changes in found["snapshots"].items():
        lines += _block(place, changes)
    if not found["inputs_differ"]:
        lines.append("same variables, environments, settings and snapshots")
    moved = {name: entry for name, entry in found["rates"].items() if entry["differ"]}
    for name, entry in moved.items():
        lines.append(f"rates of cell {name}: {_rate_text(entry['a'])} -> {_rate_text(entry['b'])}")
    if found["rates"] and not moved:
        lines.append("same rates in every common cell")
    return lines


def _block(title: str, changes: list[Change]) -> list[str]:
    lines = [f"  {change['key']}: {show_side(change, 'a')} -> {show_side(change, 'b')}" for change in changes]
    return [f"{title}:", *lines] if lines else []


def _rate_text(figures: Mapping[str, Any]) -> str:
    interval = figures.get("event_rate_ci95")
    within = f" (95% {interval[0]:.0%} to {interval[1]:.0%})" if interval else ""
    parts = [f"fails {_percent(figures.get('event_rate'))}{within}", f"errors {_percent(figures.get('error_rate'))}"]
    return f"{', '.join(parts)} of {figures.get('trials_counted')}"


def _percent(value: Any) -> str:
    return "-" if value is None else f"{value:.0%}"
