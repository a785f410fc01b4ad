"""Shares of one run's trials, each run by a process of its own over the same run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aorta.dag.planning import plan_recipe
from aorta.dag.settings import read_settings
from aorta.plan.rundir import choose_run, materialise
from tests.e2e.chaos import wait_until
from tests.e2e.conftest import REPOSITORY, Workspace

pytestmark = pytest.mark.e2e


@pytest.fixture
def planned(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A run directory ``run`` that is planned and in which nothing has run: three cells of four trials."""
    monkeypatch.setattr(sys, "path", [*sys.path, workspace.environment["PYTHONPATH"]])
    workspace.environment["KNOWN_LOG"] = str(workspace.folder / "log")
    gate = {"gate": str(workspace.folder / "gate")}
    cells: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "b", "workload_config": {"end": "fail"}},
        {"name": "c", "workload_config": gate},
    ]
    recipe = workspace.folder / workspace.recipe(cells, workload="known", trials=4, steps=1)
    now = datetime.now(UTC)
    run_dir = workspace.folder / "run"
    plan = plan_recipe(read_settings({"recipe": str(recipe)}), now=now)
    materialise(choose_run(plan, workspace.folder, run_dir=run_dir, now=now), exclusive=False)
    return workspace


def share(workspace: Workspace, number: int, count: int = 3) -> subprocess.Popen[str]:
    """Starts one share as any batch system would."""
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "2"]
    return subprocess.Popen(
        [*snakemake, "--quiet", "all", "--config", "run_dir=run", f"shard={number}/{count}"],
        cwd=workspace.folder,
        env=workspace.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def log_of(workspace: Workspace) -> list[dict[str, Any]]:
    path = workspace.folder / "log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_three_shares_run_every_trial_once(planned: Workspace) -> None:
    """Beside each other, in the planned order, with one snapshot; the sweep that follows only makes the matrix."""
    (planned.folder / "gate").touch()
    plan = (planned.folder / "run" / "plan.json").stat().st_mtime_ns
    shares = [share(planned, number) for number in (1, 2, 3)]
    said = [process.communicate(timeout=200)[0] for process in shares]
    assert [process.returncode for process in shares] == [0, 0, 0], said
    assert Counter((run["cell"], run["trial"]) for run in log_of(planned)) == dict.fromkeys(
        ((cell, trial) for cell in "abc" for trial in range(4)), 1
    )
    records = [json.loads(path.read_text()) for path in planned.folder.glob("run/cells/*/*/trial_*.json")]
    ran = {record["order"]: record["started_at"] for record in records}
    assert sorted(ran) == list(range(1, 13))
    assert all(ran[place] < ran[place + 3] for place in range(1, 10))
    assert all(f"share {number}/3: all its 4 trials are recorded" in text for number, text in enumerate(said, 1))
    run_dir = planned.folder / "run"
    assert (run_dir / "plan.json").stat().st_mtime_ns == plan and not (run_dir / "matrix.json").exists()
    taken = (run_dir / "host_env.json").stat().st_mtime_ns
    assert planned.aorta("sweep", "run", "--recipe", "recipe.yaml", "--run-dir", "run").code == 0
    assert json.loads((run_dir / "matrix.json").read_text())["complete"] is True
    assert len(log_of(planned)) == 12 and (run_dir / "host_env.json").stat().st_mtime_ns == taken


def test_a_share_that_was_killed_is_started_again(planned: Workspace) -> None:
    """Its finished trials stay; a second process of the same share is refused while the first one lives."""
    first = share(planned, 1, 1)
    wait_until(lambda: any(run["cell"] == "c" for run in log_of(planned)), "a trial that waits")
    second = share(planned, 1, 1)
    said = second.communicate(timeout=200)[0]
    assert second.returncode == 2 and "share 1/1 of run is in use by another sweep" in said
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    before = Counter(run["cell"] for run in log_of(planned))
    (planned.folder / "gate").touch()
    third = share(planned, 1, 1)
    said = third.communicate(timeout=200)[0]
    assert third.returncode == 0, said
    assert len(list(planned.folder.glob("run/cells/*/*/trial_*.json"))) == 12
    assert sum(before.values()) < 12 and len(log_of(planned)) <= 13
    assert not any(run["raced"] or run["recorded"] for run in log_of(planned))


def test_a_share_of_nothing_is_refused(workspace: Workspace) -> None:
    """It needs a planned run directory and writes nothing without."""
    (workspace.folder / "empty").mkdir()
    before = workspace.files()
    ended = workspace.snakemake("--cores", "1", "--quiet", "all", "--config", "run_dir=empty", "shard=1/2")
    assert ended.code == 2 and "plan.json: no such file" in ended.stderr and "Traceback" not in ended.stderr
    assert {path for path in workspace.files() - before if not path.startswith(".snakemake")} == set()


def test_a_share_of_trials_on_several_nodes_is_refused(planned: Workspace) -> None:
    """One share is one node; the way out is named."""
    path = Path(planned.folder, "run", "plan.json")
    plan = json.loads(path.read_text("utf-8"))
    plan["cells"][1]["launch"] = {"nnodes": 2, "nproc_per_node": 1}
    path.write_text(json.dumps(plan))
    ended = planned.snakemake("--cores", "1", "--quiet", "all", "--config", "run_dir=run", "shard=1/2")
    assert ended.code == 2 and "those of b are spread over several" in ended.stderr, ended.stderr
    assert list(planned.folder.glob("run/cells/*/*/*")) == []


def test_a_run_can_be_planned_without_running_anything(workspace: Workspace) -> None:
    """The directory is printed, alone, and taken again by the same command; a share of it can be started."""
    recipe = workspace.recipe([{"name": "a"}], trials=2)
    first, second = (workspace.aorta("sweep", "plan", "--recipe", recipe) for _ in range(2))
    assert (first.code, second.code) == (0, 0), first.stderr
    run_dir = workspace.only_run()
    assert first.stdout == second.stdout == f"{run_dir.relative_to(workspace.folder)}\n"
    assert workspace.trials() == []
    words = ("--cores", "1", "--quiet", "all", "--config", f"run_dir={first.stdout.strip()}", "shard=2/2")
    assert workspace.snakemake(*words).code == 0
    assert [record["trial"] for record in workspace.trials()] == [1]
