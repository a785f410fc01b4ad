"""The workflow's settings: what is refused, and how it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from aorta._resources import load_schema, resource_path
from aorta.dag.settings import Settings, SettingsError, read_settings


def test_defaults_of_the_shipped_file_are_those_of_the_code() -> None:
    """config/config.yaml, the schema and the dataclass tell one story."""
    shipped = yaml.safe_load(resource_path("config", "config.yaml").read_text("utf-8"))
    assert set(shipped) == set(load_schema("config")["properties"])
    assert read_settings({**shipped, "recipe": "r.yaml"}) == Settings(recipe="r.yaml")


def test_every_setting_is_explained_to_users() -> None:
    """config/README.md has a row for each."""
    text = resource_path("config", "README.md").read_text("utf-8")
    assert [key for key in load_schema("config")["properties"] if f"| `{key}` |" not in text] == []


@pytest.mark.parametrize("word", [True, "true", "True", "yes", "on", 1, "1"])
def test_yes_has_many_spellings(word: Any) -> None:
    """Snakemake's command line leaves `true` a string and 1 a number."""
    assert read_settings({"recipe": "r", "fresh": word}).fresh is True


@pytest.mark.parametrize("word", [False, "false", "no", "off", 0])
def test_no_has_many_spellings(word: Any) -> None:
    """The opposite as well."""
    assert read_settings({"recipe": "r", "strict": word}).strict is False


def test_every_fault_is_named() -> None:
    """An unknown key suggests the nearest; a wrong value says what would be right."""
    with pytest.raises(SettingsError) as caught:
        read_settings({"recip": "r", "devices": 0, "fresh": "maybe", "trial_timeout": "soon"})
    places = [problem.split(": ")[0] for problem in caught.value.problems]
    assert places == ["devices", "fresh", "recip", "trial_timeout"]
    assert "did you mean 'recipe'?" in str(caught.value)
    assert "fresh: must be true or false, not 'maybe'" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "told"), [(0, "0"), ("abc", "'abc'"), (1.5, "1.5"), (None, "empty"), (70_000, "70000")]
)
def test_a_wrong_number_is_told_as_on_the_command_line(value: Any, told: str) -> None:
    """--config nodes= and --nodes, nproc_per_node= and --nproc-per-node; no value at all is called empty."""
    with pytest.raises(SettingsError) as caught:
        read_settings({"recipe": "r", "nodes": value, "nproc_per_node": value})
    nodes, ranks = caught.value.problems
    assert nodes.startswith(f"nodes: must be a whole number from 1 to 65536, not {told}. ")
    assert ranks.startswith(f"nproc_per_node: must be a whole number from 1 to 1024, not {told}. ")


def test_a_wrong_share_is_told_with_the_other_faults() -> None:
    """Not only when they are put right."""
    with pytest.raises(SettingsError) as caught:
        read_settings({"shard": "4/3", "nodes": 0})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["nodes", "shard"]


def test_a_recipe_is_needed() -> None:
    """Without one there is nothing to run."""
    with pytest.raises(SettingsError, match="recipe: not given"):
        read_settings({"recipe": None})


def test_paths_and_numbers_are_read() -> None:
    """`auto` devices are None, so that the host decides."""
    settings = read_settings({"recipe": "r", "output": "o", "run_dir": "d", "devices": 3, "trial_timeout": 1.5})
    assert settings == Settings(recipe="r", output=Path("o"), run_dir=Path("d"), devices=3, trial_timeout=1.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_time_limit_is_a_number_of_seconds(value: float) -> None:
    """NaN compares with nothing, so no bound stops it."""
    with pytest.raises(SettingsError, match="trial_timeout: "):
        read_settings({"recipe": "r", "trial_timeout": value})


def test_a_whole_number_may_be_written_with_a_point() -> None:
    """JSON Schema counts 2.0 as an integer; a command line does not."""
    devices = read_settings({"recipe": "r", "devices": 2.0}).devices
    assert (devices, type(devices)) == (2, int)


def test_paths_are_text() -> None:
    """A name of undecodable bytes could not be written into any file of the run."""
    with pytest.raises(SettingsError, match=r"output: .* is not UTF-8 text"):
        read_settings({"recipe": "r", "output": "\udcff"})


def test_a_share_needs_a_run_directory_and_no_recipe() -> None:
    """The plan in the directory says what runs."""
    settings = read_settings({"recipe": None, "run_dir": "d", "shard": "2/3"})
    assert (settings.shard, settings.run_dir, settings.recipe) == ((2, 3), Path("d"), "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shard": "4/3", "run_dir": "d"}, "shard: must be NUMBER/COUNT"),
        ({"shard": "0/3", "run_dir": "d"}, "shard: must be NUMBER/COUNT"),
        ({"shard": "2", "run_dir": "d"}, "shard: must be NUMBER/COUNT"),
        ({"shard": "2/3/4", "run_dir": "d"}, "shard: must be NUMBER/COUNT"),
        ({"shard": 0.5, "run_dir": "d"}, "shard: must be NUMBER/COUNT"),
        ({"shard": 1, "run_dir": "d"}, "shard: must be NUMBER/COUNT"),
        ({"shard": "1/0", "run_dir": "d"}, "shard: must be NUMBER/COUNT"),
        ({"shard": "2/3"}, "shard: needs run_dir"),
        ({"shard": "2/3", "run_dir": "d", "fresh": True}, "fresh: contradicts shard"),
        ({"shard": "2/3", "run_dir": "d", "refresh": True}, "refresh: contradicts shard"),
    ],
)
def test_a_share_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    """In one line that says what would be right."""
    with pytest.raises(SettingsError) as caught:
        read_settings({"recipe": "r", **given})
    assert len(caught.value.problems) == 1 and caught.value.problems[0].startswith(said)
