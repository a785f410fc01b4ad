"""Text to ``Recipe``: syntax, shape, rules, and every fault of the file at once."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Any

from aorta._resources import load_schema, resource_path
from aorta.recipe.errors import RecipeError, RecipeSchemaError
from aorta.recipe.model import Cell, Collectors, Confound, Recipe, StopAfter
from aorta.recipe.probe import MODE, TRIAGE_KEYS, WORKLOAD, build_probe, cells_of, check_probe_rules
from aorta.recipe.resources import RESOURCE_NAMES
from aorta.recipe.rules import check_rules, find_baseline
from aorta.recipe.yaml_data import Document, Foreign
from aorta.recipe.yaml_nodes import YamlError
from aorta.registry.files import MAX_BYTES, UnreadableFileError, read_limited
from aorta.registry.model import Environment
from aorta.registry.names import bare
from aorta.registry.registry import Registry, inline_environment, load_registry
from aorta.registry.shape import MAX_FAULTS, Fault, Place, find_faults


def find_recipe(path: str | Path) -> Path:
    """Returns the recipe's file; a path below ``recipes/`` that is not here is looked up among the shipped ones."""
    here = Path(path)
    if os.path.exists(here) or here.is_absolute() or here.parts[:1] != ("recipes",):
        return here
    shipped = resource_path(*here.parts)
    return shipped if os.path.isfile(shipped) else here


def load_recipe(path: str | os.PathLike[str], registry: Registry | None = None) -> Recipe:
    """Reads a recipe file.

    Args:
        path: A YAML file in UTF-8, a regular file of at most 4 MiB.
        registry: The mitigations and environments that the recipe may name; by default the built-ins and the
            installed plugins.

    Returns:
        The recipe: valid, names resolved, the baseline chosen.

    Raises:
        RecipeSchemaError: The file is not a valid recipe, or cannot be read. It holds every fault.
        RegistryError: No ``registry`` was given, and the installed plugins contradict each other.
    """
    source = os.fspath(path)
    try:
        text = read_limited(source)
    except UnreadableFileError as error:
        meant = Path("recipes", source)
        # A path that starts at the root stays there, so it is never taken for a shipped recipe's.
        hint = f"; did you mean {meant}?" if not os.path.lexists(source) and os.path.isfile(find_recipe(meant)) else ""
        raise _whole_file(source, f"{error}{hint}") from None
    return parse_recipe(text, registry, source=source)


def parse_recipe(text: str | bytes, registry: Registry | None = None, source: str = "recipe") -> Recipe:
    """Reads a recipe from memory.

    Args:
        text: YAML; bytes must be UTF-8.
        registry: As for ``load_recipe``.
        source: Name of where the text came from, for messages.

    Returns:
        The recipe.

    Raises:
        RecipeSchemaError: The text is not a valid recipe. It holds every fault.
        RegistryError: No ``registry`` was given, and the installed plugins contradict each other.
    """
    try:
        content = text.encode("utf-8") if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise _whole_file(source, "holds a lone surrogate, which is no text") from None
    if len(content) > MAX_BYTES:
        raise _whole_file(source, f"is larger than {MAX_BYTES // 1024} KiB, which no recipe should be")
    try:
        document = Document(content)
    except YamlError as error:
        path = format_place(error.place)
        message = str(error) if path else _about_file(source, str(error))
        raise RecipeSchemaError([RecipeError(path=path, message=message, line=error.line)], source) from None
    if not isinstance(document.data, dict):
        found = document.describe((), document.data)
        raise _whole_file(source, f"must be a mapping of recipe keys, not {found}", line=document.line(()))
    registry = registry if registry is not None else load_registry()
    faults = _find_all(document, registry)
    if faults:
        raise RecipeSchemaError(_errors(faults, document, source), source)
    return _build(document.data, registry, source)


def format_place(place: Place) -> str:
    """Returns the part of a place that paths show, such as ``cells[2].mitigations``.

    Paths end at a key of the recipe, of a cell, of ``confound``, ``stop_after`` or ``resources``, of an inline
    environment, or of what a probe recipe says of its command; what lies deeper has names of the user's own and belongs
    into the message.
    """
    shown = place[: _shown_length(place)]
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{bare(step)}" for step in shown)
    return text.removeprefix(".")


