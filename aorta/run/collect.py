"""Copies what a command left where it ran (``collect_paths``). Standard library only; loaded after its end."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any


def copy_matches(patterns: Sequence[str], cwd: str, target: str, *, outside: str) -> dict[str, Any]:
    """Copies every file that a pattern matches, and all files in a folder that one matches.

    A file below ``cwd`` keeps its path from there, any other its whole path. Links to files are followed, and links to
    folders are not, so that no loop and no second copy of a data set comes in.

    Args:
        patterns: Glob patterns, below ``cwd`` or absolute; ``**`` stands for any folders.
        cwd: The folder in which the command ran.
        target: The folder that gets the copies; it is made if there is something to copy.
        outside: A folder of which nothing is copied: the run's own, which a wide pattern would copy into itself.

    Returns:
        ``files``, the copies' paths from ``target``, sorted, and ``problems``, a line for each that was not copied.
    """
    files: list[str] = []
    problems: list[str] = []
    own = os.path.realpath(outside)
    for path in sorted(_matched(patterns, cwd)):
        if os.path.commonpath([own, os.path.realpath(path)]) == own:
            continue
        inside = os.path.relpath(path, cwd)
        place = path.lstrip(os.sep) if inside.startswith(os.pardir) else inside
        copy = os.path.join(target, place)
        try:
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy2(path, copy)
        except OSError as error:
            problems.append(f"{path}: {error.strerror or error}")
        else:
            files.append(place)
    return {"files": sorted(files), "problems": problems}


def _matched(patterns: Sequence[str], cwd: str) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        for match in glob.glob(os.path.join(glob.escape(cwd), pattern), recursive=True, include_hidden=True):
            found.update(os.path.normpath(path) for path in _files(match))
    return found


def _files(path: str) -> Iterator[str]:
    """Yields a regular file itself, or the regular files in a folder; pipes, sockets and devices are passed over."""
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path) and not os.path.islink(path):
        for folder, _folders, names in os.walk(path):
            yield from (full for name in names if os.path.isfile(full := os.path.join(folder, name)))
