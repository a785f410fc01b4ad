"""Runs commands in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from aorta.cli import main

Aorta = Callable[..., Result]


@pytest.fixture
def aorta() -> Aorta:
    """The ``aorta`` command: takes words, gives the exit code and both outputs."""
    return lambda *words: CliRunner().invoke(main, list(words), prog_name="aorta")
