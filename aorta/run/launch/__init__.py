"""How the ranks of a trial come to be started: on this host, by torchrun, or by srun.

One file a launcher, all behind ``Launcher``. Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

from aorta.run.launch.interface import (
    FOREIGN_PREFIXES,
    LAUNCH_VARIABLES,
    AgentLost,
    Launcher,
    LaunchError,
    NoAnswer,
    Place,
)
from aorta.text import plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = [
    "FOREIGN_PREFIXES",
    "LAUNCHERS",
    "LAUNCH_VARIABLES",
    "AgentLost",
    "LaunchError",
    "Launcher",
    "NoAnswer",
    "Place",
    "find_launcher",
    "launched_world_size",
    "too_few_ranks",
    "world_size",
]

LAUNCHERS = ("local", "torchrun", "slurm")


def find_launcher(name: str) -> Launcher:
    """Returns a launcher by its name, importing only that one.

    Args:
        name: One of ``LAUNCHERS``.

    Raises:
        LaunchError: There is no launcher of that name.
    """
    if name == "local":
        from aorta.run.launch.local import LocalLauncher

        return LocalLauncher()
    if name == "torchrun":
        from aorta.run.launch.torchrun import TorchrunLauncher

        return TorchrunLauncher()
    if name == "slurm":
        from aorta.run.launch.slurm import SlurmLauncher

        return SlurmLauncher()
    raise LaunchError(f"'{name}' is not a launcher; known are: {', '.join(LAUNCHERS)}")


def world_size(launch: Mapping[str, Any]) -> int:
    """Returns how many ranks a cell's ``launch`` block asks for."""
    return int(launch["nnodes"]) * int(launch["nproc_per_node"])


def launched_world_size(text: str | None) -> int:
    """Reads a ``WORLD_SIZE`` that may come from anywhere; what is no positive number stands for no launcher at all.

    Args:
        text: The variable's value, or None where it is not set.
    """
    return int(text) if text and text.isascii() and text.isdigit() and int(text) > 0 else 1


def too_few_ranks(workload: str, needed: int, world: int) -> str:
    """Says that a distributed workload was given too few ranks, and the two ways to give it more."""
    return (
        f"workload '{workload}' needs at least {plural(needed, 'rank')} and this launch has {world}; either start "
        f"every rank yourself, torchrun --standalone --nproc_per_node={needed} $(which aorta) sweep run ..., "
        f"or let aorta start them, aorta sweep run --nproc-per-node {needed} ... "
        f"(snakemake --config nproc_per_node={needed} ...)"
    )
