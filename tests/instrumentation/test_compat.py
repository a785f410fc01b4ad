"""The probe runs in a bare container: standard library, old Python, nothing installed."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aorta

SOURCE = Path(aorta.__file__).parent
PROBE_FILES = [
    SOURCE / "__init__.py",
    SOURCE / "_jsonio.py",
    *(path for path in sorted((SOURCE / "instrumentation").rglob("*.py")) if not path.name.startswith("layer_")),
]


def old_interpreters() -> list[str]:
    """Returns Python 3.8 to 3.10 interpreters of this machine that start."""
    found = []
    for minor in (8, 9, 10):
        candidates = [shutil.which(f"python3.{minor}")]
        candidates += map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")))
        for candidate in filter(None, candidates):
            answer = subprocess.run([candidate, "-c", "import ctypes"], capture_output=True, cwd="/", check=False)
            if answer.returncode == 0:
                found.append(candidate)
                break
    return found


@pytest.mark.parametrize("path", PROBE_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_of_the_probe_is_python_3_8(path: Path) -> None:
    """The parser of today, held to the grammar of 3.8, takes each file."""
    ast.parse(path.read_text("utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize(
    "interpreter", old_interpreters() or [pytest.param("", marks=pytest.mark.skip(reason="no Python 3.8 to 3.10 here"))]
)
def test_an_old_python_writes_a_valid_snapshot(
    interpreter: str, tmp_path: Path, schema_errors: Callable[[Any], list[str]]
) -> None:
    """The command of the wrapper contract works without site packages under an old interpreter."""
    out = tmp_path / "env.json"
    command = [interpreter, "-S", "-B", "-m", "aorta.instrumentation._probe_main", str(out)]
    environ = {"PYTHONPATH": str(SOURCE.parent), "PATH": os.defpath}
    subprocess.run(command, env=environ, cwd=tmp_path, check=True, timeout=60)
    snapshot = json.loads(out.read_text("utf-8"))
    assert schema_errors(snapshot) == []
    assert snapshot["partial_reasons"] == []


def test_the_probe_loads_only_the_standard_library() -> None:
    """Neither a package nor another room of aorta is imported."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import aorta.instrumentation._probe_main\n"
        "print('\\n'.join(sorted(sys.modules)))"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", script, str(SOURCE.parent)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    foreign = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names)
    rooms = {name.split(".")[1] for name in modules if name.startswith("aorta.")}
    assert foreign - {"__main__"} == {"aorta"}
    assert rooms == {"_jsonio", "instrumentation"}


def test_asking_for_a_valid_snapshot_imports_nothing_else() -> None:
    """The trial's supervisor pays for the check alone."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules)\n"
        "from aorta.instrumentation import is_valid_snapshot\n"
        "assert not is_valid_snapshot({}); print('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", script, str(SOURCE.parent)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert modules == ["__future__", "aorta", "aorta.instrumentation", "aorta.instrumentation._shape"]


def test_a_snapshot_without_torch_takes_seconds_at_most() -> None:
    """A quick snapshot stays quick (0.1 s where this was written; the limit allows for a busy machine)."""
    from aorta.instrumentation import collect_env

    assert collect_env(import_torch=False)["duration_sec"] < 3
