"""Where every file of a run lies. Standard library only: trials and the Snakefile import this."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

NO_TICKET = "_no_ticket_"

_NAME_MAX = 255
"""Longest file name in bytes on the common file systems."""


def safe_name(text: str) -> str:
    """Turns any string into one folder name: the same string for ordinary names, percent-encoded otherwise.

    Different strings get different names, and no name leaves its parent folder. A name that would be longer
    than a file system allows is cut and ends in a digest of the whole.

    Args:
        text: A ticket or a workload name; any non-empty string.
    """
    name = quote(text, safe=" @+,=~#")
    if name.startswith(".") or text == NO_TICKET:
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > _NAME_MAX:
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
        name = f"{name[: _NAME_MAX - 17]}~{digest}"
    return name


def ticket_folder(ticket: str | None) -> str:
    """Returns the folder name of a ticket; an absent ticket has the guide's own folder."""
    return NO_TICKET if ticket is None else safe_name(ticket)


class RunLayout:
    """The paths inside one run directory.

    Args:
        run_dir: The run directory, as the user or the engine wrote it (relative or absolute).
        workload: The workload's name.
    """

    def __init__(self, run_dir: Path | str, workload: str) -> None:
        self.run_dir = Path(run_dir)
        self.workload = safe_name(workload)

    @property
    def plan(self) -> Path:
        """The summary of the plan."""
        return self.run_dir / "plan.json"

    @property
    def recipe(self) -> Path:
        """The resolved recipe, which can be run again."""
        return self.run_dir / "recipe.resolved.yaml"

    @property
    def host_env(self) -> Path:
        """The snapshot of the host."""
        return self.run_dir / "host_env.json"

    @property
    def matrix_json(self) -> Path:
        """The machine-readable matrix."""
        return self.run_dir / "matrix.json"

    @property
    def matrix_md(self) -> Path:
        """The matrix as a person reads it."""
        return self.run_dir / "matrix.md"

    @property
    def matrix_html(self) -> Path:
        """The matrix as a web page."""
        return self.run_dir / "matrix.html"

    @property
    def perf_md(self) -> Path:
        """Step-time percentiles and metrics."""
        return self.run_dir / "perf.md"

    def environment(self, name: str) -> Path:
        """The snapshot of one environment."""
        return self.run_dir / "environments" / name / "env.json"

    def cell(self, name: str) -> Path:
        """One cell's frozen request."""
        return self.run_dir / "cells" / name / "cell.json"

    def trial_folder(self, cell: str) -> Path:
        """The folder of one cell's trial files."""
        return self.run_dir / "cells" / cell / self.workload

    def trial(self, cell: str, trial: int | str) -> Path:
        """One trial's record; ``trial`` may be a wildcard for a rule's pattern."""
        return self.trial_folder(cell) / f"trial_d0_m0_t{trial}.json"
