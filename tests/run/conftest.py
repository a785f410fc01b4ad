"""Makes run directories with one cell, and runs trials in them as the workflow does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aorta._resources import load_schema
from aorta.dag.leftovers import clear_leftovers

REPOSITORY = Path(__file__).resolve().parents[2]
SUPERVISE = REPOSITORY / "aorta" / "run" / "supervise.py"
FINGERPRINT = "ab" * 32
DEADLINE_SEC = 30.0


def cell_request(reference: str, /, **changes: Any) -> dict[str, Any]:
    """A valid cell request; ``reference`` is a class of ``workloads_fixture`` or ``module:Class``."""
    overlay = changes.pop("overlay", {})
    launch = {"mode": "single_process", "nnodes": 1, "nproc_per_node": 1, "min_world_size": 1}
    return {
        "schema_version": 1,
        "run_dir": None,
        "cell": "baseline-local",
        "cell_index": 0,
        "workload": "tiny",
        "workload_ref": reference if ":" in reference else f"workloads_fixture:{reference}",
        "steps": 4,
        "trials": 1,
        "mitigations": ["none"],
        "environment": {
            "name": "local",
            "docker": None,
            "venv": None,
            "buck_target": None,
            "emulator": None,
            "mirage_profile": None,
            "env": {},
            "source_package": "aorta",
        },
        "env": {name: {"value": value, "layer": "cell.extra_env"} for name, value in overlay.items()},
        "extra_env": overlay,
        "workload_config": {},
        "collect": {},
        "isolation": "process",
        "acts_on": [],
        "save_logs": False,
        "trial_timeout_sec": 60.0,
        "fingerprint": FINGERPRINT,
        **changes,
        "launch": {**launch, **changes.get("launch", {})},
    }


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Polls until ``condition`` gives something true, and returns that; fails after the deadline."""
    deadline = time.monotonic() + DEADLINE_SEC
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {DEADLINE_SEC} s for {what}"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class Runner:
    """Runs trials of one cell in a run directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AORTA_")},
            "PYTHONPATH": str(Path(__file__).parent),
            "AORTA_LOCK_DIR": str(folder / "locks"),
            # The same on every host: these trials are about the engine, not about a GPU.
            "CUDA_VISIBLE_DEVICES": "",
            "HIP_VISIBLE_DEVICES": "",
        }
        self.validator = jsonschema.Draft202012Validator(load_schema("trial"))

    def plan(self, reference: str, /, **changes: Any) -> None:
        """Writes the cell's request."""
        path = self.run_dir / "cells" / "baseline-local" / "cell.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(cell_request(reference, **changes)))

    def command(self, *options: str, trial: int = 0, fingerprint: str = FINGERPRINT) -> list[str]:
        """The supervisor's command line."""
        fixed = ["--run-dir", str(self.run_dir), "--cell", "baseline-local", "--trial", str(trial)]
        return [sys.executable, "-I", "-S", str(SUPERVISE), *fixed, "--fingerprint", fingerprint, *options]

    def start(self, *options: str, **more: Any) -> subprocess.Popen[str]:
        """Starts a trial of the planned cell."""
        return self.start_command(self.command(*options, **more))

    def start_command(self, command: list[str]) -> subprocess.Popen[str]:
        """Starts any command with the trial's environment."""
        return subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(self, process: subprocess.Popen[str]) -> str:
        """Waits for a trial's supervisor and returns what it wrote to standard error."""
        return process.communicate(timeout=DEADLINE_SEC)[1]

    def record(self, trial: int = 0, workload: str = "tiny") -> dict[str, Any]:
        """Reads and validates a trial's record."""
        text = self.path(f"trial_d0_m0_t{trial}.json", workload).read_text("utf-8")
        record: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"bare {name} in the record"))
        errors = [f"{error.json_path}: {error.message}" for error in self.validator.iter_errors(record)]
        assert errors == []
        return record

    def path(self, name: str, workload: str = "tiny") -> Path:
        """The path of a file beside the record."""
        return self.run_dir / "cells" / "baseline-local" / workload / name

    def __call__(self, reference: str, /, *options: str, **changes: Any) -> dict[str, Any]:
        """Plans and runs one trial, and returns its record."""
        self.plan(reference, **changes)
        # A trial that has a record does not run again.
        self.path("trial_d0_m0_t0.json", changes.get("workload", "tiny")).unlink(missing_ok=True)
        process = self.start(*options)
        said = self.finish(process)
        assert process.returncode == 0, said
        record = self.record(workload=changes.get("workload", "tiny"))
        assert not alive(record["pid"]) if record["pid"] else True
        return {**record, "said": said}


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Runner]:
    """Runs trials in a fresh run directory, and checks that no file of the engine's is left but the records.

    What a killed supervisor reserved for its record goes at the sweep's end.
    """
    runner = Runner(tmp_path)
    yield runner
    clear_leftovers(runner.run_dir)
    assert [path.name for path in runner.run_dir.rglob(".tmp-*")] == []
