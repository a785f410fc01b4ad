"""Snakemake, started so that Ctrl-C ends it in order: ``python -m aorta.dag.interruptible ARGUMENTS OF SNAKEMAKE``.

One Ctrl-C may arrive twice, from the terminal and passed on by who started this process. Snakemake would leave what it
does about the first one, such as cancelling its jobs, for the second, and show tracebacks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import FrameType

_SAME_SEC = 1.0
"""An interrupt that follows another within this time is the same one, which came by another way."""


class _Interrupts:
    """Handles SIGINT: the first one, and each that is not the same again, is a ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self._raised_at: float | None = None

    def take(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._raised_at is None or now - self._raised_at > _SAME_SEC:
            self._raised_at = now
            raise KeyboardInterrupt


def main() -> None:
    """Runs Snakemake's own command line; an interrupt that it does not handle ends the process by SIGINT."""
    heeded = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if heeded:
        signal.signal(signal.SIGINT, _Interrupts().take)
    try:
        # Blocked by who started this process, until there was a handler.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        from snakemake.cli import main as snakemake

        snakemake(sys.argv[1:])
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        # At once: the interpreter's own end would wait for threads that wait for trials.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        if heeded:
            # Whatever was to be stopped has ended; now it would only show a traceback of the interpreter's end.
            signal.signal(signal.SIGINT, lambda _number, _frame: None)


if __name__ == "__main__":
    main()
