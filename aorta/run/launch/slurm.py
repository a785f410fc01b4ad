"""Ranks that ``srun`` starts inside a job's allocation: one task, and so one agent, a rank. Standard library only.

The supervisor that leads is no task itself: it is the job's own script, or a sweep that somebody started in an
allocation, perhaps from another host.
"""

from __future__ import annotations

import os
import re
import socket

from aorta.run.launch.interface import Launcher, LaunchError, Place, check_world, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class SlurmLauncher(Launcher):
    """One SLURM task a rank, from SLURM_PROCID, SLURM_LOCALID, SLURM_NTASKS and the step's tasks per node."""

    name = "slurm"
    leads_rank_0 = False

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
        if int(launch["nnodes"]) == 1:
            return "127.0.0.1"
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
        hosts = expand_hosts(nodes)
        if not hosts:
            raise LaunchError("SLURM_JOB_NODELIST is not set; it is set by SLURM")
        return hosts[0]

    def rendezvous(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> str:
        """Returns ``address``, or what SLURM itself calls that node where its name does not resolve."""
        host = self.address(launch, env)
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            from aorta.run.slurmjob import node_address

            return node_address(host) or host
        return host

    def lead_host(self, env: Mapping[str, str]) -> str:
        """Returns the address of the host where ``srun`` was started, over which SLURM reaches it too."""
        address = env.get("SLURM_LAUNCH_NODE_IPADDR")
        if not address:
            raise LaunchError("SLURM_LAUNCH_NODE_IPADDR is not set; it is set by srun")
        return address

    def host_name(self, env: Mapping[str, str]) -> str:
        """Returns the node's name in SLURM: several virtual nodes may share a host."""
        return env.get("SLURMD_NODENAME") or os.uname().nodename

    def agent_command(self, launch: Mapping[str, Any], agent: Sequence[str]) -> list[str]:
        """Returns the ``srun`` command: block distribution, so that rank 0 is on the first host."""
        nodes, each = int(launch["nnodes"]), int(launch["nproc_per_node"])
        return [
            "srun",
            f"--nodes={nodes}",
            f"--ntasks={nodes * each}",
            f"--ntasks-per-node={each}",
            "--distribution=block",
            # The ranks share what the job has on their node, as under torchrun; local rank n takes the n-th device.
            "--cpu-bind=none",
            # Also where this process is in a step itself, as in some sites' interactive shells.
            "--overlap",
            "--mpi=none",
            "--input=none",
            # The site's Waittime would end ranks that take a little longer than the first.
            "--wait=0",
            # One agent that ends badly takes the others along, also where the network between them is gone.
            "--kill-on-bad-exit=1",
            "--export=ALL",
            "--",
            *agent,
        ]


FOREIGN_STEP = (
    *("SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_GPU", "SLURM_MEM_BIND"),
    *("SLURM_NPROCS", "SLURM_NTASKS", "SLURM_TRES_PER_TASK", "SLURM_STEP", "SRUN_"),
)
"""Beginnings of variables from which ``srun`` would take over what the job, or an outer step, was asked for."""


def step_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment from which ``srun`` takes nothing but the allocation."""
    return {name: value for name, value in env.items() if not name.startswith(FOREIGN_STEP)}


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
