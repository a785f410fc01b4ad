"""Finds the files that ship next to the code: Snakefile, workflow rules, schemas, settings and recipes.

In a checkout they lie at the top of the repository. A wheel carries them in ``aorta/_data``.
Standard library only: the Snakefile's start-up path imports this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent
_DATA = _PACKAGE / "_data"


def checkout() -> Path | None:
    """Returns the folder of the source checkout that this code lies in, or None for an installed wheel."""
    return None if _DATA.is_dir() else _PACKAGE.parent


def resource_path(*parts: str) -> Path:
    """Returns the path of a shipped file or folder, for example ``resource_path("recipes", "training")``."""
    return (checkout() or _DATA).joinpath(*parts)


def load_schema(name: str) -> dict[str, Any]:
    """Returns the JSON Schema of one kind of file.

    Args:
        name: The schema's short name, such as ``"recipe"`` or ``"trial"``.
    """
    schema: dict[str, Any] = json.loads(resource_path("schemas", f"{name}.schema.json").read_text("utf-8"))
    return schema
