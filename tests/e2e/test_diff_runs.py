"""Two real runs compared: the answer to whether the registry or the machine changed between them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Workspace

pytestmark = pytest.mark.e2e


def test_two_runs_compared(workspace: Workspace) -> None:
    """The same inputs from two folders: no difference. A mitigation's value that changed: named, with exit code 1."""
    sidecar = workspace.folder / "site.json"
    recipe = workspace.recipe(
        [{"name": "base"}, {"name": "fixed", "mitigations": ["site_fix"]}],
        workload="witness",
        confound={"baseline_cell": "base"},
    )
    elsewhere = Workspace(workspace.folder / "elsewhere")
    elsewhere.folder.mkdir()

    def run(where: Workspace, value: str, output: str) -> str:
        sidecar.write_text(json.dumps({"version": 1, "mitigations": {"site_fix": {"SITE": value}}}))
        words = ["--recipe", str(workspace.folder / recipe), "--mitigations-file", str(sidecar)]
        ended = where.aorta("sweep", "run", *words, "--run-dir", str(workspace.folder / output))
        assert ended.code == 0, ended.stderr
        return output

    first, second, third = run(workspace, "1", "a"), run(elsewhere, "1", "b"), run(workspace, "2", "c")
    same = workspace.aorta("sweep", "diff", first, second)
    assert same.stdout.splitlines()[2:] == [
        "same variables, environments, settings and snapshots",
        "same rates in every common cell",
    ]
    assert same.code == 0
    changed = workspace.aorta("sweep", "diff", first, third, "--json")
    assert changed.code == 1
    found = json.loads(changed.stdout)
    assert list(found["cells"]) == ["fixed"]
    assert [change["key"] for change in found["cells"]["fixed"]["variables"]] == ["SITE"]
    assert (found["run"], found["snapshots"], found["cells_only_in_a"]) == ([], {}, [])
    nothing = workspace.aorta("sweep", "diff", first, "elsewhere")
    assert (nothing.code, nothing.stdout) == (2, "")
    assert "is elsewhere a run directory?" in nothing.stderr
