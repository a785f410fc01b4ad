"""Mitigations and environments by name: built-in, from plugins, and from JSON sidecars."""

from __future__ import annotations

from aorta.registry.errors import RegistryError, UnknownNameError
from aorta.registry.model import Environment, Mitigation
from aorta.registry.registry import (
    INLINE_PREFIX,
    Registry,
    get_environment,
    get_mitigation,
    inline_environment,
    load_registry,
)

__all__ = [
    "INLINE_PREFIX",
    "Environment",
    "Mitigation",
    "Registry",
    "RegistryError",
    "UnknownNameError",
    "get_environment",
    "get_mitigation",
    "inline_environment",
    "load_registry",
]
