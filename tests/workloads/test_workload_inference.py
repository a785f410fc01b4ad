"""``inference``: both modes, their metrics, and faults that the checks must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from workload_runs import TINY_INFERENCE, merged, run_once

from aorta.workloads import WorkloadResult
from aorta.workloads.inference import InferenceWorkload

METRICS = {
    "prefill_latency_ms",
    "decode_latency_ms",
    "tokens_per_sec",
    "decoded_tokens",
    "step_time_p50",
    "step_time_p99",
    "logits_checksum",
    "parameter_count",
}
CONTINUOUS = {
    "mode": "continuous_batch",
    "steps": 100,
    "request": {"num_requests": 6, "generate_tokens": 8},
    "serving": {"continuous_batch": {"max_active_requests": 4}},
}
PASSES = 4
"""Passes of the model a step: a prefill and three decodes."""


def infer(**changes: Any) -> WorkloadResult:
    return run_once(InferenceWorkload(merged(TINY_INFERENCE, changes)))


def infer_with_fault(at_pass: int, damage: Callable[[torch.Tensor], None], **changes: Any) -> WorkloadResult:
    """Runs without warm-up and damages the logits of one pass of the model, counted from 0."""
    workload = InferenceWorkload(merged(TINY_INFERENCE, {"warmup_steps": 0, **changes}))
    workload.setup()
    assert workload._session is not None
    passes = iter(range(10_000))

    def hook(_module: object, _args: object, logits: torch.Tensor) -> None:
        if next(passes) == at_pass:
            damage(logits)

    workload._session.model.register_forward_hook(hook)
    result = workload.run()
    workload.cleanup()
    return result


def put(value: float) -> Callable[[torch.Tensor], None]:
    def damage(logits: torch.Tensor) -> None:
        logits.view(-1)[3] = value

    return damage


@pytest.mark.parametrize("kind", ["mlp", "decoder_transformer"])
@pytest.mark.parametrize("num_experts", [1, 2])
@pytest.mark.parametrize("kv_cache", [True, False])
def test_offline_batch_generates(kind: str, num_experts: int, kv_cache: bool) -> None:
    """Every generating model answers its batch at each step and reports every metric."""
    result = infer(model={"kind": kind, "num_experts": num_experts}, serving={"kv_cache": kv_cache})
    assert result.passed
    assert set(result.metrics) == METRICS
    assert result.metrics["decoded_tokens"] == 3 * 2 * 4
    assert result.metrics["tokens_per_sec"] == pytest.approx(24 / result.elapsed_sec)
    assert (result.configured_iterations, result.executed_iterations, len(result.step_times_ms)) == (3, 3, 3)
    assert result.main_work_started is True


def test_encoder_encodes_and_generates_nothing() -> None:
    """An encoder has a prefill and no decode; its rate is in tokens read."""
    result = infer(model={"kind": "encoder_transformer"})
    assert result.passed
    assert (result.metrics["decoded_tokens"], result.metrics["decode_latency_ms"]) == (0, None)
    assert result.metrics["tokens_per_sec"] == pytest.approx(3 * 2 * 6 / result.elapsed_sec)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_reduced_precision_changes_the_logits(dtype: str) -> None:
    """The dtype is really used."""
    result = infer(dtype=dtype)
    assert result.passed
    assert result.metrics["logits_checksum"] != infer().metrics["logits_checksum"]


def test_logits_checksum_depends_on_the_seed_alone() -> None:
    """The same seed gives the same bits, another seed others, and the number of steps does not matter."""
    reference = infer().metrics["logits_checksum"]
    assert infer(steps=1, warmup_steps=0).metrics["logits_checksum"] == reference
    assert infer(seed=5).metrics["logits_checksum"] != reference


def test_first_token_comes_from_the_prefill() -> None:
    """One token to generate needs no decode pass."""
    result = infer(request={"generate_tokens": 1})
    assert (result.metrics["decoded_tokens"], result.metrics["decode_latency_ms"]) == (6, None)


def test_changed_logit_is_found_by_the_checksum() -> None:
    """A logit that is off by the last bit in step 2 fails that step, with both checksums."""

    def last_bit(logits: torch.Tensor) -> None:
        logits.view(torch.int32).view(-1)[3] ^= 1

    result = infer_with_fault(2 * PASSES + 1, last_bit)
    (failure,) = result.failure_details
    assert (result.first_failure_iteration, failure["step"], failure["check"]) == (2, 2, "compare_logits_checksum")
    assert failure["expected"] == infer().metrics["logits_checksum"]
    assert failure["found"] != failure["expected"]
    assert failure["hint"] == "the same batch gave other logits than the first time"


def test_checksum_comparison_can_be_off() -> None:
    """Without the comparison a wrong, finite logit passes."""
    assert infer_with_fault(2 * PASSES + 1, put(0.5), checks={"compare_logits_checksum": False}).passed


@pytest.mark.parametrize(
    ("value", "check", "hint"),
    [
        (float("nan"), "fail_on_nan_logits", "NaN in the decode logits"),
        (float("inf"), "fail_on_nonfinite_output", "values that are not finite in the decode logits"),
    ],
)
def test_nonfinite_logit_is_found(value: float, check: str, hint: str) -> None:
    """A NaN or infinite logit in a decode pass of step 1 is named with its check, step and pass."""
    result = infer_with_fault(1 * PASSES + 2, put(value), checks={"compare_logits_checksum": False})
    (failure,) = result.failure_details
    assert (failure["check"], failure["step"], failure["tensor"]) == (check, 1, "decode logits")
    assert failure["hint"] == hint
    assert failure["nan_count"] + failure["inf_count"] == 1


def test_nan_is_a_nonfinite_output_where_its_own_check_is_off() -> None:
    """Switching the NaN check off leaves NaN to the wider check, and switching both off to none."""
    checks = {"compare_logits_checksum": False, "fail_on_nan_logits": False}
    (failure,) = infer_with_fault(0, put(float("nan")), checks=checks).failure_details
    assert failure["check"] == "fail_on_nonfinite_output"
    assert infer_with_fault(0, put(float("nan")), checks={**checks, "fail_on_nonfinite_output": False}).passed


@pytest.mark.parametrize("kv_cache", [True, False])
def test_continuous_batch_serves_all_requests_and_stops(kv_cache: bool) -> None:
    """Six requests of 8 tokens, 4 at a time, one arrival a tick, take 17 ticks (see the schedule below).

    Requests 0 to 3 start in ticks 0 to 3 and end in 7 to 10; 4 takes the first free place in tick 8, 5 the next in
    tick 9, and ends 7 ticks later, in tick 16.
    """
    result = infer(**merged(CONTINUOUS, {"serving": {"kv_cache": kv_cache}}))
    assert result.passed
    assert set(result.metrics) == METRICS | {"requests_completed", "requests_remaining"}
    assert (result.metrics["requests_completed"], result.metrics["requests_remaining"]) == (6, 0)
    assert result.metrics["decoded_tokens"] == 6 * 8
    assert (result.executed_iterations, result.total_iterations, len(result.step_times_ms)) == (17, 17, 17)
    assert result.configured_iterations == 100


def test_budget_of_ticks_that_ends_early_is_a_finished_trial() -> None:
    """Nine ticks answer two of six requests: passed, and the rest is counted."""
    result = infer(**merged(CONTINUOUS, {"steps": 9}))
    assert result.passed
    assert (result.metrics["requests_completed"], result.metrics["requests_remaining"]) == (2, 4)
    assert result.executed_iterations == 9


def test_no_more_than_the_allowed_requests_are_active() -> None:
    """Decode passes work on at most ``max_active_requests`` rows, and reach that many."""
    workload = InferenceWorkload(merged(TINY_INFERENCE, CONTINUOUS))
    workload.setup()
    assert workload._session is not None
    rows: list[int] = []
    workload._session.model.register_forward_hook(
        lambda _module, args, _logits: rows.append(len(args[0])) if args[0].shape[1] == 1 else None
    )
    workload.run()
    assert max(rows) == 4


def test_encoder_requests_end_with_their_prefill() -> None:
    """In continuous mode an encoder answers a request in the tick of its arrival."""
    result = infer(**merged(CONTINUOUS, {"model": {"kind": "encoder_transformer"}}))
    assert (result.executed_iterations, result.metrics["requests_completed"]) == (6, 6)


def test_nonfinite_logit_names_its_tick() -> None:
    """In continuous mode the step of a failure is the tick."""
    # Tick 0 is one pass (a prefill), ticks 1 to 3 are a prefill and a decode each: pass 4 is the decode of tick 2.
    result = infer_with_fault(4, put(float("nan")), **CONTINUOUS)
    assert result.first_failure_iteration == 2


def test_missing_accelerator_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for cuda where torch sees none fails in setup() with the remedy."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match=r"workload_config.device is 'cuda'"):
        infer(device="cuda")
