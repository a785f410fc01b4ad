"""What a run that lost its plan is known by, and what is said where it is not known."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aorta._jsonio import write_json_atomic
from aorta.plan.model import Plan, PlanFileError
from aorta.plan.paths import RunLayout
from aorta.plan.recover import is_lost
from aorta.plan.rundir import RunDirError, read_plan
from tests.plan.conftest import make_recipe
from tests.plan.test_rundir import choose, lose_plan, make_run

Compile = Callable[..., Plan]


def spoil(plan: Plan, output: Path, *, finished: bool = False) -> Path:
    """A run of which only the records are whole: its plan and every cell's file are cut short."""
    run_dir = make_run(plan, output, finished=True)
    lose_plan(run_dir, b"{")
    for path in run_dir.glob("cells/*/cell.json"):
        path.write_bytes(b"\0" * 50)
    if not finished:
        RunLayout(run_dir, plan.workload).matrix_json.unlink()
    return run_dir


@pytest.mark.parametrize("named", [True, False])
def test_the_records_alone_say_which_run_it_is(compiled: Compile, tmp_path: Path, named: bool) -> None:
    """One record with a cell's fingerprint is enough to continue."""
    plan = compiled()
    run_dir = spoil(plan, tmp_path)
    for path in list(run_dir.glob("cells/*/*/trial_*.json"))[1:]:
        path.unlink()
    choice = choose(plan, tmp_path, run_dir=run_dir if named else None)
    assert (choice.run_dir, choice.state, choice.recovered) == (run_dir, "continued", True)
    assert "written anew" in choice.notices[0]


def test_a_cell_that_contradicts_outweighs_the_records(compiled: Compile, tmp_path: Path) -> None:
    """A cell's file that can be read and asks for other trials makes it another run, by name."""
    plan = compiled()
    run_dir = spoil(plan, tmp_path)
    cell = plan.cells[0]
    write_json_atomic(
        RunLayout(run_dir, plan.workload).cell(cell.name), {"fingerprint": "0" * 64, "trials": cell.trials}
    )
    choice = choose(plan, tmp_path)
    assert choice.state == "new"
    assert f"its cell '{cell.name}' is not what is asked for now" in choice.notices[0]


def test_records_of_other_requests_are_called_so(compiled: Compile, tmp_path: Path) -> None:
    """The reason is the true one, and a run that is not named keeps them."""
    run_dir = spoil(compiled(), tmp_path)
    other = compiled(make_recipe(steps=41), resolved={"steps": 41})
    choice = choose(other, tmp_path)
    assert choice.state == "new"
    assert str(run_dir) in choice.notices[0] and "were made for another request than is made now" in choice.notices[0]


def test_a_run_that_nothing_identifies_is_called_so(compiled: Compile, tmp_path: Path) -> None:
    """With the records damaged as well, nobody can say what it ran."""
    run_dir = spoil(compiled(), tmp_path)
    for path in run_dir.glob("cells/*/*/trial_*.json"):
        path.write_bytes(b"{")
    assert "nothing says what it ran" in choose(compiled(), tmp_path).notices[0]
    with pytest.raises(RunDirError, match="nothing says what it ran"):
        choose(compiled(), tmp_path, run_dir=run_dir)


def test_a_finished_run_that_lost_its_plan_answers_snakemake(compiled: Compile, tmp_path: Path) -> None:
    """Its trials are not run anew; the command, which asks for a new run, is told what it is."""
    run_dir = spoil(compiled(), tmp_path, finished=True)
    assert choose(compiled(), tmp_path).run_dir == run_dir
    choice = choose(compiled(), tmp_path, reuse_finished=False)
    assert (choice.state, "it is a finished run" in choice.notices[0]) == ("new", True)


@pytest.mark.parametrize(
    "content", ["null", "[]", "{}", '{"schema_version": null}', '{"schema_version": 1}', "pipe", "folder"]
)
def test_every_damage_of_a_plan_is_repaired_by_the_same_command(
    compiled: Compile, tmp_path: Path, content: str
) -> None:
    """The message says so, and never to start a new run, which would lose the trials."""
    run_dir = make_run(compiled(), tmp_path, finished=False)
    lose_plan(run_dir, None)
    path = run_dir / "plan.json"
    if content == "pipe":
        os.mkfifo(path)
    elif content == "folder":
        path.mkdir()
    else:
        path.write_text(content)
    assert is_lost(run_dir)
    with pytest.raises(PlanFileError, match="run the same command again") as caught:
        read_plan(run_dir)
    assert "new run" not in str(caught.value)
    assert choose(compiled(), tmp_path).run_dir == run_dir
