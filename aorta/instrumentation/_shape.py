"""The outer shape of ``env.json``: its version, its blocks, the placeholder, and the check for a valid one.

Imports nothing: the trial's supervisor loads it. The whole shape is in ``schemas/env.schema.json``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SCHEMA_VERSION = 1

BLOCKS = (
    "host",
    "runtime_context",
    "python",
    "env_vars",
    "rocm",
    "hip",
    "amdgpu_driver",
    "gpu_arch",
    "hipblaslt",
    "rocblas",
    "composable_kernel",
    "tensile",
    "miopen",
    "rccl",
    "aotriton",
    "triton",
    "fbgemm",
    "pytorch",
    "nvidia",
    "nics",
)

NEVER_CAPTURED = (
    "no snapshot was captured from inside this environment: the workload does not run the probe in it, "
    "or no trial of it got that far"
)


def placeholder_snapshot(descriptor: Mapping[str, Any], reason: str = NEVER_CAPTURED) -> dict[str, Any]:
    """Returns what stands for the snapshot of an environment that never produced one.

    Args:
        descriptor: The environment's own description (name, docker, venv, env ...), recorded as it is.
        reason: Why there is no snapshot.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "snapshot_captured": False,
        "captured_at": None,
        "reason": reason,
        "environment": dict(descriptor),
    }


def is_valid_snapshot(value: object) -> bool:
    """Tells a captured snapshot from a placeholder, another version's file, or something half made.

    Args:
        value: Parsed JSON of an ``env.json``, or anything else.

    Returns:
        True if every block of this schema version is there and says whether it is available.
    """
    if not isinstance(value, dict):
        return False
    version = value.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool) or value.get("snapshot_captured") is not True:
        return False
    if not isinstance(value.get("captured_at"), str) or not isinstance(value.get("partial"), bool):
        return False
    blocks = [value.get(name) for name in BLOCKS]
    return all(isinstance(block, dict) and isinstance(block.get("available"), bool) for block in blocks)
