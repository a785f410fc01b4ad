"""Finds the faults of GPUs and their links that the kernel logged while a command ran.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import contextlib
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EVENTS = 64
"""Lines kept; a reset can log thousands."""

_RECORD_BYTES = 8192  # the kernel's own limit of a record

# One line may be of several kinds: a ring's timeout is followed by a reset, each with its own line.
_PATTERNS = {
    "amdgpu_reset": (
        r"amdgpu.*\bGPU (?:mode[12] )?reset(?:\(\d+\))? (?:begin|succeeded|failed|end|start)"
        r"|amdgpu.*\bGPU (?:mode[12] )?reset\b(?!.*\b(?:disabled|enabled|supported|method))"
    ),
    "sdma_timeout": r"\bring sdma[\d.]+ timeout\b|\bsdma[\d.]* (?:is )?(?:timed out|timeout)\b",
    "vm_l2_fault": r"\bVM_L2_PROTECTION_FAULT_STATUS\b|\[(?:gfx|mm)hub\d*\] (?:no-retry |retry )?page fault\b",
    "xgmi_link_error": (
        r"\b[1-9]\d* (?:correctable|uncorrectable|deferred|new \w+) hardware errors? (?:detected )?in (?:total )?xgmi"
        r"|\bxgmi\b.*\b(?:link error|error detected|link (?:down|failure))\b"
        r"|\bXGMI/WAFL\b.*\berror"
    ),
    "pcie_aer_fatal": (
        r"\bAER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\) error"
        r"|\bPCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)"
    ),
}


def kernel_faults(line: str) -> list[str]:
    """Returns the detectors that a line of the kernel log makes fire."""
    return [name for name, pattern in _PATTERNS.items() if re.search(pattern, line, re.IGNORECASE)]


class KernelLog:
    """The kernel's log from this moment on.

    The device hands out whole records; a reader that starts at the end sees exactly what comes while it is open.

    Args:
        device: The kernel's log device.
    """

    def __init__(self, device: str = "/dev/kmsg") -> None:
        self._descriptor: int | None = None
        self._reason: str | None = None
        try:
            self._descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self._reason = f"{device}: {error.strerror}"

    def finish(self) -> tuple[list[tuple[str, str]], str | None]:
        """Closes the log.

        Returns:
            (detector, line) of each fault since the beginning, and why the log could not be read, or None.
        """
        events: list[tuple[str, str]] = []
        for line in self._lines():
            events += [(name, line) for name in kernel_faults(line)][: MAX_EVENTS - len(events)]
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
        return events, self._reason

    def _lines(self) -> Iterator[str]:
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before we came; the next read goes on after them
            except OSError as error:
                self._reason = error.strerror
                return
            if not data:
                return
            # "priority,number,microseconds,flags;text", then lines of details that begin with a blank.
            yield data.decode("utf-8", "replace").partition(";")[2].partition("\n")[0]
