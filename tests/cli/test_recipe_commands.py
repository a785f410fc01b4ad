"""``aorta recipe``: checks, what cells resolve to, and the schema."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from aorta._resources import load_schema
from tests.cli.conftest import Aorta

CELL = {"name": "baseline-local", "mitigations": ["none"], "environment": "local"}
RECIPE = {"schema_version": 1, "workload": "training", "trials": 2, "steps": 3}


def write(path: Path, cells: list[dict[str, object]], **fields: object) -> str:
    path.write_text(yaml.safe_dump({**RECIPE, **fields, "cells": cells}, sort_keys=False), "utf-8")
    return str(path)


def test_validate_names_every_fault_of_every_file(aorta: Aorta, tmp_path: Path) -> None:
    """A bad file does not keep the others from being checked; the exit code is 2."""
    good = write(tmp_path / "good.yaml", [CELL])
    bad = write(tmp_path / "bad.yaml", [{**CELL, "mitigations": ["tf32_of"]}, {**CELL, "name": "b", "steps": 0}])
    ended = aorta("recipe", "validate", bad, good, str(tmp_path / "none.yaml"))
    assert ended.exit_code == 2
    assert ended.stdout == f"{good}: valid (1 cell of workload training)\n"
    assert ended.stderr.startswith(f"{bad}: cells[0].mitigations: 'tf32_of' is not a registered mitigation")
    assert f"{bad}: cells[1].steps: " in ended.stderr
    assert f"{tmp_path / 'none.yaml'}: no such file" in ended.stderr


def test_validate_of_valid_files_ends_with_0(aorta: Aorta, tmp_path: Path) -> None:
    """Names of a sidecar count."""
    (tmp_path / "site.json").write_text('{"version": 1, "mitigations": {"site_fix": {"SITE": "1"}}}')
    recipe = write(tmp_path / "recipe.yaml", [{**CELL, "mitigations": ["site_fix"]}])
    assert aorta("recipe", "validate", recipe).exit_code == 2
    assert aorta("recipe", "validate", recipe, "--mitigations-file", str(tmp_path / "site.json")).exit_code == 0


def test_validate_tells_what_a_run_would_warn_about(aorta: Aorta, tmp_path: Path) -> None:
    """A value that the workload cannot use leaves the file valid, and is named; ranks are not known yet."""
    config = {"lr": 1, "batch_size": 0, "inject": {"kind": "crash_rank", "rank": 5}}
    recipe = write(tmp_path / "recipe.yaml", [CELL, {**CELL, "name": "b", "workload_config": config}])
    ended = aorta("recipe", "validate", recipe)
    assert (ended.exit_code, ended.stdout) == (0, f"{recipe}: valid (2 cells of workload training)\n")
    assert sorted(line.split(": ")[:3] for line in ended.stderr.splitlines()) == [
        [recipe, "warning", f"cells[1].workload_config.{key}"] for key in ("batch_size", "lr")
    ]


def test_a_path_that_lacks_its_first_folder_is_told_the_shipped_recipe(aorta: Aorta) -> None:
    """``training/...`` is what the guide's lists call a recipe that lies below ``recipes/``."""
    name = "training/example-fsdp-smoke.yaml"
    for command in (["recipe", "validate", name], ["sweep", "run", "--dry-run", "--recipe", name]):
        ended = aorta(*command)
        assert ended.exit_code == 2
        assert f"{name}: no such file; did you mean recipes/{name}?" in ended.stderr


def test_show_tells_the_layer_of_each_variable(aorta: Aorta, tmp_path: Path) -> None:
    """Every layer of the guide's order can be seen, and the highest one wins."""
    recipe = write(
        tmp_path / "recipe.yaml",
        [
            {
                **CELL,
                "mitigations": ["tf32_off", "xnack"],
                "environment": {"docker": "acme/box:2", "env": {"HSA_XNACK": "0", "BASE": "image"}},
                "extra_env": {"SITE": "cell"},
            }
        ],
        extra_env={"SITE": "recipe", "DISABLE_TF32": "0"},
    )
    (cell,) = json.loads(aorta("recipe", "show", recipe, "--json").stdout)
    name = cell["environment"]["name"]
    assert cell["env"] == {
        "BASE": {"value": "image", "layer": f"environment:{name}"},
        "DISABLE_TF32": {"value": "0", "layer": "recipe.extra_env"},
        "HSA_XNACK": {"value": "1", "layer": "mitigation:xnack"},
        "SITE": {"value": "cell", "layer": "cell.extra_env"},
    }
    text = aorta("recipe", "show", recipe).stdout
    assert "HSA_XNACK     =  1      from mitigation:xnack" in text
    assert f"environment  {name} (docker acme/box:2)" in text


def test_show_merges_settings_and_collectors(aorta: Aorta, tmp_path: Path) -> None:
    """Settings merge key by key; a cell's collectors replace the recipe's; --collect replaces both."""
    recipe = write(
        tmp_path / "recipe.yaml",
        [CELL, {**CELL, "name": "own", "collect": [], "workload_config": {"seed": 2}}],
        collect=["layer_numerics"],
        workload_config={"seed": 1, "device": "cpu"},
    )
    cells = json.loads(aorta("recipe", "show", recipe, "--json").stdout)
    assert [cell["workload_config"] for cell in cells] == [{"seed": 1, "device": "cpu"}, {"seed": 2, "device": "cpu"}]
    assert [cell["collect"] for cell in cells] == [{"layer_numerics": {}}, {}]
    overridden = json.loads(aorta("recipe", "show", recipe, "--json", "--collect", "layer_numerics").stdout)
    assert [cell["collect"] for cell in overridden] == [{"layer_numerics": {}}] * 2


def test_schema_is_the_one_that_recipes_are_checked_against(aorta: Aorta) -> None:
    """An editor can be given it."""
    assert json.loads(aorta("recipe", "schema").stdout) == load_schema("recipe")
    assert json.loads(aorta("recipe", "schema", "--mode", "probe").stdout) == load_schema("probe")


def test_show_and_validate_a_recipe_that_wraps_a_command(aorta: Aorta) -> None:
    """Neither needs the command."""
    path = "recipes/probe/probe-template-bash.yaml"
    assert aorta("recipe", "validate", path).stdout == f"{path}: valid (4 cells of a command)\n"
    shown = aorta("recipe", "show", path).stdout
    assert shown.startswith(f"{path}: wraps a command, ticket TICKET-1234\n")
    assert "3 runs of a command" in shown
