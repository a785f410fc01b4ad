"""``llm_determinism``: clean replays agree, and a planted fault is found where it was planted."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from workload_runs import free_ports, run_once, spawn_ranks

from aorta.llm_determinism.session import DeterminismSession
from aorta.registry.workloads import traits
from aorta.workloads import WorkloadResult
from aorta.workloads.llm_determinism import LlmDeterminismConfig, LlmDeterminismWorkload

LAYERS = 2
TINY: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": 16,
    "ffn_size": 32,
    "num_heads": 2,
    "vocab_size": 64,
    "seq_len": 8,
    "device": "cpu",
}
METRICS = {
    *("model_label", "num_layers", "num_experts", "parameter_count", "dtype", "device", "checksum_mode"),
    *("rank", "world_size", "ranks_with_divergence", "first_divergence", "divergence_reasons", "divergence_count"),
    *("missed_by_plain_sum", "distinct_outcomes", "outcome_counts", "steps", "step_time_p50", "step_time_p99"),
}


def replays(**changes: Any) -> WorkloadResult:
    return run_once(LlmDeterminismWorkload({**TINY, **changes}))


def first(result: WorkloadResult) -> tuple[int, int, int | None, str, str]:
    found = result.metrics["first_divergence"]
    return found["step"], found["rank"], found["block"], found["direction"], found["tensor"]


def test_defaults_are_those_of_the_documentation() -> None:
    """The sizes that recipes rely on."""
    c = LlmDeterminismConfig()
    assert (c.num_layers, c.hidden_size, c.ffn_size, c.num_heads, c.vocab_size) == (24, 2048, 5632, 16, 32000)
    assert (c.seq_len, c.batch_size, c.num_experts, c.dtype, c.seed) == (512, 1, 1, "bfloat16", 1234)
    assert (c.checksum_mode, c.capture_dir, c.inject) == ("per_rank", None, ())
    assert LlmDeterminismWorkload({}).steps == 1


def test_the_engine_knows_how_to_run_it() -> None:
    """Distributed from one rank on, either isolation on request, processes by default."""
    known = traits("llm_determinism")
    assert (known.registered, known.launch_mode, known.min_world_size) == (True, "distributed", 1)
    assert (known.isolation_default, known.isolation_required) == ("process", False)
    assert known.isolation_supported == {"process", "in_process"}


def test_config_problems_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Unknown keys are warned about and ignored, bad values and faults are refused with their place."""
    problems = LlmDeterminismWorkload.check_config({"num_layer": 2, "num_heads": 3, "inject": {"kind": "bitflip"}})
    assert [p.key for p in problems] == ["inject.buffer", "num_heads", "num_layer"]
    with caplog.at_level(logging.WARNING):
        LlmDeterminismWorkload({"num_layer": 2})
    assert "llm_determinism: ignoring unknown workload_config key 'num_layer'" in caplog.text


@pytest.mark.parametrize("changes", [{}, {"num_experts": 3}, {"dtype": "fp32", "warmup_steps": 0}])
def test_clean_replays_agree(changes: dict[str, Any]) -> None:
    """All runs of the step are one outcome; every block was checked and every metric is there."""
    result = replays(steps=3, **changes)
    assert result.passed, result.failure_details
    metrics = result.metrics
    assert set(metrics) == METRICS
    assert (metrics["distinct_outcomes"], metrics["outcome_counts"]) == (1, [6])
    assert (metrics["ranks_with_divergence"], metrics["first_divergence"]) == ([], None)
    assert [(s["step"], s["num_blocks_checked"]) for s in metrics["steps"]] == [(step, LAYERS) for step in range(3)]
    assert all(s["loss_bits_r1"] == s["loss_bits_r2"] != 0 for s in metrics["steps"])
    assert len(result.step_times_ms) == result.total_iterations == 3


def test_many_clean_replays_are_one_outcome() -> None:
    """Forty runs of the step give the same bits."""
    result = replays(steps=20)
    assert result.passed
    assert result.metrics["outcome_counts"] == [40]


def test_loss_bits_are_those_of_a_plausible_loss() -> None:
    """Read as float32 they are near log(vocab_size), the loss of an untrained model."""
    bits = replays().metrics["steps"][0]["loss_bits_r1"]
    loss = torch.tensor(bits, dtype=torch.int32).view(torch.float32).item()
    assert loss == pytest.approx(4.16, abs=0.6)


FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


