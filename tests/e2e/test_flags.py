"""Flags instead of a recipe, sidecars, and the collector override: through to the worker, and through a resume."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Workspace

pytestmark = pytest.mark.e2e

FLAGS = [
    *("sweep", "run", "--mode", "matrix", "--workload", "witness", "--trials", "2", "--steps", "3", "--ticket", "T"),
    *("--mitigation-axis", "none,tf32_off", "--environment-axis", "local,image:acme/box:2"),
    *("--workload-config", "watch=[DISABLE_TF32, SITE]", "--workload-config", "model.size=7"),
    *("--extra-env", "SITE=a=b", "--baseline-cell", "none-local", "--confound-threshold", "1.5"),
]


def sidecar(workspace: Workspace, name: str, **content: Any) -> str:
    """Writes a sidecar and returns its name."""
    path = workspace.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, **content}), "utf-8")
    return name


def seen(workspace: Workspace) -> dict[str, dict[str, Any]]:
    """What the witness saw in the first trial of each cell."""
    return {trial["cell"]: trial["result"]["metrics"] for trial in workspace.trials() if trial["trial"] == 0}


def plan(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "plan.json").read_text("utf-8"))


def test_flags_are_the_recipe_that_a_file_would_be(workspace: Workspace) -> None:
    """The product of the axes, in one run whose plan equals that of the same recipe in a file."""
    ended = workspace.aorta(*FLAGS)
    assert ended.code == 0, ended.stderr
    run_dir = workspace.only_run()
    assert run_dir.parent == workspace.folder / "triage_results" / "T" / "witness"
    metrics = seen(workspace)
    assert list(workspace.cells()) == [
        *("none-local", "tf32_off-local", "none-_inline_acb97e4a", "tf32_off-_inline_acb97e4a"),
    ]
    assert metrics["none-local"]["at_start"] == {"DISABLE_TF32": None, "SITE": "a=b"}
    assert metrics["tf32_off-local"]["at_start"] == {"DISABLE_TF32": "1", "SITE": "a=b"}
    assert metrics["tf32_off-local"]["config"]["model"] == {"size": 7}
    inline = json.loads((run_dir / "inline_environments.sidecar.json").read_text("utf-8"))
    assert inline == {"version": 1, "environments": {"_inline_acb97e4a": {"docker": "acme/box:2"}}}
    cells = [
        {"name": f"{name}-{place}", "mitigations": [name], "environment": environment}
        for place, environment in [("local", "local"), ("_inline_acb97e4a", {"docker": "acme/box:2"})]
        for name in ("none", "tf32_off")
    ]
    recipe = workspace.recipe(
        cells,
        ticket="T",
        workload="witness",
        trials=2,
        steps=3,
        extra_env={"SITE": "a=b"},
        workload_config={"watch": ["DISABLE_TF32", "SITE"], "model": {"size": 7}},
        confound={"baseline_cell": "none-local", "threshold": 1.5},
    )
    shown = workspace.aorta("recipe", "show", recipe, "--json").stdout
    fingerprints = {cell["cell"]: cell["fingerprint"] for cell in json.loads(shown)}
    assert {cell["name"]: cell["fingerprint"] for cell in plan(run_dir)["cells"]} == fingerprints
    assert plan(run_dir)["confound"] == {"baseline_cell": "none-local", "threshold": 1.5}


def test_a_run_of_flags_is_resumed_by_the_same_flags(workspace: Workspace) -> None:
    """A lost trial alone runs again; a run directory of one's own choosing works too."""
    flags = [*FLAGS, "--run-dir", "mine"]
    assert workspace.aorta(*flags).code == 0
    kept = workspace.folder / "mine/cells/none-local/witness/trial_d0_m0_t0.json"
    before = kept.stat().st_mtime_ns
    lost = workspace.folder / "mine/cells/none-local/witness/trial_d0_m0_t1.json"
    lost.unlink()
    ended = workspace.aorta(*flags)
    assert ended.code == 0, ended.stderr
    assert lost.is_file() and kept.stat().st_mtime_ns == before
    other = workspace.aorta(*flags, "--extra-env", "MORE=1", "--dry-run")
    assert "MORE=1" in other.stdout


