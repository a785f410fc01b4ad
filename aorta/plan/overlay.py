"""The controlled overlay: which environment variables a trial gets, and which layer each value came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Layer = tuple[str, Mapping[str, str]]
"""A layer's label and its variables."""

Overlay = dict[str, dict[str, str]]
"""Variable name to ``value`` and ``layer``."""


def merge_layers(layers: Iterable[Layer]) -> Overlay:
    """Merges layers from lowest to highest; a later layer wins.

    Args:
        layers: In order: ``collect:<name>`` (the options of a command's collectors), ``workload:<name>``,
            ``environment:<name>``, ``mitigation:<name>`` in list order, ``recipe.extra_env``, ``cell.extra_env``.

    Returns:
        Each variable once, sorted by name, with its final value and the label of the layer that set it.
    """
    merged: Overlay = {}
    for label, variables in layers:
        for name, value in variables.items():
            merged[name] = {"value": value, "layer": label}
    return dict(sorted(merged.items()))


def overlay_values(overlay: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Returns the variables without their layers."""
    return {name: entry["value"] for name, entry in overlay.items()}
