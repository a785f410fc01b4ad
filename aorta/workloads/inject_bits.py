"""How a planted fault changes a tensor, bit by bit and behind autograd's back.

Imports torch; :mod:`aorta.workloads.inject` imports this module when a fault strikes.
"""

from __future__ import annotations

from typing import Any

import torch

_INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip_bit(tensor: torch.Tensor, element: int, bit: int) -> dict[str, Any]:
    """Flips one bit in place.

    Args:
        tensor: Any shape, of 1, 2, 4 or 8 bytes an element.
        element: Index into the flattened tensor.
        bit: Number of the bit, 0 the lowest.

    Returns:
        ``element``, and the element's bits ``before`` and ``after`` in hexadecimal.
    """
    size = tensor.element_size()
    mask = 1 << bit
    # The top bit's mask does not fit the signed type as it stands.
    signed = mask - (1 << 8 * size) if bit == 8 * size - 1 else mask
    place = _element(tensor, element)
    before = _hex(place)
    bits = place.view(_INT_OF_SIZE[size])
    bits.bitwise_xor_(torch.tensor(signed, dtype=bits.dtype, device=bits.device))
    return {"element": element, "before": before, "after": _hex(place)}


def set_nan(tensor: torch.Tensor, element: int) -> dict[str, Any]:
    """Makes one element NaN in place; returns what :func:`flip_bit` does.

    Raises:
        ValueError: The tensor holds whole numbers, which have no NaN.
    """
    if not tensor.is_floating_point():
        raise ValueError(f"a planted NaN needs a floating-point buffer, and this one is {tensor.dtype}")
    place = _element(tensor, element)
    before = _hex(place)
    place.fill_(float("nan"))
    return {"element": element, "before": before, "after": _hex(place)}


def perturb(tensor: torch.Tensor, element: int) -> dict[str, Any]:
    """Changes one element as little as its type allows; returns what :func:`flip_bit` does.

    A floating-point number gets its lowest bit flipped; a token id becomes the one below it, and 0 becomes 1.
    """
    if tensor.is_floating_point():
        return flip_bit(tensor, element, 0)
    place = _element(tensor, element)
    before = _hex(place)
    place.copy_(torch.where(place > 0, place - 1, torch.ones_like(place)))
    return {"element": element, "before": before, "after": _hex(place)}


def restore(tensor: torch.Tensor, former: torch.Tensor | None, first: int) -> dict[str, Any]:
    """Puts former content, or zeros, back from an element on, in place.

    Returns:
        ``first``, and ``changed``: how many elements have other bits now. 0 is a fault that nobody can find.
    """
    held = tensor.data.clone().flatten()
    struck = held.clone()
    struck[first:] = 0 if former is None else former.flatten()[first:]
    integers = _INT_OF_SIZE[tensor.element_size()]
    changed = int((held.view(integers) != struck.view(integers)).sum())
    tensor.data.copy_(struck.view(tensor.shape))
    return {"first": first, "changed": changed}


def _element(tensor: torch.Tensor, element: int) -> torch.Tensor:
    """Returns a 0-d tensor that shares the element's memory, whatever the layout."""
    # .data, unlike detach(), does not raise the version that autograd checks.
    place: torch.Tensor = tensor.data
    for size in reversed(tensor.shape):
        element, index = divmod(element, size)
        place = place.select(-1, index)
    return place


def _hex(place: torch.Tensor) -> str:
    size = place.element_size()
    return f"0x{int(place.view(_INT_OF_SIZE[size])) & ((1 << 8 * size) - 1):0{2 * size}x}"
