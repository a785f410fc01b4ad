"""The conformance corpus beside the checkout: every file, verdict and place."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from aorta.recipe import RecipeSchemaError, load_recipe
from aorta.registry import Registry

_CHECKOUT = Path(__file__).resolve().parents[2]
_FOLDER = Path(os.environ.get("AORTA_SHARED", _CHECKOUT.parent / "shared")) / "conformance"
_EXPECTED: dict[str, dict[str, Any]] = (
    json.loads((_FOLDER / "expected.json").read_text("utf-8")) if (_FOLDER / "expected.json").is_file() else {}
)
_WITHOUT = "no conformance corpus: set AORTA_SHARED, or put it at ../shared beside the checkout"
_LIMIT_SEC = 2.0


@pytest.mark.shared
@pytest.mark.skipif(not _EXPECTED, reason=_WITHOUT)
@pytest.mark.parametrize("name", sorted(_EXPECTED))
def test_file_of_the_corpus_gets_its_verdict_and_place(name: str, registry: Registry) -> None:
    """A valid file loads; an invalid one is refused at the place that the corpus names, within two seconds."""
    expected = _EXPECTED[name]
    started = time.process_time()
    try:
        load_recipe(_FOLDER / "recipes" / name, registry)
        places = None
    except RecipeSchemaError as error:
        places = {fault.path for fault in error.errors}
    took = time.process_time() - started
    assert took < _LIMIT_SEC
    assert places == (None if expected["valid"] else {expected["error_path"] or ""}), expected["why"]
