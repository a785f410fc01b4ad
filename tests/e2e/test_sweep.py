"""The main job: a recipe becomes a matrix."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from aorta.plan.order import trial_order
from tests.e2e.conftest import REPOSITORY, Workspace

pytestmark = pytest.mark.e2e


def training_recipe(workspace: Workspace) -> str:
    model = {"kind": "mlp", "hidden_size": 32, "num_layers": 1, "vocab_size": 64}
    return workspace.recipe(
        [
            {"name": "baseline-local"},
            {"name": "tf32_off-local", "mitigations": ["tf32_off"]},
            {"name": "wide", "mitigations": ["tf32_off", "xnack"], "workload_config": {"batch_size": 3}},
        ],
        ticket="T-1",
        workload="training",
        trials=4,
        steps=3,
        workload_config={"parallelism": "ddp", "dtype": "float32", "seq_len": 8, "model": model},
    )


def recomputed(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell's headline figures from its trial files, by other means than the engine's."""
    times = [float(time) for trial in trials for time in trial["result"]["step_times_ms"]]
    ordered = sorted(times)

    def percentile(percent: float) -> float:
        place = (len(ordered) - 1) * percent / 100
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    failures = sum(trial["exit_status"] != "ok" or not trial["result"]["passed"] for trial in trials)
    return {
        "failure_rate": failures / len(trials),
        "step_times_ms": times,
        "mean_step_time_ms": statistics.fmean(times),
        "std_step_time_ms": statistics.stdev(times),
        "min_step_time_ms": ordered[0],
        "max_step_time_ms": ordered[-1],
        "p50_step_time_ms": percentile(50),
        "p90_step_time_ms": percentile(90),
        "p99_step_time_ms": percentile(99),
        "mean_wall_clock_sec": statistics.fmean(trial["wall_clock_sec"] for trial in trials),
    }


def test_training_matrix(workspace: Workspace) -> None:
    """Three cells of four real training trials: a process each, and a matrix that is right to the last digit."""
    ended = workspace.snakemake("--config", f"recipe={training_recipe(workspace)}")
    assert ended.code == 0, ended.stderr
    trials = workspace.trials()
    assert len(trials) == 12
    assert len({trial["pid"] for trial in trials}) == 12
    assert {trial["verdict"] for trial in trials} == {"pass"}
    for name, cell in workspace.cells().items():
        own = sorted((trial for trial in trials if trial["cell"] == name), key=lambda trial: trial["trial"])
        expected = recomputed(own)
        assert cell["step_times_ms"] == expected.pop("step_times_ms")
        assert {field: cell[field] for field in expected} == pytest.approx(expected, rel=1e-14)
        assert cell["exit_status_counts"] == {"ok": 4}
        assert [Path(path).name for path in cell["trial_paths"]] == [f"trial_d0_m0_t{n}.json" for n in range(4)]
    # Same seed, same settings, fresh processes: the same training run.
    losses = {trial["result"]["metrics"]["final_loss"] for trial in trials if trial["cell"] != "wide"}
    assert len(losses) == 1
    matrix = workspace.matrix()
    assert (matrix["complete"], matrix["trials_present"], matrix["ticket"]) == (True, 12, "T-1")
    assert f"matrix: {workspace.only_run().relative_to(workspace.folder)}/matrix.md" in ended.stdout


def test_the_overlay_is_there_when_the_interpreter_starts(workspace: Workspace) -> None:
    """Each layer's value is in the worker's environment before any import, and no cell sees another's."""
    recipe = workspace.recipe(
        [
            {"name": "plain"},
            {"name": "stacked", "mitigations": ["tf32_off", "xnack"], "extra_env": {"SITE": "cell"}},
        ],
        workload="witness",
        extra_env={"SITE": "recipe", "PYTHONHASHSEED": "123"},
        workload_config={"watch": ["DISABLE_TF32", "HSA_XNACK", "SITE", "PYTHONHASHSEED"]},
        confound={"baseline_cell": "plain"},
    )
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    seen = {trial["cell"]: trial["result"]["metrics"] for trial in workspace.trials()}
    plain = {"DISABLE_TF32": None, "HSA_XNACK": None, "SITE": "recipe", "PYTHONHASHSEED": "123"}
    stacked = {"DISABLE_TF32": "1", "HSA_XNACK": "1", "SITE": "cell", "PYTHONHASHSEED": "123"}
    assert seen["plain"]["at_start"] == seen["plain"]["in_run"] == plain
    assert seen["stacked"]["at_start"] == seen["stacked"]["in_run"] == stacked
    assert seen["stacked"]["trial_env"] == stacked
    assert seen["plain"]["trial_env"] == {"SITE": "recipe", "PYTHONHASHSEED": "123"}


