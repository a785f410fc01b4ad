"""Recipes of the opaque-command flow (``mode: probe``): their rules, and how they become cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aorta.probe.settings import ProbeSettings, problems
from aorta.recipe.model import Probe
from aorta.recipe.rules import (
    IsClean,
    check_baseline,
    check_scope,
    check_stop_rules,
    conflicts,
    identity_message,
)
from aorta.registry.errors import UnknownNameError
from aorta.registry.names import LAUNCHER_IDENTITY, short
from aorta.registry.registry import Registry
from aorta.registry.shape import Fault, Place

MODE = "probe"

AXES = ("mitigation_axis", "diagnostic_axis")

WORKLOAD = "probe"
"""What stands for a workload in the records of a recipe that wraps a command."""

TRIAGE_KEYS = frozenset(
    {
        *("workload", "steps", "trial_isolation", "save_logs", "extra_env", "workload_config", "retry_errors", "cells"),
    }
)
"""Keys of a matrix recipe that have no meaning for a command."""

_CELL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def axes(data: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the two axes of a recipe's data."""
    return list(data["mitigation_axis"]), list(data.get("diagnostic_axis") or ["none"])


def cells_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the cells of a recipe's data: each pair of the two axes, with ``name`` and ``mitigations``."""
    first, second = axes(data)
    return [
        {"name": f"{mitigation}-{diagnostic}", "mitigations": _stack(mitigation, diagnostic)}
        for mitigation in first
        for diagnostic in second
    ]


def _stack(mitigation: str, diagnostic: str) -> list[str]:
    """Returns both names, or one where they are the same or the other is ``none``."""
    return [name for name in dict.fromkeys((mitigation, diagnostic)) if name != "none"] or ["none"]


def check_probe_rules(data: Mapping[str, Any], registry: Registry, is_clean: IsClean) -> Iterator[Fault]:
    """Yields what is wrong with a probe recipe beyond its shape.

    Args:
        data: The recipe's data; any part of it may be missing or of the wrong shape where ``is_clean`` says no.
        registry: The mitigations that the axes may name.
        is_clean: Tells which values may be looked at.
    """
    yield from check_scope(data, (), is_clean)
    if data.get("collect") and is_clean(("collect",)):
        options = data["collect"] if isinstance(data["collect"], Mapping) else {}
        for name, variables in options.items():
            yield from _check_lines(data, name, variables or {}, ("collect",))
    if is_clean(("resources",)) and (data.get("resources") or {}).get("nodes") is not None:
        message = "is for workloads whose ranks aorta starts, and a command starts its own; leave it out"
        yield Fault(
            place=("resources", "nodes"), message=f"{message}, and start the sweep in an allocation of its nodes"
        )
    yield from _check_collect_paths(_clean_items(data, "collect_paths", is_clean))
    faults = list(_check_names(data, registry, is_clean))
    yield from faults
    whole = not faults and "mitigation_axis" in data and all(is_clean((axis,)) for axis in AXES)
    if whole:
        cells = cells_of(data)
        yield from _check_cells(data, cells, registry, is_clean)
        places: list[tuple[Place, Mapping[str, Any]]] = [(("cells", index), cell) for index, cell in enumerate(cells)]
        yield from check_baseline({**data, "cells": cells}, places, is_clean)
    # One nameless cell stands for all of them: they differ in nothing that a rule to stop looks at.
    yield from check_stop_rules(data, [(("cells", 0), {})], is_clean)
    parts = {key: _clean_part(value, (key,), is_clean) for key, value in data.items()}
    clean = {key: value for key, value in parts.items() if value is not _GONE}
    patterns = parts.get("custom_patterns") or []
    if patterns is _GONE or any("id" not in (pattern or {}) for pattern in patterns):
        # It may name a pattern whose name cannot be read.
        clean.pop("disable_detectors", None)
    yield from (Fault(place=_place(path), message=message) for path, message in problems(clean))


