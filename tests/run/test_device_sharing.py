"""Two sweeps that share a host's accelerators under load, while their supervisors are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.run.conftest import DEADLINE_SEC, FINGERPRINT, cell_request
from tests.run.sharing_fixture import STAY_VARIABLE
from tests.run.test_device import fake_amd, fake_nvidia

SUPERVISOR = Path(__file__).resolve().parent / "sharing_supervisor.py"
TRIALS = 12
AT_ONCE = 4


class Sweep:
    """Runs the trials of one cell, several at once and those that were killed again, as Snakemake does.

    Args:
        folder: Where everything lies.
        name: The sweep's name.
        config: The workload's settings.
        victims: Trials whose supervisor is killed once.
        variables: Environment variables of the sweep.
        overlay: Variables of its cell.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        config: dict[str, Any],
        victims: set[int],
        *,
        variables: dict[str, str] | None = None,
        overlay: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.run_dir = folder / name
        self.victims = victims
        self._host = folder / "host"
        self._log = folder / "use" / "log"
        self._waiting = list(range(TRIALS))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        inherited = {key: value for key, value in os.environ.items() if not key.endswith("VISIBLE_DEVICES")}
        self._env = {
            **{key: value for key, value in inherited.items() if not key.startswith("AORTA_")},
            "PYTHONPATH": str(Path(__file__).parent),
            "AORTA_LOCK_DIR": str(folder / "locks"),
            **(variables or {}),
        }
        cell = self.run_dir / "cells" / "baseline-local" / "cell.json"
        cell.parent.mkdir(parents=True)
        own = {**config, "folder": str(folder / "use"), "sweep": name}
        request = cell_request("sharing_fixture:OnDevice", workload_config=own, overlay=overlay or {})
        cell.write_text(json.dumps({**request, "trials": TRIALS}))

    def step(self, used: list[dict[str, Any]]) -> bool:
        """Starts, kills and collects supervisors; tells whether all trials are recorded."""
        while self._waiting and len(self._running) < AT_ONCE:
            self._start(self._waiting.pop(0))
        stay = {entry["trial"] for entry in used if entry["stays"] and entry["sweep"] == self.name}
        for trial, process in list(self._running.items()):
            if trial in self.victims and trial in stay:
                self.victims.remove(trial)
                os.kill(process.pid, signal.SIGKILL)
                assert process.wait(DEADLINE_SEC) == -signal.SIGKILL
            if process.poll() is not None:
                del self._running[trial]
                if process.returncode != 0:
                    self._waiting.append(trial)
        return not self._waiting and not self._running

    def _start(self, trial: int) -> None:
        words = ["--run-dir", str(self.run_dir), "--cell", "baseline-local", "--fingerprint", FINGERPRINT]
        command = [sys.executable, "-I", "-S", str(SUPERVISOR), str(self._host), *words, "--trial", str(trial)]
        stay = {STAY_VARIABLE: "1"} if trial in self.victims else {}
        self._running[trial] = subprocess.Popen(command, env={**self._env, **stay}, stderr=subprocess.DEVNULL)

    def end(self) -> None:
        """Leaves no supervisor behind."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text("utf-8")) for path in self.run_dir.rglob("trial_*.json")]


@pytest.mark.parametrize(
    ("kind", "names", "fake", "renamed", "pair"),
    [
        (
            "rocm",
            ["0", "1", "2"],
            lambda root: fake_amd(root, 1, 2, 3),
            {"HIP_VISIBLE_DEVICES": "2,1,0"},
            {"HIP_VISIBLE_DEVICES": "2,0"},
        ),
        (
            "cuda",
            ["GPU-aa", "GPU-bb", "GPU-cc"],
            lambda root: fake_nvidia(root, "GPU-aa", "GPU-bb", "GPU-cc"),
            {"CUDA_VISIBLE_DEVICES": "2,1,0"},
            {"CUDA_VISIBLE_DEVICES": "GPU-cc,GPU-aa"},
        ),
    ],
    ids=["rocm", "cuda"],
)
def test_two_sweeps_hold_disjoint_devices_under_load_and_after_crashes(
    tmp_path: Path,
    kind: str,
    names: list[str],
    fake: Callable[[Path], None],
    renamed: dict[str, str],
    pair: dict[str, str],
) -> None:
    """Eight supervisors want three devices; seven of them are killed, and their grandchildren use the devices on.

    One sweep sees the devices by other names; a cell of the other one takes two at once. No trial finds a device of its
    own in use, and in the end each is recorded with what it ran on.
    """
    fake(tmp_path / "host")
    (tmp_path / "use").mkdir()
    dice = random.Random(f"sharing-{kind}")
    config = {"kind": kind, "names": names}
    single = Sweep(tmp_path, "single", config, set(dice.sample(range(TRIALS), 4)), variables=renamed)
    double = Sweep(tmp_path, "double", config, set(dice.sample(range(TRIALS), 3)), overlay=pair)
    log = tmp_path / "use" / "log"

    def used() -> list[dict[str, Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    deadline = time.monotonic() + 120
    done = False
    try:
        while not done:
            assert time.monotonic() < deadline, "not all trials were recorded in time"
            time.sleep(0.01)
            ended = [sweep.step(used()) for sweep in (single, double)]
            done = all(ended)
    finally:
        single.end()
        double.end()
    assert not single.victims and not double.victims
    assert [entry for entry in used() if entry["raced"]] == []
    assert sum(entry["stays"] for entry in used()) == 7
    found: dict[str, list[list[str]]] = {}
    for sweep in (single, double):
        records = sweep.records()
        assert sorted(record["trial"] for record in records) == list(range(TRIALS))
        assert {(record["verdict"], record["device"]["kind"]) for record in records} == {("pass", kind)}
        found[sweep.name] = [record["result"]["metrics"]["devices"] for record in records]
        assert all(names[record["device"]["index"]] in record["result"]["metrics"]["devices"] for record in records)
    assert {len(devices) for devices in found["single"]} == {1}
    assert {name for devices in found["single"] for name in devices} == set(names)
    assert {tuple(devices) for devices in found["double"]} == {(names[2], names[0])}
