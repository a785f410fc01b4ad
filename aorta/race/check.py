"""What a trial's number of ranks means for a configuration of ``race``, before it runs. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aorta.race.buffers import buffer_names
from aorta.race.config import ReproducerConfig, effective_sizes
from aorta.text import plural
from aorta.workloads.base import ConfigProblem, TrialShape
from aorta.workloads.config import parse_config
from aorta.workloads.dtypes import BITS
from aorta.workloads.inject_check import Buffers, BufferShape, fault_problems


def race_trial_problems(config: Mapping[str, Any], shape: TrialShape) -> list[ConfigProblem]:
    """Returns what does not fit the trial: a number of ranks, and faults that can never strike.

    Args:
        config: The merged ``workload_config``; nothing is said of one with unusable values.
        shape: What is known of the trial.
    """
    settings = parse_config(ReproducerConfig, config).value
    if settings is None:
        return []
    problems = []
    wanted, found = settings.expected_local_world_size, shape.local_world_size
    if wanted is not None and found is not None and wanted != found:
        key = "expected_local_world_size"
        message = f"{key} is {wanted} and the trials have {plural(found, 'rank')} a host"
        problems.append(ConfigProblem(key=key, message=message, code="topology_mismatch"))
    return problems + fault_problems(
        settings.inject,
        config.get("inject"),
        steps=settings.verify_iterations,
        shape=shape,
        buffers=Buffers(known=planned_buffers(settings, shape.world_size)),
    )


def planned_buffers(settings: ReproducerConfig, world_size: int | None) -> dict[str, BufferShape]:
    """Returns the buffers of a trial, with their sizes where the configuration and the number of ranks give them.

    Args:
        settings: The configuration.
        world_size: Number of ranks, or None where it is not known.
    """
    bits = BITS[settings.dtype]
    elements: dict[str, int] = {"h2d": settings.h2d_tensor_size}
    if world_size is not None:
        sizes = effective_sizes(settings, world_size)
        elements |= {
            "all_to_all": sizes.alltoall_tensor_size,
            "all_reduce": sizes.allreduce_tensor_size,
            "bucket.all_reduce": sizes.allreduce_tensor_size // sizes.buckets,
            "layer.all_gather": sizes.fsdp_shard_size * world_size,
            "layer.backward_all_gather": sizes.fsdp_shard_size * world_size,
            "layer.reduce_scatter": sizes.fsdp_shard_size,
        }
    shapes = {}
    for name in buffer_names(settings):
        kind = re.sub(r"\d+\.", ".", name)
        width = 32 if kind.endswith("reduce_scatter") else bits if kind in elements else None
        shapes[name] = BufferShape(bits=width, elements=elements.get(kind))
    return shapes
