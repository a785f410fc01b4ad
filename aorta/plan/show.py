"""What a plan's cells resolve to, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aorta.plan.model import Plan
from aorta.text import columns, plural

_WIDEST = 100
"""Characters of a value that a terminal is shown."""


def cell_objects(plan: Plan) -> list[dict[str, Any]]:
    """Returns each cell's whole request, as ``cell.json`` would hold it.

    Args:
        plan: A plan just compiled, so that its cells carry their requests.
    """
    return [dict(cell.request or {}) for cell in plan.cells]


def cell_lines(plan: Plan) -> list[str]:
    """Returns a block of lines for each cell: what it runs, and each variable with the layer that set it.

    Args:
        plan: A plan just compiled, so that its cells carry their requests.
    """
    wraps = any("probe" in request for request in cell_objects(plan))
    what = "wraps a command" if wraps else f"workload {plan.workload}"
    lines = [f"{plan.recipe_source}: {what}, ticket {plan.ticket or 'none'}"]
    for request in cell_objects(plan):
        baseline = " (baseline)" if request["cell"] == plan.confound["baseline_cell"] else ""
        lines += ["", f"{_printable(request['cell'])}{baseline}", *columns(_heading(request), indent="  ")]
        rows = [
            ["", _printable(name), "=", _shortened(entry["value"]), f"from {entry['layer']}"]
            for name, entry in request["env"].items()
        ]
        lines += ["  variables", *columns(rows, indent=" ")] if rows else ["  variables    none"]
    return lines


def _heading(request: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        ["mitigations", " ".join(request["mitigations"])],
        ["environment", _place(request["environment"])],
        ["trials", f"{request['trials']} of {plural(request['steps'], 'step')}, {request['isolation']} isolation"],
    ]
    if "probe" in request:
        rows[-1] = ["trials", f"{plural(request['trials'], 'run')} of a command"]
    if request["launch"]["mode"] == "distributed":
        launch = request["launch"]
        rows.append(["ranks", f"{launch['nnodes'] * launch['nproc_per_node']} (at least {launch['min_world_size']})"])
    for key in ("workload_config", "collect", "stop_after", "retry_errors", "resources"):
        if request[key]:
            rows.append([key, _shortened(json.dumps(request[key], ensure_ascii=False))])
    return rows


def _place(environment: Mapping[str, Any]) -> str:
    shown = ("docker", "venv", "buck_target", "emulator", "mirage_profile")
    fields = [f"{key} {_printable(environment[key])}" for key in shown if environment.get(key)]
    return str(environment["name"]) + (f" ({', '.join(fields)})" if fields else "")


def _shortened(text: str) -> str:
    shown = _printable(text)
    return shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 3]}..."


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)
