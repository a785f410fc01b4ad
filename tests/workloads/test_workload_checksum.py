"""The tensor checksum: it sees every bit and where it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.workloads import checksum as checksum_module
from aorta.workloads.checksum import checksum_hex, fold_checksums, plain_checksum, tensor_checksum

_MASK = (1 << 64) - 1
int32s = st.integers(-(2**31), 2**31 - 1)


def value(tensor: torch.Tensor) -> int:
    return int(tensor_checksum(tensor))


def reference(patterns: list[int]) -> int:
    """The documented formula in Python's whole numbers: splitmix64's finaliser with a sign-extending shift."""

    def shift(x: int, by: int) -> int:
        signed = x - (1 << 64) if x >> 63 else x
        return (signed >> by) & _MASK

    total = 0
    for position, pattern in enumerate(patterns, start=1):
        x = (pattern + position * 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ shift(x, 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ shift(x, 27)) * 0x94D049BB133111EB) & _MASK
        total += x ^ shift(x, 31)
    return total & _MASK


@settings(max_examples=50, deadline=None)
@given(st.lists(int32s, max_size=20))
def test_matches_arithmetic_in_whole_numbers(patterns: list[int]) -> None:
    """The device formula is the documented one, wrap-around included."""
    assert value(torch.tensor(patterns, dtype=torch.int32)) & _MASK == reference(patterns)


@settings(max_examples=100, deadline=None)
@given(st.lists(int32s, min_size=1, max_size=20), st.data())
def test_any_flipped_bit_shows(patterns: list[int], data: st.DataObject) -> None:
    """Flipping one bit of one element changes the checksum."""
    at = data.draw(st.integers(0, len(patterns) - 1))
    bit = data.draw(st.integers(0, 31))
    before = torch.tensor(patterns, dtype=torch.int32)
    after = before.clone()
    after[at] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert value(before) != value(after)


@settings(max_examples=100, deadline=None)
@given(st.lists(int32s, min_size=2, max_size=20, unique=True), st.data())
def test_any_swap_shows(patterns: list[int], data: st.DataObject) -> None:
    """Exchanging two different elements changes the checksum."""
    i, j = data.draw(st.lists(st.integers(0, len(patterns) - 1), min_size=2, max_size=2, unique=True))
    swapped = list(patterns)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    assert value(torch.tensor(patterns, dtype=torch.int32)) != value(torch.tensor(swapped, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_swapped_zeros_of_either_sign_show(dtype: torch.dtype) -> None:
    """0.0 and -0.0 are equal as numbers and differ as bits, in value and in place."""
    plus_minus, minus_plus = torch.tensor([0.0, -0.0], dtype=dtype), torch.tensor([-0.0, 0.0], dtype=dtype)
    assert len({value(plus_minus), value(minus_plus), value(torch.zeros(2, dtype=dtype))}) == 3


def test_nan_payload_shows() -> None:
    """Two NaNs with different payloads have different checksums."""
    quiet, other = (torch.tensor([p], dtype=torch.int32).view(torch.float32) for p in (0x7FC00000, 0x7FC00001))
    assert value(quiet) != value(other)


def test_memory_layout_does_not_matter() -> None:
    """A transposed view counts in logical order, like its contiguous copy."""
    view = torch.arange(12.0).view(3, 4).t()
    assert value(view) == value(view.contiguous())


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Working in pieces gives the checksum of the whole."""
    tensor = torch.arange(100.0)
    whole = value(tensor)
    monkeypatch.setattr(checksum_module, "_CHUNK", 7)
    assert value(tensor) == whole


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.tensor([1 + 2j], dtype=torch.complex128).conj(),
        torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        torch.ones(2, requires_grad=True),
    ],
)
def test_every_dtype_has_one(tensor: torch.Tensor) -> None:
    """0-d, bool, complex, 8-bit floats and parameters are accepted and are not the empty tensor's."""
    assert value(tensor) != value(torch.empty(0))


def test_folding_depends_on_order() -> None:
    """Joining a then b is not joining b then a."""
    a, b = torch.tensor(1), torch.tensor(2)
    assert int(fold_checksums(a, b)) != int(fold_checksums(b, a))


def test_hex_of_a_negative_number_has_16_digits() -> None:
    """The signed number on the device is written as an unsigned one."""
    assert checksum_hex(-1) == "f" * 16


@pytest.mark.parametrize(
    ("dtype", "integers"),
    [(torch.bfloat16, torch.int16), (torch.float32, torch.int32), (torch.float64, torch.int64)],
)
def test_plain_sum_adds_signed_patterns_with_wrap_around(dtype: torch.dtype, integers: torch.dtype) -> None:
    """The sum is that of the elements read as signed integers of their size, modulo 2**64."""
    tensor = torch.tensor([1.5, -2.0, float("nan"), -1e30, -0.0, -0.0], dtype=dtype)
    exact = sum(tensor.view(integers).tolist())
    assert int(plain_checksum(tensor)) == (exact + 2**63) % 2**64 - 2**63


def test_plain_sum_misses_what_the_ordered_one_sees() -> None:
    """A swap, and two changes that cancel, leave the plain sum alone."""
    a = torch.tensor([1, 2, 3], dtype=torch.int32)
    for b in (torch.tensor([2, 1, 3], dtype=torch.int32), torch.tensor([2, 2, 2], dtype=torch.int32)):
        assert int(plain_checksum(a)) == int(plain_checksum(b))
        assert value(a) != value(b)
