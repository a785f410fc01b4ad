"""What to measure: read from a file or from ``NANLOG_*`` variables. What is wrong is warned about and left out.

Standard library only.
"""

from __future__ import annotations

import fnmatch
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from aorta.registry.names import did_you_mean

TENSORS: tuple[str, ...] = ("input", "output", "weight", "bias", "igrad", "grad")
"""What of a layer can be watched; ``igrad`` is its input's gradient, ``grad`` that of its own parameters."""

PLACES: tuple[str, ...] = ("stage", "input", "output")
DIAGNOSTICS: tuple[str, ...] = ("addr", "locate", "bad_values", "dump_tensor", "alloc_snapshot")
STEP_ENDS: tuple[str, ...] = ("auto", "optimizer", "forward")

VARIABLES: tuple[str, ...] = (
    *(
        "NANLOG_DIR",
        "NANLOG_SPEC",
        "NANLOG_SPEC_FILE",
        "NANLOG_WATCH_NAMES",
        "NANLOG_SAMPLE_EVERY",
        "NANLOG_PRE_CONTEXT",
    ),
)

MAX_PRE_CONTEXT = 1000

Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which modules are meant.

    Attributes:
        names: Globs of qualified names; none for all.
        types: Class names; none for all modules that hold no other.
        stride: Takes each ``stride``-th of them, in the order in which they are found.
        place: Where this is set, for messages.
    """

    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    stride: int = 1
    place: str = "watch"

    def matches(self, name: str, kind: str, is_leaf: bool) -> bool:
        """Tells whether a module is meant, apart from the stride."""
        if self.names and not any(fnmatch.fnmatchcase(name, glob) for glob in self.names):
            return False
        if self.types:
            return kind in self.types
        # Containers only repeat what their parts say; a name asks for them.
        return is_leaf or bool(self.names)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Modules, and what is measured of each.

    Attributes:
        scope: Which modules.
        tensors: Some of ``TENSORS``.
    """

    scope: Scope = field(default_factory=Scope)
    tensors: tuple[str, ...] = ("output", "igrad")


