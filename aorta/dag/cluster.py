"""Snakemake's SLURM executor, corrected, and the jobs of a run directory: found by name, waited for, cancelled.

The corrections touch internals of the plugin, so each is guarded: where a later version lacks the attribute, the run
goes on without the correction and says so. Tests hold them against the pinned version.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from aorta.dag.sbatch import said_by_sbatch
from aorta.plan.model import Plan
from aorta.run.launch import NoAnswer
from aorta.run.lost import UNCOUNTED
from aorta.run.slurmjob import Job, call, find_job, log_tail, told_of
from aorta.text import shortened

_POLL_SEC = 2.0
_WIDEST = 300
_GONE_AFTER = 3
"""A job that the queue has not shown so many times in a row, and accounting does not know, has ended."""

_FAILED = ("PREEMPTED", "NODE_FAIL", "REVOKED")
"""Ends after which the plugin would wait for ever, or would keep the node out of the rest of the sweep unasked."""


def job_prefix(run_dir: Path) -> str:
    """Returns how the names of a run directory's jobs begin, on whatever host that is asked."""
    digest = hashlib.blake2b(str(run_dir.absolute()).encode("utf-8", "surrogateescape"), digest_size=6)
    return f"aorta-{digest.hexdigest()}-"


def live_jobs(run_dir: Path, run: Callable[[Sequence[str]], str | None] = call) -> dict[str, str] | None:
    """Returns the jobs of a run directory that wait or run, with their states; None if SLURM does not answer.

    Args:
        run_dir: The run directory.
        run: Runs a command; for tests.
    """
    text = run(["squeue", "-h", "-o", "%i|%T|%j"])
    if text is None:
        return None
    prefix = job_prefix(run_dir)
    rows = [line.split("|", 2) for line in text.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2].startswith(prefix)}


def cancel_jobs(run_dir: Path, say: Callable[[str], None], run: Callable[[Sequence[str]], str | None] = call) -> None:
    """Cancels whatever jobs a run directory has in the queue.

    Args:
        run_dir: The run directory.
        say: Takes a sentence about what was cancelled, and about what may be left.
        run: Runs a command; for tests.
    """
    jobs = live_jobs(run_dir, run)
    if jobs == {}:
        return
    if jobs:
        run(["scancel", *jobs])
    left = live_jobs(run_dir, run) if jobs else None
    rest = "the same command cancels those that wait and waits for those that run"
    if jobs is None or left is None:
        # scancel may have come through or not.
        say(f"SLURM does not answer: jobs named {job_prefix(run_dir)}... may be left; {rest}")
        return
    alive = {number for number in jobs if left.get(number, "COMPLETING") != "COMPLETING"}
    if jobs.keys() - alive:
        say(f"cancelled {_jobs(jobs.keys() - alive)}")
    if alive:
        say(f"{_jobs(alive)} cannot be cancelled; {rest}")


def outlive_jobs(
    run_dir: Path,
    say: Callable[[str], None],
    *,
    run: Callable[[Sequence[str]], str | None] = call,
    pause: Callable[[float], None] = time.sleep,
) -> set[str]:
    """Makes sure that no job of an earlier start is left: those that wait are cancelled, those that run are waited for.

    The run directory's lock is held, so every such job is an orphan: its Snakemake was killed. A trial that runs is
    worth its result; one that waits would only run beside its own successor.

    Args:
        run_dir: The run directory.
        say: Takes a sentence about what is done.
        run: Runs a command; for tests.
        pause: Waits for the given seconds; for tests.

    Returns:
        The jobs that were waited for.
    """
    waiting = {number for number, state in (live_jobs(run_dir, run) or {}).items() if state == "PENDING"}
    if waiting:
        run(["scancel", *sorted(waiting)])
        say(f"cancelled {_jobs(waiting)} of an earlier start, which had not begun")
    told: set[str] = set()
    while True:
        jobs = live_jobs(run_dir, run)
        running = set(jobs or {})
        if jobs is not None and not running:
            return told
        if running - told - waiting:
            told |= running - waiting
            say(f"waiting for {_jobs(running - waiting)} of an earlier start to end (scancel ends them at once)")
        pause(_POLL_SEC)


def tell_cancelled(
    trials: Iterable[tuple[str, str]], say: Callable[[str], None], run: Callable[[Sequence[str]], str | None] = call
) -> None:
    """Says of trials whose job was waited for in vain why they run again, where that is no error of theirs.

    Args:
        trials: Each trial in words, with its job.
        say: Takes a sentence.
        run: Runs a command; for tests.
    """
    for trial, number in trials:
        try:
            state = find_job(number, run).state
        except NoAnswer:
            return
        if state == "CANCELLED":
            say(f"{trial}: job {number} of an earlier start was cancelled; the trial runs again")
        elif state in UNCOUNTED:
            say(f"{trial}: job {number} of an earlier start has ended without a record; the trial runs again")


