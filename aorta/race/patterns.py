"""What buffers are filled with: contents that every rank can compute, different in every iteration.

Two kinds. Data that is only moved is a bit pattern, told apart by a key for each sender, layer and iteration. Data
that is summed is whole numbers so small that every partial sum is exact in the number format, so that the order of
additions, which a library is free to choose, cannot change a bit.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: N elements of one message, R rows
(messages), L layers, W ranks, P phases.
"""

from __future__ import annotations

import torch

PHASES = 64
"""Iterations until contents repeat. Neighbouring iterations differ in every element."""
SHARED_PHASES = 2
"""The same where the contents must be few, as a reference is computed for each."""

INT_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Sign, lowest exponent bit and mantissa are free; the fixed part of the exponent keeps magnitudes from 2^-7 to 2^-5,
# so that a layer computes with finite numbers of a sensible size.
_MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}
_EXPONENT_BIAS = {torch.bfloat16: 127, torch.float16: 15, torch.float32: 127}
_LARGEST_EXACT = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11, torch.float32: 1 << 24}
# Odd, so that a step in one coordinate always changes the key; far apart, so that small steps in two do not cancel.
_PHASE_STEP, _LAYER_STEP, _SOURCE_STEP, _TARGET_STEP, _STREAM_STEP = 37, 101, 5, 211, 149
_MAX_CONTRIBUTORS = 32
_SEED = 20_011


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as signed integers of the element's size; comparing those is safe for NaN and -0."""
    return tensor.view(INT_OF_SIZE[tensor.element_size()])


