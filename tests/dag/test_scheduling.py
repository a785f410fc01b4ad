"""The corrections to Snakemake's scheduler, held against the pinned version."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from aorta.dag.scheduling import disarm_timers, end_on_sigterm, keep_order, limit_devices

SNAKEFILE = """
import threading
from aorta.dag.scheduling import disarm_timers, keep_order, limit_devices

limit_devices(workflow, 1)
rule all:
    input: expand("{i}.txt", i=range(40))
rule one:
    output: "{i}.txt"
    priority: lambda wildcards: -((int(wildcards.i) * 7) % 40)
    resources: device=1
    shell: "echo {wildcards.i} >> order; touch {output}"
onstart:
    print("notices:", disarm_timers(workflow) + keep_order(workflow, 12))
onsuccess:
    print("timers:", sum(isinstance(thread, threading.Timer) for thread in threading.enumerate()))
"""

JOB_SNAKEFILE = """
import os, signal
from pathlib import Path
from snakemake.persistence import PersistenceBase
from aorta.dag.scheduling import end_on_sigterm

end_on_sigterm()
finished = PersistenceBase.finished

def told_to_end(self, job):
    # The scheduler holds its lock here.
    Path("asked").touch()
    os.kill(os.getpid(), signal.SIGTERM)
    finished(self, job)

PersistenceBase.finished = told_to_end
rule one:
    output: "a"
    shell: "touch {output}"
rule all:
    default_target: True
    input: "a", "b"
rule two:
    input: "a"
    output: "b"
    shell: "touch {output}"
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:
    """A workflow of forty jobs, more than a window and than Snakemake's subsample, run by plain Snakemake."""
    folder: Path = tmp_path_factory.mktemp("scheduling")
    (folder / "Snakefile").write_text(SNAKEFILE)
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "4",
        "--scheduler",
        "greedy",
        "--scheduler-subsample",
        "20",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [int(line) for line in (folder / "order").read_text().split()]


@pytest.mark.e2e
def test_jobs_start_in_the_order_of_their_priorities(ran: tuple[str, list[int]]) -> None:
    """Exactly the planned order, although four cores are free and Snakemake would draw at random."""
    assert ran[1] == sorted(range(40), key=lambda index: (index * 7) % 40)


@pytest.mark.e2e
def test_no_timer_threads_are_left(ran: tuple[str, list[int]]) -> None:
    """The leak that takes a third of a core after some hundred jobs is gone."""
    assert "timers: 0" in ran[0]


@pytest.mark.e2e
def test_the_pinned_snakemake_has_what_the_corrections_need(ran: tuple[str, list[int]]) -> None:
    """Neither correction had to give up."""
    assert "notices: []" in ran[0]


def test_another_snakemake_is_told_not_broken() -> None:
    """Where an internal is missing the run goes on, and a person is told."""
    workflow = SimpleNamespace(scheduler=SimpleNamespace(), dag=SimpleNamespace())
    assert len(disarm_timers(workflow)) == 1
    assert len(keep_order(workflow, 10)) == 1


def test_the_users_own_device_limit_wins() -> None:
    """`--resources device=2` says otherwise, and stays."""
    registered: list[tuple[str, int]] = []
    workflow = SimpleNamespace(
        global_resources={"device": 2}, register_resource=lambda name, value: registered.append((name, value))
    )
    limit_devices(workflow, 8)
    assert registered == []


def test_a_sigterm_in_the_middle_of_a_round_does_not_hang() -> None:
    """The signal comes while the main thread holds the scheduler's lock; the request to end arrives after it."""
    ended = threading.Event()

    class Scheduler:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            signal.signal(signal.SIGTERM, self.exit_gracefully)

        def exit_gracefully(self, *_signal: object) -> None:
            with self.lock:
                ended.set()

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert end_on_sigterm(Scheduler) == []
        with Scheduler().lock:
            signal.raise_signal(signal.SIGTERM)
            assert not ended.is_set()
        assert ended.wait(20)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_job_that_is_told_to_end_does_not_hang(tmp_path: Path) -> None:
    """A job's own Snakemake too: SLURM's signal finds it with the lock when its trial has been ended first."""
    snakefile = tmp_path / "Snakefile"
    snakefile.write_text(JOB_SNAKEFILE)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and (tmp_path / "asked").exists()


def test_snakemakes_scheduler_can_be_asked_to_end() -> None:
    """The pinned Snakemake has what the correction needs; another version is told about."""
    from snakemake.scheduling.job_scheduler import JobScheduler

    assert callable(JobScheduler.exit_gracefully)
    assert len(end_on_sigterm(object)) == 1
