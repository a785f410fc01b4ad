"""Turns the nested ``workload_config`` of a recipe into checked, frozen dataclasses.

A workload describes its configuration as subclasses of :class:`ConfigBlock`. Everything that can be wrong with
a value is found in ``__post_init__``, so a configuration built by hand is held to the same rules as one that
came from a recipe. Standard library only: the engine checks configurations in a process that must stay light.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from aorta.workloads.base import ConfigProblem

logger = logging.getLogger("aorta.workloads")

POSITIVE: Mapping[str, Any] = {"min": 1}
"""Field metadata: a whole number of at least 1."""
NOT_NEGATIVE: Mapping[str, Any] = {"min": 0}
"""Field metadata: a number of at least 0."""

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class ConfigValueError(ValueError):
    """One or more values of a block are unusable.

    Attributes:
        problems: Pairs of dotted key (inside the block) and what to do about it, in field order.
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{key} {message}" for key, message in problems))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigBlock:
    """A group of settings; subclasses are frozen, keyword-only dataclasses.

    Fields may be bool, int, float, str, ``Literal``, fixed-length tuples of these, ``X | None``, other blocks and
    ``tuple[Block, ...]``: a list of mappings, where one mapping alone stands for a list of one. A field without a
    default is required. Field metadata: ``min`` bounds a number from below, ``aliases`` maps short forms of a text
    to the full one.

    Attributes:
        key_aliases: Other names of keys, each with the field that it means.
    """

    key_aliases: ClassVar[Mapping[str, str]] = {}
    _hints: ClassVar[dict[type[ConfigBlock], dict[str, Any]]] = {}

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """Maps each field's name to its resolved type."""
        if cls not in ConfigBlock._hints:
            known = typing.get_type_hints(cls)
            ConfigBlock._hints[cls] = {f.name: known[f.name] for f in dataclasses.fields(cls)}
        return ConfigBlock._hints[cls]

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Yields (key, message) of rules that no single field's type expresses; runs when all types are right."""
        return iter(())

    def __post_init__(self) -> None:
        problems = []
        for f in dataclasses.fields(self):
            value, problem = _checked(self.hints()[f.name], f.metadata, getattr(self, f.name))
            if problem is not None:
                problems.append((f.name, problem))
            else:
                object.__setattr__(self, f.name, value)
        problems = problems or list(self.value_problems())
        if problems:
            raise ConfigValueError(problems)


T = TypeVar("T", bound=ConfigBlock)


@dataclasses.dataclass(frozen=True)
class ParsedConfig(Generic[T]):
    """What came out of a mapping: the block, or None when a value was bad, and everything noteworthy."""

    value: T | None
    problems: list[ConfigProblem]


def parse_config(block: type[T], config: Mapping[str, Any]) -> ParsedConfig[T]:
    """Reads a nested mapping into a block and collects every problem.

    Args:
        block: The configuration class of the workload.
        config: The merged ``workload_config``; ``steps`` and keys that start with ``_aorta_`` are the engine's
            and are skipped at the top level.

    Returns:
        The block with defaults for absent keys, and the problems sorted by key.
    """
    own = {k: v for k, v in config.items() if not (k == "steps" or str(k).startswith("_aorta_"))}
    value, problems = _parse(block, own, "", list(_paths(block, "")))
    return ParsedConfig(value, sorted(problems, key=lambda p: p.key))


def load_config(block: type[T], config: Mapping[str, Any], workload: str) -> T:
    """Reads a workload's configuration for a trial.

    Args:
        block: The configuration class of the workload.
        config: The merged ``workload_config`` plus the engine's keys.
        workload: Name for the warning about each unknown key, which is ignored, never an error.

    Raises:
        ValueError: Some value is unusable; the message has a line for each, ``workload_config.`` first.
    """
    parsed = parse_config(block, config)
    for problem in parsed.problems:
        if problem.code == "unknown_config_key":
            logger.warning("%s: ignoring unknown workload_config key '%s'", workload, problem.key)
    if parsed.value is None:
        bad = [p for p in parsed.problems if p.code == "bad_config_value"]
        raise ValueError("\n".join(f"workload_config.{p.message}" for p in bad))
    return parsed.value


def read_steps(config: Mapping[str, Any]) -> int:
    """Takes the engine's ``steps`` out of a trial's configuration; 1 when it is absent.

    Raises:
        ValueError: It is no whole number of at least 1.
    """
    steps = config.get("steps", 1)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps is {steps!r}; use a whole number of at least 1")
    return steps


def _parse(
    block: type[T], config: Mapping[str, Any], prefix: str, known: list[str]
) -> tuple[T | None, list[ConfigProblem]]:
    hints = block.hints()
    problems: list[ConfigProblem] = []
    usable: dict[str, Any] = {}
    broken = False
    for key, raw in config.items():
        path = f"{prefix}{key}"
        field = block.key_aliases.get(key, key)
        hint = hints.get(field)
        if hint is None:
            problems.append(_unknown(path, known))
        elif field in usable:
            problems.append(_bad(path, f"means {field}, which is given already; leave one of them out"))
            broken = True
        elif _is_block(hint) or _listed_block(hint) is not None:
            nested, found = _parse_nested(hint, raw, path, known)
            problems += found
            if nested is None:
                broken = True
            else:
                usable[field] = nested
        else:
            usable[field] = raw
    missing = [f.name for f in dataclasses.fields(block) if _is_required(f) and f.name not in usable]
    if missing:
        problems += [_bad(f"{prefix}{name}", f"is missing; use {_expected(hints[name])}") for name in missing]
        return None, problems
    try:
        value = block(**usable)
    except ConfigValueError as exc:
        return None, problems + [_bad(f"{prefix}{key}", message) for key, message in exc.problems]
    return (None if broken else value), problems


