"""Which run directory a command gets, as the design's table says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from aorta._jsonio import write_json_atomic
from aorta.plan.model import Plan, PlanFileError
from aorta.plan.paths import RunLayout
from aorta.plan.rundir import RunChoice, RunDirError, choose_run, drift, is_finished, materialise, read_plan
from aorta.registry.model import Mitigation
from tests.plan.conftest import make_recipe

Compile = Callable[..., Plan]
NOW = datetime(2026, 4, 28, 14, 12, 3)


def choose(plan: Plan, output: Path, **options: Any) -> RunChoice:
    return choose_run(plan, output, now=NOW, **options)


def make_run(plan: Plan, output: Path, *, finished: bool, **options: Any) -> Path:
    choice = choose(plan, output, **options)
    materialise(choice, exclusive=True)
    if finished:
        finish(plan, choice.run_dir)
    return choice.run_dir


def finish(plan: Plan, run_dir: Path) -> None:
    layout = RunLayout(run_dir, plan.workload)
    for cell in plan.cells:
        layout.trial_folder(cell.name).mkdir(parents=True, exist_ok=True)
        for trial in range(cell.trials):
            write_json_atomic(layout.trial(cell.name, trial), {"fingerprint": cell.fingerprint})
    write_json_atomic(layout.matrix_json, {"plan_key": plan.key, "complete": True})


def test_a_matrix_of_other_trials_does_not_end_a_run(compiled: Compile, tmp_path: Path) -> None:
    """The matrix was written before the last trial was there, or is half of one, or is another plan's."""
    plan = compiled()
    run_dir = make_run(plan, tmp_path, finished=True)
    matrix = RunLayout(run_dir, plan.workload).matrix_json
    for text in ('{"plan_key": "%s", "complete": false}\n', '{"plan_key": "%s", "complete": true, ', "{}\n", ""):
        matrix.write_text(text.replace("%s", plan.key))
        assert choose(plan, tmp_path).state == "continued", text


def changed_registry() -> Any:
    """The hand-made recipe after somebody changed what xnack sets."""
    recipe = make_recipe()
    other = Mitigation(name="xnack", env={"HSA_XNACK": "2"}, source_package="plugin")
    cells = tuple(
        replace(cell, mitigations=tuple(other if m.name == "xnack" else m for m in cell.mitigations))
        for cell in recipe.cells
    )
    return replace(recipe, cells=cells)


def test_a_new_run_is_named_by_ticket_workload_and_time(compiled: Compile, tmp_path: Path) -> None:
    """The guide's layout."""
    choice = choose(compiled(), tmp_path)
    assert (choice.run_dir, choice.state) == (tmp_path / "WIDGET-77" / "checked" / "2026-04-28T14-12-03", "new")


def test_runs_of_one_second_are_numbered(compiled: Compile, tmp_path: Path) -> None:
    """-2, -3 and so on follow the first run of a second."""
    plan = compiled()
    names = [make_run(plan, tmp_path, finished=False, fresh=True).name for _ in range(3)]
    assert names == ["2026-04-28T14-12-03", "2026-04-28T14-12-03-2", "2026-04-28T14-12-03-3"]


def test_an_unfinished_run_of_the_same_plan_is_continued(compiled: Compile, tmp_path: Path) -> None:
    """The same command again goes on."""
    run_dir = make_run(compiled(), tmp_path, finished=False)
    choice = choose(compiled(created_at="2027-01-01T00:00:00+00:00"), tmp_path)
    assert (choice.run_dir, choice.state, choice.notices) == (run_dir, "continued", ())


