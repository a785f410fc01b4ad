"""Watching a command: hangs, the kernel's log, the devices, and what the supervisor's own signals cause."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aorta.probe.gpu import GpuWatch, Reading, heat_counters
from aorta.probe.kernel import KernelLog, kernel_faults, lines_since
from aorta.probe.observe import Observer
from aorta.probe.settings import ProbeSettings

DEADLINE_SEC = 30.0


class FakeGpu(GpuWatch):
    """Devices that do what a test says; None for a host without any."""

    def __init__(self, *readings: Reading | None) -> None:
        self.readings = list(readings)
        self.unavailable = None if readings else "no device"
        self.throttled: dict[str, str] = {}

    def read(self, pids: set[int]) -> Reading | None:
        """The next reading; the last one for ever."""
        if not self.readings:
            return None
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def finish(self, throttling: bool) -> tuple[dict[str, str], str | None]:
        """What the test says of heat."""
        return self.throttled, None


class Watched:
    """A real process under an observer whose clock a test turns."""

    def __init__(self, folder: Path, program: str, gpu: FakeGpu, **settings: Any) -> None:
        self.now = 0.0
        self.stdout = folder / "stdout.log"
        self.stdout.touch()
        (folder / "stderr.log").touch()
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.observer = Observer(
            self.process.pid,
            str(self.stdout),
            str(folder / "stderr.log"),
            ProbeSettings(settings),
            clock=lambda: self.now,
            gpu=gpu,
            kernel=KernelLog(str(folder / "none"), tools=()),
        )

    def poll_at(self, now: float) -> Any:
        """One look at a time."""
        self.now = now
        return self.observer.poll()


WAITS = "print('ready', flush=True); input()"
READS = """
import os, sys
print('ready', flush=True)
zero = os.open('/dev/zero', os.O_RDONLY)
for line in sys.stdin:
    os.read(zero, 65536)
    print('read', flush=True)
"""


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Starts watched processes, and ends them after the test."""
    started: list[Watched] = []

    def start(program: str = WAITS, gpu: FakeGpu | None = None, **settings: Any) -> Watched:
        started.append(Watched(tmp_path, program, gpu or FakeGpu(), **settings))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


IDLE, BUSY = Reading(False, 100.0), Reading(True, 100.0)


def test_a_silent_idle_process_hangs(watched: Callable[..., Watched]) -> None:
    """Two signs: no output and no I/O; that no GPU can be read is said."""
    command = watched()
    assert [command.poll_at(float(now)) for now in range(0, 60, 10)] == [None] * 6
    hang = command.poll_at(61.0)
    assert set(hang.quiet_sec) == {"output", "io"}
    assert hang.unavailable == {"gpu": "no device"}
    assert str(hang) == "no output for 61 s, no I/O for 61 s"


def test_nothing_hangs_within_the_grace_period(watched: Callable[..., Watched]) -> None:
    """Imports and compilations are silent."""
    command = watched(hang_grace_period_at_start=100, hang_window_sec=5)
    assert [command.poll_at(now) for now in (0.0, 50.0, 99.0)] == [None] * 3
    assert command.poll_at(100.0) is not None


def test_output_is_a_sign_of_life(watched: Callable[..., Watched]) -> None:
    """With one sign left there is no hang."""
    command = watched(hang_grace_period_at_start=0)
    for now in range(0, 200, 20):
        with command.stdout.open("a") as file:
            file.write("step\n")
        assert command.poll_at(float(now)) is None
    assert command.poll_at(211.0) is not None


def test_io_is_a_sign_of_life(watched: Callable[..., Watched]) -> None:
    """A process that reads its data is alive though it prints nothing."""
    command = watched(READS, hang_grace_period_at_start=0)
    assert command.process.stdin is not None and command.process.stdout is not None
    for now in range(0, 200, 20):
        command.process.stdin.write(b"go\n")
        command.process.stdin.flush()
        assert command.process.stdout.readline() == b"read\n"
        assert command.poll_at(float(now)) is None
    assert command.poll_at(220.0) is not None


def test_an_idle_gpu_is_the_third_sign(watched: Callable[..., Watched]) -> None:
    """A busy one is none: then the other two decide."""
    idle = watched(gpu=FakeGpu(IDLE), hang_grace_period_at_start=0)
    idle.poll_at(0.0)
    assert set(idle.poll_at(31.0).quiet_sec) == {"output", "io", "gpu"}
    busy = watched(gpu=FakeGpu(BUSY), hang_grace_period_at_start=0)
    busy.poll_at(0.0)
    assert set(busy.poll_at(31.0).quiet_sec) == {"output", "io"}


