"""``hrx``: does a kernel launched in one of five ways run, and see its arguments?

A HIP program, compiled with hipcc and run as a child process once a step, adds 100 to 7 on the device. 107 means that
the launch works (`FULLY_WORKS`), 100 that the kernel read 0 (`INPUT_READ_ZERO`), 0 that it wrote nothing
(`OUTPUT_NOT_WRITTEN`), anything else is `GARBAGE`; only the first passes. For comparing HIP runtimes: docs/hrx.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from aorta.hrx.workload import HipProgramConfig, HipWorkload, Reported
from aorta.workloads.base import WorkloadResult
from aorta.workloads.config import ConfigBlock
from aorta.workloads.failures import FailureLog
from aorta.workloads.timing import percentile

_PROGRAM, _KERNEL = "launch_probe.hip", "add_hundred.hip"
_MEANINGS = {
    107: ("FULLY_WORKS", "the launch works"),
    100: ("INPUT_READ_ZERO", "the kernel ran and read 0 where the input is 7"),
    0: ("OUTPUT_NOT_WRITTEN", "the launch was accepted and nothing reached the output"),
}
_PASSED = "FULLY_WORKS"


def meaning(result: int) -> tuple[str, str]:
    """Returns the name of a probe's result, and a sentence about it.

    Args:
        result: What the program found in the output.
    """
    return _MEANINGS.get(result, ("GARBAGE", "the output holds a value that no such fault explains"))


@dataclass(frozen=True, kw_only=True)
class HrxConfig(HipProgramConfig):
    """``workload_config`` of ``hrx``."""

    probe: Literal["static", "module", "graph_add", "graph_setparams", "graph_execsetparams"] = "module"
    """How the kernel is launched: compiled in; from a code object; as a graph's node, whose parameters are set when it
    is added, changed before the graph is instantiated, or changed in the instance."""


class HrxWorkload(HipWorkload[HrxConfig]):
    """Runs the probe ``steps`` times, in a new process each."""

    name: ClassVar[str] = "hrx"
    config_class: ClassVar[type[ConfigBlock]] = HrxConfig
    programs: ClassVar[Mapping[str, Sequence[str]]] = {
        _PROGRAM: ("-O2", "-std=c++17", "-ldl"),
        _KERNEL: ("-O2", "--genco"),
    }

    def run(self) -> WorkloadResult:
        """Runs the probes; a HIP call that fails is a failed probe, as the call is what is tested.

        Raises:
            PreloadError: The loader ran the program without a library of ``LD_PRELOAD``.
            RuntimeError: The program crashed, hung, or found no device.
        """
        failures = FailureLog("hrx")
        outcomes: Counter[str] = Counter()
        step_times_ms: list[float] = []
        metrics: dict[str, Any] = {}
        for step in range(self.steps):
            reported = self.execute(_PROGRAM, self.settings.probe, str(self.built(_KERNEL)))
            outcomes[self._judge(reported, step, failures)] += 1
            step_times_ms += reported.step_times_ms
            metrics.update(reported.metrics())
        return WorkloadResult(
            passed=failures.count == 0,
            failure_count=failures.count,
            first_failure_iteration=failures.first_step,
            failure_details=failures.details,
            total_iterations=self.steps,
            step_times_ms=step_times_ms,
            elapsed_sec=sum(step_times_ms) / 1000,
            metrics={
                "probe": self.settings.probe,
                "gpu_arch": self.settings.gpu_arch,
                "outcomes": dict(outcomes),
                "step_time_p50": percentile(step_times_ms, 50),
                "step_time_p99": percentile(step_times_ms, 99),
                **metrics,
                **self.build_metrics(),
            },
            main_work_started=True,
            executed_iterations=self.steps,
            configured_iterations=self.steps,
        )

    def _judge(self, reported: Reported, step: int, failures: FailureLog) -> str:
        """Returns the outcome's name, and records it if it is no success."""
        probe = self.settings.probe
        if reported.failed_call is not None:
            failures.add(step=step, check="hip_call", hint=f"{probe}: {reported.failed_call}", probe=probe)
            return "CALL_FAILED"
        result = reported.whole_number("result")
        name, sentence = meaning(result)
        if name != _PASSED:
            hint = f"{probe}: {name}, {sentence}"
            failures.add(step=step, check="launch_probe", hint=hint, probe=probe, outcome=name, found=result)
        return name
