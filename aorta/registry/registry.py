"""The registry: every mitigation and environment that a recipe may name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from aorta.registry._sources import Entry, entry_point_entries, sidecar_entries
from aorta.registry.errors import RegistryError, UnknownNameError
from aorta.registry.inline import INLINE_PREFIX, inline_environment
from aorta.registry.model import Environment, Mitigation
from aorta.registry.names import did_you_mean, short

__all__ = [
    "INLINE_PREFIX",
    "Registry",
    "get_environment",
    "get_mitigation",
    "inline_environment",
    "load_registry",
]

_Item = TypeVar("_Item", Mitigation, Environment)


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Mitigations and environments by name. Nothing in it can be changed.

    Attributes:
        mitigations: The usable mitigations.
        environments: The usable environments.
        broken_mitigations: Names whose plugin cannot be used, and why.
        broken_environments: Names whose plugin cannot be used, and why.
    """

    mitigations: Mapping[str, Mitigation]
    environments: Mapping[str, Environment]
    broken_mitigations: Mapping[str, str] = field(default_factory=dict)
    broken_environments: Mapping[str, str] = field(default_factory=dict)

    def mitigation(self, name: str) -> Mitigation:
        """Returns the mitigation called ``name``.

        Raises:
            UnknownNameError: No usable mitigation has that name.
        """
        return _look_up("mitigation", name, self.mitigations, self.broken_mitigations)

    def environment(self, name: str) -> Environment:
        """Returns the environment called ``name``.

        Raises:
            UnknownNameError: No usable environment has that name.
        """
        return _look_up("environment", name, self.environments, self.broken_environments)


def _look_up(kind: str, name: str, known: Mapping[str, _Item], broken: Mapping[str, str]) -> _Item:
    if name in known:
        return known[name]
    if name in broken:
        message = f"{short(name)} cannot be used: {broken[name]}"
    else:
        message = f"{short(name)} is not a registered {kind}{did_you_mean(name, known)} (aorta {kind}s list)"
    raise UnknownNameError(message, kind=kind, name=name)


def load_registry(sidecars: Sequence[Path] = ()) -> Registry:
    """Gathers the built-ins, the plugins' entries and the sidecars' entries.

    A plugin that cannot be loaded only takes its own names away: using one of them raises ``UnknownNameError``
    with the reason.

    Args:
        sidecars: JSON files, in any order.

    Returns:
        The registry, built-ins first.

    Raises:
        RegistryError: A sidecar is not valid, or two sources register the same name.
    """
    entries = entry_point_entries()
    faults: list[str] = []
    for path in sidecars:
        try:
            entries += sidecar_entries(Path(path))
        except RegistryError as error:
            faults.append(str(error))
    faults += _collisions(entries)
    if faults:
        raise RegistryError("\n".join(faults))
    mitigations = {
        entry.name: Mitigation(name=entry.name, env=MappingProxyType(dict(entry.content)), source_package=entry.package)
        for entry in entries
        if entry.kind == "mitigation" and entry.content is not None
    }
    environments = {
        entry.name: _environment(entry)
        for entry in entries
        if entry.kind == "environment" and entry.content is not None
    }
    broken = {
        kind: {entry.name: entry.problem for entry in entries if entry.kind == kind and entry.problem is not None}
        for kind in ("mitigation", "environment")
    }
    return Registry(
        mitigations=MappingProxyType(mitigations),
        environments=MappingProxyType(environments),
        broken_mitigations=MappingProxyType(broken["mitigation"]),
        broken_environments=MappingProxyType(broken["environment"]),
    )


def _environment(entry: Entry) -> Environment:
    content = {key: value for key, value in (entry.content or {}).items() if key != "source_package"}
    variables = MappingProxyType(dict(content.pop("env", {})))
    return Environment(name=entry.name, env=variables, source_package=entry.package, **content)


def _collisions(entries: Iterable[Entry]) -> list[str]:
    first: dict[tuple[str, str], Entry] = {}
    faults: list[str] = []
    for entry in entries:
        earlier = first.setdefault((entry.kind, entry.name), entry)
        if earlier is not entry:
            faults.append(
                f"the {entry.kind} {entry.name!r} is registered twice: by {earlier.source} and by {entry.source}; "
                "rename one of them"
            )
    return faults


@lru_cache(maxsize=1)
def _installed() -> Registry:
    return load_registry()


def get_mitigation(name: str, registry: Registry | None = None) -> Mitigation:
    """Returns a registered mitigation.

    Args:
        name: Its name.
        registry: Where to look; by default the built-ins and the installed plugins.

    Raises:
        UnknownNameError: No usable mitigation has that name; the message gives the nearest one.
        RegistryError: The installed plugins contradict each other.
    """
    return (registry if registry is not None else _installed()).mitigation(name)


def get_environment(name: str, registry: Registry | None = None) -> Environment:
    """Returns a registered environment.

    Args:
        name: Its name.
        registry: Where to look; by default the built-ins and the installed plugins.

    Raises:
        UnknownNameError: No usable environment has that name; the message gives the nearest one.
        RegistryError: The installed plugins contradict each other.
    """
    return (registry if registry is not None else _installed()).environment(name)
