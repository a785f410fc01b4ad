"""Whether a sweep's launch suits its workload."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from aorta.dag.launching import World, find_world, launch_problems, path_problems
from aorta.dag.planning import plan_recipe
from aorta.dag.settings import Settings
from aorta.plan.model import Plan

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RECIPE = """\
schema_version: 1
workload: {workload}
trials: 1
steps: 2
cells:
  - name: baseline
    mitigations: [none]
    environment: local
"""
LAUNCHED = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}


def settings(folder: Path, workload: str = "training", **changes: int) -> Settings:
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(workload=workload))
    return Settings(recipe=str(path), **changes)


def plan(given: Settings, environ: dict[str, str] | None = None) -> Plan:
    return plan_recipe(given, now=NOW, ambient=environ or {})


def problems(given: Settings, environ: dict[str, str] | None = None, *, workflow: bool = False) -> list[str]:
    return launch_problems(plan(given, environ), find_world(given, environ or {}), workflow=workflow)


def test_without_a_launcher_the_setting_decides(tmp_path: Path) -> None:
    """nproc_per_node ranks on one host, whatever else the shell has."""
    assert find_world(settings(tmp_path, nproc_per_node=2), {"RANK": "7", "WORLD_SIZE": "1"}) == World(
        nnodes=1, nproc_per_node=2
    )


def test_a_launcher_decides(tmp_path: Path) -> None:
    """WORLD_SIZE and LOCAL_WORLD_SIZE give hosts and ranks; RANK is this process's."""
    assert find_world(settings(tmp_path), LAUNCHED) == World(nnodes=2, nproc_per_node=2, rank=3)


def test_an_enclosing_trials_launcher_does_not_count(tmp_path: Path) -> None:
    """A sweep inside a rank of a trial was not started by that trial's launcher."""
    inside = {**LAUNCHED, "AORTA_OVERLAY_KEYS": "RANK,WORLD_SIZE,LOCAL_RANK,LOCAL_WORLD_SIZE,MASTER_ADDR,MASTER_PORT"}
    assert find_world(settings(tmp_path), inside).rank is None


@pytest.mark.parametrize(
    ("environ", "nproc", "expected"),
    [
        (LAUNCHED, 2, "nproc_per_node: 2 contradicts the launcher that has started 4 ranks"),
        ({**LAUNCHED, "RANK": "x"}, 1, "WORLD_SIZE is 4 and RANK is 'x'"),
        ({**LAUNCHED, "LOCAL_WORLD_SIZE": "3"}, 1, "not a multiple of LOCAL_WORLD_SIZE 3"),
    ],
)
def test_a_launch_that_contradicts_itself_is_refused(
    tmp_path: Path, environ: dict[str, str], nproc: int, expected: str
) -> None:
    """The variable or the setting at fault is named."""
    (problem,) = problems(settings(tmp_path, nproc_per_node=nproc), environ)
    assert expected in problem


def test_too_few_ranks_name_the_two_ways_out(tmp_path: Path) -> None:
    """race needs two ranks: torchrun, or nproc_per_node."""
    (problem,) = problems(settings(tmp_path, "race"))
    assert "needs at least 2 ranks and this launch has 1" in problem
    assert "torchrun --standalone --nproc_per_node=2" in problem and "--nproc-per-node 2" in problem
    assert problems(settings(tmp_path, "race", nproc_per_node=2)) == []
    assert problems(settings(tmp_path, "race"), LAUNCHED) == []


def test_a_single_process_workload_under_a_launcher_is_refused(tmp_path: Path) -> None:
    """Each copy would run the whole matrix."""
    (problem,) = problems(settings(tmp_path, "gpu_smoke"), LAUNCHED)
    assert "single process" in problem and "without torchrun" in problem


def test_several_copies_of_snakemake_are_refused(tmp_path: Path) -> None:
    """Only aorta sweep run knows how to follow; plain Snakemake does not."""
    (problem,) = problems(settings(tmp_path), LAUNCHED, workflow=True)
    assert "copies of snakemake" in problem and "nproc_per_node=4" in problem


def test_the_plan_does_not_tell_who_starts_the_ranks(tmp_path: Path) -> None:
    """Two ranks are two ranks: a run begun by torchrun is continued without it."""
    own = plan(settings(tmp_path, nproc_per_node=2))
    launched = plan(settings(tmp_path), {**LAUNCHED, "WORLD_SIZE": "2", "RANK": "0"})
    assert (own.key, own.recipe_key) == (launched.key, launched.recipe_key)


def test_another_number_of_ranks_is_another_plan(tmp_path: Path) -> None:
    """A run with one rank is not continued with two."""
    one, two = plan(settings(tmp_path)), plan(settings(tmp_path, nproc_per_node=2))
    assert one.key != two.key and one.recipe_key != two.recipe_key
    assert Plan.from_json(two.to_json(), source="x").launch == {"nnodes": 1, "nproc_per_node": 2}


def test_a_single_process_workload_ignores_the_setting_and_says_so(tmp_path: Path) -> None:
    """nproc_per_node in a profile does not change what inference trials are."""
    planned = plan(settings(tmp_path, "gpu_smoke", nproc_per_node=2))
    assert planned.key == plan(settings(tmp_path, "gpu_smoke")).key
    assert [warning["code"] for warning in planned.warnings] == ["nproc_per_node_ignored"]


@pytest.mark.parametrize("folder", ["/a/plain folder's", "/a/50%", "/a/5% off"])
def test_paths_that_a_batch_system_s_job_can_take(folder: str) -> None:
    """One kind of quotes, and a percent sign that begins no pattern."""
    assert path_problems(Path(folder), Path("run")) == []


def test_paths_that_a_batch_system_s_job_cannot_take() -> None:
    """Each is named, with the reason."""
    first, second, third = path_problems(Path('/a/"it\'s"/%4j'), Path('the "run"\'s'))
    assert first.startswith("working directory: /a/") and "'%4j'" in first
    assert second.startswith("working directory: ") and "both kinds of quotes" in second
    assert third.startswith("run_dir: the ") and "both kinds of quotes" in third
