"""Flags to recipe data: items, YAML values, dotted keys, and faults that carry the flag."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.recipe import RecipeSchemaError, parse_recipe, resolved_recipe
from aorta.recipe.flags import MatrixFlags, load_data
from aorta.registry import Registry


def flags(**given: Any) -> MatrixFlags:
    return MatrixFlags(**{"workload": "training", "trials": 2, "steps": 3, **given})


def faults(registry: Registry, **given: Any) -> list[str]:
    with pytest.raises(RecipeSchemaError) as caught:
        flags(**given).load(registry)
    return [str(error) for error in caught.value.errors]


def test_cells_are_the_product_of_the_axes(registry: Registry) -> None:
    """All mitigations in one environment, then in the next; an image has its automatic name in the cell's."""
    recipe = flags(mitigation_axis="none, xnack", environment_axis="local,image:acme/box:2").load(registry)
    assert [cell.name for cell in recipe.cells] == [
        *("none-local", "xnack-local", "none-_inline_acb97e4a", "xnack-_inline_acb97e4a"),
    ]
    assert recipe.cells[3].environment.docker == "acme/box:2"
    assert recipe.confound.baseline_cell == "none-local"


def test_the_text_is_the_recipe(registry: Registry) -> None:
    """What is written for the workflow loads to the recipe that was checked."""
    given = flags(
        ticket="0123",
        extra_env=("A=yes", "B="),
        workload_config=("model.kind=mlp", "model.size=3", "seed=1"),
        confound_threshold=1.5,
        trial_isolation="process",
        save_logs=True,
    )
    recipe = given.load(registry)
    assert resolved_recipe(parse_recipe(given.text(), registry)) == resolved_recipe(recipe)
    assert (recipe.ticket, recipe.extra_env, recipe.save_logs) == ("0123", {"A": "yes", "B": ""}, True)
    assert recipe.workload_config == {"model": {"kind": "mlp", "size": 3}, "seed": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("1.5", 1.5), ("true", True), ("null", None), ("", None), ("mlp", "mlp"), ("'3'", "3")),
        *(("[1, a]", [1, "a"]), ("{a: 1}", {"a": 1}), ("a=b", "a=b"), ('"2020-01-01"', "2020-01-01")),
    ],
)
def test_a_setting_is_a_yaml_value(registry: Registry, text: str, value: Any) -> None:
    """The same types as in a file."""
    assert flags(workload_config=(f"key={text}",)).load(registry).workload_config == {"key": value}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mitigation_axis": "none,,xnack"}, "--mitigation-axis: 'none,,xnack' has an empty item"),
        ({"mitigation_axis": "none,none"}, "--mitigation-axis: 'none' is given twice; keep one of them"),
        ({"environment_axis": "local,local"}, "--environment-axis: 'local' is given twice; keep one of them"),
        ({"extra_env": ("A=1", "A=2")}, "--extra-env: 'A' is given twice; keep one of them"),
        ({"extra_env": ("=1",)}, "--extra-env: '=1' is not of the form KEY=VALUE"),
        ({"workload_config": ("a..b=1",)}, "--workload-config: 'a..b=1' is not of the form KEY=VALUE (or A.B=VALUE)"),
        ({"workload_config": ("a=1", "a.b=2")}, "--workload-config: 'a' is given twice; keep one of them"),
        ({"workload_config": ("a.b=2", "a={}")}, "--workload-config: 'a' is given twice; keep one of them"),
        ({"workload_config": ("a=[1",)}, "--workload-config: a: '[1' is not YAML"),
        ({"workload_config": ("a=2020-01-01",)}, "--workload-config: a: must have a JSON form, and a date"),
        ({"workload_config": ("steps=1",)}, "--workload-config: "),
        ({"extra_env": ("A=\udcff",)}, "recipe: '\\udcff' is not text in UTF-8"),
        ({"workload": None}, "--workload: is required, and missing"),
        ({"trials": -1}, "--trials: must be a whole number, 1 or more, not int -1"),
        ({"confound_threshold": -1.0}, "--confound-threshold: must be a finite number above 0"),
        ({"baseline_cell": "no"}, "--baseline-cell: 'no' is not the name of a cell"),
        (
            {"mitigation_axis": "xnac"},
            "--mitigation-axis: 'xnac' is not a registered mitigation; did you mean 'xnack'?",
        ),
        ({"environment_axis": "image:a b"}, "--environment-axis: must be an image reference"),
        ({"ticket": ""}, "--ticket: "),
    ],
)
def test_a_fault_carries_its_flag(registry: Registry, given: dict[str, Any], expected: str) -> None:
    """The first line says the flag, what was found, and what would be right."""
    assert faults(registry, **given)[0].startswith(expected)


def test_a_value_that_no_recipe_can_hold_is_refused(registry: Registry) -> None:
    """Data from a program can hold any object."""
    data = {"schema_version": 1, "workload_config": {"a": object()}}
    with pytest.raises(RecipeSchemaError, match="cannot be written in a recipe"):
        load_data(data, registry, names={})


def test_a_mapping_can_be_completed(registry: Registry) -> None:
    """A whole mapping first, single keys into it after."""
    config = flags(workload_config=("model={kind: mlp}", "model.size=3")).load(registry).workload_config
    assert config == {"model": {"kind": "mlp", "size": 3}}
