"""What buffers are filled with: contents that every rank can compute, different in every iteration.

Two kinds. Data that is only moved is a bit pattern, told apart by numbers for each sender, layer and iteration. Data
that is summed is whole numbers so small that every partial sum is exact in the number format, so that the order of
additions, which a library is free to choose, cannot change a bit.

Either kind is a window into a long tensor that is made once, another window for every message. So filling a buffer is a
copy, and what a buffer must hold is already in memory: comparing reads the buffer and the window and writes nothing.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: N elements of one message, R rows
(messages), L layers, W ranks, K places of a window's first repetition, Q repetitions.
"""

from __future__ import annotations

import torch

PHASES = 64
"""Iterations until the contents of moved data repeat. Neighbouring iterations differ in every element."""
SHARED_PHASES = 2
"""The same where the contents must be few, as a reference is computed for each."""

INT_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Sign, lowest exponent bit and mantissa are free; the fixed part of the exponent keeps magnitudes from 2^-7 to 2^-5,
# so that a layer computes with finite numbers of a sensible size.
_MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}
_EXPONENT_BIAS = {torch.bfloat16: 127, torch.float16: 15, torch.float32: 127}
_LARGEST_EXACT = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11, torch.float32: 1 << 24}
# Odd, so that a step in one coordinate always gives another window; far apart, so that small steps in two
# do not cancel.
_PHASE_STEP, _LAYER_STEP, _SOURCE_STEP, _TARGET_STEP, _STREAM_STEP = 37, 101, 5, 211, 149
_MOST_WINDOWS = 1 << 12
# Odd, too, and with bits in all places: neighbouring windows differ in high and low bits.
_SPREADING = 0x9E3779B1
_MAX_CONTRIBUTORS = 32
_SEED = 20_011


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as signed integers of the element's size; comparing those is safe for NaN and -0."""
    return tensor.view(INT_OF_SIZE[tensor.element_size()])


