"""Rebuilds a run directory's reports from what is on disk."""

from __future__ import annotations

import sys
from pathlib import Path

from aorta.dag.errors import bad_input_exits


def rebuild_reports(run_dir: Path) -> int:
    """Writes ``matrix.json``, ``matrix.md``, ``matrix.html`` and ``perf.md`` anew and prints the matrix.

    May be called at any moment, also while a sweep runs there: every file appears whole, and an incomplete matrix is
    dated so that the sweep makes it again.

    Args:
        run_dir: The run directory.

    Returns:
        The exit code: 0 complete, 1 trials are missing. Ends the process with 2 if the directory cannot be used.
    """
    from aorta.matrix import render_markdown, write_matrix

    with bad_input_exits():
        matrix = write_matrix(run_dir)
    text = f"{render_markdown(matrix)}\nmatrix: {run_dir / 'matrix.md'}\n"
    # A terminal may not speak UTF-8; the matrix is worth showing all the same.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
    return 0 if matrix["complete"] else 1
