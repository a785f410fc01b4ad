"""Command-line flags to a recipe: the same data that a YAML file would give, checked on the same path."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from aorta.recipe.errors import RecipeError, RecipeSchemaError
from aorta.recipe.loader import parse_recipe
from aorta.recipe.model import Recipe
from aorta.recipe.resolved import dump_recipe
from aorta.recipe.yaml_data import Document, Foreign
from aorta.recipe.yaml_nodes import YamlError
from aorta.registry.names import short
from aorta.registry.registry import Registry, inline_environment

IMAGE_PREFIX = "image:"
"""How an item that names an image in place begins."""

SOURCE = "the command line"
"""Where a recipe made of flags came from, for messages."""

MATRIX_NAMES: Mapping[str, str] = {
    "workload": "--workload",
    "trials": "--trials",
    "steps": "--steps",
    "ticket": "--ticket",
    "trial_isolation": "--trial-isolation",
    "save_logs": "--save-logs",
    "extra_env": "--extra-env",
    "workload_config": "--workload-config",
    "mitigations": "--mitigation-axis",
    "environment": "--environment-axis",
    "name": "--mitigation-axis",
    "confound.threshold": "--confound-threshold",
    "confound.baseline_cell": "--baseline-cell",
}
"""Key of a recipe or of a cell to the flag that gives it, where the flags make a matrix."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True, kw_only=True)
class MatrixFlags:
    """The flags that stand for a recipe, as they were given.

    Attributes:
        workload: The workload's name, or None if it was not given.
        trials: Trials of each cell, or None.
        steps: Steps of each trial, or None.
        mitigation_axis: Names of mitigations, separated by commas.
        environment_axis: Names of environments, or ``image:<ref>``, separated by commas.
        ticket: The ticket, or None.
        baseline_cell: Name of the baseline cell, or None for the recipe's own rule.
        confound_threshold: Speed ratio above which a cell is flagged, or None for the recipe's default.
        trial_isolation: ``auto``, ``in_process`` or ``process``, or None for the recipe's default.
        save_logs: Whether each trial's output is kept.
        extra_env: ``KEY=VALUE`` items.
        workload_config: ``DOTTED.KEY=YAML-VALUE`` items.
    """

    workload: str | None
    trials: int | None
    steps: int | None
    mitigation_axis: str = "none"
    environment_axis: str = "local"
    ticket: str | None = None
    baseline_cell: str | None = None
    confound_threshold: float | None = None
    trial_isolation: str | None = None
    save_logs: bool = False
    extra_env: tuple[str, ...] = ()
    workload_config: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """Returns the recipe's data: one cell for each mitigation in each environment, mitigations first.

        A cell is called ``<mitigation>-<environment>``; an image in place has its automatic name there.

        Raises:
            RecipeSchemaError: A flag cannot be read; ``path`` of each fault is the flag.
        """
        faults: list[RecipeError] = []
        mitigations = _axis("--mitigation-axis", self.mitigation_axis, faults)
        environments = _axis("--environment-axis", self.environment_axis, faults)
        data: dict[str, Any] = {"schema_version": 1, **_given(self, ("ticket", "workload", "trials", "steps"))}
        data |= _given(self, ("trial_isolation",))
        data |= {"save_logs": True} if self.save_logs else {}
        data |= _filled("extra_env", read_variables("--extra-env", self.extra_env, faults))
        data |= _filled("workload_config", read_config("--workload-config", self.workload_config, faults))
        confound = {"threshold": self.confound_threshold, "baseline_cell": self.baseline_cell}
        data |= _filled("confound", {key: value for key, value in confound.items() if value is not None})
        data["cells"] = [
            {
                "name": _NOT_IN_NAMES.sub("_", f"{mitigation}-{_environment_name(environment)}"),
                "mitigations": [mitigation],
                "environment": environment_value(environment),
            }
            for environment in environments
            for mitigation in mitigations
        ]
        _raise_if_any(faults)
        return data

    def text(self) -> str:
        """Returns the recipe as YAML.

        Raises:
            RecipeSchemaError: A flag cannot be read.
        """
        return dump_recipe(self.data())

    def load(self, registry: Registry) -> Recipe:
        """Returns the recipe.

        Args:
            registry: The mitigations and environments that the flags may name.

        Raises:
            RecipeSchemaError: The flags make no valid recipe; ``path`` of each fault is the flag.
        """
        return load_data(self.data(), registry, names=MATRIX_NAMES)


def load_data(data: Mapping[str, Any], registry: Registry, *, names: Mapping[str, str]) -> Recipe:
    """Loads a recipe from data, as if it had been read from a file.

    Args:
        data: The recipe's data.
        registry: The mitigations and environments that it may name.
        names: What a reader calls the recipe's keys, as ``MATRIX_NAMES``.

    Raises:
        RecipeSchemaError: The data is no valid recipe; the faults' paths are ``names``.
    """
    try:
        text = dump_recipe(data)
    except UnicodeEncodeError as error:
        message = f"{short(error.object[error.start : error.end])} is not text in UTF-8"
        raise RecipeSchemaError([RecipeError(path="", message=message)], SOURCE) from None
    except yaml.YAMLError as error:
        message = f"{short(error.args[-1])} cannot be written in a recipe; use text, numbers, lists and mappings"
        raise RecipeSchemaError([RecipeError(path="", message=message)], SOURCE) from None
    try:
        return parse_recipe(text, registry, source=SOURCE)
    except RecipeSchemaError as error:
        faults = [RecipeError(path=_named(fault.path, names), message=fault.message) for fault in error.errors]
        raise RecipeSchemaError(dict.fromkeys(faults), SOURCE) from None


