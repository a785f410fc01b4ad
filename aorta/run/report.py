"""What a worker tells its supervisor: one JSON object a line, in a file that has no name.

The file lives in memory and the supervisor holds it open too, so a report survives ``os._exit`` and SIGKILL the
moment after, no cleaning of temporary folders can remove it, and nothing is left when everyone is gone.
Standard library only: the supervisor and the worker import this before every trial.

Lines: ``{"phase": name, "at": t}`` when a phase begins; ``{"result": {...}, "at": t}`` as soon as ``run()`` has
returned; ``{"error": {...}}``; ``{"cleanup_error": text}``; ``{"done": {...}, "at": t}`` as the last thing before the
interpreter exits. ``at`` is ``time.monotonic()``, which all processes of a host share.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PHASES = ("start", "import", "construct", "setup", "run", "cleanup")


class ReportFile:
    """The supervisor's side."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("aorta-trial-report", os.MFD_CLOEXEC)
        self._seen = 0

    def news(self) -> Report | None:
        """Returns what has been reported so far if that is more than at the last call, else None."""
        size = os.fstat(self.descriptor).st_size
        if size == self._seen:
            return None
        self._seen = size
        return self.read()

    def exec_failed(self, error: OSError | ValueError) -> None:
        """Reports, from the forked process, that the worker's program could not be executed."""
        entry = {"phase": "process", "type": type(error).__name__, "message": f"the worker did not start: {error}"}
        os.write(self.descriptor, f"{json.dumps({'error': entry})}\n".encode("ascii"))

    def read(self) -> Report:
        """Returns what has been reported so far; a line that is cut or spoilt is passed over."""
        return Report(self.raw())

    def raw(self) -> bytes:
        """Returns the report as the worker wrote it."""
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)


class Report:
    """What a worker reported.

    Attributes:
        begun: Phase to the ``time.monotonic()`` at its beginning, in the order they began.
        result: Fields of the WorkloadResult, or None if ``run()`` did not return one.
        error: ``phase``, ``type``, ``message`` and more, or None.
        error_at: ``time.monotonic()`` when the error was reported, or None.
        cleanup_error: What ``cleanup()`` raised, or None.
        done: Last figures of a worker that came to its end, with ``at``; None for one that did not.
    """

    def __init__(self, data: bytes) -> None:
        self.begun: dict[str, float] = {}
        self.result: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.error_at: float | None = None
        self.cleanup_error: str | None = None
        self.done: dict[str, Any] | None = None
        for line in data.split(b"\n"):
            # Another's bytes on this file may be anything, even JSON.
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        if entry.get("phase") in PHASES:
            self.begun[entry["phase"]] = float(entry["at"])
        self.result = entry.get("result", self.result)
        if "error" in entry:
            self.error, self.error_at = entry["error"], entry.get("at")
        self.cleanup_error = entry.get("cleanup_error", self.cleanup_error)
        if "done" in entry:
            self.done = {**entry["done"], "at": float(entry["at"])}

    def shift(self, seconds: float) -> None:
        """Moves all times, which another host's clock has given, by ``seconds``."""
        self.begun = {phase: at + seconds for phase, at in self.begun.items()}
        if self.error_at is not None:
            self.error_at += seconds
        if self.done is not None:
            self.done["at"] += seconds

    @property
    def phase(self) -> str | None:
        """The phase that began last."""
        return next(reversed(self.begun), None)

    def phases_sec(self, started: float, ended: float) -> dict[str, float | None]:
        """Returns how long each phase lasted in seconds; None for one that never began.

        Args:
            started: ``time.monotonic()`` at the worker's start.
            ended: ``time.monotonic()`` at its end: when the last phase stopped, unless the worker said.
        """
        begun = [("start", started), *self.begun.items()]
        last = self.done["at"] if self.done else ended
        ends = [at for _phase, at in begun[1:]] + [last]
        lasted: dict[str, float | None] = dict.fromkeys(PHASES)
        for (phase, at), end in zip(begun, ends, strict=True):
            lasted[phase] = round(max(0.0, end - at), 6)
        return lasted


class Reporter:
    """The worker's side. Its references are taken before the workload can replace ``json.dumps`` or ``os.write``.

    Args:
        descriptor: The report file, inherited from the supervisor under the same number.
        supervisor: The supervisor's process id.
    """

    def __init__(self, descriptor: int, supervisor: int) -> None:
        self._descriptor = descriptor
        self._path = f"/proc/{supervisor}/fd/{descriptor}"
        status = os.fstat(descriptor)
        self._identity = (status.st_dev, status.st_ino)
        os.set_inheritable(descriptor, False)
        self._dumps, self._write, self._fstat, self._open = json.dumps, os.write, os.fstat, os.open
        self._monotonic = time.monotonic

    def send(self, **entry: Any) -> None:
        """Appends one line, stamped with the time.

        Raises:
            OSError: The workload closed the file, and it cannot be opened again.
            ValueError: The entry has no JSON form.
        """
        text = self._dumps({**entry, "at": self._monotonic()}, allow_nan=False)
        # A line break first: whatever a workload may have written here by accident spoils its own line only.
        data = memoryview(f"\n{text}\n".encode("ascii"))
        descriptor = self._ours()
        while data:
            data = data[self._write(descriptor, data) :]

    def _ours(self) -> int:
        """Returns a descriptor of the report file, also after a workload closed the one that came with it."""
        try:
            status = self._fstat(self._descriptor)
            if (status.st_dev, status.st_ino) == self._identity:
                return self._descriptor
        except OSError:
            pass
        self._descriptor = self._open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        return self._descriptor
