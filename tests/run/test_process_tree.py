"""Nothing of a trial outlives it, whoever ends it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from aorta.run import process

from .conftest import Runner, alive, wait_for


def pids(folder: Path) -> list[int]:
    """The process ids that the Sleeps workload wrote, once they are there."""
    path = folder / "pids"
    wait_for(path.exists, "the worker to write its ids")
    found: list[int] = json.loads(path.read_text())
    return found


def all_gone(ids: list[int]) -> bool:
    return not any(alive(pid) for pid in ids)


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_time_limit_ends_a_trial_and_its_grandchildren(trial: Runner, tmp_path: Path, stubborn: bool) -> None:
    """At the limit everything ends, SIGTERM ignored or not, another session or not, within seconds."""
    config = {"folder": str(tmp_path), "grandchild": True, "stubborn": stubborn}
    begin = time.monotonic()
    record = trial("Sleeps", workload_config=config, trial_timeout_sec=1.0)
    assert time.monotonic() - begin < 1.0 + 5.0
    assert (record["exit_status"], record["verdict"]) == ("timed_out", "error")
    assert "1 s" in record["error"]["message"] and "during run()" in record["error"]["message"]
    assert all_gone(pids(tmp_path))


def test_a_timed_out_trial_shows_where_it_hung(trial: Runner, tmp_path: Path) -> None:
    """The tail of standard error has the Python stack at the limit."""
    record = trial("Sleeps", workload_config={"folder": str(tmp_path)}, trial_timeout_sec=1.0)
    assert any("in run" in line for line in record["error"]["stderr_tail"])


def test_a_straggler_is_ended_after_a_normal_end(trial: Runner, tmp_path: Path) -> None:
    """A grandchild that left the session and keeps the output open neither delays nor survives the trial."""
    record = trial("Sleeps", workload_config={"folder": str(tmp_path), "grandchild": True, "returns": True})
    assert record["verdict"] == "pass"
    assert all_gone(record["result"]["metrics"]["pids"])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_supervisor_ends_all_without_a_record(
    trial: Runner, tmp_path: Path, signum: signal.Signals
) -> None:
    """The supervisor ends with 128 + n, writes nothing, and leaves no process."""
    trial.plan("Sleeps", workload_config={"folder": str(tmp_path), "grandchild": True, "stubborn": True})
    supervisor = trial.start()
    ids = pids(tmp_path)
    supervisor.send_signal(signum)
    assert signum.name in trial.finish(supervisor)
    assert supervisor.returncode == 128 + signum
    assert all_gone(ids)
    assert list(trial.path("x").parent.iterdir()) == []


def test_the_worker_dies_with_a_killed_supervisor(trial: Runner, tmp_path: Path) -> None:
    """SIGKILL of the supervisor takes the worker with it."""
    trial.plan("Sleeps", workload_config={"folder": str(tmp_path), "stubborn": True})
    supervisor = trial.start()
    ids = pids(tmp_path)
    supervisor.kill()
    trial.finish(supervisor)
    wait_for(lambda: all_gone(ids), "the worker to die")
    assert not trial.path("trial_d0_m0_t0.json").exists()


def test_the_next_trial_ends_what_a_killed_supervisor_left(trial: Runner, tmp_path: Path) -> None:
    """A grandchild of a trial whose supervisor was killed does not share the device with the next one."""
    trial.plan("Sleeps", workload_config={"folder": str(tmp_path), "grandchild": True})
    supervisor = trial.start()
    worker, grandchild = pids(tmp_path)
    supervisor.kill()
    trial.finish(supervisor)
    wait_for(lambda: not alive(worker), "the worker to die")
    assert alive(grandchild)
    assert trial("Noop")["verdict"] == "pass"
    wait_for(lambda: not alive(grandchild), "the grandchild to die")


def test_an_ignored_hangup_stays_ignored(trial: Runner, tmp_path: Path) -> None:
    """Under nohup a trial survives the terminal; this one then ends at its time limit."""
    trial.plan("Sleeps", workload_config={"folder": str(tmp_path)}, trial_timeout_sec=1.5)
    supervisor = trial.start_command(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *trial.command()])
    pids(tmp_path)
    supervisor.send_signal(signal.SIGHUP)
    trial.finish(supervisor)
    assert (supervisor.returncode, trial.record()["exit_status"]) == (0, "timed_out")


def test_a_caller_that_ignores_child_signals_does_not_hide_the_end(trial: Runner) -> None:
    """An inherited "ignore SIGCHLD" would let the kernel collect the worker; its exit is still seen."""
    trial.plan("Exits", workload_config={"code": 7, "hard": True})
    supervisor = trial.start_command(["sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *trial.command()])
    trial.finish(supervisor)
    assert trial.record()["error"]["exit_code"] == 7


def test_closed_standard_descriptors_do_no_harm(trial: Runner) -> None:
    """A caller may close descriptors 0, 1 and 2 before it starts a trial."""
    trial.plan("Noop")
    supervisor = trial.start_command(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *trial.command()])
    trial.finish(supervisor)
    assert (supervisor.returncode, trial.record()["verdict"]) == (0, "pass")


def test_family_finds_children_and_not_this_process() -> None:
    """The walk over /proc finds a live child and leaves out the caller."""
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], dict(os.environ))
    try:
        assert child in process.family(os.getpid())
        assert os.getpid() not in process.family(os.getppid())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_marked_finds_a_process_by_its_token() -> None:
    """A process is known by the token in its environment, whatever its parents are."""
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {process.TOKEN_VARIABLE: "t1"})
    try:
        wait_for(lambda: process.marked("t1") == {child}, "the process to be found")
        assert process.marked("t") == set()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
