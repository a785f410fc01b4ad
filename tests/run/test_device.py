"""Accelerators are found without a GPU library, and no two trials hold the same one."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from aorta.run.claim import Found, claims_folder, find, waiting_for
from aorta.run.device import Held, count_accelerators, find_accelerators, hold
from aorta.run.locks import HostLocks, LockError

from .conftest import Runner


def fake_amd(root: Path, *unique_ids: int) -> None:
    """A host whose node 0 is a processor and whose other nodes are AMD GPUs."""
    for node, unique_id in enumerate([None, *unique_ids]):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        facts = {"simd_count": 0 if unique_id is None else 304, "unique_id": unique_id or 0}
        if unique_id is not None:
            facts["drm_render_minor"] = 127 + node
            render = root / f"dev/dri/renderD{127 + node}"
            render.parent.mkdir(parents=True, exist_ok=True)
            render.touch()
        (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in facts.items()))


def fake_nvidia(root: Path, *uuids: str) -> None:
    """A host with NVIDIA GPUs, in order of PCI address."""
    for place, uuid in enumerate(uuids):
        folder = root / f"proc/driver/nvidia/gpus/0000:{place:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {place}\n")


def found(root: Path, **env: str) -> list[tuple[int | None, str]]:
    return [(gpu.index, gpu.selector) for gpu in find_accelerators(env, str(root))]


def test_a_host_without_accelerators_has_none(tmp_path: Path) -> None:
    """An empty host counts zero."""
    assert count_accelerators({}, str(tmp_path)) == 0


def test_amd_gpus_are_counted_and_processors_are_not(tmp_path: Path) -> None:
    """Only nodes with compute units are GPUs."""
    fake_amd(tmp_path, 1, 2, 3)
    assert found(tmp_path) == [(0, "0"), (1, "1"), (2, "2")]


def test_a_gpu_that_the_container_may_not_use_is_not_counted(tmp_path: Path) -> None:
    """Without its render device a GPU belongs to another container."""
    fake_amd(tmp_path, 1, 2)
    (tmp_path / "dev/dri/renderD128").unlink()
    assert [gpu.identity for gpu in find_accelerators({}, str(tmp_path))] == ["GPU-0000000000000002"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [(2, "2"), (0, "0")]),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, [(1, "0"), (2, "1")]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [(2, "1")]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000003"}, [(2, "0")]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [(1, "1")]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "0,-1,1"}, [(0, "0")]),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [(0, "0")]),
    ],
)
def test_amd_visibility(tmp_path: Path, env: dict[str, str], expected: list[tuple[int, str]]) -> None:
    """HIP's numbers count what ROCr shows; an entry that names nothing hides the rest."""
    fake_amd(tmp_path, 1, 2, 3)
    assert found(tmp_path, **env) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, [(0, "GPU-aaaa"), (1, "GPU-bbbb")]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [(1, "1")]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, [(1, "GPU-b")]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),
        ({"CUDA_VISIBLE_DEVICES": "MIG-77"}, [(None, "MIG-77")]),
    ],
)
def test_nvidia_visibility(tmp_path: Path, env: dict[str, str], expected: list[tuple[int | None, str]]) -> None:
    """Numbers, unique prefixes of names, and MIG instances choose; an ambiguous prefix does not."""
    fake_nvidia(tmp_path, "GPU-aaaa", "GPU-bbbb")
    assert found(tmp_path, **env) == expected


def test_nvidia_device_files_are_enough(tmp_path: Path) -> None:
    """A sandbox without the driver's folder is counted by its device files."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert found(tmp_path) == [(0, "0"), (1, "1")]


class Host:
    """Holds devices on a fake host; a wait raises instead of waiting."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {"AORTA_LOCK_DIR": str(root / "locks")}

    def hold(self, overlay: dict[str, str] | None = None, **changes: Any) -> Held:
        def busy(_seconds: float) -> None:
            raise BlockingIOError("would wait")

        options = {"count": 1, "slots": 1, "lock": True, "token": "t", "pause": busy, "notify": print, **changes}
        return hold({**self.env, **options.pop("env", {})}, overlay or {}, root=str(self.root), **options)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_two_trials_hold_two_devices_and_a_third_waits(host: Host) -> None:
    """Each trial is pinned to its own GPU, and there is no third."""
    fake_amd(host.root, 1, 2)
    first, second = host.hold(), host.hold()
    assert [held.variables["HIP_VISIBLE_DEVICES"] for held in (first, second)] == ["0", "1"]
    with pytest.raises(BlockingIOError):
        host.hold()
    first.release()
    assert host.hold().variables["HIP_VISIBLE_DEVICES"] == "0"


