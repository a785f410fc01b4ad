"""``training``: it trains, it is deterministic, and its checks name step and rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from workload_runs import TINY_TRAINING, merged, run_once, run_ranks

from aorta.workloads import WorkloadResult
from aorta.workloads.process_group import RankInfo, join_process_group, leave_process_group
from aorta.workloads.training import TrainingWorkload
from aorta.workloads.training_session import TrainingSession

METRICS = {
    "parallelism",
    "rank",
    "world_size",
    "device",
    "dtype",
    "model_kind",
    "parameter_count",
    "final_loss",
    "step_time_p50",
    "step_time_p99",
}


def train(**changes: Any) -> WorkloadResult:
    return run_once(TrainingWorkload(merged(TINY_TRAINING, changes)))


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", ["mlp", "transformer", "moe_transformer"])
def test_trains_every_kind_of_model(parallelism: str, kind: str) -> None:
    """Each model trains under each parallelism, and reports every metric and step."""
    result = train(parallelism=parallelism, steps=3, model={"kind": kind})
    assert result.passed
    assert set(result.metrics) == METRICS
    assert (result.metrics["parallelism"], result.metrics["model_kind"]) == (parallelism, kind)
    assert (result.configured_iterations, result.executed_iterations, result.total_iterations) == (3, 3, 3)
    assert len(result.step_times_ms) == 3
    assert result.elapsed_sec == pytest.approx(sum(result.step_times_ms) / 1000)
    assert result.main_work_started is True


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_trains_in_reduced_precision(parallelism: str, dtype: str) -> None:
    """Half precision stays near the float32 loss and differs from it: it is really used."""
    exact = train(parallelism=parallelism).metrics["final_loss"]
    reduced = train(parallelism=parallelism, dtype=dtype).metrics["final_loss"]
    assert reduced == pytest.approx(exact, rel=1e-2)
    assert reduced != exact


def test_loss_falls_when_there_is_something_to_learn() -> None:
    """With one sequence of two token ids, many updates lower the loss."""
    config: dict[str, Any] = {"parallelism": "ddp", "model": {"vocab_size": 2}, "optimizer": {"lr": 0.01}}
    few, many = train(steps=1, **config), train(steps=40, **config)
    assert many.metrics["final_loss"] < few.metrics["final_loss"]


def test_ddp_and_fsdp_compute_the_same() -> None:
    """The two kinds of parallelism are the same mathematics."""
    losses = [train(parallelism=p, steps=4).metrics["final_loss"] for p in ("ddp", "fsdp")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_warmup_steps_are_real_and_not_counted() -> None:
    """Two steps after one of warm-up end where three steps end, with two step times."""
    warmed, plain = train(warmup_steps=1, steps=2), train(warmup_steps=0, steps=3)
    assert warmed.metrics["final_loss"] == plain.metrics["final_loss"]
    assert len(warmed.step_times_ms) == warmed.total_iterations == 2


def test_seed_changes_the_run() -> None:
    """Another seed is another model and other data."""
    assert train(seed=1).metrics["final_loss"] != train(seed=2).metrics["final_loss"]


def test_parameter_count_is_that_of_the_model() -> None:
    """The count follows from the sizes."""
    hidden, ffn, vocab, layers = 16, 32, 64, 2
    expected = 2 * vocab * hidden + 2 * hidden + layers * (2 * hidden * ffn + 2 * hidden)
    assert train(parallelism="ddp", model={"kind": "mlp"}).metrics["parameter_count"] == expected


def test_diverging_run_fails_and_names_the_step() -> None:
    """Parameters thrown to infinity by the first update make step 1 fail, and the run goes on to its end."""
    result = train(parallelism="ddp", warmup_steps=0, steps=3, optimizer={"lr": 1e38})
    assert not result.passed
    assert result.first_failure_iteration == 1
    assert {(d["step"], d["rank"]) for d in result.failure_details} == {(1, 0), (2, 0)}
    assert {d["check"] for d in result.failure_details} == {
        "fail_on_nan_loss",
        "fail_on_nan_grad",
        "fail_on_nonfinite_output",
    }
    assert result.executed_iterations == 3
    assert all({"tensor", "hint", "phase", "tensor_count"} <= set(d) for d in result.failure_details)


def test_a_hint_is_the_same_at_every_step() -> None:
    """One cause is one hint in the matrix, however long a run goes on; step and rank have their own fields."""
    details = train(parallelism="ddp", warmup_steps=0, steps=4, optimizer={"lr": 1e38}).failure_details
    hints = {check: {d["hint"] for d in details if d["check"] == check} for check in {d["check"] for d in details}}
    assert {d["step"] for d in details} == {1, 2, 3}
    assert {check: len(texts) for check, texts in hints.items()} == dict.fromkeys(hints, 1)
    assert hints["fail_on_nan_loss"] == {"the loss is not finite: loss"}


def test_failure_in_the_warmup_fails_the_trial() -> None:
    """A fault is not lost because it came before the first timed step."""
    result = train(warmup_steps=2, steps=1, optimizer={"lr": 1e38})
    assert result.first_failure_iteration == 0
    assert (result.failure_details[0]["phase"], result.failure_details[0]["step"]) == ("warmup", 1)


@pytest.mark.parametrize("kept", ["fail_on_nan_loss", "fail_on_nan_grad", "fail_on_nonfinite_output"])
def test_checks_that_are_off_stay_silent(kept: str) -> None:
    """With all but one check off, only that one reports."""
    names = ("fail_on_nan_loss", "fail_on_nan_grad", "fail_on_nonfinite_output")
    result = train(optimizer={"lr": 1e38}, checks={name: name == kept for name in names})
    assert {d["check"] for d in result.failure_details} == {kept}


def test_no_checks_no_failure() -> None:
    """With every check off a run that diverged passes, with a loss that is NaN."""
    names = ("fail_on_nan_loss", "fail_on_nan_grad", "fail_on_nonfinite_output")
    result = train(steps=3, optimizer={"lr": 1e38}, checks=dict.fromkeys(names, False))
    assert result.passed
    assert result.metrics["final_loss"] != result.metrics["final_loss"]


def test_two_trials_in_one_process() -> None:
    """cleanup() leaves no process group behind, so a second trial finds the same loss."""
    assert train().metrics["final_loss"] == train().metrics["final_loss"]
    assert not torch.distributed.is_initialized()


def test_missing_accelerator_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for cuda where torch sees none fails in setup() with the remedy, and leaves nothing to clean."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    workload = TrainingWorkload(merged(TINY_TRAINING, {"device": "cuda"}))
    with pytest.raises(RuntimeError, match=r"workload_config.device is 'cuda'.*set device: auto or cpu"):
        workload.setup()
    workload.cleanup()


def test_final_loss_is_bit_identical_across_processes() -> None:
    """Two fresh processes with the same seed end at the same bits."""
    (first,), (second,) = (run_ranks(merged(TINY_TRAINING, {"steps": 5, "dtype": "bf16"})) for _ in range(2))
    assert first["metrics"]["final_loss"].hex() == second["metrics"]["final_loss"].hex()


def test_two_ranks_agree_and_parallelisms_agree() -> None:
    """On two ranks DDP and FSDP train the same model on the same data, and all ranks report one loss."""
    losses, counts = [], set()
    for parallelism in ("ddp", "fsdp"):
        results = run_ranks(merged(TINY_TRAINING, {"parallelism": parallelism, "steps": 4}), world_size=2)
        assert [r["passed"] for r in results] == [True, True]
        assert [r["metrics"]["rank"] for r in results] == [0, 1]
        assert {r["metrics"]["world_size"] for r in results} == {2}
        losses += [r["metrics"]["final_loss"] for r in results]
        counts |= {r["metrics"]["parameter_count"] for r in results}
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)
    assert counts == {train().metrics["parameter_count"]}


def test_ranks_and_seeds_draw_different_data() -> None:
    """Neither two ranks nor two seeds train on the same tokens, and a batch is not repeated."""

    def batches(seed: int, rank: int) -> list[list[list[int]]]:
        settings = TrainingWorkload(merged(TINY_TRAINING, {"seed": seed, "parallelism": "ddp"})).settings
        session = TrainingSession(settings, RankInfo(rank=rank, world_size=2), torch.device("cpu"))
        return [session._next_batch()[0].tolist() for _ in range(2)]

    join_process_group(RankInfo(), torch.device("cpu"))
    try:
        drawn = [batch for seed, rank in ((1, 0), (1, 1), (2, 0)) for batch in batches(seed, rank)]
        again = batches(1, 0)
    finally:
        leave_process_group()
    assert all(drawn.count(batch) == 1 for batch in drawn)
    assert again == drawn[:2]


def test_fault_on_one_rank_fails_all_and_is_named() -> None:
    """A NaN weight on rank 1 is found at step 0 of rank 1, and rank 0 reports it too."""
    config = merged(TINY_TRAINING, {"parallelism": "ddp", "warmup_steps": 0, "steps": 1})
    for result in run_ranks(config, world_size=2, poison_rank=1):
        assert not result["passed"]
        assert result["first_failure_iteration"] == 0
        # The gradient is NaN on both ranks after the reduction; logits and loss only where the fault is.
        local = {(d["rank"], d["step"]) for d in result["failure_details"] if d["check"] != "fail_on_nan_grad"}
        assert local == {(1, 0)}
