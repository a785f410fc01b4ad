"""The judge sees every way in which a record can differ from what was planted, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.selftest import judge, judge_speed
from aorta.selftest.findings import READERS
from aorta.workloads.inject import FaultConfig, strikes_trial

from .records import FLIP, corruption, divergence, ended, flipped, nonfinite, planted, record, request

CONTROL = request("race")
STRUCK = request("race", FLIP)
RIGHT = record(flipped(), details=[corruption()])


def codes(trial_record: dict[str, Any] | None, cell: dict[str, Any], trial: int = 0) -> list[str]:
    """The codes of what is wrong."""
    return [problem.code for problem in judge(trial_record, cell, trial)]


def test_a_fault_that_is_found_as_planted_is_right() -> None:
    """Rank, step, buffer, position and both values agree."""
    assert codes(RIGHT, STRUCK) == []


def test_a_clean_trial_that_passes_is_right() -> None:
    """Nothing planted, nothing found."""
    assert codes(record(), CONTROL) == []


def test_a_missing_trial_is_told() -> None:
    """No record proves nothing."""
    assert codes(None, STRUCK) == codes(None, CONTROL) == ["missing_trial"]


def test_a_fault_that_struck_and_was_not_found_is_missed() -> None:
    """The trial passed although it was struck."""
    (problem,) = judge(record(flipped()), STRUCK, 0)
    assert (problem.code, problem.fault) == ("missed", 0)
    assert "bitflip in layer1.all_gather on rank 1 at step 2" in problem.message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rank": 0}, "wrong_rank"),
        ({"iteration": 3}, "wrong_step"),
        ({"buffer": "layer0.all_gather"}, "wrong_buffer"),
        ({"first_position": 8}, "wrong_position"),
        ({"first_position": 6}, "wrong_position"),
        ({"count": 2}, "wrong_position"),
        ({"expected": {"bits": "0x3cd9"}}, "wrong_value"),
        ({"found": {"bits": "0x3dd9"}}, "wrong_value"),
    ],
)
def test_a_fault_that_is_described_wrongly_is_told(changes: dict[str, Any], code: str) -> None:
    """One wrong field of the record is one problem of its own kind."""
    assert codes(record(flipped(), details=[corruption(**changes)]), STRUCK) == [code]


def test_a_record_that_is_wrong_in_two_ways_is_a_miss_and_a_false_alarm() -> None:
    """Another rank and another step: nothing says that the finding belongs to the fault."""
    found = record(flipped(), details=[corruption(rank=0, iteration=0)])
    assert codes(found, STRUCK) == ["missed", "false_alarm"]


def test_a_finding_in_a_clean_trial_is_a_false_alarm() -> None:
    """A control must not fail."""
    assert codes(record(details=[corruption()]), CONTROL) == ["false_alarm"]


def test_a_verdict_without_a_finding_is_a_false_alarm() -> None:
    """A control that fails without saying why has failed too."""
    assert codes(record() | {"verdict": "fail"}, CONTROL) == ["false_alarm"]


def test_findings_with_a_passing_verdict_are_a_miss() -> None:
    """A detector that finds the fault and lets the trial pass has not found it."""
    assert codes(RIGHT | {"verdict": "pass"}, STRUCK) == ["missed"]


def test_a_finding_besides_the_planted_one_is_a_false_alarm() -> None:
    """What the fault does not explain was not planted."""
    found = record(flipped(), details=[corruption(), corruption(buffer="layer2.all_gather")])
    assert codes(found, STRUCK) == ["false_alarm"]


def test_an_error_is_no_finding() -> None:
    """A trial that could not run says nothing of the detector, struck or not."""
    broken = ended("workload_setup_failed", message="no device")
    assert codes(broken, STRUCK) == codes(broken, CONTROL) == ["error"]


@pytest.mark.parametrize(
    "entry",
    [
        planted(FLIP),
        planted(FLIP, active=False),
        planted(FLIP, {"buffer": "layer1.all_gather", "element": 7}, {"buffer": "layer1.all_gather", "element": 7}),
        flipped(rank=0),
        flipped(step=1),
        flipped(buffer="layer2.all_gather"),
        flipped(element=8),
        flipped(after="0x3cd8"),
        {**flipped(), "kind": "stale_buffer"},
    ],
)
def test_a_fault_that_did_not_strike_as_planned_is_told(entry: dict[str, Any]) -> None:
    """The injector is judged too: what it says that it did is held against the request."""
    assert "not_planted" in codes(record(entry), STRUCK)


def test_a_record_without_the_metric_is_told() -> None:
    """A workload that ignores inject has planted nothing."""
    assert codes(record(), STRUCK) == ["not_planted"]


def test_a_buffer_that_was_not_changed_is_told() -> None:
    """A stale buffer with the same content is no fault that anybody could find."""
    fault = {"kind": "stale_buffer", "buffer": "h2d", "rank": 0, "step": 1}
    entry = planted(fault, {"buffer": "h2d", "first": 0, "changed": 0})
    assert "not_planted" in codes(record(entry), request("race", fault))


def test_the_seed_says_which_trials_are_struck() -> None:
    """Of trials with a probability, the spared ones must pass and the others must fail."""
    fault: dict[str, Any] = {**FLIP, "probability": 0.5, "seed": 1}
    drawn = [strikes_trial(FaultConfig(**fault), 0, trial) for trial in range(16)]
    struck, spared = drawn.index(True), drawn.index(False)
    cell = request("race", fault)
    passed = record(planted(fault, active=False))
    failed = record({**flipped(), "probability": 0.5, "seed": 1}, details=[corruption()])
    assert (codes(failed, cell, struck), codes(passed, cell, spared)) == ([], [])
    assert codes(passed, cell, struck) == ["not_planted"]
    assert codes(failed, cell, spared)[0] == "not_planted"


def test_a_partial_write_is_judged_by_count_and_first_element() -> None:
    """The first elements of what was not written may be right by chance; none before them may be wrong."""
    fault = {"kind": "partial_write", "buffer": "h2d", "rank": 0, "step": 1, "element": 50}
    entry = planted(fault, {"buffer": "h2d", "first": 50, "changed": 40})
    cell = request("race", fault)
    where = {"buffer": "h2d", "rank": 0, "iteration": 1}
    found = {position: corruption(first_position=position, count=40, **where) for position in (49, 50, 53)}
    assert codes(record(entry, details=[found[50]]), cell) == codes(record(entry, details=[found[53]]), cell) == []
    assert codes(record(entry, details=[found[49]]), cell) == ["wrong_position"]
    assert codes(record(entry, details=[found[50] | {"count": 41}]), cell) == ["wrong_position"]


def test_an_update_that_follows_a_wrong_sum_is_explained() -> None:
    """On the same rank, in the same iteration, of the same layer; no other is."""
    fault = {**FLIP, "buffer": "layer1.reduce_scatter"}
    entry = planted(fault, flipped()["strikes"][0] | {"buffer": "layer1.reduce_scatter"})
    first = corruption(buffer="layer1.reduce_scatter")
    for changes, expected in (
        ({}, []),
        ({"rank": 0}, ["false_alarm"]),
        ({"iteration": 3}, ["false_alarm"]),
        ({"buffer": "layer2.optimizer_param"}, ["false_alarm"]),
    ):
        follows = corruption(**{"buffer": "layer1.optimizer_param", **changes})
        assert codes(record(entry, details=[first, follows]), request("race", fault)) == expected


def test_replays_name_the_struck_rank_by_a_hint() -> None:
    """The other rank's difference follows from it and has no hint; with one, a person is led astray."""
    fault = {"kind": "bitflip", "buffer": "blocks.1.input", "rank": 0, "step": 1}
    entry = planted(fault, {"buffer": "blocks.1.input", "element": 3, "before": "0x1", "after": "0x0"})
    cell = request("llm_determinism", fault)
    carried = divergence(rank=1, direction="backward", tensor="head.weight.grad")
    silent = {name: value for name, value in carried.items() if name != "hint"}
    assert codes(record(entry, details=[divergence(), silent]), cell) == []
    assert codes(record(entry, details=[divergence(), carried]), cell) == ["false_alarm"]
    assert codes(record(entry, details=[divergence(rank=1)]), cell) == ["wrong_rank"]
    assert codes(record(entry, details=[divergence(tensor="blocks.0.output")]), cell) == ["wrong_buffer"]
    assert codes(record(entry, details=[divergence(), divergence(check="steps_agree")]), cell) == ["false_alarm"]


