"""Who starts the ranks of a sweep's trials, and whether that suits the workload; looked at before anything runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aorta.dag.settings import Settings
from aorta.plan.model import Plan
from aorta.run.launch import launched_world_size, too_few_ranks, world_size
from aorta.run.request import outer_env
from aorta.run.start import HUB_VARIABLE
from aorta.text import plural

REFUSED_HERE = "as it was started, this sweep cannot run"


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks that each trial of a distributed workload gets.

    Attributes:
        nnodes: Number of hosts.
        nproc_per_node: Ranks on each.
        rank: This process's own number where a launcher started one process a rank; None where aorta starts the ranks.
        problems: What is wrong with what the launcher and the settings say, a line each.
    """

    nnodes: int
    nproc_per_node: int
    rank: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.nnodes * self.nproc_per_node


def find_world(settings: Settings, environ: Mapping[str, str]) -> World:
    """Returns the world of a sweep's trials.

    Args:
        settings: The sweep's settings.
        environ: The environment that the sweep was started in.
    """
    env = outer_env(environ)
    size = launched_world_size(env.get("WORLD_SIZE"))
    if size == 1:
        return World(nnodes=settings.nodes, nproc_per_node=settings.nproc_per_node)
    problems = []
    rank, local = env.get("RANK", ""), launched_world_size(env.get("LOCAL_WORLD_SIZE"))
    if not rank.isdigit() or int(rank) >= size:
        problems.append(
            f"launcher: WORLD_SIZE is {size} and RANK is {rank!r}; start every rank with torchrun, or unset WORLD_SIZE"
        )
    if size % local:
        problems.append(
            f"launcher: WORLD_SIZE {size} is not a multiple of LOCAL_WORLD_SIZE {local}; start as many on each host"
        )
    problems += [
        f"{name}: {number} contradicts the launcher that has started {plural(size, 'rank')} already (WORLD_SIZE); give "
        "one of the two"
        for name, number in (("nodes", settings.nodes), ("nproc_per_node", settings.nproc_per_node))
        if number > 1
    ]
    return World(
        nnodes=max(1, size // local),
        nproc_per_node=min(local, size),
        rank=int(rank) if rank.isdigit() else 0,
        problems=tuple(problems),
    )


def launch_problems(plan: Plan, world: World, *, workflow: bool = False, cluster: bool = False) -> list[str]:
    """Says why a plan cannot be run in this world, a line each with the ways out; empty where it can.

    Args:
        plan: The compiled plan.
        world: What :func:`find_world` found.
        workflow: Whether this process is Snakemake itself, which cannot be one of several ranks.
        cluster: Whether each trial becomes a job of a cluster, which has as many nodes as it asks for.
    """
    launch = (plan.cells[0].request or {})["launch"]
    problems = list(world.problems)
    if launch["mode"] != "distributed":
        if world.rank is not None and plan.command is not None:
            problems.append(
                f"command: a launcher has started {world.size} processes (WORLD_SIZE), each of which would run it; "
                "start aorta sweep run without torchrun, and let the command start its own ranks"
            )
        elif world.rank is not None:
            problems.append(
                f"workload: '{plan.workload}' runs in a single process and a launcher has started {world.size} of them "
                "(WORLD_SIZE), each of which would run the whole matrix; start aorta sweep run without torchrun"
            )
    elif workflow and world.rank is not None and HUB_VARIABLE not in os.environ:
        problems.append(
            f"launcher: {world.size} copies of snakemake were started (WORLD_SIZE), each of which would run the whole "
            "matrix; have torchrun start aorta sweep run, or use snakemake alone with --config nproc_per_node="
            f"{world.size}"
        )
    else:
        fewest = min(world_size(cell.launch) for cell in plan.cells)
        if launch["min_world_size"] > fewest:
            problems.append(too_few_ranks(plan.workload, launch["min_world_size"], fewest))
    if world.rank is None and not cluster:
        problems += _too_few_nodes(plan)
    elif (
        launch["mode"] == "distributed"
        and world.rank is not None
        and any(cell.launch["nnodes"] != world.nnodes for cell in plan.cells)
    ):
        problems.append(
            f"resources.nodes: the launcher has started ranks on {plural(world.nnodes, 'host')}, and the recipe asks "
            "for another number in some cells; drop it, or start the sweep without torchrun"
        )
    return problems


def path_problems(working_directory: Path, run_dir: Path) -> list[str]:
    """Says which paths a batch system's jobs would stumble over, a line each.

    Args:
        working_directory: Where Snakemake keeps its records and its executor the jobs' logs.
        run_dir: The run directory, or the folder in which it is to be made.
    """
    folder = working_directory.absolute()
    problems = []
    pattern = re.search(r"%[0-9]*[A-Za-z%]", str(folder))
    if pattern is not None:
        problems.append(
            f"working directory: {folder} has {pattern[0]!r} in it, which SLURM takes for a pattern in the names of "
            "the jobs' logs; start the sweep in a folder without percent signs"
        )
    for name, path in {"working directory": folder, "run_dir": run_dir}.items():
        if {"'", '"'} <= set(str(path)):
            problems.append(
                f"{name}: {path} has both kinds of quotes, and Snakemake cannot hand such a path to a batch system's "
                "job; use a folder that has at most one kind"
            )
    return problems


def _too_few_nodes(plan: Plan) -> list[str]:
    """Says that trials are planned for more nodes than there are here."""
    most = max(cell.launch["nnodes"] for cell in plan.cells)
    here = allocated_nodes(os.environ)
    if most <= max(1, here):
        return []
    names = [cell.name for cell in plan.cells if cell.launch["nnodes"] > max(1, here)]
    told = f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
    found = f"the allocation has {here}" if here else "this is no SLURM allocation"
    return [
        f"nodes: trials are planned for {most} nodes ({told}) and {found}; use a cluster profile (aorta sweep run "
        "--profile slurm ..., snakemake --workflow-profile profiles/slurm ...), start the sweep inside an allocation "
        "of that size, or start every rank with torchrun"
    ]


def allocated_nodes(environ: Mapping[str, str]) -> int:
    """Returns how many nodes the SLURM allocation has that this process was started in; 0 outside of one."""
    count = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or ""
    return int(count) if environ.get("SLURM_JOB_ID") and count.isdigit() else 0
