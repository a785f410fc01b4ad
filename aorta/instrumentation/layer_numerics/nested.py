"""Finds tensors in what modules take and return. Imports torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MAX_DEPTH = 3
"""How deep nested tuples, lists and mappings of tensors are looked into."""


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yields the tensors in a value, and in the tuples, lists and mappings in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _MAX_DEPTH and isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item, depth + 1)


def named_in(value: Any, name: str, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yields the tensors that a value holds under a name: a mapping's key, or a named tuple's or data class's field."""
    if depth > _MAX_DEPTH or isinstance(value, torch.Tensor):
        return
    if isinstance(value, Mapping):
        if name in value:
            yield from tensors_in(value[name])
        for item in value.values():
            yield from named_in(item, name, depth + 1)
    elif hasattr(value, "_fields") or dataclasses.is_dataclass(value):
        if hasattr(value, name):
            yield from tensors_in(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from named_in(item, name, depth + 1)


def names_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yields the names under which :func:`named_in` finds tensors in a value."""
    if depth > _MAX_DEPTH or isinstance(value, torch.Tensor):
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(name, str) and next(tensors_in(item), None) is not None:
                yield name
            yield from names_in(item, depth + 1)
    elif hasattr(value, "_fields") or dataclasses.is_dataclass(value):
        fields = getattr(value, "_fields", None) or [field.name for field in dataclasses.fields(value)]
        yield from (name for name in fields if next(tensors_in(getattr(value, name, None)), None) is not None)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from names_in(item, depth + 1)
