"""What the jobs of a sweep ask a cluster for, as Snakemake's resources. Light: every job process reads this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aorta.plan.model import PlannedCell
from aorta.run.launch import world_size

RESOURCES = (
    *("slurm_partition", "slurm_account", "runtime", "mem", "constraint", "slurm_extra"),
    *("gres", "tasks_per_gpu", "nodes", "mpi", "tasks", "tasks_per_node"),
)
"""Snakemake's names of everything that a cell can decide."""

_NAMES = {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "runtime": "runtime",
    "mem": "mem",
    "constraint": "constraint",
    "extra": "slurm_extra",
}

Request = Callable[..., Any]


def snapshot_request(cell: PlannedCell) -> dict[str, int | str]:
    """Returns what the snapshot of a cell's environment asks for: one node of those that the cell's trials get."""
    given = cell.resources
    asked: dict[str, int | str] = {_NAMES[name]: given[name] for name in _NAMES if name in given}
    if "mem" in asked:
        asked["mem"] = f"{asked['mem']}MB"
    if "gpus" in given:
        # On each node. The resource `gpu` would be for the whole job.
        asked["gres"] = f"gpu:{given['gpus']}" if given["gpus"] else ""
    # Otherwise the plugin multiplies the tasks by the GPUs.
    asked["tasks_per_gpu"] = -1
    return asked


def snapshots_request(cells: Sequence[PlannedCell]) -> dict[str, int | str]:
    """Returns what a snapshot for several cells asks for: what the first one's trials do, and memory for any of them.

    A cell without ``mem`` gets the profile's, and so does the snapshot then.
    """
    asked = snapshot_request(cells[0])
    asked.pop("mem", None)
    memory = [cell.resources.get("mem") for cell in cells]
    if None not in memory:
        asked["mem"] = f"{max(map(int, memory))}MB"  # type: ignore[arg-type]
    return asked


def trial_request(cell: PlannedCell) -> dict[str, int | str]:
    """Returns what a trial of a cell asks for."""
    asked = snapshot_request(cell)
    nodes, each = cell.launch["nnodes"], cell.launch["nproc_per_node"]
    if world_size(cell.launch) > 1:
        # Who names a launcher gets a job without a step of its own around the trial, which would hold all that the
        # ranks' step needs.
        asked |= {"mpi": "srun", "nodes": nodes}
        # The plugin takes one of the two; tasks alone could put three ranks on one node and one on the other.
        asked |= {"tasks_per_node": each} if each > 1 else {"tasks": nodes}
    return asked


def requests(asked_by: Callable[[Any], Mapping[str, int | str]], defaults: Callable[[], Any]) -> dict[str, Request]:
    """Returns a rule's resources, each a function of the job; one without a value is no resource of that job.

    Args:
        asked_by: Wildcards to what that job asks for, in Snakemake's names.
        defaults: Gives Snakemake's parsed ``default-resources``, which hold where a job asks for nothing: a rule's own
            resource hides them even when it has no value.
    """

    def request(name: str) -> Request:
        def value(
            wildcards: Any, input: Any, attempt: int, threads: int = 1, rulename: str = "", async_run: Any = None
        ) -> Any:
            asked = asked_by(wildcards)
            if name in asked:
                return asked[name]
            given = defaults()
            default = None if given is None else given.get("mem_mb" if name == "mem" else name)
            if default is None:
                return None
            if default.is_evaluable():
                default = default.evaluate(
                    wildcards, input=input, attempt=attempt, threads=threads, rulename=rulename, async_run=async_run
                )
            # A bare number is megabytes and minutes to Snakemake as well.
            return default.value

        return value

    return {name: request(name) for name in RESOURCES}