def test_a_device_that_stops_answering_is_not_idle(watched: Callable[..., Watched]) -> None:
    """Without a reading the sign does not count."""
    command = watched(READS, gpu=FakeGpu(IDLE, None), hang_grace_period_at_start=0)
    command.poll_at(0.0)
    hang = command.poll_at(31.0)
    assert "gpu" not in hang.quiet_sec


def test_a_hang_is_reported_again(watched: Callable[..., Watched]) -> None:
    """Later looks do not take it back, and it can be disabled."""
    command = watched(hang_grace_period_at_start=0)
    command.poll_at(0.0)
    assert command.poll_at(40.0) is command.poll_at(50.0) is not None
    disabled = watched(hang_grace_period_at_start=0, disable_detector_tiers=["tier2"])
    assert [disabled.poll_at(now) for now in (0.0, 40.0, 400.0)] == [None] * 3


def test_output_after_the_cut_does_not_count(watched: Callable[..., Watched]) -> None:
    """The log's size is noted when the supervisor begins to end the command."""
    command = watched()
    command.stdout.write_text("before\n")
    command.observer.cut()
    command.stdout.write_text("before\nKeyboardInterrupt\n")
    observation = command.observer.finish(-15, True, 12.0)
    assert observation.log_bytes == {"stdout": 7, "stderr": 0}
    assert (observation.exit_code, observation.timed_out, observation.was_cut) == (-15, True, True)


def test_memory_is_followed(watched: Callable[..., Watched]) -> None:
    """The peak of all, and the growth after the grace period."""
    readings = [Reading(True, mib) for mib in (10.0, 5000.0, 1000.0, 1500.0, 2600.0)]
    command = watched(gpu=FakeGpu(*readings), hang_grace_period_at_start=10, hang_window_sec=1000)
    for now in (0.0, 5.0, 10.0, 15.0, 20.0):
        command.poll_at(now)
    observation = command.observer.finish(0, False, 20.0)
    assert (observation.peak_vram_mib, observation.vram_growth_mib) == (5000.0, 1600.0)


def test_what_could_not_be_read_is_named(watched: Callable[..., Watched], tmp_path: Path) -> None:
    """The kernel log's reason and the device's."""
    observation = watched().observer.finish(0, False, 1.0)
    assert observation.unavailable["tier3.kernel_log"].endswith("none: No such file or directory")
    assert observation.unavailable["gpu"] == "no device"
    assert observation.kernel_events == []


FAULTS = [
    ("amdgpu_reset", "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!"),
    ("amdgpu_reset", "amdgpu 0000:c1:00.0: amdgpu: GPU reset(4) succeeded!"),
    ("amdgpu_reset", "amdgpu 0000:03:00.0: amdgpu: GPU mode1 reset"),
    ("sdma_timeout", "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=12, emitted seq=14"),
    ("sdma_timeout", "amdgpu 0000:c1:00.0: amdgpu: ring sdma1.2 timeout, but soft recovered"),
    ("vm_l2_fault", "amdgpu 0000:83:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32771)"),
    ("vm_l2_fault", "amdgpu 0000:83:00.0: amdgpu: VM_L2_PROTECTION_FAULT_STATUS:0x00801031"),
    ("xgmi_link_error", "amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in xgmi_wafl block"),
    ("pcie_aer_fatal", "pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:c1:00.0"),
    ("pcie_aer_fatal", "amdgpu 0000:c1:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"),
]


@pytest.mark.parametrize(("detector", "line"), FAULTS)
def test_the_kernel_logs_a_fault(detector: str, line: str) -> None:
    """As the drivers of several years print them."""
    assert kernel_faults(line) == [detector]


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c1:00.0: amdgpu: XGMI: Add node 1, hive 0x2f0, num_nodes 8",
        "amdgpu 0000:c1:00.0: amdgpu: 0 uncorrectable hardware errors detected in xgmi_wafl block",
        "pcieport 0000:80:01.1: AER: Corrected error received: 0000:c1:00.0",
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset is supported, method mode1",
        "[drm] ring sdma0 uses VM inv eng 0 on hub 8",
        "usb 1-1: reset high-speed USB device number 2",
        "python[412]: segfault at 0 ip 00007f sp 00007ffd error 4",
    ],
)
def test_the_kernel_logs_much_else(line: str) -> None:
    """Start-up lines, corrected errors and other devices are no faults."""
    assert kernel_faults(line) == []


def test_only_what_comes_while_it_is_open_counts(tmp_path: Path) -> None:
    """A fault of yesterday is not this trial's."""
    device = tmp_path / "kmsg"
    record = "6,1234,5678901,-;amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!\n SUBSYSTEM=pci\n"
    device.write_text(record)
    log = KernelLog(str(device))
    with device.open("a") as file:
        file.write(record.replace("c1", "c3"))
    assert log.finish() == ([("amdgpu_reset", "amdgpu 0000:c3:00.0: amdgpu: GPU reset begin!")], None)


