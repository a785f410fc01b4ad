"""One sweep per run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aorta.dag.lock import LockedError, RunLock

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
