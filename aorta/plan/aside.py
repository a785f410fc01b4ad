"""Moves what lies in a file's place, and is no such file, out of the way. Standard library only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from aorta._jsonio import NotRegularError, require_regular
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout


def set_aside(path: Path) -> Path:
    """Adds ``.invalid`` to a name; a file replaces an earlier one, anything else gets a number where the name is taken.

    Returns:
        The new path.

    Raises:
        OSError: It cannot be renamed.
    """
    target, number = path.with_name(f"{path.name}.invalid"), 1
    while os.path.lexists(target) and not (path.is_file() and target.is_file()):
        number += 1
        target = path.with_name(f"{path.name}.invalid-{number}")
    return path.replace(target)


def set_irregular_aside(layout: RunLayout, plan: Plan) -> list[str]:
    """Sets aside the folders, pipes, sockets and devices in the places of what a trial writes.

    Snakemake copies such a place before a job that updates it, and a copy of a pipe ends in a traceback.

    Args:
        layout: The run directory.
        plan: Its plan.

    Returns:
        Notices, a line each.

    Raises:
        OSError: One cannot be renamed.
    """
    notices = []
    for path in _irregular(layout, plan):
        notices.append(f"{path} {_kind(path)}; it is set aside as {set_aside(path).name}, and its job runs again")
    return notices


def _irregular(layout: RunLayout, plan: Plan) -> list[Path]:
    found = [path for cell in plan.cells for path in _records(layout.trial_folder(cell.name))]
    found += [layout.environment(cell.environment) for cell in plan.cells if cell.isolated]
    return sorted({path for path in found if _kind(path)})


def _records(folder: Path) -> Iterator[Path]:
    # Listed, with the kinds that the listing gives for nothing: a run may have a million records.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            own = entry.name.startswith("trial_d0_m0_t") and entry.name.endswith(".json")
            if own and not entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def _kind(path: Path) -> str:
    """Says what lies in a regular file's place; empty for such a file, and for nothing."""
    try:
        require_regular(path)
    except NotRegularError as error:
        return str(error)
    except OSError:
        pass
    return ""
