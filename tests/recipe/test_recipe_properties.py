"""Properties: no input makes the loader do anything but load or refuse, and what it loads can be written back."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aorta._resources import load_schema
from aorta.recipe import Recipe, RecipeSchemaError, dump_recipe, parse_recipe, resolved_recipe
from aorta.registry import load_registry
from aorta.registry.shape import find_faults

_REGISTRY = load_registry()
_CASES = [path.read_bytes() for path in sorted((Path(__file__).parent / "cases").glob("*.yaml"))]

# Everything a YAML stream may hold, with more of what means something in one.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_LIKE_NUMBERS = ["1e3", "1.0", "0o17", "010", "1:30", "2031-02-03", "1_000", "0x1f", ".5", "NaN", ".inf"]
_LIKE_WORDS = ["yes", "No", "on", "y", "null", "~", "=", "<<", "|", ">", "---", "..."]
_LIKE_SYNTAX = ["- a", "a: b", "# c", "'", '"', "\\", "%Y", "@at", "`tick", "{a}", "[a]", "&a", "*a", "!tag", "? a"]
_ODD_SPACE = ["", " lead", "trail ", "a\nb\n", "\n a", "\ttab", "a\r\nb", "\x85", "\u2028", "\ufeff", "é", "\U0001f600"]
_TRICKY = st.sampled_from([*_LIKE_NUMBERS, *_LIKE_WORDS, *_LIKE_SYNTAX, *_ODD_SPACE])
_WORDS = _TEXT | _TRICKY
_VALUES = _WORDS.filter(lambda text: "\0" not in text)
_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
)
_ENV = st.dictionaries(_NAMES, _VALUES, max_size=3)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=8,
)
_CONFIG = st.dictionaries(
    _WORDS.filter(lambda key: key != "steps" and not key.startswith("_aorta_")), _JSON, max_size=3
)
_OPTIONS = st.dictionaries(_NAMES.map(lambda name: f"NANLOG_{name}"), _VALUES, max_size=2)
_COLLECT = st.just([]) | st.just(["layer_numerics"]) | st.fixed_dictionaries({"layer_numerics": st.none() | _OPTIONS})
_COUNT = st.integers(1, 10**30)
_STOP = st.just({}) | st.fixed_dictionaries(
    # Below every number of trials, so that each cell can meet it.
    {"events": st.just(1)},
    optional={"max_trials": st.none() | _COUNT, "event_verdict": st.sampled_from(["fail", "pass", "error", None])},
)
_RETRIES = st.none() | st.integers(0, 100)
_IMAGE = st.from_regex(r"[a-z0-9]{1,6}(/[a-z0-9]{1,4})?(:[a-z0-9.]{1,4})?", fullmatch=True)
_CELL = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,10}", fullmatch=True),
        "mitigations": st.lists(st.sampled_from(["none", "tf32_off", "xnack"]), min_size=1, max_size=3),
        "environment": st.sampled_from(["local", "default"])
        | st.fixed_dictionaries({"docker": _IMAGE}, optional={"env": st.none() | _ENV}),
    },
    optional={
        "trials": st.none() | _COUNT,
        "steps": _COUNT,
        "extra_env": st.none() | _ENV,
        "collect": st.none() | _COLLECT,
        "workload_config": st.none() | _CONFIG,
        "stop_after": st.none() | _STOP,
        "retry_errors": _RETRIES,
    },
)
_RESERVED = set(load_schema("recipe")["$defs"]["cell"]["properties"]["name"]["not"]["enum"])
_RECIPE = st.fixed_dictionaries(
    {
        "schema_version": st.just(1),
        "workload": _WORDS.filter(lambda name: name.strip() != ""),
        "trials": _COUNT,
        "steps": _COUNT,
        "cells": st.lists(
            _CELL.filter(lambda cell: cell["name"] not in _RESERVED),
            min_size=1,
            max_size=3,
            unique_by=lambda cell: cell["name"],
        ),
    },
    optional={
        "ticket": st.none() | _WORDS.filter(bool),
        "trial_isolation": st.just("auto"),
        "save_logs": st.booleans(),
        "extra_env": _ENV,
        "collect": _COLLECT,
        "workload_config": _CONFIG,
        "stop_after": st.none() | _STOP,
        "retry_errors": _RETRIES,
        "confound": st.fixed_dictionaries({}, optional={"threshold": st.floats(0.01, 1e300)}),
    },
).map(lambda data: {**data, "confound": {**data.get("confound", {}), "baseline_cell": data["cells"][0]["name"]}})


def _same(left: Any, right: Any) -> bool:
    """Equality that tells True from 1, 1 from 1.0 and -0.0 from 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


def _load(data: dict[str, Any]) -> Recipe:
    return parse_recipe(dump_recipe(data), _REGISTRY)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_RECIPE)
def test_resolved_recipe_loads_to_an_equal_recipe(data: dict[str, Any]) -> None:
    """The snapshot of any recipe is valid, gives the same recipe, and is its own snapshot."""
    recipe = _load(data)
    resolved = resolved_recipe(recipe)
    assert find_faults("recipe", resolved) == []
    again = _load(resolved)
    assert again == recipe
    assert _same(resolved_recipe(again), resolved)


@settings(max_examples=150, deadline=None)
@given(_CONFIG)
def test_dumped_values_come_back_with_their_types_and_order(config: dict[str, Any]) -> None:
    """Strings that look like numbers, dates or booleans stay strings; keys keep their order."""
    text = dump_recipe({"workload_config": config})
    assert _same(yaml.safe_load(text)["workload_config"], config)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text("abc:-[]{}&*!|>'\"%@`#?, \n\t0123456789.eE+~<=", max_size=60))
def test_any_text_is_loaded_or_refused(text: str | bytes) -> None:
    """Only RecipeSchemaError leaves the loader, and each of its lines is one line."""
    _load_or_refuse(text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_CASES), st.data())
def test_mutated_recipes_are_loaded_or_refused(original: bytes, data: st.DataObject) -> None:
    """The same for recipes with pieces cut out, doubled or replaced."""
    text = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        piece = data.draw(
            st.sampled_from([b"", b"null", b"[", b"}", b"&a ", b"*a", b"<<: *a", b"!!set ", b"1e999", b"\xff", b"? "])
            | st.just(bytes(text[start:end]) * 2)
            | st.binary(max_size=4)
        )
        text[start:end] = piece
    _load_or_refuse(bytes(text))


@settings(max_examples=150, deadline=None)
@given(_RECIPE, st.data())
def test_wrong_values_anywhere_are_refused_at_their_place(recipe: dict[str, Any], data: st.DataObject) -> None:
    """Any value of a valid recipe may be replaced by any other: the loader still loads or refuses."""
    # Some strategies hand out one shared list.
    recipe = copy.deepcopy(recipe)
    target: Any = recipe
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(target[key], (dict, list)) and target[key] and data.draw(st.booleans()):
            target = target[key]
            continue
        target[key] = data.draw(_JSON)
        break
    _load_or_refuse(dump_recipe(recipe))


def _load_or_refuse(text: str | bytes) -> None:
    try:
        recipe = parse_recipe(text, _REGISTRY)
    except RecipeSchemaError as error:
        assert error.errors
        assert len(set(error.errors)) == len(error.errors)
        assert not any("\n" in str(fault) for fault in error.errors)
        return
    assert parse_recipe(dump_recipe(resolved_recipe(recipe)), _REGISTRY) == dataclasses.replace(recipe, source="recipe")
