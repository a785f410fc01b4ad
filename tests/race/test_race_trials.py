"""Whole trials on two ranks: every mode passes clean, faults of every kind are found, and all ranks agree."""

from __future__ import annotations

from typing import Any

import pytest
from race_runs import run_trials, tiny
from test_race_bitflips import CONFIGURATIONS

SHARED = {"compute_type": "transformer", "shared_layer_weights": True, "real_backward": True}
METRICS = {
    "compute_type",
    "layers_verified",
    "layer_checksum_mismatches",
    "avg_step_time_ms",
    "mode",
    "h2d_tensor_size",
    "alltoall_tensor_size",
    "allreduce_tensor_size",
    "fsdp_shard_size",
    "reduce_scatter_oracle_dtype",
    "rank",
    "world_size",
    "local_world_size",
    "node_count",
    "topology_matches_recipe",
}
EXTRA: dict[str, dict[str, Any]] = {
    "long-run": tiny("fsdp", verify_iterations=140, simulate_compute=False),  # twice through all phases
    "chained-layers": tiny("fsdp", compute_type="transformer", real_backward=True),
    "chained-layers-ddp": tiny("ddp", compute_type="transformer", real_backward=True, ddp_bucketed=True),
    "simulated-backward": tiny("fsdp", compute_type="transformer", dtype="fp16"),
    "no-backward": tiny("default", include_backward_compute=False, deterministic=True),
    "shared-weights-only": tiny("fsdp", compute_type="transformer", shared_layer_weights=True, simulate_compute=False),
    "wrong-topology": tiny("ddp", expected_local_world_size=8),
    "no-warmup": tiny("fsdp", warmup_iterations=0, **SHARED),
    "stale": tiny("fsdp", inject={"kind": "stale_buffer", "buffer": "layer1.all_gather", "rank": 1, "step": 0}),
    "stale-sum": tiny("ddp", inject={"kind": "stale_buffer", "buffer": "all_reduce", "rank": 0, "step": 2}),
    "partial": tiny("default", inject={"kind": "partial_write", "buffer": "all_to_all", "rank": 1, "step": 1}),
    "nan-grad": tiny("fsdp", inject={"kind": "nan_grad", "rank": 1, "step": 1}, **SHARED),
    "stops": tiny("fsdp", verify_iterations=50, inject={"kind": "bitflip", "buffer": "*.all_gather", "rank": 1}),
    "goes-on": tiny(
        "fsdp",
        verify_iterations=8,
        stop_on_first_corruption=False,
        inject={"kind": "bitflip", "buffer": "layer0.reduce_scatter", "rank": 1, "step": None},
    ),
    "slow": tiny("default", inject={"kind": "slow_rank", "rank": 1, "step": 1, "seconds": 0.1}),
    "not-drawn": tiny("default", inject={"kind": "bitflip", "buffer": "h2d", "probability": 0.0}),
}


@pytest.fixture(scope="module")
def trials() -> dict[str, list[dict[str, Any]]]:
    """Both ranks' results of each trial, all run by one pair of processes."""
    configs = CONFIGURATIONS | EXTRA
    return dict(zip(configs, run_trials(list(configs.values())), strict=True))


@pytest.mark.parametrize("name", [*CONFIGURATIONS, *(n for n, c in EXTRA.items() if "inject" not in c)])
def test_clean_trial_passes(name: str, trials: dict[str, list[dict[str, Any]]]) -> None:
    """Without a fault nothing is wrong, every iteration counts, and every metric is there."""
    config = (CONFIGURATIONS | EXTRA)[name]
    for rank, result in enumerate(trials[name]):
        assert (result["passed"], result["failure_details"]) == (True, [])
        assert result["executed_iterations"] == result["total_iterations"] == config["verify_iterations"]
        assert len(result["step_times_ms"]) == config["verify_iterations"]
        assert result["elapsed_sec"] == pytest.approx(sum(result["step_times_ms"]) / 1000)
        metrics = result["metrics"]
        assert set(metrics) >= METRICS
        assert "injected" not in metrics
        assert (metrics["rank"], metrics["world_size"], metrics["local_world_size"]) == (rank, 2, 2)
        assert (metrics["node_count"], metrics["reduce_scatter_oracle_dtype"]) == (1, "float32")
        assert metrics["layer_checksum_mismatches"] == 0


