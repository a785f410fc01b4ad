"""Where a worker's standard output and error go, and the last lines of the latter.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import contextlib
import os

TAIL_LINES = 40
TAIL_BYTES = 8 * 1024

_RING_BYTES = 64 * 1024


class ErrorOutput:
    """A worker's output: kept in two log files, or thrown away but for the last lines of standard error.

    Both are captured at the level of descriptors, so that what C libraries and subprocesses write is there too.
    Without log files a pipe bounds what a chatty worker can take: neither memory nor disk grows. A process that
    keeps the pipe open is no obstacle, because nothing here waits for its end.

    Args:
        stdout_path: Log file for standard output; None keeps nothing of it.
        stderr_path: Log file for standard error, or None.

    Raises:
        OSError: A log file cannot be made.
    """

    def __init__(self, stdout_path: str | None = None, stderr_path: str | None = None) -> None:
        self._ring = bytearray()
        self._log = stderr_path
        self.source: int | None = None
        """Descriptor to poll for readability, or None."""
        if stdout_path is None or stderr_path is None:
            self.stdout = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            self.source, self.stderr = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self.source, False)
        else:
            # Appending: parents and children that share a file do not overwrite each other.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            # At once: a named pipe in the log's place, which nobody reads, is an error and not a reason to wait.
            self.stdout = os.open(stdout_path, flags | os.O_NONBLOCK, 0o666)
            self.stderr = os.open(stderr_path, flags | os.O_NONBLOCK, 0o666)
            for descriptor in (self.stdout, self.stderr):
                os.set_blocking(descriptor, True)

    def drain(self) -> None:
        """Takes what has come, at most a few buffers at a time; never blocks."""
        for _ in range(16):
            if self.source is None:
                return
            try:
                data = os.read(self.source, _RING_BYTES)
            except BlockingIOError:
                return
            if not data:
                os.close(self.source)
                self.source = None
                return
            self._ring += data
            del self._ring[:-_RING_BYTES]

    def release(self) -> None:
        """Closes the supervisor's copies of what the worker writes to."""
        for descriptor in (self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def tail(self) -> list[str]:
        """Returns the last lines of standard error: at most 40, at most 8 KiB, undecodable bytes replaced."""
        try:
            return tail_lines(self._recent())
        except OSError as error:
            return [f"(the log {self._log} cannot be read: {error.strerror})"]

    def recent(self) -> str:
        """Returns the last 64 KiB of standard error, where a stack is whole that the tail cuts; empty if unreadable."""
        try:
            return self._recent().decode("utf-8", "replace")
        except OSError:
            return ""

    def _recent(self) -> bytes:
        if self._log is None:
            return bytes(self._ring)
        with open(self._log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _RING_BYTES))
            return file.read(_RING_BYTES)


def tail_lines(data: bytes) -> list[str]:
    """Returns the last lines of ``data`` as text, within ``TAIL_LINES`` and ``TAIL_BYTES``."""
    lines = data.decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
    kept: list[str] = []
    room = TAIL_BYTES
    for line in reversed(lines):
        size = len(line.encode("utf-8", "replace"))
        if size > room:
            if not kept:
                kept.append(line.encode("utf-8", "replace")[-room:].decode("utf-8", "replace"))
            break
        kept.append(line)
        room -= size
    return kept[::-1]
