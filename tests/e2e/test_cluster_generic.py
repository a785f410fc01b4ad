"""A cluster that Snakemake drives by plain commands (cluster-generic), with a stand-in for its scheduler."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, Workspace

pytestmark = pytest.mark.e2e

# Each job runs in a session of its own and leaves its exit code, as a batch system would know it.
SUBMIT = """#!/bin/sh
queue=$(dirname "$0")/queue
mkdir -p "$queue"
number=$(mktemp "$queue/XXXXXXXX")
SCHEDULER_JOB=$(basename "$number") setsid sh -c '"$1"; echo $? > "$2.code"' sh "$1" "$number" >"$number.out" 2>&1 &
basename "$number"
"""
STATUS = """#!/bin/sh
code=$(cat "$(dirname "$0")/queue/$1.code" 2>/dev/null)
case "$code" in "") echo running;; 0) echo success;; *) echo failed;; esac
"""


@pytest.fixture
def cluster(workspace: Workspace) -> list[str]:
    """Snakemake's options for the stand-in."""
    pytest.importorskip("snakemake_executor_plugin_cluster_generic")
    for name, text in {"submit": SUBMIT, "status": STATUS}.items():
        path = workspace.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return [
        *("--executor", "cluster-generic", "--jobs", "3", "--seconds-between-status-checks", "1"),
        *("--cluster-generic-submit-cmd", str(workspace.folder / "submit")),
        *("--cluster-generic-status-cmd", str(workspace.folder / "status")),
    ]


def recipe(workspace: Workspace, end: str = "pass") -> str:
    return workspace.recipe([{"name": "a"}, {"name": "b", "workload_config": {"end": end}}])


def test_a_matrix_runs_on_a_cluster_of_plain_commands(workspace: Workspace, cluster: list[str]) -> None:
    """Each trial and each snapshot are jobs of the cluster; the matrix is made here and is complete."""
    ended = workspace.snakemake(*cluster, "--config", f"recipe={recipe(workspace, 'fail')}")
    assert ended.code == 0, ended.stderr
    cells = workspace.cells()
    assert (cells["a"]["verdict_counts"]["pass"], cells["b"]["verdict_counts"]["fail"]) == (1, 1)
    assert len(list((workspace.folder / "queue").glob("*.code"))) == 4
    # Among what Snakemake says, how each trial has ended.
    assert [ended.stderr.count(f"] {end}  ") for end in ("a trial 0: pass", "b trial 0: fail")] == [1, 1]


@pytest.mark.parametrize("name", ["it's so, 100%: ok", "17"])
def test_jobs_are_told_their_run_directory(workspace: Workspace, cluster: list[str], name: str) -> None:
    """Whatever it is called, and however its name would read as a number."""
    config = workspace.folder / "settings.json"
    config.write_text(json.dumps({"recipe": recipe(workspace), "run_dir": name}))
    ended = workspace.snakemake(*cluster, "--configfile", str(config))
    assert ended.code == 0, ended.stderr
    assert json.loads((workspace.folder / name / "matrix.json").read_text("utf-8"))["complete"]


def test_two_fresh_runs_of_one_recipe_do_not_mix(workspace: Workspace, cluster: list[str]) -> None:
    """Their settings are the same; each job still belongs to one of them."""
    words = [*cluster, "--config", f"recipe={recipe(workspace)}", "fresh=true"]
    ended = [workspace.snakemake(*words), workspace.snakemake(*words)]
    assert [end.code for end in ended] == [0, 0], ended
    assert len(workspace.runs()) == 2
    for run_dir in workspace.runs():
        assert json.loads(Path(run_dir, "matrix.json").read_text("utf-8"))["trials_present"] == 2


QSUB = """#!/bin/sh
# Like PBS: options, then the job script; prints an id.
queue=$(dirname "$0")/pbs
mkdir -p "$queue"
echo "$@" >> "$queue/asked"
for script; do :; done
number=$(mktemp "$queue/XXXXXXXX")
setsid sh -c 'sh "$1"; echo $? > "$2.code"' sh "$script" "$number" >"$number.out" 2>&1 &
basename "$number"
"""
QSTAT = """#!/bin/sh
for id; do :; done
code=$(cat "$(dirname "$0")/pbs/$id.code" 2>/dev/null)
echo "Job Id: $id"
case "$code" in "") echo "    job_state = R";; *) printf '    job_state = F\\n    Exit_status = %s\\n' "$code";; esac
"""


def test_the_documented_profile_runs(workspace: Workspace) -> None:
    """The profile and the status script of docs/clusters.md, taken from the page, with stand-ins for PBS's commands."""
    pytest.importorskip("snakemake_executor_plugin_cluster_generic")
    page = (REPOSITORY / "docs" / "clusters.md").read_text("utf-8")
    site = workspace.folder / "sites" / "pbs"
    site.mkdir(parents=True)
    for name in ("config.yaml", "status.sh"):
        _, _, rest = page.partition(f"# ~/sites/pbs/{name}\n")
        (site / name).write_text(rest.partition("```")[0])
    programs = workspace.folder / "bin"
    programs.mkdir()
    for name, text in {"qsub": QSUB, "qstat": QSTAT}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    # Looked at sooner than a site would.
    with (site / "config.yaml").open("a") as file:
        file.write("seconds-between-status-checks: 1\n")
    ended = workspace.aorta(
        *("sweep", "run", "--profile", "sites/pbs", "--recipe", recipe(workspace, "fail")),
        HOME=str(workspace.folder),
        PATH=f"{programs}:{os.environ['PATH']}",
    )
    assert ended.code == 0, ended.stderr
    assert {name: cell["verdict_counts"]["fail"] for name, cell in workspace.cells().items()} == {"a": 0, "b": 1}
    lines = [line.partition("  ")[0] for line in ended.stderr.splitlines() if line.startswith("[")]
    assert sorted(line[len("[1/2] ") :] for line in lines) == ["a trial 0: pass", "b trial 0: fail"]
    asked = (programs / "pbs" / "asked").read_text().splitlines()
    assert len(asked) == 4 and all("mem=4000mb -l walltime=120:00" in line for line in asked)
