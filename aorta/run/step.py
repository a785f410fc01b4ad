"""The command that starts a trial's agents elsewhere, such as ``srun``. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections import deque

from aorta.run.process import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aorta.run.process import Source

_PR_SET_PDEATHSIG = 1
_LEAVE_SEC = 5.0
"""How long the command may take to end by itself, and again once it is asked to."""

_TAIL_LINES = 20


class Step:
    """The running command; a source for the supervisor's waiting, which shows what it and the agents say.

    Args:
        command: The command.
        env: Its environment.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        libc = ctypes.CDLL(None)
        self._name = os.path.basename(command[0])
        self._process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # A killed supervisor leaves no ranks: the command ends its tasks before itself.
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )
        assert self._process.stderr is not None
        self._stream = self._process.stderr
        os.set_blocking(self._stream.fileno(), False)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._rest = b""
        self._open = True

    @property
    def source(self) -> int | None:
        """Descriptor to poll, or None once the command has ended."""
        return self._stream.fileno() if self._open else None

    def drain(self) -> None:
        """Passes on what has been said."""
        while self._open:
            try:
                data = os.read(self._stream.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self._open = False
                return
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(data)
                sys.stderr.flush()
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._tail.extend(line.decode("utf-8", "replace") for line in lines if line.strip())

    @property
    def tail(self) -> list[str]:
        """The last lines that were said."""
        return list(self._tail)

    @property
    def trouble(self) -> str | None:
        """Why no more ranks can come of it: it has failed; None while all is well, or after its proper end."""
        if self._open:
            return None
        code = self._process.poll()
        if not code:
            return None
        said = "; ".join(self.tail[-3:])
        return f"{self._name} ended with {code}{': ' + said if said else ''}"

    def close(self) -> None:
        """Waits until the command has ended, and ends it if it does not."""
        for ask in (None, self._process.terminate, self._process.kill):
            if ask is not None:
                ask()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_SEC)
                break
        self.drain()
        self._stream.close()
        self._open = False


class NoTree(Tree):
    """Stands for the processes of a trial that has none on this host; the agents' command is not one of them."""

    def reap(self) -> None:
        """Collects nothing: the command's own end is somebody else's to see."""

    def let_helpers_end(self, sources: Sequence[Source]) -> None:
        """Waits for nobody."""

    def kill(self, sources: Sequence[Source]) -> list[int]:
        """Returns that nothing is left."""
        return []
