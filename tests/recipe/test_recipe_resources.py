"""The ``resources:`` block of a recipe and of a cell."""

from __future__ import annotations

import pytest

from aorta.recipe import Recipe, RecipeSchemaError, parse_recipe, resolved_recipe
from aorta.recipe.resources import plain_resources

RECIPE = """\
schema_version: 1
workload: race
trials: 1
steps: 1
resources: {recipe}
cells:
  - {{name: a, mitigations: [none], environment: local, resources: {cell}}}
"""


def parse(recipe: str = "{}", cell: str = "{}") -> Recipe:
    return parse_recipe(RECIPE.format(recipe=recipe, cell=cell))


def test_a_cells_resources_come_before_the_recipes() -> None:
    """Key by key, and a key without a value leaves the recipe's."""
    recipe = parse("{gpus: 8, partition: gpu, runtime: 2h}", "{partition: debug, runtime: ~, mem: 1.5G}")
    assert plain_resources(recipe.resources, recipe.cells[0].resources) == {
        "gpus": 8,
        "partition": "debug",
        "runtime": 120,
        "mem": 1500,
    }


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("{runtime: 5}", 5),
        ("{runtime: 90m}", 90),
        ("{runtime: 1d}", 1440),
        ("{mem: 300}", 300),
        ("{mem: 2 TB}", 2_000_000),
    ],
)
def test_times_and_sizes_have_units(text: str, plain: int) -> None:
    """Minutes and megabytes where there is none."""
    assert list(plain_resources(parse(text).resources).values()) == [plain]


def test_resources_are_part_of_the_resolved_recipe() -> None:
    """Which loads to an equal recipe."""
    recipe = parse("{gpus: 'a100:2', extra: --exclusive --nice=5}", "{nodes: 2, constraint: 'ib&nvme'}")
    resolved = resolved_recipe(recipe)
    assert resolved["resources"] == {"gpus": "a100:2", "extra": "--exclusive --nice=5"}
    assert resolved["cells"][0]["resources"] == {"nodes": 2, "constraint": "ib&nvme"}


@pytest.mark.parametrize(
    ("block", "where", "what"),
    [
        ("{gpus: -1}", "resources.gpus", "a whole number, or a string of the form MODEL:NUMBER"),
        ("{gpus: a100}", "resources.gpus", "MODEL:NUMBER"),
        ("{nodes: 0}", "resources.nodes", "1 or more"),
        ("{runtime: soon}", "resources.runtime", "90m, 2h or 1d"),
        ("{mem: lots}", "resources.mem", "500M, 1.5G or 2TB"),
        ("{partition: 'a b'}", "resources.partition", "without blanks"),
        ("{extra: exclusive}", "resources.extra", "options of sbatch"),
        ("{extra: --mem=4G}", "resources.extra", "must not hold '--mem': use resources.mem"),
        ("{extra: -J name}", "resources.extra", "must not hold '-J': the engine or the profile sets it"),
        ("{extra: -t5}", "resources.extra", "must not hold '-t5': use resources.runtime"),
        ("{extra: -N2}", "resources.extra", "must not hold '-N2': use resources.nodes"),
        ("{extra: --tim=5}", "resources.extra", "must not hold '--tim': use resources.runtime"),
        ("{extra: --test-only}", "resources.extra", "must not hold '--test-only': the engine or the profile sets it"),
        ("{extra: '--nice=5 : --exclusive'}", "resources.extra", "not a heterogeneous one"),
        ("{cpus: 4}", "resources", "'gpus', 'nodes', 'partition'"),
    ],
)
def test_a_wrong_resource_is_named(block: str, where: str, what: str) -> None:
    """In the recipe and in a cell, with what would be right."""
    for place, given in (("", {"recipe": block}), ("cells[0].", {"cell": block})):
        with pytest.raises(RecipeSchemaError) as raised:
            parse(**given)
        (error,) = raised.value.errors
        assert error.path == f"{place}{where}"
        assert what in error.message or "cpus" in error.message
