"""What jobs ask a cluster for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.resources import Resource

from aorta.dag.requests import RESOURCES, requests, snapshot_request, snapshots_request, trial_request
from aorta.plan.model import PlannedCell

GIVEN = {
    "gpus": "mi300:8",
    "nodes": 2,
    "partition": "gpu",
    "runtime": 90,
    "mem": 64000,
    "constraint": "ib",
    "account": "sdc",
    "extra": "--exclusive",
}
ASKED = {
    "slurm_partition": "gpu",
    "slurm_account": "sdc",
    "runtime": 90,
    "mem": "64000MB",
    "constraint": "ib",
    "slurm_extra": "--exclusive",
    "gres": "gpu:mi300:8",
    "tasks_per_gpu": -1,
}


def cell(nnodes: int = 1, each: int = 1, **resources: Any) -> PlannedCell:
    return PlannedCell(
        name="c",
        trials=1,
        fingerprint="f",
        environment="local",
        isolated=False,
        launch={"nnodes": nnodes, "nproc_per_node": each},
        resources=resources,
    )


def test_every_resource_of_a_recipe_is_asked_for() -> None:
    """A trial without ranks, and a snapshot, run on one node and start no launcher."""
    assert trial_request(cell(**GIVEN)) == snapshot_request(cell(**GIVEN)) == ASKED


@pytest.mark.parametrize(
    ("nodes", "each", "tasks"),
    [
        (2, 8, {"nodes": 2, "tasks_per_node": 8}),
        (2, 1, {"nodes": 2, "tasks": 2}),
        (1, 8, {"nodes": 1, "tasks_per_node": 8}),
    ],
)
def test_ranks_are_tasks(nodes: int, each: int, tasks: dict[str, int]) -> None:
    """As many on each node, and by exactly one of the two ways that the plugin knows."""
    assert trial_request(cell(nodes, each, **GIVEN)) == {**ASKED, "mpi": "srun", **tasks}
    assert snapshot_request(cell(nodes, each, **GIVEN)) == ASKED


def test_no_gpus_are_none_whatever_the_profile_gives() -> None:
    """An empty text, since a resource without a value would leave the default."""
    assert snapshot_request(cell(gpus=0))["gres"] == ""


def test_what_a_job_does_not_ask_for_comes_from_the_profile() -> None:
    """Plain defaults, and such as Snakemake works out for each job."""
    defaults = {
        "slurm_partition": Resource("slurm_partition", "main"),
        "mem_mb": Resource("mem_mb", lambda wildcards, input, attempt: 1000 * attempt + input.size_mb),
    }
    made = requests(lambda wildcards: {"runtime": wildcards.minutes}, lambda: defaults)
    assert set(made) == set(RESOURCES)
    found = {
        name: value(SimpleNamespace(minutes=7), input=SimpleNamespace(size_mb=3), attempt=2)
        for name, value in made.items()
    }
    expected = {"slurm_partition": "main", "mem": 2003, "runtime": 7}
    assert {name: value for name, value in found.items() if value is not None} == expected


def test_a_snapshot_gets_memory_for_any_of_its_cells() -> None:
    """The largest, or the profile's where a cell asks for none; all else is the first cell's."""
    small, large, none = cell(partition="a", mem=150), cell(partition="b", mem=2000), cell(partition="c")
    assert snapshots_request([small, large]) == {**snapshot_request(small), "mem": "2000MB"}
    assert snapshots_request([small, none]) == snapshot_request(cell(partition="a"))
