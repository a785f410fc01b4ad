"""Every recipe that ships runs where this machine can, as it stands or with smaller sizes.

One trial for each set of settings, on the supervisor that sweeps use. Cells that differ by variables alone run once: no
library that reads those is here, tests/recipe/test_shipped_table.py compares them with what they are to be, and that
variables reach the process has tests of its own. So has what Snakemake adds to a trial.
"""

from __future__ import annotations

import ast
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aorta._resources import resource_path
from aorta.recipe import Cell, Recipe, load_recipe
from aorta.run import RunRequest, TrialResult, run_trials
from tests.e2e.conftest import REPOSITORY

pytestmark = pytest.mark.e2e

TINY_MODEL = {"kind": "decoder_transformer", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 256}
RACE_SIZES = {"verify_iterations": 2, "model_dim": 32, "num_layers": 2, "seq_len": 16, "fsdp_shard_size": 1000}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a recipe runs here.

    Attributes:
        sizes: Settings that are made smaller; the others are the recipe's.
        steps: Steps of a trial, or None for the recipe's.
        ranks: Ranks of a trial.
    """

    sizes: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    ranks: int = 1


AS_IT_STANDS = Way()
WAYS = {
    "training/example-fsdp-smoke": Way(ranks=2),
    "training/example-training-ddp-smoke": AS_IT_STANDS,
    "training/example-training-fsdp-smoke": Way(steps=1),
    "training/example-training-mitigations": Way(steps=2),
    "inference/example-inference-smoke": Way(
        steps=1,
        sizes={"request": {"batch_size": 4, "prompt_len": 16, "generate_tokens": 4}, "model": TINY_MODEL},
    ),
    "inference/example-inference-continuous-smoke": Way(sizes={"model": TINY_MODEL}),
    "llm-determinism/example-llm-determinism": Way(
        sizes={"num_layers": 2, "hidden_size": 32, "ffn_size": 48, "num_heads": 4, "seq_len": 16, "vocab_size": 64}
    ),
    "race/race_smoke": Way(ranks=2, sizes={"model_dim": 128}),
    "race/ainic-smoke": Way(ranks=2, sizes=RACE_SIZES),
    "race/ainic-gdr-flush-sdc": Way(ranks=2, sizes=RACE_SIZES),
    "race/ainic-sdc-stress-reproducer": Way(
        ranks=2, sizes={"verify_iterations": 2, "h2d_tensor_size": 10_000, "gemm_size": 32, "gemm_layers": 3}
    ),
    "emulated/gpu-smoke-emulated": AS_IT_STANDS,
    "emulated/inference-smoke-emulated": AS_IT_STANDS,
    "emulated/llm-determinism-emulated": AS_IT_STANDS,
    "emulated/training-ddp-smoke-emulated": AS_IT_STANDS,
    "emulated/training-fsdp-smoke-emulated": AS_IT_STANDS,
    "hrx/hrx-launch-probe-smoke": Way(steps=1),
    "hrx/hrx-launch-probe-all": Way(steps=1),
    "hrx/hrx-perf-gemm": Way(sizes={"size": 256, "iters": 3, "warmup": 1}),
    "hrx/hrx-perf-triad": Way(sizes={"size": 100_000, "iters": 3, "warmup": 1}),
}
ELSEWHERE = {
    "smoke/gpu-smoke": "tests/e2e/test_wheel.py::test_the_wheel_runs_a_sweep_in_an_empty_folder",
    "selftest/quick": "tests/selftest/test_selftest.py::test_quick_passes_here",
    "race/ainic-gdr-flush-sdc-quick": (
        "tests/recipe/test_shipped_table.py::test_the_short_form_is_the_long_one_with_fewer_cells_and_trials"
    ),
}
"""Recipes that another test runs, or shows to be part of one that runs here."""
OWN_COMMAND = {"selftest/hang", "selftest/inference", "selftest/llm-determinism", "selftest/race", "selftest/training"}
"""Minutes of planted faults: `aorta selftest` runs and judges them (docs/selftest.md)."""
STOPPING = "selftest/stop-after"
"""Planted faults to be counted: a test of its own below."""


def shipped(name: str) -> Recipe:
    """Loads a shipped recipe by its name below ``recipes/``."""
    return load_recipe(resource_path("recipes", f"{name}.yaml"))


def cells_to_run(name: str) -> list[Cell]:
    """The first cell of each set of settings; of hrx all, as its variables are what is tested."""
    recipe = shipped(name)
    if recipe.workload.startswith("hrx"):
        return list(recipe.cells)
    first = {repr(sorted(cell.workload_config.items())): cell for cell in reversed(recipe.cells)}
    return list(reversed(first.values()))


CASES = [pytest.param(name, cell, id=f"{name}-{cell.name}") for name in WAYS for cell in cells_to_run(name)]


def smaller(settings: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Puts smaller values in the place of a cell's, but keeps differences of depth between cells."""
    changed = {**settings, **sizes}
    if "num_layers" in sizes and settings.get("num_layers") == 24:
        changed["num_layers"] = 2 * sizes["num_layers"]
    return changed


