"""Logs as real programs write them, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta.probe.classify import Classification, classify
from aorta.probe.observe import Observation
from aorta.probe.settings import ProbeSettings

Judge = Callable[..., Classification]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Judges a command by its logs, its end and a recipe's settings."""

    def judged(
        stdout: str = "", stderr: str = "", settings: dict[str, Any] | None = None, **observed: Any
    ) -> Classification:
        paths = {"stdout": tmp_path / "stdout.log", "stderr": tmp_path / "stderr.log"}
        paths["stdout"].write_text(stdout)
        paths["stderr"].write_text(stderr)
        observation = Observation(stdout_path=str(paths["stdout"]), stderr_path=str(paths["stderr"]), **observed)
        return classify(observation, ProbeSettings.from_mapping(settings or {}))

    return judged
