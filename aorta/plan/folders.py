"""Where the runs of a plan lie, and what a new one is called. Standard library only.

A matrix of a workload gets ``<output>/<ticket>/<workload>/<time>``. A run of a command has no time in its path: it is
``<output>/<ticket>`` itself, and where that holds another run already, ``<output>/<ticket>-2`` and so on.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from aorta.plan.model import Plan
from aorta.plan.paths import safe_name, ticket_folder


def runs_folder(plan: Plan, output: Path) -> Path:
    """Returns the folder of all runs of a plan's ticket and workload; that of all tickets for a command."""
    if plan.command is not None:
        return output
    return output / ticket_folder(plan.ticket) / safe_name(plan.workload)


def run_folders(plan: Plan, parent: Path) -> list[Path]:
    """Returns what in ``runs_folder`` may be a run of this plan, oldest name first."""
    try:
        entries = sorted(parent.iterdir())
    except OSError:
        return []
    if plan.command is None:
        return entries
    own = re.compile(rf"{re.escape(ticket_folder(plan.ticket))}(-[0-9]+)?")
    return [entry for entry in entries if own.fullmatch(entry.name)]


def new_run(plan: Plan, parent: Path, now: datetime) -> Path:
    """Returns the path of a new run below ``runs_folder``."""
    if plan.command is None:
        return new_name(parent, now)
    stem = ticket_folder(plan.ticket)
    # The ticket's folder may be there for the runs of a matrix; only what a run of a command makes must not be.
    own = ["plan.json", ".aorta", "cells", *(cell.name for cell in plan.cells)]
    candidate, number = parent / stem, 1
    while any((candidate / name).exists() for name in own):
        number += 1
        candidate = parent / f"{stem}-{number}"
    return candidate


def new_name(parent: Path, now: datetime) -> Path:
    """Returns a path below ``parent`` that does not exist: the time, and a number where that is taken."""
    stem = now.strftime("%Y-%m-%dT%H-%M-%S")
    candidate, suffix = parent / stem, 1
    while candidate.exists():
        suffix += 1
        candidate = parent / f"{stem}-{suffix}"
    return candidate
