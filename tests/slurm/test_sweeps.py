"""Whole sweeps on the loopback SLURM: one job a trial, ranks over nodes, and a sweep inside an allocation."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.conftest import REPOSITORY, Workspace
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.e2e]

PROFILE = ("--workflow-profile", str(REPOSITORY / "profiles" / "slurm"))
QUICK = ("--slurm-init-seconds-before-status-checks", "1")
SMALL = {"runtime": 5, "mem": "2G"}
TRAINING = {
    "device": "cpu",
    "dtype": "float32",
    "seq_len": 8,
    "model": {"kind": "mlp", "hidden_size": 8, "num_layers": 1, "vocab_size": 32},
}
RACE = {
    "mode": "fsdp",
    "warmup_iterations": 0,
    "verify_iterations": 2,
    "simulate_compute": False,
    "fsdp_shard_size": 1000,
    "num_layers": 1,
}


@pytest.fixture
def site(workspace: Workspace) -> str:
    """A site's profile on top of ours, which looks at short jobs often; its name."""
    folder = workspace.folder / "site"
    folder.mkdir()
    folder.joinpath("config.yaml").write_text("executor: slurm\nslurm-init-seconds-before-status-checks: 1\n")
    return "site"


def test_a_training_matrix_is_complete_and_right(workspace: Workspace, cluster: Cluster) -> None:
    """Three cells of four trials, by plain Snakemake: a job each with what its cell asks for, verdicts as planned."""
    broken = {**TRAINING, "inject": {"kind": "nan_grad", "rank": 0, "step": 1}}
    recipe = workspace.recipe(
        [
            {"name": "baseline-local"},
            {"name": "on-n2", "resources": {"constraint": "f2", "gpus": "fake:1", "partition": "urgent", "mem": 1500}},
            {"name": "broken", "workload_config": broken, "resources": {"runtime": 3, "extra": "--nice=7"}},
        ],
        workload="training",
        trials=4,
        workload_config=TRAINING,
        resources=SMALL,
    )
    # At most a few side by side: this host has fewer cores than its virtual nodes say.
    ended = workspace.snakemake(*PROFILE, *QUICK, "--jobs", "3", "--config", f"recipe={recipe}")
    assert ended.code == 0, ended.stderr
    counts = {name: cell["verdict_counts"] for name, cell in workspace.cells().items()}
    passing, failing = ({"pass": 4, "fail": 0, "error": 0}, {"pass": 0, "fail": 4, "error": 0})
    assert counts == {"baseline-local": passing, "on-n2": passing, "broken": failing}
    assert workspace.matrix()["complete"] is True
    jobs = cluster.jobs(workspace.folder, "all")
    wanted = {f"rule_trial_wildcards_{cell}_{trial}" for cell in counts for trial in range(4)}
    wanted |= {"rule_host_environment", "rule_environment_wildcards_local"}
    assert sorted(job["comment"] for job in jobs.values()) == sorted(wanted)
    assert {job["node"] for job in jobs.values() if "on-n2" in job["comment"]} == {"n2"}
    asked = {
        job["comment"].removeprefix("rule_trial_wildcards_")[:-2]: cluster.call(
            "squeue", "-h", "--states=all", "-j", number, "-o", "%P %l %m %b"
        )
        for number, job in jobs.items()
        if job["comment"].startswith("rule_trial")
    }
    assert asked == {
        "baseline-local": "main 5:00 2000M N/A",
        "on-n2": "urgent 5:00 1500M gres:gpu:fake:1",
        "broken": "main 3:00 2000M N/A",
    }
    records = workspace.trials()
    assert sorted(record["order"] for record in records) == list(range(1, 13))
    # A later start finds nothing to do, and so submits nothing.
    again = workspace.snakemake(*PROFILE, "--config", f"recipe={recipe}")
    assert again.code == 0 and "has a finished run" in again.stderr
    assert len(cluster.jobs(workspace.folder, "all")) == len(jobs)


