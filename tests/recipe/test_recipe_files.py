"""Files that are no recipes at all, and recipes made to hurt the reader."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aorta.recipe import RecipeSchemaError, load_recipe, parse_recipe
from aorta.registry import Registry

_HEAD = "schema_version: 1\nworkload: training\ntrials: 2\nsteps: 3\n"
_CELLS = "cells:\n  - {name: base, mitigations: [none], environment: local}\n"
_LIMIT_SEC = 2.0


def _fault(path: Path, registry: Registry) -> str:
    with pytest.raises(RecipeSchemaError) as caught:
        load_recipe(path, registry)
    return str(caught.value)


def test_missing_file_is_named(tmp_path: Path, registry: Registry) -> None:
    """A path that leads nowhere is a fault of the file as a whole."""
    path = tmp_path / "absent.yaml"
    assert _fault(path, registry) == f"recipe: {path}: no such file"


def test_folder_is_refused(tmp_path: Path, registry: Registry) -> None:
    """A folder given as a recipe is said to be one."""
    assert _fault(tmp_path, registry) == f"recipe: {tmp_path}: is a folder, not a file"


def test_fifo_is_refused_without_waiting(tmp_path: Path, registry: Registry) -> None:
    """A pipe that nobody writes to must not block the reader."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "is not a regular file" in _fault(path, registry)


def test_enormous_file_is_refused_unread(tmp_path: Path, registry: Registry) -> None:
    """A file of many gigabytes (sparse here) is refused at once."""
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 34)
    assert "is larger than 4096 KiB" in _fault(path, registry)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_unreadable_file_is_refused(tmp_path: Path, registry: Registry) -> None:
    """A file without read permission is said to be so."""
    path = tmp_path / "secret.yaml"
    path.touch(mode=0)
    assert "permission denied" in _fault(path, registry)


def test_file_name_with_control_characters_stays_on_one_line(tmp_path: Path, registry: Registry) -> None:
    """A file's name cannot forge lines of output."""
    assert "\n" not in _fault(tmp_path / "a\nb.yaml", registry)


_HOSTILE = {
    "deep flow lists": (f"workload_config: {{d: {'[' * 50_000}{']' * 50_000}}}\n", "workload_config"),
    "deep block lists": (f"workload_config:\n  {'- ' * 50_000}x\n", "workload_config"),
    "alias bomb": (
        "workload_config:\n  l0: &l0 [x]\n"
        + "".join(f"  l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n" for i in range(1, 12)),
        "workload_config",
    ),
    "long string aliased": (
        f"workload_config: {{s: &s {'x' * 500_000}, l: [{', '.join(['*s'] * 1000)}]}}\n",
        "workload_config",
    ),
    "alias to itself": ("extra_env: &e {A: *e}\n", "extra_env"),
    "merge of itself": ("workload_config: &w {<<: *w}\n", "workload_config"),
    "long chain of merges": (
        "workload_config:\n  m0: &m0 {a: 1}\n"
        + "".join(f"  m{i}: &m{i} {{<<: *m{i - 1}, k{i}: 1}}\n" for i in range(1, 5000)),
        "workload_config",
    ),
    "int of a million digits": (f"ticket: {'9' * 1_000_000}\n", "ticket"),
    "hexadecimal int that has no decimal form": (f"ticket: 0x{'f' * 5000}\n", "ticket"),
    "sexagesimal int of many places": (f"ticket: 1{':59' * 300_000}\n", "ticket"),
    "too many values": (f"workload_config: {{l: [{'1,' * 200_000}]}}\n", ""),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_recipe_is_refused_quickly_at_its_place(name: str, registry: Registry) -> None:
    """Nothing recurses, waits or fills the memory; the place is that of the hostile value."""
    text, place = _HOSTILE[name]
    started = time.process_time()
    with pytest.raises(RecipeSchemaError) as caught:
        parse_recipe(_HEAD + text + _CELLS, registry)
    assert time.process_time() - started < _LIMIT_SEC
    assert {fault.path for fault in caught.value.errors} == {place}


def test_long_string_is_only_a_string(registry: Registry) -> None:
    """A megabyte of text is large, but valid."""
    recipe = parse_recipe(f'{_HEAD}{_CELLS}ticket: "{"x" * 1_000_000}"\n', registry)
    assert recipe.ticket is not None
    assert len(recipe.ticket) == 1_000_000


def test_number_of_faults_shown_is_bounded(registry: Registry) -> None:
    """Tens of thousands of faults are cut, and the last line says so."""
    with pytest.raises(RecipeSchemaError) as caught:
        parse_recipe(_HEAD + "cells:\n" + "  - null\n" * 20_000, registry)
    assert len(caught.value.errors) == 201
    assert "only these are shown" in caught.value.errors[-1].message


@pytest.mark.parametrize("character", ["\0", "\x07", "\x1b"])
def test_control_character_in_the_text_is_named(character: str, registry: Registry) -> None:
    """YAML forbids control characters; the message says which, escaped."""
    with pytest.raises(RecipeSchemaError, match=f"the character U\\+{ord(character):04X} may not stand") as caught:
        parse_recipe(f"{_HEAD}ticket: a{character}b\n", registry)
    assert caught.value.errors[0].line == 5


def test_lone_surrogate_in_a_str_is_refused(registry: Registry) -> None:
    """Text that cannot be encoded is refused, not a crash of the encoder."""
    with pytest.raises(RecipeSchemaError, match="lone surrogate"):
        parse_recipe("ticket: \ud800\n", registry)


def test_loading_imports_no_heavy_library(tmp_path: Path) -> None:
    """Loading a recipe must not pay for torch, pandas, scipy or Snakemake."""
    path = tmp_path / "recipe.yaml"
    path.write_text(_HEAD + _CELLS + "trial_isolation: process\n")
    code = (
        "import sys; from aorta.recipe import load_recipe; load_recipe(sys.argv[1]);"
        "print(sorted({'torch', 'pandas', 'scipy', 'numpy', 'snakemake', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_scanner_reads_the_same(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> None:
    """A PyYAML without libyaml gives the same recipe, and refuses what its scanner lets through."""
    import yaml

    fast = parse_recipe(_HEAD + _CELLS, registry)
    monkeypatch.setattr("aorta.recipe.yaml_nodes._Loader", yaml.SafeLoader)
    assert parse_recipe(_HEAD + _CELLS, registry) == fast
    for escape in (r"\uD800", r"\U99999999"):
        with pytest.raises(RecipeSchemaError) as caught:
            parse_recipe(f'{_HEAD}{_CELLS}ticket: "{escape}"\n', registry)
        assert caught.value.errors[0].path == ""