@pytest.mark.parametrize(
    ("fault", "block", "direction", "tensor"),
    [
        ({"kind": "perturb_input"}, 0, FORWARD, "blocks.0.input"),
        ({"kind": "bitflip", "buffer": "blocks.0.input", "bit": 0}, 0, FORWARD, "blocks.0.input"),
        ({"kind": "bitflip", "buffer": "blocks.1.input", "bit": 0}, 1, FORWARD, "blocks.1.input"),
        ({"kind": "bitflip", "buffer": "blocks.1.output", "bit": 15}, 1, FORWARD, "blocks.1.output"),
        ({"kind": "stale_buffer", "buffer": "blocks.1.output"}, 1, FORWARD, "blocks.1.output"),
        ({"kind": "partial_write", "buffer": "blocks.0.output"}, 0, FORWARD, "blocks.0.output"),
        ({"kind": "bitflip", "buffer": "blocks.1.ffn.up.weight", "bit": 30}, 1, FORWARD, "blocks.1.ffn.up.weight"),
        ({"kind": "bitflip", "buffer": "head.weight", "bit": 0}, None, FORWARD, "head.weight"),
        ({"kind": "nan_logits"}, None, FORWARD, "logits"),
        ({"kind": "bitflip", "buffer": "loss", "bit": 0}, None, FORWARD, "loss"),
        ({"kind": "bitflip", "buffer": "blocks.1.output.grad", "bit": 0}, 1, BACKWARD, "blocks.1.output.grad"),
        ({"kind": "bitflip", "buffer": "blocks.0.output.grad", "bit": 0}, 0, BACKWARD, "blocks.0.output.grad"),
        ({"kind": "bitflip", "buffer": "blocks.0.input.grad", "bit": 0}, 0, BACKWARD, "blocks.0.input.grad"),
        ({"kind": "nan_grad"}, 1, BACKWARD, "blocks.1.output.grad"),
        ({"kind": "bitflip", "buffer": "norm.weight.grad", "bit": 0}, None, BACKWARD, "norm.weight.grad"),
        ({"kind": "bitflip", "buffer": "blocks.0.ffn.gate.weight.grad"}, 0, BACKWARD, "blocks.0.ffn.gate.weight.grad"),
        ({"kind": "bitflip", "buffer": "blocks.1.ffn.down.weight.updated"}, 1, UPDATE, "blocks.1.ffn.down.weight"),
        ({"kind": "bitflip", "buffer": "embed.weight.updated", "bit": 0}, None, UPDATE, "embed.weight"),
    ],
)
def test_a_planted_fault_is_named_where_it_was_planted(
    fault: dict[str, Any], block: int | None, direction: str, tensor: str
) -> None:
    """Block, direction, step and tensor of the first divergence are those of the fault."""
    result = replays(steps=2, inject={**fault, "step": 1})
    assert not result.passed
    assert first(result) == (1, 0, block, direction, tensor)
    assert result.first_failure_iteration == 1
    assert (result.metrics["ranks_with_divergence"], result.metrics["outcome_counts"]) == ([0], [3, 1])
    assert tensor in result.failure_details[0]["hint"]
    assert result.metrics["injected"]["strike_count"] == 1


def test_random_bit_flips_in_every_kind_of_place_are_found() -> None:
    """Whatever element and bit is drawn, the flip shows where it happened."""
    for trial, tensor in enumerate(["blocks.0.output", "blocks.1.input.grad", "norm.bias.grad", "logits"] * 3):
        result = replays(inject={"kind": "bitflip", "buffer": tensor, "seed": 5}, _aorta_trial_index=trial)
        assert first(result)[4] == tensor


def test_a_fault_in_one_step_does_not_leak_into_the_next() -> None:
    """The snapshot heals everything: only the struck step fails."""
    result = replays(steps=3, inject={"kind": "bitflip", "buffer": "embed.weight", "bit": 30, "step": 1})
    assert {d["step"] for d in result.failure_details} == {1}


def test_steps_that_agree_within_but_not_across_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """If both replays of step 1 differ from those of step 0 alike, that is said, and there are two outcomes."""
    workload = LlmDeterminismWorkload({**TINY, "steps": 2})
    replay, calls = DeterminismSession._replay, []

    def disturbed(self: DeterminismSession, *args: Any) -> Any:
        calls.append(self)
        if len(calls) == 3:
            self._tokens_BT = self._tokens_BT.flip(1)
        return replay(self, *args)

    monkeypatch.setattr(DeterminismSession, "_replay", disturbed)
    result = run_once(workload)
    assert [d["check"] for d in result.failure_details] == ["steps_agree"]
    assert result.metrics["first_divergence"]["runs"] == ["r1 of step 0", "r1"]
    assert (result.metrics["distinct_outcomes"], result.metrics["outcome_counts"]) == (2, [2, 2])


def test_reasons_are_capped_and_counted() -> None:
    """A fault that spreads everywhere lists 32 tensors and counts all of them."""
    metrics = replays(inject={"kind": "perturb_input"}, steps=2).metrics
    assert len(metrics["divergence_reasons"]) == 32 < metrics["divergence_count"]
    assert metrics["divergence_reasons"][0].startswith("step 0, rank 0: block 0, forward, blocks.0.input: checksum ")


