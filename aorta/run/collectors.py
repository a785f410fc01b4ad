"""The collectors that a recipe may attach to its cells. Standard library only: loading a recipe imports this."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class CollectorRecipe(NamedTuple):
    """How a collector is attached.

    Attributes:
        module: The module that a workload runs its own script through, with ``python -m``.
        option_prefix: How the names of the collector's options begin; options are environment variables.
        summary: What the collector records, in one line.
    """

    module: str
    option_prefix: str
    summary: str


KNOWN_RECIPES: Mapping[str, CollectorRecipe] = MappingProxyType(
    {
        "layer_numerics": CollectorRecipe(
            module="aorta.instrumentation.layer_numerics",
            option_prefix="NANLOG_",
            summary="per-layer counts of NaN, infinite and huge values, and magnitudes",
        ),
    }
)
"""Every collector by the name that recipes use."""