def test_a_finished_run_answers_snakemake(compiled: Compile, tmp_path: Path) -> None:
    """`snakemake` has nothing to do when only finished runs exist."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    assert (choose(compiled(), tmp_path).run_dir, choose(compiled(), tmp_path).state) == (run_dir, "finished")


def test_a_finished_run_is_followed_by_a_new_one_for_the_command(compiled: Compile, tmp_path: Path) -> None:
    """`aorta sweep run` makes a new run when only finished runs exist."""
    make_run(compiled(), tmp_path, finished=True)
    assert choose(compiled(), tmp_path, reuse_finished=False).state == "new"


def test_fresh_is_always_new(compiled: Compile, tmp_path: Path) -> None:
    """`fresh` makes a new run beside an unfinished one."""
    make_run(compiled(), tmp_path, finished=False)
    assert choose(compiled(), tmp_path, fresh=True).state == "new"


def test_an_unfinished_run_goes_before_a_finished_one(compiled: Compile, tmp_path: Path) -> None:
    """What can be continued is continued, whatever finished later."""
    open_run = make_run(compiled(created_at="2026-01-01T00:00:00+00:00"), tmp_path, finished=False)
    make_run(compiled(created_at="2026-02-01T00:00:00+00:00"), tmp_path, finished=True, fresh=True)
    assert choose(compiled(), tmp_path).run_dir == open_run


def test_another_plan_is_left_alone(compiled: Compile, tmp_path: Path) -> None:
    """A run with other steps, trials or cells is another run."""
    make_run(compiled(), tmp_path, finished=False)
    other = compiled(make_recipe(steps=41), resolved={"steps": 41})
    assert choose(other, tmp_path).state == "new"


def test_a_run_without_a_trial_or_matrix_is_unfinished(compiled: Compile, tmp_path: Path) -> None:
    """A deleted trial file, or a missing matrix, is work to do."""
    plan = compiled()
    run_dir = make_run(plan, tmp_path, finished=True)
    assert is_finished(run_dir, plan)
    layout = RunLayout(run_dir, plan.workload)
    layout.trial("stacked", 4).unlink()
    assert not is_finished(run_dir, plan)
    write_json_atomic(layout.trial("stacked", 4), {"fingerprint": plan.cells[1].fingerprint})
    assert is_finished(run_dir, plan)
    layout.matrix_json.unlink()
    assert not is_finished(run_dir, plan)


def test_a_damaged_run_beside_is_passed_over(compiled: Compile, tmp_path: Path) -> None:
    """A truncated plan.json of another run stops nobody."""
    run_dir = make_run(compiled(), tmp_path, finished=False)
    (run_dir / "plan.json").write_text('{"schema_version": 1')
    assert choose(compiled(make_recipe(steps=41), resolved={"steps": 41}), tmp_path).state == "new"


def test_a_continued_run_keeps_the_frozen_registry_values(compiled: Compile, tmp_path: Path) -> None:
    """A mitigation that changed meanwhile is named, and not mixed in."""
    run_dir = make_run(compiled(), tmp_path, finished=False)
    choice = choose(compiled(changed_registry()), tmp_path)
    assert choice.run_dir == run_dir
    assert choice.plan.key == compiled().key
    assert "cell stacked: HSA_XNACK was '1' and is now '2' (mitigation:xnack)" in choice.notices
    assert [cell.request for cell in choice.plan.cells] == [cell.request for cell in compiled().cells]


def test_what_drifted_is_named_entry_by_entry() -> None:
    """An environment or a launch of ten entries is not printed whole for the one that changed."""
    frozen = {
        "environment": {"name": "box", "kind": "docker", "image": "a:1", "env": {"X": "1"}, "source_package": "p"},
        "isolation": None,
        "launch": {"mode": "distributed", "nnodes": 1, "nproc_per_node": 2},
    }
    present = {
        "environment": {"name": "box", "kind": "docker", "image": "a:2", "env": {"X": "2"}, "source_package": "q"},
        "isolation": None,
        "launch": {"mode": "distributed", "nnodes": 1, "nproc_per_node": 4},
    }
    assert drift("c", frozen, present) == [
        'cell c: environment.image was "a:1" and is now "a:2"',
        "cell c: launch.nproc_per_node was 2 and is now 4",
    ]
    assert drift("c", frozen, frozen) == []


def test_refresh_takes_the_new_registry_values(compiled: Compile, tmp_path: Path) -> None:
    """`refresh` with the run's directory makes the old trials of changed cells stale."""
    run_dir = make_run(compiled(), tmp_path, finished=False)
    new = compiled(changed_registry())
    choice = choose(new, tmp_path, run_dir=run_dir, refresh=True)
    assert choice.plan.key == new.key
    assert [entry["plan_key"] for entry in choice.plan.history] == [compiled().key]


def test_a_named_run_takes_the_recipe_as_it_is_now(compiled: Compile, tmp_path: Path) -> None:
    """`run_dir` with more trials continues there, and remembers what was before."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    more = compiled(make_recipe(trials=12), resolved={"trials": 12})
    choice = choose(more, tmp_path, run_dir=run_dir)
    assert (choice.run_dir, choice.state, choice.plan.key) == (run_dir, "continued", more.key)
    assert choice.plan.history[0]["trials"] == {"baseline-local": 3, "stacked": 5, "image": 3}


def test_a_named_run_may_be_new(compiled: Compile, tmp_path: Path) -> None:
    """`run_dir` makes the directory when it is not there."""
    assert choose(compiled(), tmp_path, run_dir=tmp_path / "mine").state == "new"


def test_a_new_threshold_needs_no_trial(compiled: Compile, tmp_path: Path) -> None:
    """Baseline and threshold follow the recipe as it is now, in the same run."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    recipe = make_recipe(confound=replace(make_recipe().confound, threshold=2.0))
    choice = choose(compiled(recipe), tmp_path)
    assert (choice.run_dir, choice.state, choice.plan.confound["threshold"]) == (run_dir, "finished", 2.0)


