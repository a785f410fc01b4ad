"""Attempts at a trial that SLURM ended before their supervisor could write a record.

Such an attempt leaves a note of where it ran. Whoever comes next, the job that tries again or the sweep on the
submitting host, asks SLURM how that job ended, and counts the attempt as one that ended in an error.
Standard library only: a supervisor inside a job imports this before its trial.
"""

from __future__ import annotations

import os

from aorta.run.launch import LaunchError
from aorta.run.launch.slurm import expand_hosts
from aorta.run.record import error_entry, iso_utc
from aorta.run.slurmjob import SHARES_MARK, Job, find_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_SETTLE_SEC = 10.0
_UNCOUNTED = (None, "CANCELLED", "COMPLETED", "FAILED")
"""Ends that a sweep brings about itself when it is stopped, or that say nothing: of another sweep's job they count for
nothing, and its trial simply runs again."""

_OF_THE_NODE = ("BOOT_FAIL", "NODE_FAIL", "OUT_OF_MEMORY")
"""Ends that count where a job runs many trials: its time limit, or being preempted, is no trial's doing."""

_HINTS = {
    "OUT_OF_MEMORY": "raise resources.mem in the recipe, or give the trial less to do",
    "TIMEOUT": "raise resources.runtime in the recipe above what a trial takes",
    "PREEMPTED": "choose a partition whose jobs are not preempted, or raise retry_errors",
}
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
    return {"slurm": job_entry(job), "host": dict(host), "device": dict(device), "started": started}


def is_note(value: object) -> bool:
    """Whether a value has the form of :func:`note`; a note may be spoilt, or of another version."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), kind) for name, kind in _FIELDS.items())
        and all(isinstance(value["slurm"].get(name), kind) for name, kind in _JOB_FIELDS.items())
        and all(isinstance(node, str) for node in value["slurm"]["nodes"])
        and isinstance(value["host"].get("hostname"), str)
    )


def judge(left: Mapping[str, Any], own: Job | None, find: Callable[..., Job] = find_job) -> dict[str, Any] | None:
    """Returns the error that ended an attempt, or None where it does not count.

    Args:
        left: The attempt's note.
        own: The job of who asks, or None outside of any.
        find: Asks SLURM about a job; for tests.
    """
    slurm = left["slurm"]
    of_share = SHARES_MARK in (slurm["name"] or "")
    same_job = own is not None and own.number == slurm["job"]
    if of_share and (same_job or find(slurm["job"], settle_sec=_SETTLE_SEC).state not in _OF_THE_NODE):
        return None
    if own is not None and same_job:
        # SLURM started the same job again, and knows only its present state.
        how = f"SLURM requeued it (restart {own.restarts})"
        said = left.get("ended")
        if isinstance(said, str):
            how += f" after it had ended as {said}"
        state = "REQUEUED"
    else:
        job = find(slurm["job"], settle_sec=_SETTLE_SEC)
        same_sweep = own is not None and own.name is not None and own.name == slurm["name"]
        if not same_sweep and job.state in _UNCOUNTED:
            return None
        state, how = job.state or "", f"SLURM ended it: {job.end_text()}" if job.state else job.end_text()
    where = f"job {slurm['job']} on {', '.join(slurm['nodes']) or left['host']['hostname']}"
    return error_entry("process", "slurm", f"{where} ended before the trial did: {how}", hint=_HINTS.get(state))


def attempt_entry(left: Mapping[str, Any], error: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Returns a lost attempt as the record's ``attempts`` has it.

    Args:
        left: The attempt's note.
        error: What ended it.
        now: When that was seen, in seconds since the epoch.
    """
    return {
        "exit_status": "infrastructure_failed",
        "error": dict(error),
        "started_at": iso_utc(float(left["started"])),
        "ended_at": iso_utc(now),
        "host": left["host"]["hostname"],
        "device": dict(left["device"]),
        "slurm": dict(left["slurm"]),
    }


def unfinished(folder: str) -> list[str]:
    """Returns the stems of a cell's trials that have a note and no record."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    stems = [name.removesuffix(".attempts") for name in names if name.endswith(".attempts")]
    return [os.path.join(folder, stem) for stem in stems if f"{stem}.json" not in names]
