"""What people call an environment: an image that a recipe names in place has only a hash for a name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from aorta.matrix.injected import LONGEST_NAME
from aorta.matrix.text import one_line
from aorta.registry.inline import INLINE_PREFIX

_INLINE_NAME = re.compile(rf"(?<![\w/.-]){INLINE_PREFIX}[0-9a-f]{{8}}(?![\w/.-]*/)(?!\w)")


def environment_labels(environments: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns what a table calls each environment.

    Args:
        environments: Name to its entry in the matrix.

    Returns:
        Name to the name itself, or to the image of an inline environment, with the hash wherever two environments
        (the same image with other variables, or images that are cut to the same text) would look alike.
    """
    plain = {name: one_line(_image(name, entry) or name, LONGEST_NAME) for name, entry in environments.items()}
    uses = Counter(plain.values())
    return {
        name: f"{label} [{name.removeprefix(INLINE_PREFIX)}]"
        if uses[label] > 1 and name.startswith(INLINE_PREFIX)
        else label
        for name, label in plain.items()
    }


def with_images(text: str, environments: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns ``text`` with each inline environment's image before its name; names inside of paths stay."""

    def spelled(match: re.Match[str]) -> str:
        image = _image(match[0], environments.get(match[0], {}))
        return match[0] if image is None else f"{one_line(image, LONGEST_NAME)} ({match[0]})"

    return _INLINE_NAME.sub(spelled, text)


def _image(name: str, entry: Mapping[str, Any]) -> str | None:
    """Returns an inline environment's image; None for a registered one."""
    image = (entry.get("descriptor") or {}).get("docker")
    return str(image) if image and name.startswith(INLINE_PREFIX) else None
