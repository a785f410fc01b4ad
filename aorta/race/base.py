"""What the communication patterns share: the context of a trial, collectives, the parts that two or more modes have.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffix: N elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from aorta.race.compute import Compute
from aorta.race.config import EffectiveSizes, ReproducerConfig
from aorta.race.golden import Golden
from aorta.race.lanes import Lanes, Point
from aorta.race.optimizers import CheckedOptimizer
from aorta.race.patterns import MovedPattern
from aorta.race.verify import Verifier

# Numbers of the kinds of buffer in MovedPattern.
STREAM_H2D, STREAM_ALL_TO_ALL, STREAM_ALL_GATHER = range(3)
_HOST_TENSORS = 3

# torch 2.13 renamed these two; the old names are what torch 2.6 has.
all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, kw_only=True)
class RaceContext:
    """What a communication pattern works with.

    Attributes:
        settings: Configuration.
        sizes: Sizes that fit the world.
        rank: This rank.
        world_size: Number of ranks.
        device: Where the buffers are.
        dtype: Number format of the buffers.
        lanes: The streams.
        verifier: Takes what is to be compared.
        compute: The work between the communications.
        golden: What layers must compute if all have the same weights, or None.
    """

    settings: ReproducerConfig
    sizes: EffectiveSizes
    rank: int
    world_size: int
    device: torch.device
    dtype: torch.dtype
    lanes: Lanes
    verifier: Verifier
    compute: Compute
    golden: Golden | None

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns a buffer on the device with contents that no check accepts by accident: all bits set."""
        dtype = dtype or self.dtype
        return torch.full(shape, -1, dtype={2: torch.int16, 4: torch.int32}[dtype.itemsize], device=self.device).view(
            dtype
        )


class Collective:
    """A collective in flight.

    Args:
        context: The trial's context.
        start: Starts it; takes ``async_op`` and returns torch's work object or None.
    """

    def __init__(self, context: RaceContext, start: Callable[[bool], Any]) -> None:
        # Asynchronous collectives run on a stream of the library's own; on request everything stays on one stream.
        asynchronous = not context.settings.same_stream_mode
        with context.lanes.on("comm"):
            self._work = start(asynchronous)

    def wait(self) -> None:
        """Lets the compute lane wait for the result; on the CPU the process waits."""
        if self._work is not None:
            self._work.wait()
            self._work = None


class CommunicationPattern:
    """The communication of one mode; subclasses build their buffers in ``__init__``."""

    def iterate(self, tick: int) -> None:
        """Queues one iteration and its checks.

        Args:
            tick: Number of the iteration, counted from the warm-up's first.
        """
        raise NotImplementedError


class HostCopies:
    """The host-to-device copy of an iteration.

    The host tensors are written once, before the first copy, and used in turn: nothing on the host can overtake a copy.
    With prefetch, iteration t + 1 is copied into a second device buffer during iteration t.

    Args:
        context: The trial's context.
    """

    def __init__(self, context: RaceContext) -> None:
        c = self._context = context
        s = c.settings
        size = s.h2d_tensor_size
        pattern = MovedPattern(size, c.dtype, torch.device("cpu"), stream=STREAM_H2D)
        pinned = s.pin_memory and c.device.type == "cuda"
        self._host_N = []
        for turn in range(_HOST_TENSORS):
            host_N = torch.empty(size, dtype=c.dtype, pin_memory=pinned)
            host_N.copy_(pattern.message(phase=turn, source=c.rank))
            self._host_N.append(host_N)
        # What a copy must have delivered. On the CPU the host tensor is at hand; elsewhere fetching it would be another
        # copy of the kind under test, so it is on the device from setup() on.
        self._expected_N = self._host_N
        if c.device.type != "cpu":
            on_device = MovedPattern(size, c.dtype, c.device, stream=STREAM_H2D)
            self._expected_N = [on_device.message(phase=turn, source=c.rank) for turn in range(_HOST_TENSORS)]
        sets = 2 if s.h2d_prefetch or not s.reuse_buffers else 1
        self._device_N = [c.empty(size) for _ in range(sets)]
        self._free: list[Point] = [None] * sets
        self._copied: dict[int, Point] = {}

    def start(self, tick: int) -> None:
        """Queues the copy of an iteration unless it was prefetched, and the prefetch of the next."""
        if tick not in self._copied:
            self._copy(tick)
        if self._context.settings.h2d_prefetch:
            self._copy(tick + 1)

    def wait(self, tick: int) -> None:
        """Lets the compute lane wait for the iteration's copy."""
        self._context.lanes.wait("compute", self._copied.pop(tick))

    def check(self, tick: int) -> None:
        """Compares the copy on the device and gives its buffer free."""
        slot = tick % len(self._device_N)
        self._context.verifier.check(["h2d"], self._device_N[slot], self._expected_N[tick % _HOST_TENSORS])
        self._free[slot] = self._context.lanes.reached("compute")

    def _copy(self, tick: int) -> None:
        lanes, slot = self._context.lanes, tick % len(self._device_N)
        lanes.wait("h2d", self._free[slot])
        with lanes.on("h2d"):
            self._device_N[slot].copy_(self._host_N[tick % _HOST_TENSORS], non_blocking=True)
        self._copied[tick] = lanes.reached("h2d")


class LocalLayers:
    """The layers of modes whose weights never leave the rank.

    Args:
        context: The trial's context.
    """

    def __init__(self, context: RaceContext) -> None:
        self._context = context
        s = context.settings
        uses_weights = s.simulate_compute and s.compute_type == "transformer"
        self._weights = [context.empty(0)] * s.layers
        if uses_weights:
            pattern = local_weights(context)
            for layer in range(1 if s.shared_layer_weights else s.layers):
                self._weights[layer] = pattern.message(layer=layer).clone()
            if s.shared_layer_weights:
                self._weights = self._weights[:1] * s.layers

    def forward(self) -> None:
        """Computes all layers."""
        c = self._context
        c.compute.begin()
        for layer, weights in enumerate(self._weights):
            output = c.compute.forward(layer, weights)
            if c.golden is not None:
                c.golden.check_output(c.verifier, layer, output, phase=0)

    def backward(self, layer: int) -> torch.Tensor | None:
        """Computes a layer's backward pass and returns its gradient, if it has one."""
        c = self._context
        grad = c.compute.backward(layer, self._weights[layer]).grad
        if c.golden is not None:
            c.golden.check_grad(c.verifier, layer, grad, phase=0)
        return grad


def local_weights(context: RaceContext) -> MovedPattern:
    """Returns the contents of the layers' weights where they are local, told apart by the layer alone."""
    return MovedPattern(context.settings.layer_parameters, context.dtype, context.device, stream=STREAM_ALL_GATHER)


def pretend_gradient(buffer: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Writes a real gradient into a communication buffer, as training would, before the known pattern replaces it."""
    if grad is not None:
        flat = buffer.view(-1)
        count = min(flat.numel(), grad.numel())
        flat[:count].copy_(grad[:count])


def check_optimizer(
    context: RaceContext, optimizer: CheckedOptimizer, names: list[str], delivered: torch.Tensor, right: torch.Tensor
) -> None:
    """Updates from the delivered and the right gradients and compares the parameters; also in the warm-up."""
    optimizer.step(delivered, right)
    context.verifier.check(names, optimizer.parameter, optimizer.reference)
    optimizer.heal()