@dataclass(frozen=True, kw_only=True)
class Follow:
    """One tensor that modules hand on under a name: as a keyword argument, or as a key of what they take or return.

    Attributes:
        tensor: The name.
        at: ``input``, ``output``, or ``stage`` for both.
        scope: At which modules; by default at all.
        bounds: Smallest and largest value that is right, or None.
        place: Where this is set, for messages.
    """

    tensor: str
    at: str = "stage"
    scope: Scope = field(default_factory=lambda: Scope(names=("*",)))
    bounds: tuple[float, float] | None = None
    place: str = "follow"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What is measured, and where it goes.

    Attributes:
        watch: Modules to measure.
        follow: Tensors to follow.
        sample_every: Measures each ``sample_every``-th step.
        pre_context: Steps before a bad one that are written, sampled or not; above 0 each step is measured.
        huge: A finite value of this size or more is counted as huge.
        step_end: What ends a step: ``optimizer``, ``forward`` (the next call of a whole model), or ``auto``.
        diagnostics: Some of ``DIAGNOSTICS``.
        folder: Where the files go.
    """

    watch: tuple[Watch, ...] = (Watch(),)
    follow: tuple[Follow, ...] = ()
    sample_every: int = 1
    pre_context: int = 0
    huge: float = 1e10
    step_end: str = "auto"
    diagnostics: frozenset[str] = frozenset()
    folder: str = "layer_numerics"


def read_spec(config: str | None, env: Mapping[str, str], warn: Warn) -> Spec:
    """Reads what to measure.

    ``config`` comes before ``NANLOG_SPEC_FILE``, that before ``NANLOG_SPEC``, and that before the flat variables
    ``NANLOG_WATCH_NAMES``, ``NANLOG_SAMPLE_EVERY`` and ``NANLOG_PRE_CONTEXT``. ``NANLOG_DIR`` goes with each of them.

    Args:
        config: A JSON file, or None.
        env: Environment variables.
        warn: Told each thing that is wrong, by its place; the rest of the specification holds.
    """
    for name in sorted(env):
        if name.startswith("NANLOG_") and name not in VARIABLES:
            near = did_you_mean(name, VARIABLES)
            warn(f"{name}: is not known here{near}; left out. There are: {', '.join(VARIABLES)}")
    folder = env.get("NANLOG_DIR") or Spec.folder
    file = config or env.get("NANLOG_SPEC_FILE")
    source = config or ("NANLOG_SPEC_FILE" if file else "NANLOG_SPEC")
    try:
        if file:
            with open(file, encoding="utf-8") as opened:
                text = opened.read()
        elif env.get("NANLOG_SPEC"):
            text = env["NANLOG_SPEC"]
        else:
            return _build(_flat(env, warn), folder, "", warn)
        data = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        warn(f"{source}: {error}; the defaults are measured")
        return Spec(folder=folder)
    if not isinstance(data, dict):
        warn(f'{source}: must be a JSON object, such as {{"sample_every": 10}}; the defaults are measured')
        return Spec(folder=folder)
    return _build(data, folder, source, warn)


def _flat(env: Mapping[str, str], warn: Warn) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if env.get("NANLOG_WATCH_NAMES"):
        names = [name.strip() for name in env["NANLOG_WATCH_NAMES"].split(",") if name.strip()]
        if names:
            data["watch"] = [{"scope": {"names": names}}]
        else:
            warn(f"NANLOG_WATCH_NAMES: must be globs of layers, not {env['NANLOG_WATCH_NAMES']!r:.60}; left out")
    for key in ("sample_every", "pre_context"):
        value = env.get(f"NANLOG_{key.upper()}")
        if value:
            data[key] = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else value
    return data


class _Reader:
    """Takes values out of a mapping; what is wrong is warned about and replaced by the default.

    Args:
        data: The mapping.
        place: Where it stands; nothing for the flat variables.
        warn: Told what is wrong.
        known: The keys that it may have.
    """

    def __init__(self, data: dict[str, Any], place: str, warn: Warn, known: tuple[str, ...]) -> None:
        self.data, self.place, self.warn = data, place, warn
        for key in self.data:
            if key not in known:
                near = did_you_mean(key, known)
                warn(f"{self.at(key)}: is not known here{near}; left out. There are: {', '.join(known)}")

    def at(self, key: str) -> str:
        """Returns the place of a key, as warnings name it."""
        return f"{self.place}.{key}" if self.place else f"NANLOG_{key.upper()}"

    def wrong(self, key: str, wanted: str) -> None:
        self.warn(f"{self.at(key)}: must be {wanted}, not {self.data[key]!r:.60}; left out")

    def whole(self, key: str, least: int, most: int, default: int) -> int:
        value = self.data.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.wrong(key, f"a whole number from {least} to {most}")
        return default

    def number(self, key: str, default: float) -> float:
        value = self.data.get(key, default)
        if _is_number(value) and value > 0:
            return float(value)
        self.wrong(key, "a number above 0")
        return default

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.data.get(key, default)
        if value in choices:
            return str(value)
        self.wrong(key, f"one of {', '.join(choices)}")
        return default

    def names(self, key: str, choices: tuple[str, ...] | None, default: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the names in a list, without those that are wrong; the default if none is right."""
        value = self.data.get(key, list(default))
        if not isinstance(value, list):
            self.wrong(key, f"a list of {', '.join(choices) if choices else 'names'}")
            return default
        kept = []
        for index, one in enumerate(value):
            if isinstance(one, str) and (not choices or one in choices):
                kept.append(one)
                continue
            wanted = f"one of {', '.join(choices)}" if choices else "a name"
            near = did_you_mean(one, choices or ()) if isinstance(one, str) else ""
            self.warn(f"{self.at(key)}[{index}]: must be {wanted}, not {one!r:.60}{near}; left out")
        return tuple(kept) if kept or not value else default

    def items(self, key: str) -> list[tuple[str, Any]]:
        value = self.data.get(key, [])
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list):
            self.wrong(key, "a list of objects")
            return []
        found = []
        for index, item in enumerate(value):
            if isinstance(item, dict):
                found.append((f"{self.at(key)}[{index}]", item))
            else:
                self.warn(f"{self.at(key)}[{index}]: must be an object, not {item!r:.60}; left out")
        return found