def test_updated_parameters_are_told_from_those_that_enter_the_step() -> None:
    """A parameter that changed before the forward pass is another buffer than its update."""
    fault = {"kind": "bitflip", "buffer": "norm.weight.updated", "rank": 0, "step": 1}
    entry = planted(fault, {"buffer": "norm.weight.updated", "element": 3, "before": "0x1", "after": "0x0"})
    cell = request("llm_determinism", fault)
    assert codes(record(entry, details=[divergence(tensor="norm.weight", direction="update")]), cell) == []
    assert codes(record(entry, details=[divergence(tensor="norm.weight")]), cell) == ["wrong_buffer"]


def test_a_nan_spreads_in_training_and_is_told_at_its_source() -> None:
    """Later steps and the other rank's reduced gradients follow; an earlier step or a warm-up does not."""
    fault = {"kind": "nan_grad", "buffer": "w.grad", "rank": 1, "step": 1}
    entry = planted(fault, {"buffer": "w.grad", "element": 3, "before": "0x1", "after": "0x7fc00000"})
    cell = request("training", fault)
    later = nonfinite(step=2, rank=0, tensor="logits", nan_count=99)
    assert codes(record(entry, details=[nonfinite(), later]), cell) == []
    assert codes(record(entry, details=[nonfinite(rank=0)]), cell) == ["wrong_rank"]
    assert codes(record(entry, details=[nonfinite(nan_count=2)]), cell) == ["wrong_position"]
    assert codes(record(entry, details=[nonfinite(), nonfinite(step=0)]), cell) == ["false_alarm"]
    assert codes(record(entry, details=[nonfinite(), nonfinite(phase="warmup")]), cell) == ["false_alarm"]


