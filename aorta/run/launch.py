"""The launcher identity of a trial's processes. One rank so far: a trial of a distributed workload is a world of one.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def world_size(launch: dict[str, Any]) -> int:
    """Returns how many ranks a cell's ``launch`` block asks for."""
    return int(launch["nnodes"]) * int(launch["nproc_per_node"])


def single_rank_env() -> dict[str, str]:
    """Returns the launcher variables of a world of one rank on this host, with a port that is free now.

    Raises:
        OSError: No port is free.
    """
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    values = ("0", "1", "0", "1", "127.0.0.1", str(port))
    return dict(zip(LAUNCH_VARIABLES, values, strict=True))


def too_few_ranks(workload: str, needed: int, world: int) -> str:
    """Says that a distributed workload was given too few ranks, and the two ways to give it more."""
    return (
        f"workload '{workload}' needs at least {needed} ranks and this trial has {world}; either start every rank "
        f"yourself, torchrun --standalone --nproc_per_node={needed} $(which aorta) sweep run ..., "
        f"or set nproc_per_node to {needed} or more"
    )
