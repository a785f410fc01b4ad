"""The table says what was planted and found, and each miss has a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aorta.recipe import load_recipe
from aorta.selftest.findings import READERS
from aorta.selftest.run import QUICK_RECIPES, RECIPES, judge_cell, report, shipped_recipes
from aorta.workloads.inject import FaultKind, parse_faults, strikes_trial

from .records import FLIP, corruption, flipped, record, request

PLAIN = {"confound": {"tag": "-"}}
RIGHT = record(flipped(), details=[corruption()])


def table(*cells: tuple[dict[str, Any], dict[int, Any]]) -> list[str]:
    """The report of cells, each with its records."""
    return report([judge_cell("race", cell, records, PLAIN) for cell, records in cells])


def test_a_passed_self_test_says_so() -> None:
    """Every cell has its line, and the last line counts."""
    lines = table((request("race"), {0: record(), 1: record()}), (request("race", FLIP), {0: RIGHT}))
    assert [line.split() for line in lines[1:3]] == [
        ["race", "control", "2", "-", "-", "clean"],
        ["race", "struck", "1", "1", "(bitflip)", "1", "ok"],
    ]
    assert lines[-1] == "self-test passed: 1 of 1 planted faults found as planted, clean trials: 2, no false alarm"


def test_a_miss_is_told_with_its_place() -> None:
    """Recipe, cell, trial, and what was missed; the count of found faults leaves it out."""
    lines = table((request("race", FLIP), {0: RIGHT, 1: record(flipped())}))
    assert lines[1].split() == ["race", "struck", "2", "2", "(bitflip)", "1", "WRONG"]
    assert lines[3].startswith("race, struck, trial 1: missed: inject[0], bitflip in layer1.all_gather on rank 1")
    assert lines[-1].startswith("self-test FAILED: 1 of 2 planted faults found as planted")


def test_a_missing_trial_counts_as_not_found() -> None:
    """What did not run has found nothing."""
    lines = table((request("race", FLIP), {0: None}))
    assert lines[1].split()[-2:] == ["0", "WRONG"]
    assert "race, struck, trial 0: missing_trial: there is no record of this trial" in lines


def test_a_slow_cell_that_is_not_flagged_is_wrong() -> None:
    """The matrix's tag belongs to the cell, not to a trial."""
    slow = request("race", {"kind": "slow_rank", "rank": 0, "step": None, "seconds": 0.0})
    strikes = [{"rank": 0, "step": step, "seconds": 0.0} for step in range(4)]
    entry = {"kind": "slow_rank", "active": True, "strikes": strikes}
    lines = table((slow, {0: record(entry)}))
    assert any(line.startswith("race, struck: not_slow: ") for line in lines)


SHIPPED = [*shipped_recipes(quick=False), *shipped_recipes(quick=True)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_can_be_judged(path: Path) -> None:
    """It is in the folder, and its workload's records can be read."""
    assert load_recipe(path).workload in READERS


def test_the_shipped_recipes_cover_every_kind_of_fault() -> None:
    """And hold a control for each workload, and trials that a seed spares as well as trials that it strikes."""
    kinds, controls, drawn = set(), set(), set()
    for path in shipped_recipes(quick=False):
        recipe = load_recipe(path)
        for cell in recipe.cells:
            faults = parse_faults(cell.workload_config.get("inject"))
            kinds |= {fault.kind for fault in faults}
            if not faults:
                controls.add(recipe.workload)
            for index, fault in enumerate(faults):
                if fault.probability < 1:
                    trials = range(recipe.trial_count(cell))
                    drawn.add(frozenset(strikes_trial(fault, index, trial) for trial in trials))
    assert kinds == set(FaultKind.__args__)  # type: ignore[attr-defined]
    assert controls == set(READERS)
    assert drawn == {frozenset({True, False})}


def test_the_names_are_those_of_the_folder() -> None:
    """No recipe of the folder is forgotten but the example of another feature."""
    folder = SHIPPED[0].parent
    assert {path.stem for path in folder.glob("*.yaml")} == {*RECIPES, *QUICK_RECIPES, "stop-after"}