def _parse_nested(hint: Any, raw: Any, path: str, known: list[str]) -> tuple[Any, list[ConfigProblem]]:
    """Returns the block, or the tuple of blocks, that a field holds, or None when something in it was bad."""
    listed = _listed_block(hint)
    block = hint if listed is None else listed
    keys = ", ".join(block.hints())
    if isinstance(raw, Mapping):
        value, problems = _parse(block, raw, f"{path}.", known)
        return ((value,) if listed is not None and value is not None else value), problems
    if listed is None or not isinstance(raw, list | tuple):
        kind = "a mapping" if listed is None else "a mapping, or a list of mappings,"
        return None, [_bad(path, f"is {raw!r}; use {kind} with keys from {keys}")]
    values, problems = [], []
    for index, item in enumerate(raw):
        place = f"{path}[{index}]"
        if isinstance(item, Mapping):
            value, found = _parse(block, item, f"{place}.", known)
            values.append(value)
            problems += found
        elif isinstance(item, block):
            values.append(item)
        else:
            values.append(None)
            problems.append(_bad(place, f"is {item!r}; use a mapping with keys from {keys}"))
    return (None if None in values else tuple(values)), problems


def _checked(hint: Any, metadata: Mapping[str, Any], value: Any) -> tuple[Any, str | None]:
    """Returns the value in its final form, or what is wrong with it."""
    if isinstance(value, str):
        value = metadata.get("aliases", {}).get(value, value)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    # `Literal[...] | None` makes the older of the two kinds of union.
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None, None
        return _checked(next(a for a in args if a is not type(None)), metadata, value)
    if origin is typing.Literal:
        # `True in (1,)` holds in Python, so the type is compared too.
        if any(type(value) is type(a) and value == a for a in args):
            return value, None
        choices = list(args) + [a for a in metadata.get("aliases", {}) if a not in args]
        close = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        return value, f"is {value!r}; use {' or '.join(map(str, args))}{meant}"
    if _listed_block(hint) is not None:
        right = isinstance(value, tuple) and all(isinstance(item, args[0]) for item in value)
        return value, None if right else f"is {value!r}; use a tuple of {args[0].__name__}"
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(args):
            return value, f"is {value!r}; use a list of {len(args)} values"
        checked = [_checked(a, metadata, v) for a, v in zip(args, value, strict=True)]
        return tuple(v for v, _ in checked), next((p for _, p in checked if p), None)
    if _is_block(hint):
        return value, None if isinstance(value, hint) else f"is {value!r}; use a {hint.__name__}"
    return _checked_scalar(hint, metadata, value)


def _checked_scalar(hint: Any, metadata: Mapping[str, Any], value: Any) -> tuple[Any, str | None]:
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        remedy = f"is {value!r} ({type(value).__name__}); use {_TYPE_NAMES[hint]}"
        if hint is float and isinstance(value, str) and _is_number(value):
            remedy += ": YAML takes an exponent without a decimal point for text, so write 1.0e-4, not 1e-4"
        return value, remedy
    if hint is float and not math.isfinite(value):
        return value, f"is {value!r}; use a finite number"
    if hint in (int, float) and "min" in metadata and value < metadata["min"]:
        return value, f"is {value!r}; use {_TYPE_NAMES[hint]} of at least {metadata['min']}"
    return value, None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_block(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, ConfigBlock)


def _listed_block(hint: Any) -> type[ConfigBlock] | None:
    """Returns the block of a ``tuple[Block, ...]``, or None."""
    args = typing.get_args(hint)
    listed = typing.get_origin(hint) is tuple and len(args) == 2 and args[1] is Ellipsis and _is_block(args[0])
    return args[0] if listed else None


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _expected(hint: Any) -> str:
    """Says what a required field takes."""
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return " or ".join(map(str, choices)) or _TYPE_NAMES.get(hint, "a value")


def _paths(block: type[ConfigBlock], prefix: str) -> Iterator[str]:
    for name, hint in block.hints().items():
        yield f"{prefix}{name}"
        nested = hint if _is_block(hint) else _listed_block(hint)
        if nested is not None:
            yield from _paths(nested, f"{prefix}{name}.")


def _unknown(path: str, known: list[str]) -> ConfigProblem:
    # A key put into the wrong block is as common as a misspelt one: compare last names first, then whole paths.
    leaf = path.rpartition(".")[2]
    same_leaf = [k for k in known if k.rpartition(".")[2] == leaf]
    close = same_leaf or difflib.get_close_matches(path, known, n=1)
    if not close:
        leaves = {k.rpartition(".")[2]: k for k in reversed(known)}
        close = [leaves[m] for m in difflib.get_close_matches(leaf, list(leaves), n=1)]
    meant = f"; did you mean '{close[0]}'?" if close else ""
    return ConfigProblem(key=path, message=f"unknown key '{path}' would be ignored{meant}", code="unknown_config_key")


def _bad(path: str, message: str) -> ConfigProblem:
    return ConfigProblem(key=path, message=f"{path} {message}", code="bad_config_value")
