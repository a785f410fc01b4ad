"""Finds Python packages and their versions without importing them."""

from __future__ import annotations

import json
import os
import re
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from aorta.instrumentation._system import Probe


def package_folder(probe: Probe, name: str) -> str | None:
    """Returns the folder of an importable package, or None; a bare folder of that name (no ``__init__``) is none."""
    spec = PathFinder.find_spec(name, [path or "." for path in probe.system.python_path])
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return os.path.dirname(os.path.abspath(spec.origin))


def installed(probe: Probe, names: Sequence[str]) -> dict[str, Any] | None:
    """Returns the first installed distribution among ``names``, as name, version, folder and source revision, or None.

    Args:
        probe: The block's probe.
        names: Distribution names under which builds of one package are published.
    """
    from importlib import metadata  # costs 20 ms, so only a block that needs it pays

    for name in names:
        # The finder caches nothing over an explicit path, and matches names as installers normalise them.
        context = metadata.DistributionFinder.Context(name=name, path=probe.system.python_path)
        for distribution in metadata.MetadataPathFinder.find_distributions(context):
            version = distribution.metadata["Version"]
            if version:
                origin = distribution.read_text("direct_url.json")
                return {"distribution": name, "version": str(version), "git_commit": _commit(origin, str(version))}
    return None


def _commit(direct_url: str | None, version: str) -> str | None:
    """Returns the source revision that pip recorded, or the one in a local version such as ``3.2.0+git1a2b3c4d``."""
    try:
        vcs = json.loads(direct_url or "{}").get("vcs_info", {}).get("commit_id")
    except (ValueError, AttributeError):
        vcs = None
    match = re.search(r"\+(?:.*\.)?(?:git|g)([0-9a-f]{7,40})\b", version)
    return str(vcs) if vcs else match.group(1) if match else None
