"""Trials that take more memory than their job has asked for, on a SLURM whose slurmd looks and ends them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import AORTA, Workspace
from tests.slurm.conftest import Cluster
from tests.slurm.test_ends import TWO_NODES, Sweep

pytestmark = [pytest.mark.slurm, pytest.mark.e2e]

GREEDY = {"take_mb": 3000}
ENDED_BY_SLURM = "SLURM ended it: OUT_OF_MEMORY: it took more memory than it had asked for"
HINT = "raise resources.mem in the recipe, or give the trial less to do"

SHARE_HINT = "raise --mem, or resources.mem in the recipe, or give its trials less to do"


def test_a_trial_that_takes_too_much_memory_is_told_so(workspace: Workspace, cluster: Cluster) -> None:
    """SLURM calls such a job FAILED, as it would one that ended with an error; each try counts."""
    cells = [{"name": "baseline-lean"}, {"name": "greedy", "retry_errors": 1, "workload_config": GREEDY}]
    sweep = Sweep(workspace, cluster, cells)
    sweep.open("baseline-lean")
    with sweep.started() as process:
        sweep.finish(process)
    assert sweep.record("baseline-lean")["verdict"] == "pass"
    record = sweep.record("greedy")
    tries = [*record["attempts"], record]
    for entry in tries:
        job, nodes = entry["slurm"]["job"], entry["slurm"]["nodes"][0]
        assert cluster.jobs(sweep.folder, "all")[job]["state"] == "FAILED"
        assert entry["error"]["message"] == f"job {job} on {nodes} ended before the trial did: {ENDED_BY_SLURM}"
        assert entry["error"]["hint"] == HINT
    assert (record["verdict"], record["attempt"]) == ("error", 2)
    told = [
        f"aorta: trial 0 of cell greedy: its job {entry['slurm']['job']} on {entry['slurm']['nodes'][0]} ended early: "
        f"{ENDED_BY_SLURM.removeprefix('SLURM ended it: ')}; {HINT}; its log: "
        for entry in tries
    ]
    assert [line for line in sorted(told) if not any(line in said for said in sweep.failures())] == []


def test_a_rank_that_takes_too_much_memory_is_named(workspace: Workspace, cluster: Cluster) -> None:
    """SLURM ends the ranks' step and the job goes on, so that the supervisor records what it was told."""
    cells = [{"name": "a", "workload_config": GREEDY}]
    sweep = Sweep(workspace, cluster, cells, workload="ranked", words=TWO_NODES)
    with sweep.started() as process:
        sweep.finish(process)
    record = sweep.record("a")
    assert (record["verdict"], record["exit_status"], record["attempt"]) == ("error", "infrastructure_failed", 1)
    error = record["error"]
    assert error["message"].startswith("rank ") and error["message"].endswith(f"has gone: {ENDED_BY_SLURM}")
    assert error["hint"] == HINT
    assert any("exceeded memory limit" in line for line in error["stderr_tail"])
    # It worked until SLURM looked.
    assert record["wall_clock_sec"] > 0


def test_a_share_that_takes_too_much_memory_costs_one_trial(workspace: Workspace) -> None:
    """The trial that was at work when the share's job was ended has lost a try; the next start runs the others."""
    cells = [{"name": "a"}, {"name": "greedy", "workload_config": GREEDY}]
    recipe = workspace.recipe(cells, workload="known", trials=1, steps=1, confound={"baseline_cell": "a"})
    words = ("sweep", "submit", "--shards", "1", "--time", "5", "--mem", "1G", "--run-dir", "run", "--recipe", recipe)
    with workspace.started(*AORTA, *words) as process:
        said = process.communicate(timeout=200)[0]
    assert process.returncode == 1
    # Which trial is the first is the planned order's to say.
    (told,) = [line for line in said.splitlines() if "share 1 (job " in line]
    assert "has ended and lacks " in told and ": OUT_OF_MEMORY: it took more memory than it had asked for; " in told
    assert SHARE_HINT in told
    with workspace.started(*AORTA, *words) as process:
        said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    records = {path.parts[-3]: path for path in (workspace.folder / "run").glob("cells/*/known/trial_*.json")}
    assert json.loads(records["a"].read_text("utf-8"))["verdict"] == "pass"
    greedy = json.loads(records["greedy"].read_text("utf-8"))
    assert (greedy["verdict"], greedy["attempt"]) == ("error", 1)
    assert greedy["error"]["message"].endswith(ENDED_BY_SLURM) and greedy["error"]["hint"] == SHARE_HINT