@pytest.mark.parametrize(
    ("name", "comparisons"),
    [
        ("fsdp-shared-layers", 4 * 3 * 2),  # iterations, layers, output and gradient
        ("default-shared-layers", 4 * 3 * 2),
        ("shared-weights-only", 4 * 3),
        ("fsdp-bare-bf16", 0),
    ],
)
def test_layers_verified_counts_comparisons(
    name: str, comparisons: int, trials: dict[str, list[dict[str, Any]]]
) -> None:
    """Only layers with shared weights can be compared, and each comparison counts."""
    assert [r["metrics"]["layers_verified"] for r in trials[name]] == [comparisons] * 2


def test_unexpected_topology_is_recorded(trials: dict[str, list[dict[str, Any]]]) -> None:
    """A recipe for eight ranks a host says so when there are two; one without expectations is content."""
    assert trials["wrong-topology"][0]["metrics"]["topology_matches_recipe"] is False
    assert trials["fsdp-bare-bf16"][0]["metrics"]["topology_matches_recipe"] is True


@pytest.mark.parametrize(
    ("name", "where", "count"),
    [
        ("stale", ("layer1.all_gather", 1, 0), 2 * 37),
        ("stale-sum", ("all_reduce", 0, 2), 61),
        ("partial", ("all_to_all", 1, 1), 26),
        ("nan-grad", ("layer2.grad", 1, 1), 1),
    ],
)
def test_planted_fault_is_found_on_all_ranks_reports(
    name: str, where: tuple[str, int, int], count: int, trials: dict[str, list[dict[str, Any]]]
) -> None:
    """A fault on one rank fails the trial on both, with buffer, rank, iteration and the number of wrong elements."""
    for result in trials[name]:
        assert not result["passed"]
        (record,) = result["failure_details"]
        assert (record["buffer"], record["rank"], record["iteration"]) == where
        assert record["count"] == count
        assert record["buffer"] in record["hint"]
        assert result["first_failure_iteration"] == where[2]
        assert result["metrics"]["injected"]["strike_count"] == 1


def test_wrong_gradient_is_a_checksum_mismatch(trials: dict[str, list[dict[str, Any]]]) -> None:
    """The layer's checksum catches what the comparison catches, on whichever rank it is."""
    assert [r["metrics"]["layer_checksum_mismatches"] for r in trials["nan-grad"]] == [1, 1]


def test_all_ranks_stop_soon_after_the_first_corruption(trials: dict[str, list[dict[str, Any]]]) -> None:
    """Both ranks stop after the same iteration, at most two after the fault, and keep what they measured."""
    executed = [r["executed_iterations"] for r in trials["stops"]]
    assert executed[0] == executed[1] <= 3
    assert [len(r["step_times_ms"]) for r in trials["stops"]] == executed
    assert trials["stops"][0]["configured_iterations"] == 50


def test_trial_goes_on_when_told_to(trials: dict[str, list[dict[str, Any]]]) -> None:
    """With stop_on_first_corruption off every corrupted iteration is counted."""
    result = trials["goes-on"][0]
    assert (result["executed_iterations"], result["failure_count"]) == (8, 8)
    assert [d["iteration"] for d in result["failure_details"]] == list(range(8))


def test_slow_rank_is_slow_and_right(trials: dict[str, list[dict[str, Any]]]) -> None:
    """A rank that sleeps makes its step long on both ranks and corrupts nothing."""
    for result in trials["slow"]:
        assert result["passed"]
        assert max(result["step_times_ms"]) == result["step_times_ms"][1] >= 100


def test_fault_that_was_not_drawn_is_recorded_and_harmless(trials: dict[str, list[dict[str, Any]]]) -> None:
    """A trial that plans a fault says so even if the draw spares it."""
    result = trials["not-drawn"][0]
    assert result["passed"]
    assert [p["active"] for p in result["metrics"]["injected"]["planned"]] == [False]
