"""One registry for all recipes: gathering the entry points anew for each test would only cost time."""

from __future__ import annotations

import pytest

from aorta.registry import Registry, load_registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_registry()
