"""Asks SLURM about jobs: the one that this process runs in, and how others ended.

Standard library only: a supervisor inside a job imports this before its trial.
"""

from __future__ import annotations

import os
import re
import subprocess
import time

from aorta.run.launch import NoAnswer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")

JOB_VARIABLE = "SLURM_JOB_ID"
NODE_VARIABLE = "SLURMD_NODENAME"
"""Name of the node as SLURM knows it; several virtual nodes may share one host."""

SHARE_VARIABLE = "AORTA_SHARE"
"""Set in a job that runs a share of a sweep's trials, one after the other."""

SHARES_MARK = "-shares-"
"""Part of such a job's name."""

_ANSWER_SEC = 20.0
_ASK_AGAIN_SEC = 2.0
_NO_SUCH_JOB = "Invalid job id"
_FINAL = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""States that a job does not leave again."""

_OVER_MEMORY = re.compile(
    r"^(?:slurmstepd|srun|slurmd)\b[^:\n]*: .*(?:exceeded (?:job |step )?memory limit|oom[_-]kill event|out of memory)",
    re.IGNORECASE | re.MULTILINE,
)
"""What slurmd writes into the log of a job that it has ended for its memory."""

_TAIL_BYTES = 16384

_MEANINGS = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "it was cancelled (scancel)",
    "COMPLETED": "it ended",
    "DEADLINE": "its deadline passed",
    "FAILED": "it ended with an error",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "it took more memory than it had asked for",
    "PREEMPTED": "another job took its place",
    "TIMEOUT": "its time limit was reached",
}
_HINTS = {
    "OUT_OF_MEMORY": "raise resources.mem in the recipe, or give the trial less to do",
    "TIMEOUT": "raise resources.runtime in the recipe above what a trial takes",
    "PREEMPTED": "choose a partition whose jobs are not preempted, or raise retry_errors",
}
_HINTS_FOR_SHARES = {
    "OUT_OF_MEMORY": "raise --mem, or resources.mem in the recipe, or give its trials less to do",
    "TIMEOUT": "raise --time, or let the same command submit the rest again",
}


class Job:
    """One job, as SLURM describes it.

    Attributes:
        number: Its id.
        name: Its name, or None if SLURM did not say.
        state: Its state, in capitals; None if SLURM does not know the job.
        reason: Why it is in that state, or None.
        nodes: Its node list as SLURM writes it; empty while it waits.
        partition: Its partition, or None.
        restarts: How often SLURM has requeued it.
        limit: Its time limit as SLURM writes it, or None.
        submitted: When it was submitted, as SLURM writes it, or None.
        ended: When it ended, in seconds since the epoch; None while it has not, or if SLURM did not say.
    """

    __slots__ = ("ended", "limit", "name", "nodes", "number", "partition", "reason", "restarts", "state", "submitted")

    def __init__(
        self,
        number: str,
        *,
        name: str | None = None,
        state: str | None = None,
        reason: str | None = None,
        nodes: str = "",
        partition: str | None = None,
        restarts: int = 0,
        limit: str | None = None,
        submitted: str | None = None,
        ended: str | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.state = state
        self.reason = reason
        self.nodes = nodes
        self.partition = partition
        self.restarts = restarts
        self.limit = limit
        self.submitted = submitted
        # Of a job that runs, SLURM says when its time limit will be reached.
        self.ended = float(ended) if ended and ended.isdigit() and state in _FINAL else None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good, or SLURM has forgotten it."""
        return self.state is None or self.state in _FINAL

    def hint(self, *, of_share: bool = False) -> str | None:
        """Returns what may help against such an end, or None.

        Args:
            of_share: Whether the job runs many trials.
        """
        return (_HINTS_FOR_SHARES if of_share else _HINTS).get(self.state or "")

    def judge_by(self, logs: Iterable[str]) -> None:
        """Takes a job that slurmd ended for its memory as one that ran out of it.

        Where the kernel does not watch the limit but slurmd does (``OverMemoryKill``), SLURM calls the job FAILED, for
        one reason or another, and only the job's own log has the cause.

        Args:
            logs: Files that the job has written to.
        """
        if self.state == "FAILED" and any(is_over_memory(log_tail(log)) for log in logs):
            self.state, self.reason = "OUT_OF_MEMORY", None

    def end_text(self) -> str:
        """Says in a few words how the job ended."""
        if self.state is None:
            return "SLURM no longer knows it"
        meaning = _MEANINGS.get(self.state)
        if self.state == "TIMEOUT" and self.limit:
            meaning = f"its time limit of {self.limit} was reached"
        text = f"{self.state}: {meaning}" if meaning else self.state
        return f"{text} (reason: {self.reason})" if self.reason else text


def is_over_memory(text: str) -> bool:
    """Whether slurmd says in a log that it has ended a job, or a step of it, for its memory."""
    return _OVER_MEMORY.search(text) is not None


