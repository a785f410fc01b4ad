"""Contents of the buffers: they differ wherever data could be mixed up, and sums are exact in any order."""

from __future__ import annotations

import pytest
import torch

from aorta.race.patterns import PHASES, MovedPattern, ScatterPattern, SummedPattern, bits, message_keys

CPU = torch.device("cpu")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_contents_are_finite_and_of_a_sensible_size(dtype: torch.dtype) -> None:
    """Whatever the key, a layer can compute with the numbers: magnitudes from 2^-7 to below 2^-5, both signs."""
    keys = message_keys(dtype, CPU, stream=0, phase=torch.arange(PHASES).view(-1, 1), source=torch.arange(8))
    out = torch.empty(PHASES * 8, 100, dtype=dtype)
    MovedPattern(100, dtype, CPU).write(out, keys.view(-1, 1))
    assert 2**-7 <= out.abs().min() <= out.abs().max() < 2**-5
    assert out.min() < 0 < out.max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_contents_differ_in_every_element_from_their_neighbours(dtype: torch.dtype) -> None:
    """The next iterations, the next layers, other ranks and other streams have another key."""
    here = int(message_keys(dtype, CPU, stream=1, phase=7, layer=3, source=2, target=1))
    near = message_keys(
        dtype,
        CPU,
        stream=torch.arange(3).view(-1, 1, 1, 1, 1),  # type: ignore[arg-type]
        phase=torch.arange(5, 10).view(-1, 1, 1, 1),
        layer=torch.arange(1, 6).view(-1, 1, 1),
        source=torch.arange(4).view(-1, 1),
        target=torch.arange(4),
    )
    one_apart = {
        "stream": near[[0, 2], 2, 2, 2, 1],
        "phase": near[1, [0, 1, 3, 4], 2, 2, 1],
        "layer": near[1, 2, [0, 1, 3, 4], 2, 1],
        "source": near[1, 2, 2, [0, 1, 3], 1],
        "target": near[1, 2, 2, 2, [0, 2, 3]],
    }
    assert near[1, 2, 2, 2, 1] == here
    assert {name for name, keys in one_apart.items() if (keys == here).any()} == set()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 3, 8, 32, 33, 64, 100])
def test_sums_are_exact_in_any_order(dtype: torch.dtype, world_size: int) -> None:
    """Adding up the contributions in the number format itself, forwards and backwards, gives the expected bits."""
    patterns = [SummedPattern(40, dtype, CPU, rank=r, world_size=world_size) for r in range(world_size)]
    for tick in range(4):
        contributions = torch.empty(world_size, 40, dtype=dtype)
        for pattern, row in zip(patterns, contributions, strict=True):
            pattern.contribute(row, tick)
        expected = torch.empty(40, dtype=dtype)
        patterns[0].write_sum(expected, tick)
        for rows in (contributions, contributions.flip(0)):
            total = torch.zeros(40, dtype=dtype)
            for row in rows:
                total = total + row
            assert torch.equal(bits(total), bits(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 5, 32, 33, 64, 100])
def test_neighbouring_sums_differ_in_every_element(dtype: torch.dtype, world_size: int) -> None:
    """A sum that is left over from one or two iterations ago is wrong everywhere, and none is zero."""
    pattern = SummedPattern(40, dtype, CPU, rank=0, world_size=world_size)
    sums = torch.empty(12, 40, dtype=dtype)
    for tick, row in enumerate(sums):
        pattern.write_sum(row, tick)
    assert (sums != 0).all()
    assert (sums[1:] != sums[:-1]).all()
    assert (sums[2:] != sums[:-2]).all()


def test_every_rank_that_contributes_is_missed() -> None:
    """No contribution is zero in a small world, so that a lost one changes every element."""
    for rank in range(8):
        out = torch.empty(40, dtype=torch.bfloat16)
        SummedPattern(40, torch.bfloat16, CPU, rank=rank, world_size=8).contribute(out, 3)
        assert (out != 0).all()


@pytest.mark.parametrize("world_size", [2, 5])
def test_parts_of_a_reduce_scatter_are_the_exact_sums(world_size: int) -> None:
    """For each rank, layer and iteration the part is the float32 sum of what the ranks sent it."""
    patterns = [ScatterPattern(7, 3, CPU, rank=r, world_size=world_size) for r in range(world_size)]
    for tick in (0, 1, PHASES - 1, PHASES):
        for target, pattern in enumerate(patterns):
            parts = torch.empty(3, 7)
            pattern.write_parts(parts, tick)
            for layer in range(3):
                total = torch.zeros(7)
                for sender in patterns:
                    sent = torch.empty(world_size, 7)
                    sender.contribute(sent, tick, layer)
                    total += sent[target]
                assert torch.equal(total, parts[layer])


def test_parts_of_neighbouring_layers_ranks_and_iterations_differ() -> None:
    """A part that belongs elsewhere is wrong in every element."""
    parts = torch.empty(3, 4, 3, 7)  # iteration, rank, layer
    for rank in range(4):
        pattern = ScatterPattern(7, 3, CPU, rank=rank, world_size=4)
        for tick in range(3):
            pattern.write_parts(parts[tick, rank], tick)
    for dim in range(3):
        apart = parts.narrow(dim, 1, parts.shape[dim] - 1) != parts.narrow(dim, 0, parts.shape[dim] - 1)
        assert apart.all()


def test_a_world_too_large_for_exact_sums_is_refused() -> None:
    """A verdict that rounding could turn is no verdict."""
    with pytest.raises(RuntimeError, match="verifies at most"):
        ScatterPattern(4, 1, CPU, rank=0, world_size=20_000)
