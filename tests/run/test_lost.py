"""Attempts that a SLURM job's end took along: what counts, what is said of it, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aorta.run.lost import attempt_entry, is_note, job_entry, judge, note, unfinished
from aorta.run.record import this_host
from aorta.run.retry import Attempts
from aorta.run.slurmjob import Job, find_job, node_address, this_job

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


def shown(**answers: str | None) -> Any:
    def run(command: Sequence[str]) -> str | None:
        return answers.get(command[0])

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
    accounts = "x|PREEMPTED|None|n9|p\nx|CANCELLED by 0|None|n9|p\n"
    job = find_job("7", shown(sacct=accounts))
    assert (job.state, job.nodes, job.restarts) == ("CANCELLED", "n9", 1)
    assert find_job("7", shown()).end_text() == "SLURM no longer knows it"


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
    error = judge(left(), None, ended(state="OUT_OF_MEMORY", reason="OutOfMemory"))
    assert error is not None
    assert error["message"] == (
        "job 7 on n1, n2 ended before the trial did: SLURM ended it: OUT_OF_MEMORY: it took more memory than it had "
        "asked for (reason: OutOfMemory)"
    )
    assert (error["type"], error["phase"]) == ("slurm", "process") and "resources.mem" in error["hint"]


def test_a_requeued_job_tells_of_its_first_run() -> None:
    """SLURM has forgotten how that ended; the note has not."""
    error = judge(left(ended="PREEMPTED: another job took its place"), Job("7", name="sweep", restarts=1), ended())
    assert error is not None
    assert error["message"].endswith(
        "SLURM requeued it (restart 1) after it had ended as PREEMPTED: another job took its place"
    )


@pytest.mark.parametrize("spoilt", [{}, {"slurm": {}}, {"device": None}, {"host": {}}, {"started": "now"}])
def test_a_spoilt_note_is_none(spoilt: dict[str, Any]) -> None:
    """Half of one, or another version's."""
    assert is_note(left())
    assert not is_note({**left(), **spoilt} if spoilt else {})


CELL = {"fingerprint": "ab" * 32, "retry_errors": 1}


def attempts(folder: Path, job: Job | None = None, retries: int = 1) -> Attempts:
    return Attempts({**CELL, "retry_errors": retries}, str(folder / "trial_d0_m0_t0"), job)


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
    assert lost is not None and lost[0]["slurm"]["nodes"] == ["n3"] and "job 8 on n3" in lost[1]["message"]
    assert unfinished(str(tmp_path)) == [str(tmp_path / "trial_d0_m0_t0")]
    third.forget()
    assert unfinished(str(tmp_path)) == []


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
    entry = attempt_entry(left(), judge(left(), None, ended(state="TIMEOUT")) or {}, 1_700_000_100.0)
    part = {"$defs": schema["$defs"], **schema["properties"]["attempts"]}
    assert list(Draft202012Validator(part).iter_errors([json.loads(json.dumps(entry))])) == []
