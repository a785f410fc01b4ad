"""Planted faults: what may be planned, when it strikes, and what it does to a tensor or a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from aorta.workloads.inject import (
    FaultConfig,
    FaultKind,
    Injector,
    inject_problems,
    merge_reports,
    parse_faults,
    strikes_trial,
)

BITFLIP: dict[str, Any] = {"kind": "bitflip", "buffer": "x", "element": 3, "bit": 0}


def strikes(injector: Injector) -> list[dict[str, Any]]:
    return [strike for entry in injector.report()["planned"] for strike in entry["strikes"]]


@pytest.mark.parametrize(
    ("raw", "key", "words"),
    [
        (3, "inject", "a mapping, or a list of mappings,"),
        ([BITFLIP, "bitflip"], "inject[1]", "use a mapping with keys from kind"),
        ({"buffer": "x"}, "inject.kind", "is missing; use bitflip or"),
        ({"kind": "bitflp"}, "inject.kind", "did you mean bitflip?"),
        ({"kind": "bitflip"}, "inject.buffer", "name the buffer that bitflip strikes"),
        ([{**BITFLIP, "rank": -1}], "inject[0].rank", "at least 0"),
        ({**BITFLIP, "probability": 1.5}, "inject.probability", "from 0 to 1"),
        ({**BITFLIP, "seconds": 1.0}, "inject.seconds", "has no meaning for bitflip"),
        ({"kind": "slow_rank", "buffer": "x"}, "inject.buffer", "has no meaning for slow_rank"),
        ({"kind": "nan_grad", "bit": 3}, "inject.bit", "has no meaning for nan_grad"),
        ({"kind": "crash_rank", "how": "sigfoo"}, "inject.how", "use exception or exit or sigkill or sigsegv"),
        ({"kind": "slow_rank", "step": 1, "iteration": 1}, "inject.iteration", "leave one of them out"),
        ({**BITFLIP, "elemnt": 3}, "inject.elemnt", "did you mean 'inject.element'?"),
    ],
)
def test_bad_faults_are_named(raw: Any, key: str, words: str) -> None:
    """Each mistake is found before anything runs, with its place and its remedy."""
    (problem,) = inject_problems(raw)
    assert problem.key == key
    assert words in problem.message


def test_one_mapping_and_a_list_mean_the_same() -> None:
    """A single fault needs no list, no fault needs nothing, and ``iteration`` is ``step``."""
    assert parse_faults({**BITFLIP, "iteration": 4}) == parse_faults([{**BITFLIP, "step": 4}])
    assert parse_faults(None) == () == parse_faults([])
    assert inject_problems(None) == []
    assert not Injector.from_config(None)


def test_checking_a_config_does_not_import_torch() -> None:
    """The engine checks configurations in a process that stays light."""
    code = (
        "import sys, aorta.workloads.inject as inject\n"
        "assert not inject.inject_problems({'kind': 'nan_grad'})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]
)
def test_every_bit_can_be_flipped(dtype: torch.dtype) -> None:
    """A flip changes exactly the named bit of exactly the named element, the sign bit included, and is reported."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for bit in range(8 * dtype.itemsize):
        x = torch.arange(6).to(dtype)
        before = x.view(integers).tolist()
        injector = Injector.from_config({**BITFLIP, "bit": bit})
        injector.tensor("x", x, step=0)
        changes = [(i, a ^ b) for i, (a, b) in enumerate(zip(before, x.view(integers).tolist(), strict=True)) if a != b]
        mask = (1 << 8 * dtype.itemsize) - 1
        assert [(i, change & mask) for i, change in changes] == [(3, 1 << bit)]
        (strike,) = strikes(injector)
        assert (strike["element"], strike["bit"]) == (3, bit)
        assert int(strike["before"], 16) ^ int(strike["after"], 16) == 1 << bit


def test_elements_count_in_logical_order() -> None:
    """In a transposed tensor the index is that of the flattened tensor, not of its memory."""
    x = torch.zeros(2, 3).t()
    Injector.from_config({**BITFLIP, "bit": 31}).tensor("x", x, step=0)
    assert [bool(v) for v in torch.signbit(x.flatten())] == [False, False, False, True, False, False]


def test_a_flip_is_hidden_from_autograd() -> None:
    """A tensor that backward needs can be struck without an error, as hardware would do it."""
    x = torch.ones(6, requires_grad=True)
    y = x * 2
    z = y * y
    Injector.from_config({**BITFLIP, "bit": 23}).tensor("x", y, step=0)
    z.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 8.0, 8.0, 16.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("buffer", "step", "rank", "hit"),
    [("x", 2, 1, True), ("y", 2, 1, False), ("x", 1, 1, False), ("x", 2, 0, False), ("x", -1, 1, False)],
)
def test_strikes_only_where_it_was_planned(buffer: str, step: int, rank: int, hit: bool) -> None:
    """Buffer, step and rank must all match; a warm-up is never struck."""
    injector = Injector.from_config({**BITFLIP, "step": 2, "rank": 1}, rank=rank, world_size=2)
    x = torch.zeros(4)
    injector.tensor(buffer, x, step=step)
    assert bool(x.view(torch.int32).any()) is hit
    assert injector.report()["strike_count"] == int(hit)


