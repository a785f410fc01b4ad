"""Workloads for end-to-end tests, registered like any plugin's: no torch, so that a trial takes a tenth of a second."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aorta.workloads import ConfigProblem, Workload, WorkloadResult


def _environment_at_start() -> dict[str, str]:
    """The environment that the kernel gave this interpreter, whatever was changed since."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)


class Witness(Workload):
    """Passes, and reports what it saw of its surroundings."""

    def run(self) -> WorkloadResult:
        names = self.config.get("watch", [])
        at_start = _environment_at_start()
        return WorkloadResult(
            passed=True,
            total_iterations=self.config["steps"],
            step_times_ms=[float(step + 1) for step in range(self.config["steps"])],
            main_work_started=True,
            executed_iterations=self.config["steps"],
            configured_iterations=self.config["steps"],
            metrics={
                "at_start": {name: at_start.get(name) for name in names},
                "in_run": {name: os.environ.get(name) for name in names},
                "trial_env": self.config["_aorta_trial_env"],
                "config": dict(self.config),
            },
        )


class Chaos(Workload):
    """Ends as ``workload_config.end`` says."""

    @classmethod
    def check_config(cls, config: dict[str, Any]) -> list[ConfigProblem]:
        return [ConfigProblem(key=key, message="unknown key") for key in config if key not in {"end", "marker"}]

    def setup(self) -> None:
        if self.config.get("end") == "setup":
            raise RuntimeError("no such fabric")

    def run(self) -> WorkloadResult:
        end = self.config.get("end", "pass")
        if end == "segfault":
            ctypes.string_at(0)
        if end == "raise":
            raise ValueError("rank 0 lost its mind")
        if end == "exit":
            raise SystemExit(0)
        if end == "hang":
            time.sleep(3600)
        if end == "marker" and not Path(self.config["marker"]).exists():
            # Takes its supervisor along: what a power cut or an out-of-memory kill looks like to Snakemake.
            os.kill(os.getppid(), 9)
            time.sleep(3600)
        return WorkloadResult(
            passed=end != "fail",
            failure_count=int(end == "fail"),
            first_failure_iteration=0 if end == "fail" else None,
            failure_details=[{"step": 0, "hint": "the planted failure"}] if end == "fail" else [],
            total_iterations=self.config["steps"],
            step_times_ms=[2.0] * self.config["steps"],
            main_work_started=end != "never",
            executed_iterations=self.config["steps"],
            configured_iterations=self.config["steps"],
        )


class Boxed(Workload):
    """Stands for a workload that runs in a container: leaves the snapshot where the engine asked for it."""

    acts_on = frozenset({"docker"})

    def run(self) -> WorkloadResult:
        probe = self.config.get("_aorta_env_probe")
        if probe is not None:
            command = [sys.executable, "-m", "aorta.instrumentation._probe_main", "--no-torch", probe["out"]]
            subprocess.run(command, env={"PYTHONPATH": probe["src"]}, check=True)
        return WorkloadResult(passed=True, total_iterations=1, main_work_started=True)


class Careless(Workload):
    """A plugin whose class says nonsense and whose check raises; its trials are fine."""

    isolation_default = "nope"  # type: ignore[assignment]
    min_world_size = "two"  # type: ignore[assignment]

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> list[ConfigProblem]:
        raise RuntimeError("not today")

    def run(self) -> WorkloadResult:
        return WorkloadResult(passed=True, total_iterations=1, main_work_started=True)
