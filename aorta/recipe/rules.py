"""The rules of a recipe that a schema cannot say: names that must be registered, values that must agree.

Each rule looks only at values whose shape is right, so that one slip gives one message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aorta.recipe.resources import extra_faults
from aorta.recipe.yaml_data import Foreign
from aorta.registry.errors import UnknownNameError
from aorta.registry.model import Environment, Mitigation
from aorta.registry.names import LAUNCHER_IDENTITY, did_you_mean, short
from aorta.registry.registry import INLINE_PREFIX, Registry, inline_environment
from aorta.registry.shape import Fault, Place, describe
from aorta.registry.workloads import traits
from aorta.run.collectors import KNOWN_RECIPES
from aorta.text import plural

IsClean = Callable[[Place], bool]
"""Whether the value at a place has no fault in it so far."""


def check_rules(data: Mapping[str, Any], registry: Registry, is_clean: IsClean) -> Iterator[Fault]:
    """Yields what is wrong with a recipe beyond its shape.

    Args:
        data: The recipe's data; any part of it may be missing or of the wrong shape where ``is_clean`` says no.
        registry: The mitigations and environments that may be named.
        is_clean: Tells which values may be looked at.
    """
    cells = _cells(data, is_clean)
    yield from check_scope(data, (), is_clean)
    for place, cell in cells:
        yield from check_scope(cell, place, is_clean)
        yield from _check_mitigations(cell, place, registry, is_clean)
        yield from _check_environment(cell, place, registry, is_clean)
    yield from _check_names(cells, is_clean)
    yield from _check_inline_names(cells, is_clean)
    yield from check_baseline(data, cells, is_clean)
    yield from check_stop_rules(data, cells, is_clean)
    yield from _check_isolation(data, is_clean)
    yield from _check_identity(data, cells, registry, is_clean)


def _cells(data: Mapping[str, Any], is_clean: IsClean) -> list[tuple[Place, Mapping[str, Any]]]:
    cells = data.get("cells")
    if not isinstance(cells, list):
        return []
    return [(("cells", index), cell) for index, cell in enumerate(cells) if isinstance(cell, dict)]


def check_scope(scope: Mapping[str, Any], place: Place, is_clean: IsClean) -> Iterator[Fault]:
    """Checks what the recipe and each cell have in common.

    Args:
        scope: The recipe's data, or a cell's.
        place: Where it stands.
        is_clean: Tells which values may be looked at.
    """
    where = (*place, "collect")
    if scope.get("collect") and is_clean(where):
        yield from _check_collect(scope["collect"], where)
    where = (*place, "resources", "extra")
    if isinstance(scope.get("resources"), dict) and scope["resources"].get("extra") and is_clean(where):
        yield from (Fault(place=where, message=message) for message in extra_faults(scope["resources"]["extra"]))
    where = (*place, "workload_config")
    if scope.get("workload_config"):
        yield from _check_json_form(scope["workload_config"], where, is_clean)


def _check_collect(collect: list[str] | Mapping[str, Any], place: Place) -> Iterator[Fault]:
    for name in dict.fromkeys(collect):
        if name not in KNOWN_RECIPES:
            hint = did_you_mean(name, KNOWN_RECIPES)
            yield Fault(
                place=place, message=f"{short(name)} is not a known collector{hint} (known: {', '.join(KNOWN_RECIPES)})"
            )
            continue
        prefix = KNOWN_RECIPES[name].option_prefix
        options = (collect[name] or {}) if isinstance(collect, Mapping) else {}
        for option in options:
            if not option.startswith(prefix):
                message = f"{short(option)} is not an option of {name!r}, whose options begin with {prefix}"
                yield Fault(place=place, message=message)


def _check_json_form(value: Any, place: Place, is_clean: IsClean) -> Iterator[Fault]:
    """Finds values that matrix.json could not record."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _check_json_form(item, (*place, key), is_clean)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_json_form(item, (*place, index), is_clean)
    elif isinstance(value, Foreign) and not value.reported:
        remedy = "; quote it to make it a string" if value.text else ""
        message = f"must have a JSON form, and {describe(place, value)} has none{remedy}"
        yield Fault(place=place, message=message)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Fault(place=place, message=f"must have a JSON form, and {value} has none; quote it to make it a string")


def _check_mitigations(cell: Mapping[str, Any], place: Place, registry: Registry, is_clean: IsClean) -> Iterator[Fault]:
    where = (*place, "mitigations")
    if "mitigations" not in cell or not is_clean(where):
        return
    for name in dict.fromkeys(cell["mitigations"]):
        try:
            registry.mitigation(name)
        except UnknownNameError as error:
            yield Fault(place=where, message=str(error))
    known = [name for name in cell["mitigations"] if name in registry.mitigations]
    for conflict in conflicts(known, registry):
        message = (
            f"{conflict}; stacked mitigations must agree: drop one of them (extra_env can then override its value)"
        )
        yield Fault(place=where, message=message)


