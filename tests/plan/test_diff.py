"""What differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aorta.plan.diff import diff_runs, read_run, render
from aorta.plan.model import Plan, PlanFileError
from aorta.plan.rundir import RunChoice, materialise
from tests.plan.conftest import make_recipe

Compile = Callable[..., Plan]
SNAPSHOT = {"captured_at": "1", "duration_sec": 1.0, "rocm": {"version": "6.2"}, "python": {"path": ["/here", "/lib"]}}
ROW = {
    "trials_counted": 8,
    "failure_rate": 0.25,
    "event_rate": 0.25,
    "event_rate_ci95": [0.07, 0.59],
    "error_rate": 0.0,
}


def write_run(folder: Path, plan: Plan, *, snapshot: dict[str, Any] = SNAPSHOT, **row: Any) -> Path:
    """Makes a run directory with a matrix and the host's snapshot."""
    materialise(RunChoice(run_dir=folder, state="new", plan=plan), exclusive=True)
    (folder / "host_env.json").write_text(json.dumps(snapshot))
    rows = [{"name": cell.name, **ROW, **row} for cell in plan.cells]
    (folder / "matrix.json").write_text(json.dumps({"cells": rows}))
    return folder


def compare(a: Path, b: Path) -> dict[str, Any]:
    return diff_runs(read_run(a), read_run(b))


def test_two_runs_of_one_plan_are_the_same(compiled: Compile, tmp_path: Path) -> None:
    """When they ran, how long a snapshot took, and where the command was started do not count."""
    later = {**SNAPSHOT, "captured_at": "2", "duration_sec": 2.0, "python": {"path": ["/there", "/lib"]}}
    a = write_run(tmp_path / "a", compiled())
    b = write_run(tmp_path / "b", compiled(created_at=datetime(2027, 1, 1, tzinfo=UTC).isoformat()), snapshot=later)
    found = compare(a, b)
    assert not found["inputs_differ"]
    assert render(found)[2:] == [
        "same variables, environments, settings and snapshots",
        "same rates in every common cell",
    ]


def test_a_changed_mitigation_is_named_with_its_layer(compiled: Compile, tmp_path: Path) -> None:
    """The registry drifted: the same names, another value."""
    recipe = make_recipe()
    drifted = tuple(
        replace(item, env={"HSA_XNACK": "2"}) for item in recipe.cells[1].mitigations if item.name == "xnack"
    )
    cell = replace(recipe.cells[1], mitigations=(recipe.cells[1].mitigations[0], *drifted))
    changed = replace(recipe, cells=(recipe.cells[0], cell, recipe.cells[2]))
    found = compare(write_run(tmp_path / "a", compiled(recipe)), write_run(tmp_path / "b", compiled(changed)))
    assert found["inputs_differ"]
    assert found["cells"] == {
        "stacked": {
            "variables": [
                {
                    "key": "HSA_XNACK",
                    "a": {"value": "1", "layer": "mitigation:xnack"},
                    "b": {"value": "2", "layer": "mitigation:xnack"},
                }
            ]
        }
    }
    assert '  HSA_XNACK: "1" (mitigation:xnack) -> "2" (mitigation:xnack)' in render(found)


def test_environment_settings_and_cells(compiled: Compile, tmp_path: Path) -> None:
    """An image, a setting deep inside, steps and trials; cells that only one run has."""
    recipe = make_recipe()
    first, stacked, image = recipe.cells
    moved = replace(
        image,
        environment=replace(image.environment, docker="acme/box:3"),
        workload_config={"nested": {"a": 1}},
        steps=7,
    )
    changed = replace(recipe, cells=(first, moved, replace(stacked, name="new")), trials=9)
    found = compare(write_run(tmp_path / "a", compiled(recipe)), write_run(tmp_path / "b", compiled(changed)))
    assert (found["cells_only_in_a"], found["cells_only_in_b"]) == (["stacked"], ["new"])
    parts = found["cells"]["image"]
    assert parts["environment"] == [{"key": "docker", "a": "acme/box:2", "b": "acme/box:3"}]
    assert {change["key"] for change in parts["workload_config"]} == {"known", "nested.a"}
    assert parts["settings"] == [{"key": "steps", "a": 40, "b": 7}, {"key": "trials", "a": 3, "b": 9}]
    assert found["cells"]["baseline-local"] == {"settings": [{"key": "trials", "a": 3, "b": 9}]}


def test_a_changed_driver_is_found_in_the_snapshots(compiled: Compile, tmp_path: Path) -> None:
    """By its dotted path; what only one side has is absent on the other."""
    newer = {**SNAPSHOT, "rocm": {"version": "6.3", "path": "/opt/rocm"}}
    found = compare(write_run(tmp_path / "a", compiled()), write_run(tmp_path / "b", compiled(), snapshot=newer))
    assert found["inputs_differ"]
    assert found["snapshots"] == {
        "host_env.json": [{"key": "rocm.version", "a": "6.2", "b": "6.3"}, {"key": "rocm.path", "b": "/opt/rocm"}]
    }
    assert '  rocm.path: (absent) -> "/opt/rocm"' in render(found)


def test_rates_alone_are_no_change_of_what_was_put_in(compiled: Compile, tmp_path: Path) -> None:
    """They are shown with their intervals."""
    a = write_run(tmp_path / "a", compiled())
    b = write_run(tmp_path / "b", compiled(), event_rate=0.5, failure_rate=0.5, event_rate_ci95=[0.22, 0.78])
    found = compare(a, b)
    assert not found["inputs_differ"]
    assert (
        "rates of cell stacked: fails 25% (95% 7% to 59%), errors 0% of 8 -> fails 50% (95% 22% to 78%), errors 0% of 8"
    ) in render(found)


def test_a_run_without_matrix_or_snapshots_can_be_compared(compiled: Compile, tmp_path: Path) -> None:
    """An unfinished run still says what was put in."""
    plan = compiled(make_recipe(cells=make_recipe().cells[:1]))
    materialise(RunChoice(run_dir=tmp_path / "a", state="new", plan=plan), exclusive=True)
    found = compare(tmp_path / "a", write_run(tmp_path / "b", plan))
    assert found["snapshots_only_in_b"] == ["host_env.json"]
    assert found["rates"] == {}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """The message asks whether it is one."""
    with pytest.raises(PlanFileError, match="a run directory"):
        read_run(tmp_path)
