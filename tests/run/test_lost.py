"""Attempts that a SLURM job's end took along: what counts, what is said of it, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aorta.run.launch import NoAnswer
from aorta.run.lost import Lost, attempt_entry, is_note, job_entry, job_of, judge, note, unfinished
from aorta.run.record import this_host
from aorta.run.retry import Attempts
from aorta.run.slurmjob import Job, answered, call, find_job, node_address, this_job

CPU = {"kind": "cpu", "index": None, "identity": "processor"}
SHOWN = (
    "JobId=7 JobName=aorta-1-x UserId=root(0) JobState={state} Reason={reason} Restarts=1 TimeLimit=00:05:00 "
    "Partition=main NodeList=n[1-2] BatchHost=n1 Command=(null)\n"
)


def left(**changes: Any) -> dict[str, Any]:
    made = note(Job("7", name="sweep", nodes="n[1-2]", partition="main"), this_host(), CPU, 1_700_000_000.0)
    return {**made, **changes}


def ended(**facts: Any) -> Any:
    return lambda number, settle_sec=0.0: Job(number, **facts)


def silent(number: str, settle_sec: float = 0.0) -> Job:
    raise NoAnswer("SLURM does not answer")


def shown(**answers: str | None) -> Any:
    """SLURM's answers by command; it knows of nothing else."""

    def run(command: Sequence[str]) -> str | None:
        return answers.get(command[0], "")

    return run


def test_a_job_describes_itself() -> None:
    """By its id alone: the environment of a job inside Snakemake has little more."""
    job = this_job({"SLURM_JOB_ID": "7"}, shown(scontrol=SHOWN.format(state="RUNNING", reason="None")))
    assert job is not None
    assert job_entry(job) == {
        "job": "7",
        "name": "aorta-1-x",
        "partition": "main",
        "nodes": ["n1", "n2"],
        "restarts": 1,
    }
    assert this_job({}) is None


