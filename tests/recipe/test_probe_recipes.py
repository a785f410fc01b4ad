"""Recipes that wrap a command: their cells, their way back to YAML, and those that ship."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from aorta._resources import load_schema, resource_path
from aorta.recipe import Recipe, RecipeSchemaError, dump_recipe, load_recipe, parse_recipe, resolved_recipe
from aorta.registry import Registry
from aorta.registry.model import Mitigation

LEAST = {"schema_version": 1, "mode": "probe", "trials": 2, "mitigation_axis": ["none"]}
TEMPLATES = ("torchrun", "buck2", "bash")


def load(registry: Registry, **fields: Any) -> Recipe:
    """Loads a recipe of these fields."""
    return parse_recipe(yaml.safe_dump({**LEAST, **fields}), registry)


def with_mitigations(registry: Registry, **variables: dict[str, str]) -> Registry:
    """A registry with more names in it."""
    more = {name: Mitigation(name=name, env=env, source_package="test") for name, env in variables.items()}
    return replace(registry, mitigations={**registry.mitigations, **more})


def test_cells_are_the_product_of_the_axes(registry: Registry) -> None:
    """The first axis varies slowest; ``none`` beside another name adds nothing; one cell a pair, in `local`."""
    recipe = load(registry, mitigation_axis=["none", "tf32_off"], diagnostic_axis=["none", "xnack"])
    stacks = {cell.name: [mitigation.name for mitigation in cell.mitigations] for cell in recipe.cells}
    assert stacks == {
        "none-none": ["none"],
        "none-xnack": ["xnack"],
        "tf32_off-none": ["tf32_off"],
        "tf32_off-xnack": ["tf32_off", "xnack"],
    }
    assert list(stacks) == ["none-none", "none-xnack", "tf32_off-none", "tf32_off-xnack"]
    assert {cell.environment.name for cell in recipe.cells} == {"local"}
    assert recipe.confound.baseline_cell == "none-none"


def test_defaults(registry: Registry) -> None:
    """What a recipe leaves out has the documented value."""
    recipe = load(registry)
    assert recipe.probe is not None
    assert recipe.probe.env_passthrough_mode == "inherit"
    settings = recipe.probe.settings
    assert (settings["hang_window_sec"], settings["hang_grace_period_at_start"]) == (30, 60)
    assert settings["timeout_per_trial"] is None
    assert set(settings["retain"].values()) == {"full"}


def test_two_pairs_with_one_name(registry: Registry) -> None:
    """Two cells may not share a folder; the place is the name that makes the second."""
    more = with_mitigations(registry, **{"a-b": {}, "a": {}, "b-c": {}, "c": {}})
    with pytest.raises(RecipeSchemaError, match=r"diagnostic_axis\[1\]: gives a second cell the name 'a-b-c'"):
        load(more, mitigation_axis=["none", "a-b", "a"], diagnostic_axis=["c", "b-c"])


def test_variables_that_a_file_cannot_hold(registry: Registry) -> None:
    """A file has one line for each variable; the other way to hand them on has no such limit."""
    more = with_mitigations(registry, spec={"NANLOG_SPEC": "{\n}"})
    assert load(more, mitigation_axis=["none", "spec"])
    with pytest.raises(
        RecipeSchemaError, match=r"mitigation_axis\[1\]: 'spec' sets NANLOG_SPEC to text of several lines"
    ):
        load(more, mitigation_axis=["none", "spec"], env_passthrough_mode="file")
    options = {"layer_numerics": {"NANLOG_SPEC": "{\n}"}}
    with pytest.raises(RecipeSchemaError, match=r"collect: 'layer_numerics' sets NANLOG_SPEC to text of several lines"):
        load(registry, collect=options, env_passthrough_mode="file")


def test_a_mitigation_may_not_say_which_rank_a_process_is(registry: Registry) -> None:
    """The command's own launcher does."""
    more = with_mitigations(registry, rank={"RANK": "0"})
    with pytest.raises(RecipeSchemaError, match=r"mitigation_axis\[1\]: RANK \(set by 'rank'\)"):
        load(more, mitigation_axis=["none", "rank"])


def test_a_key_of_the_flow_is_refused_in_a_matrix_recipe(registry: Registry) -> None:
    """Whatever key it is, the message says where it belongs."""
    text = "schema_version: 1\nworkload: a\ntrials: 1\nsteps: 1\nretain: {}\ncells: []\n"
    with pytest.raises(RecipeSchemaError, match=r"retain: is a key of the opaque-command flow \(mode: probe\)"):
        parse_recipe(text, registry)


@pytest.mark.parametrize("path", sorted(resource_path("recipes", "probe").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_resolved_recipe_is_the_same_recipe(path: Any, registry: Registry) -> None:
    """What a run keeps loads to an equal recipe, with nothing left to a default."""
    recipe = load_recipe(path, registry)
    again = parse_recipe(dump_recipe(resolved_recipe(recipe)), registry, source=recipe.source)
    assert again == recipe


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_what_was_asked_for(name: str, registry: Registry) -> None:
    """Three trials in four cells, half an hour each, and a redaction block for the way back."""
    recipe = load_recipe(resource_path("recipes", "probe", f"probe-template-{name}.yaml"), registry)
    assert recipe.probe is not None
    assert (recipe.ticket, recipe.trials) == ("TICKET-1234", 3)
    assert (recipe.probe.mitigation_axis, recipe.probe.diagnostic_axis) == (("none", "tf32_off"), ("none", "xnack"))
    assert recipe.probe.settings["timeout_per_trial"] == 1800
    assert recipe.probe.redaction["scrub_env_keys"]


@pytest.mark.parametrize(
    ("name", "ticket"), [("example-probe-smoke", "PROBE-188-SMOKE"), ("probe-flag-sweep", "PROBE-FLAG-SWEEP")]
)
def test_the_others_carry_their_tickets(name: str, ticket: str, registry: Registry) -> None:
    """The tickets that people will look for."""
    assert load_recipe(resource_path("recipes", "probe", f"{name}.yaml"), registry).ticket == ticket


def test_resources_for_a_cluster(registry: Registry) -> None:
    """The same block as in a matrix recipe, kept in the snapshot, and checked alike."""
    recipe = load(registry, resources={"partition": "gpu", "gpus": 8})
    assert recipe.resources == {"partition": "gpu", "gpus": 8}
    assert parse_recipe(dump_recipe(resolved_recipe(recipe)), registry, source=recipe.source) == recipe
    with pytest.raises(RecipeSchemaError, match=r"resources\.extra: "):
        load(registry, resources={"extra": "--partition=gpu"})
    with pytest.raises(RecipeSchemaError, match=r"resources\.nodes: is for workloads whose ranks aorta starts"):
        load(registry, resources={"nodes": 2})


def test_what_both_schemas_describe_is_described_alike() -> None:
    """A count, a collector or a rule to stop is the same in both kinds of recipe."""
    matrix, probe = load_schema("recipe"), load_schema("probe")
    shared = matrix["$defs"].keys() & probe["$defs"].keys()
    assert shared >= {"count", "collect", "stopAfter", "variableName", "resources"}
    assert [name for name in shared if matrix["$defs"][name] != probe["$defs"][name]] == []
    assert matrix["properties"]["confound"] == probe["properties"]["confound"]
