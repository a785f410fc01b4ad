"""Reads what a command's AMD devices do: how busy they are, what memory they hold for it, whether heat slows them.

The kernel's own files answer within microseconds, but a wedged driver may never answer. So a thread reads, and the
supervisor looks at what it read last. Only throttling needs a tool, ``amd-smi``.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

BUSY_PERCENT = 5
"""A device that is busier than this is working; monitors and displays take less."""

STALE_SEC = 10.0
"""A reading that is older says nothing: the driver does not answer."""

_INTERVAL_SEC = 1.0
_TOOL_SEC = 20.0

_HEAT = re.compile(r"(?=.*acc)(?=.*(?:therm|thrm|prochot)).*", re.IGNORECASE)
"""Counters that ``amd-smi`` accumulates of throttling by heat; their names differ between its versions."""


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
    """Reads the devices of this host about once a second, until :meth:`finish`.

    A host without a device that tells its use starts no thread.

    Args:
        sysfs: Where the kernel's device tree is mounted.
        amd_smi: Asks ``amd-smi`` for its counters of throttling; by default the program on ``PATH``.
        clock: Monotonic time in seconds.

    Attributes:
        unavailable: Why there is no reading now, or None.
    """

    def __init__(
        self,
        sysfs: str = "/sys",
        *,
        amd_smi: Callable[[], dict[str, int] | str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kfd = os.path.join(sysfs, "class/kfd/kfd/proc")
        self._clock = clock
        self._amd_smi = ask_amd_smi if amd_smi is None else amd_smi
        self._busy_files = _busy_files(os.path.join(sysfs, "class/drm"))
        self._pids: set[int] = set()
        self._latest: tuple[float, Reading] | None = None
        self._failure: str | None = None
        self._heat_before: dict[str, int] | str = "amd-smi had not answered before the command ended"
        self._ended = False
        self.unavailable: str | None = None
        if self._busy_files:
            _thread.start_new_thread(self._watch, ())
        else:
            self.unavailable = "no device of this host tells how busy it is (gpu_busy_percent)"

    def read(self, pids: set[int]) -> Reading | None:
        """Returns the latest reading, or None with :attr:`unavailable` set.

        Args:
            pids: The command's processes, for the next reading.
        """
        self._pids = set(pids)
        if not self._busy_files:
            return None
        latest = self._latest
        if latest is None:
            self.unavailable = self._failure or "no device has answered yet"
            return None
        taken, reading = latest
        if self._clock() - taken > STALE_SEC:
            self.unavailable = self._failure or f"no device has answered for {self._clock() - taken:.0f} s"
            return None
        self.unavailable = None
        return reading

    def finish(self, throttling: bool) -> tuple[dict[str, str], str | None]:
        """Ends the watch.

        Args:
            throttling: Whether to ask for throttling.

        Returns:
            Of each counter of heat that grew while the command ran by how much, and why that is not known, or None.
        """
        self._ended = True
        if not throttling:
            return {}, None
        if not self._busy_files:
            return {}, self.unavailable
        before = self._heat_before
        after = before if isinstance(before, str) else self._amd_smi()
        if isinstance(before, str) or isinstance(after, str):
            return {}, str(after)
        grown = {name: count - before[name] for name, count in after.items() if count > before.get(name, count)}
        return {name: f"+{count}" for name, count in grown.items()}, None

    def _watch(self) -> None:
        self._heat_before = self._amd_smi()
        while not self._ended:
            taken = self._clock()
            try:
                busy = any(_number(path) > BUSY_PERCENT for path in self._busy_files)
                self._latest = (taken, Reading(busy, self._memory(self._pids)))
                self._failure = None
            except (OSError, ValueError) as error:
                self._failure = f"a device cannot be read: {error}"
            time.sleep(_INTERVAL_SEC)

    def _memory(self, pids: Iterable[int]) -> float | None:
        """Returns the memory that the driver holds for processes, in MiB; a process without a file holds none."""
        if not os.path.isdir(self._kfd):
            return None
        total = 0
        for pid in pids:
            folder = os.path.join(self._kfd, str(pid))
            # A process may end between two looks.
            with contextlib.suppress(OSError, ValueError):
                total += sum(_number(os.path.join(folder, name)) for name in os.listdir(folder) if name[:5] == "vram_")
        return total / (1 << 20)


def _busy_files(folder: str) -> list[str]:
    """Returns the files in which the driver tells how busy each device is."""
    try:
        cards = sorted(name for name in os.listdir(folder) if re.fullmatch(r"card\d+", name))
    except OSError:
        return []
    paths = (os.path.join(folder, card, "device/gpu_busy_percent") for card in cards)
    return [path for path in paths if os.access(path, os.R_OK)]


def _number(path: str) -> int:
    with open(path, "rb") as file:
        return int(file.read())


def ask_amd_smi() -> dict[str, int] | str:
    """Returns ``amd-smi``'s counters of throttling by heat, by device and name, or why there are none."""
    import json
    import subprocess

    reason = "amd-smi tells no counters of throttling by heat"
    # The option's name changed between versions.
    for option in ("--violation", "--throttle"):
        try:
            done = subprocess.run(
                ["amd-smi", "metric", option, "--json"], capture_output=True, timeout=_TOOL_SEC, check=False
            )
        except OSError as error:
            return f"amd-smi: {error.strerror}"
        except subprocess.TimeoutExpired:
            return f"amd-smi did not answer within {_TOOL_SEC:.0f} s"
        try:
            counters = heat_counters(json.loads(done.stdout))
        except (ValueError, RecursionError):
            continue
        if counters:
            return counters
    return reason


def heat_counters(data: Any) -> dict[str, int]:
    """Finds the accumulated counters of heat in what ``amd-smi metric --json`` prints.

    Args:
        data: One mapping a device, in a list or below ``gpu_data``; a counter is a number, or a mapping with ``value``.
    """
    found: dict[str, int] = {}
    devices = data.get("gpu_data", data) if isinstance(data, dict) else data
    for index, device in enumerate(devices if isinstance(devices, list) else [devices]):
        number = device.get("gpu", index) if isinstance(device, dict) else index
        _collect(device, f"gpu {number}", found)
    return found


def _collect(node: Any, device: str, found: dict[str, int]) -> None:
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        number = value.get("value") if isinstance(value, dict) else value
        if isinstance(number, int) and not isinstance(number, bool) and _HEAT.fullmatch(name):
            found[f"{device} {name}"] = number
        else:
            _collect(value, device, found)
