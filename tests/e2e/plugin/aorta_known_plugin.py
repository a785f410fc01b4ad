"""A workload whose verdict is known beforehand, and that notes every run of a trial for the chaos test."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from aorta.workloads import Workload, WorkloadResult

LOG_VARIABLE = "KNOWN_LOG"
SECONDS_VARIABLE = "KNOWN_SECONDS"


def _own_trial() -> dict[str, str]:
    """The supervisor's options, which name this trial: no workload is told."""
    words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split("\0")
    return dict(itertools.pairwise(words))


class Known(Workload):
    """Ends as ``workload_config.end`` says; ``third`` fails every third trial and raises in the one after it;
    ``fourth`` kills the supervisor of trial 3 until the file ``marker`` is there. ``fail_on`` names a SLURM node;
    ``take_mb`` is memory that the trial holds.
    """

    def run(self) -> WorkloadResult:
        options = _own_trial()
        cell, trial = options["--cell"], int(options["--trial"])
        log = os.environ.get(LOG_VARIABLE)
        if log:
            record = Path(options["--run-dir"], "cells", cell, "known", f"trial_d0_m0_t{trial}.json")
            # Held until this process ends: whoever finds it held runs at the same time as another.
            self._held = os.open(f"{log}.{cell}.{trial}", os.O_WRONLY | os.O_CREAT)
            entry: dict[str, Any] = {"cell": cell, "trial": trial, "pid": os.getpid(), "raced": False}
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                entry["raced"] = True
            entry["recorded"] = record.is_file() and record.read_bytes().endswith(b"}\n")
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        # Not zeros, which would take no memory.
        self._taken = b"x" * (self.config.get("take_mb", 0) << 20)
        gate = self.config.get("gate")
        deadline = time.monotonic() + 200
        while gate and not Path(gate).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(float(os.environ.get(SECONDS_VARIABLE, "0")))
        end = self.config.get("end", "pass")
        if end == "fourth":
            end = "pass"
            if trial == 3 and not Path(self.config["marker"]).exists():
                os.kill(os.getppid(), 9)
                time.sleep(3600)
        if end == "third":
            end = ("fail", "raise", "pass")[trial % 3]
        if self.config.get("fail_on", "") == os.environ.get("SLURMD_NODENAME"):
            end = "fail"
        if end == "raise":
            raise ValueError("as was planned")
        return WorkloadResult(
            passed=end == "pass",
            failure_count=int(end == "fail"),
            failure_details=[{"hint": "as was planned"}] if end == "fail" else [],
            total_iterations=1,
            step_times_ms=[1.0],
            main_work_started=True,
        )
