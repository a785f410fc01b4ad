"""A way to install a plugin: a distribution on ``sys.path`` with entry points, without an installer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

InstallPlugin = Callable[..., None]


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """Returns ``install(distribution, code, group={name: attribute})``; the plugin is gone after the test."""
    serial = itertools.count()

    def install(distribution: str, code: str, **groups: dict[str, str]) -> None:
        folder = tmp_path / f"site{next(serial)}"
        # A module name of its own each time: sys.modules outlives a test.
        module = f"{distribution.replace('-', '_')}_{tmp_path.name.replace('-', '_')}"
        metadata = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code, encoding="utf-8")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = []
        for group, names in groups.items():
            lines += [f"[aorta.{group}]", *(f"{name} = {module}:{attribute}" for name, attribute in names.items())]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(folder)

    return install
