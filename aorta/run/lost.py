"""Attempts at a trial that SLURM ended before their supervisor could write a record.

Such an attempt leaves a note of where it ran. Whoever comes next, the job that tries again or the sweep on the
submitting host, asks SLURM how that job ended, and counts the attempt as one that ended in an error.
Standard library only: a supervisor inside a job imports this before its trial.
"""

from __future__ import annotations

import os

from aorta._jsonio import NotRegularError, read_json
from aorta.run.launch import LaunchError
from aorta.run.launch.slurm import expand_hosts
from aorta.run.record import error_entry, iso_utc
from aorta.run.slurmjob import SHARES_MARK, Job, find_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_SETTLE_SEC = 10.0
UNCOUNTED = (None, "CANCELLED", "COMPLETED", "FAILED")
"""Ends that a sweep brings about itself when it is stopped, or that say nothing: of another sweep's job they count for
nothing, and its trial simply runs again."""

_OF_THE_NODE = ("BOOT_FAIL", "NODE_FAIL", "OUT_OF_MEMORY")
"""Ends that count where a job runs many trials: its time limit, or being preempted, is no trial's doing."""

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "slurm": dict,
    "host": dict,
    "device": dict,
    "started": (int, float),
}
_JOB_FIELDS: dict[str, type | tuple[type, ...]] = {
    "job": str,
    "name": (str, type(None)),
    "partition": (str, type(None)),
    "nodes": list,
    "restarts": int,
}


def job_entry(job: Job) -> dict[str, Any]:
    """Returns the record's ``slurm`` for a trial in this job."""
    try:
        nodes = expand_hosts(job.nodes)
    except LaunchError:
        nodes = [job.nodes]
    return {
        "job": job.number,
        "name": job.name,
        "partition": job.partition,
        "nodes": nodes,
        "restarts": job.restarts,
    }


def note(job: Job, host: Mapping[str, Any], device: Mapping[str, Any], started: float) -> dict[str, Any]:
    """Returns what an attempt leaves while it runs.

    Args:
        job: The job that it runs in.
        host: The record's ``host``.
        device: What it runs on.
        started: Seconds since the epoch.
    """
    return {
        "slurm": job_entry(job),
        "submitted": job.submitted,
        "host": dict(host),
        "device": dict(device),
        "started": started,
    }


def is_note(value: object) -> bool:
    """Whether a value has the form of :func:`note`; a note may be spoilt, or of another version."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), kind) for name, kind in _FIELDS.items())
        and all(isinstance(value["slurm"].get(name), kind) for name, kind in _JOB_FIELDS.items())
        and all(isinstance(node, str) for node in value["slurm"]["nodes"])
        and isinstance(value["host"].get("hostname"), str)
    )


class Lost:
    """An attempt that its job's end took along, and that counts.

    Attributes:
        note: What the attempt left.
        error: What ended it.
        started: When it began, in seconds since the epoch.
        ended: When it ended, or None if nobody knows; not before it began, whatever the clocks of two hosts say.
    """

    __slots__ = ("ended", "error", "note", "started")

    def __init__(self, note: Mapping[str, Any], error: dict[str, Any], ended: float | None) -> None:
        self.note = note
        self.error = error
        self.started = float(note["started"])
        self.ended = None if ended is None else max(ended, self.started)


def judge(
    left: Mapping[str, Any], own: Job | None, find: Callable[..., Job] = find_job, *, sweep: str | None = None
) -> Lost | None:
    """Returns an attempt with the error that ended it, or None where it does not count.

    Args:
        left: The attempt's note.
        own: The job of who asks, or None outside of any.
        find: Asks SLURM about a job; for tests.
        sweep: Name of jobs whose ends all count, besides those of ``own``'s name; None for no others.

    Raises:
        NoAnswer: SLURM does not answer.
    """
    slurm, stopped = left["slurm"], left.get("stopped")
    ended = float(stopped) if isinstance(stopped, int | float) else None
    of_share = SHARES_MARK in (slurm["name"] or "")
    if own is not None and own.number == slurm["job"] and not _is_other(own, left):
        if of_share or own.restarts <= slurm["restarts"]:
            # Without a restart the job goes on, as an allocation does: only the supervisor was killed.
            return None
        # SLURM knows only the job's present state.
        hint = None
        how = f"REQUEUED: SLURM requeued it (restart {own.restarts})"
        said = left.get("ended")
        if isinstance(said, str):
            how += f" after it had ended as {said}"
    else:
        job = find(slurm["job"], settle_sec=_SETTLE_SEC)
        if _is_other(job, left):
            job = Job(job.number)
        state, ended = job.state, ended if job.ended is None else job.ended
        same_sweep = slurm["name"] is not None and slurm["name"] in (sweep, own and own.name)
        if (state not in _OF_THE_NODE) if of_share else (not same_sweep and state in UNCOUNTED):
            return None
        how = f"SLURM ended it: {job.end_text()}" if state else job.end_text()
        hint = job.hint(of_share=of_share)
    where = f"job {slurm['job']} on {', '.join(slurm['nodes']) or left['host']['hostname']}"
    message = f"{where} ended before the trial did: {how}"
    return Lost(left, error_entry("process", "slurm", message, hint=hint), ended)


def _is_other(job: Job, left: Mapping[str, Any]) -> bool:
    """Whether a job is another than the attempt's, of the same number: a controller that has lost jobs, in a crash
    before it saved them, gives their numbers again.
    """
    submitted, name = left.get("submitted"), left["slurm"]["name"]
    if None not in (job.name, name) and job.name != name:
        return True
    # A requeue counts as a new submission.
    return (
        job.restarts <= left["slurm"]["restarts"]
        and None not in (job.submitted, submitted)
        and job.submitted != submitted
    )


def attempt_entry(lost: Lost, now: float) -> dict[str, Any]:
    """Returns a lost attempt as the record's ``attempts`` has it.

    Args:
        lost: The attempt.
        now: When its end was seen, in seconds since the epoch; for one of which nobody knows when that was.
    """
    return {
        "exit_status": "infrastructure_failed",
        "error": dict(lost.error),
        "started_at": iso_utc(lost.started),
        "ended_at": iso_utc(now if lost.ended is None else lost.ended),
        "host": lost.note["host"]["hostname"],
        "device": dict(lost.note["device"]),
        "slurm": dict(lost.note["slurm"]),
    }


def job_of(stem: str) -> str | None:
    """Returns the job of the attempt that a trial's note tells of, or None.

    Args:
        stem: Path of the trial's files without their extension.
    """
    try:
        left = read_json(f"{stem}.attempts").get("running")
    except (OSError, NotRegularError, ValueError, AttributeError):
        return None
    return str(left["slurm"]["job"]) if is_note(left) else None


def unfinished(folder: str) -> list[str]:
    """Returns the stems of a cell's trials that have a note and no record."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    stems = [name.removesuffix(".attempts") for name in names if name.endswith(".attempts")]
    return [os.path.join(folder, stem) for stem in stems if f"{stem}.json" not in names]