def conflicts(names: Iterable[str], registry: Registry) -> list[str]:
    """Returns a sentence for each variable that a mitigation sets otherwise than an earlier one.

    Args:
        names: Usable mitigations, in order; one that is repeated counts once.
        registry: Where they are registered.
    """
    set_by: dict[str, tuple[str, str]] = {}
    found = []
    for name in dict.fromkeys(names):
        for variable, value in registry.mitigation(name).env.items():
            other, earlier = set_by.setdefault(variable, (name, value))
            if earlier != value:
                found.append(f"{other!r} sets {variable}={short(earlier)} and {name!r} sets {variable}={short(value)}")
    return found


def _check_environment(cell: Mapping[str, Any], place: Place, registry: Registry, is_clean: IsClean) -> Iterator[Fault]:
    name = cell.get("environment")
    where = (*place, "environment")
    if not isinstance(name, str) or not is_clean(where):
        return
    try:
        registry.environment(name)
    except UnknownNameError as error:
        message = str(error)
        if name.startswith("image:"):
            message = f"{short(name)} is the form of --environment-axis; in a recipe write {{docker: IMAGE}}"
        elif name.startswith(INLINE_PREFIX):
            message = f"{short(name)} is an automatic name, not a registered one; write {{docker: IMAGE}}"
        yield Fault(place=where, message=message)


def _check_names(cells: list[tuple[Place, Mapping[str, Any]]], is_clean: IsClean) -> Iterator[Fault]:
    first: dict[str, Place] = {}
    for place, cell in cells:
        where = (*place, "name")
        if "name" not in cell or not is_clean(where):
            continue
        earlier = first.setdefault(cell["name"], place)
        if earlier != place:
            yield Fault(
                place=where,
                message=f"{short(cell['name'])} is the name of cells[{earlier[1]}] already; names must be unique",
            )


def _check_inline_names(cells: list[tuple[Place, Mapping[str, Any]]], is_clean: IsClean) -> Iterator[Fault]:
    """Refuses two different images whose short digests are equal: they would share a folder and a snapshot."""
    first: dict[str, Environment] = {}
    for place, cell in cells:
        environment = _inline(cell, place, is_clean)
        if environment is None:
            continue
        earlier = first.setdefault(environment.name, environment)
        if earlier != environment:
            yield Fault(
                place=(*place, "environment"),
                message=f"has the same automatic name as another image, {environment.name}; add a variable to its env",
            )


def _inline(cell: Mapping[str, Any], place: Place, is_clean: IsClean) -> Environment | None:
    value = cell.get("environment")
    if isinstance(value, dict) and is_clean((*place, "environment")):
        return inline_environment(value["docker"], value.get("env"))
    return None


def check_baseline(
    data: Mapping[str, Any], cells: list[tuple[Place, Mapping[str, Any]]], is_clean: IsClean
) -> Iterator[Fault]:
    """Checks that the baseline is a cell, or that one can be chosen.

    Args:
        data: The recipe's data.
        cells: Each cell's place and data.
        is_clean: Tells which values may be looked at.
    """
    where = ("confound", "baseline_cell")
    if not cells or not is_clean(("confound",)):
        return
    wanted = (data.get("confound") or {}).get("baseline_cell")
    names = [cell["name"] for place, cell in cells if isinstance(cell.get("name"), str)]
    if wanted is not None:
        if wanted not in names:
            hint = did_you_mean(wanted, names)
            yield Fault(place=where, message=f"{short(wanted)} is not the name of a cell{hint}")
        return
    # A cell whose name or mitigations are wrong may yet turn out to be the baseline.
    complete = len(names) == len(data["cells"]) and all(
        "mitigations" in cell and is_clean((*place, "mitigations")) and is_clean((*place, "name"))
        for place, cell in cells
    )
    if complete and find_baseline([(cell["name"], cell["mitigations"]) for _, cell in cells]) is None:
        yield Fault(
            place=where,
            message="cannot be chosen: no cell is named 'baseline-*' and none has mitigations: [none]; name one here",
        )


def find_baseline(cells: list[tuple[str, list[str]]]) -> str | None:
    """Returns the name of the baseline cell of a recipe that does not name one.

    Args:
        cells: Name and mitigation names of each cell, in order.

    Returns:
        The first cell named ``baseline-*``; else the first with exactly ``[none]``; else the only cell; else None.
    """
    for name, _ in cells:
        if name.startswith("baseline-"):
            return name
    for name, mitigations in cells:
        if mitigations == ["none"]:
            return name
    return cells[0][0] if len(cells) == 1 else None


