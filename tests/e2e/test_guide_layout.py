"""A finished run has what the guide says, where it says so, and each cell of matrix.json its fields."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from aorta.run import RunRequest, run_trials
from tests.e2e.conftest import Workspace

pytestmark = pytest.mark.e2e

IMAGE = "_inline_acb97e4a"
GUIDE_FIELDS = {
    "failure_rate", "exit_status_counts", "min_step_time_ms", "max_step_time_ms", "p50_step_time_ms",
    "p90_step_time_ms", "p99_step_time_ms", "mean_step_time_ms", "std_step_time_ms", "mean_wall_clock_sec",
    "step_times_ms", "step_time_source", "resolved_env_vars", "resolved_environment", "workload_config", "trial_paths",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One run with an inline image, a sidecar, settings and several layers of variables."""
    folder = tmp_path_factory.mktemp("layout") / "work"
    folder.mkdir()
    workspace = Workspace(folder)
    (folder / "site.json").write_text(json.dumps({"version": 1, "mitigations": {"site_fix": {"SITE": "1"}}}), "utf-8")
    recipe = workspace.recipe(
        [
            {"name": "baseline-local", "workload_config": {"algorithm": "standard"}},
            {
                "name": "boxed",
                "mitigations": ["site_fix"],
                "environment": {"docker": "acme/box:2"},
                "workload_config": {"algorithm": "alternate"},
            },
        ],
        ticket="LAYOUT-1",
        workload="witness",
        extra_env={"GLOBAL_DEBUG_FLAG": "1"},
        workload_config={"watch": ["GLOBAL_DEBUG_FLAG", "SITE", "algorithm"]},
    )
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--mitigations-file", "site.json")
    assert ended.code == 0, ended.stderr
    return workspace


def cell(workspace: Workspace, name: str) -> dict[str, Any]:
    return workspace.cells()[name]


def test_the_files_lie_where_the_guide_says(finished: Workspace) -> None:
    """Every line of its output layout."""
    run_dir = finished.only_run()
    assert run_dir.parent.relative_to(finished.folder) == Path("triage_results/LAYOUT-1/witness")
    for name in (
        "matrix.md",
        "matrix.json",
        "recipe.resolved.yaml",
        "host_env.json",
        "environments/local/env.json",
        f"environments/{IMAGE}/env.json",
        "inline_environments.sidecar.json",
        "sidecars/site.json",
        "cells/baseline-local/witness/trial_d0_m0_t0.json",
        "cells/boxed/witness/trial_d0_m0_t0.json",
    ):
        assert (run_dir / name).is_file(), name


def test_each_cell_has_the_guide_s_fields(finished: Workspace) -> None:
    """All of its list, for every cell."""
    assert [GUIDE_FIELDS - set(found) for found in finished.matrix()["cells"]] == [set(), set()]


def test_the_matrix_records_what_was_applied(finished: Workspace) -> None:
    """Variables, place and settings of a cell, for an audit."""
    boxed = cell(finished, "boxed")
    assert boxed["resolved_env_vars"] == {"SITE": "1", "GLOBAL_DEBUG_FLAG": "1"}
    assert (boxed["resolved_environment"]["name"], boxed["resolved_environment"]["docker"]) == (IMAGE, "acme/box:2")
    assert boxed["workload_config"]["algorithm"] == "alternate"


def test_the_resolved_recipe_names_and_does_not_spell_out(finished: Workspace) -> None:
    """It stays loadable: a mitigation's variables are in matrix.json, an image is in its short form."""
    resolved = yaml.safe_load((finished.only_run() / "recipe.resolved.yaml").read_text("utf-8"))
    boxed = resolved["cells"][1]
    assert (boxed["mitigations"], boxed["environment"]) == (["site_fix"], {"docker": "acme/box:2"})
    assert (resolved["extra_env"], boxed.get("extra_env", {})) == ({"GLOBAL_DEBUG_FLAG": "1"}, {})


def test_only_settings_that_differ_are_a_column(finished: Workspace) -> None:
    """matrix.md shows the algorithm of each cell, and not what all agree on."""
    page = (finished.only_run() / "matrix.md").read_text("utf-8")
    assert "alternate" in page
    assert "watch" not in page


def test_settings_are_no_variables(finished: Workspace) -> None:
    """workload_config reaches neither os.environ nor the overlay."""
    (record,) = [record for record in finished.trials() if record["cell"] == "boxed"]
    metrics = record["result"]["metrics"]
    assert metrics["in_run"]["algorithm"] is None
    assert metrics["trial_env"] == {"SITE": "1", "GLOBAL_DEBUG_FLAG": "1"}


def test_an_image_that_left_no_snapshot_has_a_placeholder(finished: Workspace) -> None:
    """The host's own state is not passed off as the image's."""
    run_dir = finished.only_run()
    assert json.loads((run_dir / "environments" / IMAGE / "env.json").read_text("utf-8"))["snapshot_captured"] is False
    assert json.loads((run_dir / "environments" / "local" / "env.json").read_text("utf-8"))["snapshot_captured"] is True


def test_the_snapshot_precedes_the_environment_s_first_trial(workspace: Workspace) -> None:
    """What the trials did cannot show in it: of several cells and trials, it is older than the one that began first."""
    recipe = workspace.recipe([{"name": "a"}, {"name": "b"}], workload="witness", trials=2)
    assert workspace.aorta("sweep", "run", "--recipe", recipe).code == 0
    snapshot = json.loads((workspace.only_run() / "environments" / "local" / "env.json").read_text("utf-8"))
    started = [datetime.fromisoformat(record["started_at"]) for record in workspace.trials()]
    assert len(started) == 4
    assert datetime.fromisoformat(snapshot["captured_at"]) < min(started)


def test_a_collector_on_a_built_in_workload_runs_without_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's caveat: the name is valid, the trial passes, and nothing starts the logger."""
    monkeypatch.setenv("AORTA_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.chdir(tmp_path)
    (result,) = run_trials(
        RunRequest(
            workload="gpu_smoke",
            steps=1,
            output_dir="out",
            collect={"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}},
            config_overrides={"device": "cpu"},
        )
    )
    assert result.passed
    assert sorted(path.name for path in tmp_path.rglob("*.json*")) == ["cell.json", "trial_d0_m0_t0.json"]
