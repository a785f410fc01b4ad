"""Runs a script with every layer measured.

    python -m aorta.instrumentation.layer_numerics [--config FILE] SCRIPT [args]
    torchrun --nproc-per-node N -m aorta.instrumentation.layer_numerics SCRIPT [args]

The script runs as it would by itself: its arguments, its exit code and its exceptions are its own.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence

from aorta.instrumentation.layer_numerics.spec import read_spec


def _warn(message: str) -> None:
    print(f"layer_numerics: {message}", file=sys.stderr)


def _rank(warn: Callable[[str], None]) -> int:
    rank = os.environ.get("RANK") or "0"
    if rank.isascii() and rank.isdigit():
        return int(rank)
    warn(f"RANK: must be a whole number, not {rank!r:.60}; the files are named as those of rank 0")
    return 0


def _started(config: str | None) -> Callable[[], None] | None:
    """Starts measuring; returns what ends it, or None where it cannot be done."""
    try:
        from aorta.instrumentation.layer_numerics.session import Session

        told: list[str] = []

        def tell(message: str) -> None:
            told.append(message)
            _warn(message)

        session = Session(read_spec(config, os.environ, tell), _rank(tell), _warn, told)
    except Exception as error:
        _warn(f"nothing is measured: {type(error).__name__}: {error}")
        return None
    return session.close


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns 2 if it names no script.

    Args:
        argv: The arguments, without the program's name.
    """
    rest = list(argv)
    config = None
    if rest and rest[0] == "--config":
        if len(rest) < 2:
            _warn("--config: a file is missing")
            return 2
        config, rest = rest[1], rest[2:]
    elif rest and rest[0].startswith("--config="):
        config, rest = rest[0].partition("=")[2], rest[1:]
    if not rest or rest[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if rest else 2
    if not os.path.isfile(rest[0]):
        _warn(f"{rest[0]}: no such script")
        return 2
    end = _started(config)
    sys.argv = rest
    sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
    try:
        runpy.run_path(rest[0], run_name="__main__")
    finally:
        if end is not None:
            end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