class _Windows:
    """Whole numbers such that two windows with different numbers (modulo ``count``) differ in every element.

    Position ``q * stride + k`` holds ``base[k] + step * (q % count)``, modulo ``values``, and window number w begins at
    ``w * stride``. The base is random, and so long that nothing repeats within a message: data that has moved by any
    distance shows.

    Args:
        size: Elements of a window.
        count: Number of different windows; ``step`` times fewer than that is never a multiple of ``values``.
        values: The numbers are from 0 to below this.
        step: How far neighbouring windows are apart.
        reach: Windows beyond the last one, which repeat the first ones, for rows that run past the end.
        seed: Of the base.
    """

    def __init__(self, size: int, *, count: int, values: int, step: int, reach: int, seed: int) -> None:
        self._size, self._count = size, count
        # Odd, as what displaces data tends to do so by powers of two.
        self._stride = max(31, size // count + 1) | 1
        self._repetitions = count + reach + -(-size // self._stride)
        self._values, self._step, self._seed = values, step, seed

    def numbers(self) -> torch.Tensor:
        """Returns the numbers that all windows are taken from, int32 on the CPU."""
        generator = torch.Generator().manual_seed(self._seed)
        base_K = torch.randint(self._values, (self._stride,), generator=generator, dtype=torch.int32)
        moved_Q = torch.arange(self._repetitions) % self._count * self._step % self._values
        return (base_K + moved_Q.to(torch.int32).view(-1, 1)).remainder_(self._values).view(-1)

    def one(self, content: torch.Tensor, number: int) -> torch.Tensor:
        """Returns a window into a tensor that was made from ``numbers()``; a view, N elements."""
        return content.narrow(0, number % self._count * self._stride, self._size)

    def rows(self, content: torch.Tensor, number: int, rows: int, apart: int) -> torch.Tensor:
        """Returns R windows whose numbers are ``apart``, the first one's number given; a view whose rows overlap."""
        first = number % self._count * self._stride
        return content.as_strided((rows, self._size), (apart * self._stride, 1), first)


class MovedPattern:
    """Contents of the messages of one kind of buffer.

    Args:
        size: Elements of a message.
        dtype: Number format.
        device: Where the contents are needed.
        stream: Number of the kind of buffer.
        sources: Number of senders whose messages are asked for together.
        targets: Number of receivers whose messages are asked for together.
    """

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        stream: int,
        sources: int = 1,
        targets: int = 1,
    ) -> None:
        self._stream = stream
        self._sources, self._targets = sources, targets
        values = 1 << (_MANTISSA[dtype] + 2)
        reach = max((sources - 1) * _SOURCE_STEP, (targets - 1) * _TARGET_STEP)
        count = min(values, _MOST_WINDOWS)
        self._windows = _Windows(size, count=count, values=values, step=_SPREADING, reach=reach, seed=_SEED)
        self._content = _spread(self._windows.numbers(), dtype).to(device).view(dtype)

    def message(self, *, phase: int = 0, layer: int = 0, source: int = 0, target: int = 0) -> torch.Tensor:
        """Returns the content of a message, N elements, to be read only.

        Args:
            phase: Iteration modulo the number of phases.
            layer: Number of the layer.
            source: The sending rank.
            target: The receiving rank.
        """
        return self._windows.one(self._content, self._number(phase, layer, source, target))

    def from_all(self, *, phase: int = 0, layer: int = 0, target: int = 0) -> torch.Tensor:
        """Returns what all senders send to a rank, one row for each; to be read only."""
        number = self._number(phase, layer, 0, target)
        return self._windows.rows(self._content, number, self._sources, _SOURCE_STEP)

    def to_all(self, *, phase: int = 0, layer: int = 0, source: int = 0) -> torch.Tensor:
        """Returns what a rank sends to all receivers, one row for each; to be read only."""
        number = self._number(phase, layer, source, 0)
        return self._windows.rows(self._content, number, self._targets, _TARGET_STEP)

    def _number(self, phase: int, layer: int, source: int, target: int) -> int:
        place = _PHASE_STEP * phase + _LAYER_STEP * layer + _STREAM_STEP * self._stream
        return place + _SOURCE_STEP * source + _TARGET_STEP * target


class SummedPattern:
    """Contributions to an all-reduce, in whole numbers, and their sum.

    In a large world not every rank contributes in every iteration, as more than a few numbers do not add up exactly
    in a narrow format; the others send zeros, and the contributors rotate.

    Args:
        size: Elements.
        dtype: Number format of the sum.
        device: Where the patterns are needed.
        rank: This rank.
        world_size: Number of ranks.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, *, rank: int, world_size: int) -> None:
        self._rank = rank
        self._turns = -(-world_size // _MAX_CONTRIBUTORS)
        # A contribution is window + rank term + 1, at most `largest`, and never 0.
        largest = min(_LARGEST_EXACT[dtype] // min(world_size, _MAX_CONTRIBUTORS), 1 << 12)
        # With rotating contributors a rank's term could cancel the step between windows, so there it is left out.
        rank_terms = max(2, largest // 4) if self._turns == 1 else 1
        values = largest - rank_terms + 1
        self._windows = _Windows(size, count=values, values=values, step=1, reach=0, seed=_SEED + 1)
        self._contributors = world_size // self._turns
        every_term = sum(r % rank_terms for r in range(world_size)) if self._turns == 1 else 0
        numbers = self._windows.numbers()
        self._mine = (numbers + (1 + rank % rank_terms)).to(device, dtype)
        self._sum = ((numbers + 1) * self._contributors + every_term).to(device, dtype)

    def contribute(self, out_N: torch.Tensor, tick: int, part: tuple[int, int] = (0, 1)) -> None:
        """Fills this rank's contribution to an iteration.

        Args:
            out_N: The buffer, or the part of it.
            tick: Number of the iteration, counted from the warm-up's first.
            part: Number of the part and how many equal parts there are.
        """
        # The same number of ranks in every iteration: otherwise a sum could stay the same while its terms change.
        among = self._rank < self._contributors * self._turns and self._rank % self._turns == tick % self._turns
        if among:
            number, parts = part
            out_N.copy_(self._windows.one(self._mine, tick).view(parts, -1)[number])
        else:
            out_N.zero_()

    def sum(self, tick: int) -> torch.Tensor:
        """Returns what the sum over all ranks must be, N elements; to be read only."""
        return self._windows.one(self._sum, tick)


class ScatterPattern:
    """Contributions to the reduce-scatter of each layer, in float32 whatever the dtype, and this rank's part.

    Args:
        shard: Elements of one rank's part.
        layers: Number of layers.
        device: Where the patterns are needed.
        rank: This rank.
        world_size: Number of ranks.

    Raises:
        RuntimeError: So many ranks that the sums are not exact in float32.
    """

    _VALUES, _RANK_TERMS = 1 << 11, 1 << 8
    _LAYER_STEP, _TARGET_STEP = 5, 7

    def __init__(self, shard: int, layers: int, device: torch.device, *, rank: int, world_size: int) -> None:
        largest = self._VALUES + self._RANK_TERMS
        if largest * world_size > _LARGEST_EXACT[torch.float32]:
            limit = _LARGEST_EXACT[torch.float32] // largest
            raise RuntimeError(f"mode fsdp verifies at most {limit} ranks, and this trial has {world_size}")
        self._rank, self._layers, self._world_size = rank, layers, world_size
        reach = max((layers - 1) * self._LAYER_STEP, (world_size - 1) * self._TARGET_STEP)
        self._windows = _Windows(shard, count=self._VALUES, values=self._VALUES, step=1, reach=reach, seed=_SEED + 2)
        everyone = sum(1 + r % self._RANK_TERMS for r in range(world_size))
        numbers = self._windows.numbers()
        self._mine = (numbers + (1 + rank % self._RANK_TERMS)).to(device, torch.float32)
        self._sum = (numbers * world_size + everyone).to(device, torch.float32)

    def contribute(self, out_WN: torch.Tensor, tick: int, layer: int) -> None:
        """Fills this rank's contribution to a layer, one row for each receiving rank."""
        number = tick + self._LAYER_STEP * layer
        out_WN.copy_(self._windows.rows(self._mine, number, self._world_size, self._TARGET_STEP))

    def parts(self, tick: int) -> torch.Tensor:
        """Returns what this rank's part of the sum must be, one row for each layer; to be read only."""
        number = tick + self._TARGET_STEP * self._rank
        return self._windows.rows(self._sum, number, self._layers, self._LAYER_STEP)


def _spread(index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Puts the free bits where they belong, the highest into the sign, and adds the fixed part of the exponent.

    Args:
        index: Numbers of ``mantissa + 2`` bits, int32.
        dtype: Number format.

    Returns:
        The patterns as signed integers of the dtype's size.
    """
    low = _MANTISSA[dtype] + 1
    exponent = (_EXPONENT_BIAS[dtype] - 7) // 2 * 2 << _MANTISSA[dtype]
    # Adding -2^(width-1) is setting the top bit of a signed integer of that width.
    sign = -(1 << (8 * dtype.itemsize - 1))
    return ((index & ((1 << low) - 1)) + (index >> low) * sign + exponent).to(INT_OF_SIZE[dtype.itemsize])