def _clean_items(data: Mapping[str, Any], key: str, is_clean: IsClean) -> list[tuple[int, Any]]:
    """Returns the items of a list that may be looked at, with their numbers: one bad item hides no other's fault."""
    items = data.get(key)
    return [(n, item) for n, item in enumerate(items) if is_clean((key, n))] if isinstance(items, list) else []


_GONE = object()


def _clean_part(value: Any, place: Place, is_clean: IsClean) -> Any:
    """Returns what of a value may be looked at: without bad entries of a mapping, and None for a list's bad items."""
    if is_clean(place):
        return value
    if isinstance(value, dict):
        parts = {key: _clean_part(item, (*place, key), is_clean) for key, item in value.items()}
        kept = {key: item for key, item in parts.items() if item is not _GONE}
        # What a pattern's condition may say depends on the regex beside it.
        return _GONE if place[-1] == "match" and kept != value else kept
    if isinstance(value, list):
        items = [_clean_part(item, (*place, index), is_clean) for index, item in enumerate(value)]
        return [None if item is _GONE else item for item in items]
    return _GONE


def _check_collect_paths(patterns: Iterable[tuple[int, str]]) -> Iterator[Fault]:
    for index, pattern in patterns:
        if not pattern.startswith("/") and ".." in pattern.split("/"):
            message = f"{short(pattern)} leads out of the folder in which the command runs; give an absolute pattern"
            yield Fault(place=("collect_paths", index), message=message)


def _check_names(data: Mapping[str, Any], registry: Registry, is_clean: IsClean) -> Iterator[Fault]:
    for axis in AXES:
        for index, name in _clean_items(data, axis, is_clean):
            place = (axis, index)
            try:
                variables = registry.mitigation(name).env
            except UnknownNameError as error:
                yield Fault(place=place, message=str(error))
                continue
            for variable in variables:
                if variable in LAUNCHER_IDENTITY:
                    yield Fault(place=place, message=identity_message(variable, f" (set by {name!r})"))
            yield from _check_lines(data, name, variables, place)


def _check_lines(data: Mapping[str, Any], name: str, variables: Mapping[str, str], place: Place) -> Iterator[Fault]:
    """Refuses what a file with one line for each variable cannot hold."""
    for variable, value in variables.items():
        if data.get("env_passthrough_mode") == "file" and "\n" in value:
            message = f"{name!r} sets {variable} to text of several lines, which a file of variables cannot hold"
            yield Fault(place=place, message=f"{message}; use env_passthrough_mode: inherit")


def _check_cells(
    data: Mapping[str, Any], cells: list[dict[str, Any]], registry: Registry, is_clean: IsClean
) -> Iterator[Fault]:
    first: dict[str, int] = {}
    width = len(axes(data)[1])
    for number, cell in enumerate(cells):
        name, place = cell["name"], (AXES[1], number % width) if "diagnostic_axis" in data else (AXES[0], number)
        if not _CELL_NAME.fullmatch(name):
            yield Fault(place=place, message=f"the cell {short(name)} cannot be a folder's name; rename the mitigation")
        if first.setdefault(name, number) != number:
            message = f"gives a second cell the name {short(name)}; rename one of the mitigations"
            yield Fault(place=place, message=message)
        for conflict in conflicts(cell["mitigations"], registry):
            message = f"the cell {short(name)} cannot be: {conflict}; the two axes must agree: drop one of the names"
            yield Fault(place=place, message=message)


def _place(path: str) -> Place:
    """Returns ``custom_patterns[1].match.regex`` as a place."""
    return tuple(int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path))


def build_probe(data: Mapping[str, Any]) -> Probe:
    """Returns what only a probe recipe has, of data that has no fault; defaults are filled in."""
    first, second = axes(data)
    redaction = {key: value for key, value in (data.get("redaction") or {}).items() if value is not None}
    return Probe(
        mitigation_axis=tuple(first),
        diagnostic_axis=tuple(second),
        env_passthrough_mode=data.get("env_passthrough_mode") or "inherit",
        collect_paths=tuple(data.get("collect_paths") or ()),
        settings=ProbeSettings.from_mapping(data).to_json(),
        redaction=redaction,
    )
