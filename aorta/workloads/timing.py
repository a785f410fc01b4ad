"""Step times and their percentiles. Standard library only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def percentile(values: Sequence[float], q: float) -> float | None:
    """Returns the q-th percentile (0 to 100), interpolated linearly between neighbours; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class Stopwatch:
    """Collects wall times of a repeated piece of work.

    Args:
        wait: Called before each reading of the clock. Kernels are queued, so without waiting for the device the
            clock would measure how fast they are queued.
        clock: Monotonic clock in seconds.

    Attributes:
        times_ms: One entry for each measured piece, in milliseconds.
    """

    def __init__(self, wait: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._wait = wait
        self._clock = clock
        self.times_ms: list[float] = []

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Times the block; a block that raises leaves no entry."""
        self._wait()
        start = self._clock()
        yield
        self._wait()
        self.times_ms.append((self._clock() - start) * 1000)

    @property
    def total_sec(self) -> float:
        """Sum of the measured times in seconds."""
        return sum(self.times_ms) / 1000

    def metrics(self) -> dict[str, float | None]:
        """Returns ``step_time_p50`` and ``step_time_p99`` in milliseconds."""
        return {"step_time_p50": percentile(self.times_ms, 50), "step_time_p99": percentile(self.times_ms, 99)}
