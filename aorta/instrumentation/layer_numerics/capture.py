"""Keeps the first bad values of a layer, and the first tensor of a step that holds some, on the device.

The host is asked for them only in a step that has a bad value. Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aorta.instrumentation.layer_numerics.stats import first_bad_positions

MOST_VALUES = 8
"""Bad values that are kept of a layer, channel and step."""

MOST_TENSORS = 4
MOST_BYTES = 64 << 20
"""Tensors that a rank saves, and the size of one: together what a run may take of the disk."""

Key = tuple[str, str]
"""Layer and channel."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class BadValues:
    """The first bad values of one layer and channel in a step, on their device."""

    def __init__(self) -> None:
        self._kept: torch.Tensor | None = None
        self._tensors: list[tuple[torch.Size, torch.dtype]] = []

    def add(self, tensor: torch.Tensor, bounds: tuple[float, float] | None) -> None:
        """Looks at a tensor; of several in one step the first that has bad values counts.

        Args:
            tensor: Of any shape and any real type.
            bounds: Smallest and largest value that is right; others are bad, too.
        """
        position_K = first_bad_positions(tensor, MOST_VALUES, bounds)
        bits_K = tensor.reshape(-1).view(_BITS[tensor.element_size()])[position_K.clamp(min=0)].to(torch.int64)
        found = torch.cat([position_K, bits_K, torch.full_like(position_K[:1], len(self._tensors))])
        self._tensors.append((tensor.shape, tensor.dtype))
        if self._kept is None:
            self._kept = found
        else:
            self._kept = torch.where(self._kept[0] >= 0, self._kept, found.to(self._kept.device))

    def vector(self) -> torch.Tensor:
        """Returns what :meth:`told` needs, as int64 [2 * MOST_VALUES + 1]."""
        assert self._kept is not None
        return self._kept

    def told(self, read: Sequence[float]) -> list[dict[str, Any]]:
        """Returns each bad value's ``index``, ``value`` (a word where JSON has no number) and ``bits``.

        Args:
            read: The vector, on the host.
        """
        whole = [int(one) for one in read]
        shape, dtype = self._tensors[whole[-1]]
        size = dtype.itemsize
        values = []
        for position, bits in zip(whole[:MOST_VALUES], whole[MOST_VALUES:-1], strict=True):
            if position >= 0:
                value = torch.tensor([bits], dtype=_BITS[size]).view(dtype)
                number = float(value.to(torch.float64)) if dtype.is_floating_point else int(value)
                is_finite = bool(torch.isfinite(value.to(torch.float64)))
                index = [int(one) for one in torch.unravel_index(torch.tensor(position), shape)]
                shown = number if is_finite else str(number)
                hexadecimal = f"0x{bits & ((1 << 8 * size) - 1):0{2 * size}x}"
                values.append({"index": index, "value": shown, "bits": hexadecimal})
        return values


@dataclass(frozen=True)
class _Offer:
    """A tensor that may be the step's first bad one."""

    key: Key
    shape: torch.Size
    dtype: torch.dtype
    size: int


@dataclass
class _Place:
    """What is kept on one device: the bytes of a tensor, and the number of its offer, or -1."""

    bytes_B: torch.Tensor
    number: torch.Tensor


class TensorCopy:
    """A copy of the first tensor of a step that holds a bad value; each layer and channel gives one at most.

    A tensor is copied or not by its device, into one buffer as large as the largest one.
    """

    def __init__(self) -> None:
        self._places: dict[torch.device, _Place] = {}
        self._offers: list[_Offer] = []
        self._taken: set[Key] = set()
        self._too_large: dict[Key, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether as many tensors were taken as may be."""
        return len(self._taken) >= MOST_TENSORS

    def offer(self, key: Key, tensor: torch.Tensor, is_bad: torch.Tensor) -> None:
        """Copies a tensor if it is the step's first bad one.

        Args:
            key: Its layer and channel.
            tensor: Of any shape and any type.
            is_bad: Whether it holds a bad value, as bool [] on its device.
        """
        if self.is_full or key in self._taken:
            return
        size = tensor.numel() * tensor.element_size()
        if size > MOST_BYTES:
            self._too_large[key] = size
            return
        # Memory that was made in inference mode can be written to only there.
        with torch.inference_mode():
            raw_B = tensor.reshape(-1).contiguous().view(torch.uint8)
            place = self._places.get(tensor.device)
            if place is None:
                nothing = torch.full((), -1, dtype=torch.int64, device=tensor.device)
                place = self._places[tensor.device] = _Place(torch.zeros_like(raw_B), nothing)
            elif place.bytes_B.numel() < size:
                place.bytes_B = torch.cat([place.bytes_B, raw_B.new_zeros(size - place.bytes_B.numel())])
            is_first = is_bad & (place.number < 0)
            kept_B = place.bytes_B[:size]
            kept_B.copy_(torch.where(is_first, raw_B, kept_B))
            place.number = torch.where(is_first, len(self._offers), place.number)
        self._offers.append(_Offer(key, tensor.shape, tensor.dtype, size))

    def take(self) -> tuple[Key, torch.Tensor] | None:
        """Returns the step's first bad tensor, on the host, and its layer and channel; asks the devices."""
        numbers = {device: int(place.number) for device, place in self._places.items()}
        found = min(((number, device) for device, number in numbers.items() if number >= 0), default=None, key=_number)
        if found is None:
            return None
        offer = self._offers[found[0]]
        self._taken.add(offer.key)
        with torch.inference_mode():
            raw_B = self._places[found[1]].bytes_B[: offer.size].to("cpu", copy=True)
            return offer.key, raw_B.view(offer.dtype).reshape(offer.shape)

    def end_step(self) -> None:
        """Forgets the step."""
        self._offers.clear()
        self._too_large.clear()
        if self.is_full:
            self._places.clear()
        for place in self._places.values():
            place.number = torch.full_like(place.number, -1)

    def too_large(self, bad: Sequence[Key]) -> tuple[Key, int] | None:
        """Returns the first of the bad tensors that is too large to be kept, and its size in bytes."""
        return next(((key, self._too_large[key]) for key in bad if key in self._too_large), None)


def _number(found: tuple[int, torch.device]) -> int:
    return found[0]
