"""Planted faults in ``training`` and ``inference``: found where they were planted, and told in the metrics."""

from __future__ import annotations

from typing import Any

import pytest
from workload_runs import TINY_INFERENCE, TINY_TRAINING, merged, run_once, run_ranks

from aorta.workloads import WorkloadResult
from aorta.workloads.inference import InferenceWorkload
from aorta.workloads.training import TrainingWorkload

GRAD = "blocks.1.ffn.up.weight.grad"
# The top exponent bit of a small float32 makes it astronomically large.
EXPONENT_BIT = 30


def train(inject: Any, **changes: Any) -> WorkloadResult:
    config = merged(TINY_TRAINING, {"steps": 3, "inject": inject, **changes})
    return run_once(TrainingWorkload(config))


def infer(inject: Any, trial: int = 0, **changes: Any) -> WorkloadResult:
    config = merged(TINY_INFERENCE, {"inject": inject, "_aorta_trial_index": trial, **changes})
    return run_once(InferenceWorkload(config))


def strikes(result: WorkloadResult) -> list[dict[str, Any]]:
    return [strike for entry in result.metrics["injected"]["planned"] for strike in entry["strikes"]]


def first_failure(result: WorkloadResult) -> tuple[int, str, str]:
    first = result.failure_details[0]
    return first["step"], first["check"], first["tensor"]


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("fault", "check", "tensor"),
    [
        ({"kind": "nan_grad", "buffer": GRAD}, "fail_on_nan_grad", GRAD),
        ({"kind": "nan_logits"}, "fail_on_nonfinite_output", "logits"),
        ({"kind": "nan_logits", "buffer": "loss"}, "fail_on_nan_loss", "loss"),
    ],
)
def test_training_finds_planted_faults(parallelism: str, fault: dict[str, Any], check: str, tensor: str) -> None:
    """The failure names the step and the tensor that was struck, and nothing fails before."""
    result = train({**fault, "step": 1}, parallelism=parallelism)
    assert not result.passed
    assert result.first_failure_iteration == 1
    assert (1, check, tensor) in {(d["step"], d["check"], d["tensor"]) for d in result.failure_details}
    assert [(s["rank"], s["step"], s["buffer"]) for s in strikes(result)] == [(0, 1, tensor)]


def test_a_struck_parameter_spoils_the_logits() -> None:
    """A parameter that becomes huge is seen in the next forward pass."""
    result = train({"kind": "bitflip", "buffer": "norm.weight", "step": 2, "element": 0, "bit": EXPONENT_BIT})
    assert first_failure(result)[0] == 2
    assert [s["buffer"] for s in strikes(result)] == ["norm.weight"]


def test_stale_gradient_changes_the_run_without_a_failed_check() -> None:
    """A gradient of the step before is finite, so no check of ``training`` sees it, but the report tells of it."""
    clean, struck = train([]), train({"kind": "stale_buffer", "buffer": GRAD, "step": 1})
    assert struck.passed
    assert struck.metrics["final_loss"] != clean.metrics["final_loss"]
    (strike,) = strikes(struck)
    assert strike["changed"] > 0


def test_a_run_without_planted_faults_says_nothing_of_them() -> None:
    """No ``inject``, no ``injected``."""
    assert "injected" not in train([]).metrics
    assert "injected" not in infer([]).metrics


def test_slow_rank_shows_in_the_step_times() -> None:
    """The sleep is part of the step that was struck."""
    result = train({"kind": "slow_rank", "step": 1, "seconds": 0.3})
    assert result.passed
    assert result.step_times_ms[1] >= 300