def test_inference_names_the_pass_of_a_nan() -> None:
    """The step's checksum differs as well, and after a strike at step 0 that of every other step."""
    fault = {"kind": "nan_logits", "buffer": "decode_logits", "rank": 0, "step": 1}
    entry = planted(fault, {"buffer": "decode_logits", "element": 3, "before": "0x1", "after": "0x7fc00000"})
    cell = request("inference", fault, ranks=1)
    common = {"step": 1, "phase": "timed"}
    nan = {**common, "check": "fail_on_nan_logits", "tensor": "decode logits", "nan_count": 1, "inf_count": 0}
    differs = {**common, "check": "compare_logits_checksum", "tensor": "logits"}
    assert codes(record(entry, details=[nan, differs]), cell) == []
    assert codes(record(entry, details=[nan | {"tensor": "prefill logits"}]), cell) == ["wrong_buffer"]
    assert codes(record(entry, details=[nan, differs | {"step": 2}]), cell) == ["false_alarm"]
    at_first = {**fault, "step": 0}
    struck = planted(at_first, entry["strikes"][0] | {"step": 0})
    all_differ = [nan | {"step": 0}, differs, differs | {"step": 2}]
    assert codes(record(struck, details=all_differ), request("inference", at_first, ranks=1)) == []


SAID = "planted fault: crash_rank (inject[0]): rank 1, step 2, how sigkill"


def test_a_crash_is_blamed_on_the_struck_rank() -> None:
    """How it ended and which rank is to blame."""
    cell = request("race", {"kind": "crash_rank", "rank": 1, "step": 2})
    killed = {"type": "signal", "signal": "SIGKILL"}
    assert codes(ended("infrastructure_failed", SAID, rank=1, **killed), cell) == []
    assert codes(ended("infrastructure_failed", SAID, rank=0, **killed), cell) == ["wrong_rank"]
    assert codes(ended("infrastructure_failed", SAID, rank=1, type="exit", exit_code=1), cell) == ["wrong_ending"]
    assert codes(ended("infrastructure_failed", rank=1, **killed), cell) == ["not_planted"]
    early = SAID.replace("step 2", "step 1")
    assert codes(ended("infrastructure_failed", early, rank=1, **killed), cell) == ["not_planted"]
    assert codes(record(), cell) == ["not_planted"]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("sigsegv", {"type": "signal", "signal": "SIGSEGV"}),
        ("exit", {"type": "exit", "exit_code": 1}),
        ("exception", {"type": "RuntimeError"}),
    ],
)
def test_each_way_to_crash_has_its_own_ending(how: str, error: dict[str, Any]) -> None:
    """The record tells a signal, an exit and an exception apart."""
    cell = request("race", {"kind": "crash_rank", "rank": 1, "step": 2, "how": how})
    assert codes(ended("infrastructure_failed", SAID, rank=1, **error), cell) == []
    wrong = {"type": "signal", "signal": "SIGBUS"}
    assert codes(ended("infrastructure_failed", SAID, rank=1, **wrong), cell) == ["wrong_ending"]