def _shown_length(place: Place) -> int:
    match place:
        case ("cells", int(), "environment", "docker" | "env", *_):
            return 4
        case ("cells", int(), "stop_after", "events" | "max_trials" | "event_verdict", *_):
            return 4
        case ("cells", int(), "resources", str(key), *_) if key in RESOURCE_NAMES:
            return 4
        case ("resources", str(key), *_) if key in RESOURCE_NAMES:
            return 2
        case ("stop_after", "events" | "max_trials" | "event_verdict", *_):
            return 2
        case ("cells", int(), _, *_):
            return 3
        case ("custom_patterns" | "disable_detectors" | "disable_detector_tiers" | "collect_paths", int(), *_):
            return len(place)
        case ("redaction", "scrub_env_keys", int(), *_):
            return 3
        case ("mitigation_axis" | "diagnostic_axis", int(), *_) | ("retain" | "redaction", str(), *_):
            return 2
        case ("cells", int()) | ("confound", "threshold" | "baseline_cell", *_):
            return 2
        case _:
            return 1


def _whole_file(source: str, message: str, line: int | None = None) -> RecipeSchemaError:
    error = RecipeError(path="", message=_about_file(source, message), line=line)
    return RecipeSchemaError([error], source)


def _about_file(source: str, message: str) -> str:
    """Returns a message about a file as a whole; the file's name may hold any character."""
    if source == "recipe":
        return message
    return f"{source if source.isprintable() else repr(source)[1:-1]}: {message}"


def _find_all(document: Document, registry: Registry) -> list[Fault]:
    schema, check, hint = "recipe", check_rules, _with_key_hint
    if _wraps_a_command(document.data):
        schema, check, hint = "probe", check_probe_rules, _with_probe_hint
    faults = list(document.faults)
    shape = find_faults(schema, document.data, describe=document.describe, ignore=_is_reported)
    faults += [hint(fault) for fault in shape]
    # A place is unclean if a fault lies in it: at it, or deeper.
    unclean = {fault.place[:length] for fault in faults for length in range(1, len(fault.place) + 1)}
    if len(faults) < MAX_FAULTS:
        meaning = check(document.data, registry, lambda place: place not in unclean)
        for fault in chain(_base_60_faults(document, unclean), meaning):
            faults.append(fault)
            if len(faults) >= MAX_FAULTS:
                break
    return faults


def _base_60_faults(document: Document, unclean: Container[Place]) -> Iterator[Fault]:
    """Finds requests that are written as a time of day, of which YAML makes a number that nobody means."""
    cells = document.data.get("cells")
    scopes: list[Place] = [(), *(("cells", number) for number in range(len(cells) if isinstance(cells, list) else 0))]
    for scope, name in product(scopes, RESOURCE_NAMES):
        place = (*scope, "resources", name)
        if place not in unclean and document.is_base_60(place):
            wanted = load_schema("recipe")["$defs"]["resources"]["properties"][name]["errorMessage"]
            value = document.data
            for step in place:
                value = value[step]
            yield Fault(place=place, message=f"{wanted}, not {document.describe(place, value)}")


def _wraps_a_command(data: Mapping[str, Any]) -> bool:
    return bool(data.get("mode") == MODE)


def _is_reported(value: object) -> bool:
    return isinstance(value, Foreign) and value.reported


@lru_cache(maxsize=1)
def _keys() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Returns the keys of a recipe, of a cell, and of a recipe that wraps a command."""
    schema = load_schema("recipe")
    cell = frozenset(schema["$defs"]["cell"]["properties"])
    return frozenset(schema["properties"]), cell, frozenset(load_schema("probe")["properties"])


def _with_probe_hint(fault: Fault) -> Fault:
    """Says of a stray key of a probe recipe that it is a matrix recipe's, where it is."""
    if fault.rule != "additionalProperties" or fault.place != (fault.key,):
        return fault
    if fault.key in TRIAGE_KEYS:
        message = "is a key of matrix recipes, not of one that wraps a command (mode: probe); remove it"
        return replace(fault, message=message)
    return fault


def _with_key_hint(fault: Fault) -> Fault:
    """Says where a stray key would belong, for keys that exist elsewhere."""
    if fault.rule == "required" and fault.place[-1] == "docker":
        # An environment is one value to a reader; its missing half is a fault of that value.
        return Fault(place=fault.place[:-1], message="needs the key 'docker'", inside=True)
    key = fault.key
    if fault.rule != "additionalProperties" or key is None:
        return fault
    recipe_keys, cell_keys, probe_keys = _keys()
    if fault.place == (key,):
        if key in cell_keys:
            return replace(fault, message=f"{key!r} is a key of a cell; move it into a cell")
        if key in probe_keys:
            message = "is a key of the opaque-command flow (mode: probe), not of a matrix recipe; remove it"
            return replace(fault, message=message)
    elif fault.place[0] == "cells" and len(fault.place) == 2 and key in recipe_keys:
        return replace(fault, message=f"{key!r} is a key of the recipe, not of a cell; move it to the top")
    return fault


