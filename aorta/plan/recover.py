"""What a run whose ``plan.json`` was lost still holds: its cells' own files. Standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aorta._jsonio import read_json
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout


def is_lost(run_dir: Path) -> bool:
    """Whether a folder is a run whose ``plan.json`` is missing, or no JSON.

    A plan of another version, or one that somebody edited, is not lost.
    """
    if not (run_dir / ".aorta").is_dir():
        return False
    try:
        read_json(run_dir / "plan.json")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    except ValueError:
        return True
    return False


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
        if isinstance(request, dict):
            found[cell.name] = request
    return found


def cells_match(plan: Plan, run_dir: Path) -> bool:
    """Whether a run has only cells of ``plan``, and each that can be read asks for the same trials.

    At least one has to be readable.
    """
    try:
        names = {entry.name for entry in (run_dir / "cells").iterdir()}
    except OSError:
        return False
    requests = frozen_cells(plan, run_dir)
    return (
        bool(requests)
        and names <= {cell.name for cell in plan.cells}
        and all(
            (requests[cell.name].get("fingerprint"), requests[cell.name].get("trials"))
            == (cell.fingerprint, cell.trials)
            for cell in plan.cells
            if cell.name in requests
        )
    )
