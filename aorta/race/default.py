"""Mode ``default``: host-to-device copy, all-to-all on a stream of its own, all-reduce.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: N elements of one message, W ranks.
"""

from __future__ import annotations

import torch.distributed as dist

from aorta.race.base import (
    STREAM_ALL_TO_ALL,
    Collective,
    CommunicationPattern,
    HostCopies,
    LocalLayers,
    RaceContext,
    check_optimizer,
)
from aorta.race.lanes import Point
from aorta.race.optimizers import CheckedOptimizer
from aorta.race.patterns import PHASES, MovedPattern, SummedPattern


class DefaultPattern(CommunicationPattern):
    """Three independent transfers beside the computation; see the module."""

    def __init__(self, context: RaceContext) -> None:
        c = self._context = context
        s = c.settings
        message = c.sizes.alltoall_tensor_size // c.world_size
        self._moved = MovedPattern(
            message, c.dtype, c.device, stream=STREAM_ALL_TO_ALL, sources=c.world_size, targets=c.world_size
        )
        sets = 1 if s.reuse_buffers else 2
        self._send_WN = [c.empty(c.world_size, message) for _ in range(sets)]
        self._receive_WN = [c.empty(c.world_size, message) for _ in range(sets)]
        reduced = c.sizes.allreduce_tensor_size
        self._summed = SummedPattern(reduced, c.dtype, c.device, rank=c.rank, world_size=c.world_size)
        self._reduced_N = [c.empty(reduced) for _ in range(sets)]
        self._free: list[Point] = [None] * sets
        self._copies = HostCopies(c)
        self._layers = LocalLayers(c)
        self._optimizer = CheckedOptimizer(s, reduced, c.device) if s.optimizer != "none" else None

    def iterate(self, tick: int) -> None:
        """Queues the three transfers, computes while they are under way, and compares what arrived."""
        c = self._context
        slot = tick % len(self._free)
        send_WN, receive_WN, reduced_N = self._send_WN[slot], self._receive_WN[slot], self._reduced_N[slot]
        self._copies.start(tick)
        c.lanes.wait("comm", self._free[slot])
        with c.lanes.on("comm"):
            send_WN.copy_(self._moved.to_all(phase=tick % PHASES, source=c.rank))
            self._summed.contribute(reduced_N, tick)
        exchange = Collective(
            c, lambda asynchronous: dist.all_to_all_single(receive_WN, send_WN, async_op=asynchronous)
        )
        reduction = Collective(c, lambda asynchronous: dist.all_reduce(reduced_N, async_op=asynchronous))
        self._layers.forward()
        grad = None
        for layer in reversed(range(c.settings.layers)):
            grad = self._layers.backward(layer)
        del grad
        self._copies.wait(tick)
        self._copies.check(tick)
        exchange.wait()
        c.verifier.check(["all_to_all"], receive_WN, self._moved.from_all(phase=tick % PHASES, target=c.rank))
        reduction.wait()
        right_N = self._summed.sum(tick)
        c.verifier.check(["all_reduce"], reduced_N, right_N)
        if self._optimizer is not None:
            check_optimizer(c, self._optimizer, ["optimizer_param"], reduced_N, right_N)
        self._free[slot] = c.lanes.reached("compute")
