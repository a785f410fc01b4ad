"""Copies of sidecars, and the command that runs a recipe again with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aorta.dag.sidecars import INLINE_FILE, copy_names, keep_inline_environments, keep_sidecars, rerun_command
from aorta.plan.compile import CompileSettings, compile_plan
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout
from aorta.registry import RegistryError, inline_environment, load_registry
from tests.plan.conftest import CREATED_AT, make_recipe, registered


def example_plan() -> Plan:
    """A plan with one cell, which names an image in place."""
    image = inline_environment("acme/box:2", {"B": "1"})
    recipe = make_recipe(cells=(replace(make_recipe().cells[0], environment=image),))
    return compile_plan(
        recipe, registered(), resolved={}, ambient={}, settings=CompileSettings(), created_at=CREATED_AT
    )


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([], []),
        (["a/x.json", "y.json"], ["x.json", "y.json"]),
        (["a/x.json", "b/x.json", "c/x.json"], ["x.json", "x-2.json", "x-3.json"]),
        (["a/x.json", "b/x.json", "x-2.json"], ["x.json", "x-3.json", "x-2.json"]),
        (["a/x", "b/x"], ["x", "x-2"]),
    ],
)
def test_no_two_copies_share_a_name(paths: list[str], names: list[str]) -> None:
    """A file keeps its name where it can."""
    assert copy_names(paths) == names


def test_copies_are_what_was_read(tmp_path: Path) -> None:
    """Byte for byte; a copy that is current is not written again."""
    source = tmp_path / "x.json"
    source.write_bytes(b'{"version": 1, "mitigations": {"m": {"A": "\xc3\xa4"}}}\r\n')
    layout = RunLayout(tmp_path, "w")
    keep_sidecars(layout, [source])
    copy = tmp_path / "sidecars" / "x.json"
    assert copy.read_bytes() == source.read_bytes()
    before = copy.stat().st_mtime_ns
    keep_sidecars(layout, [source])
    assert copy.stat().st_mtime_ns == before


def test_inline_environments_can_be_loaded_by_name(tmp_path: Path) -> None:
    """The file is a sidecar, and its names are those that the images have in any recipe."""
    keep_inline_environments(RunLayout(tmp_path, "w"), example_plan())
    expected = inline_environment("acme/box:2", {"B": "1"})
    environment = load_registry([tmp_path / INLINE_FILE]).environment(expected.name)
    assert (environment.docker, environment.env) == ("acme/box:2", {"B": "1"})


def test_without_an_image_in_place_there_is_no_such_file(tmp_path: Path) -> None:
    """The guide's listing: only when inline docker is used."""
    keep_inline_environments(RunLayout(tmp_path, "w"), replace(example_plan(), environments={}))
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_every_copy() -> None:
    """As the guide shows it; nothing without sidecars, and quoted where a shell needs it."""
    plan = example_plan()
    assert rerun_command(RunLayout("runs/1", "w"), plan) is None
    plan = replace(plan, sidecars=("a/x y.json", "b/z.json"))
    assert rerun_command(RunLayout("my runs/1", "w"), plan) == (
        "cd 'my runs/1' && aorta sweep run --recipe recipe.resolved.yaml \\\n"
        "  --mitigations-file 'sidecars/x y.json' \\\n"
        "  --mitigations-file sidecars/z.json"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("_inline_acb97e4a", {"docker": "acme/box:3"}),
        ("_inline_acb97e4a", {"docker": "acme/box:2", "venv": "/v"}),
        ("_inline_00000000", {}),
    ],
)
def test_an_automatic_name_belongs_to_its_content(tmp_path: Path, name: str, content: dict[str, str]) -> None:
    """A sidecar cannot give it to something else."""
    (tmp_path / "x.json").write_text(json.dumps({"version": 1, "environments": {name: content}}))
    with pytest.raises(RegistryError, match=f"environments.{name}: is an automatic name, and not that of"):
        load_registry([tmp_path / "x.json"])