def test_a_dry_run_of_flags_writes_nothing(workspace: Workspace) -> None:
    """It shows the cells that the flags make."""
    before = workspace.files()
    ended = workspace.aorta(*FLAGS, "--dry-run")
    assert ended.code == 0
    assert "tf32_off-_inline_acb97e4a" in ended.stdout
    assert workspace.files() == before


def test_sidecars_are_kept_and_the_printed_command_runs_again(workspace: Workspace) -> None:
    """Two files of one name are kept apart; the printed command gives the same plan from the copies alone."""
    first = sidecar(workspace, "a/site.json", mitigations={"site_fix": {"SITE": "1"}})
    second = sidecar(workspace, "b/site.json", environments={"site_box": {"env": {"BOX": "2"}}})
    recipe = workspace.recipe(
        [{"name": "only", "mitigations": ["site_fix"], "environment": "site_box"}],
        workload="witness",
        workload_config={"watch": ["SITE", "BOX"]},
    )
    words = ["sweep", "run", "--recipe", recipe, "--mitigations-file", first, "--mitigations-file", second]
    ended = workspace.aorta(*words)
    assert ended.code == 0, ended.stderr
    run_dir = workspace.only_run()
    assert seen(workspace)["only"]["at_start"] == {"SITE": "1", "BOX": "2"}
    for name, original in (("site.json", first), ("site-2.json", second)):
        assert (run_dir / "sidecars" / name).read_bytes() == (workspace.folder / original).read_bytes()
    printed = ended.stdout[ended.stdout.index("cd triage_results") :].splitlines()
    command = shlex.split(" ".join(line.removesuffix("\\") for line in printed[:3]))
    assert command[:3] == ["cd", str(run_dir.relative_to(workspace.folder)), "&&"]
    assert command[3] == "aorta"
    for name in (first, second):
        (workspace.folder / name).unlink()
    again = Workspace(run_dir)
    ended = again.aorta(*command[4:])
    assert ended.code == 0, ended.stderr
    assert plan(again.only_run())["plan_key"] == plan(run_dir)["plan_key"]


def test_sidecars_by_plain_snakemake(workspace: Workspace) -> None:
    """One file as a string, several as a list."""
    first = sidecar(workspace, "one.json", mitigations={"site_fix": {"SITE": "1"}})
    second = sidecar(workspace, "two.json", mitigations={"other_fix": {"OTHER": "1"}})
    recipe = workspace.recipe([{"name": "only", "mitigations": ["site_fix"]}], workload="witness")
    assert workspace.snakemake("-n", "--config", f"recipe={recipe}").code == 2
    ended = workspace.snakemake("--config", f"recipe={recipe}", f"mitigations_file={first}", "run_dir=one")
    assert ended.code == 0, ended.stderr
    ended = workspace.snakemake(
        "--config", f"recipe={recipe}", f'mitigations_file=["{first}","{second}"]', "run_dir=two"
    )
    assert ended.code == 0, ended.stderr
    assert sorted(path.name for path in (workspace.folder / "two" / "sidecars").iterdir()) == ["one.json", "two.json"]
    assert "--mitigations-file sidecars/two.json" in ended.stdout


