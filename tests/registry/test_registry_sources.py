"""Plugins and sidecars: what they add, what they may not, and what a broken one does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from aorta.registry import RegistryError, UnknownNameError, load_registry
from tests.registry.conftest import InstallPlugin


def _sidecar(folder: Path, content: Any, name: str = "site.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _refusal(path: Path) -> list[str]:
    with pytest.raises(RegistryError) as caught:
        load_registry([path])
    return str(caught.value).splitlines()


def test_sidecar_adds_mitigations_and_environments(tmp_path: Path) -> None:
    """Both kinds are registered, with the file's name as their source."""
    path = _sidecar(
        tmp_path,
        {
            "version": 1,
            "mitigations": {"acme_fence": {"ACME_FENCE": "1"}},
            "environments": {"acme-box": {"docker": "acme/box:2", "env": {"A": "1"}, "source_package": "elsewhere"}},
        },
    )
    registry = load_registry([path])
    assert registry.mitigation("acme_fence").env == {"ACME_FENCE": "1"}
    environment = registry.environment("acme-box")
    assert (environment.docker, environment.env, environment.isolated) == ("acme/box:2", {"A": "1"}, True)
    assert environment.source_package == registry.mitigation("acme_fence").source_package == "site.json"


def test_sidecar_may_hold_one_part_only(tmp_path: Path) -> None:
    """Either part may be missing."""
    path = _sidecar(tmp_path, {"version": 1, "environments": {"e": {}}})
    assert load_registry([path]).environment("e").descriptor()["docker"] is None


def test_sidecar_that_repeats_a_built_in_names_both_sources(tmp_path: Path) -> None:
    """A built-in cannot be replaced unnoticed."""
    path = _sidecar(tmp_path, {"version": 1, "mitigations": {"xnack": {"HSA_XNACK": "0"}}})
    assert _refusal(path) == [
        f"the mitigation 'xnack' is registered twice: by the built-ins of aorta and by the sidecar {path}; "
        "rename one of them"
    ]


def test_two_sidecars_with_one_name_are_both_named(tmp_path: Path) -> None:
    """Sidecars of one base name are told apart by their paths."""
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(_sidecar(tmp_path / folder, {"version": 1, "environments": {"box": {}}}))
    with pytest.raises(RegistryError) as caught:
        load_registry(paths)
    assert all(str(path) in str(caught.value) for path in paths)


def test_one_name_in_both_kinds_is_no_collision(tmp_path: Path) -> None:
    """Mitigations and environments are looked up apart."""
    path = _sidecar(tmp_path, {"version": 1, "mitigations": {"local": {}}})
    assert load_registry([path]).mitigation("local").env == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, ["version: is required, and missing"]),
        ({"version": 2}, ["version: must be the whole number 1, the only version of the sidecar format, not int 2"]),
        (
            {"version": True},
            ["version: must be the whole number 1, the only version of the sidecar format, not bool true"],
        ),
        ([], ["must be an object with 'version', and 'mitigations' or 'environments', not an empty list"]),
        (
            {"version": 1, "mitigation": {}},
            ["mitigation: unknown key 'mitigation'; did you mean 'mitigations'?"],
        ),
        (
            {"version": 1, "mitigations": {"m": {"A": 1, "B=": "x", "C": "a\0"}}},
            [
                "mitigations.m: the name 'B=' is not a portable variable name: "
                "use ASCII letters, digits and underscores, no digit first",
                "mitigations.m.A: must be a string, not int 1",
                "mitigations.m.C: must not hold a NUL character, not the string 'a\\x00'",
            ],
        ),
        (
            {"version": 1, "environments": {"e": {"image": "x", "docker": ""}}},
            [
                "environments.e.docker: must be a string that is not empty, or null, not the string ''",
                "environments.e: unknown key 'image'; known keys: docker, venv, buck_target, emulator, "
                "mirage_profile, env, source_package",
            ],
        ),
        (
            {"version": 1, "environments": {"../up": {}}},
            [
                "environments: the name '../up' must be made of ASCII letters, digits, '_', '-' and '.', "
                "not begin with '-' or '.', and not with '_inline_'"
            ],
        ),
        ('{"version": 1, "version": 1}', ["version: is written twice; keep one of them"]),
        (
            '{"version": 1, "mitigations": {"m": {"A": "1", "A": "2"}}}',
            ["mitigations.m.A: is written twice; keep one of them"],
        ),
        ('{"version": 1', ["is not JSON: Expecting ',' delimiter (line 1, column 14)"]),
        ('{"version": NaN}', ["is not JSON: NaN has no JSON form"]),
        ("[" * 100_000, ["is not a sidecar: nested too deeply"]),
        ('{"version": ' + "9" * 5000 + "}", ["is not a sidecar: it holds a number of 5000 digits"]),
    ],
)
def test_invalid_sidecar_is_refused_with_file_and_place(tmp_path: Path, content: Any, said: list[str]) -> None:
    """Every fault has a line of its own, with the file and the place in it."""
    path = _sidecar(tmp_path, content)
    lines = _refusal(path)
    assert sorted(lines) == sorted(f"sidecar {path}: {text}" for text in said)


