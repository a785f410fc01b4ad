"""Chooses the run directory of a plan, and writes the plan into it. Standard library only."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from aorta._jsonio import both_ends, read_json, write_json_atomic
from aorta.plan.changes import IN_THE_VARIABLES, find_changes, show_side, without
from aorta.plan.current import CellFiles
from aorta.plan.folders import new_run, run_folders, runs_folder
from aorta.plan.model import RUN_AGAIN, Plan, PlanFileError, PlannedCell, of_consequence
from aorta.plan.paths import RunLayout
from aorta.plan.recover import frozen_cells, has_no_plan, has_records, has_trials, is_lost, mismatch

_MATRIX_HEAD = 65536
"""Far more than what stands before ``complete`` in a matrix."""


class RunDirError(Exception):
    """A run directory that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """Where a plan goes.

    Attributes:
        run_dir: The run directory; need not exist yet when ``state`` is ``new``.
        state: ``new``, ``continued`` (trials are missing) or ``finished``.
        plan: The plan to run: the compiled one, or an earlier one that was frozen there.
        notices: What a person should be told about the choice, a line each.
        recovered: Whether the run has lost its ``plan.json``, which is to be written anew even if no trial is missing.
    """

    run_dir: Path
    state: Literal["new", "continued", "finished"]
    plan: Plan
    notices: tuple[str, ...] = ()
    recovered: bool = False


def read_plan(run_dir: Path) -> Plan:
    """Reads the plan of a run directory.

    Raises:
        PlanFileError: There is none, or it is damaged.
    """
    path = run_dir / "plan.json"
    try:
        value = read_json(path)
    except FileNotFoundError as error:
        if (run_dir / "cells").is_dir():
            raise PlanFileError(f"{path}: no such file; {RUN_AGAIN}") from error
        raise PlanFileError(f"{path}: no such file; is {run_dir} a run directory?") from error
    except OSError as error:
        raise PlanFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise PlanFileError(f"{path}: {error}; {RUN_AGAIN}") from error
    return Plan.from_json(value, source=str(path))


def read_request(path: Path) -> dict[str, Any]:
    """Reads one cell's frozen request.

    Raises:
        PlanFileError: The file is missing or damaged.
    """
    try:
        value = read_json(path)
    except FileNotFoundError as error:
        raise PlanFileError(f"{path}: no such file; {RUN_AGAIN}") from error
    except OSError as error:
        raise PlanFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise PlanFileError(f"{path}: {error}; {RUN_AGAIN}") from error
    if not isinstance(value, dict):
        raise PlanFileError(f"{path}: not a JSON object; {RUN_AGAIN}")
    return value


def is_finished(run_dir: Path, plan: Plan) -> bool:
    """Whether every trial of ``plan`` has a whole, current record in ``run_dir``, and the whole matrix was written."""
    layout = RunLayout(run_dir, plan.workload)
    return _has_whole_matrix(layout, plan) and all(
        files.is_current(trial)
        for cell in plan.cells
        for files in [CellFiles(layout, cell)]
        for trial in range(cell.trials)
    )


def _has_whole_matrix(layout: RunLayout, plan: Plan) -> bool:
    """Looks at both ends of ``matrix.json``, no more: one of many trials has megabytes.

    A matrix that was written while trials were missing does not end a run, although they may be there by now: an
    orphan of a killed sweep may have recorded them.
    """
    head, tail = both_ends(layout.matrix_json, _MATRIX_HEAD)
    return tail == b"}\n" and f'"plan_key": "{plan.key}"'.encode() in head and b'"complete": true' in head


