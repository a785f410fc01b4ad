"""The ``resources:`` block of a recipe and of a cell."""

from __future__ import annotations

import re

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
        ("{mem: 0.5G}", 500),
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
        (
            "{gpus: -1}",
            "resources.gpus",
            "a whole number from 0 to 9999, or a string of the form MODEL:NUMBER such as mi300:8",
        ),
        ("{gpus: a100}", "resources.gpus", "MODEL:NUMBER"),
        ("{nodes: 0}", "resources.nodes", "a whole number from 1 to 65536"),
        ("{runtime: soon}", "resources.runtime", "90m, 2h or 1d"),
        ("{mem: lots}", "resources.mem", "500M, 1.5G or 2TB"),
        ("{partition: 'a b'}", "resources.partition", "without blanks"),
        ("{partition: ''}", "resources.partition", "one character or more"),
        ('{account: "a\\0"}', "resources.account", "without blanks and quotes"),
        ("{extra: exclusive}", "resources.extra", "options of sbatch"),
        ("{extra: --exclusive; ls}", "resources.extra", "without quotes and the shell's"),
        ('{extra: "--nice=5\\0"}', "resources.extra", "options of sbatch"),
        ("{extra: --mem=4G}", "resources.extra", "must not hold '--mem': use resources.mem"),
        ("{extra: -J name}", "resources.extra", "must not hold '-J': the engine or the profile sets it"),
        ("{extra: -t5}", "resources.extra", "must not hold '-t5': use resources.runtime"),
        ("{extra: -N2}", "resources.extra", "must not hold '-N2': use resources.nodes"),
        ("{extra: --tim=5}", "resources.extra", "must not hold '--tim': use resources.runtime"),
        ("{extra: --test-only}", "resources.extra", "must not hold '--test-only': the engine or the profile sets it"),
        ("{extra: --help}", "resources.extra", "must not hold '--help': sbatch would print something and submit"),
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


REQUIREMENTS = {
    "gpus": "must be a whole number from 0 to 9999, or a string of the form MODEL:NUMBER such as mi300:8, not ",
    "nodes": "must be a whole number from 1 to 65536, not ",
    "runtime": "must be minutes as a whole number from 1 to 999999, or a string such as 90m, 2h or 1d, not ",
    "mem": "must be megabytes as a whole number from 1 to 999999999, or a string such as 500M, 1.5G or 2TB, not ",
    "partition": "must be a string of one character or more, without blanks and quotes, not ",
    "constraint": "must be a string of one character or more, without blanks and quotes, not ",
    "account": "must be a string of one character or more, without blanks and quotes, not ",
    "extra": "must be options of sbatch, such as --exclusive --reservation=sdc, without quotes and the shell's ",
}
WRITTEN = [
    *("-1", "0", "2", "08", "0x10", "1_000", "1000000000000", f"1{'0' * 20}", f"1{'0' * 400}", f"-1{'0' * 400}"),
    *(
        "1.5",
        "1.0",
        "0.5",
        "-0.0",
        "1e3",
        "1.0e+3",
        "1.5e+3",
        "1e-3",
        ".nan",
        ".inf",
        "-.inf",
        "nan",
        "inf",
        "1e999999",
    ),
    *("1:30", "1:30:00", "1:30:00.5", "1-00:00", "190:20:30.15", "2031-02-03", "2031-02-03 10:00:00"),
    *(
        "true",
        "no",
        "null",
        "~",
        "soon",
        "64 G",
        "64GiB",
        "64g",
        "0G",
        "1.5h",
        "90min",
        "2H",
        "9999999h",
        "mi300",
        "8:8",
    ),
    *(
        "mi300:0",
        "mi300:10000",
        "a b",
        "=",
        "<<",
        "",
        " ",
        "\u0663",
        "[]",
        "[1]",
        "{}",
        "{a: 1}",
        "--exclusive",
        "--mem=5",
    ),
]


def message_about(key: str, written: str) -> str | None:
    """What is said of a key's value, or None where it is taken."""
    try:
        parse(f"{{{key}: {written}}}")
    except RecipeSchemaError as raised:
        (error,) = raised.errors
        assert error.path == f"resources.{key}"
        return error.message
    return None


@pytest.mark.parametrize("key", REQUIREMENTS)
def test_advice_about_a_wrong_value_helps(key: str) -> None:
    """Whatever is written, quoted or not: what would be right is said, and the change that is advised is taken."""
    advised = set()
    for text in WRITTEN:
        for written in (text, f'"{text}"', f"!!str {text}"):
            if written.startswith("!!str") and not re.fullmatch("[^\\s<={}\\[\\]]+", text):
                continue
            message = message_about(key, written)
            if message is None or message.startswith("must not hold"):
                continue
            assert message.startswith(REQUIREMENTS[key]), written
            found = re.search(r"; (quote it: |write |remove the quotes)(.*)$", message)
            if found is None:
                continue
            advised.add(found[1])
            assert message_about(key, found[2] or text) is None, message
    wants_number = key in ("gpus", "nodes", "runtime", "mem")
    assert advised == ({"write ", "remove the quotes"} if wants_number else {"quote it: "} if key != "extra" else set())


@pytest.mark.parametrize("key", ["gpus", "runtime", "mem"])
def test_examples_in_messages_are_right(key: str) -> None:
    """Each value that a message gives as an example is taken."""
    examples = re.split(", | or ", REQUIREMENTS[key].rpartition("such as ")[2].removesuffix(", not "))
    assert [message_about(key, example) for example in examples] == [None] * len(examples)


@pytest.mark.parametrize(("value", "read"), [("1:30:00", "int 5400"), ("190:20:30.15", "float 685230.15")])
def test_a_time_of_day_is_no_number(value: str, read: str) -> None:
    """YAML 1.1 would make 5400 minutes of 1:30:00; in the recipe and in a cell."""
    message = message_about("runtime", value)
    assert message == f"{REQUIREMENTS['runtime']}{read} (YAML reads {value} so)"
    with pytest.raises(RecipeSchemaError, match=r"cells\[0\]\.resources\.runtime"):
        parse(cell=f"{{runtime: {value}}}")


def test_options_in_a_folded_block_are_one_line() -> None:
    """A line break would end the command that submits."""
    recipe = parse('{extra: "--exclusive\\n --nice=5\\n"}')
    assert plain_resources(recipe.resources) == {"extra": "--exclusive --nice=5"}
