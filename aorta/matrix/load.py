"""Reads a run directory: the plan, each cell's request, the trial records that count, the environments' snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aorta.matrix.records import Expected, RejectedError, read_object, read_record
from aorta.matrix.stopping import last_counted
from aorta.plan import Plan, PlannedCell, RunLayout
from aorta.plan.rundir import read_plan
from aorta.run.record import NOT_NEEDED

_TRIAL_FILE = re.compile(r"trial_d0_m0_t(0|[1-9][0-9]*)\.json")

# What the matrix reads from a cell's request.
_REQUEST_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "cell": lambda value: isinstance(value, str),
    "fingerprint": lambda value: isinstance(value, str),
    "steps": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "mitigations": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "environment": lambda value: isinstance(value, dict),
    "env": lambda value: (
        isinstance(value, dict)
        and all(isinstance(entry, dict) and {"value", "layer"} <= entry.keys() for entry in value.values())
    ),
    "extra_env": lambda value: isinstance(value, dict),
    "workload_config": lambda value: isinstance(value, dict),
    "collect": lambda value: isinstance(value, dict),
    "isolation": lambda value: isinstance(value, str),
    "acts_on": lambda value: isinstance(value, list),
}


@dataclass(kw_only=True)
class LoadedRun:
    """Everything that a matrix is made of.

    Attributes:
        plan: The plan.
        requests: Cell name to its frozen request; a cell whose file cannot be used is absent.
        records: The valid trial records, of all cells.
        snapshots: Environment name to whether its snapshot was captured; None where there is no file.
        rejected: Trial files that are no valid record of their trial.
        warnings: What was found amiss while reading; each has ``cell``, ``code`` and ``message``.
    """

    plan: Plan
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    snapshots: dict[str, bool | None] = field(default_factory=dict)
    rejected: list[Path] = field(default_factory=list)
    warnings: list[dict[str, str | None]] = field(default_factory=list)

    def warn(self, cell: str | None, code: str, message: str) -> None:
        """Adds one warning."""
        self.warnings.append({"cell": cell, "code": code, "message": message})


def load_run(run_dir: Path) -> LoadedRun:
    """Reads a run directory; only the plan must be sound, every other file may be missing or damaged.

    Raises:
        PlanFileError: ``plan.json`` is missing or damaged.
    """
    run = LoadedRun(plan=read_plan(run_dir))
    layout = RunLayout(run_dir, run.plan.workload)
    for cell in run.plan.cells:
        _load_request(run, layout, cell)
        _load_records(run, layout, cell)
    for name in run.plan.environments:
        run.snapshots[name] = _snapshot_captured(run, layout, name)
    return run


def _load_request(run: LoadedRun, layout: RunLayout, cell: PlannedCell) -> None:
    path = layout.cell(cell.name)
    try:
        request = read_object(path)
        for name, is_right in _REQUEST_FIELDS.items():
            if name not in request or not is_right(request[name]):
                raise RejectedError("invalid", f"{name} is missing or of the wrong kind")
        if (request["cell"], request["fingerprint"]) != (cell.name, cell.fingerprint):
            raise RejectedError("stale", "does not belong to the plan (cell or fingerprint differ)")
    except (FileNotFoundError, RejectedError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else str(error)
        where = path.relative_to(layout.run_dir).as_posix()
        run.warn(cell.name, "cell_request_unusable", f"{where}: {reason}; the cell's settings are not shown")
        return
    run.requests[cell.name] = request


def _load_records(run: LoadedRun, layout: RunLayout, cell: PlannedCell) -> None:
    records = []
    for trial in _trials_on_disk(layout.trial_folder(cell.name), cell.trials):
        path = layout.trial(cell.name, trial)
        expected = Expected(cell=cell.name, trial=trial, workload=run.plan.workload, fingerprint=cell.fingerprint)
        try:
            records.append(read_record(path, expected))
        except FileNotFoundError:
            continue  # removed since the folder was listed, or a dangling link: simply missing
        except RejectedError as error:
            _reject(run, layout, cell, trial, error)
    last = None if cell.stop_after is None else last_counted(records, cell.stop_after)
    for record in records:
        if record["exit_status"] != NOT_NEEDED or (last is not None and record["trial"] > last):
            run.records.append(record)
        else:
            reason = (
                "says that the trial was not needed, which no longer holds (stop_after, or an earlier trial, changed)"
            )
            _reject(run, layout, cell, record["trial"], RejectedError("stale", reason))


def _reject(run: LoadedRun, layout: RunLayout, cell: PlannedCell, trial: int, error: RejectedError) -> None:
    path = layout.trial(cell.name, trial)
    run.rejected.append(path)
    where = path.relative_to(layout.run_dir).as_posix()
    run.warn(cell.name, f"trial_{error.code}", f"{where}: {error}; counted as missing")


def _trials_on_disk(folder: Path, trials: int) -> list[int]:
    """Returns the indices below ``trials`` that have a file, in order; later ones belong to an earlier plan."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    found = (match for match in map(_TRIAL_FILE.fullmatch, names) if match and len(match[1]) < 10)
    return sorted(index for index in (int(match[1]) for match in found) if index < trials)


def _snapshot_captured(run: LoadedRun, layout: RunLayout, name: str) -> bool | None:
    path = layout.environment(name)
    try:
        snapshot = read_object(path)
    except FileNotFoundError:
        return None
    except RejectedError as error:
        where = path.relative_to(layout.run_dir).as_posix()
        run.warn(None, "snapshot_unreadable", f"{where}: {error}; counted as missing")
        return None
    return snapshot.get("snapshot_captured") is not False
