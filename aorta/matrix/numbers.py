"""Numbers as they arrive from trial files, and the statistics of a list of them.

A workload may report anything, so every figure passes a gate before it is used: booleans, non-finite values and
values too large to average are not numbers here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# 1e15 ms is 31,000 years: beyond it a duration is a mistake, and squares of it still fit a float.
_LONGEST_MS = 1e15
_LARGEST_COUNT = 2**63 - 1


def finite_number(value: object) -> float | None:
    """Returns ``value`` as a float if it is a finite JSON number, else None (booleans are no numbers)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def count(value: object) -> int | None:
    """Returns ``value`` if it is an integer from 0 to 2**63 - 1, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST_COUNT else None


def duration_ms(value: object) -> float | None:
    """Returns ``value`` as a time in milliseconds if it is finite, above zero and below 31,000 years, else None."""
    number = finite_number(value)
    return number if number is not None and 0 < number <= _LONGEST_MS else None


def mean(values: Sequence[float]) -> float | None:
    """Returns the arithmetic mean, the same for every order of ``values``; None for an empty list."""
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum leaves the range of a float although the mean does not
        return math.fsum(value / len(values) for value in values)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary statistics of a series of times; every field is None for an empty series.

    Attributes:
        mean: Arithmetic mean.
        std: Sample standard deviation (divisor n - 1); None for fewer than two values.
        min: Smallest value.
        max: Largest value.
        p50: Median.
        p90: 90th percentile, linearly interpolated.
        p99: 99th percentile, linearly interpolated.
    """

    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


def summarize(values: Sequence[float]) -> Summary:
    """Returns the summary statistics of usable durations; the result does not depend on their order."""
    average = mean(values)
    if average is None:
        return Summary()
    std = None
    if len(values) > 1:
        std = math.sqrt(math.fsum((value - average) ** 2 for value in values) / (len(values) - 1))
    p50, p90, p99 = (float(value) for value in np.percentile(np.asarray(values, dtype=float), [50, 90, 99]))
    return Summary(mean=average, std=std, min=min(values), max=max(values), p50=p50, p90=p90, p99=p99)
