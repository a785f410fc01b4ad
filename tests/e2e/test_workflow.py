"""The Snakemake workflow as Snakemake's own users see it."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml

from tests.e2e.conftest import Workspace

pytestmark = pytest.mark.e2e

CELLS = [{"name": "base"}, {"name": "other", "environment": "default", "trials": 2}]


def two_cells(workspace: Workspace, **fields: object) -> str:
    return workspace.recipe(CELLS, trials=3, workload="witness", confound={"baseline_cell": "base"}, **fields)


def test_dry_run_shows_one_job_for_each_thing(workspace: Workspace) -> None:
    """One job per (cell, trial), per environment, for the host, the resolved recipe and the matrix; nothing written."""
    recipe = two_cells(workspace)
    before = workspace.files()
    ended = workspace.snakemake("-n", "--config", f"recipe={recipe}")
    assert ended.code == 0, ended.stderr
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", ended.stdout + ended.stderr, flags=re.MULTILINE))
    assert jobs == {
        "all": "1",
        "trial": "5",
        "environment": "2",
        "host_environment": "1",
        "resolved_recipe": "1",
        "matrix": "1",
        "total": "11",
    }
    assert {path for path in workspace.files() - before if not path.startswith(".snakemake")} == set()


@pytest.mark.parametrize("arguments", [["--dag", "mermaid-js"], ["--rulegraph"], ["--list-rules"], ["--summary"]])
def test_snakemakes_own_views_work(workspace: Workspace, arguments: list[str]) -> None:
    """The DAG can be drawn without running anything."""
    ended = workspace.snakemake(*arguments, "--config", f"recipe={two_cells(workspace)}")
    assert ended.code == 0, ended.stderr
    assert ("trial" in ended.stdout) or ("trial" in ended.stderr)
    assert workspace.runs() == []


def test_a_second_start_has_nothing_to_do(workspace: Workspace) -> None:
    """The same command after a finished run runs nothing and says where the matrix is."""
    recipe = two_cells(workspace)
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    ended = workspace.snakemake("--config", f"recipe={recipe}")
    assert ended.code == 0
    assert "Nothing to be done" in ended.stderr
    assert f"{workspace.only_run().relative_to(workspace.folder)}/matrix.md" in ended.stderr


def test_edits_that_change_no_trial_rerun_nothing(workspace: Workspace) -> None:
    """Comments, key order and a renamed recipe file are the same plan."""
    recipe = two_cells(workspace)
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    content = yaml.safe_load((workspace.folder / recipe).read_text())
    turned = yaml.safe_dump(dict(reversed(content.items())), sort_keys=False)
    (workspace.folder / "renamed.yaml").write_text(f"# a comment\n{turned}# the end\n")
    ended = workspace.snakemake("--config", "recipe=renamed.yaml")
    assert "Nothing to be done" in ended.stderr
    assert len(workspace.runs()) == 1


def test_a_deleted_trial_runs_again_alone(workspace: Workspace) -> None:
    """Only the missing trial and the matrix run."""
    recipe = two_cells(workspace)
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    before = {trial["pid"] for trial in workspace.trials()}
    (workspace.only_run() / "cells/base/witness/trial_d0_m0_t1.json").unlink()
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    after = {trial["pid"] for trial in workspace.trials()}
    assert (len(before - after), len(after - before), workspace.matrix()["complete"]) == (1, 1, True)


@pytest.mark.parametrize("content", ["", '{"fingerprint": "', "[]", '{"fingerprint": "0"}'])
def test_a_damaged_trial_file_is_no_result(workspace: Workspace, content: str) -> None:
    """What a power cut leaves, or another plan's record, is run again."""
    recipe = two_cells(workspace)
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    path = workspace.only_run() / "cells/base/witness/trial_d0_m0_t1.json"
    path.write_text(content)
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    assert json.loads(path.read_text())["verdict"] == "pass"
    assert "Nothing to be done" in workspace.snakemake("--config", f"recipe={recipe}").stderr


