"""Settings that are one string or a list of strings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aorta.dag.settings import SettingsError, read_settings


@pytest.mark.parametrize(
    ("value", "paths"),
    [(None, ()), ("a.json", ("a.json",)), (["a.json", "b,c.json"], ("a.json", "b,c.json")), ([], ())],
)
def test_sidecars_are_one_path_or_several(value: Any, paths: tuple[str, ...]) -> None:
    """A comma is part of a path."""
    settings = read_settings({"recipe": "r.yaml", "mitigations_file": value})
    assert settings.mitigations_files == tuple(map(Path, paths))


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, None), ("", ()), ([], ()), ("a", ("a",)), ("a, b", ("a", "b")), (["a", "b"], ("a", "b"))],
)
def test_collectors_are_names_with_commas_or_a_list(value: Any, names: tuple[str, ...] | None) -> None:
    """Nothing at all is no override; an empty string or list overrides with none."""
    assert read_settings({"recipe": "r.yaml", "collect": value}).collect == names


@pytest.mark.parametrize("key", ["mitigations_file", "collect"])
@pytest.mark.parametrize("value", [3, True, {"a": 1}, [1], [""]])
def test_other_values_are_refused(key: str, value: Any) -> None:
    """The message says the key and what it may be."""
    with pytest.raises(SettingsError, match=f"{key}: must be a non-empty string or a list of strings or null, not "):
        read_settings({"recipe": "r.yaml", key: value})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("bash run.sh --fast 'a b'", ("bash", "run.sh", "--fast", "a b")),
        (["bash", "-c", "a; b", ""], ("bash", "-c", "a; b", "")),
        (None, ()),
    ],
)
def test_a_command(given: object, words: tuple[str, ...]) -> None:
    """One string is split as a shell would; a list is taken word for word."""
    assert read_settings({"recipe": "r", "command": given}).command == words


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('bash -c "echo', 'give a list: command=\'["bash", "-c", "a; b"]\''),
        ("''", "names no program"),
        ([], "names no program"),
        (["a\0b"], "NUL"),
        (["\udcff"], "not UTF-8"),
        (["a", 1], "must be a non-empty string or a list of strings"),
        (True, "must be a non-empty string or a list of strings"),
    ],
)
def test_a_command_that_cannot_be(given: object, message: str) -> None:
    """Each is refused with its reason."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        read_settings({"recipe": "r", "command": given})
