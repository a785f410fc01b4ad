"""Full, small and read-only disks: a whole record or none, and a clear line."""

from __future__ import annotations

import compileall
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aorta

from .conftest import Runner


def run(trial: Runner, before: Callable[[], None] | None = None) -> tuple[int, str]:
    """Runs a trial of the planned cell and returns the exit status and what was said."""
    done = subprocess.run(
        trial.command(), env=trial.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=before,
        timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def check(trial: Runner, code: int, said: str, reason: str) -> bool:
    """Whether the trial was recorded; if not, that it says why, and that nothing is left of it."""
    path = trial.path("trial_d0_m0_t0.json")
    if code == 0:
        assert json.loads(path.read_text())["verdict"] == "pass"
    else:
        assert not path.exists()
        assert (code, said.count("\n"), "Traceback" in said) == (1, 1, False), said
        assert reason in said and str(trial.run_dir) in said
        assert "the trial has no record" in said
    left = [path for path in trial.run_dir.rglob("*") if path.is_file() and path.name not in ("cell.json", "filler")]
    assert [path.name for path in left] == (["trial_d0_m0_t0.json"] if code == 0 else [])
    return code == 0


@pytest.fixture(scope="module")
def compiled() -> None:
    """The package's byte code is on the disk: Python would leave it cut short where files may not grow."""
    compileall.compile_dir(str(Path(aorta.__file__).parent), quiet=2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("limit", [0, 1, 100, 1000, 60_000, 1_000_000])
def test_a_write_that_is_cut_short_leaves_nothing(trial: Runner, limit: int) -> None:
    """Whichever file is the first that does not fit, nothing half-written is left, and room makes it work."""
    trial.plan("Noop")
    code, said = run(trial, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert check(trial, code, said, "File too large") == (limit == 1_000_000)
    assert check(trial, *run(trial), "") is True


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system; only root may."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount program")
        if done.returncode != 0:
            pytest.skip("this user may not mount a file system")
        return folder

    yield mount
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True, capture_output=True)


@pytest.mark.parametrize("left", [0, 1, 2, 3, 5, 15, 16, 17, 18, 20])
def test_a_full_disk_is_said_at_any_write(small_disk: Callable[[str], Path], left: int) -> None:
    """With few free pages, or about what is asked for before a start: a whole record or none, and a clear line."""
    folder = small_disk("size=256k")
    trial = Runner(folder)
    trial.env["AORTA_LOCK_DIR"] = str(folder.parent / "locks")
    trial.plan("Noop")
    with (trial.run_dir / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
        file.truncate(os.fstat(file.fileno()).st_size - left * 4096)
    check(trial, *run(trial), "No space left on device")
    (trial.run_dir / "filler").unlink()
    assert check(trial, *run(trial), "") is True


@pytest.mark.parametrize("left", range(1, 7))
def test_a_disk_without_room_for_names_is_said(small_disk: Callable[[str], Path], left: int) -> None:
    """A disk can also run out of inodes: the same holds."""
    folder = small_disk("size=1m,nr_inodes=5")
    trial = Runner(folder)
    trial.env["AORTA_LOCK_DIR"] = str(folder.parent / "locks")
    trial.plan("Noop")
    remount(folder, f"nr_inodes={5 + left}")
    recorded = check(trial, *run(trial), "No space left on device")
    assert recorded or left < 6
    remount(folder, "nr_inodes=100")
    assert check(trial, *run(trial), "") is True


def test_a_read_only_disk_is_said(small_disk: Callable[[str], Path]) -> None:
    """Nothing can be written, and one line says so."""
    folder = small_disk("size=1m")
    trial = Runner(folder)
    trial.env["AORTA_LOCK_DIR"] = str(folder.parent / "locks")
    trial.plan("Noop")
    remount(folder, "ro")
    assert check(trial, *run(trial), "Read-only file system") is False
    remount(folder, "rw")
    assert check(trial, *run(trial), "") is True


def test_a_tight_umask_is_respected(trial: Runner) -> None:
    """Nobody else can read what is written, and nothing fails for it."""
    trial.plan("Noop")
    code, said = run(trial, lambda: os.umask(0o077) and None)
    assert check(trial, code, said, "") is True
    assert trial.path("trial_d0_m0_t0.json").stat().st_mode & 0o777 == 0o600


ODD = "a b'c\"d\\e\nf\tg $(x) ;& é 漢 {y} %20"


@pytest.mark.parametrize("name", [ODD, "n" * 255, "漢" * 85, " ", "-rf", "\udcff"])
def test_odd_names_of_folders_are_only_names(tmp_path: Path, name: str) -> None:
    """Spaces, quotes, newlines, bytes that are no UTF-8, and 255 bytes of name reach no shell and no format string."""
    (tmp_path / name).mkdir()
    trial = Runner(tmp_path / name)
    trial.plan("Noop")
    assert check(trial, *run(trial), "") is True
