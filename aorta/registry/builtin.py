"""The built-in mitigations and environments, as ``pyproject.toml`` declares them in the entry-point groups.

A mitigation sets variables that a runtime or a library reads, whatever the workload.
"""

from __future__ import annotations

from typing import Any, Final

Variables = dict[str, str]

# The explicit baseline: nothing is set.
NONE: Final[Variables] = {}

# Numerics.
TF32_OFF: Final[Variables] = {"DISABLE_TF32": "1"}
FA_PREFER_CK: Final[Variables] = {"TORCH_ROCM_FA_PREFER_CK": "1"}
FA_PREFER_AOTRITON: Final[Variables] = {"TORCH_ROCM_FA_PREFER_CK": "0"}

# Memory: page migration, caches, allocators, copies.
XNACK: Final[Variables] = {"HSA_XNACK": "1"}
HSA_NO_SDMA: Final[Variables] = {"HSA_ENABLE_SDMA": "0"}
HSA_NO_SCRATCH_RECLAIM: Final[Variables] = {"HSA_NO_SCRATCH_RECLAIM": "1"}
HSA_DISABLE_CACHE: Final[Variables] = {"HSA_DISABLE_CACHE": "1"}
HSA_ENABLE_CACHE: Final[Variables] = {"HSA_DISABLE_CACHE": "0"}
GPU_FORCE_BLIT_COPY_128: Final[Variables] = {"GPU_FORCE_BLIT_COPY_SIZE": "128"}
PYTORCH_ALLOC_EXPANDABLE_SEGMENTS: Final[Variables] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
PYTORCH_NO_CUDA_MEMORY_CACHING: Final[Variables] = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

# Queues, signals, launch order.
GPU_MAX_HW_QUEUES_2: Final[Variables] = {"GPU_MAX_HW_QUEUES": "2"}
HIP_LAUNCH_BLOCKING: Final[Variables] = {"HIP_LAUNCH_BLOCKING": "1"}
DEBUG_HIP_DYNAMIC_QUEUES_1: Final[Variables] = {"DEBUG_HIP_DYNAMIC_QUEUES": "1"}
DEBUG_HIP_DYNAMIC_QUEUES_2: Final[Variables] = {"DEBUG_HIP_DYNAMIC_QUEUES": "2"}
DEBUG_CLR_NO_BATCH_CPU_SYNC: Final[Variables] = {"DEBUG_CLR_BATCH_CPU_SYNC_SIZE": "0"}
ROC_AQL_QUEUE_SIZE_1024: Final[Variables] = {"ROC_AQL_QUEUE_SIZE": "1024"}
ROC_SIGNAL_POOL_16K: Final[Variables] = {"ROC_SIGNAL_POOL_SIZE": "16384"}

# Collectives.
NCCL_LAUNCH_ORDER_IMPLICIT: Final[Variables] = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
RCCL_GFX942_CHEAP_FENCE_OFF: Final[Variables] = {"RCCL_GFX942_CHEAP_FENCE_OFF": "1"}

# Diagnosis.
AMD_LOG_LEVEL_4: Final[Variables] = {"AMD_LOG_LEVEL": "4"}

LOCAL: Final[dict[str, Any]] = {}
DEFAULT: Final[dict[str, Any]] = {}
EMULATED_ROCJITSU: Final[dict[str, Any]] = {"emulator": "rocjitsu", "mirage_profile": "mi350x"}
EMULATED_ROCJITSU_DBT: Final[dict[str, Any]] = {"emulator": "rocjitsu", "mirage_profile": "dbt-mi350x"}
