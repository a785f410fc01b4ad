"""Fakes of a machine: a file tree to stand for ``/``, and tools to stand on PATH."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aorta._resources import load_schema
from aorta.instrumentation._system import Probe, System


class Machine:
    """A file tree that stands for another machine's ``/``, with its tools in ``/bin``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {"PATH": str(root / "bin")}

    def file(self, path: str, content: str | bytes = "") -> Path:
        """Writes one file."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return target

    def files(self, contents: Mapping[str, str]) -> None:
        """Writes several files."""
        for path, content in contents.items():
            self.file(path, content)

    def link(self, path: str, target: str) -> None:
        """Makes a symbolic link, whose target may be dangling, as sysfs links are read by name alone."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def tool(self, name: str, script: str) -> Path:
        """Puts a shell script on PATH."""
        path = self.file(f"bin/{name}", "#!/bin/sh\nPATH=/usr/bin:/bin\n" + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def probe(self) -> Probe:
        """Returns a probe of this machine; its Python packages lie in ``/site``."""
        system = System(root=str(self.root), environ=self.environ, python_path=[str(self.root / "site")])
        return Probe(system)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An empty machine: no file, no tool, no package."""
    root = tmp_path / "machine"
    root.mkdir()
    return Machine(root)


@pytest.fixture(scope="session")
def schema_errors() -> Callable[[Any], list[str]]:
    """Returns what the schema has against a snapshot, one line a fault."""
    validator = jsonschema.Draft202012Validator(load_schema("env"))
    return lambda value: [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(value)]
