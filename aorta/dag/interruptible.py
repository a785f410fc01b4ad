"""Snakemake, started so that Ctrl-C ends it in order: ``python -m aorta.dag.interruptible ARGUMENTS OF SNAKEMAKE``.

One Ctrl-C may arrive twice, from the terminal and passed on by who started this process. Snakemake would leave what it
does about the first one, such as cancelling its jobs, for the second, and show tracebacks.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_SAME_SEC = 1.0
"""An interrupt that follows another within this time is the same one, which came by another way."""

_AGAIN_SEC = 0.05


class _Interrupts:
    """Handles SIGINT: the first one, and each that is not the same again, is a ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self._raised_at: float | None = None

    def take(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._raised_at is None or now - self._raised_at > _SAME_SEC:
            self._raised_at = now
            raise KeyboardInterrupt

    def take_up_lost(self, lost: UnraisableHookArgs) -> None:
        """Interrupts again when Python had to discard the exception: it came in a finaliser or a weak reference's call.

        Such as those of the import system; Snakemake would go on as if nothing had been.
        """
        if lost.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(lost)
            return
        self._raised_at = None
        _thread.start_new_thread(self._again, ())

    @staticmethod
    def _again() -> None:
        time.sleep(_AGAIN_SEC)
        os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Runs Snakemake's own command line; an interrupt that it does not handle ends the process by SIGINT."""
    heeded = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if heeded:
        interrupts = _Interrupts()
        signal.signal(signal.SIGINT, interrupts.take)
        sys.unraisablehook = interrupts.take_up_lost
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