def _errors(faults: Iterable[Fault], document: Document, source: str) -> list[RecipeError]:
    """Returns the faults as errors: in the order of the file, each once."""
    found = sorted(faults, key=lambda fault: document.order(fault.exact_place))
    errors = dict.fromkeys(_error(fault, document, source) for fault in found)
    result = list(errors)
    if len(found) >= MAX_FAULTS:
        more = _about_file(source, f"has {MAX_FAULTS} faults or more; only these are shown")
        result.append(RecipeError(path="", message=more))
    return result


def _error(fault: Fault, document: Document, source: str) -> RecipeError:
    path = format_place(fault.place)
    inner = fault.place[_shown_length(fault.place) :]
    message = fault.message
    if inner:
        message = f"in {_inner_name(inner)}, {message}" if fault.inside else f"{_inner_name(inner)} {message}"
    if not path:
        message = _about_file(source, message)
    line = fault.line if fault.line is not None else document.line(fault.exact_place)
    return RecipeError(path=path, message=message, line=line)


def _inner_name(inner: Place) -> str:
    if len(inner) == 1:
        return f"item {inner[0]}" if isinstance(inner[0], int) else f"value of '{bare(inner[0])}'"
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{bare(step)}" for step in inner[:8])
    return f"value of '{text.removeprefix('.')}{'...' if len(inner) > 8 else ''}'"


def _build(data: Mapping[str, Any], registry: Registry, source: str) -> Recipe:
    """Returns the recipe of data that has no fault."""
    probe = None
    if _wraps_a_command(data):
        probe = build_probe(data)
        cells = [{**cell, "environment": "local"} for cell in cells_of(data)]
        # A command has no steps: each run of it is one.
        data = {**data, "workload": WORKLOAD, "steps": 1, "trial_isolation": "process", "cells": cells}
    confound = data.get("confound") or {}
    baseline = confound.get("baseline_cell")
    if baseline is None:
        baseline = find_baseline([(cell["name"], cell["mitigations"]) for cell in data["cells"]])
    assert baseline is not None, "check_rules refuses a recipe without a baseline"
    threshold = confound.get("threshold")
    return Recipe(
        schema_version=data["schema_version"],
        ticket=data.get("ticket"),
        workload=data["workload"],
        trials=data["trials"],
        steps=data["steps"],
        trial_isolation=data.get("trial_isolation", "auto"),
        save_logs=data.get("save_logs", False),
        extra_env=data.get("extra_env") or {},
        collect=_collectors(data.get("collect")),
        workload_config=data.get("workload_config") or {},
        stop_after=_stop_after(data.get("stop_after")) or StopAfter(),
        retry_errors=data.get("retry_errors") or 0,
        resources=_resources(data.get("resources")),
        confound=Confound(baseline_cell=baseline)
        if threshold is None
        else Confound(threshold=float(threshold), baseline_cell=baseline),
        cells=tuple(_build_cell(cell, registry) for cell in data["cells"]),
        probe=probe,
        source=source,
    )


def _build_cell(cell: Mapping[str, Any], registry: Registry) -> Cell:
    collect = cell.get("collect")
    return Cell(
        name=cell["name"],
        mitigations=tuple(registry.mitigation(name) for name in cell["mitigations"]),
        environment=_build_environment(cell["environment"], registry),
        trials=cell.get("trials"),
        steps=cell.get("steps"),
        extra_env=cell.get("extra_env") or {},
        workload_config=cell.get("workload_config") or {},
        collect=None if collect is None else _collectors(collect),
        stop_after=_stop_after(cell.get("stop_after")),
        retry_errors=cell.get("retry_errors"),
        resources=_resources(cell.get("resources")),
    )


def _resources(value: Mapping[str, Any] | None) -> dict[str, int | str]:
    """Returns a block's resources; a key without a value asks for nothing."""
    return {name: item for name, item in (value or {}).items() if item is not None}


def _stop_after(value: Mapping[str, Any] | None) -> StopAfter | None:
    if value is None:
        return None
    return StopAfter(
        events=value.get("events"),
        max_trials=value.get("max_trials"),
        event_verdict=value.get("event_verdict") or StopAfter.event_verdict,
    )


def _build_environment(value: str | Mapping[str, Any], registry: Registry) -> Environment:
    if isinstance(value, str):
        return registry.environment(value)
    return inline_environment(value["docker"], value.get("env"))


def _collectors(value: list[str] | Mapping[str, Any] | None) -> Collectors:
    if isinstance(value, Mapping):
        return {name: dict(options or {}) for name, options in value.items()}
    return {name: {} for name in value or ()}
