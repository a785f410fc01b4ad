"""A sweep whose ranks a launcher started: the ranks here are started as torchrun would, without its import of torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Workspace

pytestmark = pytest.mark.e2e

DEADLINE_SEC = 180.0
AORTA = [sys.executable, "-c", "from aorta.cli import main; main(prog_name='aorta')"]


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Polls until ``condition`` gives something true; fails after the deadline."""
    deadline = time.monotonic() + DEADLINE_SEC
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {DEADLINE_SEC} s for {what}"
        time.sleep(0.02)
    return found


class Launch:
    """The processes of one launch, a rank each."""

    def __init__(self, workspace: Workspace, recipe: str, ranks: int = 2) -> None:
        self._files = []
        self.ranks = []
        for rank in range(ranks):
            said = (workspace.folder.parent / f"rank{rank}.txt").open("w+")
            self._files.append(said)
            env = {
                **workspace.environment,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "29500",
                "TORCHELASTIC_RUN_ID": str(workspace.folder),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            command = [*AORTA, "sweep", "run", "--recipe", recipe]
            process = subprocess.Popen(command, cwd=workspace.folder, env=env, stdout=said, stderr=said)
            self.ranks.append(process)

    def wait(self) -> list[int]:
        """Waits for all ranks and returns their exit codes."""
        return [rank.wait(DEADLINE_SEC) for rank in self.ranks]

    def said(self, rank: int) -> str:
        """What a rank wrote."""
        self._files[rank].seek(0)
        return self._files[rank].read()

    def end(self) -> None:
        """Leaves nothing behind."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        for file in self._files:
            file.close()


@pytest.fixture
def launch(workspace: Workspace) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(recipe: str, ranks: int = 2) -> Launch:
        started.append(Launch(workspace, recipe, ranks))
        return started[-1]

    yield start
    for one in started:
        one.end()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def hanging(workspace: Workspace, launch: Callable[..., Launch]) -> tuple[Launch, list[int]]:
    """A launch in the middle of a trial that never ends, and the ids of the trial's workers."""
    folder = workspace.folder.parent / "pids"
    folder.mkdir()
    recipe = workspace.recipe([{"name": "hangs"}], workload="ranked", workload_config={"hang": str(folder)})
    ranks = launch(recipe)
    wait_for(lambda: len(list(folder.iterdir())) == 2, "both workers")
    return ranks, [int(path.name) for path in folder.iterdir()]


def test_every_rank_gets_a_fresh_worker_for_each_trial(workspace: Workspace, launch: Callable[..., Launch]) -> None:
    """Three ranks run two cells to a complete matrix, and all leave with 0."""
    cells = [{"name": "one", "extra_env": {"NCCL_PROTO": "LL"}}, {"name": "two"}]
    ranks = launch(workspace.recipe(cells, workload="ranked"), 3)
    assert ranks.wait() == [0, 0, 0], ranks.said(0)
    assert workspace.matrix()["complete"]
    records = workspace.trials()
    assert [[rank["rank"] for rank in record["ranks"]] for record in records] == [[0, 1, 2]] * 2
    assert len({rank["pid"] for record in records for rank in record["ranks"]}) == 6
    seen = [record["result"]["metrics"]["ranks"] for record in records]
    assert [[entry["NCCL_PROTO"] for entry in entries] for entries in seen] == [["LL"] * 3, [None] * 3]
    assert {entry["TORCHELASTIC_USE_AGENT_STORE"] for entries in seen for entry in entries} == {None}
    assert [path.name for path in (workspace.folder / ".snakemake" / "aorta").glob("torchrun-*")] == []
    assert "matrix" not in ranks.said(1)


def test_a_rank_that_dies_in_a_trial_is_a_result(workspace: Workspace, launch: Callable[..., Launch]) -> None:
    """The death of rank 1's worker is recorded with its rank and last words, and the sweep goes on."""
    cells = [{"name": "dies", "workload_config": {"kill": 1}}, {"name": "lives"}]
    ranks = launch(workspace.recipe(cells, workload="ranked", confound={"baseline_cell": "lives"}))
    assert ranks.wait() == [0, 0], ranks.said(0)
    (dead, alive_) = workspace.trials()
    assert (dead["error"]["rank"], dead["error"]["signal"], alive_["verdict"]) == (1, "SIGKILL", "pass")
    assert "last words of rank 1" in dead["error"]["stderr_tail"]
    assert dead["wall_clock_sec"] < 5.0


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_takes_all_along(workspace: Workspace, launch: Callable[..., Launch], victim: int) -> None:
    """Whichever rank's long-lived process is killed, the others leave, no worker stays, and nothing is recorded."""
    ranks, workers = hanging(workspace, launch)
    ranks.ranks[victim].kill()
    codes = ranks.wait()
    assert codes[victim] == -signal.SIGKILL and codes[1 - victim] == 1, ranks.said(1 - victim)
    wait_for(lambda: not any(alive(pid) for pid in workers), "the workers to end")
    assert workspace.trials() == []


def test_an_interrupt_takes_all_along(workspace: Workspace, launch: Callable[..., Launch]) -> None:
    """Ctrl-C at rank 0's terminal, or torchrun passing it on, ends every rank."""
    ranks, workers = hanging(workspace, launch)
    for rank in ranks.ranks:
        os.kill(rank.pid, signal.SIGTERM)
    assert 0 not in ranks.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers), "the workers to end")


def test_a_run_begun_by_a_launcher_goes_on_without_it(workspace: Workspace, launch: Callable[..., Launch]) -> None:
    """The plan is the same however the ranks are started."""
    recipe = workspace.recipe([{"name": "one"}], workload="ranked")
    ranks = launch(recipe)
    assert ranks.wait() == [0, 0], ranks.said(0)
    (run_dir,) = workspace.runs()
    next(run_dir.glob("cells/*/*/trial_*.json")).unlink()
    done = workspace.aorta("sweep", "run", "--recipe", recipe, "--nproc-per-node", "2")
    assert done.code == 0, done.stderr
    assert workspace.runs() == [run_dir]
