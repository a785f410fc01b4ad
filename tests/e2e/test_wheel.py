"""A built wheel carries everything, and works in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY

pytestmark = pytest.mark.e2e


def run(command: list[str], cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout; built without the network, with the build backend that is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)], folder)
    (built,) = folder.glob("aorta-*.whl")
    return built


def test_the_wheel_carries_the_workflow(wheel: Path) -> None:
    """Snakefile, rules, profile, schemas, settings, every shipped recipe and all of the package are inside."""
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = run(["git", "ls-files", "Snakefile", "workflow", "profiles", "schemas", "config", "recipes"], REPOSITORY)
    expected = {f"aorta/_data/{name}" for name in listed.splitlines() if (REPOSITORY / name).is_file()}
    # What lies in the package beside its modules, such as templates and HIP sources.
    package = run(["git", "ls-files", "aorta"], REPOSITORY).splitlines()
    expected |= {name for name in package if (REPOSITORY / name).is_file()}
    assert len(expected) > 15
    assert expected - names == set()
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_wheel_runs_a_sweep_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """Installed beside its dependencies, it runs a shipped recipe to its matrix from nowhere near the checkout."""
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    empty = tmp_path / "empty"
    empty.mkdir()
    program = "from aorta.cli import main; import aorta; print(aorta.__file__, flush=True); main(prog_name='aorta')"
    out = run(
        [sys.executable, "-c", program, "sweep", "run", "--recipe", "recipes/smoke/gpu-smoke.yaml"],
        empty,
        PYTHONPATH=str(installed),
        AORTA_LOCK_DIR=str(tmp_path / "locks"),
    )
    assert out.splitlines()[0] == str(installed / "aorta" / "__init__.py")
    assert "all 2 trials passed" in out
    assert len(list(empty.glob("triage_results/*/*/*/matrix.md"))) == 1
