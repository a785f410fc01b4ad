"""What a run whose ``plan.json`` was lost still holds: its cells' own files, and its trials' records.

Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aorta._jsonio import both_ends, read_json
from aorta.plan.model import OtherVersionError, Plan, PlanFileError, PlannedCell
from aorta.plan.paths import RunLayout
from aorta.run.needed import read_outcome

_TRIALS = "trial_d0_m0_t*.json"


def has_no_plan(run_dir: Path) -> bool:
    """Whether a folder's ``plan.json`` is missing or damaged in any way.

    A plan of another version is neither, nor is one that the system does not let us read.
    """
    path = run_dir / "plan.json"
    try:
        Plan.from_json(read_json(path), source=str(path))
    except (FileNotFoundError, ValueError):
        return True
    except (OtherVersionError, OSError):
        return False
    except PlanFileError:
        return True
    return False


def is_lost(run_dir: Path) -> bool:
    """Whether a folder is a run whose ``plan.json`` is missing or damaged."""
    return any((run_dir / name).is_dir() for name in (".aorta", "cells")) and has_no_plan(run_dir)


def has_trials(run_dir: Path) -> bool:
    """Whether a folder holds any trial's file."""
    return any(run_dir.glob("cells/*/*/trial_*.json"))


def frozen_cells(plan: Plan, run_dir: Path) -> dict[str, dict[str, Any]]:
    """Returns the requests that a run's cells hold, by name, of those cells that ``plan`` has and that are readable."""
    layout = RunLayout(run_dir, plan.workload)
    found = {}
    for cell in plan.cells:
        try:
            request = read_json(layout.cell(cell.name))
        except (OSError, ValueError):
            continue
        if isinstance(request, dict) and "fingerprint" in request:
            found[cell.name] = request
    return found


def mismatch(plan: Plan, run_dir: Path) -> str | None:
    """Says why a run that lost its ``plan.json`` is not known to be one of ``plan``; None where it is one.

    It is one if it has only cells of ``plan``, each cell's file that can be read asks for the same trials, no cell
    without such a file has only another request's records, and at least one file of a cell, or one trial's whole
    record, carries the fingerprint of its cell.
    """
    try:
        names = {entry.name for entry in (run_dir / "cells").iterdir()}
    except OSError:
        names = set()
    requests = frozen_cells(plan, run_dir)
    for cell in plan.cells:
        request = requests.get(cell.name)
        if request and (request["fingerprint"], request.get("trials")) != (cell.fingerprint, cell.trials):
            return f"its cell {cell.name!r} is not what is asked for now"
    others = sorted(names - {cell.name for cell in plan.cells})
    if others:
        return f"it has a cell {others[0]!r}, which is not asked for now"
    layout = RunLayout(run_dir, plan.workload)
    for cell in plan.cells:
        folder = layout.trial_folder(cell.name)
        if cell.name not in requests and _has_whole(folder) and not _has_record(folder, cell):
            return f"the trials of its cell {cell.name!r} were made for another request than is made now"
    if requests or has_records(plan, run_dir):
        return None
    return (
        "no cell.json in it can be read, and no trial's record of what is asked for, so that nothing says what it ran"
    )


def has_records(plan: Plan, run_dir: Path) -> bool:
    """Whether a run holds a whole record of any trial that ``plan`` asks for."""
    layout = RunLayout(run_dir, plan.workload)
    return any(_has_record(layout.trial_folder(cell.name), cell) for cell in plan.cells)


def _has_record(folder: Path, cell: PlannedCell) -> bool:
    return any(read_outcome(path, cell.fingerprint) is not None for path in folder.glob(_TRIALS))


def _has_whole(folder: Path) -> bool:
    return any(both_ends(path, 1)[1] == b"}\n" for path in folder.glob(_TRIALS))