def test_a_changed_sidecar_does_not_change_a_run_that_continues(workspace: Workspace) -> None:
    """The frozen values stay, so do the copies, and the change is named; --refresh takes the new ones."""
    name = sidecar(workspace, "site.json", mitigations={"site_fix": {"SITE": "old"}})
    recipe = workspace.recipe(
        [{"name": "only", "mitigations": ["site_fix"]}], workload="witness", workload_config={"watch": ["SITE"]}
    )
    words = ["sweep", "run", "--recipe", recipe, "--mitigations-file", name, "--run-dir", "run"]
    assert workspace.aorta(*words).code == 0
    trial = workspace.folder / "run/cells/only/witness/trial_d0_m0_t0.json"
    copy = workspace.folder / "run/sidecars/site.json"
    trial.unlink()
    sidecar(workspace, "site.json", mitigations={"site_fix": {"SITE": "new"}})
    ended = workspace.aorta(*words)
    assert ended.code == 0, ended.stderr
    assert "SITE was 'old' and is now 'new'" in ended.stderr
    assert json.loads(trial.read_text())["result"]["metrics"]["at_start"] == {"SITE": "old"}
    assert "old" in copy.read_text()
    assert workspace.aorta(*words, "--refresh").code == 0
    assert json.loads(trial.read_text())["result"]["metrics"]["at_start"] == {"SITE": "new"}
    assert "new" in copy.read_text()


def test_layers_settings_and_collectors_reach_the_worker(workspace: Workspace) -> None:
    """Every layer of variables, both scopes of settings and collectors, as the worker got them."""
    options = {"NANLOG_SAMPLE_EVERY": "10"}
    names = ["BASE", "HSA_XNACK", "DISABLE_TF32", "SITE"]
    recipe = workspace.recipe(
        [
            {
                "name": "layers",
                "mitigations": ["tf32_off", "xnack"],
                "environment": {"docker": "acme/box:2", "env": {"BASE": "image", "HSA_XNACK": "0"}},
                "extra_env": {"SITE": "cell"},
                "workload_config": {"own": 2, "shared": {"b": 2}},
            },
            {"name": "replaced", "collect": {"layer_numerics": {"NANLOG_PRE_CONTEXT": "3"}}},
            {"name": "none", "collect": []},
        ],
        workload="witness",
        extra_env={"SITE": "recipe", "DISABLE_TF32": "0"},
        workload_config={"watch": names, "own": 1, "shared": {"a": 1}},
        collect={"layer_numerics": options},
        confound={"baseline_cell": "none"},
    )
    assert workspace.snakemake("--config", f"recipe={recipe}").code == 0
    metrics = seen(workspace)
    expected = {"BASE": "image", "HSA_XNACK": "1", "DISABLE_TF32": "0", "SITE": "cell"}
    assert metrics["layers"]["at_start"] == metrics["layers"]["in_run"] == metrics["layers"]["trial_env"] == expected
    config = metrics["layers"]["config"]
    assert (config["own"], config["shared"]) == (2, {"b": 2})
    collectors = {
        name: (seen_["config"]["_aorta_collect"], seen_["config"]["_aorta_collect_options"])
        for name, seen_ in metrics.items()
    }
    assert collectors == {
        "layers": (["layer_numerics"], options),
        "replaced": (["layer_numerics"], {"NANLOG_PRE_CONTEXT": "3"}),
        "none": ([], {}),
    }


@pytest.mark.parametrize("command", ["aorta", "snakemake"])
@pytest.mark.parametrize(("names", "attached"), [("layer_numerics", ["layer_numerics"]), ("", [])])
def test_collect_overrides_the_recipe_and_every_cell(
    workspace: Workspace, command: str, names: str, attached: list[str]
) -> None:
    """An operator's word applies to all cells, with default options, and the resolved recipe says so."""
    recipe = workspace.recipe(
        [{"name": "inherits"}, {"name": "none", "collect": []}],
        workload="witness",
        collect={"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}},
        confound={"baseline_cell": "none"},
    )
    if command == "aorta":
        ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--collect", names)
    else:
        ended = workspace.snakemake("--config", f"recipe={recipe}", f"collect={names or '[]'}")
    assert ended.code == 0, ended.stderr
    for metrics in seen(workspace).values():
        assert (metrics["config"]["_aorta_collect"], metrics["config"]["_aorta_collect_options"]) == (attached, {})
    resolved = yaml.safe_load((workspace.only_run() / "recipe.resolved.yaml").read_text("utf-8"))
    assert resolved.get("collect", []) == attached
    assert all("collect" not in cell for cell in resolved["cells"])
