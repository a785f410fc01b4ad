"""Tells Snakemake which files are there, before it looks for itself.

For Snakemake a file is there or not, and whether a job must run again hangs on what it noted when the job last ran;
a power cut can spoil the file and the note together. A record that is damaged, or that was made for another request,
is no record: declared absent, its trial runs by the same command, whatever the notes say, and a dry-run shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aorta._jsonio import both_ends


def whole_files(folder: Path) -> list[str]:
    """Returns the files of a folder that are not cut short: none is empty, and a JSON file ends as we end it."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        head, tail = both_ends(path, 1)
        if head and (path.suffix != ".json" or tail == b"}\n"):
            found.append(str(path))
    return found


def declare(workflow: Any, folder: str, present: Iterable[str]) -> list[str]:
    """Fixes, for the building of the DAG, which files of a folder exist.

    It fills the cache that Snakemake fills by listing a folder once; Snakemake drops the cache when jobs start.

    Args:
        workflow: Snakemake's workflow.
        folder: The folder, as rules name it.
        present: The files of it that count, as rules name them; all others are absent.

    Returns:
        Notices: empty when it worked.
    """
    known: Any = getattr(getattr(workflow, "iocache", None), "exists_local", None)
    listed: Any = getattr(known, "has_inventory", None)
    if not isinstance(known, dict) or not isinstance(listed, set):
        return ["this Snakemake looks for files otherwise than expected; a damaged trial file may take a second start"]
    listed.add(folder)
    known.update(dict.fromkeys(present, True))
    return []