def test_a_hang_is_ended_by_the_time_limit() -> None:
    """During run(), after the rank that had to hang has said so."""
    cell = request("race", {"kind": "hang_rank", "rank": 1, "step": 1})
    said = "[rank 1] planted fault: hang_rank (inject[0]): rank 1, step 1, seconds None"
    limit = {"type": "timeout", "message": "the time limit of 12 s was reached during run()"}
    assert codes(ended("timed_out", said, **limit), cell) == []
    assert codes(ended("timed_out", said.replace("[rank 1]", "[rank 0]"), **limit), cell) == ["not_planted"]
    assert codes(ended("timed_out", **limit), cell) == ["not_planted"]
    early = limit | {"message": "the time limit of 12 s was reached during setup()"}
    assert codes(ended("timed_out", said, **early), cell) == ["wrong_ending"]


def test_a_delay_shows_in_the_step_time_and_fails_nothing() -> None:
    """The struck step takes as long as planted; a failed check is a false alarm."""
    fault = {"kind": "slow_rank", "rank": 1, "step": 2, "seconds": 0.5}
    entry, cell = planted(fault, {"seconds": 0.5}), request("race", fault)
    slow = record(entry)
    assert codes(slow, cell) == ["not_slow"]
    slow["result"]["step_times_ms"][2] = 510.0
    assert codes(slow, cell) == []
    slow["result"]["failure_details"] = [corruption()]
    assert codes(slow | {"verdict": "fail"}, cell) == ["false_alarm"]


def test_a_cell_whose_every_step_is_slow_is_flagged_in_the_matrix() -> None:
    """The matrix's own tag is judged, for faults that strike every step of every trial only."""
    always = request("race", {"kind": "slow_rank", "rank": 1, "step": None, "seconds": 0.5})
    once = request("race", {"kind": "slow_rank", "rank": 1, "step": 2, "seconds": 0.5})
    flagged, unflagged = {"confound": {"tag": "speed (+900%)"}}, {"confound": {"tag": "-"}}
    assert judge_speed(flagged, always) == judge_speed(unflagged, once) == judge_speed(unflagged, CONTROL) == []
    assert [problem.code for problem in judge_speed(unflagged, always)] == ["not_slow"]


def test_several_faults_of_a_trial_are_judged_one_by_one() -> None:
    """One found, one missed: the miss names its own fault."""
    other = {**FLIP, "buffer": "layer2.reduce_scatter", "rank": 0}
    struck = planted(other, {"buffer": "layer2.reduce_scatter", "element": 7, "before": "0x1", "after": "0x2"})
    problems = judge(record(flipped(), struck, details=[corruption()]), request("race", FLIP, other), 0)
    assert [(problem.code, problem.fault) for problem in problems] == [("missed", 1)]


def test_a_trial_that_was_not_needed_is_not_judged() -> None:
    """stop_after ends cells; their later trials never ran."""
    assert codes({"exit_status": "not_needed"}, STRUCK) == []


def test_an_unknown_workload_is_refused() -> None:
    """A record in an unknown form would be judged by nothing."""
    with pytest.raises(ValueError, match="'chaos' is none of those that can be judged: race"):
        judge(record(), request("chaos"), 0)


def test_every_workload_that_takes_faults_can_be_judged() -> None:
    """The judge knows what docs/fault-injection.md promises."""
    assert set(READERS) == {"training", "inference", "llm_determinism", "race"}