def test_a_crash_as_an_exception_ends_the_run() -> None:
    """``how: exception`` raises out of run(), with words that say it was planted."""
    with pytest.raises(RuntimeError, match="planted fault: crash_rank on rank 0 at step 1"):
        train({"kind": "crash_rank", "step": 1, "how": "exception"})


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "nan_logits", "rank": 1}, "the trial has only rank 0"),
        ({"kind": "nan_logits", "step": 3}, "the trial has steps 0 to 2"),
        ({"kind": "nan_grad", "buffer": "blocks.1.ffn.up.wait.grad"}, f"did you mean {GRAD}"),
    ],
)
def test_faults_that_cannot_strike_fail_in_setup(fault: dict[str, Any], words: str) -> None:
    """A fault that would never happen is an error of the set-up, for both workloads."""
    for workload in (
        TrainingWorkload(merged(TINY_TRAINING, {"steps": 3, "inject": fault})),
        InferenceWorkload(merged(TINY_INFERENCE, {"steps": 3, "inject": fault})),
    ):
        try:
            with pytest.raises(ValueError, match="none of this workload's" if "wait" in str(fault) else words):
                workload.setup()
        finally:
            workload.cleanup()


def test_bad_faults_are_config_problems() -> None:
    """The recipe's check names the entry, before anything runs."""
    for workload in (TrainingWorkload, InferenceWorkload):
        (problem,) = workload.check_config({"inject": [{"kind": "nan_logits"}, {"kind": "bitflip"}]})
        assert (problem.key, problem.code) == ("inject[1].buffer", "bad_config_value")


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_a_fault_on_rank_1_is_told_by_every_rank(parallelism: str) -> None:
    """The gradient that is struck on rank 1 only is found there, and rank 0's record says so."""
    fault = {"kind": "nan_grad", "buffer": GRAD, "rank": 1, "step": 1}
    config = merged(TINY_TRAINING, {"parallelism": parallelism, "steps": 2, "inject": fault})
    for result in run_ranks(config, world_size=2):
        first = result["failure_details"][0]
        assert (first["step"], first["rank"], first["tensor"]) == (1, 1, GRAD)
        (planned,) = result["metrics"]["injected"]["planned"]
        assert [(s["rank"], s["step"]) for s in planned["strikes"]] == [(1, 1)]


@pytest.mark.parametrize("mode", ["offline_batch", "continuous_batch"])
def test_inference_finds_nan_logits(mode: str) -> None:
    """The step is named in either mode."""
    result = infer({"kind": "nan_logits", "step": 2}, mode=mode)
    assert first_failure(result) == (2, "fail_on_nan_logits", "prefill logits")
    assert strikes(result)[0]["buffer"] == "prefill_logits"


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "bitflip", "buffer": "decode_logits", "bit": 0},
        {"kind": "bitflip", "buffer": "blocks.0.ffn.up.weight", "bit": EXPONENT_BIT, "element": 5},
        {"kind": "perturb_input"},
    ],
)
def test_inference_sees_one_wrong_bit(fault: dict[str, Any]) -> None:
    """The same batch must give the same bits: the struck step is the first that does not."""
    result = infer({**fault, "step": 1})
    assert result.first_failure_iteration == 1
    assert "compare_logits_checksum" in {d["check"] for d in result.failure_details}


def test_a_perturbed_prompt_is_whole_again_at_the_next_step() -> None:
    """Only the struck step differs."""
    assert {d["step"] for d in infer({"kind": "perturb_input", "step": 1}, steps=4).failure_details} == {1}


def test_a_strike_that_changes_nothing_is_counted_as_such() -> None:
    """Each batch has the same logits, so what was in the buffer before is what belongs there."""
    result = infer({"kind": "partial_write", "buffer": "prefill_logits", "step": 1})
    (planned,) = result.metrics["injected"]["planned"]
    assert (result.passed, planned["strikes"][0]["changed"]) == (True, 0)
    assert (planned["strike_count"], planned["unchanged_count"]) == (1, 1)
    assert infer({"kind": "nan_logits"}).metrics["injected"]["unchanged_count"] == 0


def test_probability_draws_trial_by_trial() -> None:
    """Over trials a fault of probability one half comes and goes, the same way each time."""
    fault = {"kind": "nan_logits", "step": 1, "probability": 0.5}
    outcomes = [[infer(fault, trial=trial).passed for trial in range(8)] for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0]) == {True, False}
