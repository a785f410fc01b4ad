"""The number formats that workloads compute in, under every name that users write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

DtypeName = Literal["bfloat16", "float16", "float32"]

DTYPE_ALIASES: Mapping[str, DtypeName] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
}
BITS: Mapping[DtypeName, int] = {"bfloat16": 16, "float16": 16, "float32": 32}
"""Bits of an element."""
DTYPE_FIELD: Mapping[str, Any] = {"aliases": DTYPE_ALIASES}
"""Field metadata of a ``dtype`` setting."""


def torch_dtype(name: DtypeName) -> Any:
    """Returns the ``torch.dtype`` of a canonical name; imports torch."""
    import torch

    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]
