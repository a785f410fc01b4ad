"""How a sweep finds, watches and ends its jobs on SLURM, with SLURM's answers given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aorta.dag.cluster import (
    FAILURE,
    Watch,
    cancel_jobs,
    failure,
    job_prefix,
    live_jobs,
    outlive_jobs,
    tell_cancelled,
)
from aorta.dag.quiet import show_errors
from aorta.run.slurmjob import Job

Answer = str | None


class Slurm:
    """Answers each command by its first word, the last answer again and again, and keeps what was asked."""

    def __init__(self, **answers: Sequence[Answer] | Answer) -> None:
        self.answers = {
            name: [value] if isinstance(value, str | None) else list(value) for name, value in answers.items()
        }
        self.asked: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> Answer:
        self.asked.append(list(command))
        left = self.answers.get(command[0], [""])
        return left.pop(0) if len(left) > 1 else left[0]


def names(text: str, folder: Path) -> str:
    return text.replace("OWN", f"{job_prefix(folder)}uuid")


def test_a_run_finds_its_jobs_by_name(tmp_path: Path) -> None:
    """Other runs' jobs, and jobs of other kinds, are not among them."""
    other = f"{job_prefix(tmp_path / 'other')}uuid"
    slurm = Slurm(squeue=names(f"7|RUNNING|OWN\n8|PENDING|OWN\n9|RUNNING|{other}\n10|RUNNING|a|b\n", tmp_path))
    assert live_jobs(tmp_path, slurm) == {"7": "RUNNING", "8": "PENDING"}


def test_a_run_directory_has_one_name_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path and the absolute one give the same jobs."""
    monkeypatch.chdir(tmp_path)
    assert job_prefix(Path("run")) == job_prefix(tmp_path / "run")


def test_orphans_that_wait_are_cancelled_and_those_that_run_are_waited_for(tmp_path: Path) -> None:
    """The sweep goes on when none of them is left, and says what it waits for once."""
    first = names("7|RUNNING|OWN\n8|PENDING|OWN\n", tmp_path)
    slurm = Slurm(squeue=[first, first, None, names("7|COMPLETING|OWN\n", tmp_path), ""])
    said: list[str] = []
    waited = outlive_jobs(tmp_path, said.append, run=slurm, pause=lambda seconds: None)
    assert waited == {"7"}
    assert [command for command in slurm.asked if command[0] == "scancel"] == [["scancel", "8"]]
    assert said == [
        "cancelled job 8 of an earlier start, which had not begun",
        "waiting for job 7 of an earlier start to end (scancel ends them at once)",
    ]


def test_trials_that_were_waited_for_in_vain_are_told() -> None:
    """Those of cancelled jobs run again and count for nothing; others' ends are errors, and told as such."""
    states = [f"JobId=1 JobState={state} Restarts=0\n" for state in ("CANCELLED", "FAILED", "TIMEOUT")]
    said: list[str] = []
    trials = [("a trial 0", "7"), ("a trial 1", "8"), ("b trial 0", "9")]
    tell_cancelled(trials, said.append, Slurm(scontrol=states))
    assert said == [
        "a trial 0: job 7 of an earlier start was cancelled; the trial runs again",
        "a trial 1: job 8 of an earlier start has ended without a record; the trial runs again",
    ]


def test_what_is_left_after_an_interrupt_is_cancelled(tmp_path: Path) -> None:
    """Each job of the run, and nothing where there is none."""
    both, said = names("7|RUNNING|OWN\n8|PENDING|OWN\n", tmp_path), list[str]()
    slurm = Slurm(squeue=[both, names("7|COMPLETING|OWN\n", tmp_path)])
    cancel_jobs(tmp_path, said.append, slurm)
    assert ["scancel", "7", "8"] in slurm.asked
    assert said == ["cancelled jobs 7, 8"]
    cancel_jobs(tmp_path, said.append, Slurm())
    assert len(said) == 1


@pytest.mark.parametrize("answers", [[None], ["7|RUNNING|OWN\n", None]])
def test_jobs_that_may_be_left_are_told(tmp_path: Path, answers: list[Answer]) -> None:
    """SLURM does not answer, before or after it was asked to cancel: by what names they are found, and what to do."""
    said: list[str] = []
    cancel_jobs(tmp_path, said.append, Slurm(squeue=[text and names(text, tmp_path) for text in answers]))
    (line,) = said
    assert line.startswith(f"SLURM does not answer: jobs named {job_prefix(tmp_path)}... may be left; the same command")


