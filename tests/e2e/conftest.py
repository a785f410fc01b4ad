"""Runs real recipes through Snakemake and the command line, each test in a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from aorta.instrumentation.snapshot import NO_TORCH_VARIABLE

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = Path(__file__).resolve().parent / "plugin"
AORTA = ("-c", "from aorta.cli import main; main(prog_name='aorta')")
"""What makes an interpreter the ``aorta`` command."""
SNAKEMAKE = ("-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"))
"""What makes an interpreter plain Snakemake on the project's Snakefile."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str


class Workspace:
    """An empty folder in which a user runs commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A lock folder of its own: tests that run side by side are other hosts to each other.
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(PLUGIN),
            # Most of a tiny sweep's time would go into two imports; tests/instrumentation has the whole snapshot.
            NO_TORCH_VARIABLE: "1",
            "AORTA_LOCK_DIR": str(folder.parent / f"{folder.name}-locks"),
        }

    def recipe(self, cells: list[dict[str, Any]], **fields: Any) -> str:
        """Writes a recipe and returns its name."""
        cells = [{"mitigations": ["none"], "environment": "local", **cell} for cell in cells]
        content = {"schema_version": 1, "workload": "chaos", "trials": 1, "steps": 2, **fields, "cells": cells}
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
        return "recipe.yaml"

    def run(self, *command: str, timeout: float = 240, **environment: str) -> Ended:
        """Runs a command of this interpreter's environment."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def snakemake(self, *arguments: str, **environment: str) -> Ended:
        """Runs plain Snakemake on the project's Snakefile."""
        return self.run(*SNAKEMAKE, *arguments, **environment)

    def aorta(self, *arguments: str, **environment: str) -> Ended:
        """Runs the ``aorta`` command."""
        return self.run(*AORTA, *arguments, **environment)

    @contextlib.contextmanager
    def started(
        self, *command: str, prepare: Callable[[], object] | None = None, **environment: str
    ) -> Iterator[subprocess.Popen[str]]:
        """Starts a command of this interpreter's environment in a session of its own, and kills it at the end.

        What it says is read by ``communicate``. ``prepare`` is called in the new process.
        """
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=prepare,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def runs(self) -> list[Path]:
        """All run directories below the default output folder."""
        return sorted(path.parent for path in self.folder.glob("triage_results/*/*/*/plan.json"))

    def only_run(self) -> Path:
        """The single run directory."""
        (run_dir,) = self.runs()
        return run_dir

    def matrix(self) -> dict[str, Any]:
        """The matrix of the single run."""
        return json.loads((self.only_run() / "matrix.json").read_text("utf-8"))

    def cells(self) -> dict[str, dict[str, Any]]:
        """The matrix's cells by name."""
        return {cell["name"]: cell for cell in self.matrix()["cells"]}

    def trials(self) -> list[dict[str, Any]]:
        """All trial records of the single run."""
        return [json.loads(path.read_text("utf-8")) for path in sorted(self.only_run().glob("cells/*/*/trial_*.json"))]

    def files(self) -> set[str]:
        """Every file and folder, to see that nothing was written."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    folder = tmp_path / "work"
    folder.mkdir()
    return Workspace(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of a few hundred kilobytes; only root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
        if done.returncode != 0:
            pytest.skip("this user may not mount a file system")
        return folder

    yield mount
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)