def test_a_trial_sees_the_shell_s_environment_not_snakemake_s(workspace: Workspace) -> None:
    """Snakemake gives each job one thread and a temporary folder; a trial has what the user has, or has not, set."""
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "TMPDIR"]
    recipe = workspace.recipe([{"name": "only"}], workload="witness", workload_config={"watch": names})
    for name in names:
        workspace.environment.pop(name, None)
    assert workspace.snakemake("--config", f"recipe={recipe}", OMP_NUM_THREADS="7").code == 0
    (trial,) = workspace.trials()
    assert trial["result"]["metrics"]["at_start"] == {"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": None, "TMPDIR": None}
    snapshot = json.loads((workspace.only_run() / "host_env.json").read_text("utf-8"))
    assert snapshot["env_vars"]["set"]["OMP_NUM_THREADS"] == "7"


def test_in_process_applies_the_overlay_after_import(workspace: Workspace) -> None:
    """The legacy lifecycle: not at the interpreter's start, but before setup()."""
    recipe = workspace.recipe(
        [{"name": "only", "mitigations": ["xnack"]}],
        workload="witness",
        trial_isolation="in_process",
        workload_config={"watch": ["HSA_XNACK"]},
    )
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    (trial,) = workspace.trials()
    assert trial["result"]["metrics"]["at_start"] == {"HSA_XNACK": None}
    assert trial["result"]["metrics"]["in_run"] == {"HSA_XNACK": "1"}


def test_every_way_to_end_has_its_row(workspace: Workspace) -> None:
    """A crash, a raising setup, a hang, a wrong answer and an exit are told apart; no other cell suffers."""
    ends = ["pass", "fail", "segfault", "setup", "raise", "exit", "hang", "never"]
    recipe = workspace.recipe(
        [{"name": end, "workload_config": {"end": end}} for end in ends], confound={"baseline_cell": "pass"}, trials=2
    )
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--trial-timeout", "2")
    assert ended.code == 0, ended.stderr
    cells = workspace.cells()
    assert {name: cell["exit_status_counts"] for name, cell in cells.items()} == {
        "pass": {"ok": 2},
        "fail": {"workload_failed": 2},
        "segfault": {"infrastructure_failed": 2},
        "setup": {"workload_setup_failed": 2},
        "raise": {"infrastructure_failed": 2},
        "exit": {"infrastructure_failed": 2},
        "hang": {"timed_out": 2},
        "never": {"ok": 2},
    }
    assert {name: cell["confound"]["tag"] for name, cell in cells.items()} == {
        "pass": "(baseline)",
        "fail": "worse",
        "segfault": "error",
        "setup": "error",
        "raise": "error",
        "exit": "error",
        "hang": "error",
        "never": "did_not_run",
    }
    assert (cells["pass"]["failure_rate"], cells["fail"]["failure_rate"]) == (0.0, 1.0)
    assert "the planted failure" in ended.stdout
    strict = workspace.aorta("sweep", "run", "--recipe", recipe, "--trial-timeout", "2", "--strict")
    assert strict.code == 1


def test_an_unknown_workload_is_a_result_of_each_cell(workspace: Workspace) -> None:
    """The recipe is valid; its trials say that the workload is missing, and what was meant."""
    recipe = workspace.recipe([{"name": "only"}], workload="chaso")
    ended = workspace.aorta("sweep", "run", "--recipe", recipe)
    assert ended.code == 0
    assert workspace.cells()["only"]["exit_status_counts"] == {"workload_setup_failed": 1}
    assert "did you mean 'chaos'?" in workspace.trials()[0]["error"]["message"]
    assert "NOT REGISTERED" in workspace.aorta("sweep", "run", "--recipe", recipe, "--dry-run").stdout


def test_trials_run_in_the_planned_order(workspace: Workspace) -> None:
    """Seeded random blocks, and the record says each trial's place."""
    cells = [(f"c{index}", 3) for index in range(6)]
    recipe = workspace.recipe(
        [{"name": name} for name, _ in cells], trials=3, workload="witness", confound={"baseline_cell": "c0"}
    )
    assert workspace.snakemake("--config", f"recipe={recipe}", "order_seed=5").code == 0
    ran = sorted(workspace.trials(), key=lambda trial: trial["started_at"])
    assert [(trial["cell"], trial["trial"]) for trial in ran] == list(trial_order(cells, 5))
    assert [trial["order"] for trial in ran] == list(range(1, 19))


