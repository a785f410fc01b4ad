"""``python -m aorta.matrix RUN_DIR``: aggregates a run directory, complete or not, and shows the matrix."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aorta._jsonio import told
from aorta.matrix.markdown import render_markdown
from aorta.matrix.text import one_line
from aorta.matrix.write import write_matrix
from aorta.plan.model import PlanFileError
from aorta.text import plural


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: Command-line arguments, or None for the process's own.

    Returns:
        0 when the files were written, whether or not trials are missing; 1 with ``--final`` when some are; 2 when
        the files could not be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m aorta.matrix",
        description="Aggregates the trials of a run directory to matrix.json, matrix.md, matrix.html and perf.md.",
        epilog="example: python -m aorta.matrix results/EXAMPLE-001/training/2026-04-28T14-12-03",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the folder that holds plan.json and cells/")
    parser.add_argument("--quiet", action="store_true", help="write the files and print nothing")
    parser.add_argument(
        "--final",
        action="store_true",
        help="every trial should be there: end with 1 if one is missing, and set files that are no valid record "
        "aside as *.invalid, so that their trials run again",
    )
    options = parser.parse_args(arguments)
    try:
        matrix = write_matrix(options.run_dir, set_aside=options.final)
    except (PlanFileError, OSError) as error:
        # The message may quote a file of the run.
        text = told(error, options.run_dir) if isinstance(error, OSError) else str(error)
        print(f"aorta.matrix: {one_line(text)}", file=sys.stderr)
        return 2
    if not options.quiet:
        text = render_markdown(matrix)
        # A terminal may not speak UTF-8; the matrix is worth showing all the same.
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), end="")
    if options.final and not matrix["complete"]:
        missing = matrix["trials_expected"] - matrix["trials_present"]
        lacking = f"{plural(missing, 'trial')} without a valid record"
        print(f"aorta.matrix: {lacking}; run the same command again", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
