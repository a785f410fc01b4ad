"""Whether a sweep fits how it was started: refused before anything runs, or run with its ranks."""

from __future__ import annotations

import pytest

from .conftest import Workspace

pytestmark = pytest.mark.e2e

LAUNCHED = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def written(workspace: Workspace) -> set[str]:
    """Everything that a command wrote besides the recipe and Snakemake's own records."""
    return {path for path in workspace.files() if not path.startswith(".snakemake")} - {"recipe.yaml"}


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_too_few_ranks_are_refused_with_the_ways_out(workspace: Workspace, command: str) -> None:
    """A bare start of a workload that needs two ranks: exit 2, both ways out, nothing written."""
    recipe = workspace.recipe([{"name": "one"}], workload="ranked")
    if command == "aorta":
        ended = workspace.aorta("sweep", "run", "--recipe", recipe)
    else:
        ended = workspace.snakemake("--config", f"recipe={recipe}")
    assert ended.code == 2, ended.stderr
    assert "torchrun --standalone --nproc_per_node=2" in ended.stderr and "nproc_per_node=2 ..." in ended.stderr
    assert "Traceback" not in ended.stderr
    assert written(workspace) == set()


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_a_dry_run_warns_instead(workspace: Workspace, command: str) -> None:
    """The recipe is valid, and what a real run would be refused for is said."""
    recipe = workspace.recipe([{"name": "one"}], workload="ranked")
    if command == "aorta":
        ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--dry-run")
    else:
        ended = workspace.snakemake("--dry-run", "--config", f"recipe={recipe}")
    assert ended.code == 0, ended.stderr
    assert "warning: as it was started, this sweep cannot run: workload 'ranked' needs at least 2 ranks" in (
        ended.stdout + ended.stderr
    )
    assert written(workspace) == set()


def test_a_single_process_workload_under_a_launcher_is_refused(workspace: Workspace) -> None:
    """torchrun would run its matrix once a rank."""
    recipe = workspace.recipe([{"name": "one"}])
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, **LAUNCHED)
    assert (ended.code, "without torchrun" in ended.stderr) == (2, True)
    assert written(workspace) == set()


def test_plain_snakemake_starts_the_ranks(workspace: Workspace) -> None:
    """nproc_per_node=2 on Snakemake's command line gives each trial two ranks, and rank_logs their output."""
    recipe = workspace.recipe([{"name": "one"}], workload="ranked")
    ended = workspace.snakemake("--config", f"recipe={recipe}", "nproc_per_node=2", "rank_logs=true")
    assert ended.code == 0, ended.stderr
    (record,) = workspace.trials()
    assert [rank["logs"]["stderr"] for rank in record["ranks"]] == [
        "trial_d0_m0_t0.stderr.log",
        "trial_d0_m0_t0.rank1.stderr.log",
    ]
    assert [entry["RANK"] for entry in record["result"]["metrics"]["ranks"]] == ["0", "1"]


def test_a_set_of_ranks_has_ended_before_the_next_trial_starts(workspace: Workspace) -> None:
    """Healthy trials of two ranks, each of which leaves a helper: the next trial's ranks find none of them alive."""
    pids = workspace.folder / "pids"
    pids.mkdir()
    recipe = workspace.recipe([{"name": "one"}], workload="ranked", trials=3, workload_config={"pids": str(pids)})
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--nproc-per-node", "2", "--devices", "1")
    assert ended.code == 0, ended.stderr
    looked = [rank["earlier"] for record in workspace.trials() for rank in record["result"]["metrics"]["ranks"]]
    # Two ranks and two helpers of each trial before: both ranks of the second and of the third looked at all of them.
    assert sorted(map(len, looked)) == [0, 0, 4, 4, 8, 8]
    assert [name for found in looked for name, alive in found.items() if alive] == []