def test_the_controller_is_asked_before_the_accounts() -> None:
    """And where neither knows the job, its state is unknown."""
    text = SHOWN.format(state="TIMEOUT", reason="TimeLimit")
    job = find_job("7", shown(scontrol=text, sacct="x|FAILED||n9|p"))
    assert (job.end_text(), job.is_over) == (
        "TIMEOUT: its time limit of 00:05:00 was reached (reason: TimeLimit)",
        True,
    )
    accounts = "x|PREEMPTED|None|n9|p|1700000050\nx|CANCELLED by 0|None|n9|p|1700000060\n"
    job = find_job("7", shown(sacct=accounts))
    assert (job.state, job.nodes, job.restarts, job.ended) == ("CANCELLED", "n9", 1, 1_700_000_060.0)
    assert find_job("7", shown()).end_text() == "SLURM no longer knows it"


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (b"slurmstepd-n1: error: StepId=7.0 exceeded memory limit (2 > 1), being killed", True),
        (b"slurmstepd: error: Exceeded job memory limit", True),
        (b"slurmstepd: error: Exceeded step memory limit at some point.", True),
        (b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some of the step tasks have been OOM", True),
        (b"slurmstepd: error: Detected 2 oom-kill event(s) in step 7.0 cgroup.", True),
        (b"srun: error: n1: task 0: Out Of Memory", True),
        (b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", False),
        (b"torch.OutOfMemoryError: HIP out of memory", False),
        (b"srun: warm\ntrainer: error: out of memory", False),
    ],
)
def test_a_job_that_slurmd_ended_for_its_memory_ran_out_of_it(tmp_path: Path, words: bytes, is_told: bool) -> None:
    """The controller calls it FAILED; its own log, whose path may have blanks, has the cause."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    log = folder / "7.log"
    log.write_bytes(b"\xff" * 99999 + b"\nsrun: begins\n" + words + b"\nExiting\n")

    def job(state: str, path: Path) -> Job:
        line = SHOWN.format(state=state, reason="NonZeroExitCode").strip()
        return find_job("7", shown(scontrol=f"{line} StdErr={path} StdIn=/dev/null StdOut={path} Power=\n"))

    assert (job("FAILED", log).state == "OUT_OF_MEMORY") is is_told
    if is_told:
        assert job("FAILED", log).end_text() == "OUT_OF_MEMORY: it took more memory than it had asked for"
    # Not where SLURM has named an end, or nothing can be read.
    assert (job("TIMEOUT", log).state, job("FAILED", folder / "8.log").state) == ("TIMEOUT", "FAILED")


def test_no_answer_is_no_end() -> None:
    """Not even where accounting knows the job, unless it knows its end."""
    with pytest.raises(NoAnswer, match="so how job 7 ended is not known yet"):
        find_job("7", shown(scontrol=None))
    with pytest.raises(NoAnswer):
        find_job("7", shown(scontrol=None, sacct="x|RUNNING|None|n9|p|Unknown\n"))
    assert find_job("7", shown(scontrol=None, sacct="x|TIMEOUT|None|n9|p|1700000060\n")).state == "TIMEOUT"


def program(folder: Path, text: str, name: str = "scontrol") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_what_slurm_does_not_know_and_what_it_does_not_answer_are_told_apart(tmp_path: Path) -> None:
    """By its message; a host without SLURM's commands has nobody to wait for."""
    unknown = program(tmp_path, "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert call([unknown, "show"]) == ""
    down = program(tmp_path, "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1")
    assert call([down, "show"]) is None
    assert call([program(tmp_path, "exec sleep 60"), "show"], seconds=0.2) is None
    assert call([str(tmp_path / "absent"), "show"]) == ""


def test_slurm_is_asked_until_it_answers() -> None:
    """And for so long only; the wait is told once."""
    answers, said, pauses = [NoAnswer("silence"), NoAnswer("silence"), "TIMEOUT"], list[str](), list[float]()

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    assert answered(ask, patience_sec=600, pause=pauses.append, notify=said.append) == "TIMEOUT"
    assert (len(pauses), said) == (2, ["silence; asking again for 10 min"])
    answers = [NoAnswer("silence")]
    with pytest.raises(NoAnswer):
        answered(ask, patience_sec=0, pause=pauses.append, notify=said.append)


def test_a_node_has_an_address_where_its_name_does_not_resolve() -> None:
    """What SLURM itself uses."""
    assert (
        node_address("n1", shown(scontrol="NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=n1\n")) == "10.0.0.7"
    )
    assert node_address("n1", shown()) is None


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        ("TIMEOUT", True),
        ("OUT_OF_MEMORY", True),
        ("NODE_FAIL", True),
        ("PREEMPTED", True),
        ("CANCELLED", False),
        ("FAILED", False),
        (None, False),
    ],
)
def test_what_another_start_of_the_sweep_ended_counts_only_for_a_reason(state: str | None, counts: bool) -> None:
    """Stopping a sweep cancels its jobs: no error of their trials."""
    own = Job("8", name="a later start")
    assert (judge(left(), own, ended(state=state)) is not None) is counts
    assert judge(left(), Job("8", name="sweep"), ended(state=state)) is not None


@pytest.mark.parametrize(
    ("state", "counts"),
    [("NODE_FAIL", True), ("OUT_OF_MEMORY", True), ("TIMEOUT", False), ("PREEMPTED", False), ("CANCELLED", False)],
)
def test_the_end_of_a_share_counts_only_where_the_node_is_at_fault(state: str, counts: bool) -> None:
    """The time limit of a job that runs a thousand trials is not the doing of the one that was running."""
    note_of_share = left(slurm=job_entry(Job("7", name="aorta-1-shares-3-x", nodes="n1", partition="main")))
    for own in (None, Job("8", name="aorta-1-shares-3-y"), Job("8", name="aorta-1-shares-3-x")):
        assert (judge(note_of_share, own, ended(state=state)) is not None) is counts
    assert judge(note_of_share, Job("7", name="aorta-1-shares-3-x", restarts=1), ended(state="RUNNING")) is None