def _jobs(numbers: set[str]) -> str:
    shown = sorted(numbers, key=lambda number: (len(number), number))
    return f"job{'s' if len(shown) > 1 else ''} {', '.join(shown[:8])}{' ...' if len(shown) > 8 else ''}"


def is_slurm_executor(workflow: Any) -> bool:
    """Whether Snakemake's jobs go to SLURM by its plugin."""
    executor = getattr(getattr(workflow, "scheduler", None), "_executor", None)
    return any(kind.__module__ == "snakemake_executor_plugin_slurm" for kind in type(executor).__mro__)


def correct_executor(workflow: Any, run_dir: Path) -> list[str]:
    """Makes the SLURM executor name its jobs after the run directory, and watch them through whatever befalls SLURM.

    Returns:
        Notices: empty when it worked, or when another executor runs the jobs.
    """
    if not is_slurm_executor(workflow):
        return []
    executor: Any = workflow.scheduler._executor
    base = type(executor)
    import snakemake_executor_plugin_slurm as plugin

    parts = (getattr(executor, "run_uuid", None), getattr(plugin, "query_job_status", None))
    if None in parts or not hasattr(base, "check_active_jobs") or not hasattr(base, "run_job"):
        return ["this version of Snakemake's SLURM plugin is not known: jobs of a killed sweep may not be found again"]
    executor.run_uuid = f"{job_prefix(run_dir)}{uuid.uuid4()}"
    watch = Watch(executor.run_uuid)

    async def query(_command: str, _logger: Any) -> tuple[dict[str, str], float]:
        begin = time.monotonic()
        states = await asyncio.get_running_loop().run_in_executor(None, watch.states, executor.looked_for)
        return states, time.monotonic() - begin

    plugin.query_job_status = query
    shortest = workflow.executor_settings.init_seconds_before_status_checks

    class PatientExecutor(base):  # type: ignore[misc, valid-type]
        """The executor, whose looks at the queue do not become rarer and rarer, and which waits for the controller."""

        looked_for: Sequence[str] = ()
        has_cancelled = False

        async def check_active_jobs(self, active_jobs: Any) -> Any:
            # Its own list is empty while it looks.
            self.looked_for = [str(info.external_jobid) for info in active_jobs if info.external_jobid]
            async for job in super().check_active_jobs(active_jobs):
                yield job
            next_look = min(super().next_seconds_between_status_checks, 5 * shortest)
            self._next_seconds_between_status_checks = next_look

        def run_job(self, job: Any) -> None:
            # sbatch gives up within seconds, and a failed submission costs the trial one of its tries.
            while self.wait and call(["scontrol", "ping"]) is None:
                time.sleep(_POLL_SEC)
            super().run_job(job)

        def cancel_jobs(self, active_jobs: Any) -> None:
            self.has_cancelled = True
            super().cancel_jobs(active_jobs)

        def print_job_error(self, job_info: Any, msg: str | None = None, **kwargs: Any) -> None:
            told = failure(job_info, msg or "", watch.ended, kwargs.get("aux_logs") or ())
            super().print_job_error(job_info, msg=msg, **kwargs, **({} if told is None else {FAILURE: told}))

    executor.__class__ = PatientExecutor
    return []


def allow_retries(workflow: Any, rule: str, plan: Plan) -> None:
    """Lets a rule's jobs be tried again as often as its trials' errors may; a profile's ``retries`` may allow more."""
    found = workflow.get_rule(rule)
    times = [(cell.request or {}).get("retry_errors", 0) for cell in plan.cells]
    found.restart_times = max(found.restart_times, *times)


def own_jobs(workflow: Any) -> str | None:
    """Returns the name of the jobs that a sweep has sent to SLURM; None if it has cancelled some of them itself."""
    executor: Any = getattr(getattr(workflow, "scheduler", None), "_executor", None)
    # An executor that was not corrected does not tell.
    return None if getattr(executor, "has_cancelled", True) else str(executor.run_uuid)


FAILURE = "aorta"
"""What the log's record of a failed job has :func:`failure` under, beside what Snakemake and its plugin tell."""