def test_a_threshold_alone_makes_only_a_new_matrix(workspace: Workspace) -> None:
    """The baseline rules are no part of a trial."""
    assert workspace.snakemake("--config", f"recipe={two_cells(workspace)}").code == 0
    before = {trial["pid"] for trial in workspace.trials()}
    text = (workspace.folder / "recipe.yaml").read_text().replace("confound:", "confound:\n  threshold: 7.5")
    (workspace.folder / "recipe.yaml").write_text(text)
    assert workspace.snakemake("--config", "recipe=recipe.yaml").code == 0
    assert workspace.matrix()["confound"]["threshold"] == 7.5
    assert {trial["pid"] for trial in workspace.trials()} == before


def test_more_trials_in_a_named_run_add_only_those(workspace: Workspace) -> None:
    """run_dir continues there with the recipe as it is now."""
    assert workspace.snakemake("--config", f"recipe={two_cells(workspace)}", "run_dir=mine").code == 0
    first = {path: path.stat().st_mtime_ns for path in workspace.folder.glob("mine/cells/*/*/trial_*.json")}
    recipe = workspace.recipe(
        [CELLS[0], {**CELLS[1], "trials": 4}], trials=3, workload="witness", confound={"baseline_cell": "base"}
    )
    assert workspace.snakemake("--config", f"recipe={recipe}", "run_dir=mine").code == 0
    second = {path: path.stat().st_mtime_ns for path in workspace.folder.glob("mine/cells/*/*/trial_*.json")}
    assert len(second) == len(first) + 2
    assert {path: second[path] for path in first} == first
    assert "Nothing to be done" in workspace.snakemake("--config", f"recipe={recipe}", "run_dir=mine").stderr


def test_a_changed_cell_makes_only_its_own_trials_stale(workspace: Workspace) -> None:
    """With run_dir, other steps of one cell run that cell's trials again, once."""
    assert workspace.snakemake("--config", f"recipe={two_cells(workspace)}", "run_dir=mine").code == 0
    first = {path: path.stat().st_mtime_ns for path in workspace.folder.glob("mine/cells/*/*/trial_*.json")}
    recipe = workspace.recipe(
        [CELLS[0], {**CELLS[1], "steps": 5}], trials=3, workload="witness", confound={"baseline_cell": "base"}
    )
    assert workspace.snakemake("--config", f"recipe={recipe}", "run_dir=mine").code == 0
    second = {path: path.stat().st_mtime_ns for path in workspace.folder.glob("mine/cells/*/*/trial_*.json")}
    assert {path.parts[-3] for path in first if second[path] != first[path]} == {"other"}
    assert "Nothing to be done" in workspace.snakemake("--config", f"recipe={recipe}", "run_dir=mine").stderr


def test_a_dead_supervisor_leaves_an_incomplete_matrix_that_a_rerun_completes(workspace: Workspace) -> None:
    """The other trials finish, the missing one is named, the exit code is 1, and the same command completes it."""
    marker = workspace.folder / "repaired"
    config = {"end": "marker", "marker": str(marker)}
    recipe = workspace.recipe(
        [{"name": "good"}, {"name": "dies", "workload_config": config}], confound={"baseline_cell": "good"}, trials=2
    )
    ended = workspace.aorta("sweep", "run", "--recipe", recipe)
    assert ended.code == 1
    matrix = workspace.matrix()
    missing = {cell["name"]: cell["missing_trials"] for cell in matrix["cells"]}
    assert (matrix["complete"], missing) == (False, {"good": [], "dies": [0, 1]})
    assert "INCOMPLETE" in ended.stdout
    marker.touch()
    again = workspace.aorta("sweep", "run", "--recipe", recipe)
    assert (again.code, workspace.matrix()["complete"], len(workspace.runs())) == (0, True, 1)


ODD_FOLDERS = ["out $x 'q' é", 'a"b', " lead ", "back\\slash", "new\nline", "1e3", "[1]", "-dash", "a: b", "true", "*"]


@pytest.mark.parametrize("folder", ODD_FOLDERS)
def test_odd_output_folders_work(workspace: Workspace, folder: str) -> None:
    """No name of a folder is read as a number, a flag, a pattern, or a piece of shell."""
    recipe = workspace.recipe([{"name": "a.b-c_D"}], workload="witness", ticket="A {b}/../'c\" $(x)")
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, f"--output={folder}")
    assert ended.code == 0, ended.stderr
    assert len(list((workspace.folder / folder).glob("*/witness/*/matrix.md"))) == 1
    assert {path.name for path in workspace.folder.iterdir()} == {folder, ".snakemake", "recipe.yaml"}