class MovedPattern:
    """Content of a message: ``base[position] ^ key``.

    Args:
        size: Elements of a message.
        dtype: Number format.
        device: Where the patterns are needed.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        index_N = torch.randint(_free_values(dtype), (size,), generator=torch.Generator().manual_seed(_SEED))
        exponent = (_EXPONENT_BIAS[dtype] - 7) // 2 * 2 << _MANTISSA[dtype]
        self._base_N = (_spread(index_N, dtype) | exponent).to(device)

    def write(self, out_RN: torch.Tensor, key_R1: torch.Tensor) -> None:
        """Fills messages, or writes what they should be; one key a row, or a 0-d key for a single message."""
        torch.bitwise_xor(self._base_N, key_R1, out=bits(out_RN))


def message_keys(
    dtype: torch.dtype,
    device: torch.device,
    *,
    stream: int,
    phase: torch.Tensor | int = 0,
    layer: torch.Tensor | int = 0,
    source: torch.Tensor | int = 0,
    target: torch.Tensor | int = 0,
) -> torch.Tensor:
    """Returns the keys of messages, computed once as a table: reading one later needs no copy from the host.

    Args:
        dtype: Number format of the messages.
        device: Where the table is needed.
        stream: Number of the kind of buffer.
        phase: Iteration modulo the number of phases. All four may be whole-number tensors that broadcast.
        layer: Number of the layer.
        source: The sending rank.
        target: The receiving rank.

    Returns:
        Signed integers of the dtype's size, of the broadcast shape.
    """
    index = torch.as_tensor(
        _PHASE_STEP * torch.as_tensor(phase)
        + _LAYER_STEP * torch.as_tensor(layer)
        + _SOURCE_STEP * torch.as_tensor(source)
        + _TARGET_STEP * torch.as_tensor(target)
        + _STREAM_STEP * stream
    )
    return _spread(index % _free_values(dtype), dtype).to(device)


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
        # A contribution is base + phase + rank term + 1, at most `largest`, and never 0.
        largest = min(_LARGEST_EXACT[dtype] // min(world_size, _MAX_CONTRIBUTORS), 1 << 12)
        self._phases = max(3, largest // 4)
        # With rotating contributors a rank's term could cancel the step of the phase, so there it is left out.
        self._rank_terms = max(2, largest // 4) if self._turns == 1 else 1
        values = largest - self._phases - self._rank_terms + 2
        generator = torch.Generator().manual_seed(_SEED + 1)
        base_N = torch.randint(values, (size,), generator=generator)
        self._contributors = world_size // self._turns
        self._base_N = base_N.to(device, dtype)
        self._sum_N = (base_N * self._contributors).to(device, dtype)
        self._every_term = sum(rank % self._rank_terms for rank in range(world_size)) if self._turns == 1 else 0

    def contribute(self, out_N: torch.Tensor, tick: int, part: tuple[int, int] = (0, 1)) -> None:
        """Fills this rank's contribution to an iteration.

        Args:
            out_N: The buffer, or the part of it.
            tick: Number of the iteration, counted from the warm-up's first.
            part: Number of the part and how many equal parts there are.
        """
        if self._contributes(self._rank, tick):
            number, parts = part
            torch.add(self._base_N.view(parts, -1)[number], self._term(self._rank, tick), out=out_N)
        else:
            out_N.zero_()

    def write_sum(self, out_N: torch.Tensor, tick: int) -> None:
        """Writes what the sum over all ranks must be."""
        moved = self._contributors * (1 + tick % self._phases) + self._every_term
        torch.add(self._sum_N, moved, out=out_N)

    def _contributes(self, rank: int, tick: int) -> bool:
        # The same number in every iteration: otherwise a sum could stay the same while its terms change.
        return rank < self._contributors * self._turns and rank % self._turns == tick % self._turns

    def _term(self, rank: int, tick: int) -> int:
        return 1 + rank % self._rank_terms + tick % self._phases


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

    _VALUES, _RANK_TERMS, _TARGET_TERMS = 1 << 10, 1 << 8, 1 << 10

    def __init__(self, shard: int, layers: int, device: torch.device, *, rank: int, world_size: int) -> None:
        largest = self._VALUES + self._RANK_TERMS + self._TARGET_TERMS + PHASES
        if largest * world_size > _LARGEST_EXACT[torch.float32]:
            limit = _LARGEST_EXACT[torch.float32] // largest
            raise RuntimeError(f"mode fsdp verifies at most {limit} ranks, and this trial has {world_size}")
        generator = torch.Generator().manual_seed(_SEED + 2)
        base_N = torch.randint(self._VALUES, (shard,), generator=generator).float()
        phase_P11 = torch.arange(PHASES).view(-1, 1, 1)
        target_W1 = torch.arange(world_size).view(-1, 1) * 7 % self._TARGET_TERMS
        layer_L1 = torch.arange(layers).view(-1, 1)
        own = 1 + rank % self._RANK_TERMS
        everyone = sum(1 + r % self._RANK_TERMS for r in range(world_size))
        self._base_N = base_N.to(device)
        self._sum_N = (base_N * world_size).to(device)
        self._send_PW1 = (phase_P11 + target_W1 + own).float().to(device)
        moved_PL1 = (phase_P11 + 5 * layer_L1) % PHASES + int(target_W1[rank])
        self._sum_PL1 = (moved_PL1 * world_size + everyone).float().to(device)

    def contribute(self, out_WN: torch.Tensor, tick: int, layer: int) -> None:
        """Fills this rank's contribution to a layer, one row for each receiving rank."""
        torch.add(self._base_N, self._send_PW1[(tick + 5 * layer) % PHASES], out=out_WN)

    def write_parts(self, out_LN: torch.Tensor, tick: int) -> None:
        """Writes what this rank's part of the sum must be, one row for each layer."""
        torch.add(self._sum_N, self._sum_PL1[tick % PHASES], out=out_LN)


def _free_values(dtype: torch.dtype) -> int:
    return 1 << (_MANTISSA[dtype] + 2)


def _spread(index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Puts the free bits where they belong: the highest into the sign, the others into exponent and mantissa."""
    low = _MANTISSA[dtype] + 1
    width = 8 * dtype.itemsize
    # Subtracting 2^(width-1) is setting the top bit of a signed integer of that width.
    return ((index & ((1 << low) - 1)) - ((index >> low) << (width - 1))).to(INT_OF_SIZE[dtype.itemsize])
