"""A workload that runs in the trial's own process: a stencil whose exact answer is known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from aorta.workloads import ConfigProblem, Workload, WorkloadResult


class StencilWorkload(Workload):
    """Averages neighbours on a ramp, which must not change it, and reports every element that did change.

    Settings: ``size`` (elements, at least 3; default 1024) and ``flip_at_step`` (a step in which one element is
    spoilt on purpose, to see that the check finds it; default none).
    """

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> list[ConfigProblem]:
        """Names settings that would be ignored or refused; called before anything runs."""
        problems = [
            ConfigProblem(key=key, message="unknown key; known keys: size, flip_at_step")
            for key in config
            if key not in ("size", "flip_at_step")
        ]
        size = config.get("size", 1024)
        if not isinstance(size, int) or size < 3:
            problems.append(
                ConfigProblem(
                    key="size", message=f"must be a whole number, 3 or more, not {size!r}", code="bad_config_value"
                )
            )
        return problems

    def setup(self) -> None:
        """Makes the data. Heavy imports belong here, not at the top: the module is imported for every list."""
        for problem in self.check_config({key: self.config[key] for key in ("size",) if key in self.config}):
            raise ValueError(f"workload_config.{problem.key}: {problem.message}")
        self.values = [float(index) for index in range(self.config.get("size", 1024))]

    def run(self) -> WorkloadResult:
        """Runs the steps; every step is timed and checked."""
        times: list[float] = []
        failures: list[dict[str, Any]] = []
        for step in range(self.config["steps"]):
            started = time.perf_counter()
            values = self.values
            inner = [(left + right) / 2 for left, right in zip(values, values[2:], strict=False)]
            after = [values[0], *inner, values[-1]]
            if step == self.config.get("flip_at_step"):
                after[1] += 1.0
            times.append((time.perf_counter() - started) * 1000)
            wrong = [index for index, value in enumerate(after) if value != float(index)]
            if wrong:
                failures.append(
                    {
                        "step": step,
                        "first_wrong_index": wrong[0],
                        "hint": f"{len(wrong)} of {len(after)} elements wrong, the first at {wrong[0]}",
                    }
                )
        return WorkloadResult(
            passed=not failures,
            failure_count=len(failures),
            first_failure_iteration=failures[0]["step"] if failures else None,
            failure_details=failures,
            total_iterations=len(times),
            step_times_ms=times,
            elapsed_sec=sum(times) / 1000,
            metrics={"size": len(self.values)},
            main_work_started=True,
            executed_iterations=len(times),
            configured_iterations=self.config["steps"],
        )