def test_jobs_that_cannot_be_cancelled_are_told(tmp_path: Path) -> None:
    """By their ids."""
    both, said = names("7|RUNNING|OWN\n8|PENDING|OWN\n", tmp_path), list[str]()
    cancel_jobs(tmp_path, said.append, Slurm(squeue=[both, names("7|RUNNING|OWN\n", tmp_path)]))
    assert said[0] == "cancelled job 8" and said[1].startswith("job 7 cannot be cancelled; the same command")


WITH = "AccountingStorageType   = accounting_storage/slurmdbd\n"
WITHOUT = "AccountingStorageType   = accounting_storage/none\n"


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Puts a program of that name on the PATH."""

    def install() -> None:
        (tmp_path / "sacct").write_text("#!/bin/sh\n")
        (tmp_path / "sacct").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def test_the_queue_says_how_jobs_stand() -> None:
    """Accounting is not asked for what the queue knows."""
    slurm = Slurm(squeue="1|RUNNING\n2|COMPLETED\n")
    assert Watch("name", slurm).states(["1", "2"]) == {"1": "RUNNING", "2": "COMPLETED"}
    assert [command[0] for command in slurm.asked] == ["squeue"]


def test_accounting_knows_what_the_queue_has_forgotten(sacct: Callable[[], None]) -> None:
    """Only where the cluster keeps accounts."""
    sacct()
    slurm = Slurm(squeue="1|RUNNING\n", scontrol=WITH, sacct="2|CANCELLED by 1000\n")
    assert Watch("name", slurm).states(["1", "2"]) == {"1": "RUNNING", "2": "CANCELLED"}
    slurm = Slurm(squeue="1|RUNNING\n", scontrol=WITHOUT, sacct="2|FAILED\n")
    assert Watch("name", slurm).states(["1", "2"]) == {"1": "RUNNING"}


def test_a_job_that_nobody_knows_any_more_has_ended() -> None:
    """After three looks; its file decides what came of it. It does not hang the sweep."""
    watch = Watch("name", Slurm(squeue="", scontrol=WITHOUT))
    assert [watch.states(["5"]) for _ in range(3)] == [{}, {}, {"5": "COMPLETED"}]


def test_a_controller_that_does_not_answer_ends_no_job() -> None:
    """Nothing is known then, however long it takes."""
    watch = Watch("name", Slurm(squeue=None))
    assert [watch.states(["5"]) for _ in range(9)] == [{}] * 9


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "REVOKED"])
def test_ends_that_the_plugin_misreads_are_failures(state: str) -> None:
    """It would wait for ever for a preempted job, and would leave a failed node out of the sweep unasked."""
    assert Watch("name", Slurm(squeue=f"5|{state}\n")).states(["5"]) == {"5": "FAILED"}


def failed_job(number: str | None = "7") -> Any:
    return SimpleNamespace(job=SimpleNamespace(message="trial 0 of cell a"), external_jobid=number)


def test_a_failed_job_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell, trial, job, node, reason and log; what SLURM has said last of the job."""
    monkeypatch.chdir(tmp_path)
    watch = Watch("name", Slurm(squeue=["7|RUNNING|n[1-2]|None|1:00\n", "7|TIMEOUT|n[1-2]|TimeLimit|1:00\n"]))
    assert [watch.states(["7"]) for _ in range(2)] == [{"7": "RUNNING"}, {"7": "TIMEOUT"}]
    said = "SLURM-job '7' failed, SLURM status is: 'TIMEOUT'. "
    assert failure(failed_job(), said, watch.ended, [str(tmp_path / "logs" / "7.log"), "/far/7.log"]) == (
        "trial 0 of cell a: its job 7 on n[1-2] ended early: TIMEOUT: its time limit of 1:00 was reached (reason: "
        "TimeLimit); raise resources.runtime in the recipe above what a trial takes; its log: logs/7.log, /far/7.log"
    )


