"""Trials that ended in an error and run again: how often that may be, and what each attempt was.

The attempts are kept beside the record until it is written, so that a sweep that is killed in between and run again
does not start to count anew. Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import contextlib
import os
import time

from aorta._jsonio import read_json, write_json_atomic
from aorta.run.record import this_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from aorta.run.lost import Lost
    from aorta.run.slurmjob import Job

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "exit_status": str,
    "error": (dict, type(None)),
    "started_at": str,
    "ended_at": str,
    "host": str,
    "device": dict,
}


class Attempts:
    """The attempts at one trial before the one that gives its record.

    Attributes:
        earlier: One entry an attempt, in order, as ``schemas/trial.schema.json`` describes them.
    """

    def __init__(self, cell: Mapping[str, Any], stem: str, job: Job | None = None, *, sweep: str | None = None) -> None:
        """Takes up what an earlier supervisor of the same trial noted.

        Args:
            cell: The cell's request.
            stem: Path of the trial's files without their extension.
            job: The SLURM job that this process runs in; what it ends without a record is then known afterwards.
            sweep: Name of jobs whose ends all count, besides those of ``job``'s name.
        """
        self._path = f"{stem}.attempts"
        self._fingerprint = cell["fingerprint"]
        self._most = int(cell.get("retry_errors", 0))
        self._job = job
        self._sweep = sweep
        self._running: dict[str, Any] | None = None
        self.earlier: list[dict[str, Any]] = self._noted()

    @property
    def has_open(self) -> bool:
        """Whether an earlier attempt began in a job, and nobody knows yet how it ended."""
        return self._running is not None

    def take_up_lost(self) -> Lost | None:
        """Counts the attempt of a supervisor that its job's end took along, if there is one and it counts.

        Returns:
            That attempt, where no try is left after it, so that it is the trial's record; else None.

        Raises:
            NoAnswer: SLURM does not answer; ask again.
            OSError: The note cannot be written.
        """
        if self._running is None:
            return None
        from aorta.run.lost import attempt_entry, judge

        lost, self._running = judge(self._running, self._job, sweep=self._sweep), None
        if lost is None or len(self.earlier) >= self._most:
            return lost
        self.earlier.append(attempt_entry(lost, time.time()))
        self._write()
        return None

    def begin(self, device: Mapping[str, Any]) -> None:
        """Notes that an attempt begins, where a job's end could take it along.

        Args:
            device: What it runs on.

        Raises:
            OSError: The note cannot be written.
        """
        if self._job is not None:
            from aorta.run import lost

            self._running = lost.note(self._job, this_host(), device, time.time())
            self._write()

    def interrupted(self) -> None:
        """Adds when it was asked to end, and what SLURM says of the present job, to the note of an attempt.

        A job that is started again forgets how it ended before. Never raises: little time may be left.
        """
        if self._job is not None and self._running is not None:
            from aorta.run.launch import NoAnswer
            from aorta.run.slurmjob import find_job

            with contextlib.suppress(OSError, NoAnswer):
                self._running["stopped"] = time.time()
                # First of all: SLURM may be slow.
                self._write()
                job = find_job(self._job.number)
                if job.state is not None and job.is_over:
                    self._running["ended"] = job.end_text()
                    self._write()

    def give_up(self) -> None:
        """Takes back that an attempt has begun: it ended here, without a record, and no job's end was the cause."""
        if self._running is not None:
            self._running = None
            with contextlib.suppress(OSError):
                self._write()

    def again(self, record: Mapping[str, Any]) -> bool:
        """Tells whether the trial is to run once more, and notes the attempt if so.

        Only errors run again: another try at a trial that failed would hide the failure. A trial that could not even
        be launched as planned would not fare better.

        Args:
            record: The record of the attempt that has just ended.

        Raises:
            OSError: The note cannot be written.
        """
        lost = (record["error"] or {}).get("type") == "slurm"
        if record["verdict"] != "error" or (record["pid"] is None and not lost) or len(self.earlier) >= self._most:
            return False
        entry = {name: record[name] for name in ("exit_status", "error", "started_at", "ended_at")}
        entry |= {"host": record["host"]["hostname"], "device": record["device"]}
        self.earlier.append({**entry, "slurm": record["slurm"]} if record["slurm"] else entry)
        self._running = None
        self._write()
        return True

    def _write(self) -> None:
        note = {"fingerprint": self._fingerprint, "attempts": self.earlier}
        write_json_atomic(self._path, note if self._running is None else {**note, "running": self._running})

    def number(self, record: dict[str, Any]) -> None:
        """Enters the earlier attempts into the record."""
        record["attempt"] += len(self.earlier)
        record["attempts"] = self.earlier

    def forget(self) -> None:
        """Removes the note, once the record has it."""
        if self.earlier or self._job is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _noted(self) -> list[dict[str, Any]]:
        """Returns the attempts of a supervisor that died; none if the note is another request's, or spoilt."""
        try:
            note = read_json(self._path)
            if note["fingerprint"] == self._fingerprint and all(map(_is_entry, note["attempts"])):
                running = note.get("running")
                if running is not None:
                    from aorta.run import lost

                    self._running = running if lost.is_note(running) else None
                return list(note["attempts"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return []


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() - {"slurm"} == _FIELDS.keys()
        and isinstance(entry.get("slurm"), dict | None)
        and all(isinstance(entry[name], kind) for name, kind in _FIELDS.items())
    )
