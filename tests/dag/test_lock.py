"""One sweep per run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aorta import _owner
from aorta.dag.lock import LockedError, RunLock

HERE = _owner.Place.here()
ELSEWHERE = _owner.Place("node7", "another-boot", "pid:[1]")

HOLDER = "import sys, time; from pathlib import Path; from aorta.dag.lock import RunLock; "
HOLDER += "lock = RunLock(Path(sys.argv[1]), 'x'); print('held', flush=True); time.sleep(60)"


def hold(path: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


def test_a_live_owner_is_named(tmp_path: Path) -> None:
    """The second sweep is told who holds the run directory."""
    path = tmp_path / "lock"
    holder = hold(path)
    try:
        with pytest.raises(LockedError, match=rf"runs/1 is in use by another sweep \(pid {holder.pid} on host "):
            RunLock(path, "runs/1")
    finally:
        holder.kill()
        holder.communicate()


def test_a_dead_owner_holds_nothing(tmp_path: Path) -> None:
    """SIGKILL leaves no lock behind."""
    path = tmp_path / "lock"
    holder = hold(path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    RunLock(path, "runs/1").release()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """A trial that outlives its sweep keeps nobody out."""
    path = tmp_path / "lock"
    lock = RunLock(path, "runs/1")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock.release()
    try:
        RunLock(path, "runs/1").release()
    finally:
        child.communicate(b"\n")


def test_a_released_lock_names_nobody(tmp_path: Path) -> None:
    """The file of a finished sweep is empty."""
    path = tmp_path / "deep" / "lock"
    RunLock(path, "runs/1").release()
    assert path.read_text() == ""


def test_a_dead_owners_lock_is_cleared_with_a_notice(tmp_path: Path) -> None:
    """Who died without letting go is named."""
    path = tmp_path / "lock"
    holder = hold(path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    said: list[str] = []
    RunLock(path, "runs/1", notify=said.append).release()
    assert said == [f"cleared the lock that pid {holder.pid} on host {HERE.host} left on runs/1 when it died"]


@pytest.mark.parametrize("text", ["{", '{"pid": 1}', "null"])
def test_a_damaged_lock_file_holds_nothing(tmp_path: Path, text: str) -> None:
    """What a power cut leaves in the file is cleared as well."""
    path = tmp_path / "lock"
    path.write_text(text)
    said: list[str] = []
    RunLock(path, "runs/1", notify=said.append).release()
    assert (len(said), path.read_text()) == (1, "")


def test_a_silent_owner_on_another_host_is_watched_for_a_lease(tmp_path: Path) -> None:
    """Where the kernel's lock does not reach, a file that nobody touches is taken over after the lease."""
    path = tmp_path / "lock"
    path.write_text(json.dumps(_owner.describe_self(ELSEWHERE) | {"pid": 77}))
    said: list[str] = []
    begin = time.monotonic()
    RunLock(path, "runs/1", notify=said.append, lease_sec=0.3).release()
    assert time.monotonic() - begin >= 0.3
    assert "watching for 0.3 s" in said[0] and "cleared the lock that pid 77 on host node7" in said[1]


def test_a_beating_owner_on_another_host_is_refused(tmp_path: Path) -> None:
    """Its heartbeat counts, whatever time its clock shows, and the message names it."""
    path = tmp_path / "lock"
    path.write_text(json.dumps(_owner.describe_self(ELSEWHERE) | {"pid": 77}))
    stop = threading.Event()

    def beat() -> None:
        second = 10_000
        while not stop.wait(0.05):
            second -= 1
            os.utime(path, (second, second))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(LockedError, match=r"\(pid 77 on host node7\)"):
            RunLock(path, "runs/1", lease_sec=5)
    finally:
        stop.set()
        thread.join()


def test_a_reused_process_number_holds_nothing(tmp_path: Path) -> None:
    """A living process that got the dead owner's number did not start when the owner did."""
    path = tmp_path / "lock"
    path.write_text(json.dumps(_owner.describe_self(HERE) | {"pid": 1, "pid_started": 5}))
    RunLock(path, "runs/1").release()


def test_a_held_lock_beats(tmp_path: Path) -> None:
    """Its file is touched from time to time, for other hosts to see."""
    path = tmp_path / "lock"
    lock = RunLock(path, "runs/1", heartbeat_sec=0.02)
    before = path.stat().st_mtime_ns
    deadline = time.monotonic() + 20
    while path.stat().st_mtime_ns == before:
        assert time.monotonic() < deadline
        os.sched_yield()
    lock.release()


def test_a_sweep_that_ends_leaves_no_name(tmp_path: Path) -> None:
    """A process that ends as it should empties the file, also without letting go first."""
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.replace("time.sleep(60)", "sys.exit(3)"), str(path)], stdout=subprocess.DEVNULL
    )
    holder.wait()
    assert path.read_text() == ""