def failure(job_info: Any, message: str, ended: Callable[[str], Job], logs: Sequence[str]) -> str | None:
    """Says in a line which trial or snapshot a failed job was for, and what SLURM says of it.

    Args:
        job_info: Snakemake's job, with the id that SLURM has given it.
        message: What the plugin says of it.
        ended: Gives a job of SLURM's by its id.
        logs: Where the job has written.

    Returns:
        The line, or None for a failure that is none of SLURM's ordinary ones.
    """
    what = getattr(job_info.job, "message", None) or "a job"
    refused = re.match(r"SLURM sbatch failed\. The error message was '(.*?)'\.\n", message, re.DOTALL)
    if refused is not None:
        return f"{what}: SLURM would not take its job: {said_by_sbatch(refused[1])}"
    number = job_info.external_jobid
    if number is None or not message.startswith(f"SLURM-job '{number}' failed"):
        return None
    job = ended(str(number))
    job.judge_by(logs)
    where = f" on {job.nodes}" if job.nodes else ""
    told = f"; its log: {', '.join(map(_from_here, logs))}" if logs else ""
    # How SLURM ended it is the reason; where it ended by itself, its own last words are.
    words = _last_words(logs) if job.state == "FAILED" else ""
    hint = job.hint()
    helps = f"; {hint}" if hint else ""
    return f"{what}: its job {number}{where} ended early: {job.end_text()}{words}{helps}{told}"


def _last_words(logs: Sequence[str]) -> str:
    """Returns the last line that aorta has written into a job's logs, on a line of its own; empty if there is none."""
    said = [words for log in logs for words in re.findall(r"^aorta: (.+)$", log_tail(log), re.MULTILINE)]
    return f": {shortened(said[-1], _WIDEST)}" if said else ""


def _from_here(path: str) -> str:
    """Returns a path from the working directory, where it lies in that."""
    found = os.path.relpath(path)
    return path if found.startswith(os.pardir) else found


class Watch:
    """Tells how the jobs of a sweep stand: by the queue, and by accounting where there is any.

    Args:
        name: The jobs' name.
        run: Runs a command; for tests.
    """

    def __init__(self, name: str, run: Callable[[Sequence[str]], str | None] = call) -> None:
        self._name = name
        self._run = run
        self._absent: dict[str, int] = {}
        self._seen: dict[str, Job] = {}
        self._accounting: bool | None = None

    def states(self, numbers: Sequence[str]) -> dict[str, str]:
        """Returns the states of those jobs of which something is known, in the words that the plugin acts on.

        While the controller does not answer nothing is known, and the plugin takes a job without a state for one that
        runs. Without accounting, a job that the controller has forgotten counts as completed: whether it has made its
        file decides then.

        Args:
            numbers: Ids of the jobs.
        """
        text = self._run(["squeue", "-h", "--states=all", "-o", "%i|%T|%N|%r|%l", "--name", self._name])
        if text is None:
            return {}
        found = self._states(text)
        missing = [number for number in numbers if number not in found]
        if missing and self._has_accounting():
            command = [
                "sacct",
                "-X",
                "-n",
                "-P",
                "-j",
                ",".join(missing),
                "-o",
                "JobIDRaw,State,NodeList,Reason,Timelimit",
            ]
            found |= self._states(self._run(command) or "")
        for number in missing:
            self._absent[number] = 0 if number in found else self._absent.get(number, 0) + 1
            if self._absent[number] >= _GONE_AFTER:
                found[number] = "COMPLETED"
        return {number: "FAILED" if state in _FAILED else state for number, state in found.items()}

    def _has_accounting(self) -> bool:
        if self._accounting is None:
            config = self._run(["scontrol", "show", "config"])
            if config is None:
                return False
            lines = [line for line in config.splitlines() if line.startswith("AccountingStorageType")]
            has_storage = any("none" not in line.partition("=")[2] for line in lines)
            self._accounting = has_storage and shutil.which("sacct") is not None
        return self._accounting

    def _states(self, text: str) -> dict[str, str]:
        """Reads rows of id, state, nodes, reason and time limit, and keeps them."""
        found = {}
        for line in text.splitlines():
            number, state, nodes, reason, limit = (*(word.strip() for word in line.split("|", 4)), "", "", "", "")[:5]
            if not state:
                continue
            # Accounting adds by whom: "CANCELLED by 0".
            found[number] = state.split()[0]
            self._seen[number] = Job(
                number, state=found[number], nodes=told_of(nodes) or "", reason=told_of(reason), limit=told_of(limit)
            )
        return found

    def ended(self, number: str) -> Job:
        """Returns a job as it was seen last."""
        return self._seen.get(number) or Job(number)
