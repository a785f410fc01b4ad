"""Counts and extremes of a tensor, on its own device, and their one way to the host.

Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

FIELDS: tuple[str, ...] = (
    *("nan_count", "inf_count", "huge_count", "oob_count", "finite_abs_max", "finite_max", "minus_finite_min"),
)
"""What a measurement holds, as float64 [7]: four counts, then three extremes; an extreme of -inf means none."""

COUNTS = 4
_PIECE = 1 << 22
"""Elements that are looked at at once: what a measurement takes of the device's memory is a few times this."""


def local_values(value: object) -> torch.Tensor | None:
    """Returns the real numbers that a tensor holds on this rank, or None of what has none to look at."""
    if not isinstance(value, torch.Tensor) or value.is_sparse or value.is_quantized or value.is_nested:
        return None
    tensor = value.detach()
    if hasattr(tensor, "to_local"):  # a DTensor: FSDP2's parameters and gradients
        tensor = tensor.to_local()
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor


def measure(tensor: torch.Tensor, huge: float, bounds: tuple[float, float] | None = None) -> torch.Tensor:
    """Measures a tensor without reading it on the host.

    Args:
        tensor: Of any shape and any real type.
        huge: A finite value of this size or more is huge; at most half of what the type can hold.
        bounds: Smallest and largest value that is right; others count as out of bounds.

    Returns:
        Float64 [7] on the same device, as ``FIELDS``.
    """
    if tensor.is_floating_point():
        huge = min(huge, torch.finfo(tensor.dtype).max / 2)
    total: torch.Tensor | None = None
    for piece_N in tensor.reshape(-1).split(_PIECE):
        part = _measure_piece(piece_N, huge, bounds)
        total = part if total is None else merge(total, part)
    assert total is not None
    return total


def _measure_piece(piece_N: torch.Tensor, huge: float, bounds: tuple[float, float] | None) -> torch.Tensor:
    piece_N = _widened(piece_N)
    finite_N = torch.isfinite(piece_N)
    magnitude_N = piece_N.abs()
    none = torch.full_like(piece_N, -torch.inf)
    if bounds is None:
        out = torch.zeros((), dtype=torch.int64, device=piece_N.device)
    else:
        out = ((piece_N < bounds[0]) | (piece_N > bounds[1])).sum()
    values = (
        torch.isnan(piece_N).sum(),
        torch.isinf(piece_N).sum(),
        (finite_N & (magnitude_N >= huge)).sum(),
        out,
        torch.where(finite_N, magnitude_N, none).max(),
        torch.where(finite_N, piece_N, none).max(),
        torch.where(finite_N, -piece_N, none).max(),
    )
    return torch.stack([value.to(torch.float64) for value in values])


def _widened(piece_N: torch.Tensor) -> torch.Tensor:
    # Types of one byte have few operations of their own.
    if not piece_N.is_floating_point() or piece_N.element_size() == 1:
        return piece_N.to(torch.float64 if not piece_N.is_floating_point() else torch.float32)
    return piece_N


def merge(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Joins two measurements on one device."""
    return torch.cat([first[:COUNTS] + second[:COUNTS], torch.maximum(first[COUNTS:], second[COUNTS:])])


def first_bad_positions(tensor: torch.Tensor, most: int, bounds: tuple[float, float] | None = None) -> torch.Tensor:
    """Returns where the first bad values are, without reading them on the host.

    Args:
        tensor: Of any shape and any real type.
        most: How many are looked for.
        bounds: Smallest and largest value that is right; others are bad, as those that are not finite.

    Returns:
        Flat positions, rising, as int64 [most] on the same device; -1 where there are no more.
    """
    none = tensor.numel()
    found, start = [], 0
    for piece_N in tensor.reshape(-1).split(_PIECE):
        wide_N = _widened(piece_N)
        bad_N = ~torch.isfinite(wide_N)
        if bounds is not None:
            bad_N |= (wide_N < bounds[0]) | (wide_N > bounds[1])
        position_N = torch.arange(start, start + piece_N.numel(), device=piece_N.device)
        found.append(_smallest(torch.where(bad_N, position_N, none), most))
        start += piece_N.numel()
    found.append(torch.full((most,), none, dtype=torch.int64, device=tensor.device))
    position_K = _smallest(torch.cat(found), most)
    return torch.where(position_K == none, -1, position_K)


def _smallest(values_N: torch.Tensor, most: int) -> torch.Tensor:
    return values_N.topk(min(most, values_N.numel()), largest=False, sorted=True).values


def to_host(vectors: Sequence[torch.Tensor]) -> list[list[float]]:
    """Reads float64 vectors of equal length with one copy from each device."""
    by_device: dict[torch.device, list[int]] = {}
    for index, vector in enumerate(vectors):
        by_device.setdefault(vector.device, []).append(index)
    rows: list[list[float]] = [[] for _ in vectors]
    for indices in by_device.values():
        read: list[list[float]] = torch.stack([vectors[index] for index in indices]).tolist()
        for index, row in zip(indices, read, strict=True):
            rows[index] = row
    return rows