def test_the_device_is_recorded(host: Host) -> None:
    """The record has the number on the host and the unique name, not the number among the visible ones."""
    fake_amd(host.root, 1, 2)
    held = host.hold(env={"ROCR_VISIBLE_DEVICES": "1"})
    assert held.device == {"kind": "rocm", "index": 1, "identity": "GPU-0000000000000002"}
    assert held.variables["HIP_VISIBLE_DEVICES"] == "0"


def test_the_same_gpu_by_another_name_is_still_taken(host: Host) -> None:
    """Two sweeps that see one GPU under different numbers do not share it."""
    fake_amd(host.root, 1, 2)
    held = host.hold(env={"HIP_VISIBLE_DEVICES": "1"})
    with pytest.raises(BlockingIOError):
        host.hold(env={"ROCR_VISIBLE_DEVICES": "1"})
    held.release()


def test_hip_and_cuda_variables_agree_on_amd(host: Host) -> None:
    """Where the shell sets CUDA_VISIBLE_DEVICES on an AMD host, both variables name the same device."""
    fake_amd(host.root, 1, 2)
    held = host.hold(env={"CUDA_VISIBLE_DEVICES": "1"})
    assert (held.variables["HIP_VISIBLE_DEVICES"], held.variables["CUDA_VISIBLE_DEVICES"]) == ("1", "1")


def test_an_overlay_that_chooses_is_left_alone_and_locked(host: Host) -> None:
    """A cell that sets the variable itself is not pinned, but holds what it chose."""
    fake_nvidia(host.root, "GPU-aaaa", "GPU-bbbb")
    held = host.hold({"CUDA_VISIBLE_DEVICES": "1"})
    assert "CUDA_VISIBLE_DEVICES" not in held.variables
    with pytest.raises(BlockingIOError):
        host.hold(env={"CUDA_VISIBLE_DEVICES": "GPU-bbbb"})
    assert host.hold().device["identity"] == "GPU-aaaa"
    held.release()


def test_an_overlay_that_hides_all_takes_a_processor_slot(host: Host) -> None:
    """A trial without any visible GPU runs on the processor and blocks no GPU."""
    fake_nvidia(host.root, "GPU-aaaa")
    assert host.hold({"CUDA_VISIBLE_DEVICES": ""}).device["kind"] == "cpu"
    assert host.hold().device["kind"] == "cuda"


def test_processor_slots_are_locked(host: Host) -> None:
    """Without accelerators as many trials run as there are slots."""
    first, second = host.hold(slots=2), host.hold(slots=2)
    with pytest.raises(BlockingIOError):
        host.hold(slots=2)
    assert {first.device["kind"], second.device["kind"]} == {"cpu"}


def test_a_trial_inside_a_trial_uses_what_the_outer_one_holds(host: Host) -> None:
    """It takes no lock of its own, which would wait for ever, and records the same device."""
    fake_amd(host.root, 1)
    outer = host.hold()
    inner = host.hold(env=outer.variables)
    assert (inner.device, inner.variables) == (outer.device, {})


def test_without_locks_nothing_is_pinned(host: Host) -> None:
    """--no-device-lock leaves the choice to the caller and makes no lock folder."""
    fake_amd(host.root, 1, 2)
    held = host.hold(lock=False)
    assert "HIP_VISIBLE_DEVICES" not in held.variables
    assert not (host.root / "locks").exists()


def test_more_ranks_than_devices_take_all_there_are(host: Host) -> None:
    """A trial that asks for more than the host has starts; whether its ranks can share is the workload's to judge."""
    fake_amd(host.root, 1)
    assert [device["index"] for device in host.hold(count=2).devices] == [0]
    with pytest.raises(BlockingIOError):
        host.hold()