def test_the_last_words_of_a_job_that_ended_by_itself_are_told(tmp_path: Path) -> None:
    """SLURM's own reason would only be that it ended with an error."""
    log = tmp_path / "7.log"
    log.write_bytes(b"x\xff" * 99999 + b"\naorta: too early\naorta: trial 0: No space left on device\nExiting\n")
    said = "SLURM-job '7' failed, SLURM status is: 'FAILED'. "
    told = failure(failed_job(), said, lambda number: Job(number, state="FAILED"), [str(log), str(tmp_path / "none")])
    assert told is not None
    assert "FAILED: it ended with an error: trial 0: No space left on device; its log: " in told
    told = failure(failed_job(), said, lambda number: Job(number, state="CANCELLED"), [str(log)])
    assert told is not None and "No space" not in told


def test_a_job_that_took_too_much_memory_is_told_so(tmp_path: Path) -> None:
    """SLURM calls it FAILED: its log says why, and the line what to do."""
    log = tmp_path / "7.log"
    log.write_text("aorta: not this\nslurmstepd: error: Exceeded job memory limit\n")
    said = "SLURM-job '7' failed, SLURM status is: 'FAILED'. "
    job = Job("7", state="FAILED", reason="JobLaunchFailure")
    told = failure(failed_job(), said, lambda number: job, [str(tmp_path / "none"), str(log)])
    assert told is not None and told.startswith(
        "trial 0 of cell a: its job 7 ended early: OUT_OF_MEMORY: it took more memory than it had asked for; raise "
        "resources.mem in the recipe, or give the trial less to do; its log: "
    )


def test_a_refused_job_is_told_in_a_line() -> None:
    """All that sbatch has said, and none of its command line."""
    said = (
        "SLURM sbatch failed. The error message was 'sbatch: error: invalid partition specified: it's\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified'.\n"
        "    sbatch call:\n        sbatch x\n"
    )
    assert failure(failed_job(None), said, Job, ()) == (
        "trial 0 of cell a: SLURM would not take its job: invalid partition specified: it's; "
        "Batch job submission failed: Invalid partition name specified"
    )


@pytest.mark.parametrize(
    "said", ["", "Job submission failed with exception: KeyError", "SLURM-job '8' failed, SLURM status is: 'FAILED'"]
)
def test_other_failures_are_told_as_snakemake_tells_them(said: str) -> None:
    """They may be anything."""
    assert failure(failed_job(), said, Job, ()) is None


def test_nothing_but_what_is_told_in_a_line_is_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each such line once, with the log that has everything; every other error as Snakemake puts it."""
    from snakemake.logging import DefaultFilter, DefaultFormatter, logger
    from snakemake.settings.enums import Quietness
    from snakemake_interface_logger_plugins.common import LogEvent

    quiet = {Quietness.ALL}
    log = logging.FileHandler(tmp_path / "log")
    log.setFormatter(DefaultFormatter(quiet))
    log.addFilter(DefaultFilter(quiet, False, False, False, False))
    before = [*logger.handlers]
    logger.addHandler(log)
    empty: dict[str, Any] = {"input": [], "output": [], "log": [], "conda_env": None, "shellcmd": "run me"}
    block = {**empty, "rule_name": "trial", "rule_msg": "odd", "jobid": 1, "event": LogEvent.JOB_ERROR}
    closing = "WorkflowError:\nAt least one job did not complete successfully."
    try:
        show_errors(SimpleNamespace(output_settings=SimpleNamespace(quiet=quiet, show_failed_logs=False)))
        logger.error(closing)
        for _ in range(2):
            logger.error("failed", extra={**block, "aux": {FAILURE: "trial 0 of cell a: its job 7 ended early"}})
        logger.error("failed", extra={**block, "aux": {"external_jobid": 8}})
        logger.error("Exception in run_job for rule trial: odd")
        logger.error(closing)
    finally:
        for handler in set(logger.handlers) - set(before):
            logger.removeHandler(handler)
        log.close()
    said = capsys.readouterr().err
    assert said.count("aorta: trial 0 of cell a: its job 7 ended early\n") == 1
    assert said.count(f"aorta: more in Snakemake's log: {tmp_path / 'log'}\n") == 1
    assert said.count("Error in rule trial:") == 1 and "    external_jobid: 8\n" in said and "run me" in said
    assert "Exception in run_job for rule trial: odd\n" in said
    # Before anything else has been said it is the only sign that something went wrong.
    assert said.count(closing) == 1
    assert (tmp_path / "log").read_text("utf-8").count("Error in rule trial:") == 3
