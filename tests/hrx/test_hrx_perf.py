"""``hrx_perf`` on a stand-in runtime: times, speeds, and results that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta.workloads.base import WorkloadResult
from aorta.workloads.config import parse_config
from aorta.workloads.hrx_perf import HrxPerfConfig, HrxPerfWorkload, expected_checksum

Run = Callable[..., WorkloadResult]


@pytest.fixture
def run(hipcc: str, kfd: Path) -> Run:
    """Runs one small trial with these settings."""

    def once(**settings: Any) -> WorkloadResult:
        config = {"steps": 1, "hipcc": hipcc, "iters": 3, "warmup": 1, "size": 10, **settings}
        workload = HrxPerfWorkload(config, kfd=kfd)
        try:
            workload.setup()
            return workload.run()
        finally:
            workload.cleanup()

    return once


@pytest.mark.parametrize(("bench", "size"), [("gemm", 1), ("gemm", 37), ("gemm", 64), ("triad", 1), ("triad", 1001)])
def test_a_sound_runtime_passes(run: Run, bench: str, size: int) -> None:
    """The program and this process agree on the checksum, whatever the size leaves over in the last block."""
    result = run(bench=bench, size=size)
    assert (result.passed, result.failure_details) == (True, [])
    assert int(result.metrics["checksum"]) == expected_checksum(bench, size)


def test_the_checksum_is_that_of_the_definition() -> None:
    """Added up element by element from the inputs' formulas."""
    n = 13
    product = sum(((i + k) % 4) * ((2 * k + j) % 3) for i in range(n) for j in range(n) for k in range(n))
    assert expected_checksum("gemm", n) == product
    assert expected_checksum("triad", 100) == sum(i % 7 + 3 * (i % 5) for i in range(100))


@pytest.mark.parametrize(
    ("bench", "metric", "work"), [("gemm", "gflops", 2 * 10**3 * 3), ("triad", "gbps", 3 * 4 * 10 * 3)]
)
def test_every_timed_iteration_is_a_step_time(run: Run, bench: str, metric: str, work: int) -> None:
    """Warm-up is not timed; the speed is the work of all iterations over their time."""
    result = run(bench=bench)
    assert len(result.step_times_ms) == result.executed_iterations == result.configured_iterations == 3
    assert result.elapsed_sec == pytest.approx(sum(result.step_times_ms) / 1000)
    assert result.metrics[metric] == pytest.approx(work / result.elapsed_sec / 1e9)


@pytest.mark.parametrize("bench", ["gemm", "triad"])
@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ("garbage", ["checksum", "elements"]),
        ("swapped", ["elements"]),  # the sum does not see it
        ("not_launched", ["checksum", "elements"]),  # a result of the warm-up must not stand in
        ("input_zero", ["checksum", "elements"]),
    ],
)
def test_a_wrong_result_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, bench: str, fault: str, checks: list[str]
) -> None:
    """By its checksum, and by its elements, the first of which is named."""
    monkeypatch.setenv("HIP_STANDIN_FAULT", fault)
    result = run(bench=bench)
    assert [failure["check"] for failure in result.failure_details] == checks
    assert (result.passed, result.first_failure_iteration) == (False, 2)
    assert ": expected " in result.failure_details[-1]["first_wrong"]


def test_a_refused_launch_names_its_iteration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third launch is the second timed one after one of warm-up; the time of the first stays."""
    monkeypatch.setenv("HIP_STANDIN_FAULT", "launch_refused")
    result = run()
    assert (result.first_failure_iteration, len(result.step_times_ms)) == (1, 1)
    assert result.failure_details[0]["hint"] == "gemm: hipGetLastError(): invalid argument"


def test_a_hang_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is ended at its time limit."""
    run()  # compiles it
    monkeypatch.setenv("HIP_STANDIN_FAULT", "hang")
    with pytest.raises(RuntimeError, match="perf gemm did not end within 1 s"):
        run(timeout_sec=1)


@pytest.mark.parametrize(("bench", "size"), [("gemm", 4096), ("triad", 64_000_000)])
def test_defaults_are_the_documented_ones(bench: Any, size: int) -> None:
    """Each benchmark has a size of its own; 50 iterations after 10, ten minutes."""
    settings = HrxPerfConfig(bench=bench)
    assert (settings.effective_size, settings.iters, settings.warmup, settings.timeout_sec) == (size, 50, 10, 600.0)
    assert HrxPerfConfig().bench == "gemm"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"bench": "gemm", "size": 40_000}, "size"),
        ({"bench": "triad", "size": 0}, "size"),
        ({"iters": 20_001}, "iters"),
        ({"warmup": -1}, "warmup"),
    ],
)
def test_settings_out_of_range_are_reported_before_anything_runs(config: dict[str, Any], key: str) -> None:
    """What would not fit into memory, or into the report, is a bad value."""
    assert [(p.key, p.code) for p in parse_config(HrxPerfConfig, config).problems] == [(key, "bad_config_value")]
