"""The recipes that ship, the guide's own example, and the schema that describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from aorta._resources import load_schema, resource_path
from aorta.recipe import load_recipe, parse_recipe
from aorta.registry import Registry

_CHECKOUT = Path(__file__).resolve().parents[2]
_GUIDE = Path(os.environ.get("AORTA_SHARED", _CHECKOUT.parent / "shared")) / "spec" / "recipes-guide.txt"
_SHIPPED = sorted(resource_path("recipes").rglob("*.yaml"))
_MARK = "# yaml-language-server: $schema="


@pytest.mark.parametrize("path", _SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipe_is_valid(path: Path, registry: Registry) -> None:
    """Every recipe that ships loads, and belongs to a ticket."""
    assert load_recipe(path, registry).ticket


@pytest.mark.parametrize("path", _SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipe_leads_editors_to_its_schema(path: Path) -> None:
    """The first line names a schema file that is there."""
    first = path.read_text("utf-8").splitlines()[0]
    assert first.startswith(_MARK)
    assert (path.parent / first.removeprefix(_MARK)).resolve().is_file()


@pytest.mark.shared
@pytest.mark.skipif(not _GUIDE.is_file(), reason="no guide: set AORTA_SHARED, or put it at ../shared")
def test_quick_reference_of_the_guide_loads_as_it_stands(registry: Registry) -> None:
    """What the guide shows first is valid, comments and all."""
    text = _GUIDE.read_text("utf-8")
    start = text.index("schema_version: 1 ", text.index("Quick reference"))
    recipe = parse_recipe(text[start : text.index("Schema rules (full detail)")], registry)
    assert [cell.name for cell in recipe.cells] == [
        "baseline-local",
        "tf32_off-local",
        "stack-tf32-xnack-local",
        "custom-env-override",
    ]
    assert recipe.confound.baseline_cell == "baseline-local"
    assert (recipe.cells[1].collect, recipe.cells[2].trials, recipe.cells[2].steps) == ({}, 16, 8000)


@pytest.mark.parametrize("name", ["recipe", "probe", "sidecar"])
def test_schema_is_valid_json_schema(name: str) -> None:
    """Editors and other validators can use the schema."""
    Draft202012Validator.check_schema(load_schema(name))


@pytest.mark.parametrize("name", ["recipe", "probe", "sidecar"])
def test_every_rule_of_the_schema_says_what_is_right(name: str) -> None:
    """The loader's messages come from the schema, so each place with a rule must carry one."""
    rules = {"type", "enum", "const", "pattern", "minimum"}
    stack = [load_schema(name)]
    while stack:
        node = stack.pop()
        if rules & set(node):
            assert "errorMessage" in node, node
        for key, value in node.items():
            if key in ("properties", "$defs"):
                stack += value.values()
            elif isinstance(value, dict):
                stack.append(value)


def test_recipe_and_sidecar_agree_on_what_a_variable_is() -> None:
    """A mitigation may set exactly what extra_env may set."""
    recipe, sidecar = load_schema("recipe")["$defs"], load_schema("sidecar")["$defs"]
    for name in ("variableName", "variableValue"):
        assert recipe[name] == sidecar[name]
