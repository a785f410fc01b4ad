"""Bad input: exit code 2, one line an error with its place, no traceback, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, Workspace

pytestmark = pytest.mark.e2e


def check_refused(workspace: Workspace, command: str, arguments: list[str], *expected: str) -> None:
    before = workspace.files()
    ended = workspace.snakemake(*arguments) if command == "snakemake" else workspace.aorta(*arguments)
    assert ended.code == 2, ended.stderr
    for text in expected:
        assert text in ended.stderr
    assert "Traceback" not in ended.stderr
    assert {path for path in workspace.files() - before if not path.startswith(".snakemake")} == set()


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_all_errors_of_a_recipe_are_named_at_once(workspace: Workspace, command: str) -> None:
    """Each error has its place, and the nearest known name."""
    recipe = workspace.recipe([{"name": "a", "mitigations": ["tf32of"]}, {"name": "a", "steps": 0}], retries=3)
    arguments = ["--config", f"recipe={recipe}"] if command == "snakemake" else ["sweep", "run", "--recipe", recipe]
    check_refused(
        workspace, command, arguments, "cells[0].mitigations: ", "'tf32_off'", "cells[1].name: ", "cells[1].steps: ",
        "retries: ",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], "recipe: not given"),
        (["recipe=missing.yaml"], "missing.yaml"),
        (["recipe=recipe.yaml", "outptu=x"], "outptu: unknown setting; did you mean 'output'?"),
        (["recipe=recipe.yaml", "devices=0"], "devices: must be 'auto' or a whole number from 1 to 4096, not 0"),
        (
            ["recipe=recipe.yaml", "devices=many"],
            "devices: must be 'auto' or a whole number from 1 to 4096, not 'many'",
        ),
        (["recipe=recipe.yaml", "trial_timeout=-1"], "trial_timeout: must be a number from 0 to 31536000, not -1"),
        (["recipe=recipe.yaml", "strict=3"], "strict: must be true or false, not 3"),
        (["recipe=recipe.yaml", "run_dir=recipe.yaml"], "run_dir: recipe.yaml is not a folder"),
        (["recipe=recipe.yaml", "output=a{b}"], "output: a{b}"),
        (["recipe=recipe.yaml", "run_dir=x", "fresh=true"], "fresh: contradicts run_dir"),
    ],
)
def test_bad_settings_are_refused(workspace: Workspace, settings: list[str], expected: str) -> None:
    """Unknown keys get a suggestion, wrong values their rule."""
    workspace.recipe([{"name": "a"}])
    check_refused(workspace, "snakemake", ["--config", *settings] if settings else [], expected)


def test_more_trials_than_a_run_can_hold(workspace: Workspace) -> None:
    """A valid recipe that no DAG can hold is refused before it starts, but validates in a dry-run."""
    recipe = workspace.recipe([{"name": "a"}], trials=10**40)
    check_refused(workspace, "aorta", ["sweep", "run", "--recipe", recipe], "trials: ")
    assert workspace.aorta("sweep", "run", "--recipe", recipe, "--dry-run").code == 0


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_an_output_folder_that_cannot_be_made(workspace: Workspace, command: str) -> None:
    """A file where a folder should be is named."""
    recipe = workspace.recipe([{"name": "a"}])
    (workspace.folder / "taken").write_text("x")
    arguments = (
        ["--config", f"recipe={recipe}", "output=taken"]
        if command == "snakemake"
        else ["sweep", "run", "--recipe", recipe, "--output", "taken"]
    )
    check_refused(workspace, command, arguments, "taken")
    assert Path(workspace.folder / "taken").read_text() == "x"


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_a_folder_whose_name_slurm_would_change(tmp_path: Path, command: str) -> None:
    """Before a job is sent: the jobs' logs could not be found."""
    (tmp_path / "at %j").mkdir()
    workspace = Workspace(tmp_path / "at %j")
    recipe = workspace.recipe([{"name": "a"}])
    profile = str(REPOSITORY / "profiles" / "slurm")
    arguments = {
        "aorta": ["sweep", "run", "--profile", "slurm", "--recipe", recipe],
        "snakemake": ["--workflow-profile", profile, "--config", f"recipe={recipe}"],
    }
    check_refused(workspace, command, arguments[command], "working directory: ", "'%j'")
