"""Tells a run's own files from what else lies in its folder. Standard library only.

A run of a command is its ticket's folder, in which the runs of matrices of the same ticket lie too
(``aorta.plan.folders``); ``run_dir`` and ``output`` may put any other run there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ANOTHER_RUN = "another run"
NOT_OF_THE_RUN = "not a file of this run"

_FILES = (
    "plan.json",
    "recipe.resolved.yaml",
    "host_env.json",
    "matrix.json",
    "matrix.md",
    "matrix.html",
    "perf.md",
    "inline_environments.sidecar.json",
)
_FOLDERS = (".aorta", "environments", "sidecars")
_ASIDE = re.compile(r"(.+?)\.invalid(-[0-9]+)?")
_TRIAL = re.compile(r"trial_[0-9]+")


class OwnFiles:
    """What in a run directory belongs to the run.

    Args:
        run_dir: The run directory.
        plan: The content of its ``plan.json``, of any version.

    Raises:
        ValueError: The plan does not say which cells the run has.
    """

    def __init__(self, run_dir: Path, plan: Any) -> None:
        self._run_dir = run_dir
        try:
            names = {cell["name"] for cell in plan["cells"]}
            # A run that was continued with another recipe has cells that it no longer plans.
            names.update(name for entry in plan.get("history", ()) for name in entry["trials"])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("does not say which cells the run has") from error
        self._cells = frozenset(names)
        self._wraps_a_command = isinstance(plan.get("command"), Mapping)

    def is_own(self, parts: Sequence[str]) -> bool | None:
        """Judges a path by its place.

        Args:
            parts: Its names, from the run directory down; at least one.

        Returns:
            Whether it is the run's, with all that is below; None for a folder in which own files lie beside others.
        """
        first = parts[0]
        if first == "cells":
            return None if len(parts) == 1 else parts[1] in self._cells
        if first in _FILES or first in _FOLDERS or first.startswith(".tmp-"):
            return True
        if self._wraps_a_command and first in self._cells:
            return None if len(parts) == 1 else _TRIAL.fullmatch(parts[1]) is not None
        aside = _ASIDE.fullmatch(first)
        return aside is not None and (aside[1] in _FILES or aside[1] in _FOLDERS)

    def walk(self) -> Iterator[tuple[Path, str | None]]:
        """Yields what lies in the run directory: each own file or link, and once each thing that is not the run's.

        Follows no link. A run that lies in the folder of one of the command's trials is that trial's.

        Yields:
            A path, and None for what is the run's own, else the reason why it is not.

        Raises:
            OSError: A folder cannot be read.
        """
        yield from self._walk(self._run_dir, ())

    def _walk(self, folder: Path, above: tuple[str, ...]) -> Iterator[tuple[Path, str | None]]:
        for entry in _entries(folder):
            parts, path = (*above, entry.name), Path(entry.path)
            is_folder = entry.is_dir(follow_symlinks=False)
            own = self.is_own(parts)
            if own is False:
                yield from self._of_others(path, is_folder)
            elif not is_folder:
                yield path, None
            elif own is None:
                yield from self._walk(path, parts)
            elif not self._is_trial(parts) and is_run(path):
                yield path, ANOTHER_RUN
            else:
                yield from self._walk_own(path, self._is_trial(parts))

    def _walk_own(self, folder: Path, is_trial: bool) -> Iterator[tuple[Path, str | None]]:
        for entry in _entries(folder):
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                yield path, None
            elif not is_trial and is_run(path):
                yield path, ANOTHER_RUN
            else:
                yield from self._walk_own(path, is_trial)

    def _is_trial(self, parts: Sequence[str]) -> bool:
        return self._wraps_a_command and parts[0] in self._cells

    def _of_others(self, path: Path, is_folder: bool) -> Iterator[tuple[Path, str]]:
        runs = list(_runs_in(path)) if is_folder else []
        if runs:
            yield from ((run, ANOTHER_RUN) for run in runs)
        else:
            yield path, NOT_OF_THE_RUN


def is_run(folder: Path) -> bool:
    """Whether a folder looks like a run directory: it has a plan, or cells with the engine's own folder."""
    return (folder / "plan.json").is_file() or ((folder / "cells").is_dir() and (folder / ".aorta").is_dir())


def _runs_in(folder: Path) -> Iterator[Path]:
    """Yields the outermost runs at or below a folder that can be read."""
    for parent, folders, _names in os.walk(folder):
        folders.sort()
        if is_run(Path(parent)):
            folders.clear()
            yield Path(parent)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)