def _is_number(value: object) -> TypeGuard[int | float]:
    """Tells whether a value is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max or value in (math.inf, -math.inf)


def _build(data: dict[str, Any], folder: str, source: str, warn: Warn) -> Spec:
    known = ("watch", "follow", "sample_every", "pre_context", "huge", "step_end", "diagnostics")
    reader = _Reader(data, source, warn, known)
    watch = tuple(_watch(item, place, warn) for place, item in reader.items("watch"))
    follow = tuple(one for place, item in reader.items("follow") if (one := _follow(item, place, warn)) is not None)
    return Spec(
        # Following a tensor alone is a way to measure little.
        watch=watch or (() if follow and not data.get("watch") else (Watch(),)),
        follow=follow,
        sample_every=reader.whole("sample_every", 1, 10**9, 1),
        pre_context=reader.whole("pre_context", 0, MAX_PRE_CONTEXT, 0),
        huge=reader.number("huge", Spec.huge),
        step_end=reader.choice("step_end", STEP_ENDS, "auto"),
        diagnostics=_diagnostics(reader),
        folder=folder,
    )


def _diagnostics(reader: _Reader) -> frozenset[str]:
    value = reader.data.get("diagnostics", [])
    if isinstance(value, dict):
        reader.data["diagnostics"] = [name for name, wanted in value.items() if wanted]
    return frozenset(reader.names("diagnostics", DIAGNOSTICS, ()))


def _scope(outer: _Reader, stride: int, names: tuple[str, ...] = ()) -> Scope:
    data = outer.data.get("scope", {})
    if not isinstance(data, dict):
        outer.wrong("scope", 'an object, such as {"names": ["layers.*"]}')
        data = {}
    # The flat variables can set the names of one scope.
    place = "NANLOG_WATCH_NAMES" if outer.place == "NANLOG_WATCH[0]" else outer.at("scope")
    reader = _Reader(data, place, outer.warn, ("names", "types"))
    kinds = reader.names("types", None, ())
    return Scope(names=reader.names("names", None, names), types=kinds, stride=stride, place=place)


def _watch(data: dict[str, Any], place: str, warn: Warn) -> Watch:
    reader = _Reader(data, place, warn, ("scope", "tensors", "stride"))
    stride = reader.whole("stride", 1, 10**6, 1)
    scope = _scope(reader, stride)
    return Watch(scope=scope, tensors=reader.names("tensors", TENSORS, ("output", "igrad")))


def _follow(data: dict[str, Any], place: str, warn: Warn) -> Follow | None:
    reader = _Reader(data, place, warn, ("tensor", "at", "stages", "scope", "stride", "bounds"))
    tensor = reader.data.get("tensor")
    if not isinstance(tensor, str) or not tensor:
        warn(f"{place}.tensor: must be the name of a tensor; left out")
        return None
    stages = reader.names("stages", None, ("*",))
    scope = _scope(reader, reader.whole("stride", 1, 10**6, 1), stages)
    bounds = reader.data.get("bounds")
    pair = None
    if isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_number, bounds)) and bounds[0] <= bounds[1]:
        pair = (float(bounds[0]), float(bounds[1]))
    elif bounds is not None:
        reader.wrong("bounds", "a list of the smallest and the largest value")
    return Follow(tensor=tensor, at=reader.choice("at", PLACES, "stage"), scope=scope, bounds=pair, place=place)
