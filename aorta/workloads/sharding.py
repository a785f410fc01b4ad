"""Fully sharded data parallelism (FSDP2) of a token model.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from aorta.workloads.models import TokenModel


def shard_model(model: TokenModel, device: torch.device, world_size: int, dtype: torch.dtype) -> None:
    """Shards parameters, gradients and optimiser state over all ranks, in place; a collective.

    Args:
        model: The model in float32, on the device. Each block and the rest are gathered and freed by themselves.
        device: Where this rank computes.
        world_size: Number of ranks.
        dtype: What the model computes in. Its parameters stay float32.
    """
    mesh = init_device_mesh(device.type, (world_size,))
    # Gradients are reduced in float32: a sum over ranks in bfloat16 would depend on how many ranks there are.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's shard of a distributed tensor, or the tensor itself; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
