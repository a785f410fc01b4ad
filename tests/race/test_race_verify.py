"""The comparison of buffers, without communication: what it sees, and what a record says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.race.verify import Verifier
from aorta.workloads.checksum import tensor_checksum
from aorta.workloads.inject import Injector

CPU = torch.device("cpu")
patterns32 = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=9, unique=True)


def verifier(inject: Any = None) -> Verifier:
    return Verifier(rank=1, device=CPU, injector=Injector.from_config(inject, rank=1, world_size=2))


def records(found: torch.Tensor, expected: torch.Tensor, names: tuple[str, ...] = ("b",)) -> list[dict[str, Any]]:
    """The corruption records of one comparison in iteration 5."""
    v = verifier()
    v.begin(5)
    v.check(names, found, expected)
    v.end()
    v.finish()
    return v.log.details


def from_bits(patterns: list[int]) -> torch.Tensor:
    return torch.tensor(patterns, dtype=torch.int32).view(torch.float32)


def checksum_mismatches(found: torch.Tensor, expected: torch.Tensor) -> int:
    v = verifier()
    v.begin(0)
    v.check_layer_checksum(found, tensor_checksum(expected))
    return v.checksum_mismatches()


def test_record_names_iteration_rank_buffer_count_position_and_values() -> None:
    """All that a reader needs is in the record, as values and as bit patterns, and in one sentence."""
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16)
    found = torch.tensor([1.0, 2.0, -3.0, 5.0], dtype=torch.bfloat16)
    (record,) = records(found, expected, ("layer1.all_gather",))
    assert record == {
        "step": 5,
        "phase": "timed",
        "check": "corruption",
        "iteration": 5,
        "rank": 1,
        "buffer": "layer1.all_gather",
        "dtype": "bfloat16",
        "count": 2,
        "first_position": 2,
        "expected": {"value": 3.0, "bits": "0x4040"},
        "found": {"value": -3.0, "bits": "0xc040"},
        "hint": "layer1.all_gather: some elements are wrong: what arrived is not what was sent",
    }


@pytest.mark.parametrize(
    ("found", "extent"),
    [
        ([3.0, 1.0], "one wrong element"),
        ([-1.0, 1.0], "one flipped bit"),
        ([2.0, 2.0], "every element is wrong"),
    ],
)
def test_hint_says_how_far_the_corruption_goes(found: list[float], extent: str) -> None:
    """The same kind of corruption has the same hint, wherever it strikes."""
    (record,) = records(torch.tensor(found), torch.tensor([1.0, 1.0]), ("bucket12.all_reduce",))
    assert record["hint"] == f"bucket12.all_reduce: {extent}: the sum is not that of what was sent"


def test_equal_nans_are_equal() -> None:
    """The same bits are right even where the value is NaN."""
    nan = from_bits([0x7FC00001, 0x3F800000])
    assert records(nan.clone(), nan) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (from_bits([-(2**31)]), from_bits([0])),
        (from_bits([0x7FC00001]), from_bits([0x7FC00000])),
        (from_bits([0x7FC00000]), from_bits([0x3F800000])),
    ],
    ids=["sign of zero", "NaN payload", "NaN"],
)
def test_bits_are_compared_not_values(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The sign of a zero and the payload of a NaN show, in the comparison and in a layer's checksum."""
    assert [r["first_position"] for r in records(found, expected)] == [0]
    assert checksum_mismatches(found, expected) == 1
    assert checksum_mismatches(expected, expected) == 0


@settings(max_examples=60, deadline=None)
@given(patterns32, st.data())
def test_any_flipped_bit_is_found_at_its_place(patterns: list[int], data: st.DataObject) -> None:
    """Whatever the content, one flipped bit gives one record with its position and both patterns."""
    at, bit = data.draw(st.integers(0, len(patterns) - 1)), data.draw(st.integers(0, 31))
    struck = list(patterns)
    struck[at] ^= 1 << bit if bit < 31 else -(1 << 31)
    (record,) = records(from_bits(struck), from_bits(patterns))
    found, expected = (f"0x{values[at] & 0xFFFFFFFF:08x}" for values in (struck, patterns))
    assert (record["count"], record["first_position"]) == (1, at)
    assert (record["found"]["bits"], record["expected"]["bits"]) == (found, expected)


@settings(max_examples=60, deadline=None)
@given(patterns32, st.data())
def test_any_swap_is_found(patterns: list[int], data: st.DataObject) -> None:
    """Two elements that changed places are two wrong elements, and another checksum of the layer."""
    places = st.lists(st.integers(0, len(patterns) - 1), min_size=2, max_size=2, unique=True)
    i, j = data.draw(places)
    swapped = list(patterns)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    (record,) = records(from_bits(swapped), from_bits(patterns))
    assert (record["count"], record["first_position"]) == (2, min(i, j))
    assert checksum_mismatches(from_bits(swapped), from_bits(patterns)) == 1


def test_buffers_of_one_comparison_are_told_apart() -> None:
    """Of three buffers that are compared together only the wrong one is named, with a position of its own."""
    expected = torch.zeros(3, 5)
    found = expected.clone()
    found[1, 3] = 1
    assert [(r["buffer"], r["first_position"]) for r in records(found, expected, ("x", "y", "z"))] == [("y", 3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 3, 4, 8, 9])
def test_last_element_counts_whatever_the_size(dtype: torch.dtype, size: int) -> None:
    """Nothing is lost at the tail of a buffer that does not fill whole words."""
    expected = torch.ones(size, dtype=dtype)
    found = expected.clone()
    found[-1] = 2
    assert [r["first_position"] for r in records(found, expected)] == [size - 1]


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("size", [1, 5, 64])
def test_rows_that_overlap_are_expected_one_after_the_other(row: int, size: int) -> None:
    """What a buffer must hold may be windows into one tensor; the position counts from the buffer's start."""
    expected = torch.arange(1.0, size + 7).as_strided((3, size), (3, 1))
    found = expected.contiguous()
    assert records(found, expected) == []
    found[row, -1] = 0
    (record,) = records(found.view(-1), expected)
    assert (record["count"], record["first_position"]) == (1, row * size + size - 1)
    assert record["expected"]["value"] == row * 3 + size


@pytest.mark.parametrize("expected", [torch.zeros(3), torch.zeros(8, dtype=torch.bfloat16), torch.zeros(5)])
def test_what_cannot_be_compared_is_an_error(expected: torch.Tensor) -> None:
    """Fewer elements, more, or others of the same size in bytes are a mistake of the caller, not a corruption."""
    with pytest.raises(ValueError, match="compared with"):
        records(torch.ones(4), expected)


def test_warmup_is_not_compared_and_lends_its_content_to_a_stale_buffer() -> None:
    """In the warm-up nothing is wrong, and what the buffer held then is what a planted stale read delivers."""
    v = verifier({"kind": "stale_buffer", "buffer": "b", "rank": 1, "step": 0})
    v.begin(-1)
    v.check(["b"], torch.tensor([7.0]), torch.tensor([8.0]))
    v.end()
    assert not v.corrupted
    v.begin(0)
    v.check(["b"], torch.tensor([1.0]), torch.tensor([1.0]))
    v.end()
    (record,) = v.log.details
    assert (record["found"]["value"], record["expected"]["value"]) == (7.0, 1.0)
