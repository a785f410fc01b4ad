"""Checks data against one of the project's JSON Schemas and says every fault in a sentence.

The schemas carry an ``errorMessage`` beside each rule (editors show the same text), so what is right is written
in one place. This module adds what was found, the nearest known key, and a hint where one is likely to help.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

from aorta._resources import load_schema
from aorta.registry.names import did_you_mean, short

Place = tuple[str | int, ...]
"""Keys and list positions that lead to a value, from the top of the file."""

MAX_FAULTS = 200
"""Faults after which the search stops: nobody reads more, and a hostile file could have a hundred thousand."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        place: Where; the empty place is the file as a whole.
        message: What is wrong and what would be right, without the place.
        rule: Keyword of the schema that is broken, or an empty string.
        inside: Whether the message speaks of a key in the value at ``place``, not of the value itself.
        key: That key, or the last step of ``place`` where a stray key is its own place.
        line: Line in the file, counted from 1, where the place alone does not lead to it.
    """

    place: Place
    message: str
    rule: str = ""
    inside: bool = False
    key: str | None = None
    line: int | None = None

    @property
    def exact_place(self) -> Place:
        """The place of the key that the fault is about, else of the value."""
        return (*self.place, self.key) if self.inside and self.key is not None else self.place


Fits = Callable[[object], bool]
"""Tells whether a value would be right at the place of a fault."""

Describe = Callable[[Place, object, Fits], str]
"""Says what was found at a place: (place, value, what would be right) -> such as ``int 1; quote it``."""


def describe(place: Place, value: object, fits: Fits = lambda value: False) -> str:
    """Says what ``value`` is, as ``int 3`` or ``the string 'x'``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"bool {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"{type(value).__name__} {short(value)}"
    if isinstance(value, str):
        return f"the string {short(value)}"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, Mapping):
        return "a mapping"
    return str(value)


def find_faults(
    schema: str,
    data: object,
    *,
    describe: Describe = describe,
    ignore: Callable[[object], bool] = lambda value: False,
) -> list[Fault]:
    """Returns what is wrong with the shape of ``data``, at most ``MAX_FAULTS`` of it.

    Args:
        schema: Short name of the schema, such as ``recipe``.
        data: Plain data; keys of mappings are strings.
        describe: Says what was found.
        ignore: Tells values whose fault has been reported already.
    """
    faults: list[Fault] = []
    seen: set[tuple[Place, object]] = set()
    for error in _validator(schema).iter_errors(data):
        if ignore(error.instance):
            continue
        fault = _sentence(error, describe, _validator(schema).evolve(schema=error.schema).is_valid)
        # One value can break several rules (too short, and no match); the first says enough.
        if (fault.place, fault.key) in seen:
            continue
        seen.add((fault.place, fault.key))
        faults.append(fault)
        if len(faults) >= MAX_FAULTS:
            break
    return faults


def _is_name(error: Any) -> bool:
    return "propertyNames" in error.absolute_schema_path


def _sentence(error: Any, describe: Describe, fits: Fits) -> Fault:
    place: Place = tuple(error.absolute_path)
    if error.validator == "required":
        return Fault(place=place, message=error.message, rule="required")
    if error.validator == "additionalProperties":
        key = str(error.instance)
        # A stray key at the top is its own place; deeper down, the mapping that it strayed into is.
        return Fault(
            place=place or (key,), message=error.message, rule="additionalProperties", inside=bool(place), key=key
        )
    rule = error.validator_value if error.validator == "not" else error.schema
    wanted = (
        rule.get("patternErrorMessage", rule["errorMessage"]) if error.validator == "pattern" else rule["errorMessage"]
    )
    if _is_name(error):
        message = f"the name {short(error.instance)} {wanted}"
        return Fault(place=place, message=message, rule="propertyNames", inside=True, key=str(error.instance))
    if error.validator == "not":
        return Fault(place=place, message=f"{short(error.instance)} {wanted}")
    return Fault(place=place, message=f"{wanted}, not {describe(place, error.instance, fits)}")


@lru_cache(maxsize=4)
def _validator(name: str) -> Any:
    """Returns the validator of one schema; building it costs more than most files take to check."""
    # Imported here: 0.1 s that the other users of this package do not need.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import extend

    schema = load_schema(name)

    def required(validator: Any, keys: list[str], instance: object, rule: Mapping[str, Any]) -> Iterator[Any]:
        if isinstance(instance, Mapping):
            for key in keys:
                if key not in instance:
                    yield ValidationError("is required, and missing", path=[key])

    def additional(validator: Any, allowed: Any, instance: object, rule: Mapping[str, Any]) -> Iterator[Any]:
        if not isinstance(instance, Mapping):
            return
        known = rule.get("properties", {})
        for key, value in instance.items():
            if key in known:
                continue
            if allowed is False:
                hint = did_you_mean(key, known) or f"; known keys: {', '.join(known)}"
                yield ValidationError(f"unknown key {short(key)}{hint}", instance=key)
            else:
                yield from validator.descend(value, allowed, path=key)

    def pattern(validator: Any, expression: str, instance: object, rule: Mapping[str, Any]) -> Iterator[Any]:
        if isinstance(instance, str) and not _expression(expression).search(instance):
            yield ValidationError("does not match")

    def negation(validator: Any, rule_not: Any, instance: object, rule: Mapping[str, Any]) -> Iterator[Any]:
        if validator.evolve(schema=rule_not).is_valid(instance):
            yield ValidationError("is excluded")

    def minimum(validator: Any, least: float, instance: object, rule: Mapping[str, Any]) -> Iterator[Any]:
        if _is_comparable(instance) and instance < least:
            yield ValidationError("is too small")

    def maximum(validator: Any, most: float, instance: object, rule: Mapping[str, Any]) -> Iterator[Any]:
        if _is_comparable(instance) and instance > most:
            yield ValidationError("is too large")

    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            # JSON Schema counts 2.0 as an integer. A recipe does not: a float there is a slip.
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: _is_finite(value),
        }
    )
    keywords = {
        "required": required,
        "additionalProperties": additional,
        "pattern": pattern,
        "not": negation,
        # The library's own let ints pass that are beyond the range of a float, since they are no "number" here.
        "minimum": minimum,
        "maximum": maximum,
    }
    # jsonschema ships no annotations for this function.
    build: Any = extend
    return build(Draft202012Validator, keywords, type_checker=types)(schema)


@lru_cache(maxsize=64)
def _expression(pattern: str) -> re.Pattern[str]:
    # In JSON Schema (ECMA 262) `$` is the end of the text; in Python it also matches before a last newline.
    return re.compile(pattern.replace("$", r"\Z"))


def _is_comparable(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    if not _is_comparable(value):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        # An int beyond the range of a float.
        return False
