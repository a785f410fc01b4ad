"""Ports of trials: reserved, held, and never shared."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from aorta.run.locks import LockError
from aorta.run.ports import PORTS, is_free, reserve_port

from .conftest import Runner

TOKEN = "0" * 32


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"AORTA_LOCK_DIR": str(tmp_path / "locks")}


def test_the_ports_lie_outside_the_ephemeral_range() -> None:
    """The kernel gives none of them to an outgoing connection or to whoever asks for port 0."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(PORTS) < min(first, 30000)


def test_a_reserved_port_is_nobody_elses(env: dict[str, str]) -> None:
    """Two trials that look from the same place find different ports, and a released one is free again."""
    first, second = reserve_port(env, TOKEN, lock=True), reserve_port(env, TOKEN, lock=True)
    assert first.number != second.number
    first.release()
    assert reserve_port(env, TOKEN, lock=True).number == first.number
    second.release()


def test_a_port_that_somebody_listens_on_is_passed_over(env: dict[str, str]) -> None:
    """Who knows nothing of our locks is seen all the same, on whatever address of the host."""
    port = reserve_port(env, TOKEN, lock=True)
    port.release()
    with socket.create_server(("127.0.0.1", port.number)):
        assert not is_free(port.number)
        assert reserve_port(env, TOKEN, lock=True).number != port.number


def test_without_locks_a_free_port_is_found(env: dict[str, str]) -> None:
    """--no-device-lock needs no lock folder."""
    assert reserve_port({"AORTA_LOCK_DIR": "/dev/null/x"}, TOKEN, lock=False).number in PORTS


def test_an_unusable_lock_folder_is_named() -> None:
    """The lock folder's fault is told with its remedy."""
    with pytest.raises(LockError, match="AORTA_LOCK_DIR"):
        reserve_port({"AORTA_LOCK_DIR": "/dev/null/x"}, TOKEN, lock=True)


def test_trials_side_by_side_meet_their_own_ranks_only(trial: Runner) -> None:
    """Eight distributed trials at once, twice: every rank meets the ranks of its own trial."""
    trial.plan("ranks_fixture:Meets", launch={"mode": "distributed", "nproc_per_node": 2})
    for first in (0, 8):
        trials = range(first, first + 8)
        supervisors = [trial.start("--devices", "8", trial=number) for number in trials]
        said = [trial.finish(supervisor) for supervisor in supervisors]
        assert [supervisor.returncode for supervisor in supervisors] == [0] * 8, said
        assert [trial.record(number)["verdict"] for number in trials] == ["pass"] * 8
