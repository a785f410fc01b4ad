"""The trial's process group, from what the launcher says.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """This process among the ranks of its trial.

    Attributes:
        rank: Number among all ranks, from 0.
        world_size: Number of ranks.
        local_rank: Number among the ranks of this host.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> RankInfo:
        """Reads RANK, WORLD_SIZE and LOCAL_RANK as torchrun and aorta's launchers set them.

        Without WORLD_SIZE, or with 1, the process is alone. LOCAL_RANK defaults to RANK, right on one host.

        Raises:
            RuntimeError: A variable is missing, is no number, or RANK is not below WORLD_SIZE.
        """
        world_size = _number(environ, "WORLD_SIZE", 1)
        if world_size == 1:
            return cls(local_rank=_number(environ, "LOCAL_RANK", 0))
        missing = [v for v in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environ.get(v)]
        if missing:
            raise RuntimeError(
                f"WORLD_SIZE is {world_size} but {', '.join(missing)} is not set; start the ranks with a launcher "
                "(torchrun, or aorta's own), or unset WORLD_SIZE to run one process"
            )
        rank = _number(environ, "RANK", 0)
        if not 0 <= rank < world_size:
            raise RuntimeError(f"RANK is {rank}; with WORLD_SIZE {world_size} use 0 to {world_size - 1}")
        return cls(rank=rank, world_size=world_size, local_rank=_number(environ, "LOCAL_RANK", rank))


def join_process_group(info: RankInfo, device: torch.device) -> None:
    """Makes the default process group: NCCL (RCCL) on accelerators, gloo on the CPU.

    A process that is alone meets itself in memory, so that trials side by side cannot clash over a port.

    Raises:
        RuntimeError: This process already has a group, such as one that an earlier trial left behind.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process already has a process group; destroy it first, or use trial_isolation: process"
        )
    backend = "nccl" if device.type == "cuda" else "gloo"
    device_id = device if device.type == "cuda" else None
    if info.world_size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=device_id)
    else:
        dist.init_process_group(backend, rank=info.rank, world_size=info.world_size, device_id=device_id)


def gather_objects(item: Any, world_size: int) -> list[Any]:
    """Returns every rank's item, in rank order, on every rank; a collective."""
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, item)
    return gathered


def leave_process_group() -> None:
    """Destroys the default process group if there is one, and lets go of what still holds it.

    A group's threads end with it. DTensor's caches of shardings, which FSDP2 fills, hold the device mesh and so the
    group until the process ends; its threads, alive when the interpreter is gone, then abort the process now and then.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug

        # Not public; a later version may do without, or need another way.
        clear = getattr(debug, "_clear_sharding_prop_cache", None)
        if clear is not None:
            clear()
        # The model's modules and their hooks are cycles that hold the mesh as well.
        gc.collect()


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0 or (name == "WORLD_SIZE" and value == 0):
        raise RuntimeError(f"{name} is {text!r}; the launcher must set it to a whole number")
    return value
