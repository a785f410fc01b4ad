"""Where the runs of a command lie: a ticket's folder holds one of them, and nothing is ever mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from aorta.dag.launching import World, launch_problems
from aorta.dag.planning import NO_WORKLOAD
from aorta.plan.compile import CompileSettings, compile_plan
from aorta.plan.diff import diff_runs, read_run
from aorta.plan.model import Plan
from aorta.plan.rundir import RunChoice, RunDirError, choose_run, materialise, read_plan
from aorta.recipe import parse_recipe, resolved_recipe

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
Compile = Callable[..., Plan]


@pytest.fixture
def planned() -> Compile:
    def compile_(*argv: str, cwd: str = "/work", **fields: Any) -> Plan:
        data = {"schema_version": 1, "mode": "probe", "ticket": "T", "trials": 2, "mitigation_axis": ["none"], **fields}
        recipe = parse_recipe(yaml.safe_dump(data))
        return compile_plan(
            recipe,
            NO_WORKLOAD,
            resolved=resolved_recipe(recipe),
            ambient={},
            settings=CompileSettings(command={"argv": list(argv or ("run",)), "cwd": cwd}),
            created_at="2026-01-31T12:00:00.000000+00:00",
        )

    return compile_


def start(plan: Plan, output: Path, **how: Any) -> RunChoice:
    """Chooses a run and makes it."""
    choice = choose_run(plan, output, now=NOW, **how)
    materialise(choice, exclusive=choice.state == "new")
    return choice


def fingerprint(plan: Plan) -> str:
    """The digest of the only cell."""
    return plan.cells[0].fingerprint


def test_the_first_run_is_the_ticket_s_folder_and_is_continued(planned: Compile, tmp_path: Path) -> None:
    """The same command finds its unfinished run."""
    assert start(planned(), tmp_path).run_dir == tmp_path / "T"
    again = choose_run(planned(), tmp_path, now=NOW)
    assert (again.run_dir, again.state) == (tmp_path / "T", "continued")


def test_another_command_goes_beside_it(planned: Compile, tmp_path: Path) -> None:
    """Another command, another folder to run in, or `fresh`: each gets a number of its own."""
    start(planned("a"), tmp_path)
    assert start(planned("b"), tmp_path).run_dir == tmp_path / "T-2"
    assert start(planned("a", cwd="/elsewhere"), tmp_path).run_dir == tmp_path / "T-3"
    assert start(planned("a"), tmp_path, fresh=True).run_dir == tmp_path / "T-4"
    assert choose_run(planned("b"), tmp_path, now=NOW).run_dir == tmp_path / "T-2"


def test_a_ticket_that_looks_like_another_s_second_run(planned: Compile, tmp_path: Path) -> None:
    """Ticket T-2 does not continue the second run of ticket T."""
    start(planned("a"), tmp_path)
    start(planned("b"), tmp_path)
    assert choose_run(planned("b", ticket="T-2"), tmp_path, now=NOW).run_dir == tmp_path / "T-2-2"


def test_what_others_left_in_the_folder_is_not_touched(planned: Compile, tmp_path: Path) -> None:
    """A matrix of the same ticket may lie there; a cell's folder that nobody planned may not."""
    (tmp_path / "T" / "training").mkdir(parents=True)
    assert choose_run(planned(), tmp_path, now=NOW).run_dir == tmp_path / "T"
    (tmp_path / "T" / "none-none").mkdir()
    assert choose_run(planned(), tmp_path, now=NOW).run_dir == tmp_path / "T-2"


def test_a_name_that_was_taken_meanwhile(planned: Compile, tmp_path: Path) -> None:
    """Two starts at one instant: the second is told to try again, and overwrites nothing."""
    choice = choose_run(planned("a"), tmp_path, now=NOW)
    start(planned("b"), tmp_path)
    with pytest.raises(RunDirError, match="another sweep took this name"):
        materialise(choice, exclusive=True)
    assert (read_plan(tmp_path / "T").command or {})["argv"] == ["b"]


def test_a_named_run_of_another_command_is_refused(planned: Compile, tmp_path: Path) -> None:
    """With both commands and the way out; the same command may change its recipe."""
    start(planned("a"), tmp_path)
    with pytest.raises(RunDirError, match="holds the results of 'a' in /work, not of 'b' in /work"):
        choose_run(planned("b"), tmp_path, run_dir=tmp_path / "T", now=NOW)
    more = choose_run(planned("a", trials=5), tmp_path, run_dir=tmp_path / "T", now=NOW)
    assert (more.state, more.plan.cells[0].trials) == ("continued", 5)


def test_a_matrix_run_of_the_same_name_is_not_taken_for_it(planned: Compile, tmp_path: Path) -> None:
    """A plan without a command cannot continue one with it, nor the other way round."""
    start(planned("a"), tmp_path)
    matrix = replace(planned("a"), command=None)
    with pytest.raises(RunDirError, match="holds the results of 'a' in /work, not of a workload"):
        choose_run(matrix, tmp_path, run_dir=tmp_path / "T", now=NOW)


def test_the_command_and_how_it_is_judged_are_in_the_fingerprint(planned: Compile) -> None:
    """A record of another command, folder, pattern or way to hand on variables is stale."""
    pattern = {"id": "bad", "match": {"regex": "BAD"}}
    others = [
        planned("run", "--fast"),
        planned(cwd="/elsewhere"),
        planned(custom_patterns=[pattern]),
        planned(env_passthrough_mode="file"),
        planned(disable_detectors=["nan_signature"]),
    ]
    assert len({fingerprint(plan) for plan in (planned(), *others)}) == 6


def test_what_only_is_kept_of_a_run_is_not(planned: Compile) -> None:
    """The time limit, what is retained and what is redacted change no result; a default spelt out is no change."""
    others = [
        planned(timeout_per_trial=5),
        planned(retain={"on_pass": "none"}),
        planned(redaction={"scrub_paths": True}),
        planned(hang_window_sec=30, diagnostic_axis=["none"]),
    ]
    assert {fingerprint(plan) for plan in others} == {fingerprint(planned())}
    assert {plan.recipe_key for plan in others[:3]} == {planned().recipe_key}


def test_the_plan_is_read_back_with_its_command(planned: Compile, tmp_path: Path) -> None:
    """A job process runs what the main process was given."""
    plan = start(planned("a", "b c"), tmp_path).plan
    assert read_plan(tmp_path / "T").command == plan.command


def test_the_comparison_of_two_runs_names_the_command_and_the_patterns(planned: Compile, tmp_path: Path) -> None:
    """What somebody changed between two runs, and nothing else."""
    start(planned("a"), tmp_path / "one")
    start(planned("b", hang_window_sec=90), tmp_path / "two")
    found = diff_runs(read_run(tmp_path / "one" / "T"), read_run(tmp_path / "two" / "T"))
    assert found["run"] == [{"key": "command.argv", "a": ["a"], "b": ["b"]}]
    assert found["cells"] == {"none-none": {"probe": [{"key": "settings.hang_window_sec", "a": 30.0, "b": 90.0}]}}


def test_a_launcher_that_would_start_the_command_on_every_rank_is_refused(planned: Compile) -> None:
    """The command starts its own ranks."""
    (problem,) = launch_problems(planned(), World(nnodes=1, nproc_per_node=4, rank=0))
    assert problem.startswith("command: a launcher has started 4 processes (WORLD_SIZE)")
