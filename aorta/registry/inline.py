"""Environments that a recipe names by image, in place, and the names that they get."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from aorta._jsonio import canonical_json
from aorta.registry.model import Environment

INLINE_PREFIX = "_inline_"
"""How the names of inline environments begin; no other environment's name may."""


def inline_environment(image: str, env: Mapping[str, str] | None = None) -> Environment:
    """Makes an environment of an image that a recipe names in place.

    Args:
        image: Image reference.
        env: Baseline variables; they are part of the identity unless empty.

    Returns:
        An environment named ``_inline_`` and 8 hexadecimal digits: the BLAKE2b digest of the image reference,
        followed by a NUL and the canonical JSON of ``env`` where that is not empty.
    """
    variables = dict(env or {})
    identity = image + ("\0" + canonical_json(variables) if variables else "")
    digest = hashlib.blake2b(identity.encode("utf-8"), digest_size=4).hexdigest()
    return Environment(name=INLINE_PREFIX + digest, docker=image, env=variables, source_package="recipe")
