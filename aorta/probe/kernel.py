"""Finds the faults of GPUs and their links that the kernel logged while a command ran.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MAX_EVENTS = 64
"""Lines kept; a reset can log thousands."""

_TOOL_SEC = 10.0
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

    A reader that starts at the device's end sees exactly what comes while it is open. Where it cannot be opened,
    ``dmesg`` and ``journalctl`` are asked at the end for what came since: they may be allowed to tell.

    Args:
        device: The kernel's log device.
        tools: Asked in turn when the device cannot be opened; each gets the beginning in seconds since the epoch and
            since the boot, and returns lines, or why there are none.
    """

    def __init__(
        self,
        device: str = "/dev/kmsg",
        *,
        tools: Sequence[Callable[[float, float], list[str] | str]] | None = None,
    ) -> None:
        self._tools = (_dmesg, _journal) if tools is None else tools
        self._began = (time.time(), time.clock_gettime(time.CLOCK_MONOTONIC))
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
        for line in self._records() if self._reason is None else self._ask_tools():
            events += [(name, line) for name in kernel_faults(line)][: MAX_EVENTS - len(events)]
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
        return events, self._reason

    def _records(self) -> Iterator[str]:
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
            for line in data.decode("utf-8", "replace").splitlines():
                if not line.startswith(" "):
                    yield line.partition(";")[2]

    def _ask_tools(self) -> list[str]:
        reasons = [self._reason or ""]
        for tool in self._tools:
            lines = tool(*self._began)
            if not isinstance(lines, str):
                self._reason = None
                return lines
            reasons.append(lines)
        self._reason = "; ".join(reasons)
        return []


def _dmesg(_since_epoch: float, since_boot: float) -> list[str] | str:
    lines = _output(["dmesg"])
    return lines if isinstance(lines, str) else lines_since(lines, since_boot)


def lines_since(lines: Iterable[str], since_boot: float) -> list[str]:
    """Returns those of ``dmesg``'s lines whose stamp, such as ``[  12.345678]``, is not before a time.

    Args:
        lines: What ``dmesg`` prints; a line without a stamp is left out.
        since_boot: Seconds since the boot.
    """
    stamped = ((re.match(r"\[\s*(\d+\.\d+)\]\s*(.*)", line)) for line in lines)
    return [match[2] for match in stamped if match is not None and float(match[1]) >= since_boot]


def _journal(since_epoch: float, _since_boot: float) -> list[str] | str:
    return _output(["journalctl", "-k", "-q", "-o", "cat", "--no-pager", "--since", f"@{since_epoch:.0f}"])


def _output(command: list[str]) -> list[str] | str:
    """Returns the lines that a tool prints, or why it could not."""
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, timeout=_TOOL_SEC, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{command[0]}: no answer within {_TOOL_SEC:.0f} s"
    errors = done.stderr.decode("utf-8", "replace").strip()
    # journalctl ends with 0 and a hint when it may not read what it is asked for.
    if done.returncode or (errors and not done.stdout):
        return f"{command[0]}: {errors.partition(chr(10))[0] or f'exit code {done.returncode}'}"
    return done.stdout.decode("utf-8", "replace").splitlines()
