"""Mode ``fsdp``: each layer's weights are gathered before it is computed and its gradient is reduce-scattered after.

The next layer's weights are gathered while a layer computes, into the other one of two buffers.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: N elements of a shard, W ranks,
L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from aorta.race.base import (
    STREAM_ALL_GATHER,
    Collective,
    CommunicationPattern,
    RaceContext,
    all_gather_single,
    check_optimizer,
    pretend_gradient,
    reduce_scatter_single,
)
from aorta.race.optimizers import CheckedOptimizer
from aorta.race.patterns import PHASES, SHARED_PHASES, MovedPattern, ScatterPattern


class GatherPattern:
    """Contents of the weights: what a rank sends and what all receive.

    Args:
        context: The trial's context, but for its reference results.
    """

    def __init__(self, context: RaceContext) -> None:
        c = context
        self._shared = c.settings.shared_layer_weights
        self.phases = SHARED_PHASES if self._shared else PHASES
        self._rank = c.rank
        shard = c.sizes.fsdp_shard_size
        self._moved = MovedPattern(shard, c.dtype, c.device, stream=STREAM_ALL_GATHER, sources=c.world_size)

    def shard(self, tick: int, layer: int) -> torch.Tensor:
        """Returns this rank's shard of a layer; to be read only."""
        layer = 0 if self._shared else layer
        return self._moved.message(phase=tick % self.phases, layer=layer, source=self._rank)

    def all(self, tick: int, layer: int) -> torch.Tensor:
        """Returns what the gathered layer must be, one row for each rank; to be read only."""
        return self._moved.from_all(phase=tick % self.phases, layer=0 if self._shared else layer)


class FsdpPattern(CommunicationPattern):
    """Gathers and reduce-scatters layer by layer; see the module.

    Args:
        context: The trial's context.
        gather: Contents of the weights.
    """

    def __init__(self, context: RaceContext, gather: GatherPattern) -> None:
        c = self._context = context
        self._gather = gather
        layers, shard = c.settings.layers, c.sizes.fsdp_shard_size
        self._scatter = ScatterPattern(shard, layers, c.device, rank=c.rank, world_size=c.world_size)
        self._shards_N = [c.empty(shard) for _ in range(2)]
        self._weights_WN = [c.empty(c.world_size, shard) for _ in range(2)]
        self._grads_WN = [c.empty(c.world_size, shard, dtype=torch.float32) for _ in range(2)]
        self._reduced_LN = c.empty(layers, shard, dtype=torch.float32)
        optimizer = c.settings.optimizer
        self._optimizer = CheckedOptimizer(c.settings, layers * shard, c.device) if optimizer != "none" else None

    def iterate(self, tick: int) -> None:
        """Queues the forward pass, the backward pass and the update, and compares what arrived."""
        c = self._context
        layers = range(c.settings.layers)
        phase = tick % self._gather.phases
        c.compute.begin()

        def forward(layer: int, weights_WN: torch.Tensor) -> None:
            output = c.compute.forward(layer, weights_WN.view(-1))
            if c.golden is not None:
                c.golden.check_output(c.verifier, layer, output, phase=phase)
                c.golden.check_weights(c.verifier, weights_WN, phase=phase)

        self._gathered(tick, layers, "all_gather", forward)
        reductions: list[Collective] = []

        def backward(layer: int, weights_WN: torch.Tensor) -> None:
            grad = c.compute.backward(layer, weights_WN.view(-1)).grad
            if c.golden is not None:
                c.golden.check_grad(c.verifier, layer, grad, phase=phase)
            reductions.append(self._reduce(tick, layer, grad, reductions))

        if c.settings.runs_backward:
            self._gathered(tick, layers[::-1], "backward_all_gather", backward)
        else:
            # Nothing reads the weights, but the stand-in computes with whatever lies in a buffer.
            for layer in layers[::-1]:
                backward(layer, self._weights_WN[layer % 2])
        for reduction in reductions[-2:]:
            reduction.wait()
        self._finish(tick)

    def _gathered(self, tick: int, layers: Sequence[int], name: str, use: Callable[[int, torch.Tensor], None]) -> None:
        """Gathers layer after layer, one ahead of the one in use, and compares each after its use."""
        c = self._context
        coming = self._start_gather(tick, layers[0], 0)
        for turn, layer in enumerate(layers):
            gather, slot = coming, turn % 2
            gather.wait()
            if turn + 1 < len(layers):
                coming = self._start_gather(tick, layers[turn + 1], 1 - slot)
            weights_WN = self._weights_WN[slot]
            use(layer, weights_WN)
            c.verifier.check([f"layer{layer}.{name}"], weights_WN, self._gather.all(tick, layer))

    def _start_gather(self, tick: int, layer: int, slot: int) -> Collective:
        # What used these two buffers last is queued on the compute lane, so that the gather comes after it.
        c, shard_N, weights_WN = self._context, self._shards_N[slot], self._weights_WN[slot]
        shard_N.copy_(self._gather.shard(tick, layer))
        c.lanes.follow("comm", "compute")
        return Collective(
            c, lambda asynchronous: all_gather_single(weights_WN.view(-1), shard_N, async_op=asynchronous)
        )

    def _reduce(self, tick: int, layer: int, grad: torch.Tensor | None, earlier: list[Collective]) -> Collective:
        c = self._context
        if len(earlier) >= 2:
            earlier[-2].wait()  # it still reads the buffer that is filled now
        grads_WN, reduced_N = self._grads_WN[layer % 2], self._reduced_LN[layer]
        pretend_gradient(grads_WN, grad)
        self._scatter.contribute(grads_WN, tick, layer)
        c.lanes.follow("comm", "compute")
        return Collective(
            c, lambda asynchronous: reduce_scatter_single(reduced_N, grads_WN.view(-1), async_op=asynchronous)
        )

    def _finish(self, tick: int) -> None:
        c, layers = self._context, range(self._context.settings.layers)
        names = [f"layer{layer}.reduce_scatter" for layer in layers]
        right_LN = self._scatter.parts(tick)
        c.verifier.check(names, self._reduced_LN, right_LN)
        if self._optimizer is not None:
            names = [f"layer{layer}.optimizer_param" for layer in layers]
            check_optimizer(c, self._optimizer, names, self._reduced_LN, right_LN)
