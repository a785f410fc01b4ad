"""Rules to stop and retries in a plan: how many trials, whose rule, and what they make new."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aorta.plan.current import CellFiles
from aorta.plan.model import Plan, PlanFileError
from aorta.plan.paths import RunLayout
from aorta.recipe import Recipe, StopAfter, parse_recipe, resolved_recipe
from aorta.registry import load_registry
from tests.plan.conftest import make_recipe

Compile = Callable[..., Plan]
RULE = StopAfter(events=2, max_trials=6)
REGISTRY = load_registry()


def with_first_cell(**changes: Any) -> Recipe:
    recipe = make_recipe(stop_after=RULE)
    return replace(recipe, cells=(replace(recipe.cells[0], **changes), *recipe.cells[1:]))


@pytest.mark.parametrize(
    ("changes", "trials", "rule"),
    [
        ({}, 6, {"events": 2, "event_verdict": "fail"}),
        ({"trials": 4}, 4, {"events": 2, "event_verdict": "fail"}),
        ({"stop_after": StopAfter(events=1)}, 3, {"events": 1, "event_verdict": "fail"}),
        ({"stop_after": StopAfter(events=1, max_trials=9), "trials": 4}, 9, {"events": 1, "event_verdict": "fail"}),
        ({"stop_after": StopAfter()}, 3, None),
        ({"stop_after": StopAfter(), "trials": 4}, 4, None),
    ],
)
def test_what_stands_nearest_to_a_cell_decides(
    compiled: Compile, changes: dict[str, Any], trials: int, rule: dict[str, Any] | None
) -> None:
    """A cell's own cap, then its trials, then the recipe's cap, then the recipe's trials; a rule is replaced whole."""
    cell = compiled(with_first_cell(**changes)).cells[0]
    assert (cell.trials, cell.stop_after) == (trials, rule)
    assert cell.request is not None
    assert (cell.request["trials"], cell.request["stop_after"]) == (trials, rule)


def test_a_plan_with_rules_reads_back(compiled: Compile) -> None:
    """The summary keeps each cell's rule."""
    plan = compiled(with_first_cell(stop_after=StopAfter()))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json())), source="plan.json") == plan


@pytest.mark.parametrize("rule", [{}, {"events": 0, "event_verdict": "fail"}, {"events": 1, "event_verdict": "x"}, 3])
def test_a_plan_with_half_a_rule_is_damaged(compiled: Compile, rule: object) -> None:
    """No count is made by a rule that says nothing."""
    summary = compiled().to_json()
    summary["cells"][0]["stop_after"] = rule
    with pytest.raises(PlanFileError, match="damaged plan"):
        Plan.from_json(summary, source="plan.json")


def test_rules_and_retries_change_no_fingerprint(compiled: Compile) -> None:
    """They decide whether a trial runs, not what it finds."""
    before = [cell.fingerprint for cell in compiled().cells]
    changed = make_recipe(stop_after=replace(RULE, max_trials=None), retry_errors=3)
    assert [cell.fingerprint for cell in compiled(changed).cells] == before


CELL = "cells: [{name: baseline-a, mitigations: [none], environment: local%s}]\n"


def recipe_key(compiled: Compile, head: str = "", cell: str = "") -> str:
    text = f"schema_version: 1\nworkload: training\ntrials: 5\nsteps: 3\n{head}{CELL % cell}"
    recipe = parse_recipe(text, REGISTRY)
    return compiled(recipe, resolved=resolved_recipe(recipe)).recipe_key


def test_a_run_with_other_retries_is_the_same_run(compiled: Compile) -> None:
    """Raised retries, of the recipe or a cell, continue an unfinished run."""
    plain = recipe_key(compiled)
    assert recipe_key(compiled, "retry_errors: 2\n") == recipe_key(compiled, cell=", retry_errors: 1") == plain


def test_a_run_with_another_rule_is_another_run(compiled: Compile) -> None:
    """A sample is not continued under a rule that was made after looking at it, unless the run is named."""
    keys = {
        recipe_key(compiled),
        recipe_key(compiled, "stop_after: {events: 2}\n"),
        recipe_key(compiled, "stop_after: {events: 3}\n"),
        recipe_key(compiled, "stop_after: {events: 2, event_verdict: pass}\n"),
        recipe_key(compiled, cell=", stop_after: {events: 2}"),
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("outcomes", "current"),
    [("pffnnn", "pffnnn"), ("pfpnnn", "pfp"), ("nnnnnn", ""), ("ppp ff", "ppp ff"), ("fnfnnn", "f fnnn")],
)
def test_a_skip_is_current_while_the_rule_holds(compiled: Compile, tmp_path: Path, outcomes: str, current: str) -> None:
    """A skipped trial needs no run as long as the records before it hold the events."""
    cell = compiled(with_first_cell()).cells[0]
    layout = RunLayout(tmp_path, "checked")
    words = {"p": ("ok", "pass"), "f": ("workload_failed", "fail"), "n": ("not_needed", None)}
    for trial, letter in enumerate(outcomes):
        if letter != " ":
            path = layout.trial(cell.name, trial)
            path.parent.mkdir(parents=True, exist_ok=True)
            status, verdict = words[letter]
            record = {"fingerprint": cell.fingerprint, "exit_status": status, "verdict": verdict}
            path.write_text(json.dumps(record, indent=1).replace("\n}", "}\n"))
    files = CellFiles(layout, cell)
    assert "".join(letter if files.is_current(n) else " " for n, letter in enumerate(outcomes)).rstrip() == current
