"""``gpu_smoke``: the smallest thing that can go wrong on a device.

A multiply-add and a sum over ``n`` small whole numbers, which every dtype holds exactly, so that the host's own
arithmetic tells right from wrong without a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aorta.workloads.base import WorkloadResult
from aorta.workloads.config import NOT_NEGATIVE, POSITIVE, ConfigBlock
from aorta.workloads.configured import ConfiguredWorkload
from aorta.workloads.dtypes import DTYPE_FIELD, DtypeName
from aorta.workloads.failures import FailureLog
from aorta.workloads.timing import Stopwatch

if TYPE_CHECKING:
    import torch

_MAX_N = 1 << 20
_PERIOD, _FACTOR, _OFFSET = 32, 2, 1
"""x counts 0 to 31 over and over and y = 2 x + 1 stays below 64, exact in 8 significant bits (bfloat16)."""


@dataclass(frozen=True, kw_only=True)
class GpuSmokeConfig(ConfigBlock):
    """``workload_config`` of ``gpu_smoke``."""

    n: int = field(default=8, metadata=POSITIVE)
    """Number of elements, at most 1048576."""
    dtype: DtypeName = field(default="float32", metadata=DTYPE_FIELD)
    """What the kernel computes in."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """``cuda`` means ROCm too, and fails where there is none; ``auto`` falls back to the CPU."""
    warmup_steps: int = field(default=1, metadata=NOT_NEGATIVE)
    """Steps before the ``steps`` that count: checked, but not timed (the first one loads the kernels)."""

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks the size: the oracle is plain Python."""
        if self.n > _MAX_N:
            yield "n", f"is {self.n}; use at most {_MAX_N}"


class GpuSmokeWorkload(ConfiguredWorkload[GpuSmokeConfig]):
    """Runs the kernel ``steps`` times, on the CPU where there is no accelerator (metric ``device``)."""

    name: ClassVar[str] = "gpu_smoke"
    config_class: ClassVar[type[ConfigBlock]] = GpuSmokeConfig

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._device: torch.device | None = None

    def setup(self) -> None:
        """Chooses the device.

        Raises:
            RuntimeError: An accelerator was asked for and there is none.
        """
        from aorta.workloads.device import choose_device

        self._device = choose_device(self.settings.device)

    def run(self) -> WorkloadResult:
        """Runs warm-up and timed steps and compares each with the host's arithmetic."""
        from aorta.workloads.device import device_title, synchronize

        if self._device is None:
            raise RuntimeError("run() needs setup() first")
        expected = [_FACTOR * (i % _PERIOD) + _OFFSET for i in range(self.settings.n)]
        failures = FailureLog("gpu_smoke")
        stopwatch = Stopwatch(partial(synchronize, self._device))
        for step in range(self.settings.warmup_steps):
            self._check(*self.kernel(self._device), expected, failures, step, "warmup")
        for step in range(self.steps):
            with stopwatch.measure():
                y_N, total = self.kernel(self._device)
            self._check(y_N, total, expected, failures, step, "timed")
        return WorkloadResult(
            passed=failures.count == 0,
            failure_count=failures.count,
            first_failure_iteration=failures.first_step,
            failure_details=failures.details,
            total_iterations=self.steps,
            step_times_ms=stopwatch.times_ms,
            elapsed_sec=stopwatch.total_sec,
            metrics={
                "device": str(self._device),
                "device_name": device_title(self._device),
                "n": self.settings.n,
                "dtype": self.settings.dtype,
                **stopwatch.metrics(),
            },
            main_work_started=True,
            executed_iterations=self.steps,
            configured_iterations=self.steps,
        )

    def kernel(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies x to the device and computes y_N = 2 x + 1 there, and the sum of y in float64."""
        import torch

        from aorta.workloads.dtypes import torch_dtype

        dtype = torch_dtype(self.settings.dtype)
        x_N = (torch.arange(self.settings.n) % _PERIOD).to(dtype).to(device)
        y_N = torch.addcmul(torch.full_like(x_N, _OFFSET), x_N, torch.full_like(x_N, _FACTOR))
        return y_N, y_N.sum(dtype=torch.float64)

    def _check(
        self,
        y_N: torch.Tensor,
        total: torch.Tensor,
        expected: list[int],
        failures: FailureLog,
        step: int,
        phase: Literal["warmup", "timed"],
    ) -> None:
        found = y_N.tolist()
        wrong = [i for i, (e, f) in enumerate(zip(expected, found, strict=True)) if e != f]
        if wrong:
            at = wrong[0]
            failures.add(
                step=step,
                phase=phase,
                check="multiply_add",
                hint=f"{len(wrong)} of {len(found)} elements are wrong, first at {at}: "
                f"expected {expected[at]}, found {found[at]}",
                wrong_count=len(wrong),
                position=at,
                expected=expected[at],
                found=found[at],
            )
        # A sum that follows from wrong elements is right: compare with what the device was asked to add up.
        should_be = float(sum(found))
        if total.item() != should_be and not wrong:
            failures.add(
                step=step,
                phase=phase,
                check="sum",
                hint=f"the sum is wrong: expected {should_be}, found {total.item()}",
                expected=should_be,
                found=total.item(),
            )
