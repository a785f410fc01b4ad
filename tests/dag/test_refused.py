"""What SLURM would not take of a sweep's jobs, asked of stand-ins of its commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aorta.dag import refused
from aorta.dag.sbatch import Examiner

NO_NODES = "allocation failure: Requested node configuration is not available"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stand-ins of SLURM's commands go; every node is in service."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "sinfo", 'case "$*" in *%R*) echo main ;; *) echo idle mixed allocated~ ;; esac')
    return tmp_path


def answers(folder: Path, replies: Mapping[str, str]) -> None:
    """Has sbatch refuse a job whose command line holds a word, with what it then says."""
    cases = "".join(f"*'{word}'*) echo 'sbatch: error: {said}' >&2; exit 1 ;; " for word, said in replies.items())
    program(folder, "sbatch", f'case "$*" in {cases} esac')


@pytest.mark.parametrize(
    ("states", "counts"),
    [
        ("idle mixed allocated planned completing", True),
        ("idle~ mixed+ idle#", True),
        ("idle down", False),
        ("idle* mixed", False),
        ("drained", False),
        ("maint", False),
        ("", True),
    ],
)
def test_what_no_node_has_is_certain_only_while_every_node_serves(slurm: Path, states: str, counts: bool) -> None:
    """SLURM's test says the same of a job whose nodes are down, which it would take and let wait."""
    answers(slurm, {"--mem=9T": NO_NODES})
    program(slurm, "sinfo", f"echo {states}")
    examiner = Examiner(["sbatch"])
    assert examiner.refusal(["sbatch", "--mem=9T"]) == (NO_NODES if counts else None)
    assert examiner.refusals(["sbatch", "--mem=9T"]) == (NO_NODES if counts else None, None)


def test_the_partitions_that_there_are_are_named(slurm: Path) -> None:
    """To whom has mistyped one."""
    answers(slurm, {"-p mian": "invalid partition specified: mian"})
    examiner = Examiner(["sbatch"])
    assert examiner.refusal(["sbatch", "-p", "mian"]) == "invalid partition specified: mian; there is main"
    assert examiner.refusal(["sbatch", "-p", "main"]) is None


@pytest.mark.parametrize(
    "said", ["Requested nodes are busy", "Required node not available (down, drained or reserved)"]
)
def test_what_passes_is_no_refusal(slurm: Path, said: str) -> None:
    """The job could run at another time."""
    answers(slurm, {"-w": said})
    assert Examiner(["sbatch"]).refusal(["sbatch", "-w", "n1"]) is None


def job(rule: str, local: bool = False, **wildcards: str) -> Any:
    """A job of Snakemake's; a snapshot asks for what the first cell does."""
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule),
        is_local=local,
        wildcards_dict=wildcards,
        message=f"the {rule}",
        resources={"slurm_partition": "nowhere" if wildcards.get("cell") in ("b", "c") else "main"},
    )


def workflow(*jobs: Any) -> Any:
    """A workflow with these jobs, which SLURM's executor sends."""
    executor = SimpleNamespace(get_partition_arg=lambda job: "")
    return SimpleNamespace(
        scheduler=SimpleNamespace(_executor=executor), dag=SimpleNamespace(needrun_jobs=lambda: iter(jobs))
    )


PLAN: Any = SimpleNamespace(
    cells=[
        SimpleNamespace(name="a", resources={}),
        SimpleNamespace(name="b", resources={"partition": "nowhere"}),
        SimpleNamespace(name="c", resources={"partition": "nowhere"}),
    ]
)
JOBS = [
    *(job("trial", cell=cell, trial=str(trial)) for cell in "cba" for trial in range(3)),
    job("environment", environment="local"),
    job("matrix", local=True),
]


def command(_workflow: Any, job: Any) -> str:
    """As the plugin would write it."""
    return f"sbatch -p {job.resources['slurm_partition']}"


@pytest.fixture
def asked(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that has each question that sbatch was asked."""
    monkeypatch.setattr(refused, "_options", command)
    return slurm / "asked"


def log_questions(slurm: Path) -> None:
    text = (slurm / "sbatch").read_text().replace("#!/bin/sh\n", f'#!/bin/sh\necho "$*" >> {slurm}/asked\n', 1)
    (slurm / "sbatch").write_text(text)


def test_a_cell_whose_jobs_would_be_refused_is_named(slurm: Path, asked: Path) -> None:
    """With its place and what it asks for, in the recipe's order; one question for each kind of job."""
    answers(slurm, {"nowhere": "Invalid account"})
    log_questions(slurm)
    assert refused.refused_jobs(workflow(*JOBS), PLAN) == [
        "cells[1].resources (b: partition=nowhere), cells[2].resources (c: partition=nowhere): SLURM would not take "
        "such a job: Invalid account"
    ]
    questions = asked.read_text().splitlines()
    assert sorted(line for line in questions if "-p" in line) == [
        f"-p {name} --wrap=true --test-only" for name in ("main", "nowhere")
    ]


def test_a_snapshot_is_named_where_no_cell_is(slurm: Path, asked: Path) -> None:
    """As when the trials have all been recorded."""
    answers(slurm, {"-p main": "Invalid account"})
    assert refused.refused_jobs(workflow(JOBS[-2]), PLAN) == [
        "the environment (slurm_partition=main): SLURM would not take such a job: Invalid account"
    ]
    assert refused.refused_jobs(workflow(JOBS[-1]), PLAN) == []


def test_what_the_recipe_does_not_ask_for_is_the_profiles(slurm: Path, asked: Path) -> None:
    """The place is then the profile, with all that its jobs ask for."""
    answers(slurm, {"-p main": "Invalid account"})
    mine = job("trial", cell="a", trial="0")
    mine.resources |= {"mem_mb": 2000, "mem": "2 GB", "runtime": None, "gres": "", "_cores": 1, "disk_mb": "<TBD>"}
    assert refused.refused_jobs(workflow(mine), PLAN) == [
        "the profile's default-resources (a: slurm_partition=main mem_mb=2000): SLURM would not take such a job: "
        "Invalid account"
    ]


@pytest.mark.parametrize("said", ["no test jobs here", "Unable to contact slurm controller (connect failure)"])
def test_where_any_job_is_refused_nothing_is_concluded(slurm: Path, asked: Path, said: str) -> None:
    """The site takes no such questions, or the controller is away for a while."""
    answers(slurm, {"wrap": said})
    assert refused.refused_jobs(workflow(*JOBS), PLAN) == []


def test_what_the_plugin_itself_would_not_send_is_told(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as an account that accounting does not know."""
    from snakemake_interface_common.exceptions import WorkflowError

    def options(_workflow: Any, job: Any) -> str:
        raise WorkflowError("The given account appears to be invalid.\nAvailable accounts:\na")

    monkeypatch.setattr(refused, "_options", options)
    answers(slurm, {})
    (line,) = refused.refused_jobs(workflow(JOBS[0]), PLAN)
    assert line.endswith(
        "SLURM would not take such a job: The given account appears to be invalid. Available accounts: a"
    )


def test_a_version_of_the_plugin_that_is_not_known_is_not_asked() -> None:
    """The jobs then go out as they are."""
    unknown = SimpleNamespace(scheduler=SimpleNamespace(_executor=SimpleNamespace()))
    assert refused.refused_jobs(unknown, PLAN) == []
