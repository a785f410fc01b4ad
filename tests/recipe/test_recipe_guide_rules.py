"""The schema rules of the guide, one by one: what is refused, and at which place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aorta._resources import resource_path
from aorta.recipe import RecipeSchemaError, dump_recipe, parse_recipe
from aorta.registry import Registry

FOLDERS = ["training", "inference", "llm-determinism", "race", "hrx", "probe", "emulated"]
CELL = {"name": "baseline-local", "mitigations": ["none"], "environment": "local"}
WHOLE: dict[str, Any] = {"schema_version": 1, "workload": "training", "trials": 2, "steps": 3}


def places(registry: Registry, fields: dict[str, Any], cells: list[dict[str, Any]]) -> list[str]:
    """The places of a recipe's faults."""
    try:
        parse_recipe(dump_recipe({**WHOLE, **fields, "cells": cells}), registry)
    except RecipeSchemaError as error:
        return [fault.path for fault in error.errors]
    return []


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"ticket": 5}, "ticket"),
        ({"workload": 5}, "workload"),
        ({"trials": "8"}, "trials"),
        ({"steps": 0}, "steps"),
        ({"trial_isolation": "thread"}, "trial_isolation"),
        ({"save_logs": "yes"}, "save_logs"),
        ({"confound": {"threshold": "fast"}}, "confound.threshold"),
        ({"confound": {"baseline_cell": "absent"}}, "confound.baseline_cell"),
        ({"extra_env": {"DEBUG": 1}}, "extra_env"),
        ({"extra_env": {"DEBUG": True}}, "extra_env"),
        ({"collect": ["layer_numeric"]}, "collect"),
        ({"workload_config": {"steps": 1}}, "workload_config"),
        ({"workload_config": {"_aorta_x": 1}}, "workload_config"),
        ({"workload": "race", "trial_isolation": "in_process"}, "trial_isolation"),
        ({"workload": "race", "extra_env": {"MASTER_PORT": "1"}}, "extra_env"),
    ],
)
def test_a_rule_of_the_recipe_is_kept(registry: Registry, fields: dict[str, Any], place: str) -> None:
    """A value that breaks it is refused at its place."""
    assert places(registry, fields, [CELL]) == [place]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"name": "-leading"}, "name"),
        ({"name": ".."}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "matrix.md"}, "name"),
        ({"name": "matrix.json"}, "name"),
        ({"name": CELL["name"]}, "name"),
        ({"mitigations": []}, "mitigations"),
        ({"mitigations": ["tf32of"]}, "mitigations"),
        ({"mitigations": ["hsa_disable_cache", "hsa_enable_cache"]}, "mitigations"),
        ({"environment": "lokal"}, "environment"),
        ({"environment": {"docker": "a/b", "gpus": "all"}}, "environment"),
        ({"environment": {"docker": "a/b", "env": {"A": 1}}}, "environment.env"),
        ({"extra_env": {"DEBUG": 1}}, "extra_env"),
        ({"collect": ["nothing"]}, "collect"),
        ({"trials": 0}, "trials"),
        ({"steps": "10"}, "steps"),
        ({"workload_config": {"steps": 1}}, "workload_config"),
    ],
)
def test_a_rule_of_a_cell_is_kept(registry: Registry, fields: dict[str, Any], key: str) -> None:
    """The place says which cell, and which of its keys."""
    assert places(registry, {}, [CELL, {**CELL, "name": "other", **fields}]) == [f"cells[1].{key}"]


@pytest.mark.parametrize("name", ["_x", "9.a-b_C", "baseline-local"])
def test_names_that_the_rule_allows(registry: Registry, name: str) -> None:
    """A letter, digit or underscore first; then also dots and dashes."""
    assert places(registry, {}, [{**CELL, "name": name}]) == []


def test_extra_env_may_override_what_mitigations_may_not(registry: Registry) -> None:
    """The way out for those who mean it: a variable of the cell over that of its mitigation."""
    assert (
        places(registry, {}, [CELL, {**CELL, "name": "b", "mitigations": ["xnack"], "extra_env": {"HSA_XNACK": "0"}}])
        == []
    )


def test_no_baseline_is_an_error(registry: Registry) -> None:
    """Several cells of which none is named baseline-* and none is [none]."""
    cells = [{**CELL, "name": name, "mitigations": ["xnack"]} for name in ("a", "b")]
    assert places(registry, {}, cells) == ["confound.baseline_cell"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_guide_s_folder_ships(folder: str) -> None:
    """With recipes in it."""
    assert list(resource_path("recipes", folder).glob("*.yaml"))


def test_the_guide_s_page_walks_through_each_template() -> None:
    """docs/probe/handout-templates.md names every template that ships."""
    page = (Path(__file__).parents[2] / "docs" / "probe" / "handout-templates.md").read_text("utf-8")
    templates = [path.name for path in resource_path("recipes", "probe").glob("probe-template-*.yaml")]
    assert len(templates) == 3
    assert [name for name in templates if name not in page] == []
