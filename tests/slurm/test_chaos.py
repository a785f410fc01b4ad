"""A sweep on SLURM whose jobs, controller and own process are killed again and again loses and doubles nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Workspace
from tests.slurm.conftest import Cluster, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.e2e]

KILLS = 10
TRIALS = 4
ENDS = {"passes": "pass", "fails": "fail"}
COUNTS = {"passes": {"pass": 4, "fail": 0, "error": 0}, "fails": {"pass": 0, "fail": 4, "error": 0}}


class Chaos:
    """One sweep, started by the same command until its matrix is whole."""

    def __init__(self, workspace: Workspace, cluster: Cluster, seed: int) -> None:
        self.folder = workspace.folder
        self.cluster = cluster
        self.random = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.log = self.folder / "runs.log"
        self.round = 1
        cells = [{"name": name, "workload_config": {"end": end}} for name, end in ENDS.items()]
        # A lost job is the only error here, and its trial is tried again.
        resources = {"runtime": 5, "mem": "1G"}
        self.recipe = workspace.recipe(cells, workload="known", trials=TRIALS, retry_errors=100, resources=resources)
        site = self.folder / "site"
        site.mkdir()
        site.joinpath("config.yaml").write_text(
            "executor: slurm\nslurm-init-seconds-before-status-checks: 1\njobs: 4\nretries: 20\n"
        )
        self.environment = {**workspace.environment, "KNOWN_LOG": str(self.log), "KNOWN_SECONDS": "0.5"}

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from aorta.cli import main; main()", "sweep", "run", "--profile", "site"]
        with (self.folder / "said").open("ab") as said:
            return subprocess.Popen(
                [*command, "--recipe", self.recipe, "--run-dir", f"run-{self.round}"],
                cwd=self.folder,
                env=self.environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def cancel(self, process: subprocess.Popen[bytes]) -> bool:
        """Cancels one of the trials' jobs."""
        jobs = self.cluster.jobs(self.folder, "PENDING,RUNNING")
        trials = [number for number, job in jobs.items() if job["comment"].startswith("rule_trial")]
        if trials:
            self.cluster.call("scancel", self.random.choice(trials), check=False)
        return bool(trials)

    def kill(self, process: subprocess.Popen[bytes]) -> bool:
        """Kills the sweep, Snakemake included."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True

    def interrupt(self, process: subprocess.Popen[bytes]) -> bool:
        """What Ctrl-C does; no job outlives it."""
        os.killpg(process.pid, signal.SIGINT)
        process.wait(120)
        wait_until(lambda: not self.cluster.jobs(self.folder), "every job to end")
        return True

    def restart(self, process: subprocess.Popen[bytes]) -> bool:
        """Restarts the controller."""
        self.cluster.restart_controller()
        return True

    def disturb(self) -> None:
        """Kills in a seeded order, each once a trial has begun since the last, over as many runs as that takes."""
        ways: list[Callable[[subprocess.Popen[bytes]], bool]] = [self.cancel, self.kill, self.interrupt, self.restart]
        queue = [way for _ in range(KILLS) for way in self.random.sample(ways, len(ways))][:KILLS]
        process = self.start()
        try:
            while queue:
                before = len(self.runs())
                while len(self.runs()) == before and process.poll() is None:
                    time.sleep(0.05)
                if process.poll() is not None:
                    self.check_end(process)
                    self.round += 1
                elif queue[0](process):
                    self.kills[queue.pop(0).__name__] += 1
                if process.poll() is not None:
                    process = self.start()
            process.wait(240)
            self.check_end(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def check_end(self, process: subprocess.Popen[bytes]) -> None:
        """A run that came to its end is whole and right, and nothing of it is left."""
        assert process.returncode == 0, (self.folder / "said").read_text("utf-8", "replace")
        run_dir = self.folder / f"run-{self.round}"
        matrix = json.loads((run_dir / "matrix.json").read_text("utf-8"))
        assert matrix["complete"] is True
        assert {cell["name"]: cell["verdict_counts"] for cell in matrix["cells"]} == COUNTS
        assert [run for run in self.runs() if run["raced"] or run["recorded"]] == []
        assert self.cluster.jobs(self.folder) == {}
        left = [*run_dir.rglob(".tmp-*"), *run_dir.rglob("*.attempts"), *run_dir.glob(".aorta/claims/*/*")]
        assert [path for path in left if path.is_file()] == []


def test_ten_kills_lose_and_double_nothing(workspace: Workspace, cluster: Cluster) -> None:
    """The verdicts are those of an undisturbed sweep, no trial ran beside itself or again once it was recorded."""
    chaos = Chaos(workspace, cluster, seed=20261130)
    chaos.disturb()
    assert sum(chaos.kills.values()) == KILLS
    assert set(chaos.kills) == {"cancel", "kill", "interrupt", "restart"}
