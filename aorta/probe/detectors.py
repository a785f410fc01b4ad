"""The names of all built-in detectors, and what each of them means for a trial.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

from types import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    Effect = Literal["fail", "error", "warn"]

TIERS: tuple[str, ...] = ("tier1", "tier2", "tier3", "tier4", "tier5")
"""How the command ended; whether it hung; what its host says; what its logs say; the recipe's own patterns."""

DETECTORS: Mapping[str, tuple[str, Effect]] = MappingProxyType(
    {
        "exit_nonzero": ("tier1", "fail"),
        "sigsegv": ("tier1", "fail"),
        "sigabrt": ("tier1", "fail"),
        "sigbus": ("tier1", "fail"),
        "timeout": ("tier1", "error"),
        "coredump": ("tier1", "fail"),
        "exec_failed": ("tier1", "error"),
        "hang": ("tier2", "fail"),
        "amdgpu_reset": ("tier3", "fail"),
        "sdma_timeout": ("tier3", "fail"),
        "vm_l2_fault": ("tier3", "fail"),
        "xgmi_link_error": ("tier3", "fail"),
        "pcie_aer_fatal": ("tier3", "fail"),
        "vram_growth": ("tier3", "warn"),
        "thermal_throttle": ("tier3", "warn"),
        "python_traceback": ("tier4", "fail"),
        "hip_error": ("tier4", "fail"),
        "cuda_error": ("tier4", "fail"),
        "rocm_error": ("tier4", "fail"),
        "nccl_rccl_error": ("tier4", "fail"),
        "collective_timeout": ("tier4", "fail"),
        "nan_signature": ("tier4", "fail"),
    }
)
"""Every built-in detector: the tier that it belongs to, and what it makes of a trial when it fires."""
