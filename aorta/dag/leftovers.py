"""Removes what killed processes left in a run directory: temporary files, claims, Snakemake's backups.

Only what is provably nobody's: an orphan of an earlier start may still be at work, here or on another host. And takes
back a run that was prepared and then refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from aorta import _owner
from aorta._jsonio import temporary_host, write_text_atomic
from aorta.run.claim import Found, claims_folder, find, remove
from aorta.run.process import kill_all, marked
from aorta.text import plural

STRANGER_SEC = 3600.0
"""A temporary file whose process nobody here can look at is removed when it is older than this.

Most are written within moments. What a trial reserves for its record lives as long as the trial, which writes it anew
if need be.
"""

_TEMPORARY = re.compile(r"\.tmp-(?:(?P<host>.+)-(?P<pid>[0-9]{1,9})-[0-9a-f]+|.*)")


def clear_leftovers(run_dir: Path, *, place: _owner.Place | None = None) -> list[str]:
    """Removes leftovers of dead processes; may be called at any moment, and whatever cannot be removed stays.

    Args:
        run_dir: The run directory.
        place: Where this process is; for tests.

    Returns:
        Notices: what was removed, in at most one line.
    """
    place = place or _owner.Place.here()
    temporary = sum(map(_unlinked, _dead_temporary_files(run_dir)))
    claims = sum(_removed(claim) for claim in _dead_claims(run_dir, place))
    # Snakemake copies a file before a job that updates it, to put it back should the job fail.
    shutil.rmtree(Path(".snakemake", "backups", *_below_root(run_dir)), ignore_errors=True)
    found = ((temporary, "temporary file"), (claims, "claim"))
    removed = [plural(number, what) for number, what in found if number]
    return [f"removed {' and '.join(removed)} of processes that died"] if removed else []


def withdraw(run_dir: Path, *, keep_folder: bool) -> None:
    """Removes what a start wrote that was then refused: the plan of a run that has not begun.

    Nothing is removed once a sweep has locked the run, and never a file that a start does not write.

    Args:
        run_dir: The run directory.
        keep_folder: Whether the directory itself was there before.
    """
    own = run_dir / ".aorta"
    if os.path.lexists(own / "lock") or any(run_dir.glob("cells/*/*/*")):
        return
    for path in (run_dir / "plan.json", *run_dir.glob("cells/*/cell.json"), *_prepared(run_dir)):
        _unlinked(path)
    inside = (
        *run_dir.glob("cells/*"),
        run_dir / "cells",
        *run_dir.glob("environments/*"),
        run_dir / "environments",
        own,
    )
    for folder in (*inside, *(() if keep_folder else (run_dir,))):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _prepared(run_dir: Path) -> list[Path]:
    """Returns the files that every start writes anew before Snakemake begins."""
    return [run_dir / ".aorta" / name for name in ("settings.json", "recipe.yaml")]


def read_prepared(run_dir: Path) -> dict[Path, str]:
    """Returns what an earlier start has left in those files of a run that a start writes before Snakemake begins."""
    found = {}
    for path in _prepared(run_dir):
        with contextlib.suppress(OSError, ValueError):
            found[path] = path.read_text("utf-8")
    return found


def put_back(earlier: Mapping[Path, str]) -> None:
    """Writes the files of :func:`read_prepared` as they were: a start that was refused changes nothing."""
    for path, text in earlier.items():
        with contextlib.suppress(OSError, ValueError):
            if path.read_text("utf-8") != text:
                write_text_atomic(path, text)


def _unlinked(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _removed(claim: Found) -> bool:
    remove(claim.path)
    return not os.path.lexists(claim.path)


def _below_root(path: Path) -> tuple[str, ...]:
    return path.parts[1:] if path.is_absolute() else path.parts


def _dead_temporary_files(run_dir: Path) -> Iterator[Path]:
    now = _disk_time(run_dir)
    for folder, _folders, names in os.walk(run_dir):
        for name in names:
            match = _TEMPORARY.fullmatch(name)
            if match is None:
                continue
            path = Path(folder, name)
            if match["host"] == temporary_host() and _owner.start_time(int(match["pid"])) is None:
                yield path
                continue
            with contextlib.suppress(OSError):
                if now is not None and now - path.stat().st_mtime > STRANGER_SEC:
                    yield path


def _disk_time(folder: Path) -> float | None:
    """Returns the time as the file system tells it, which need not be this host's; None on a disk that refuses."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def _dead_claims(run_dir: Path, place: _owner.Place) -> Iterator[Found]:
    """Yields the claims on trials that no living process holds, after ending what their owners left running."""
    try:
        folders = sorted(entry.path for entry in os.scandir(claims_folder(str(run_dir))) if entry.is_dir())
    except OSError:
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            for _trial, group in groupby(find(folder), key=lambda claim: claim.trial):
                claims = list(group)
                if all(_is_dead(claim, place) for claim in claims):
                    for claim in claims:
                        _end_trial(claim)
                    yield from claims


def _is_dead(claim: Found, place: _owner.Place) -> bool:
    return claim.owner is not None and _owner.state(claim.owner, place) == _owner.DEAD


def _end_trial(claim: Found) -> None:
    token = claim.owner.get("token") if claim.owner else None
    if isinstance(token, str) and token:
        kill_all(marked(token))
