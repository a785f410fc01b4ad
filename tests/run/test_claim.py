"""At most one process runs a trial, on whatever host, and a dead one's claim does not stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta import _owner
from aorta.run import claim as claims
from aorta.run.claim import Claim

from .conftest import REPOSITORY, Runner, alive, wait_for
from .test_process_tree import pids

HERE = _owner.Place.here()
ELSEWHERE = _owner.Place("node7", "another-boot", "pid:[1]")


class Waited(Exception):
    """Ends a wait that a test does not want to see through."""


def give_up(_seconds: float) -> None:
    raise Waited


def wait_in_earnest(seconds: float) -> None:
    signal.sigtimedwait([], seconds)


class Desk:
    """Makes claims on one trial and keeps what is said."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.said: list[str] = []

    def claim(self, place: _owner.Place = HERE, **more: Any) -> Claim:
        return Claim(str(self.run_dir), "base", 0, "", place=place, **more)

    def acquire(
        self, claim: Claim, pause: Callable[[float], None] = give_up, is_recorded: Callable[[], bool] = lambda: False
    ) -> bool:
        return claim.acquire(is_recorded=is_recorded, pause=pause, notify=self.said.append)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.run_dir.rglob("*") if path.is_file())

    def leave(self, name: str, content: str | dict[str, Any]) -> Path:
        """Leaves a claim's file as another process would have."""
        path = Path(claims.claims_folder(str(self.run_dir)), "base", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def dead_owner(place: _owner.Place = HERE, **more: Any) -> dict[str, Any]:
    """A process of this kernel that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = wait_for(lambda: _owner.start_time(child.pid) or child.poll() is not None, "the child to start")
    child.wait()
    owner = _owner.describe_self(place, token="", **more)
    return {**owner, "pid": child.pid, "pid_started": started}


def test_a_claim_says_who_holds_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host, boot, process, its start time, the scheduler's job and the time are in the file, from the start."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    held = desk.claim()
    assert desk.acquire(held)
    (found,) = claims.find(os.path.join(claims.claims_folder(str(desk.run_dir)), "base"))
    assert found.owner is not None
    assert (found.owner["host"], found.owner["pid"], found.owner["job"]) == (os.uname().nodename, os.getpid(), "4711")
    assert (found.owner["pid_started"], found.owner["boot_id"]) == (_owner.start_time(os.getpid()), HERE.boot_id)
    assert found.owner["claimed_at"] > 0
    held.release()
    assert desk.files == []


def test_a_living_owner_is_waited_for(desk: Desk) -> None:
    """A second claim on the same trial waits, and leaves nothing when it gives up."""
    first = desk.claim()
    assert desk.acquire(first)
    with pytest.raises(Waited):
        desk.acquire(desk.claim())
    assert desk.files == ["t0.1"]
    first.release()
    second = desk.claim()
    assert desk.acquire(second)
    second.release()


def test_a_trial_that_was_recorded_meanwhile_does_not_run(desk: Desk) -> None:
    """Whoever waited for another's trial takes its record as the result."""
    assert not desk.acquire(desk.claim(), is_recorded=lambda: True)
    assert desk.files == []


@pytest.mark.parametrize("change", [{}, {"pid": os.getpid()}, {"pid": 1}])
def test_a_dead_owners_claim_is_taken_over(desk: Desk, change: dict[str, Any]) -> None:
    """A process that is gone, and a number that the kernel gave to another process, hold nothing."""
    owner = {**dead_owner(), **change, "pid_started": 1} if change else dead_owner()
    desk.leave("t0.1", owner)
    desk.leave("t0.1.waiting", "waiting for cpu-0")
    held = desk.claim()
    assert desk.acquire(held)
    assert desk.said == [f"taking over from pid {owner['pid']} on host {HERE.host}, which died without a record"]
    assert desk.files == ["t0.1", "t0.1.waiting", "t0.2"]
    held.release()
    assert desk.files == []


def test_a_reboot_ends_every_claim_of_the_host(desk: Desk) -> None:
    """The same host under another boot has no process of before."""
    desk.leave("t0.3", {**_owner.describe_self(HERE), "boot_id": "before"})
    held = desk.claim()
    assert desk.acquire(held)
    held.release()


@pytest.mark.parametrize("content", ["", "{", "null", '{"host": "x"}'])
def test_what_a_power_cut_leaves_of_a_claim_holds_nothing(
    desk: Desk, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable claim is given a moment to become readable, as on a slow network disk, and then passed over."""
    monkeypatch.setattr(_owner, "WAIT_SEC", 0.05)
    desk.leave("t0.1", content)
    with pytest.raises(Waited):
        desk.acquire(desk.claim())
    held = desk.claim()
    assert desk.acquire(held, wait_in_earnest)
    held.release()
    assert desk.files == []


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_what_is_no_file_holds_no_claim(desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder or a link to nowhere under a claim's name must not keep the trial from running for ever."""
    monkeypatch.setattr(_owner, "WAIT_SEC", 0.05)
    path = desk.leave("t0.8", "")
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    held = desk.claim()
    assert desk.acquire(held, wait_in_earnest)
    held.release()
    again = desk.claim()
    assert desk.acquire(again, wait_in_earnest)
    again.release()
    assert desk.files == []


def test_a_takeover_names_only_the_last_owner(desk: Desk) -> None:
    """Owners before the last were named when it took over from them."""
    last = dead_owner()
    desk.leave("t0.1", dead_owner())
    desk.leave("t0.2", last)
    held = desk.claim()
    assert desk.acquire(held)
    assert desk.said == [f"taking over from pid {last['pid']} on host {HERE.host}, which died without a record"]
    held.release()


def test_another_hosts_silent_claim_is_taken_over_after_its_lease(desk: Desk) -> None:
    """Who cannot look at the owner watches its heartbeat, and takes over when there is none for a whole lease."""
    desk.leave("t0.1", _owner.describe_self(ELSEWHERE))
    with pytest.raises(Waited):
        desk.acquire(desk.claim(lease_sec=0.2))
    held = desk.claim(lease_sec=0.2)
    assert desk.acquire(held, wait_in_earnest)
    held.release()


def test_another_hosts_beating_claim_is_never_taken_over(desk: Desk) -> None:
    """Each heartbeat starts the lease anew, whatever the two hosts' clocks say."""
    path = desk.leave("t0.1", _owner.describe_self(ELSEWHERE))
    beats = 0

    def beat(seconds: float) -> None:
        nonlocal beats
        wait_in_earnest(min(seconds, 0.05))
        beats += 1
        if beats > 20:
            raise Waited
        # A clock that goes backwards.
        os.utime(path, (10_000 - beats, 10_000 - beats))

    with pytest.raises(Waited):
        desk.acquire(desk.claim(lease_sec=0.2), beat)


def test_a_held_claim_beats(desk: Desk) -> None:
    """The holder touches its file by itself, also while it does nothing but wait."""
    held = desk.claim(heartbeat_sec=0.02)
    assert desk.acquire(held)
    path = next(desk.run_dir.rglob("t0.*"))
    before = path.stat().st_mtime_ns
    wait_for(lambda: path.stat().st_mtime_ns > before, "a heartbeat")
    held.release()


def test_a_name_that_is_taken_is_not_taken_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that a slow network disk does not list yet is still in the way: the server refuses the name."""
    first = desk.claim()
    assert desk.acquire(first)
    monkeypatch.setattr(claims, "find", lambda *_: [])
    with pytest.raises(Waited):
        desk.acquire(desk.claim())
    monkeypatch.undo()
    first.release()
    assert desk.files == []


def test_a_takeover_that_comes_too_late_withdraws(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who decided on an old look, while others took over and ended, sees the new holder and steps back."""
    dead = desk.leave("t0.1", dead_owner())
    late = desk.claim()
    look = claims.find
    first = True

    def look_and_sleep(folder: str, trial: int | None = None) -> list[claims.Found]:
        nonlocal first
        found = look(folder, trial)
        if first:
            first = False
            dead.unlink()
            desk.leave("t0.1", _owner.describe_self(HERE))
        return found

    monkeypatch.setattr(claims, "find", look_and_sleep)
    with pytest.raises(Waited):
        desk.acquire(late)
    assert desk.files == ["t0.1"]


CONTENDER = """
import os, sys, time
sys.path.append(sys.argv[1])
from aorta import _owner
from aorta.run.claim import Claim
for turn in range(int(sys.argv[4])):
    claim = Claim(sys.argv[2], "base", 0, "")
    claim.acquire(is_recorded=lambda: False, pause=lambda seconds: time.sleep(0.001), notify=lambda text: None)
    os.close(os.open(sys.argv[3], os.O_CREAT | os.O_EXCL))
    os.unlink(sys.argv[3])
    if turn % 5 == 4:
        os._exit(9)  # leaves its claim behind
    claim.release()
"""


def test_no_two_of_many_hold_a_claim_at_once(desk: Desk, tmp_path: Path) -> None:
    """Contenders that hold, let go and die with the claim never meet inside it."""
    inside = tmp_path / "inside"
    command = [sys.executable, "-I", "-S", "-c", CONTENDER, str(REPOSITORY), str(desk.run_dir), str(inside), "5"]
    for _round in range(3):
        running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        ended = [(process.communicate(timeout=60)[1], process.returncode) for process in running]
        assert ended == [("", 9)] * 4


def test_a_second_supervisor_waits_for_the_first_and_takes_its_record(trial: Runner, tmp_path: Path) -> None:
    """An orphan of a killed sweep is not raced: its record is the result, and its trial ran once."""
    trial.plan("Sleeps", workload_config={"folder": str(tmp_path)}, trial_timeout_sec=3.0)
    first = trial.start("--devices", "2")
    pids(tmp_path)
    second = trial.start("--devices", "2")
    said = trial.finish(second)
    trial.finish(first)
    assert (first.returncode, second.returncode) == (0, 0)
    assert f"waiting for this trial, which pid {first.pid} on host {HERE.host} is running" in said
    assert "is recorded already and does not run again" in said
    assert trial.record()["supervisor_pid"] == first.pid


def test_a_killed_supervisors_trial_is_taken_over_and_its_processes_ended(trial: Runner, tmp_path: Path) -> None:
    """What a killed supervisor left running, in a session of its own, is gone before the trial runs again."""
    trial.plan("Sleeps", workload_config={"folder": str(tmp_path), "grandchild": True})
    supervisor = trial.start("--no-device-lock")
    _worker, grandchild = pids(tmp_path)
    supervisor.kill()
    trial.finish(supervisor)
    assert alive(grandchild)
    record = trial("Noop", "--no-device-lock")
    assert (record["verdict"], alive(grandchild)) == ("pass", False)
    assert f"taking over from pid {supervisor.pid}" in record["said"]
    assert [path for path in trial.run_dir.rglob("t0.*") if path.is_file()] == []