def test_ranks_are_spread_over_nodes(workspace: Workspace, site: str) -> None:
    """A race matrix of two nodes with two ranks each; each rank has its place, its node and its output."""
    recipe = workspace.recipe(
        [{"name": "baseline-a"}, {"name": "b", "mitigations": ["tf32_off"]}],
        workload="race",
        workload_config=RACE,
        resources=SMALL,
    )
    size = ("--nodes", "2", "--nproc-per-node", "2", "--rank-logs")
    ended = workspace.aorta("sweep", "run", "--profile", site, *size, "--recipe", recipe)
    assert ended.code == 0, ended.stderr
    records = workspace.trials()
    assert [record["verdict"] for record in records] == ["pass", "pass"]
    for record in records:
        metrics = record["result"]["metrics"]
        assert (metrics["world_size"], metrics["local_world_size"], metrics["node_count"]) == (4, 2, 2)
        hosts = [rank["host"] for rank in record["ranks"]]
        assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
        folder = workspace.only_run() / "cells" / record["cell"] / "race"
        assert all((folder / name).is_file() for rank in record["ranks"] for name in rank["logs"].values())


def test_a_sweep_inside_an_allocation_uses_its_nodes(workspace: Workspace, cluster: Cluster) -> None:
    """As a batch script of the user's own would start it; more nodes than it has are refused before anything runs."""
    recipe = workspace.recipe([{"name": "a"}], workload="ranked", trials=2)
    run = f"aorta sweep run --nproc-per-node 2 --recipe {recipe} --nodes"
    script = workspace.folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{run} 3 2> refused\necho $? >> codes\n{run} 2\necho $? >> codes\n")
    options = ("--nodes=2", "--ntasks-per-node=2", "--time=5", "--wait", "-o", "said", "-D", str(workspace.folder))
    environment = {name: workspace.environment[name] for name in ("PYTHONPATH", "AORTA_LOCK_DIR")}
    exports = ",".join(f"{name}={value}" for name, value in environment.items())
    cluster.call("sbatch", *options, f"--export=ALL,{exports}", str(script), check=False, timeout=240)
    said = (workspace.folder / "said").read_text()
    assert (workspace.folder / "codes").read_text().split() == ["2", "0"], said
    assert "planned for 3 nodes (a) and the allocation has 2" in (workspace.folder / "refused").read_text()
    records = workspace.trials()
    assert [record["verdict"] for record in records] == ["pass", "pass"]
    assert [len({rank["host"] for rank in record["ranks"]}) for record in records] == [2, 2]


def test_nodes_without_a_cluster_are_refused(workspace: Workspace) -> None:
    """Before anything is written, with the ways out."""
    recipe = workspace.recipe([{"name": "a", "resources": {"nodes": 2}}], workload="ranked")
    before = workspace.files()
    ended = workspace.aorta("sweep", "run", "--nproc-per-node", "2", "--recipe", recipe)
    assert ended.code == 2 and "this is no SLURM allocation; use a cluster profile" in ended.stderr
    assert workspace.files() == before
    plan = workspace.aorta(
        "sweep", "run", "--profile", "slurm", "--nproc-per-node", "2", "--recipe", recipe, "--dry-run"
    )
    assert plan.code == 0 and "cannot run" not in plan.stdout


def test_a_node_on_which_trials_fail_is_named(workspace: Workspace, site: str) -> None:
    """By the matrix's notes and by the sweep's last words; the other node is not, and both stay in use."""
    recipe = workspace.recipe(
        [{"name": "baseline-local", "workload_config": {"fail_on": "n2"}}],
        workload="known",
        trials=12,
        # A trial takes a whole node, so that they take turns.
        resources={**SMALL, "gpus": 2, "extra": "--exclude=n1"},
    )
    ended = workspace.aorta("sweep", "run", "--profile", site, "--recipe", recipe)
    assert ended.code == 0, ended.stderr
    nodes = {node["name"]: node for node in workspace.matrix()["nodes"]}
    assert {name: node["suspect"] for name, node in nodes.items()} == {"n2": True, "n3": False}
    assert (nodes["n2"]["passed"], nodes["n3"]["failed"]) == (0, 0)
    assert "Suspect node: n2" in (workspace.only_run() / "matrix.md").read_text("utf-8")
    assert "Suspect node: n2" in ended.stdout
    # Each trial has had its line, with its node.
    lines = [line for line in ended.stderr.splitlines() if "] baseline-local trial " in line]
    told = Counter(node for line in lines for node in ("n2", "n3") if f" s on {node}" in line)
    assert told == {"n2": nodes["n2"]["failed"], "n3": nodes["n3"]["passed"]}
