"""Takes the snapshot from inside an isolated environment: ``python -m aorta.instrumentation._probe_main OUT``.

Needs nothing but a Python of at least 3.8 and this source tree on ``PYTHONPATH``. Writes the same file as
``aorta env probe -o OUT``. A wrapper runs it before the trial's own command, joined with ``&&``, so a snapshot that
cannot be written is a message on standard error and not a failed trial: the engine then records its absence.
"""

from __future__ import annotations

import os
import sys

if not __package__:
    # Run by path, as the snapshot job does under another environment's PYTHONPATH. Python then puts this folder first,
    # where a module of ours could hide one of the standard library.
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _here]
    sys.path.insert(0, os.path.dirname(os.path.dirname(_here)))

from aorta._jsonio import write_json_through
from aorta.instrumentation._collect import collect_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE = "usage: python -m aorta.instrumentation._probe_main [--no-torch] OUT"


def main(argv: Sequence[str]) -> int:
    """Writes the snapshot.

    Args:
        argv: ``[--no-torch] OUT``.

    Returns:
        0, or 2 for wrong usage, such as an empty OUT.
    """
    paths = [argument for argument in argv if argument != "--no-torch"]
    if len(paths) != 1 or not paths[0] or paths[0].startswith("-"):
        empty = "OUT is empty; name a file\n" if paths == [""] else ""
        sys.stderr.write(f"{empty}{_USAGE}\n")
        return 2
    snapshot = collect_env(import_torch=len(paths) == len(argv))
    try:
        write_json_through(paths[0], snapshot)
    except (OSError, ValueError) as error:
        sys.stderr.write(
            f"aorta: the environment snapshot could not be written to {paths[0]}: {error}; "
            "mount the folder of _aorta_env_probe['out'] writable\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