def test_sidecar_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are said to be so."""
    path = tmp_path / "latin.json"
    path.write_bytes(b'{"version": 1, "mitigations": {"\xe9": {}}}')
    assert _refusal(path) == [f"sidecar {path}: is not UTF-8 (offset 32); save it as UTF-8"]


def test_sidecar_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """Missing files, folders and pipes are named, and nothing waits."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, said in ((tmp_path / "no", "no such file"), (tmp_path, "is a folder"), (pipe, "is not a regular file")):
        assert said in _refusal(path)[0]


def test_faults_of_all_sidecars_come_at_once(tmp_path: Path) -> None:
    """One broken sidecar does not hide the next."""
    bad = _sidecar(tmp_path, "{", "bad.json")
    with pytest.raises(RegistryError) as caught:
        load_registry([bad, tmp_path / "absent.json"])
    assert len(str(caught.value).splitlines()) == 2


def test_plugin_adds_its_entries(install_plugin: InstallPlugin) -> None:
    """An installed distribution's entries are there, under its name."""
    install_plugin(
        "acme-tools",
        "FIX = {'ACME': '1'}\nBOX = {'docker': 'acme/box'}\n",
        mitigations={"acme_fix": "FIX"},
        environments={"acme-box": "BOX"},
    )
    registry = load_registry()
    assert registry.mitigation("acme_fix").env == {"ACME": "1"}
    assert registry.environment("acme-box").docker == "acme/box"
    assert registry.environment("acme-box").source_package == "acme-tools"


def test_plugin_that_repeats_a_built_in_names_both_sources(install_plugin: InstallPlugin) -> None:
    """The collision names the distribution, not only the name."""
    install_plugin("acme-tools", "X = {}\n", mitigations={"xnack": "X"})
    with pytest.raises(RegistryError, match=r"'xnack' is registered twice: by the built-ins of aorta and by .*acme"):
        load_registry()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_module_of_acme\n", "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("OTHER = {}\n", "AttributeError"),
        ("FIX = 7\n", "TypeError"),
        ("FIX = {'A': 1}\n", "must be a string, not int 1"),
        ("FIX = {'A-B': '1'}\n", "is not a portable variable name"),
        ("FIX = {'A': float('nan')}\n", "ValueError"),
    ],
)
def test_broken_plugin_takes_only_its_own_name_away(install_plugin: InstallPlugin, code: str, said: str) -> None:
    """The others stay usable, and using the broken name says why and whose it is."""
    install_plugin("acme-tools", code, mitigations={"acme_fix": "FIX"})
    registry = load_registry()
    assert registry.mitigation("xnack").env == {"HSA_XNACK": "1"}
    with pytest.raises(UnknownNameError, match=f"'acme_fix' cannot be used: the plugin acme-tools.*{said}"):
        registry.mitigation("acme_fix")