def test_a_trial_of_a_share_does_not_ask_the_controller() -> None:
    """Thousands of short trials would be thousands of questions, and a batch job's environment has it all."""
    environment = {
        "AORTA_SHARE": "1/3",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "aorta-1-shares-3-x",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_PARTITION": "main",
    }
    asked: list[Sequence[str]] = []
    job = this_job(environment, lambda command: asked.append(command))  # type: ignore[func-returns-value]
    assert job is not None and asked == []
    assert job_entry(job) == {
        "job": "7",
        "name": "aorta-1-shares-3-x",
        "partition": "main",
        "nodes": ["n1"],
        "restarts": 0,
    }


def test_the_error_says_where_and_why() -> None:
    """The job, its nodes, SLURM's word and reason, and what may help."""
    lost = judge(left(), None, ended(state="OUT_OF_MEMORY", reason="OutOfMemory"))
    assert lost is not None
    assert lost.error["message"] == (
        "job 7 on n1, n2 ended before the trial did: SLURM ended it: OUT_OF_MEMORY: it took more memory than it had "
        "asked for (reason: OutOfMemory)"
    )
    assert (lost.error["type"], lost.error["phase"]) == ("slurm", "process")
    assert "resources.mem" in lost.error["hint"]


def test_a_requeued_job_tells_of_its_first_run() -> None:
    """SLURM has forgotten how that ended; the note has not."""
    lost = judge(left(ended="PREEMPTED: another job took its place"), Job("7", name="sweep", restarts=1), ended())
    assert lost is not None
    assert lost.error["message"].endswith(
        "REQUEUED: SLURM requeued it (restart 1) after it had ended as PREEMPTED: another job took its place"
    )


def test_an_attempt_lasts_until_the_job_ended() -> None:
    """By SLURM's clock, else by the supervisor's own word; no clock makes it end before it began."""
    times = [(1_700_000_060, None), (1_699_999_990, None), (None, 1_700_000_050.0), (None, None)]
    found = []
    for end, stopped in times:
        job = ended(state="TIMEOUT", ended=None if end is None else str(end))
        lost = judge(left() if stopped is None else left(stopped=stopped), None, job)
        assert lost is not None
        found.append(lost.ended)
    assert found == [1_700_000_060.0, 1_700_000_000.0, 1_700_000_050.0, None]
    assert Job("7", state="RUNNING", ended="1700000060").ended is None
    lost = judge(left(stopped=1_700_000_040.0), Job("7", name="sweep", restarts=1), ended())
    assert lost is not None and lost.ended == 1_700_000_040.0
    assert [attempt_entry(Lost(left(), {}, end), 1_700_000_100.0)["ended_at"][-13:] for end in (found[0], None)] == [
        "22:14:20.000Z",
        "22:15:00.000Z",
    ]


def test_a_killed_supervisor_of_a_job_that_goes_on_is_no_lost_job() -> None:
    """As inside an allocation, whose trials all have one job."""
    assert judge(left(), Job("7", name="sweep"), ended(state="RUNNING")) is None


@pytest.mark.parametrize("own", ["7", "8"])
def test_a_number_that_a_controller_gave_again_is_another_job(own: str) -> None:
    """It had lost its state: how the first one ended is not known, and the present one's state says nothing."""
    note_of_first = left(submitted="1699999999")
    second = Job("7", name="sweep", state="RUNNING", submitted="1700000100")
    asking = second if own == "7" else Job("8", name="sweep")
    lost = judge(note_of_first, asking, lambda number, settle_sec=0.0: second)
    assert lost is not None and lost.error["message"].endswith("before the trial did: SLURM no longer knows it")


@pytest.mark.parametrize("spoilt", [{}, {"slurm": {}}, {"device": None}, {"host": {}}, {"started": "now"}])
def test_a_spoilt_note_is_none(spoilt: dict[str, Any]) -> None:
    """Half of one, or another version's."""
    assert is_note(left())
    assert not is_note({**left(), **spoilt} if spoilt else {})