def test_tools_are_asked_where_the_device_is_closed(tmp_path: Path) -> None:
    """In turn; if none may tell, all reasons are said."""
    line = FAULTS[0][1]
    log = KernelLog(str(tmp_path / "none"), tools=(lambda *_: "dmesg: not permitted", lambda *_: [line]))
    assert log.finish() == ([("amdgpu_reset", line)], None)
    log = KernelLog(str(tmp_path / "none"), tools=(lambda *_: "dmesg: not permitted",))
    assert log.finish() == ([], f"{tmp_path / 'none'}: No such file or directory; dmesg: not permitted")


def test_dmesg_is_cut_at_the_start() -> None:
    """Its stamps are seconds since the boot; a line without one belongs to no time."""
    assert lines_since(["[   10.5] old", "[  400.000001] new", "no stamp"], 400.0) == ["new"]


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
def test_the_real_kernel_log_can_be_read() -> None:
    """The device opens, and its end is found."""
    events, reason = KernelLog().finish()
    assert (reason, isinstance(events, list)) == (None, True)


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + DEADLINE_SEC
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A device tree of two cards, and one process on them."""
    for card, busy in (("card0", "0"), ("card1", "0")):
        folder = tmp_path / "class/drm" / card / "device"
        folder.mkdir(parents=True)
        (folder / "gpu_busy_percent").write_text(f"{busy}\n")
    process = tmp_path / "class/kfd/kfd/proc/77"
    process.mkdir(parents=True)
    (process / "vram_101").write_text(f"{3 << 20}\n")
    (process / "vram_102").write_text(f"{2 << 20}\n")
    (process / "pasid").write_text("9\n")
    return tmp_path


def test_the_devices_are_read(sysfs: Path) -> None:
    """Any busy device counts; memory is that of the command's own processes."""
    watch = GpuWatch(str(sysfs), amd_smi=dict)
    try:
        until(lambda: (reading := watch.read({77, 78})) is not None and reading.vram_mib == 5.0)
        reading = watch.read({77})
        assert reading is not None and not reading.busy
        (sysfs / "class/drm/card1/device/gpu_busy_percent").write_text("98\n")
        until(lambda: (reading := watch.read({77})) is not None and reading.busy)
    finally:
        watch.finish(False)


def test_a_device_that_does_not_answer_is_unavailable(sysfs: Path) -> None:
    """An old reading is none."""
    now = [0.0]
    watch = GpuWatch(str(sysfs), amd_smi=dict, clock=lambda: now[0])
    until(lambda: watch.read(set()) is not None)
    watch.finish(False)
    now[0] = 1000.0
    until(lambda: watch.read(set()) is None)
    assert watch.unavailable is not None and "answered" in watch.unavailable


def test_a_host_without_devices_says_so(tmp_path: Path) -> None:
    """Nothing is guessed."""
    watch = GpuWatch(str(tmp_path))
    assert watch.read({1}) is None
    assert watch.finish(True) == ({}, "no device of this host tells how busy it is (gpu_busy_percent)")


def test_heat_is_what_grew(sysfs: Path) -> None:
    """Counters are compared from before to after."""
    answers = [{"gpu 0 a": 5, "gpu 1 a": 2}, {"gpu 0 a": 9, "gpu 1 a": 2}]
    watch = GpuWatch(str(sysfs), amd_smi=lambda: answers.pop(0))
    until(lambda: watch.read(set()) is not None)
    assert watch.finish(True) == ({"gpu 0 a": "+4"}, None)


def test_a_missing_tool_is_said(sysfs: Path) -> None:
    """Throttling is then unknown, not absent."""
    watch = GpuWatch(str(sysfs), amd_smi=lambda: "amd-smi: No such file or directory")
    until(lambda: watch.read(set()) is not None)
    assert watch.finish(True) == ({}, "amd-smi: No such file or directory")


@pytest.mark.parametrize(
    "data",
    [
        [{"gpu": 3, "throttle": {"hbm_thermal_accumulated": 7, "ppt_accumulated": 9, "vr_thermal_accumulated": "N/A"}}],
        {"gpu_data": [{"gpu": 3, "throttle": {"hbm_thermal_accumulated": {"value": 7, "unit": ""}}}]},
    ],
)
def test_counters_are_found_in_both_forms(data: Any) -> None:
    """Power is no heat, and what is not available is no number."""
    assert heat_counters(data) == {"gpu 3 hbm_thermal_accumulated": 7}
