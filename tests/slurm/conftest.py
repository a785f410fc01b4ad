"""A real SLURM with three virtual nodes on this machine, and sweeps that run on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aorta import _owner
from tests.e2e.conftest import Workspace

SCRIPT = Path(__file__).resolve().parent / "cluster.sh"
BASE = Path(os.environ.get("SLURM_BASE", "/tmp/aorta-slurm"))
DEADLINE_SEC = 90.0
_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "squeue", "scontrol")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SEC) -> Any:
    """Polls until ``condition`` gives something true, and returns that; fails after the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return found


class Cluster:
    """The running SLURM."""

    nodes = ("n1", "n2", "n3")

    def call(self, *command: str, check: bool = True, timeout: float = 60) -> str:
        """Runs one of SLURM's commands and returns what it printed."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def jobs(self, folder: Path, states: str = "PENDING,RUNNING,COMPLETING,SUSPENDED") -> dict[str, dict[str, str]]:
        """The jobs that were submitted from a folder, by id, with ``state``, ``node``, ``name`` and ``comment``."""
        found = {}
        listed = self.call("squeue", "-h", f"--states={states}", "-o", "%i|%Z|%T|%N|%j|%k", check=False)
        for line in listed.splitlines():
            number, where, state, node, name, comment = line.split("|", 5)
            if where == str(folder):
                found[number] = {"state": state, "node": node, "name": name, "comment": comment}
        return found

    def restart_controller(self) -> None:
        """Ends slurmctld and starts it again with its saved state."""
        subprocess.run([SCRIPT, "restart"], check=True, capture_output=True, timeout=60)

    @contextlib.contextmanager
    def crashing_controller(self) -> Iterator[None]:
        """Kills slurmctld at the end of a block, and has it forget every job that was submitted in the block.

        So does a crash before it has saved them; only a test that is alone may use this.
        """
        saved, state = BASE / "state-before", BASE / "state"
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(state, saved)
        try:
            yield
            self.kill_controller()
            shutil.rmtree(state)
            saved.rename(state)
        finally:
            self.start_controller()

    def start_controller(self) -> None:
        """Starts slurmctld with its saved state, if it does not run."""
        subprocess.run([SCRIPT, "start"], check=True, capture_output=True, timeout=120)

    def kill_controller(self) -> None:
        """Kills slurmctld; only a test that is alone may do so, and starts it again."""
        pid = int((BASE / "pid" / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _is_zombie(pid), "slurmctld to die")


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended; pid 1 may collect it late."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@contextlib.contextmanager
def user() -> Iterator[None]:
    """Counts those who use the cluster: the first starts it, the last stops it, whatever became of the others."""
    users = BASE / "users"
    users.mkdir(parents=True, exist_ok=True)
    own = users / f"{os.getpid()}-{_owner.start_time(os.getpid())}"

    def change(step: Callable[[], None]) -> None:
        with (BASE / "users.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for path in users.iterdir():
                pid, _, started = path.name.partition("-")
                if str(_owner.start_time(int(pid))) != started:
                    path.unlink()
            step()

    def enter() -> None:
        done = subprocess.run([SCRIPT, "start"], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode == 3:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        own.touch()

    def leave() -> None:
        own.unlink()
        if not any(users.iterdir()):
            subprocess.run([SCRIPT, "stop"], check=True, capture_output=True, timeout=120)

    change(enter)
    try:
        yield
    finally:
        change(leave)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running SLURM; skips where there is none and none can be started."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(f"SLURM is not installed ({', '.join(missing)}); as root on Debian: tests/slurm/cluster.sh install")
    if os.geteuid() != 0:
        pytest.skip("only root can start SLURM's daemons here")
    with user():
        yield Cluster()


@contextlib.contextmanager
def _workspace(folder: Path, cluster: Cluster, lock: int) -> Iterator[Workspace]:
    folder.mkdir()
    with (BASE / "tests.lock").open("w") as file:
        fcntl.flock(file, lock)
        try:
            yield Workspace(folder)
        finally:
            left = cluster.jobs(folder)
            if left:
                cluster.call("scancel", *left, check=False)


@pytest.fixture
def workspace(tmp_path: Path, cluster: Cluster) -> Iterator[Workspace]:
    """An empty folder in which a user runs commands; no job of it is left behind."""
    with _workspace(tmp_path / "work", cluster, fcntl.LOCK_SH) as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path, cluster: Cluster) -> Iterator[Workspace]:
    """The same for a test that no other may run beside, since it breaks what all use."""
    with _workspace(tmp_path / "work", cluster, fcntl.LOCK_EX) as made:
        yield made