def check_stop_rules(
    data: Mapping[str, Any], cells: list[tuple[Place, Mapping[str, Any]]], is_clean: IsClean
) -> Iterator[Fault]:
    """Refuses rules that say nothing, or that no cell could ever meet.

    Args:
        data: The recipe's data.
        cells: Each cell's place and data.
        is_clean: Tells which values may be looked at.
    """
    for place, scope in ((), data), *cells:
        where = (*place, "stop_after")
        if scope.get("stop_after") and is_clean(where) and "events" not in scope["stop_after"]:
            yield Fault(place=where, message="needs the key 'events'", inside=True)
    for place, cell in cells:
        own = cell.get("stop_after") is not None
        where = (*place, "stop_after") if own else ("stop_after",)
        rule = cell["stop_after"] if own else data.get("stop_after")
        counts = [(*place, "trials"), ("trials",)]
        if not rule or not is_clean(where) or "events" not in rule or not all(map(is_clean, counts)):
            continue
        nearest = (rule.get("max_trials") if own else None, cell.get("trials"), rule.get("max_trials"))
        most = next((count for count in nearest if count is not None), data.get("trials"))
        if most is not None and rule["events"] > most:
            name = f" ({short(cell['name'])})" if isinstance(cell.get("name"), str) and not own else ""
            yield Fault(
                place=(*where, "events"),
                message=(
                    f"is {short(rule['events'])}, but the cell{name} has {plural(most, 'trial')} at most, so the rule "
                    "could never end it; lower one or raise the other"
                ),
            )


def _check_isolation(data: Mapping[str, Any], is_clean: IsClean) -> Iterator[Fault]:
    isolation = data.get("trial_isolation", "auto")
    where = ("trial_isolation",)
    if isolation == "auto" or not is_clean(where) or "workload" not in data or not is_clean(("workload",)):
        return
    wanted = traits(data["workload"])
    if isolation == "in_process" and wanted.isolation_required:
        message = f"the workload {data['workload']!r} requires process isolation; use 'process' or 'auto'"
        yield Fault(place=where, message=message)
    elif isolation not in wanted.isolation_supported:
        supported = ", ".join(repr(value) for value in sorted(wanted.isolation_supported))
        message = f"the workload {data['workload']!r} does not support {isolation!r}; it supports {supported}"
        yield Fault(place=where, message=message)


def _check_identity(
    data: Mapping[str, Any], cells: list[tuple[Place, Mapping[str, Any]]], registry: Registry, is_clean: IsClean
) -> Iterator[Fault]:
    """Refuses variables that say which rank a process is, where they would reach a fresh process before its launcher.

    The workload's class is imported only if such a variable is there at all.
    """
    faults = list(_identity_variables(data, (), is_clean))
    for place, cell in cells:
        faults += _identity_variables(cell, place, is_clean)
        for where, name, env in _named_bundles(cell, place, registry, is_clean):
            faults += [
                Fault(place=where, message=identity_message(variable, f" (set by {name!r})"))
                for variable in env
                if variable in LAUNCHER_IDENTITY
            ]
        environment = cell.get("environment")
        if isinstance(environment, dict):
            faults += _identity_in(environment.get("env"), (*place, "environment", "env"), is_clean)
    if faults and _is_process_isolated(data, is_clean):
        yield from faults


def _is_process_isolated(data: Mapping[str, Any], is_clean: IsClean) -> bool:
    isolation = data.get("trial_isolation", "auto")
    if not is_clean(("trial_isolation",)) or isolation != "auto":
        return bool(isolation == "process")
    if "workload" not in data or not is_clean(("workload",)):
        return False
    wanted = traits(data["workload"])
    return wanted.isolation_required or wanted.isolation_default == "process"


def _identity_variables(scope: Mapping[str, Any], place: Place, is_clean: IsClean) -> list[Fault]:
    return _identity_in(scope.get("extra_env"), (*place, "extra_env"), is_clean)


def _identity_in(env: Any, place: Place, is_clean: IsClean) -> list[Fault]:
    if not isinstance(env, dict):
        return []
    return [
        Fault(place=place, message=identity_message(variable, "")) for variable in env if variable in LAUNCHER_IDENTITY
    ]


def identity_message(variable: str, origin: str) -> str:
    """Says why a variable that tells a process its rank may not be set; ``origin`` names who sets it, or is empty."""
    return (
        f"{variable}{origin} is the launcher's to set and no cell axis; remove it "
        f"(refused with process isolation: {', '.join(sorted(LAUNCHER_IDENTITY))})"
    )


def _named_bundles(
    cell: Mapping[str, Any], place: Place, registry: Registry, is_clean: IsClean
) -> Iterator[tuple[Place, str, Mapping[str, str]]]:
    """Yields the variables that registered names bring into a cell."""
    where = (*place, "mitigations")
    if "mitigations" in cell and is_clean(where):
        for name in dict.fromkeys(cell["mitigations"]):
            item: Mitigation | Environment | None = registry.mitigations.get(name)
            if item is not None:
                yield where, name, item.env
    environment = cell.get("environment")
    if isinstance(environment, str) and environment in registry.environments:
        yield (*place, "environment"), environment, registry.environments[environment].env