@pytest.mark.parametrize("name", ["b\\s.yaml", "1e3", "a: b.yaml", " x.yaml"])
def test_odd_recipe_names_work(workspace: Workspace, name: str) -> None:
    """The recipe's own name is handed on as it is."""
    (workspace.folder / workspace.recipe([{"name": "only"}], workload="witness")).rename(workspace.folder / name)
    assert workspace.aorta("sweep", "run", "--recipe", name).code == 0


def test_a_deleted_page_is_made_again(workspace: Workspace) -> None:
    """matrix.md, matrix.html and perf.md are targets like matrix.json."""
    recipe = two_cells(workspace)
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    pages = [workspace.only_run() / name for name in ("matrix.md", "matrix.html", "perf.md")]
    for page in pages:
        page.unlink()
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    assert all(page.is_file() for page in pages)


def test_a_named_finished_run_shows_its_matrix(workspace: Workspace) -> None:
    """Nothing runs, and the answer is still there."""
    recipe = two_cells(workspace)
    first = workspace.aorta("sweep", "run", "--recipe", recipe, "--run-dir", "mine")
    again = workspace.aorta("sweep", "run", "--recipe", recipe, "--run-dir", "mine")
    assert (first.code, again.code) == (0, 0)
    assert "matrix: mine/matrix.md" in again.stdout


def test_lint_finds_only_what_is_meant(workspace: Workspace) -> None:
    """No log files (a result carries its own stderr) and no software environment a rule (aorta is one package)."""
    ended = workspace.snakemake("--lint", "--config", f"recipe={two_cells(workspace)}")
    findings = set(re.findall(r"^ +\* ([^:]+)", ended.stdout + ended.stderr, flags=re.MULTILINE))
    assert findings == {"No log directive defined", "Specify a conda environment or container for each rule."}


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_a_power_cut_that_spoils_a_record_and_snakemakes_notes_takes_one_start(
    workspace: Workspace, command: str
) -> None:
    """The trial runs again although nothing but the file itself says that it must."""
    recipe = two_cells(workspace)
    arguments = {
        "snakemake": ["--config", f"recipe={recipe}", "run_dir=mine"],
        "aorta": ["sweep", "run", "--recipe", recipe, "--run-dir", "mine"],
    }[command]
    run = {"snakemake": workspace.snakemake, "aorta": workspace.aorta}[command]
    assert run(*arguments).code == 0
    path = workspace.folder / "mine/cells/base/witness/trial_d0_m0_t1.json"
    path.write_bytes(path.read_bytes()[:100])
    shutil.rmtree(workspace.folder / ".snakemake")
    dry = workspace.snakemake("-n", "--config", f"recipe={recipe}", "run_dir=mine")
    assert re.search(r"^trial +1$", dry.stdout + dry.stderr, flags=re.MULTILINE)
    assert run(*arguments).code == 0
    assert json.loads(path.read_text())["verdict"] == "pass"


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_products_that_were_cut_short_are_made_again(workspace: Workspace, command: str) -> None:
    """An empty page, or half a matrix.json or snapshot, is no product: the same command makes it again, once."""
    recipe = two_cells(workspace)
    arguments = {
        "snakemake": ["--config", f"recipe={recipe}", "run_dir=mine"],
        "aorta": ["sweep", "run", "--recipe", recipe, "--run-dir", "mine"],
    }[command]
    run = {"snakemake": workspace.snakemake, "aorta": workspace.aorta}[command]
    assert run(*arguments).code == 0
    mine = workspace.folder / "mine"
    before = {path: path.read_bytes() for path in mine.glob("cells/*/*/trial_*.json")}
    products = ["matrix.json", "matrix.md", "matrix.html", "perf.md", "recipe.resolved.yaml", "host_env.json"]
    products.append("environments/local/env.json")
    for name in products:
        (mine / name).write_bytes(
            (mine / name).read_bytes()[:300] if name.endswith(("matrix.json", "env.json")) else b""
        )
    assert run(*arguments).code == 0
    assert all((mine / name).stat().st_size for name in products)
    assert json.loads((mine / "matrix.json").read_text())["complete"] is True
    assert json.loads((mine / "environments/local/env.json").read_text())["snapshot_captured"] is True
    assert {path: path.read_bytes() for path in mine.glob("cells/*/*/trial_*.json")} == before
