"""Names of the verified buffers: what corruption records call them and what planted faults aim at. Light to import."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aorta.race.config import ReproducerConfig


@dataclass(frozen=True, kw_only=True)
class BufferKind:
    """One kind of verified buffer.

    Attributes:
        name: Its name; ``{i}`` stands for the number of the layer or bucket, from 0.
        modes: The modes that have it.
        condition: Settings under which they do, or empty for always.
        holds: What it holds and what it is compared with.
        wrong: What it means when they differ, for the reader of the matrix.
    """

    name: str
    modes: tuple[str, ...]
    condition: str = ""
    holds: str
    wrong: str


_SENT = "what arrived is not what was sent"
_SUM = "the sum is not that of what was sent"

BUFFER_KINDS: tuple[BufferKind, ...] = (
    BufferKind(
        name="h2d",
        modes=("default", "ddp"),
        holds="the copy on the device; the pattern on the host",
        wrong="the copy on the device is not what the host has",
    ),
    BufferKind(name="all_to_all", modes=("default",), holds="what all ranks sent here; their patterns", wrong=_SENT),
    BufferKind(
        name="all_reduce",
        modes=("default", "ddp"),
        condition="not ddp_bucketed",
        holds="the sum; computed",
        wrong=_SUM,
    ),
    BufferKind(
        name="bucket{i}.all_reduce",
        modes=("ddp",),
        condition="ddp_bucketed",
        holds="a bucket's sum; computed",
        wrong=_SUM,
    ),
    BufferKind(
        name="layer{i}.all_gather",
        modes=("fsdp",),
        holds="a layer's weights from all ranks; their patterns",
        wrong=_SENT,
    ),
    BufferKind(
        name="layer{i}.backward_all_gather",
        modes=("fsdp",),
        condition="real_backward",
        holds="the same, gathered again for the backward pass",
        wrong=_SENT,
    ),
    BufferKind(
        name="layer{i}.reduce_scatter",
        modes=("fsdp",),
        holds="this rank's part of the sum; computed, float32",
        wrong=_SUM,
    ),
    BufferKind(
        name="layer{i}.output",
        modes=("default", "ddp", "fsdp"),
        condition="shared_layer_weights, simulate_compute",
        holds="a layer's output; the same layer computed before any communication",
        wrong="the layer did not compute what it computed before any communication",
    ),
    BufferKind(
        name="layer{i}.grad",
        modes=("default", "ddp", "fsdp"),
        condition="shared_layer_weights, real_backward",
        holds="the gradient of a layer's weights; the same computed before any communication",
        wrong="the backward pass did not compute what it computed before any communication",
    ),
    BufferKind(
        name="optimizer_param",
        modes=("default", "ddp"),
        condition="optimizer",
        holds="parameters after the update; the same update of a second copy",
        wrong="the update is not that of the right gradients",
    ),
    BufferKind(
        name="layer{i}.optimizer_param",
        modes=("fsdp",),
        condition="optimizer",
        holds="a layer's parameters after the update; the same update of a second copy",
        wrong="the update is not that of the right gradients",
    ),
)
"""Every kind of verified buffer."""


def what_is_wrong(buffer: str) -> str:
    """Returns the ``wrong`` of a buffer's kind, by the buffer's name."""
    kind = re.sub(r"\d+\.", "{i}.", buffer)
    return next((known.wrong for known in BUFFER_KINDS if known.name == kind), "its bits are wrong")


def buffer_names(settings: ReproducerConfig) -> tuple[str, ...]:
    """Returns the names of all buffers that a trial with these settings verifies."""
    bucketed = settings.mode == "ddp" and settings.ddp_bucketed
    shared = settings.shared_layer_weights and settings.simulate_compute
    present = {
        "all_reduce": not bucketed,
        "bucket{i}.all_reduce": bucketed,
        "layer{i}.backward_all_gather": settings.runs_backward,
        "layer{i}.output": shared,
        "layer{i}.grad": shared and settings.real_backward,
        "optimizer_param": settings.optimizer != "none",
        "layer{i}.optimizer_param": settings.optimizer != "none",
    }
    names: list[str] = []
    for kind in BUFFER_KINDS:
        if settings.mode in kind.modes and present.get(kind.name, True):
            count = settings.layers if "{i}" in kind.name else 1
            names += [kind.name.format(i=i) for i in range(count)]
    return tuple(names)