def test_null_means_every_rank_and_step() -> None:
    """With null for both, each rank is struck at each step but never in the warm-up; long lists are counted."""
    for rank in (0, 1):
        injector = Injector.from_config({**BITFLIP, "rank": None, "step": None}, rank=rank, world_size=2)
        for step in range(-1, 40):
            injector.tensor("x", torch.zeros(4), step=step)
        (planned,) = injector.report()["planned"]
        assert planned["strike_count"] == 40
        assert [s["step"] for s in planned["strikes"]] == list(range(32))


def test_a_pattern_strikes_the_first_match_of_a_step() -> None:
    """Of several buffers that match, one is hit."""
    injector = Injector.from_config({"kind": "nan_grad"})
    a, b, c = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    for name, x in (("a", a), ("b.grad", b), ("c.grad", c)):
        injector.tensor(name, x, step=0)
    assert [bool(x.isnan().any()) for x in (a, b, c)] == [False, True, False]


def test_open_places_are_drawn_from_seed_and_trial() -> None:
    """The same trial draws the same place again; trials and seeds draw different ones."""

    def place(trial: int, seed: int) -> tuple[int, int]:
        injector = Injector.from_config({"kind": "bitflip", "buffer": "x", "seed": seed}, trial=trial)
        injector.tensor("x", torch.zeros(100_000), step=0)
        (strike,) = strikes(injector)
        return strike["element"], strike["bit"]

    drawn = {place(trial, seed) for trial in range(4) for seed in range(4)}
    assert len(drawn) == 16
    assert place(3, 2) == place(3, 2)


def test_probability_is_a_rate_over_trials() -> None:
    """Of 2000 trials about a quarter draws a fault of probability 0.25; 0 and 1 mean never and always."""
    (fault,) = parse_faults({**BITFLIP, "probability": 0.25, "seed": 7})
    hits = [strikes_trial(fault, 0, trial) for trial in range(2000)]
    assert 420 < sum(hits) < 580
    for trial in range(20):
        injector = Injector.from_config({**BITFLIP, "probability": 0.25, "seed": 7}, trial=trial)
        assert injector.report()["planned"][0]["active"] == hits[trial]
        assert not strikes_trial(*parse_faults({**BITFLIP, "probability": 0.0}), 0, trial)
        assert strikes_trial(*parse_faults(BITFLIP), 0, trial)


def test_ranks_agree_on_the_draw() -> None:
    """A fault on every rank strikes all of them in a trial, or none, and at the same place."""
    raw = {"kind": "bitflip", "buffer": "x", "rank": None, "probability": 0.5}
    for trial in range(10):
        found = []
        for rank in (0, 1):
            injector = Injector.from_config(raw, rank=rank, world_size=2, trial=trial)
            injector.tensor("x", torch.zeros(50), step=0)
            found.append([(s["element"], s["bit"]) for s in strikes(injector)])
        assert found[0] == found[1]


def test_a_stale_buffer_holds_the_step_before() -> None:
    """The struck step sees the former content; without one it sees zeros."""
    injector = Injector.from_config([{"kind": "stale_buffer", "buffer": "x", "step": s} for s in (0, 2)])
    seen = []
    for step in range(4):
        x = torch.full((3,), float(step + 1))
        injector.tensor("x", x, step=step)
        seen.append(x.tolist())
    assert seen == [[0.0] * 3, [2.0] * 3, [2.0] * 3, [4.0] * 3]
    assert [s["changed"] for s in strikes(injector)] == [3, 3]


def test_the_warm_up_fills_what_a_stale_buffer_holds() -> None:
    """A buffer that was seen in the warm-up, under a negative step, is the former content of step 0."""
    injector = Injector.from_config({"kind": "stale_buffer", "buffer": "x"})
    injector.tensor("x", torch.full((2,), 5.0), step=-1)
    x = torch.full((2,), 6.0)
    injector.tensor("x", x, step=0)
    assert x.tolist() == [5.0, 5.0]


