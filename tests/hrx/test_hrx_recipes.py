"""The shipped recipes' own settings, on the stand-in runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta._resources import resource_path
from aorta.hrx.workload import HipWorkload
from aorta.recipe import Cell, Recipe, load_recipe
from aorta.workloads.hrx import HrxWorkload
from aorta.workloads.hrx_perf import HrxPerfWorkload

WORKLOADS: dict[str, type[HipWorkload]] = {"hrx": HrxWorkload, "hrx_perf": HrxPerfWorkload}
SMALL = {"hrx": {}, "hrx_perf": {"size": 100}}
RECIPES = [load_recipe(path) for path in sorted(resource_path("recipes", "hrx").glob("*.yaml"))]
CASES = [
    pytest.param(recipe, cell, id=f"{recipe.ticket}-{cell.name}")
    for recipe in RECIPES
    for cell in recipe.cells
    if cell.name.endswith("hrx_off")
]


@pytest.mark.parametrize(("recipe", "cell"), CASES)
def test_the_baseline_of_a_shipped_recipe_passes(recipe: Recipe, cell: Cell, hipcc: str, kfd: Path) -> None:
    """With the recipe's steps, probe, iterations and warm-up; only the size of perf is smaller."""
    config = {**recipe.workload_config, **cell.workload_config, **SMALL[recipe.workload]}
    workload = WORKLOADS[recipe.workload]({**config, "steps": recipe.steps, "hipcc": hipcc}, kfd=kfd)
    try:
        workload.setup()
        result = workload.run()
    finally:
        workload.cleanup()
    assert (result.passed, len(result.step_times_ms), result.executed_iterations) == (True, recipe.steps, recipe.steps)
