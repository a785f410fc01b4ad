"""Ranks that ``srun`` starts inside a job's allocation: one task, and so one agent, a rank. Standard library only."""

from __future__ import annotations

import re

from aorta.run.launch.interface import Launcher, LaunchError, Place, check_world, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class SlurmLauncher(Launcher):
    """One SLURM task a rank, from SLURM_PROCID, SLURM_LOCALID, SLURM_NTASKS and the step's tasks per node."""

    name = "slurm"

    def places(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> list[Place]:
        """Returns the task's rank; empty in the batch script itself, where no task has been started yet."""
        if "SLURM_STEP_ID" not in env and "SLURM_STEPID" not in env:
            return []
        rank, world, local, node = (
            whole_number(env, name, "srun")
            for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID")
        )
        check_world(launch, world, "srun")
        tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", "")
        counts = tasks_per_node(tasks)
        if node >= len(counts):
            raise LaunchError(f"SLURM_STEP_TASKS_PER_NODE is '{tasks}' and SLURM_NODEID is {node}: no such node")
        return [Place(rank, world, local, counts[node], node)]

    def address(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> str:
        """Returns the first host of the step's, or of the job's, node list: that of rank 0."""
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
        hosts = expand_hosts(nodes)
        if not hosts:
            raise LaunchError("SLURM_JOB_NODELIST is not set; it is set by SLURM")
        return hosts[0]

    def agent_command(self, launch: Mapping[str, Any], agent: Sequence[str]) -> list[str]:
        """Returns the ``srun`` command: block distribution, so that rank 0 is on the first host."""
        nodes, each = int(launch["nnodes"]), int(launch["nproc_per_node"])
        return [
            "srun",
            f"--nodes={nodes}",
            f"--ntasks={nodes * each}",
            f"--ntasks-per-node={each}",
            "--distribution=block",
            # One agent that ends badly takes the others along, also where the network between them is gone.
            "--kill-on-bad-exit=1",
            "--export=ALL",
            "--",
            *agent,
        ]


def tasks_per_node(text: str) -> list[int]:
    """Reads ``2(x3),1`` as [2, 2, 2, 1].

    Raises:
        LaunchError: The text is not of that form.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise LaunchError(f"SLURM_TASKS_PER_NODE is '{text}', not a list like 2(x3),1")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def expand_hosts(text: str) -> list[str]:
    """Reads a node list such as ``gpu[01-03,07],login`` as its hosts, in order.

    Args:
        text: A SLURM host list; several brackets in one name are allowed.

    Raises:
        LaunchError: A bracket is not closed, or a range in it is no range of numbers.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", text):
        hosts += _expand(part, text)
    return hosts


def _expand(name: str, whole: str) -> list[str]:
    before, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    inside, closed, after = rest.partition("]")
    if not closed:
        raise LaunchError(f"the node list '{whole}' has a bracket that is not closed")
    numbers: list[str] = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise LaunchError(f"the node list '{whole}' has '{piece}' where a number or a range belongs")
        width = len(first)
        numbers += [f"{number:0{width}d}" for number in range(int(first), int(last or first) + 1)]
    return [before + number + tail for number in numbers for tail in _expand(after, whole)]
