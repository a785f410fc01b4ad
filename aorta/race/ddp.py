"""Mode ``ddp``: host-to-device copy, forward and backward pass, all-reduce of the gradient, bulk or in buckets.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: N elements, R buckets.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from aorta.race.base import (
    Collective,
    CommunicationPattern,
    HostCopies,
    LocalLayers,
    RaceContext,
    check_optimizer,
    pretend_gradient,
)
from aorta.race.optimizers import CheckedOptimizer
from aorta.race.patterns import SummedPattern


class DdpPattern(CommunicationPattern):
    """Gradients are reduced a bucket a layer as soon as the layer's backward pass is done, or all after the last."""

    def __init__(self, context: RaceContext) -> None:
        c = self._context = context
        s = c.settings
        size, buckets = c.sizes.allreduce_tensor_size, c.sizes.buckets
        # One pattern over all buckets: each holds other numbers, so that buckets that change places are seen.
        self._summed = SummedPattern(size, c.dtype, c.device, rank=c.rank, world_size=c.world_size)
        sets = 1 if s.reuse_buffers else 2
        self._grads_N = [c.empty(size) for _ in range(sets)]
        self._names = [f"bucket{i}.all_reduce" for i in range(buckets)] if s.ddp_bucketed else ["all_reduce"]
        self._copies = HostCopies(c)
        self._layers = LocalLayers(c)
        self._optimizer = CheckedOptimizer(s, size, c.device) if s.optimizer != "none" else None

    def iterate(self, tick: int) -> None:
        """Queues the copy, the passes and the reductions, and compares what arrived."""
        c = self._context
        # Filled, reduced and compared in the order of the compute lane, so that one set is safe, too.
        grads_N = self._grads_N[tick % len(self._grads_N)]
        buckets = grads_N.view(len(self._names), -1)
        self._copies.start(tick)
        self._copies.wait(tick)
        self._layers.forward()
        reductions = []
        for layer in reversed(range(c.settings.layers)):
            grad = self._layers.backward(layer)
            if c.settings.ddp_bucketed:
                pretend_gradient(buckets[layer], grad)
                self._summed.contribute(buckets[layer], tick, part=(layer, len(buckets)))
                reductions.append(self._reduce(buckets[layer]))
            else:
                pretend_gradient(grads_N, grad)
        if not c.settings.ddp_bucketed:
            self._summed.contribute(grads_N, tick)
            reductions.append(self._reduce(grads_N))
        # Compared while the reductions are under way.
        self._copies.check(tick)
        for reduction in reductions:
            reduction.wait()
        right_N = self._summed.sum(tick)
        c.verifier.check(self._names, grads_N, right_N)
        if self._optimizer is not None:
            check_optimizer(c, self._optimizer, ["optimizer_param"], grads_N, right_N)

    def _reduce(self, grads: torch.Tensor) -> Collective:
        self._context.lanes.follow("comm", "compute")
        return Collective(self._context, lambda asynchronous: dist.all_reduce(grads, async_op=asynchronous))