CELL = {"fingerprint": "ab" * 32, "retry_errors": 1}


def attempts(folder: Path, job: Job | None = None, retries: int = 1) -> Attempts:
    return Attempts({**CELL, "retry_errors": retries}, str(folder / "trial_d0_m0_t0"), job)


def test_a_job_that_only_accounting_remembers_is_judged_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real commands' words: the controller has forgotten the job, and accounting gives state and end."""
    program(tmp_path, "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    # As sacct does: times in the form that the environment asks for.
    program(tmp_path, 'date -u -d @1700000060 "+sweep|OUT_OF_MEMORY|None|n2|main|$SLURM_TIME_FORMAT"', "sacct")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    attempts(tmp_path, Job("7", name="sweep", nodes="n2")).begin(CPU)
    lost = attempts(tmp_path, Job("8", name="sweep"), retries=0).take_up_lost()
    assert lost is not None
    assert "job 7 on n2 ended before the trial did: SLURM ended it: OUT_OF_MEMORY" in lost.error["message"]
    # The job ended in 2023, long before this test's attempt began.
    assert lost.ended == lost.started


def test_a_lost_attempt_uses_up_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is tried again; when none is left the lost attempt is what the record is made of."""
    monkeypatch.setattr(judge, "__defaults__", (ended(state="TIMEOUT"),))
    attempts(tmp_path, Job("7", name="sweep", nodes="n2")).begin(CPU)
    second = attempts(tmp_path, Job("8", name="sweep", nodes="n3"))
    assert second.take_up_lost() is None
    assert [(entry["slurm"]["nodes"], entry["exit_status"]) for entry in second.earlier] == [
        (["n2"], "infrastructure_failed")
    ]
    second.begin(CPU)
    third = attempts(tmp_path, Job("9", name="sweep"))
    lost = third.take_up_lost()
    assert lost is not None and lost.note["slurm"]["nodes"] == ["n3"] and "job 8 on n3" in lost.error["message"]
    assert job_of(str(tmp_path / "trial_d0_m0_t0")) == "8"
    assert unfinished(str(tmp_path)) == [str(tmp_path / "trial_d0_m0_t0")]
    third.forget()
    assert unfinished(str(tmp_path)) == []


def test_without_an_answer_the_attempt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is judged when SLURM answers again."""
    attempts(tmp_path, Job("7", name="sweep", nodes="n2")).begin(CPU)
    second = attempts(tmp_path, Job("8", name="sweep"), retries=0)
    monkeypatch.setattr(judge, "__defaults__", (silent,))
    with pytest.raises(NoAnswer):
        second.take_up_lost()
    assert job_of(str(tmp_path / "trial_d0_m0_t0")) == "7"
    monkeypatch.setattr(judge, "__defaults__", (ended(state="TIMEOUT"),))
    lost = second.take_up_lost()
    assert lost is not None and "TIMEOUT" in lost.error["message"]


def test_an_attempt_that_gave_up_by_itself_is_not_lost(tmp_path: Path) -> None:
    """A full disk, say: no job's end was the cause."""
    first = attempts(tmp_path, Job("7", name="sweep"))
    first.begin(CPU)
    first.give_up()
    assert attempts(tmp_path, Job("8", name="sweep"), retries=0).take_up_lost() is None


def test_outside_of_slurm_nothing_is_noted(tmp_path: Path) -> None:
    """A workstation's trials write no more than before."""
    attempts(tmp_path).begin(CPU)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_attempt_fits_the_records_schema() -> None:
    """As an entry of ``attempts``."""
    from jsonschema import Draft202012Validator

    from aorta._resources import load_schema

    schema = load_schema("trial")
    lost = judge(left(), None, ended(state="TIMEOUT"))
    assert lost is not None
    entry = attempt_entry(lost, 1_700_000_100.0)
    part = {"$defs": schema["$defs"], **schema["properties"]["attempts"]}
    assert list(Draft202012Validator(part).iter_errors([json.loads(json.dumps(entry))])) == []
