"""Recipes of our own, each of which says in its first lines what the loader must say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aorta.recipe import RecipeSchemaError, load_recipe
from aorta.registry import Registry

_FOLDER = Path(__file__).parent / "cases"
_CASES = sorted(_FOLDER.glob("*.yaml"))


def _expected(path: Path) -> list[str]:
    lines = [line.removeprefix("# expect: ") for line in path.read_text("utf-8").splitlines() if "# expect: " in line]
    assert lines, f"{path.name} says nothing of what to expect"
    return [] if lines == ["valid"] else lines


@pytest.mark.parametrize("path", _CASES, ids=lambda path: path.stem)
def test_case_gives_exactly_the_expected_faults_in_order(
    path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults are those that the file lists: none missing, none more, in this order."""
    monkeypatch.chdir(_FOLDER.parent)
    found: list[str] = []
    try:
        load_recipe(os.path.join("cases", path.name), registry)
    except RecipeSchemaError as error:
        found = [str(fault) for fault in error.errors]
    expected = _expected(path)
    # Compared as whole lists where the beginnings match, so that a failure shows both.
    shown = [said[: len(wanted)] for said, wanted in zip(found, expected, strict=False)] + found[len(expected) :]
    assert shown == expected


def test_cases_exist() -> None:
    """The folder is found, so the test above is not empty."""
    assert len(_CASES) > 20