def test_each_local_rank_has_its_own_device(host: Host) -> None:
    """The devices held are recorded in the order in which the local ranks use them."""
    fake_amd(host.root, 1, 2, 3)
    held = host.hold(count=2)
    assert [device["index"] for device in held.devices] == [0, 1]
    assert held.variables["HIP_VISIBLE_DEVICES"] == "0,1"


def test_two_devices_are_held_together_or_not_at_all(host: Host) -> None:
    """A trial that waits for its second device does not keep the first."""
    fake_amd(host.root, 1, 2)
    one = host.hold()
    with pytest.raises(BlockingIOError):
        host.hold(count=2)
    assert host.hold().variables["HIP_VISIBLE_DEVICES"] == "1"
    one.release()


def test_the_lock_folder_serves_every_user(host: Host) -> None:
    """Folder and files are writable for all, whatever the umask, and the folder is sticky."""
    previous = os.umask(0o077)
    try:
        host.hold()
    finally:
        os.umask(previous)
    folder = host.root / "locks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o666]


def test_a_lock_file_that_is_a_link_is_refused(host: Host) -> None:
    """In a folder that everyone may write to, a link could make us empty another file."""
    folder = host.root / "locks"
    folder.mkdir()
    (host.root / "precious").write_text("data")
    (folder / "cpu-0.lock").symlink_to(host.root / "precious")
    with pytest.raises(LockError, match="cpu-0"):
        host.hold()
    assert (host.root / "precious").read_text() == "data"


def test_a_lock_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    """The error names the folder and the two ways out."""
    (tmp_path / "file").touch()
    with pytest.raises(LockError, match=r"AORTA_LOCK_DIR.*--no-device-lock"):
        HostLocks(str(tmp_path / "file" / "locks"), "t")


def claims(trial: Runner) -> list[Found]:
    """The claims on the trials of the runner's cell; where there are none, no note of a wait is left either."""
    folder = Path(claims_folder(str(trial.run_dir)), "baseline-local")
    found = find(str(folder))
    assert found or not any(folder.iterdir())
    return found


def test_a_waiting_trial_names_the_holder_and_does_not_time_the_wait(trial: Runner, tmp_path: Path) -> None:
    """After two seconds a notice names the holder; the wait is no part of the trial's time."""
    locks = tmp_path / "locks"
    locks.mkdir()
    with open(locks / "cpu-0.lock", "w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("4242 token\n")
        file.flush()
        trial.plan("Noop")
        supervisor = trial.start()
        assert supervisor.stderr is not None
        notice = supervisor.stderr.readline()
        (claim,) = claims(trial)
        noted = waiting_for(claim.path)
        file.truncate(0)
    trial.finish(supervisor)
    assert "process 4242" in notice
    assert noted is not None and notice.endswith(f": {noted}\n")
    assert claims(trial) == []
    assert trial.record()["wall_clock_sec"] < 2.0


def test_no_device_lock_does_not_wait(trial: Runner, tmp_path: Path) -> None:
    """With --no-device-lock a trial runs beside a holder."""
    locks = tmp_path / "locks"
    locks.mkdir()
    with open(locks / "cpu-0.lock", "w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert trial("Noop", "--no-device-lock")["verdict"] == "pass"


def test_a_signal_ends_a_wait(trial: Runner, tmp_path: Path) -> None:
    """A supervisor that waits for a device can be ended."""
    locks = tmp_path / "locks"
    locks.mkdir()
    with open(locks / "cpu-0.lock", "w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        trial.plan("Noop")
        supervisor = trial.start()
        assert supervisor.stderr is not None
        assert "waiting for" in supervisor.stderr.readline()
        supervisor.terminate()
        trial.finish(supervisor)
    assert supervisor.returncode == 128 + 15
    assert claims(trial) == []


def test_the_record_tells_the_device(trial: Runner) -> None:
    """The trial's record has the kind of what it ran on, and the worker was told that it holds it."""
    record = trial("Environ", workload_config={"names": ["AORTA_DEVICE_HELD"]})
    told = record["result"]["metrics"]["exec"]["AORTA_DEVICE_HELD"]
    assert told.split("|")[0] == record["device"]["kind"]
