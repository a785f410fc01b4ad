"""Faults that can never strike are reported before anything runs, where configuration and ranks tell."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.workloads.base import TrialShape, Workload
from aorta.workloads.inference import InferenceWorkload
from aorta.workloads.inject import FaultConfig, parse_faults, strikes_trial
from aorta.workloads.llm_determinism import LlmDeterminismWorkload
from aorta.workloads.race import RaceWorkload
from aorta.workloads.training import TrainingWorkload

TWO = TrialShape(steps=4, world_size=2, local_world_size=2)
RACE = {"mode": "fsdp", "gemm_layers": 2, "fsdp_shard_size": 100, "verify_iterations": 5}
BIT = {"kind": "bitflip"}


def found(workload: type[Workload], config: dict[str, Any], shape: TrialShape = TWO) -> list[tuple[str, str]]:
    """Key and message of each problem, the message without the key that it begins with."""
    assert workload.check_config(config) == []
    problems = workload.check_trial(config, shape)
    assert all(problem.message.startswith(f"{problem.key} ") for problem in problems)
    return [(problem.key, problem.message.removeprefix(f"{problem.key} ")) for problem in problems]


@pytest.mark.parametrize(
    ("workload", "fault", "key", "message"),
    [
        (RaceWorkload, {"kind": "nan_logits"}, "buffer", "'*logits' is none of this workload's"),
        (RaceWorkload, {"kind": "perturb_input"}, "buffer", "'input' is none of this workload's"),
        (RaceWorkload, {**BIT, "buffer": "layer9.all_gather"}, "buffer", "did you mean layer1.all_gather"),
        (RaceWorkload, {**BIT, "buffer": "layer0.all_gather", "bit": 16}, "bit", "has 16 bits"),
        (RaceWorkload, {**BIT, "buffer": "layer0.reduce_scatter", "bit": 32}, "bit", "has 32 bits"),
        (RaceWorkload, {**BIT, "buffer": "layer0.all_gather", "element": 200}, "element", "has 200 elements"),
        (RaceWorkload, {**BIT, "buffer": "layer0.all_gather", "rank": 2}, "rank", "is 2; the trial has ranks 0 to 1"),
        (RaceWorkload, {"kind": "crash_rank", "step": 5}, "step", "is 5; the trial has steps 0 to 4"),
        (TrainingWorkload, {"kind": "hang_rank", "iteration": 4}, "iteration", "is 4; the trial has steps 0 to 3"),
        (TrainingWorkload, {**BIT, "buffer": "logit"}, "buffer", "did you mean logits?"),
        (TrainingWorkload, {**BIT, "buffer": "blocks.7.norm.weight"}, "buffer", "the model has blocks.0 to blocks.1"),
        (TrainingWorkload, {**BIT, "buffer": "head.weight.grad", "bit": 32}, "bit", "has 32 bits"),
        (TrainingWorkload, {"kind": "nan_grad", "buffer": "input"}, "buffer", "token ids, which have no NaN"),
        (InferenceWorkload, {"kind": "nan_grad"}, "buffer", "'*.grad' is none of this workload's"),
        (InferenceWorkload, {**BIT, "buffer": "head.weight", "bit": 16}, "bit", "has 16 bits"),
        (LlmDeterminismWorkload, {**BIT, "buffer": "loss", "element": 1}, "element", "has 1 elements"),
        (LlmDeterminismWorkload, {**BIT, "buffer": "blocks.24.input"}, "buffer", "blocks.0 to blocks.23"),
    ],
)
def test_a_fault_that_cannot_strike_is_named(
    workload: type[Workload], fault: dict[str, Any], key: str, message: str
) -> None:
    """The setting that is to blame, its value, and what there is."""
    config = {**(RACE if workload is RaceWorkload else {}), "inject": [{"kind": "slow_rank"}, fault]}
    ((place, told),) = found(workload, config)
    assert place == f"inject[1].{key}"
    assert message in told


@pytest.mark.parametrize(
    ("workload", "fault"),
    [
        (RaceWorkload, {**BIT, "buffer": "layer1.*", "bit": 31, "rank": None, "step": None}),
        (RaceWorkload, {**BIT, "buffer": "layer0.all_gather", "element": 199, "bit": 15, "rank": 1, "step": 4}),
        (TrainingWorkload, {"kind": "nan_logits", "rank": 1, "step": 3}),
        (TrainingWorkload, {"kind": "nan_grad", "buffer": "blocks.1.ffn.up.weight.grad"}),
        (TrainingWorkload, {**BIT, "buffer": "input", "bit": 63, "element": 255}),
        (InferenceWorkload, {"kind": "partial_write", "buffer": "prefill_logits", "element": 10**6}),
        (LlmDeterminismWorkload, {**BIT, "buffer": "blocks.23.output.grad", "bit": 15}),
    ],
)
def test_a_fault_that_may_strike_is_not(workload: type[Workload], fault: dict[str, Any]) -> None:
    """The last of each, patterns, and names that take the model to know."""
    config = {**(RACE if workload is RaceWorkload else {}), "inject": fault}
    assert found(workload, config) == []


def test_nothing_is_said_of_ranks_that_are_not_known_yet() -> None:
    """A recipe is looked at before anybody has said how many ranks there will be."""
    config = {**RACE, "expected_local_world_size": 8, "inject": {"kind": "crash_rank", "rank": 7}}
    assert found(RaceWorkload, config, TrialShape(steps=1)) == []


def test_another_number_of_ranks_than_the_recipe_is_made_for_is_named() -> None:
    """Its code is its own: the trial runs."""
    (problem,) = RaceWorkload.check_trial({**RACE, "expected_local_world_size": 8}, TWO)
    assert (problem.key, problem.code) == ("expected_local_world_size", "topology_mismatch")
    assert problem.message == "expected_local_world_size is 8 and the trials have 2 ranks a host"


@pytest.mark.parametrize(
    ("fault", "key", "words"),
    [
        ({**BIT, "buffer": ""}, "inject.buffer", "is empty; name the buffer"),
        ({**BIT, "buffer": "x", "bit": 64}, "inject.bit", "more than 64 bits"),
    ],
)
def test_what_no_workload_could_do_is_a_bad_value(fault: dict[str, Any], key: str, words: str) -> None:
    """Whatever the workload's buffers are."""
    (problem,) = TrainingWorkload.check_config({"inject": fault})
    assert (problem.key, problem.code) == (key, "bad_config_value")
    assert words in problem.message


def test_whether_a_fault_strikes_is_told_of_a_recipes_mapping_too() -> None:
    """A mapping and the parsed fault give the same draws; a mapping that is wrong says what."""
    fault = {"kind": "nan_grad", "probability": 0.5, "seed": 7}
    (parsed,) = parse_faults(fault)
    assert isinstance(parsed, FaultConfig)
    drawn = [strikes_trial(fault, 0, trial) for trial in range(16)]
    assert drawn == [strikes_trial(parsed, 0, trial) for trial in range(16)]
    assert set(drawn) == {True, False}
    with pytest.raises(ValueError, match="probability is 2"):
        strikes_trial({"kind": "nan_grad", "probability": 2}, 0, 0)