def choose_run(
    plan: Plan,
    output: Path,
    *,
    run_dir: Path | None = None,
    fresh: bool = False,
    refresh: bool = False,
    reuse_finished: bool = True,
    now: datetime,
) -> RunChoice:
    """Decides where ``plan`` runs; reads the disk, writes nothing.

    Args:
        plan: The compiled plan.
        output: The folder that holds all runs.
        run_dir: A run directory that the user named, or None to look for one.
        fresh: Start a new run whatever is there.
        refresh: Take the registry's present contents where an earlier run froze older ones.
        reuse_finished: Whether a finished run of the same plan answers the request; if not, a new one is made.
        now: The time that names a new run.

    Raises:
        RunDirError: The named directory cannot be used.
        PlanFileError: The named directory holds a damaged plan.
    """
    if run_dir is not None:
        if fresh:
            raise RunDirError("fresh: contradicts run_dir; give one of the two")
        return _named_run(plan, run_dir, refresh)
    parent = runs_folder(plan, output)
    _check_path("output", parent)
    if not fresh:
        found = [(directory, old) for directory, old in _runs(plan, parent) if old.recipe_key == plan.recipe_key]
        # Unfinished runs come first, the latest of them; then the latest finished one.
        found.sort(key=lambda run: run[1].created_at, reverse=True)
        same = [run for run in found if refresh is False or run[1].key == plan.key]
        for directory, old in same:
            if not is_finished(directory, old):
                return _continue(plan, directory, old, "continued")
        lost = [directory for directory in run_folders(plan, parent) if is_lost(directory)]
        strange = {directory: mismatch(plan, directory) for directory in reversed(lost)}
        ours = [directory for directory, reason in strange.items() if reason is None]
        for directory in ours:
            if not is_finished(directory, plan):
                return _recover(plan, directory)
        for directory, old in same:
            if reuse_finished and old.key == plan.key:
                return _continue(plan, directory, old, "finished")
        if reuse_finished and ours:
            return _recover(plan, ours[0])
        notices = [
            f"{directory}: plan.json is missing or damaged, and "
            f"{reason or 'it is a finished run, beside which a new one begins'}; its trials are left alone"
            for directory, reason in sorted(strange.items())
            if has_trials(directory)
        ]
        return RunChoice(run_dir=new_run(plan, parent, now), state="new", plan=plan, notices=tuple(notices))
    return RunChoice(run_dir=new_run(plan, parent, now), state="new", plan=plan)


def _recover(plan: Plan, run_dir: Path, *more: str) -> RunChoice:
    """Continues a run whose ``plan.json`` was lost."""
    notice = f"{run_dir}: plan.json was missing or damaged; it is written anew from the recipe, and the trials are kept"
    return RunChoice(run_dir=run_dir, state="continued", plan=plan, notices=(notice, *more), recovered=True)


