"""A stand-in for hipcc and the HIP runtime: the programs are compiled for the CPU and really run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

STANDIN = Path(__file__).resolve().parent / "standin"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keeps what the stand-in compiled, so that each source is compiled once."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def hipcc(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The stand-in's path; it needs a C++ compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    monkeypatch.setenv("HIP_STANDIN_CACHE", str(compiled))
    monkeypatch.delenv("HIPCC", raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    return str(STANDIN / "hipcc")


@pytest.fixture
def kfd(tmp_path: Path) -> Path:
    """Stands for the driver's device file."""
    path = tmp_path / "kfd"
    path.touch()
    return path
