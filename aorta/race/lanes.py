"""Streams of a device under names, and the time of steps; on the CPU both are trivial.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

LaneName = Literal["compute", "comm", "h2d"]
Point = Any
"""A place in a lane's queue: a device event, or None on the CPU, where everything before it has happened."""


class Lanes:
    """The streams that an iteration uses.

    ``compute`` is the current stream; ``comm`` and ``h2d`` are streams of their own, or the same one.

    Args:
        device: Where the streams are.
        same_stream: Whether all names mean the current stream.
    """

    def __init__(self, device: torch.device, *, same_stream: bool) -> None:
        self.device = device
        self.same_stream = same_stream
        self._streams: dict[str, Any] = {}
        if device.type == "cuda":
            current = torch.cuda.current_stream(device)
            self._streams = {
                "compute": current,
                "comm": current if same_stream else torch.cuda.Stream(device),
                "h2d": current if same_stream else torch.cuda.Stream(device),
            }

    def on(self, lane: LaneName) -> AbstractContextManager[Any]:
        """Queues what the block does on a lane."""
        return torch.cuda.stream(self._streams[lane]) if self._streams else nullcontext()

    def reached(self, lane: LaneName) -> Point:
        """Returns the point after everything that is queued on a lane now."""
        return self._streams[lane].record_event() if self._streams else None

    def wait(self, lane: LaneName, point: Point) -> None:
        """Lets what is queued on a lane from now on wait for a point of another; the host does not wait."""
        if point is not None:
            self._streams[lane].wait_event(point)

    def follow(self, lane: LaneName, other: LaneName) -> None:
        """Lets a lane wait for all that is queued on another now."""
        self.wait(lane, self.reached(other))


class StepClock:
    """Times steps without stopping the device between them.

    A clock that waits for the device at each end of a step would take away the overlap of neighbouring steps, in
    which races live. So a device's steps are timed by events on the compute lane, read once at the end.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Marks the end of a step, and before the first one its beginning."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def times_ms(self) -> list[float]:
        """Returns the time between neighbouring marks in milliseconds; waits for the last one."""
        if self._device.type == "cuda":
            if self._marks:
                self._marks[-1].synchronize()
            return [a.elapsed_time(b) for a, b in zip(self._marks, self._marks[1:], strict=False)]
        return [(b - a) * 1000 for a, b in zip(self._marks, self._marks[1:], strict=False)]
