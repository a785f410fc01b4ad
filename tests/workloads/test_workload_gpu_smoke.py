"""``gpu_smoke`` and the small parts that workloads share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from workload_runs import run_once

from aorta.workloads.device import choose_device
from aorta.workloads.failures import KEPT, FailureLog
from aorta.workloads.finite import NonFinite, find_nonfinite
from aorta.workloads.gpu_smoke import GpuSmokeWorkload
from aorta.workloads.process_group import RankInfo
from aorta.workloads.timing import Stopwatch, percentile


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n", [1, 8, 1000])
def test_smoke_is_exact_in_every_dtype(dtype: str, n: int) -> None:
    """The kernel agrees with whole-number arithmetic, without tolerance."""
    result = run_once(GpuSmokeWorkload({"steps": 3, "n": n, "dtype": dtype, "device": "cpu"}))
    assert result.passed
    assert len(result.step_times_ms) == result.executed_iterations == 3
    assert (result.metrics["n"], result.metrics["dtype"], result.metrics["device"]) == (n, dtype, "cpu")


@pytest.mark.parametrize(
    ("element", "total", "check", "hint"),
    [
        (9.0, None, "multiply_add", "1 of 8 elements are wrong, first at 2: expected 5, found 9.0"),
        (float("nan"), None, "multiply_add", "1 of 8 elements are wrong, first at 2: expected 5, found nan"),
        (5.0, 63.0, "sum", "the sum is wrong: expected 64.0, found 63.0"),
    ],
)
def test_smoke_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, element: float, total: float | None, check: str, hint: str
) -> None:
    """A wrong element or sum in step 1 fails the trial with place and values."""
    workload = GpuSmokeWorkload({"steps": 2, "device": "cpu", "warmup_steps": 0})
    real, calls = workload.kernel, iter(range(10))

    def faulty(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        y, s = real(device)
        if next(calls) == 1:
            y[2] = element
            s = y.sum(dtype=torch.float64) if total is None else torch.tensor(total)
        return y, s

    monkeypatch.setattr(workload, "kernel", faulty)
    result = run_once(workload)
    (failure,) = result.failure_details
    assert (result.first_failure_iteration, failure["check"], failure["hint"]) == (1, check, hint)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
def test_smoke_runs_on_the_accelerator() -> None:
    """Where there is an accelerator, ``auto`` takes it."""
    result = run_once(GpuSmokeWorkload({"steps": 2}))
    assert result.passed
    assert result.metrics["device"].startswith("cuda")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, RankInfo()),
        ({"WORLD_SIZE": "1", "RANK": "0"}, RankInfo()),
        (
            {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            RankInfo(rank=3, world_size=4, local_rank=1),
        ),
    ],
)
def test_rank_comes_from_the_launcher(environ: dict[str, str], expected: RankInfo) -> None:
    """A process is alone unless the launcher says otherwise."""
    assert RankInfo.from_environment(environ) == expected


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "use 0 to 1"),
    ],
)
def test_broken_launch_is_explained(environ: dict[str, str], words: str) -> None:
    """A half-set launch says which variable is wrong."""
    with pytest.raises(RuntimeError, match=words):
        RankInfo.from_environment(environ)


def test_auto_falls_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an accelerator ``auto`` is the CPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(("count", "local_rank", "index"), [(1, 0, 0), (1, 3, 0), (4, 2, 2)])
def test_each_local_rank_has_its_device(
    monkeypatch: pytest.MonkeyPatch, count: int, local_rank: int, index: int
) -> None:
    """A rank takes the device of its number, or the only one that it sees."""
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device("auto", local_rank) == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)]


def test_more_ranks_than_devices_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without a device is told so."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RuntimeError, match="start at most 2 ranks a host"):
        choose_device("cuda", 2)


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [([], 50, None), ([3.0], 99, 3.0), ([4.0, 1.0, 2.0, 3.0], 50, 2.5), ([0.0, 10.0], 99, 9.9)],
)
def test_percentile_interpolates(values: list[float], q: float, expected: float | None) -> None:
    """Percentiles lie linearly between neighbours."""
    assert percentile(values, q) == (None if expected is None else pytest.approx(expected))


def test_stopwatch_waits_for_the_device_on_both_sides() -> None:
    """Each reading of the clock comes after the device is idle."""
    events: list[str] = []
    ticks = iter([1.0, 1.5])

    def clock() -> float:
        events.append("clock")
        return next(ticks)

    stopwatch = Stopwatch(lambda: events.append("wait"), clock)
    with stopwatch.measure():
        events.append("work")
    assert events == ["wait", "clock", "work", "wait", "clock"]
    assert (stopwatch.times_ms, stopwatch.total_sec) == ([500.0], 0.5)


def test_finite_values_whose_sum_overflows_are_not_reported() -> None:
    """The cheap screen is checked exactly before anything is called non-finite."""
    largest = torch.full((4,), torch.finfo(torch.float32).max)
    assert find_nonfinite([("large", largest)]) == []


def test_nonfinite_values_are_counted_by_tensor() -> None:
    """NaN and infinities of either sign are counted, also where they would cancel in a sum."""
    bad = torch.tensor([1.0, float("inf"), -float("inf"), float("nan")], dtype=torch.bfloat16)
    assert find_nonfinite([("good", torch.ones(3)), ("bad", bad)]) == [NonFinite(name="bad", nan_count=1, inf_count=2)]


def test_failures_beyond_the_kept_ones_are_counted() -> None:
    """A run that fails at every step keeps a short record and the true count."""
    log = FailureLog("training")
    for step in range(5, KEPT + 15):
        log.add(step=step, check="c", hint="h")
    assert (log.count, len(log.details), log.first_step) == (KEPT + 10, KEPT, 5)
