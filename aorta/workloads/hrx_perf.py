"""``hrx_perf``: how long does a matrix product, or a triad, take on this runtime, and is it right?

A HIP program, compiled with hipcc and run as a child process, times `iters` launches of one kernel, each from the
launch until the device is done, and compares every element of the last result with whole-number arithmetic. The kernels
are plain ones: their speed compares runtimes on one device, and says nothing about what the device could do. The
recipe's `steps` is not used: `iters` counts. docs/hrx.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from aorta.hrx.workload import HipProgramConfig, HipWorkload, Reported
from aorta.workloads.base import WorkloadResult
from aorta.workloads.config import NOT_NEGATIVE, POSITIVE, ConfigBlock
from aorta.workloads.failures import FailureLog
from aorta.workloads.timing import percentile

_PROGRAM = "perf.hip"
_DEFAULT_SIZE = {"gemm": 4096, "triad": 64_000_000}
_MAX_SIZE = {"gemm": 32_768, "triad": 1_000_000_000}
"""Three operands of 12 GB in all, in host and device memory; and every sum stays exact in float32."""
_MAX_ITERS = 20_000
"""The reported times fit into what is read of a program's output."""
_BYTES_PER_ELEMENT = 3 * 4
"""A triad reads two float32 and writes one."""


@dataclass(frozen=True, kw_only=True)
class HrxPerfConfig(HipProgramConfig):
    """``workload_config`` of ``hrx_perf``."""

    bench: Literal["gemm", "triad"] = "gemm"
    """`gemm` multiplies two square float32 matrices; `triad` computes b + 3 c of float32 vectors."""
    size: int | None = field(default=None, metadata=POSITIVE)
    """Rows of a matrix, at most 32768; elements of a vector, at most 1000000000. If absent 4096 and 64000000."""
    iters: int = field(default=50, metadata=POSITIVE)
    """Timed iterations, at most 20000."""
    warmup: int = field(default=10, metadata=NOT_NEGATIVE)
    """Iterations before them: not timed, and their result is erased."""
    timeout_sec: float = field(default=600.0, metadata=POSITIVE)
    """Time limit of the program, and of its compilation, in seconds."""

    @property
    def effective_size(self) -> int:
        """The size, or the benchmark's default."""
        return self.size if self.size is not None else _DEFAULT_SIZE[self.bench]

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks what would not fit into memory, or into the program's report."""
        if self.effective_size > _MAX_SIZE[self.bench]:
            yield "size", f"is {self.size}; use at most {_MAX_SIZE[self.bench]} for {self.bench}"
        if self.iters > _MAX_ITERS:
            yield "iters", f"is {self.iters}; use at most {_MAX_ITERS}"


def expected_checksum(bench: str, size: int) -> int:
    """Returns the sum of all elements of the right result, worked out without the program.

    Args:
        bench: ``gemm`` or ``triad``.
        size: Rows of a matrix, or elements of a vector.
    """
    if bench == "triad":
        return _periodic_sum(size, [i % 7 + 3 * (i % 5) for i in range(35)])
    # The sum of A B over all elements is, for each k, the sum of A's column k times the sum of B's row k.
    column_sums = [_periodic_sum(size, [(i + k) % 4 for i in range(4)]) for k in range(4)]
    row_sums = [_periodic_sum(size, [(2 * k + j) % 3 for j in range(3)]) for k in range(3)]
    return _periodic_sum(size, [column_sums[k % 4] * row_sums[k % 3] for k in range(12)])


def _periodic_sum(count: int, period: Sequence[int]) -> int:
    """Adds up ``count`` values that repeat."""
    whole, rest = divmod(count, len(period))
    return whole * sum(period) + sum(period[:rest])


class HrxPerfWorkload(HipWorkload[HrxPerfConfig]):
    """Runs one benchmark; each of its timed iterations is a step time."""

    name: ClassVar[str] = "hrx_perf"
    config_class: ClassVar[type[ConfigBlock]] = HrxPerfConfig
    programs: ClassVar[Mapping[str, Sequence[str]]] = {_PROGRAM: ("-O3", "-std=c++17", "-ldl")}

    def run(self) -> WorkloadResult:
        """Runs the program; a HIP call that fails, a wrong element and a wrong checksum fail the trial.

        Raises:
            PreloadError: The loader ran the program without a library of ``LD_PRELOAD``.
            RuntimeError: The program crashed, hung, found no device, or left something out of its report.
        """
        bench, size, iters = self.settings.bench, self.settings.effective_size, self.settings.iters
        reported = self.execute(_PROGRAM, bench, str(size), str(iters), str(self.settings.warmup))
        times_ms = list(reported.step_times_ms)
        failures = FailureLog("hrx_perf")
        self._judge(reported, failures)
        elapsed_sec = sum(times_ms) / 1000
        return WorkloadResult(
            passed=failures.count == 0,
            failure_count=failures.count,
            first_failure_iteration=failures.first_step,
            failure_details=failures.details,
            total_iterations=len(times_ms),
            step_times_ms=times_ms,
            elapsed_sec=elapsed_sec,
            metrics={
                "bench": bench,
                "size": size,
                "gpu_arch": self.settings.gpu_arch,
                "checksum": reported.values.get("checksum"),
                "step_time_p50": percentile(times_ms, 50),
                "step_time_p99": percentile(times_ms, 99),
                **self._speed(len(times_ms), elapsed_sec),
                **reported.metrics(),
                **self.build_metrics(),
            },
            main_work_started=True,
            executed_iterations=len(times_ms),
            configured_iterations=iters,
        )

    def _speed(self, iterations: int, elapsed_sec: float) -> dict[str, float]:
        """Returns ``gflops`` or ``gbps``, or nothing where nothing was timed."""
        if elapsed_sec <= 0:
            return {}
        size = self.settings.effective_size
        if self.settings.bench == "gemm":
            return {"gflops": 2 * size**3 * iterations / elapsed_sec / 1e9}
        return {"gbps": _BYTES_PER_ELEMENT * size * iterations / elapsed_sec / 1e9}

    def _judge(self, reported: Reported, failures: FailureLog) -> None:
        """Records what is wrong with the result, which is that of the last iteration."""
        bench, size, last = self.settings.bench, self.settings.effective_size, self.settings.iters - 1
        if reported.failed_call is not None:
            step = min(len(reported.step_times_ms), last)
            failures.add(step=step, check="hip_call", hint=f"{bench}: {reported.failed_call}", bench=bench)
            return
        if len(reported.step_times_ms) != self.settings.iters:
            raise RuntimeError(
                f"the program reported {len(reported.step_times_ms)} step times of {self.settings.iters}"
            )
        expected, found = expected_checksum(bench, size), reported.whole_number("checksum")
        if found != expected:
            failures.add(
                step=last,
                check="checksum",
                hint=f"{bench}: the sum over the result is wrong",
                bench=bench,
                expected=expected,
                found=found,
            )
        wrong = reported.whole_number("wrong_elements")
        if wrong:
            failures.add(
                step=last,
                check="elements",
                hint=f"{bench}: elements of the result are wrong",
                bench=bench,
                wrong_count=wrong,
                first_wrong=reported.values.get("first_wrong"),
            )
