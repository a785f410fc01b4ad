"""The example plugin, installed as a user would and run: host workload, mitigation, environment, container."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, Workspace

pytestmark = pytest.mark.e2e

# Stands in for Docker: starts the container's command on the host with the container's variables alone, and with the
# mounted folders in the place of the paths inside.
DOCKER = """#!{python}
import json, os, subprocess, sys
words = iter(sys.argv[2:])
mounts, variables = {{}}, {{}}
for word in words:
    if word == "-v":
        source, target = next(words).split(":")[:2]
        mounts[target] = source
    elif word == "-e":
        name, _, value = next(words).partition("=")
        variables[name] = value
    elif word != "--rm":
        break
image, command = word, list(words)
for target, source in mounts.items():
    command = [part.replace(target, source) for part in command]
with open(os.path.join(os.path.dirname(__file__), "calls.jsonl"), "a") as file:
    print(json.dumps({{"image": image, "mounts": mounts, "variables": variables}}), file=file)
sys.exit(subprocess.run(command, env={{"PATH": os.environ["PATH"], **variables}}).returncode)
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built and installed into a folder of its own; nothing is fetched."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--target", str(folder), str(REPOSITORY / "examples" / "plugin")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def site(workspace: Workspace, installed: Path) -> Workspace:
    """A workspace in which the example is installed."""
    workspace.environment["PYTHONPATH"] = str(installed)
    return workspace


def test_its_names_are_listed(site: Workspace) -> None:
    """Each list names the package that they come from."""
    for what, name in (
        ("workloads", "acme_stencil"),
        ("mitigations", "acme_serial_copies"),
        ("environments", "acme_nightly"),
    ):
        rows = {row["name"]: row for row in json.loads(site.aorta("sweep", f"list-{what}", "--json").stdout)}
        assert (rows[name]["source"], rows[name]["problem"]) == ("acme-triage", None)


def test_its_recipe_finds_the_planted_fault(site: Workspace) -> None:
    """Only the cell with the flipped element fails, with the workload's hint, and its variables were set."""
    ended = site.aorta("sweep", "run", "--recipe", str(REPOSITORY / "examples" / "plugin" / "recipe.yaml"))
    assert ended.code == 0, ended.stderr
    cells = site.cells()
    assert {name: cell["failure_rate"] for name, cell in cells.items()} == {
        "baseline-local": 0.0,
        "serial-copies-local": 0.0,
        "planted-local": 1.0,
    }
    assert "1 of 4096 elements wrong, the first at 1" in ended.stdout
    assert cells["serial-copies-local"]["resolved_env_vars"] == {"HSA_ENABLE_SDMA": "0", "GPU_MAX_HW_QUEUES": "1"}


def test_its_container_gets_the_variables_and_leaves_a_snapshot(site: Workspace) -> None:
    """The container sees the trial's variables and nothing of the host's; its snapshot is the environment's."""
    program = site.folder / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    recipe = site.recipe(
        [
            {"name": "nightly", "environment": "acme_nightly", "mitigations": ["acme_serial_copies"]},
            {"name": "again", "environment": "acme_nightly", "workload_config": {"command": "exit 3"}},
        ],
        workload="acme_container",
        extra_env={"SITE": "a b"},
        workload_config={"command": 'test "$SITE" = "a b" && test -z "$HOST_ONLY"'},
        confound={"baseline_cell": "nightly"},
        save_logs=True,
    )
    path = f"{program.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = site.aorta("sweep", "run", "--recipe", recipe, PATH=path, HOST_ONLY="1")
    assert ended.code == 0, ended.stderr
    assert "run on the host" not in ended.stderr
    calls = [json.loads(line) for line in (program.parent / "calls.jsonl").read_text().splitlines()]
    assert {call["image"] for call in calls} == {"acme/rocm:nightly"}
    expected = {"ACME_CHANNEL": "nightly", "SITE": "a b"}
    mitigated = {**expected, "HSA_ENABLE_SDMA": "0", "GPU_MAX_HW_QUEUES": "1"}
    assert [call["variables"] for call in calls if call["variables"] != expected] == [mitigated] * 2
    assert {name: cell["verdict_counts"]["fail"] for name, cell in site.cells().items()} == {"nightly": 0, "again": 1}
    assert "ended with status 3" in ended.stdout
    # Asked for by the first trial alone, since that one left it.
    assert sum(bool(call["mounts"]) for call in calls) == 1
    snapshot = json.loads((site.only_run() / "environments" / "acme_nightly" / "env.json").read_text("utf-8"))
    assert (snapshot["snapshot_captured"], snapshot["environment"]["docker"]) == (True, "acme/rocm:nightly")
    assert {trial["environment_probe"] for trial in site.trials()} == {"captured", None}
    logs = {path.name for path in (site.only_run() / "cells/nightly/acme_container").glob("*.log")}
    assert "trial_d0_m0_t0.step0.stdout.log" in logs
