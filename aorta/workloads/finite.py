"""Finding NaN and infinity without stopping the device for every tensor.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """A tensor that holds values that are not finite.

    Attributes:
        name: Name of the tensor.
        nan_count: Number of NaN elements.
        inf_count: Number of infinite elements.
    """

    name: str
    nan_count: int
    inf_count: int


def nonfinite_counts(tensor: torch.Tensor) -> torch.Tensor:
    """Counts NaN and infinite elements; returns an int64 tensor [nan, inf] on the same device, unread."""
    return torch.stack([torch.isnan(tensor).sum(), torch.isinf(tensor).sum()])


def find_nonfinite(named: Sequence[tuple[str, torch.Tensor]]) -> list[NonFinite]:
    """Lists the tensors with a value that is not finite, reading from the device once if there is none.

    A sum is NaN or infinite whenever an element is, and costs one pass and no temporary; it may also overflow,
    so a suspect is counted exactly before it is reported.
    """
    if not named:
        return []
    sums = torch.stack([tensor.detach().sum(dtype=torch.float32) for _, tensor in named])
    suspects = [i for i, ok in enumerate(torch.isfinite(sums).tolist()) if not ok]
    found = []
    for i in suspects:
        name, tensor = named[i]
        nan_count, inf_count = nonfinite_counts(tensor.detach()).tolist()
        if nan_count or inf_count:
            found.append(NonFinite(name=name, nan_count=nan_count, inf_count=inf_count))
    return found
