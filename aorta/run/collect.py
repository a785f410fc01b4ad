"""Copies what a command left where it ran (``collect_paths``). Standard library only; loaded after its end."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any


def copy_matches(patterns: Sequence[str], cwd: str, target: str, *, outside: str) -> dict[str, Any]:
    """Copies every file that a pattern matches, and all files in a folder that one matches.

    A file below ``cwd`` keeps its path from there, any other its whole path. No link is followed out of the folder
    that its pattern is about, ``cwd`` or the leading part of an absolute pattern: what a command left or unpacked there
    would else bring in any file of the machine. Links to folders are not followed where a folder was matched, so
    that no loop and no second copy of a data set comes in.

    Args:
        patterns: Glob patterns, absolute, or below ``cwd`` without ``..``; ``**`` stands for any folders.
        cwd: The folder in which the command ran.
        target: The folder that gets the copies; it is made if there is something to copy.
        outside: A folder of which nothing is copied: the run's own, which a wide pattern would copy into itself.

    Returns:
        ``files``, the copies' paths from ``target``, sorted, and ``problems``, a line for each that was not copied.
    """
    files: list[str] = []
    own = os.path.realpath(outside)
    matched, links = _matched(patterns, cwd, own)
    problems = [
        f"{link}: is a link out of the folder that its pattern is about, to {os.path.realpath(link)}, and is not "
        "followed; name that path itself to collect it"
        for link in sorted(links)
    ]
    for path in sorted(matched):
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


def _matched(patterns: Sequence[str], cwd: str, own: str) -> tuple[set[str], set[str]]:
    """Returns the files to copy, and the links that lead away from what a pattern is about."""
    found: set[str] = set()
    links: set[str] = set()
    for pattern in patterns:
        whole = os.path.join(glob.escape(cwd), pattern)
        root = _root(pattern) if os.path.isabs(pattern) else cwd
        for match in glob.glob(whole, recursive=True, include_hidden=True):
            for path in map(os.path.normpath, _files(match)):
                if _is_below(path, own):
                    continue
                link = None if path == root else _link_away(path, root)
                if link is None:
                    found.add(path)
                else:
                    links.add(link)
    # One pattern may name in so many words what another meets through a link.
    return found, links - found


def _root(pattern: str) -> str:
    """Returns what an absolute pattern says in so many words: its path as far as the first part with a wildcard."""
    parts = pattern.split(os.sep)
    plain = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return os.path.normpath(os.sep.join(parts[:plain]) or os.sep)


def _is_below(path: str, folder: str) -> bool:
    """Whether a path leads to something in a folder, or to itself; ``folder`` is a real path."""
    return os.path.commonpath([folder, os.path.realpath(path)]) == folder


def _link_away(path: str, root: str) -> str | None:
    """Returns the first link on the way from ``root`` to ``path`` that leads out of it, if ``path`` lies outside."""
    real = os.path.realpath(root)
    if _is_below(path, real):
        return None
    at = root
    for part in os.path.relpath(path, root).split(os.sep):
        at = os.path.join(at, part)
        if not _is_below(at, real):
            break
    return at


def _files(path: str) -> Iterator[str]:
    """Yields a regular file itself, or the regular files in a folder; pipes, sockets and devices are passed over."""
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path) and not os.path.islink(path):
        for folder, _folders, names in os.walk(path):
            yield from (full for name in names if os.path.isfile(full := os.path.join(folder, name)))