def materialise(choice: RunChoice, *, exclusive: bool) -> None:
    """Makes the run directory and writes the frozen plan into it; the summary comes last.

    Args:
        choice: Where the plan goes.
        exclusive: Whether the directory must not exist yet.

    Raises:
        RunDirError: The directory appeared meanwhile.
        OSError: The disk refuses.
    """
    plan = choice.plan
    layout = RunLayout(choice.run_dir, plan.workload)
    choice.run_dir.parent.mkdir(parents=True, exist_ok=True)
    own = choice.run_dir
    if plan.command is not None:
        # The ticket's folder may be there already, for the runs of a matrix.
        own.mkdir(exist_ok=True)
        own = own / "cells"
    try:
        own.mkdir(exist_ok=not exclusive)
    except FileExistsError as error:
        raise RunDirError(
            f"{choice.run_dir}: another sweep took this name in the same second; run the same command again"
        ) from error
    for cell in plan.cells:
        if cell.request is not None:
            path = layout.cell(cell.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_if_changed(path, cell.request)
        if cell.isolated:
            # Where a trial leaves a snapshot from inside; a container runtime would make the folder as root.
            layout.environment(cell.environment).parent.mkdir(parents=True, exist_ok=True)
    _write_if_changed(layout.plan, plan.to_json())


def _write_if_changed(path: Path, value: Mapping[str, Any]) -> None:
    try:
        if read_json(path) == value:
            return
    except (OSError, ValueError):
        pass
    write_json_atomic(path, value)


def _runs(plan: Plan, parent: Path) -> Iterator[tuple[Path, Plan]]:
    """Yields the readable runs that may be this plan's."""
    for directory in run_folders(plan, parent):
        try:
            old = read_plan(directory)
        except PlanFileError:
            continue
        # Runs of commands lie side by side, whatever their ticket.
        if plan.command is None or old.ticket == plan.ticket:
            yield directory, old


def _check_path(setting: str, path: Path) -> None:
    """Refuses a path that cannot be a run's: its nearest existing part is no folder, or a rule cannot name it."""
    if "{" in str(path) or "}" in str(path):
        raise RunDirError(f"{setting}: {path} has a brace, which Snakemake reads as a wildcard; choose another name")
    for part in (path, *path.parents):
        if part.is_dir():
            return
        if part.exists() or part.is_symlink():
            raise RunDirError(f"{setting}: {part} is not a folder")


def _named_run(plan: Plan, run_dir: Path, refresh: bool) -> RunChoice:
    _check_path("run_dir", run_dir)
    if not run_dir.exists():
        return RunChoice(run_dir=run_dir, state="new", plan=plan)
    if has_no_plan(run_dir):
        lost = is_lost(run_dir)
        earlier = frozen_cells(plan, run_dir) if lost else {}
        same_workload = {request.get("workload") for request in earlier.values()} == {plan.workload}
        if lost and (same_workload or (not earlier and has_records(plan, run_dir))):
            plan, notices = (plan, []) if refresh else _keep_frozen_cells(plan, earlier)
            return _recover(plan, run_dir, *notices)
        if not _is_unplanned(run_dir):
            reason = f", and {mismatch(plan, run_dir)}" if lost and has_trials(run_dir) else ""
            raise RunDirError(
                f"run_dir: {run_dir} is not empty and holds no plan.json that can be read{reason}; "
                "name a run directory or a new one"
            )
        return RunChoice(run_dir=run_dir, state="continued", plan=plan)
    old = read_plan(run_dir)
    if old.workload != plan.workload:
        raise RunDirError(f"run_dir: {run_dir} holds a run of workload {old.workload!r}, not {plan.workload!r}")
    if old.command != plan.command:
        raise RunDirError(
            f"run_dir: {run_dir} holds the results of {_told(old.command)}, not of {_told(plan.command)}; its folders "
            "have no room for both: leave run_dir out to start a run beside it"
        )
    if not refresh and old.recipe_key == plan.recipe_key:
        return _continue(plan, run_dir, old, "finished" if is_finished(run_dir, old) else "continued")
    notices = []
    if not refresh:
        layout, now = RunLayout(run_dir, old.workload), {cell.name: cell.fingerprint for cell in plan.cells}
        changed = [cell.name for cell in old.cells if now.get(cell.name, cell.fingerprint) != cell.fingerprint]
        plan, notices = _keep_frozen_cells(plan, {name: read_request(layout.cell(name)) for name in changed})
    return RunChoice(run_dir=run_dir, state="continued", plan=_succeed(plan, old), notices=tuple(notices))


def _told(command: Mapping[str, Any] | None) -> str:
    return "a workload" if command is None else f"'{shlex.join(command['argv'])}' in {command['cwd']}"


def _keep_frozen_cells(plan: Plan, frozen: Mapping[str, Mapping[str, Any]]) -> tuple[Plan, list[str]]:
    """Returns a changed recipe's plan with the frozen values of the cells that ask for what they asked before.

    Only the registry can have changed such a cell; taking its present values would replace recorded results.

    Args:
        plan: The plan as it would be now.
        frozen: The requests of earlier cells by name, at least of those whose fingerprint has changed.
    """
    cells = []
    notices = []
    for cell in plan.cells:
        before, now = frozen.get(cell.name, {}), cell.request or {}
        if before and before.get("fingerprint") != cell.fingerprint and _asked(before) == _asked(now):
            notices += drift(cell.name, before, now)
            kept = {name: before[name] for name in ("env", "environment", "isolation", "launch", "fingerprint")}
            cells.append(replace(cell, fingerprint=before["fingerprint"], request={**now, **kept}))
        else:
            cells.append(cell)
    return replace(plan, cells=tuple(cells)), [*notices, _KEPT] if notices else []


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a cell asks for by name, whatever the registry holds under the names."""
    own = {name: request.get(name) for name in ("steps", "mitigations", "extra_env", "workload_config", "collect")}
    own["probe"] = of_consequence(request["probe"]) if "probe" in request else None
    recipe = {k: v["value"] for k, v in request.get("env", {}).items() if v["layer"] == "recipe.extra_env"}
    return {**own, "environment": request.get("environment", {}).get("name"), "recipe.extra_env": recipe}


_KEPT = "the values frozen when this run started are kept; refresh=true takes the new ones, fresh=true starts a new run"


def _is_unplanned(run_dir: Path) -> bool:
    """Whether a folder is empty, or holds only what a sweep leaves that died, or found no room, before its plan."""
    own = (".aorta", "cells", "environments", "sidecars", "inline_environments.sidecar.json", "plan.json")
    names = [entry.name for entry in run_dir.iterdir()]
    if not names or names == [".aorta"]:
        return True
    ours = ".aorta" in names and all(name in own or name.startswith(".tmp-") for name in names)
    return ours and not has_trials(run_dir)


def _succeed(plan: Plan, old: Plan) -> Plan:
    """Returns ``plan`` as the next one of a run directory that held ``old``."""
    if plan.key == old.key:
        return replace(plan, created_at=old.created_at, history=old.history)
    entry = {
        "created_at": old.created_at,
        "plan_key": old.key,
        "aorta_version": old.aorta_version,
        "trials": {cell.name: cell.trials for cell in old.cells},
    }
    return replace(plan, history=(*old.history, entry))


def _continue(plan: Plan, run_dir: Path, old: Plan, state: Literal["continued", "finished"]) -> RunChoice:
    """Continues a run of the same recipe; where the registry has changed since, its frozen values stay."""
    if old.key == plan.key:
        return RunChoice(run_dir=run_dir, state=state, plan=_succeed(plan, old))
    layout = RunLayout(run_dir, old.workload)
    now_by_name = {cell.name: cell for cell in plan.cells}
    cells = []
    notices = []
    for cell in old.cells:
        now = now_by_name.get(cell.name)
        present = (now and now.request) or {}
        request = _frozen_request(layout, cell, present)
        resources = cell.resources if now is None else now.resources
        cells.append(replace(cell, request={**request, "resources": dict(resources)}, resources=resources))
        notices += drift(cell.name, request, present)
    notices.append(_KEPT)
    # What does not touch a trial's result (baseline, threshold, ticket) follows the recipe as it is now.
    frozen = replace(
        old, cells=tuple(cells), confound=plan.confound, recipe=plan.recipe, recipe_source=plan.recipe_source
    )
    return RunChoice(run_dir=run_dir, state=state, plan=frozen, notices=tuple(notices))


def _frozen_request(layout: RunLayout, cell: PlannedCell, now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a cell was planned with: its own file, or the present request where that asks for the same.

    Raises:
        PlanFileError: The file is damaged, and the registry has other values now.
    """
    path = layout.cell(cell.name)
    try:
        return read_request(path)
    except PlanFileError as error:
        if now.get("fingerprint") == cell.fingerprint:
            return now
        raise PlanFileError(
            f"{path}: missing or damaged, and the registry has changed since the run started, so that nothing says "
            "what this cell's trials ran with; put the registry back as it was, or name the run (run_dir) with "
            "refresh=true, which runs them again with the present values"
        ) from error


def drift(cell: str, frozen: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Names what a cell's frozen request has otherwise than the registry has now, a line each."""
    lines = []
    old_env, new_env = frozen.get("env", {}), present.get("env", {})
    for name in sorted({*old_env, *new_env}):
        old, new = old_env.get(name), new_env.get(name)
        if (old or {}).get("value") != (new or {}).get("value"):
            layer = (new or old)["layer"]
            lines.append(f"cell {cell}: {name} was {_shown(old)} and is now {_shown(new)} ({layer})")
    for change in find_changes(_surroundings(frozen), _surroundings(present)):
        lines.append(f"cell {cell}: {change['key']} was {show_side(change, 'a')} and is now {show_side(change, 'b')}")
    return lines


def _shown(entry: Mapping[str, str] | None) -> str:
    return "unset" if entry is None else repr(entry["value"])


def _surroundings(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns where and how a request runs, without what its variables show already."""
    return {
        "environment": without(request.get("environment", {}), IN_THE_VARIABLES),
        **{part: request.get(part) for part in ("isolation", "launch")},
    }
