"""Watches an opaque command while it runs: its output, its I/O, its devices, and its host's kernel log.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import contextlib
import os
import time

from aorta.probe.gpu import GpuWatch
from aorta.probe.kernel import KernelLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from aorta.probe.settings import ProbeSettings

LEAST_IO_BYTES = 4096
"""What a command's processes must read and write to count as alive; a heartbeat's few bytes do not."""

_POLL_SEC = 0.5


class Hang:
    """A command that shows no sign of life.

    Attributes:
        after_sec: Seconds from the command's start to this finding.
        quiet_sec: Of each sign that has failed (``output``, ``io``, ``gpu``) how long it has, in seconds.
        unavailable: Of each sign that could not be read, why not.
    """

    __slots__ = ("after_sec", "quiet_sec", "unavailable")

    def __init__(self, after_sec: float, quiet_sec: Mapping[str, float], unavailable: Mapping[str, str]) -> None:
        self.after_sec = after_sec
        self.quiet_sec = dict(quiet_sec)
        self.unavailable = dict(unavailable)

    def __str__(self) -> str:
        words = {"output": "no output", "io": "no I/O", "gpu": "idle GPU"}
        return ", ".join(f"{words[sign]} for {seconds:.0f} s" for sign, seconds in self.quiet_sec.items())

    def to_json(self) -> dict[str, Any]:
        """Returns the finding as a mapping that has a JSON form."""
        return {
            "excerpt": str(self),
            "after_sec": self.after_sec,
            "quiet_sec": self.quiet_sec,
            "unavailable": self.unavailable,
        }


class Observation:
    """All that was seen of a command that has ended.

    Attributes:
        exit_code: Exit status; -n for signal n; None if it was not started or not collected.
        timed_out: Whether the supervisor ended it at its time limit.
        walltime_sec: From start to end, in seconds.
        exec_error: Why the command could not be started, or None.
        core_dumped: Whether the kernel says that it dumped core; None if nobody asked.
        hang: The hang that was found, or None.
        stdout_path: Log of standard output.
        stderr_path: Log of standard error.
        log_bytes: Of each log how many bytes count; what came after the supervisor began to end the command does not.
        peak_vram_mib: Most GPU memory that the command's processes held at once, in MiB, or None.
        vram_growth_mib: Growth of that memory from the end of the grace period to the end, in MiB, or None.
        throttled: What of each device was throttled by heat while the command ran.
        kernel_events: (detector, line) of the host's kernel log in the command's time.
        unavailable: Of each thing that could not be read, why not.
        durations_ms: What watching has cost, by tier, in milliseconds.
    """

    def __init__(
        self,
        *,
        stdout_path: str,
        stderr_path: str,
        exit_code: int | None = 0,
        timed_out: bool = False,
        walltime_sec: float = 0.0,
        exec_error: str | None = None,
        core_dumped: bool | None = None,
        hang: Hang | None = None,
        log_bytes: Mapping[str, int] | None = None,
        peak_vram_mib: float | None = None,
        vram_growth_mib: float | None = None,
        throttled: Mapping[str, str] | None = None,
        kernel_events: list[tuple[str, str]] | None = None,
        unavailable: Mapping[str, str] | None = None,
        durations_ms: Mapping[str, float] | None = None,
    ) -> None:
        self.stdout_path = stdout_path
        self.stderr_path = stderr_path
        self.exit_code = exit_code
        self.timed_out = timed_out
        self.walltime_sec = walltime_sec
        self.exec_error = exec_error
        self.core_dumped = core_dumped
        self.hang = hang
        self.log_bytes = dict(log_bytes or {})
        self.peak_vram_mib = peak_vram_mib
        self.vram_growth_mib = vram_growth_mib
        self.throttled = dict(throttled or {})
        self.kernel_events = kernel_events or []
        self.unavailable = dict(unavailable or {})
        self.durations_ms = dict(durations_ms or {})

    @property
    def was_cut(self) -> bool:
        """Whether the supervisor ended the command, so that its exit code says nothing."""
        return self.timed_out or self.hang is not None


class Observer:
    """Watches one command; made right after it was started.

    Args:
        process_group_pid: The command's process id.
        stdout_path: Where its standard output goes.
        stderr_path: Where its standard error goes.
        settings: How it is watched.
        clock: Monotonic time in seconds.
        gpu: Reads the devices; by default those of this host.
        kernel: Reads the kernel log; by default this host's.
    """

    def __init__(
        self,
        process_group_pid: int,
        stdout_path: str,
        stderr_path: str,
        settings: ProbeSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        gpu: GpuWatch | None = None,
        kernel: KernelLog | None = None,
    ) -> None:
        self._pid = process_group_pid
        self._logs = {"stdout": stdout_path, "stderr": stderr_path}
        self._settings = settings
        self._clock = clock
        self._started = clock()
        self._polled: float | None = None
        self._hang: Hang | None = None
        self._sizes: dict[str, int] = {}
        self._cut_sizes: dict[str, int] | None = None
        self._io: dict[int, int] = {}
        self._io_total = 0
        self._io_unavailable: str | None = None
        self._io_mark = 0
        self._peak_vram: float | None = None
        self._first_vram: float | None = None
        self._last_vram: float | None = None
        # When each sign was last seen.
        self._alive = dict.fromkeys(("output", "io", "gpu"), self._started)
        self._spent = {"tier2": 0.0, "tier3": 0.0}
        self._gpu = GpuWatch() if gpu is None else gpu
        self._kernel = None
        if settings.tier_is_on("tier3"):
            self._kernel = KernelLog() if kernel is None else kernel

    def poll(self) -> Hang | None:
        """Looks at the command; to be called about once a second while it runs.

        Returns:
            The hang, as soon as there is one and ever after; the supervisor then ends the command.
        """
        now = self._clock()
        if self._hang is not None or (self._polled is not None and now - self._polled < _POLL_SEC):
            return self._hang
        self._polled = now
        started = time.perf_counter()
        self._look_at_output(now)
        pids = self._processes()
        self._look_at_io(now, pids)
        gpu_unavailable = self._look_at_gpu(now, pids)
        self._hang = self._judge(now, gpu_unavailable)
        if self._hang is not None:
            self.cut()
        self._spent["tier2"] += time.perf_counter() - started
        return self._hang

    def cut(self) -> None:
        """Notes how long the logs are; to be called when the supervisor begins to end the command.

        What a command prints because it is being ended (tracebacks of SIGTERM handlers, aborted communicators) is no
        sign of what it was ended for.
        """
        if self._cut_sizes is None:
            self._cut_sizes = self._log_sizes()

    def finish(
        self,
        exit_code: int | None,
        timed_out: bool,
        walltime_sec: float,
        exec_error: str | None = None,
        *,
        core_dumped: bool | None = None,
    ) -> Observation:
        """Ends the watch, when no process of the command is left.

        Args:
            exit_code: Exit status; -n for signal n; None if there is none.
            timed_out: Whether the supervisor ended it at its time limit.
            walltime_sec: From start to end, in seconds.
            exec_error: Why the command could not be started, or None.
            core_dumped: Whether its wait status says that it dumped core, or None.
        """
        unavailable: dict[str, str] = {}
        started = time.perf_counter()
        events: list[tuple[str, str]] = []
        if self._kernel is not None:
            events, reason = self._kernel.finish()
            if reason is not None:
                unavailable["tier3.kernel_log"] = reason
        throttled, reason = self._gpu.finish(self._settings.tier_is_on("tier3"))
        if self._gpu.unavailable is not None:
            unavailable["gpu"] = self._gpu.unavailable
        if reason is not None and reason != self._gpu.unavailable:
            unavailable["tier3.thermal_throttle"] = reason
        if self._io_unavailable is not None:
            unavailable["tier2.io"] = self._io_unavailable
        self._spent["tier3"] += time.perf_counter() - started
        growth = None
        if self._first_vram is not None and self._last_vram is not None:
            growth = self._last_vram - self._first_vram
        return Observation(
            stdout_path=self._logs["stdout"],
            stderr_path=self._logs["stderr"],
            exit_code=exit_code,
            timed_out=timed_out,
            walltime_sec=walltime_sec,
            exec_error=exec_error,
            core_dumped=core_dumped,
            hang=self._hang,
            log_bytes=self._cut_sizes or self._log_sizes(),
            peak_vram_mib=self._peak_vram,
            vram_growth_mib=growth,
            throttled=throttled,
            kernel_events=events,
            unavailable=unavailable,
            durations_ms={tier: seconds * 1000 for tier, seconds in self._spent.items()},
        )

    def _log_sizes(self) -> dict[str, int]:
        sizes = dict.fromkeys(self._logs, 0)
        for name, path in self._logs.items():
            with contextlib.suppress(OSError):
                sizes[name] = os.stat(path).st_size
        return sizes

    def _look_at_output(self, now: float) -> None:
        sizes = self._log_sizes()
        if sizes != self._sizes:
            self._sizes = sizes
            self._alive["output"] = now

    def _processes(self) -> set[int]:
        """Returns the command's live processes; where orphans come to this process, they are among its descendants."""
        from aorta.run.process import family

        return family(os.getpid()) | family(self._pid) | {self._pid}

    def _look_at_io(self, now: float, pids: set[int]) -> None:
        counts: dict[int, int] = {}
        denied = None
        for pid in pids:
            try:
                counts[pid] = _io_bytes(pid)
            except PermissionError as error:
                denied = f"/proc/{pid}/io: {error.strerror}"
            except (OSError, ValueError):
                continue  # it has just ended
        self._io_unavailable = denied or (None if counts or self._io else "/proc/<pid>/io cannot be read")
        if counts.keys() != self._io.keys():
            self._alive["io"] = now  # a process came or went
        for pid, count in counts.items():
            self._io_total += max(0, count - self._io.get(pid, 0))
        self._io = counts
        if self._io_total - self._io_mark >= LEAST_IO_BYTES:
            self._io_mark = self._io_total
            self._alive["io"] = now

    def _look_at_gpu(self, now: float, pids: set[int]) -> str | None:
        """Notes what the devices say; returns why that is not known, or None."""
        reading = self._gpu.read(pids)
        if reading is None:
            self._alive["gpu"] = now
            return self._gpu.unavailable or "no reading yet"
        if reading.busy:
            self._alive["gpu"] = now
        if reading.vram_mib is not None:
            self._peak_vram = max(self._peak_vram or 0.0, reading.vram_mib)
            if now - self._started >= self._settings.hang_grace_period_at_start:
                if self._first_vram is None:
                    self._first_vram = reading.vram_mib
                self._last_vram = reading.vram_mib
        return None

    def _judge(self, now: float, gpu_unavailable: str | None) -> Hang | None:
        settings = self._settings
        if not settings.is_on("hang") or now - self._started < settings.hang_grace_period_at_start:
            return None
        unavailable = {"gpu": gpu_unavailable, "io": self._io_unavailable}
        quiet = {
            sign: now - seen
            for sign, seen in self._alive.items()
            if unavailable.get(sign) is None and now - seen >= settings.hang_window_sec
        }
        if len(quiet) < 2:
            return None
        return Hang(now - self._started, quiet, {sign: why for sign, why in unavailable.items() if why is not None})


def _io_bytes(pid: int) -> int:
    """Returns the bytes that a process has read and written by system calls, of whatever kind of file.

    Raises:
        OSError: The process has ended, or is another user's.
        ValueError: The file is not what the kernel's documentation says.
    """
    with open(f"/proc/{pid}/io", "rb") as file:
        fields = dict(line.split(b": ") for line in file.read().splitlines())
    try:
        return int(fields[b"rchar"]) + int(fields[b"wchar"])
    except KeyError as error:
        raise ValueError(f"no {error}") from error
