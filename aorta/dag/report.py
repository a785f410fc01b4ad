"""Rebuilds a run directory's reports from what is on disk."""

from __future__ import annotations

import sys
from pathlib import Path

from aorta._jsonio import told
from aorta.dag.errors import bad_input_exits, say


def rebuild_reports(run_dir: Path) -> int:
    """Writes ``matrix.json``, ``matrix.md``, ``matrix.html`` and ``perf.md`` anew and prints the matrix.

    May be called at any moment, also while a sweep runs there: every file appears whole, and an incomplete matrix is
    dated so that the sweep makes it again.

    Args:
        run_dir: The run directory.

    Returns:
        The exit code: 0 complete, 1 trials are missing, whether or not the files could be written: where they could
        not, as in a read-only copy, a notice says so. Ends the process with 2 if the directory cannot be read.
    """
    from aorta.matrix import make_reports, render_markdown

    with bad_input_exits():
        matrix, errors = make_reports(run_dir)
    text = f"{render_markdown(matrix)}\n"
    if not errors:
        text += f"matrix: {run_dir / 'matrix.md'}\n"
    # A terminal may not speak UTF-8; the matrix is worth showing all the same.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
    for line in dict.fromkeys(told(error, run_dir) for error in errors):
        say(f"could not be written: {line}")
    return 0 if matrix["complete"] else 1
