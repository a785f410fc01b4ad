"""A sweep on a cluster tells how each trial has ended, as a workstation's supervisors do."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aorta.dag.progress import tell_trials
from aorta.plan.paths import RunLayout
from tests.matrix.matrix_builders import WORKLOAD, plan, record, request

CELL = request("baseline-local")
SLURM = {"job": "7", "name": None, "partition": None, "nodes": ["n2"], "restarts": 0}


class Executor:
    """One of a cluster's, whose own work at a job's success is seen."""

    def __init__(self) -> None:
        self.ended: list[Any] = []

    def handle_job_success(self, job: Any) -> None:
        self.ended.append(job)


class Group(list[Any]):
    """Several jobs in one of the cluster's."""

    def is_group(self) -> bool:
        return True


def job(trial: int, rule: str = "trial") -> Any:
    wildcards = SimpleNamespace(cell=CELL["cell"], trial=str(trial))
    return SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards=wildcards, is_group=lambda: False)


def workflow(*, local: bool = False, executor: Any = None) -> Any:
    executor = executor or Executor()
    return SimpleNamespace(local_exec=local, scheduler=SimpleNamespace(_executor=executor))


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run directory with the records of two trials, and something else in the place of a third's."""
    layout = RunLayout(tmp_path, WORKLOAD)
    layout.trial_folder(CELL["cell"]).mkdir(parents=True)
    for trial, (outcome, slurm) in enumerate([("pass", SLURM), ("fail", None)]):
        path = layout.trial(CELL["cell"], trial)
        path.write_text(json.dumps(record(CELL, trial, outcome, order=trial + 1, slurm=slurm)))
    layout.trial(CELL["cell"], 2).write_text('{"verdict": "pass"}')
    return layout


def told(layout: RunLayout, capsys: pytest.CaptureFixture[str], *jobs: Any, local: bool = False) -> list[str]:
    flow = workflow(local=local)
    assert tell_trials(flow, layout, plan([CELL])) == []
    for one in jobs:
        flow.scheduler._executor.handle_job_success(one)
    assert flow.scheduler._executor.ended == list(jobs)
    return capsys.readouterr().err.splitlines()


def test_each_trial_is_told_from_its_record(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    """With its node where SLURM names one, and its reason; other rules' jobs, and what does not count, are not."""
    assert told(layout, capsys, job(0), job(1, "environment"), job(2), job(3), job(1)) == [
        "[1/4] baseline-local trial 0: pass  2.00 s on n2",
        "[2/4] baseline-local trial 1: fail  2.00 s  1 check failed",
    ]


def test_trials_of_a_group_are_told_each(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a user's profile puts several into one job."""
    assert len(told(layout, capsys, Group([job(0), job(1)]))) == 2


def test_trials_of_this_host_are_not_told_again(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    """Their supervisors have the same terminal."""
    assert told(layout, capsys, job(0), local=True) == []


def test_a_terminal_that_has_gone_ends_nothing(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler goes on when the line cannot be written."""
    flow = workflow()
    tell_trials(flow, layout, plan([CELL]))

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "the reader has gone", text)

    monkeypatch.setattr("sys.stderr", Gone())
    flow.scheduler._executor.handle_job_success(job(0))
    assert len(flow.scheduler._executor.ended) == 1


def test_an_executor_that_is_not_known_is_told_not_broken(layout: RunLayout) -> None:
    """Where an internal is missing the run goes on, and a person is told."""
    assert len(tell_trials(workflow(executor=object()), layout, plan([CELL]))) == 1


def test_snakemakes_executors_hear_of_each_success() -> None:
    """The pinned version has what this needs."""
    from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

    assert callable(RemoteExecutor.handle_job_success)