def test_a_partial_write_leaves_the_rest_as_it_was() -> None:
    """From the named element on, or from the middle, the former content is back."""
    injector = Injector.from_config(
        [
            {"kind": "partial_write", "buffer": "x", "step": 1, "element": 3},
            {"kind": "partial_write", "buffer": "y", "step": 1},
        ]
    )
    for step in (0, 1):
        x, y = torch.full((2, 2), float(step)), torch.full((2, 2), float(step))
        injector.tensor("x", x, step=step)
        injector.tensor("y", y, step=step)
    assert (x.tolist(), y.tolist()) == ([[1.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]])
    assert [(s["first"], s["changed"]) for s in strikes(injector)] == [(3, 1), (2, 2)]


def test_perturbed_input_is_another_valid_input() -> None:
    """A number moves by its lowest bit, a token id to a neighbour that exists."""
    injector = Injector.from_config({"kind": "perturb_input", "element": 1, "step": None})
    x, ids = torch.tensor([1.0, 1.0]), torch.tensor([7, 7])
    zeros = torch.tensor([0, 0])
    for step, tensor in enumerate((x, ids, zeros)):
        injector.tensor("input", tensor, step=step)
    assert x.view(torch.int32).tolist() == [0x3F800000, 0x3F800001]
    assert (ids.tolist(), zeros.tolist()) == ([7, 6], [0, 1])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({**BITFLIP, "element": 4}, "element is 4; buffer 'x' has 4 elements"),
        ({**BITFLIP, "bit": 32}, "bit is 32; an element of buffer 'x' has 32 bits"),
    ],
)
def test_places_outside_of_the_buffer_are_refused(fault: dict[str, Any], words: str) -> None:
    """A fault that misses its buffer is an error, not a fault that nobody found."""
    with pytest.raises(ValueError, match=words):
        Injector.from_config(fault).tensor("x", torch.zeros(4), step=0)


def test_faults_that_can_never_strike_are_refused() -> None:
    """An unknown buffer, a step after the last, and a rank that is not there are all named."""
    injector = Injector.from_config([{**BITFLIP, "buffer": "z*"}, {**BITFLIP, "step": 5}, {"kind": "nan_grad"}])
    with pytest.raises(ValueError) as caught:
        injector.expect(buffers=["x", "y"], steps=5)
    assert str(caught.value).splitlines() == [
        "workload_config.inject[0].buffer 'z*' is none of this workload's; it has x, y",
        "workload_config.inject[1].step is 5; the trial has steps 0 to 4",
        "workload_config.inject[2].buffer '*.grad' is none of this workload's; it has x, y",
    ]
    with pytest.raises(ValueError, match=r"inject\[0\].rank is 2; the trial has ranks 0 to 1"):
        Injector.from_config({**BITFLIP, "rank": 2}, world_size=2)


def test_slow_and_hanging_ranks_sleep() -> None:
    """The sleep happens at the planned step, for the planned time; a hang without end never returns."""
    slept: list[float] = []

    class StillHanging(Exception):
        pass

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 5:
            raise StillHanging

    faults = parse_faults(
        [
            {"kind": "slow_rank", "step": 1, "seconds": 0.5},
            {"kind": "slow_rank", "step": 2},
            {"kind": "hang_rank", "step": 3},
        ]
    )
    injector = Injector(faults, sleep=sleep)
    injector.step(0)
    assert slept == []
    injector.step(1)
    injector.step(2)
    assert slept == [0.5, 1.0]
    with pytest.raises(StillHanging):
        injector.step(3)


@pytest.mark.parametrize(("how", "code"), [("exit", 1), ("sigkill", -9), ("sigsegv", -11), ("exception", 1)])
def test_a_crash_ends_the_process_as_planned(how: str, code: int) -> None:
    """The process is gone before the next line, and its last words say that the fault was planted."""
    script = (
        "from aorta.workloads.inject import Injector\n"
        f"Injector.from_config({{'kind': 'crash_rank', 'step': 1, 'how': {how!r}}}).step(1)\n"
        "print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert "planted fault: crash_rank" in done.stderr


def test_reports_of_ranks_are_joined() -> None:
    """Rank 0's record tells of a strike on rank 1."""
    raw = [{**BITFLIP, "rank": 1}, {**BITFLIP, "buffer": "y"}]
    reports = []
    for rank in (0, 1):
        injector = Injector.from_config(raw, rank=rank, world_size=2, trial=6)
        injector.tensor("x", torch.zeros(4), step=0)
        reports.append(injector.report())
    merged = merge_reports(reports)
    assert (merged["trial"], merged["strike_count"]) == (6, 1)
    assert [entry["strike_count"] for entry in merged["planned"]] == [1, 0]
    assert merged["planned"][0]["strikes"] == reports[1]["planned"][0]["strikes"]


def test_the_page_describes_every_kind_and_setting() -> None:
    """docs/fault-injection.md leaves out nothing that can be planted."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "fault-injection.md").read_text("utf-8")
    names = {*get_args(FaultKind), *FaultConfig.hints()}
    assert {name for name in names if f"`{name}`" not in page} == set()
