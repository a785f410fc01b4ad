"""Cells that stop after some events, and errors that run again, through the whole workflow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import Workspace

pytestmark = pytest.mark.e2e


def stopping_recipe(workspace: Workspace, events: int, **fields: Any) -> str:
    """Two cells: one always fails, the other never does."""
    return workspace.recipe(
        [{"name": "baseline-bad", "workload_config": {"end": "fail"}}, {"name": "good"}],
        **{"trials": 5, "stop_after": {"events": events}, **fields},
    )


def statuses(workspace: Workspace, cell: str) -> list[str]:
    """Exit statuses of a cell's trials, in order of trial."""
    trials = sorted(
        (trial for trial in workspace.trials() if trial["cell"] == cell), key=lambda trial: int(trial["trial"])
    )
    return [trial["exit_status"] for trial in trials]


def test_a_cell_stops_at_its_events_and_the_other_at_its_cap(workspace: Workspace) -> None:
    """The static DAG runs whole; what was not needed ends at once, is in no rate, and a second start does nothing."""
    recipe = stopping_recipe(workspace, 2)
    ended = workspace.snakemake("--config", f"recipe={recipe}")
    assert ended.code == 0, ended.stderr
    assert statuses(workspace, "baseline-bad") == ["workload_failed"] * 2 + ["not_needed"] * 3
    assert statuses(workspace, "good") == ["ok"] * 5
    bad, good = (workspace.cells()[name] for name in ("baseline-bad", "good"))
    assert (bad["stop_reason"], bad["trials_counted"], bad["trials_not_needed"]) == ("events_reached", 2, 3)
    assert (bad["failure_rate"], bad["event_rate"], bad["verdict_counts"]["fail"]) == (1.0, 1.0, 2)
    assert (good["stop_reason"], good["trials_counted"], good["event_rate"]) == ("cap_reached", 5, 0.0)
    assert workspace.matrix()["complete"]
    page = (workspace.only_run() / "matrix.md").read_text("utf-8")
    assert ("stopped early, 2/5" in page, "cap reached, 5/5" in page) == (True, True)
    again = workspace.snakemake("--config", f"recipe={recipe}")
    assert "Nothing to be done" in again.stderr


def test_a_rule_that_asks_for_more_runs_what_it_had_skipped(workspace: Workspace) -> None:
    """In a named run: more events run the skipped trials and no others; no rule at all runs the rest."""
    assert workspace.snakemake("--config", f"recipe={stopping_recipe(workspace, 2)}", "run_dir=mine").code == 0
    first = {path: path.stat().st_mtime_ns for path in workspace.folder.glob("mine/cells/*/*/trial_*.json")}
    for fields, skipped in (({"events": 4}, 1), ({"events": 5, "stop_after": None}, 0)):
        recipe = stopping_recipe(workspace, **fields)
        ended = workspace.snakemake("--config", f"recipe={recipe}", "run_dir=mine")
        assert ended.code == 0, ended.stderr
        records = [json.loads(path.read_text()) for path in sorted(first)]
        assert sum(record["exit_status"] == "not_needed" for record in records) == skipped
    second = {path: path.stat().st_mtime_ns for path in first}
    reran = sorted(path.name[-6] for path in first if first[path] != second[path])
    assert reran == ["2", "3", "4"]
    assert "Nothing to be done" in workspace.snakemake("--config", f"recipe={recipe}", "run_dir=mine").stderr


def test_the_cap_takes_the_place_of_trials_and_a_cell_can_opt_out(workspace: Workspace) -> None:
    """max_trials is the number of jobs; a cell's own rule, or none, comes first; the resolved recipe keeps it all."""
    recipe = workspace.recipe(
        [{"name": "baseline-a"}, {"name": "b", "stop_after": {}}, {"name": "c", "trials": 2}],
        trials=3,
        stop_after={"events": 1, "max_trials": 4, "event_verdict": "pass"},
        retry_errors=1,
    )
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    assert {name: cell["exit_status_counts"] for name, cell in workspace.cells().items()} == {
        "baseline-a": {"not_needed": 3, "ok": 1},
        "b": {"ok": 3},
        "c": {"not_needed": 1, "ok": 1},
    }
    resolved = str(workspace.only_run() / "recipe.resolved.yaml")
    assert "Nothing to be done" in workspace.snakemake("--config", f"recipe={resolved}").stderr


def test_errors_run_again_within_their_job(workspace: Workspace) -> None:
    """Each attempt is in the record, the last one counts, and the matrix says so."""
    recipe = workspace.recipe(
        [{"name": "baseline-good"}, {"name": "raises", "retry_errors": 2, "workload_config": {"end": "raise"}}]
    )
    ended = workspace.aorta("sweep", "run", "--recipe", recipe)
    assert ended.code == 0, ended.stderr
    (trial,) = (trial for trial in workspace.trials() if trial["cell"] == "raises")
    assert (trial["attempt"], [entry["exit_status"] for entry in trial["attempts"]]) == (
        3,
        ["infrastructure_failed", "infrastructure_failed"],
    )
    cell = workspace.cells()["raises"]
    assert (cell["retried"], cell["verdict_counts"]["error"], cell["error_rate"]) == (1, 1, 1.0)
    assert "ran again after an error" in (workspace.only_run() / "matrix.md").read_text("utf-8")
