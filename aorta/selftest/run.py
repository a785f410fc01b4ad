"""Runs the self-test's recipes through the engine, one sweep each, and judges what came out."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aorta._jsonio import read_json
from aorta._resources import resource_path
from aorta.dag.errors import say
from aorta.dag.torchrun import end_with_parent
from aorta.matrix.load import load_run
from aorta.plan.model import PlanFileError
from aorta.plan.paths import RunLayout
from aorta.recipe import Recipe, load_recipe
from aorta.selftest.findings import READERS
from aorta.selftest.judge import judge, judge_speed
from aorta.selftest.planting import active_faults
from aorta.selftest.problem import Problem
from aorta.text import columns
from aorta.workloads.inject import parse_faults

ALL_RIGHT, WRONG, CANNOT_RUN = 0, 1, 2

RECIPES = ("race", "hang", "llm-determinism", "training", "inference")
"""The recipes of ``recipes/selftest``, in the order in which they run."""
QUICK_RECIPES = ("quick",)

_SHORTEST_LIMIT_SEC, _LONGEST_LIMIT_SEC = 12.0, 300.0
_LIMIT_FACTOR = 2.5
"""Time limit of a hanging trial, as a multiple of what a trial that ended by itself took."""
_USUAL_TRIAL_SEC = 12.0


class CannotRunError(Exception):
    """A recipe of the self-test did not run."""


@dataclass(frozen=True, kw_only=True)
class TrialProblems:
    """The problems of one trial, or with ``trial`` None of a whole cell."""

    trial: int | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """What came of one cell.

    Attributes:
        recipe: The recipe's name.
        cell: The cell's name.
        kinds: Kinds of the faults that it plants, each once; empty for a control.
        trials: Number of its trials.
        planted: Number of faults that had to strike, over all trials.
        found: Number of those without a problem.
        wrong: The trials with problems.
    """

    recipe: str
    cell: str
    kinds: tuple[str, ...]
    trials: int
    planted: int
    found: int
    wrong: tuple[TrialProblems, ...]


def shipped_recipes(*, quick: bool) -> list[Path]:
    """Returns the recipes that the self-test runs when it is given none."""
    names = QUICK_RECIPES if quick else RECIPES
    return [resource_path("recipes", "selftest", f"{name}.yaml") for name in names]


def run_selftest(
    recipes: Sequence[Path], *, output: Path | None, nproc_per_node: int = 2, verbose: bool = False
) -> int:
    """Runs recipes, prints a table of what was planted and found, and the reason of each miss.

    Args:
        recipes: The recipes.
        output: An existing or new folder for the runs, one folder a recipe and its log beside it. A recipe that has
            run there is not run again. None for a temporary folder, kept if anything is wrong.
        nproc_per_node: Ranks of each trial of a distributed workload.
        verbose: Whether the sweeps' own output is shown.

    Returns:
        0 if every fault was found and no clean trial failed, 1 if not, 2 if a recipe could not be run.
    """
    if output is not None:
        return _run_in(recipes, output, nproc_per_node, verbose)
    folder = Path(tempfile.mkdtemp(prefix="aorta-selftest-"))
    code = CANNOT_RUN
    try:
        code = _run_in(recipes, folder, nproc_per_node, verbose)
    finally:
        if code == ALL_RIGHT:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"runs and logs are kept in {folder}")
    return code


def _run_in(recipes: Sequence[Path], output: Path, nproc_per_node: int, verbose: bool) -> int:
    outcomes: list[CellOutcome] = []
    ended_sec: list[float] = []
    try:
        read = _read(recipes)
        output.mkdir(parents=True, exist_ok=True)
        for recipe in recipes:
            say(f"{recipe.stem}: running")
            run_dir = output / recipe.stem
            _sweep(recipe, run_dir, nproc_per_node, verbose, time_limit=_time_limit(read[recipe.stem], ended_sec))
            of_recipe, found_sec = judge_run(run_dir, recipe.stem)
            outcomes += of_recipe
            ended_sec += found_sec
    except (CannotRunError, PlanFileError, ValueError) as error:
        say(f"selftest: cannot run: {error}")
        return CANNOT_RUN
    except OSError as error:
        say(f"selftest: cannot run: {error.filename}: {error.strerror}")
        return CANNOT_RUN
    print("\n".join(report(outcomes)), flush=True)
    return WRONG if any(outcome.wrong for outcome in outcomes) else ALL_RIGHT


def _sweep(recipe: Path, run_dir: Path, nproc_per_node: int, verbose: bool, *, time_limit: float | None) -> None:
    """Runs one recipe as a person would, in a process of its own: nothing of one sweep reaches the next.

    Raises:
        CannotRunError: The sweep refused the recipe, or the machine.
    """
    command = [sys.executable, "-c", "from aorta.cli import main; main(prog_name='aorta')", "sweep", "run"]
    command += ["--recipe", str(recipe.absolute()), "--run-dir", str(run_dir.absolute())]
    command += ["--nproc-per-node", str(nproc_per_node)]
    if time_limit is not None:
        command += ["--trial-timeout", f"{time_limit:.0f}"]
    log = run_dir.with_suffix(".log")
    with log.open("wb") as file:
        sink = None if verbose else file
        process = subprocess.Popen(
            command, cwd=run_dir.parent, stdout=sink, stderr=sink, preexec_fn=lambda: end_with_parent()
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # Ctrl-C has reached the sweep as well; it stops in good order.
            process.wait()
            raise
    if code not in (0, 1):
        told = "" if verbose else f": {_last_lines(log)}"
        raise CannotRunError(f"{recipe} ended with {code}{told}")


def judge_run(run_dir: Path, recipe: str) -> tuple[list[CellOutcome], list[float]]:
    """Compares every trial of a run with what was planted in it.

    Args:
        run_dir: The run directory.
        recipe: The recipe's name, for the table.

    Returns:
        What came of each cell, and how many seconds each trial took that ended by itself.

    Raises:
        PlanFileError: The run has no plan.
        OSError: A cell's request, or the matrix, cannot be read.
        ValueError: The workload is none that can be judged, or a request cannot be used.
    """
    run = load_run(run_dir)
    layout = RunLayout(run_dir, run.plan.workload)
    matrix_cells = {cell["name"]: cell for cell in read_json(layout.matrix_json)["cells"]}
    records = {(record["cell"], record["trial"]): record for record in run.records}
    outcomes = []
    for cell in run.plan.cells:
        request = read_json(layout.cell(cell.name))
        of_cell = {trial: records.get((cell.name, trial)) for trial in range(cell.trials)}
        outcomes.append(judge_cell(recipe, request, of_cell, matrix_cells[cell.name]))
    seconds = [record["wall_clock_sec"] for record in run.records if record["verdict"] in ("pass", "fail")]
    return outcomes, seconds


def judge_cell(
    recipe: str,
    request: Mapping[str, Any],
    records: Mapping[int, Mapping[str, Any] | None],
    matrix_cell: Mapping[str, Any],
) -> CellOutcome:
    """Judges all trials of one cell, and the cell's row of the matrix.

    Args:
        recipe: The recipe's name, for the table.
        request: The cell's request.
        records: Trial number to record, None where there is none.
        matrix_cell: The cell's entry of ``matrix.json``.

    Raises:
        ValueError: The workload is none that can be judged, or ``inject`` has an unusable value.
    """
    config = request["workload_config"]
    planted = found = 0
    wrong = []
    for trial, record in records.items():
        problems = judge(record, request, trial)
        active = active_faults(config, trial)
        planted += len(active)
        if record is not None and not any(problem.code == "error" for problem in problems):
            found += len(active.keys() - {problem.fault for problem in problems})
        if problems:
            wrong.append(TrialProblems(trial=trial, problems=tuple(problems)))
    of_cell = judge_speed(matrix_cell, request)
    if of_cell:
        wrong.append(TrialProblems(trial=None, problems=tuple(of_cell)))
    return CellOutcome(
        recipe=recipe,
        cell=request["cell"],
        kinds=tuple(dict.fromkeys(fault.kind for fault in parse_faults(config.get("inject")))),
        trials=len(records),
        planted=planted,
        found=found,
        wrong=tuple(wrong),
    )


def report(outcomes: Sequence[CellOutcome]) -> list[str]:
    """Returns the table, the reason of each miss, and a closing line."""
    rows = [["recipe", "cell", "trials", "planted", "found", "verdict"]]
    reasons: list[str] = []
    for outcome in outcomes:
        planted = f"{outcome.planted} ({', '.join(outcome.kinds)})" if outcome.kinds else "-"
        found = str(outcome.found) if outcome.kinds else "-"
        verdict = "WRONG" if outcome.wrong else "ok" if outcome.kinds else "clean"
        rows.append([outcome.recipe, outcome.cell, str(outcome.trials), planted, found, verdict])
        for of_trial in outcome.wrong:
            where = f"{outcome.recipe}, {outcome.cell}" + (
                "" if of_trial.trial is None else f", trial {of_trial.trial}"
            )
            reasons += [f"{where}: {problem.code}: {problem.message}" for problem in of_trial.problems]
    all_planted, all_found = sum(o.planted for o in outcomes), sum(o.found for o in outcomes)
    controls = sum(outcome.trials for outcome in outcomes if not outcome.kinds)
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    told = f"{all_found} of {all_planted} planted faults found as planted, clean trials: {controls}"
    last = f"self-test FAILED: {told}; wrong cells: {wrong}" if wrong else f"self-test passed: {told}, no false alarm"
    return [*columns(rows), *([""] if reasons else []), *reasons, "", last]


def _read(recipes: Sequence[Path]) -> dict[str, Recipe]:
    """Reads all recipes before any runs, and returns them by their names.

    Raises:
        CannotRunError: Two have one name, or the records of a workload cannot be judged.
        RecipeSchemaError: One is no valid recipe.
    """
    read = {path.stem: load_recipe(path) for path in recipes}
    if len(read) < len(recipes):
        raise CannotRunError("two recipes have the same name, and so the same folder; rename one")
    for name, recipe in read.items():
        if recipe.workload not in READERS:
            known = ", ".join(READERS)
            raise CannotRunError(f"{name}: the records of workload {recipe.workload!r} cannot be judged, only {known}")
    return read


def _time_limit(recipe: Recipe, ended_sec: Sequence[float]) -> float | None:
    """Returns the time limit of a recipe's trials in seconds; None where no rank hangs for ever.

    It follows what trials have taken here before, since the hang must be cut and the start must not.
    """
    configs = [{**recipe.workload_config, **cell.workload_config} for cell in recipe.cells]
    faults = [fault for config in configs for fault in parse_faults(config.get("inject"))]
    if not any(fault.kind == "hang_rank" and fault.seconds is None for fault in faults):
        return None
    usual = max(ended_sec, default=_USUAL_TRIAL_SEC)
    return min(max(_LIMIT_FACTOR * usual, _SHORTEST_LIMIT_SEC), _LONGEST_LIMIT_SEC)


def _last_lines(log: Path) -> str:
    """Returns the end of a sweep's log, on one line."""
    return " / ".join(log.read_text("utf-8", "replace").strip().splitlines()[-5:])