@pytest.mark.parametrize("kind", ["file", "below a file", "foreign", "workload", "brace"])
def test_a_directory_that_is_no_run_is_refused(compiled: Compile, tmp_path: Path, kind: str) -> None:
    """Nothing is written into a folder that holds something else."""
    target = tmp_path / "target"
    if kind == "file":
        target.write_text("x")
    elif kind == "below a file":
        target.write_text("x")
        target = target / "deeper"
    elif kind == "brace":
        target = tmp_path / "a{b}"
    elif kind == "foreign":
        target.mkdir()
        (target / "thesis.tex").write_text("x")
    else:
        target = make_run(compiled(make_recipe(workload="other")), tmp_path, finished=False)
    with pytest.raises(RunDirError, match=r"^run_dir: "):
        choose(compiled(), tmp_path, run_dir=target)


def test_fresh_contradicts_a_named_run(compiled: Compile, tmp_path: Path) -> None:
    """Two flags that cannot both hold are refused by name."""
    with pytest.raises(RunDirError, match="fresh"):
        choose(compiled(), tmp_path, run_dir=tmp_path / "x", fresh=True)


def test_two_new_runs_of_one_second_cannot_share_a_folder(compiled: Compile, tmp_path: Path) -> None:
    """The loser of a race is told to start again instead of writing into the winner's folder."""
    choice = choose(compiled(), tmp_path)
    materialise(choice, exclusive=True)
    with pytest.raises(RunDirError, match="same second"):
        materialise(choice, exclusive=True)


def test_materialise_writes_what_trials_read(compiled: Compile, tmp_path: Path) -> None:
    """Each cell's request lies in its own file; the summary reads back."""
    plan = compiled()
    run_dir = make_run(plan, tmp_path, finished=False)
    layout = RunLayout(run_dir, plan.workload)
    assert json.loads(layout.cell("stacked").read_text()) == plan.cells[1].request
    assert read_plan(run_dir) == plan


def test_materialise_leaves_current_files_alone(compiled: Compile, tmp_path: Path) -> None:
    """Continuing does not touch the files that did not change."""
    plan = compiled()
    run_dir = make_run(plan, tmp_path, finished=False)
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.json")}
    materialise(choose(plan, tmp_path), exclusive=False)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.json")} == before