def test_capture_holds_one_line_a_replay(tmp_path: Path) -> None:
    """Two lines a step, with a plain and an ordered checksum of every block; a divergence shows in them."""
    fault = {"kind": "bitflip", "buffer": "blocks.1.output", "step": 1}
    replays(steps=2, capture_dir=str(tmp_path), inject=fault)
    lines = [json.loads(line) for line in (tmp_path / "rank000.jsonl").read_text().splitlines()]
    assert [(line["rank"], line["step"], line["run"]) for line in lines] == [
        *((0, 0, "r1"), (0, 0, "r2"), (0, 1, "r1"), (0, 1, "r2"))
    ]
    for name in ("block_pre", "block_post", "block_pre_grad", "block_post_grad"):
        assert all(len(line[name]) == len(line[f"{name}_ordered"]) == LAYERS for line in lines)
    r1, r2 = lines[2:]
    assert r1["block_pre"] == r2["block_pre"]
    assert r1["block_post"][0] == r2["block_post"][0]
    assert r1["block_post"][1] != r2["block_post"][1]


def test_label_is_given_or_made_of_the_sizes() -> None:
    """A label of one's own wins."""
    assert replays(model_label="mine").metrics["model_label"] == "mine"
    assert LlmDeterminismConfig(num_experts=4).label == "24L-2048d-4e"


@pytest.fixture(scope="module")
def on_two_ranks() -> dict[str, list[dict[str, Any]]]:
    """Results of each rank of several trials, all run by one pair of processes."""
    flip = {"kind": "bitflip", "buffer": "blocks.1.output", "rank": 1, "step": 1}
    grad = {"kind": "bitflip", "buffer": "blocks.0.ffn.up.weight.grad", "rank": 1}
    cases: dict[str, dict[str, Any]] = {
        "clean": {"steps": 2},
        "clean experts": {"steps": 2, "num_experts": 2},
        "clean global": {"steps": 2, "checksum_mode": "global"},
        "flip": {"steps": 2, "inject": flip},
        "flip global": {"steps": 2, "inject": flip, "checksum_mode": "global"},
        "gradient": {"inject": grad},
    }
    requests = [(port, {**TINY, **cases[name]}) for port, name in zip(free_ports(len(cases)), cases, strict=True)]
    by_rank = spawn_ranks(Path(__file__).with_name("llm_rank_driver.py"), requests, world_size=2)
    return {name: [results[index] for results in by_rank] for index, name in enumerate(cases)}


@pytest.mark.parametrize("case", ["clean", "clean experts", "clean global"])
def test_two_ranks_agree_with_themselves(on_two_ranks: dict[str, list[dict[str, Any]]], case: str) -> None:
    """A sharded model replays as well; one outcome over both ranks."""
    for rank, result in enumerate(on_two_ranks[case]):
        assert result["passed"], result["failure_details"]
        assert (result["metrics"]["rank"], result["metrics"]["world_size"]) == (rank, 2)
        assert (result["metrics"]["distinct_outcomes"], result["metrics"]["ranks_with_divergence"]) == (1, [])


def test_ranks_have_their_own_loss_and_a_joined_one(on_two_ranks: dict[str, list[dict[str, Any]]]) -> None:
    """per_rank reports each rank's checksums, global one value that all ranks share."""
    own = [result["metrics"]["steps"][0]["loss_bits_r1"] for result in on_two_ranks["clean"]]
    joined = [result["metrics"]["steps"][0]["loss_bits_r1"] for result in on_two_ranks["clean global"]]
    assert own[0] != own[1]
    assert joined == [sum(own)] * 2


@pytest.mark.parametrize("case", ["flip", "flip global"])
def test_a_fault_on_rank_1_is_named_by_all_ranks(on_two_ranks: dict[str, list[dict[str, Any]]], case: str) -> None:
    """Rank 0's record says that rank 1 went first, though the reduction then spread the fault to both."""
    for result in on_two_ranks[case]:
        metrics = result["metrics"]
        found = metrics["first_divergence"]
        assert (found["step"], found["rank"], found["block"], found["tensor"]) == (1, 1, 1, "blocks.1.output")
        assert metrics["ranks_with_divergence"] == [0, 1]
        # Only the rank that went first gets a hint: rank 0 merely received the fault.
        assert [(d["rank"], "hint" in d) for d in result["failure_details"]] == [(1, True), (0, False)]
        (planned,) = metrics["injected"]["planned"]
        assert [(s["rank"], s["buffer"]) for s in planned["strikes"]] == [(1, "blocks.1.output")]


def test_a_fault_after_the_reduction_stays_on_its_rank(on_two_ranks: dict[str, list[dict[str, Any]]]) -> None:
    """A flipped bit in rank 1's shard of a gradient is rank 1's divergence alone."""
    metrics = on_two_ranks["gradient"][0]["metrics"]
    assert metrics["ranks_with_divergence"] == [1]
    assert metrics["first_divergence"]["tensor"] == "blocks.0.ffn.up.weight.grad"


def test_the_page_describes_every_setting_and_metric() -> None:
    """docs/llm-determinism.md leaves out nothing that a user sets or reads."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "llm-determinism.md").read_text("utf-8")
    names = {*LlmDeterminismConfig.hints(), *METRICS}
    assert {name for name in names if f"`{name}`" not in page} == set()