def log_tail(path: str) -> str:
    """Returns the end of a job's log, empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def call(command: Sequence[str], seconds: float = _ANSWER_SEC) -> str | None:
    """Runs one of SLURM's commands, which gives times in seconds since the epoch.

    Returns:
        What it printed: nothing if there is no such job, or no such command. None if it fails otherwise, or does not
        answer in time.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        )
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 0:
        return done.stdout
    return "" if _NO_SUCH_JOB in done.stderr else None


def answered(
    ask: Callable[[], T],
    *,
    patience_sec: float,
    pause: Callable[[float], None],
    notify: Callable[[str], None],
) -> T:
    """Asks SLURM again and again until it answers.

    Args:
        ask: Asks, and raises ``NoAnswer``.
        patience_sec: For how long.
        pause: Waits for the given seconds.
        notify: Takes a sentence about the wait.

    Raises:
        NoAnswer: It did not answer.
    """
    deadline, told = time.monotonic() + patience_sec, False
    while True:
        try:
            return ask()
        except NoAnswer as silence:
            if time.monotonic() >= deadline:
                raise
            if not told:
                notify(f"{silence}; asking again for {patience_sec / 60:g} min")
            told = True
        pause(_ASK_AGAIN_SEC)


def this_job(env: Mapping[str, str], run: Callable[[Sequence[str]], str | None] = call) -> Job | None:
    """Returns the job that a process with this environment runs in, or None outside of any.

    The job's environment alone would not do: Snakemake's plugin takes most of it away.
    """
    number = env.get(JOB_VARIABLE)
    if not number or not number.isdigit():
        return None
    if env.get(SHARE_VARIABLE):
        # Nothing has taken the variables away, and thousands of short trials must not all ask the controller.
        restarts = env.get("SLURM_RESTART_COUNT", "")
        return Job(
            number,
            name=env.get("SLURM_JOB_NAME"),
            nodes=env.get("SLURM_JOB_NODELIST") or env.get(NODE_VARIABLE, ""),
            partition=env.get("SLURM_JOB_PARTITION"),
            restarts=int(restarts) if restarts.isdigit() else 0,
        )
    found = _shown(number, run(_show_job(number)))
    return found if found is not None else Job(number, nodes=env.get(NODE_VARIABLE, ""))


def find_job(number: str, run: Callable[[Sequence[str]], str | None] = call, *, settle_sec: float = 0.0) -> Job:
    """Returns a job by its id: what the controller knows, else what accounting has kept.

    Args:
        number: The id.
        run: Runs a command; for tests.
        settle_sec: How long to wait for a job that is being cleaned up: until then SLURM does not say how it ended.

    Raises:
        NoAnswer: The controller does not answer, and accounting knows of no end.
    """
    deadline = time.monotonic() + settle_sec
    while True:
        text = run(_show_job(number))
        job = _shown(number, text) or _from_accounting(number, run) or Job(number)
        if text is None and (job.state is None or not job.is_over):
            raise NoAnswer(f"SLURM does not answer, so how job {number} ended is not known yet")
        if job.state != "COMPLETING" or time.monotonic() >= deadline:
            return job
        time.sleep(0.2)


def _show_job(number: str) -> list[str]:
    return ["scontrol", "show", "job", "--oneliner", number]


def _shown(number: str, text: str | None) -> Job | None:
    if not text:
        return None
    line = text.splitlines()[0]
    facts = dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=(\S*)", line))
    job = Job(
        number,
        name=facts.get("JobName"),
        state=facts.get("JobState"),
        reason=told_of(facts.get("Reason")),
        nodes=told_of(facts.get("NodeList")) or "",
        partition=facts.get("Partition"),
        restarts=int(facts.get("Restarts") or 0),
        limit=told_of(facts.get("TimeLimit")),
        submitted=told_of(facts.get("SubmitTime")),
        ended=facts.get("EndTime"),
    )
    # A path may have blanks.
    job.judge_by(re.findall(r"\sStdErr=(.+?)\sStdIn=", line))
    return job


def _from_accounting(number: str, run: Callable[[Sequence[str]], str | None]) -> Job | None:
    # --duplicates: a requeued job has an entry for each time that it ran.
    fields = "JobName,State,Reason,NodeList,Partition,End"
    text = run(["sacct", "-X", "-n", "-P", "--duplicates", "-j", number, "-o", fields])
    lines = (text or "").strip().splitlines()
    if not lines or lines[-1].count("|") != 5:
        return None
    name, state, reason, nodes, partition, ended = lines[-1].split("|")
    return Job(
        number,
        name=name,
        state=state.split(" ")[0] or None,
        reason=told_of(reason),
        nodes=told_of(nodes) or "",
        partition=partition or None,
        restarts=len(lines) - 1,
        ended=ended,
    )


def told_of(text: str | None) -> str | None:
    """Returns a fact that SLURM tells of a job, or None where its word means that there is none."""
    return None if text in (None, "", "None", "(null)", "None assigned", "Unknown", "N/A") else text


def node_address(node: str, run: Callable[[Sequence[str]], str | None] = call) -> str | None:
    """Returns the address by which SLURM reaches a node, or None if it does not say."""
    found = re.search(r"\sNodeAddr=(\S+)", run(["scontrol", "show", "node", "--oneliner", node]) or "")
    return found[1] if found else None