def test_the_resolved_recipe_gives_the_same_plan(workspace: Workspace) -> None:
    """recipe.resolved.yaml can be run again, with equal fingerprints."""
    recipe = workspace.recipe(
        [
            {"name": "base", "mitigations": ["tf32_off", "xnack"], "extra_env": {"A": "yes"}},
            {"name": "img", "environment": {"docker": "acme/box:2", "env": {"B": "1"}}, "trials": 2, "steps": 5},
        ],
        workload="witness",
        extra_env={"C": "012"},
        collect={"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}},
        confound={"baseline_cell": "base", "threshold": 1.5},
    )
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    first = workspace.only_run()
    again = workspace.aorta("sweep", "run", "--recipe", str(first / "recipe.resolved.yaml"), "--output", "again")
    assert again.code == 0, again.stderr
    (second,) = (path.parent for path in workspace.folder.glob("again/*/*/*/plan.json"))
    plans = [json.loads((run / "plan.json").read_text("utf-8")) for run in (first, second)]
    assert plans[0]["plan_key"] == plans[1]["plan_key"]
    assert plans[0]["recipe"] == plans[1]["recipe"] == yaml.safe_load((first / "recipe.resolved.yaml").read_text())


def test_a_place_that_nothing_acts_on_is_said_everywhere(workspace: Workspace) -> None:
    """A cell that names an image ran on the host: dry-run, run log, matrix.json and matrix.md say so."""
    recipe = workspace.recipe(
        [{"name": "base"}, {"name": "img", "environment": {"docker": "acme/box:2"}}],
        workload="witness",
        confound={"baseline_cell": "base"},
    )
    dry = workspace.aorta("sweep", "run", "--recipe", recipe, "--dry-run")
    ended = workspace.snakemake("--config", f"recipe={recipe}")
    matrix = workspace.matrix()
    page = (workspace.only_run() / "matrix.md").read_text("utf-8")
    for text in (dry.stdout, ended.stderr, json.dumps(matrix["warnings"]), page):
        assert "run on the host" in text
    assert "ran on host" in page
    snapshot = json.loads((workspace.only_run() / "environments" / "_inline_acb97e4a" / "env.json").read_text())
    assert snapshot["snapshot_captured"] is False
    strict = workspace.aorta("sweep", "run", "--recipe", recipe, "--strict")
    assert (strict.code, strict.stderr.splitlines()[-1].split(":")[0]) == (2, "cells[1].environment")


def test_an_unknown_config_key_is_said_everywhere(workspace: Workspace) -> None:
    """A lever that was never pulled is warned about, and refused with --strict."""
    recipe = workspace.recipe([{"name": "base", "workload_config": {"ennd": "pass"}}])
    dry = workspace.aorta("sweep", "run", "--recipe", recipe, "--dry-run")
    ended = workspace.aorta("sweep", "run", "--recipe", recipe)
    page = (workspace.only_run() / "matrix.md").read_text("utf-8")
    for text in (dry.stdout, ended.stderr, json.dumps(workspace.matrix()["warnings"]), page):
        assert "ennd" in text
    strict = workspace.snakemake("--config", f"recipe={recipe}", "strict=true", "fresh=true")
    assert (strict.code, len(workspace.runs())) == (2, 1)
    assert "cells[0].workload_config.ennd: " in strict.stderr


def test_a_shipped_recipe_is_found_from_an_empty_folder(workspace: Workspace) -> None:
    """recipes/... is looked up among the shipped ones, so that the first command works anywhere."""
    ended = workspace.aorta("sweep", "run", "--recipe", "recipes/smoke/gpu-smoke.yaml", "--dry-run")
    assert ended.code == 0, ended.stderr
    assert (REPOSITORY / "recipes" / "smoke" / "gpu-smoke.yaml").is_file()


def test_a_snapshot_from_inside_a_container_is_kept(workspace: Workspace) -> None:
    """The workload writes it where the engine asked; the folder is there, and the workflow keeps the file."""
    recipe = workspace.recipe([{"name": "img", "environment": {"docker": "acme/box:2"}}], workload="boxed", trials=2)
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    snapshot = json.loads((workspace.only_run() / "environments" / "_inline_acb97e4a" / "env.json").read_text())
    assert snapshot["snapshot_captured"] is True
    assert snapshot["environment"]["docker"] == "acme/box:2"
    probes = [trial["environment_probe"] for trial in sorted(workspace.trials(), key=lambda trial: trial["order"])]
    assert probes == ["captured", None]


def test_a_plugins_own_mistakes_do_not_stop_its_recipe(workspace: Workspace) -> None:
    """Attributes that cannot be used and a check that raises are warned about; the trials run."""
    recipe = workspace.recipe([{"name": "only"}], workload="careless")
    ended = workspace.aorta("sweep", "run", "--recipe", recipe)
    assert (ended.code, workspace.cells()["only"]["verdict_counts"]["pass"]) == (0, 1)
    for text in ("isolation_default is 'nope'", "min_world_size is 'two'", "RuntimeError: not today"):
        assert text in ended.stderr