def test_reading_no_run_names_the_file(tmp_path: Path) -> None:
    """A folder without a plan is not a run directory."""
    with pytest.raises(PlanFileError, match=r"plan\.json: no such file"):
        read_plan(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"fingerprint": "', b"\0" * 500, b"[]\n", b'{"fingerprint": "other"}\n'])
def test_a_damaged_trial_file_leaves_a_run_unfinished(compiled: Compile, tmp_path: Path, content: bytes) -> None:
    """What a power cut leaves, or another plan's record, is no result."""
    plan = compiled()
    run_dir = make_run(plan, tmp_path, finished=True)
    RunLayout(run_dir, plan.workload).trial("stacked", 4).write_bytes(content)
    assert not is_finished(run_dir, plan)


def test_a_finished_named_run_keeps_the_frozen_registry_values(compiled: Compile, tmp_path: Path) -> None:
    """A changed mitigation is named; recorded results are not replaced by those of another bundle."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    choice = choose(compiled(changed_registry()), tmp_path, run_dir=run_dir)
    assert (choice.state, choice.plan.key) == ("finished", compiled().key)
    assert "cell stacked: HSA_XNACK was '1' and is now '2' (mitigation:xnack)" in choice.notices


@pytest.mark.parametrize("finished", [True, False])
def test_a_changed_recipe_keeps_the_frozen_values_of_its_unchanged_cells(
    compiled: Compile, tmp_path: Path, finished: bool
) -> None:
    """More trials and a changed registry at once: the trials are added, with the bundle of the old ones."""
    run_dir = make_run(compiled(), tmp_path, finished=finished)
    more = replace(changed_registry(), trials=12)
    choice = choose(compiled(more, resolved={"trials": 12}), tmp_path, run_dir=run_dir)
    assert choice.plan.key == compiled(make_recipe(trials=12)).key
    assert [cell.trials for cell in choice.plan.cells] == [12, 5, 12]
    assert "cell stacked: HSA_XNACK was '1' and is now '2' (mitigation:xnack)" in choice.notices


def test_a_changed_cell_takes_the_registry_as_it_is_now(compiled: Compile, tmp_path: Path) -> None:
    """Its results are stale in any case."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    recipe = changed_registry()
    cells = (recipe.cells[0], replace(recipe.cells[1], steps=10), recipe.cells[2])
    choice = choose(compiled(replace(recipe, cells=cells), resolved={"steps": 10}), tmp_path, run_dir=run_dir)
    stacked = choice.plan.cells[1].request
    assert stacked is not None and stacked["env"]["HSA_XNACK"]["value"] == "2"


def test_a_named_run_that_died_before_its_plan_is_begun_again(compiled: Compile, tmp_path: Path) -> None:
    """Cells are written before the plan: a kill or a full disk in between leaves a folder that is still ours."""
    plan = compiled()
    run_dir = tmp_path / "mine"
    materialise(choose(plan, tmp_path, run_dir=run_dir), exclusive=False)
    (run_dir / ".aorta").mkdir(exist_ok=True)
    (run_dir / "plan.json").unlink()
    (run_dir / ".tmp-x").write_text("{")
    assert choose(plan, tmp_path, run_dir=run_dir).state == "continued"
    for path in (run_dir / "cells").glob("*/cell.json"):
        path.unlink()
    trial = RunLayout(run_dir, plan.workload).trial("stacked", 0)
    trial.parent.mkdir(parents=True, exist_ok=True)
    trial.write_text("{}")
    with pytest.raises(RunDirError, match=r"holds no plan\.json that can be read"):
        choose(plan, tmp_path, run_dir=run_dir)


def lose_plan(run_dir: Path, content: bytes | None) -> None:
    """What a power cut does to plan.json; the engine's own folder is there in every run that began."""
    (run_dir / ".aorta").mkdir()
    (run_dir / "plan.json").unlink()
    if content is not None:
        (run_dir / "plan.json").write_bytes(content)


LOST = [None, b"", b'{"schema_version": 1', b"\0" * 300]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("content", LOST)
def test_a_run_that_lost_its_plan_is_continued(
    compiled: Compile, tmp_path: Path, content: bytes | None, named: bool
) -> None:
    """Its cells' own files say that it is the same plan; the trials are kept, and a notice says what happened."""
    plan = compiled()
    run_dir = make_run(plan, tmp_path, finished=True)
    RunLayout(run_dir, plan.workload).matrix_json.unlink()
    lose_plan(run_dir, content)
    choice = choose(plan, tmp_path, run_dir=run_dir if named else None)
    assert (choice.run_dir, choice.state, choice.plan.key) == (run_dir, "continued", plan.key)
    assert any("written anew" in notice for notice in choice.notices)
    materialise(choice, exclusive=False)
    assert read_plan(run_dir).key == plan.key


@pytest.mark.parametrize("named", [True, False])
def test_a_run_that_lost_its_plan_and_every_trial_is_begun_again(
    compiled: Compile, tmp_path: Path, named: bool
) -> None:
    """The harder power cut: nothing was recorded, and the same command still works."""
    plan = compiled()
    run_dir = make_run(plan, tmp_path, finished=False)
    lose_plan(run_dir, b"")
    for path in (run_dir / "cells").glob("*/cell.json"):
        path.write_bytes(b"")
    choice = choose(plan, tmp_path, run_dir=run_dir if named else None)
    assert choice.state == ("continued" if named else "new")
    assert choice.notices == ()


def test_a_lost_plan_of_other_trials_is_left_alone_by_name(compiled: Compile, tmp_path: Path) -> None:
    """Another recipe begins a run of its own, and says which one it did not touch."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    lose_plan(run_dir, b"")
    choice = choose(compiled(make_recipe(trials=9), resolved={"trials": 9}), tmp_path)
    assert choice.state == "new"
    assert [notice for notice in choice.notices if str(run_dir) in notice and "left alone" in notice]


def test_a_plan_of_another_version_is_not_lost(compiled: Compile, tmp_path: Path) -> None:
    """What a newer release wrote is refused by name, not replaced."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    lose_plan(run_dir, b'{"schema_version": 99}')
    with pytest.raises(PlanFileError, match="version"):
        choose(compiled(), tmp_path, run_dir=run_dir)
    assert choose(compiled(), tmp_path).state == "new"


def test_a_named_run_that_lost_its_plan_keeps_frozen_values(compiled: Compile, tmp_path: Path) -> None:
    """The cells' files hold what the registry said when the trials ran."""
    run_dir = make_run(compiled(), tmp_path, finished=True)
    lose_plan(run_dir, b"")
    choice = choose(compiled(changed_registry()), tmp_path, run_dir=run_dir)
    assert choice.plan.key == compiled().key
    assert "cell stacked: HSA_XNACK was '1' and is now '2' (mitigation:xnack)" in choice.notices


def test_a_lost_plan_of_another_workload_is_refused(compiled: Compile, tmp_path: Path) -> None:
    """A named folder with another workload's trials is not taken over."""
    run_dir = make_run(compiled(make_recipe(workload="other")), tmp_path, finished=True)
    lose_plan(run_dir, None)
    with pytest.raises(RunDirError, match=r"holds no plan\.json that can be read"):
        choose(compiled(), tmp_path, run_dir=run_dir)