def environment_value(item: str) -> str | dict[str, str]:
    """Returns what a recipe writes for an environment: its name, or ``{docker: REF}`` for ``image:REF``."""
    return {"docker": item.removeprefix(IMAGE_PREFIX)} if item.startswith(IMAGE_PREFIX) else item


def read_variables(flag: str, items: Sequence[str], faults: list[RecipeError]) -> dict[str, str]:
    """Reads ``KEY=VALUE`` items.

    Args:
        flag: What gave them, for messages.
        items: The items; a value may hold ``=``, and may be empty.
        faults: Takes what is wrong.
    """
    variables: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals:
            faults.append(RecipeError(path=flag, message=f"{short(item)} is not of the form KEY=VALUE"))
        elif key in variables:
            faults.append(RecipeError(path=flag, message=f"{short(key)} is given twice; keep one of them"))
        else:
            variables[key] = value
    return variables


def read_config(flag: str, items: Sequence[str], faults: list[RecipeError]) -> dict[str, Any]:
    """Reads ``KEY=VALUE`` items whose values are YAML and whose keys lead into mappings by dots.

    Args:
        flag: What gave them, for messages.
        items: The items, such as ``model.hidden_size=64`` or ``model={kind: mlp}``.
        faults: Takes what is wrong.
    """
    config: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        steps = key.split(".")
        if not equals or not all(steps):
            faults.append(RecipeError(path=flag, message=f"{short(item)} is not of the form KEY=VALUE (or A.B=VALUE)"))
            continue
        try:
            value = _yaml_value(text)
        except ValueError as error:
            faults.append(RecipeError(path=flag, message=f"{key}: {error}"))
            continue
        taken = _put(config, steps, value)
        if taken is not None:
            faults.append(RecipeError(path=flag, message=f"{short(taken)} is given twice; keep one of them"))
    return config


def _yaml_value(text: str) -> Any:
    """Reads one YAML value.

    Raises:
        ValueError: The text is not YAML, or means what JSON cannot say.
    """
    if not text.strip():
        return None
    try:
        document = Document(text.encode())
    except UnicodeEncodeError:
        raise ValueError("is not text in UTF-8") from None
    except YamlError as error:
        raise ValueError(f"{short(text)} {error}") from None
    if document.faults:
        raise ValueError(document.faults[0].message)
    foreign = _find_foreign(document.data)
    if foreign is not None:
        raise ValueError(f"must have a JSON form, and {foreign} has none; quote it inside: '\"{text}\"'")
    return document.data


def _find_foreign(value: Any) -> Foreign | None:
    if isinstance(value, Foreign):
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for found in map(_find_foreign, inner) if found is not None), None)


def _put(config: dict[str, Any], steps: Sequence[str], value: Any) -> str | None:
    """Puts a value where the steps lead; returns the dotted key that is taken already, or None."""
    target = config
    for depth, step in enumerate(steps[:-1], start=1):
        target = target.setdefault(step, {})
        if not isinstance(target, dict):
            return ".".join(steps[:depth])
    if steps[-1] in target:
        return ".".join(steps)
    target[steps[-1]] = value
    return None


def split_items(flag: str, text: str, faults: list[RecipeError]) -> list[str]:
    """Splits a list at its commas; every item stands for itself.

    Args:
        flag: What gave the list, for messages.
        text: The items, separated by commas; white space around them is dropped.
        faults: Takes what is wrong.
    """
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        faults.append(RecipeError(path=flag, message=f"{short(text)} has an empty item"))
    return [item for item in items if item]


def _axis(flag: str, text: str, faults: list[RecipeError]) -> list[str]:
    items = split_items(flag, text, faults)
    repeated = sorted({item for item in items if items.count(item) > 1})
    faults += [RecipeError(path=flag, message=f"{short(item)} is given twice; keep one of them") for item in repeated]
    return items


def _environment_name(item: str) -> str:
    if not item.startswith(IMAGE_PREFIX):
        return item
    # A reference that is no text is refused when the recipe is loaded; its cell only needs some name.
    return inline_environment(item.removeprefix(IMAGE_PREFIX).encode("utf-8", "replace").decode()).name


def _given(flags: MatrixFlags, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}


def _filled(key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(value)} if value else {}


def _named(path: str, names: Mapping[str, str]) -> str:
    """Returns what a reader calls the place of a fault."""
    inner = re.sub(r"^cells(\[\d+\])?\.?", "", path)
    key = inner if inner in names else inner.partition(".")[0]
    return names.get(key, path)


def _raise_if_any(faults: Sequence[RecipeError]) -> None:
    if faults:
        raise RecipeSchemaError(dict.fromkeys(faults), SOURCE)