def run_cell(recipe: Recipe, cell: Cell, way: Way, folder: Path) -> TrialResult:
    """Runs one trial of a cell."""
    (result,) = run_trials(
        RunRequest(
            workload=recipe.workload,
            steps=way.steps or recipe.steps,
            output_dir=folder,
            environment=cell.environment.name,
            mitigations=[mitigation.name for mitigation in cell.mitigations],
            extra_env={**recipe.extra_env, **cell.extra_env},
            config_overrides=smaller({**recipe.workload_config, **cell.workload_config}, way.sizes),
            trial_isolation=recipe.trial_isolation,
            nproc_per_node=way.ranks,
        )
    )
    return result


def require_hip(cell: Cell) -> None:
    """Skips a cell of hrx where it cannot run."""
    if shutil.which(os.environ.get("HIPCC") or "hipcc") is None and not Path("/opt/rocm/bin/hipcc").exists():
        pytest.skip("needs hipcc and an AMD GPU")
    if not os.access("/dev/kfd", os.R_OK | os.W_OK):
        pytest.skip("needs an AMD GPU (/dev/kfd)")
    library = cell.extra_env.get("LD_PRELOAD")
    if library is not None and not Path(library).exists():
        pytest.skip(f"needs HRX ({library})")


@pytest.mark.parametrize(("name", "cell"), CASES)
def test_a_cell_of_a_shipped_recipe_passes(
    name: str, cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without the bug that a recipe hunts, it does its main work and passes, with its cell's variables."""
    monkeypatch.setenv("AORTA_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # tests run side by side
    recipe = shipped(name)
    if recipe.workload.startswith("hrx"):
        require_hip(cell)
    result = run_cell(recipe, cell, WAYS[name], tmp_path)
    assert (result.exit_status, result.error, result.did_not_run) == ("ok", None, False)
    assert result.result is not None
    assert (result.passed, bool(result.result.executed_iterations)) == (True, True)
    mitigated = {variable: value for mitigation in cell.mitigations for variable, value in mitigation.env.items()}
    expected = {**cell.environment.env, **mitigated, **recipe.extra_env, **cell.extra_env}
    assert expected.items() <= result.resolved_env_vars.items()


def test_the_fault_of_the_stopping_recipe_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial of each cell, struck for certain: what the rule counts is there, and only there."""
    monkeypatch.setenv("AORTA_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = shipped(STOPPING)
    faulty, clean = recipe.cells
    struck = Way(sizes={"inject": {**faulty.workload_config["inject"], "probability": 1.0}})
    verdicts = [
        run_cell(recipe, cell, way, tmp_path / cell.name).verdict
        for cell, way in ((faulty, struck), (clean, AS_IT_STANDS))
    ]
    assert recipe.stop_after is not None
    assert verdicts == [recipe.stop_after.event_verdict, "pass"]


@pytest.mark.parametrize("name", sorted(OWN_COMMAND))
def test_a_recipe_of_planted_faults_runs_by_its_own_command(name: str) -> None:
    """Named here, so that nobody takes it for run."""
    pytest.skip(f"recipes/{name}.yaml takes minutes: run aorta selftest")


def test_every_shipped_recipe_is_accounted_for() -> None:
    """Run here, run elsewhere, or named above; recipes that wrap commands have tests of their own."""
    root = resource_path("recipes")
    names = {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")}
    assert {name for name in names if not name.startswith("probe/")} == {*WAYS, *ELSEWHERE, *OWN_COMMAND, STOPPING}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_test_that_runs_it_elsewhere_is_there(name: str) -> None:
    """A renamed test is noticed."""
    path, _, function = ELSEWHERE[name].partition("::")
    tree = ast.parse((REPOSITORY / path).read_text("utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
