"""Checksums of a tensor's bits, computed where the tensor is.

Verdicts rest on the position-sensitive one; the plain sum stands beside it for comparison.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

import torch

# Constants of the splitmix64 finaliser as signed 64-bit numbers, which is what torch multiplies with wrap-around.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bounds the int64 temporaries to a few times 8 MiB, whatever the size of the tensor.
_CHUNK = 1 << 20


def tensor_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a 64-bit checksum of the bit pattern, as a 0-d int64 tensor on the same device.

    Each element's bits are joined with its position and scrambled by a bijection before they are added up, so a
    change of any single element always shows, and swaps, shifts, the sign of a zero and the payload of a NaN do
    except by a 64-bit coincidence. (A weighted sum would miss swapping 0.0 and -0.0 in float64: their patterns
    differ by 2**63, which any even difference of weights turns into 0.) The order of additions does not matter,
    so the same bits give the same checksum on every device.

    Args:
        tensor: Any shape, layout and dtype of 1, 2, 4, 8 or 16 (complex128) bytes. Elements count in logical
            order; shape and strides do not enter.
    """
    bits_N = _bits(tensor)
    total = torch.zeros((), dtype=torch.int64, device=bits_N.device)
    for start in range(0, bits_N.numel(), _CHUNK):
        part = bits_N[start : start + _CHUNK].to(torch.int64)
        position = torch.arange(start + 1, start + 1 + part.numel(), device=part.device, dtype=torch.int64)
        total += _scramble(position.mul_(_GOLDEN).add_(part)).sum()
    return total


def plain_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum of all elements' bit patterns as signed integers, with wrap-around in 64 bits.

    It misses whatever leaves the sum alone: swaps, shifts, and changes that cancel out.

    Args:
        tensor: As for :func:`tensor_checksum`.

    Returns:
        A 0-d int64 tensor on the same device.
    """
    return _bits(tensor).sum(dtype=torch.int64)


def fold_checksums(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Joins two checksums into one that depends on their order; 0-d int64 tensors in and out."""
    return _scramble(left * _MIX_1 + _GOLDEN) + right


def checksum_hex(value: int) -> str:
    """Writes a checksum that was read from the device as 16 hexadecimal digits."""
    return f"{value & 0xFFFFFFFFFFFFFFFF:016x}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in logical order as signed integers of their size."""
    flat = tensor.detach()
    flat = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
    flat = flat.contiguous().reshape(-1)
    return flat.view(_INT_OF_SIZE[flat.element_size()])


def _scramble(x: torch.Tensor) -> torch.Tensor:
    # `>>` copies the sign bit down; x ^ (x >> s) stays invertible all the same, as the top bits do not change.
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)
