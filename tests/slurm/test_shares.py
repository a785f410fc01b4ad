"""Shares of a sweep on the loopback SLURM: one array, followed, ended, found again, and the matrix at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import AORTA, Workspace
from tests.slurm.conftest import Cluster, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.e2e]

WORDS = ("sweep", "submit", "--shards", "3", "--time", "5", "--mem", "1G", "--run-dir", "run", "--recipe")


class Shares:
    """Twelve trials in three cells; those of cell ``held`` wait until the gate is opened."""

    def __init__(self, workspace: Workspace, cluster: Cluster) -> None:
        self.workspace = workspace
        self.cluster = cluster
        self.folder = workspace.folder
        workspace.environment["KNOWN_LOG"] = str(self.folder / "runs.log")
        held = {"gate": str(self.folder / "gate")}
        cells: list[dict[str, Any]] = [
            {"name": "a"},
            {"name": "b", "workload_config": {"end": "third"}},
            {"name": "held", "workload_config": held},
        ]
        self.recipe = workspace.recipe(cells, workload="known", trials=4, steps=1, confound={"baseline_cell": "a"})

    def started(self, *options: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """The command, in a session of its own."""
        return self.workspace.started(*AORTA, *WORDS, self.recipe, *options)

    def finished(self, *options: str) -> tuple[int, str]:
        """Runs the command to its end; returns its exit code and what it said."""
        with self.started(*options) as process:
            said = process.communicate(timeout=200)[0]
            return process.returncode, said

    def open(self) -> None:
        (self.folder / "gate").touch()

    def runs(self) -> list[dict[str, Any]]:
        path = self.folder / "runs.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def waiting(self) -> set[int]:
        """Trials of the held cell whose workload has started."""
        return {run["trial"] for run in self.runs() if run["cell"] == "held"}

    def tasks(self, states: str = "PENDING,RUNNING,COMPLETING") -> dict[str, dict[str, str]]:
        """The run's array tasks by id."""
        found = self.cluster.jobs(self.folder, states)
        return {number: job for number, job in found.items() if "-shares-3-" in job["name"]}

    def matrix(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(Path(self.folder, "run", "matrix.json").read_text("utf-8"))
        return value

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text("utf-8")) for path in self.folder.glob("run/cells/*/*/trial_*.json")]


@pytest.fixture
def shares(workspace: Workspace, cluster: Cluster) -> Shares:
    return Shares(workspace, cluster)


def test_twelve_trials_run_in_three_shares(shares: Shares) -> None:
    """One array of three jobs; every trial once and in its share; the matrix, its pages and the recipe at the end."""
    shares.open()
    code, said = shares.finished()
    assert code == 0, said
    assert shares.matrix()["complete"] is True
    counts = {cell["name"]: cell["verdict_counts"] for cell in shares.matrix()["cells"]}
    assert counts["a"] == counts["held"] == {"pass": 4, "fail": 0, "error": 0}
    assert counts["b"] == {"pass": 1, "fail": 2, "error": 1}
    assert set(Counter((run["cell"], run["trial"]) for run in shares.runs()).values()) == {1}
    jobs: dict[str, set[int]] = {}
    for record in shares.records():
        jobs.setdefault(record["slurm"]["job"], set()).add(record["order"] % 3)
        assert record["slurm"]["name"].startswith("aorta-") and record["slurm"]["nodes"][0] in shares.cluster.nodes
    assert sorted(map(len, jobs.values())) == [1, 1, 1]
    assert len(shares.tasks("all")) == 3
    assert "submitted job" in said and "shares 1, 2, 3: 12 of 12 trials to run" in said
    names = {path.name for path in (shares.folder / "run").iterdir()}
    assert {"matrix.md", "matrix.html", "perf.md", "recipe.resolved.yaml", "host_env.json"} <= names
    assert (shares.folder / "run" / "environments" / "local" / "env.json").is_file()


def test_a_share_that_was_cancelled_is_submitted_again_alone(shares: Shares) -> None:
    """Its finished trials and the other shares' stay; the same command submits one share and completes the matrix."""
    with shares.started() as process:
        wait_until(lambda: len(shares.waiting()) >= 2, "trials that wait in two shares")
        # The planned order puts two trials that wait into share 1, two into share 3, and none into share 2.
        (number,) = [task for task in shares.tasks() if task.endswith("_3")]
        shares.cluster.call("scancel", number)
        wait_until(lambda: number not in shares.tasks(), "the share to end")
        shares.open()
        said = process.communicate(timeout=200)[0]
        assert process.returncode == 1, said
    assert f"share 3 (job {number}) has ended and lacks" in said and "CANCELLED" in said
    assert shares.matrix()["complete"] is False
    lacking = shares.matrix()["trials_expected"] - shares.matrix()["trials_present"]
    code, said = shares.finished()
    assert code == 0, said
    assert f"share 3: {lacking} of 12 trials to run" in said
    assert sorted(task.partition("_")[2] for task in shares.tasks("all")) == ["1", "2", "3", "3"]
    assert shares.matrix()["complete"] is True
    # What was cancelled is no attempt of its trial.
    assert [record["attempts"] for record in shares.records() if record["attempts"]] == []
    assert not any(run["raced"] or run["recorded"] for run in shares.runs())


def test_shares_of_a_killed_command_are_adopted(shares: Shares) -> None:
    """SIGKILL of submit: the shares go on, and the same command follows them and submits nothing."""
    with shares.started() as process:
        wait_until(shares.waiting, "a trial that waits")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = shares.tasks("all")
    assert len(before) == 3
    with shares.started() as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        adopted = next(line for line in lines if "of an earlier start" in line)
        shares.open()
        said = "".join(lines)
        assert process.wait(timeout=200) == 0, said
    # One that has no trial of the held cell may have ended meanwhile.
    assert adopted.startswith("aorta: following share")
    assert "submitted job" not in said and shares.tasks("all").keys() == before.keys()
    assert shares.matrix()["complete"] is True
    assert set(Counter((run["cell"], run["trial"]) for run in shares.runs()).values()) == {1}


def test_ctrl_c_cancels_the_shares(shares: Shares) -> None:
    """No job is left, the matrix of what there is is written, and the same command continues."""
    with shares.started() as process:
        wait_until(shares.waiting, "a trial that waits")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=200)[0]
        assert process.returncode == 1, said
    assert "the shares are cancelled" in said and shares.tasks() == {}
    assert shares.matrix()["complete"] is False
    shares.open()
    code, said = shares.finished()
    assert code == 0, said


def test_what_slurm_would_not_take_is_refused_before_anything_is_written(shares: Shares) -> None:
    """In SLURM's own words, of each option that is wrong, although SLURM stops at the first."""
    before = shares.workspace.files()
    code, said = shares.finished("--partition", "nowhere", "--constraint", "zz", "--mem", "99T", "--time", "5")
    refused = [line for line in said.splitlines() if line.startswith("sbatch: SLURM would not take ")]
    assert [line.split()[5].partition("=")[0] for line in refused] == ["--partition", "--mem", "--constraint"]
    assert code == 2 and "nvalid partition" in said and "Invalid feature" in said and "Traceback" not in said
    assert shares.workspace.files() == before
