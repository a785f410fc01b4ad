"""Reads what registries are made of: entry points of installed distributions, and JSON sidecars."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NoReturn

from aorta.registry.errors import RegistryError
from aorta.registry.files import UnreadableFileError, read_limited
from aorta.registry.inline import INLINE_PREFIX, inline_environment
from aorta.registry.names import short
from aorta.registry.shape import Fault, Place, find_faults

Kind = Literal["mitigation", "environment"]

_MAX_DIGITS = 1000

_GROUPS: Mapping[Kind, str] = {"mitigation": "aorta.mitigations", "environment": "aorta.environments"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One named object of a source, before names are compared across sources.

    Attributes:
        kind: What it is.
        name: Its name.
        content: The valid object, or None where it is broken.
        source: Where it came from, in words: ``the built-in of aorta``, ``the plugin acme``, ``the sidecar x.json``.
        package: What ``source_package`` will say.
        problem: Why it cannot be used, or None.
    """

    kind: Kind
    name: str
    content: Mapping[str, Any] | None
    source: str
    package: str
    problem: str | None = None


def entry_point_entries() -> list[Entry]:
    """Returns the mitigations and environments of every installed distribution, aorta's own first.

    A plugin that cannot be imported, or whose object is not valid, becomes an entry with a ``problem``: it must not
    take the others down.
    """
    found: list[Entry] = []
    installed = entry_points()
    for kind, group in _GROUPS.items():
        # One distribution can be seen twice (a checkout and its metadata on the path); that is no collision.
        unique = {(point.name, point.value, _distribution(point)): point for point in installed.select(group=group)}
        found += [_load(kind, point) for point in unique.values()]
    return sorted(found, key=lambda entry: entry.package != "aorta")


def _distribution(point: Any) -> str:
    return str(point.dist.name) if point.dist is not None else point.module


def _load(kind: Kind, point: Any) -> Entry:
    package = _distribution(point)
    source = "the built-ins of aorta" if package == "aorta" else f"the plugin {package} ({point.value})"

    def entry(content: Mapping[str, Any] | None, problem: str | None) -> Entry:
        return Entry(kind=kind, name=point.name, content=content, source=source, package=package, problem=problem)

    try:
        loaded = point.load()
        content = json.loads(json.dumps(dict(loaded), allow_nan=False))
    # A plugin's module may raise anything, SystemExit included.
    except (Exception, SystemExit) as error:
        return entry(None, f"{source} cannot be loaded: {type(error).__name__}: {short(str(error))[1:-1]}")
    wrapped = {"version": 1, f"{kind}s": {point.name: content}}
    faults = find_faults("sidecar", wrapped) or list(_wrong_inline_names(wrapped))
    if faults:
        return entry(None, f"{source} is not valid: {'; '.join(fault.message for fault in faults)}")
    return entry(content, None)


def sidecar_entries(path: Path) -> list[Entry]:
    """Returns the mitigations and environments of a sidecar file.

    Args:
        path: The JSON file.

    Raises:
        RegistryError: The file cannot be read, is not JSON, or does not match the sidecar schema; one line a fault.
    """
    try:
        data = _parse(read_limited(path))
        repeated = list(_repeated_keys(data, ()))
        faults = repeated or find_faults("sidecar", data) or list(_wrong_inline_names(data))
    except (UnreadableFileError, _NotJsonError) as error:
        raise RegistryError(f"sidecar {path}: {error}") from None
    if faults:
        raise RegistryError("\n".join(f"sidecar {path}: {_sentence(fault)}" for fault in faults))
    return [
        Entry(
            kind=kind,
            name=name,
            content=content,
            source=f"the sidecar {path}",
            # The name alone: a run keeps a copy of the file elsewhere, and a replay must describe the same thing.
            package=path.name,
        )
        for kind in _GROUPS
        for name, content in data.get(f"{kind}s", {}).items()
    ]


def _wrong_inline_names(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Finds automatic names that are not those of their content.

    A run writes the environments that its recipe named by image into a sidecar, which so can be loaded again.
    """
    for name, content in data.get("environments", {}).items():
        if not name.startswith(INLINE_PREFIX):
            continue
        own = inline_environment(content.get("docker") or "", content.get("env")).name
        if name != own or set(content) - {"docker", "env", "source_package"}:
            yield Fault(
                place=("environments", name),
                message=f"is an automatic name, and not that of this environment ({own}); choose a name of your own",
            )


class _NotJsonError(Exception):
    """Text that is no JSON, or none that a sidecar could hold."""


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys were written more than once."""

    repeated: list[str]

    @classmethod
    def from_pairs(cls, pairs: list[tuple[str, Any]]) -> _Object:
        result = cls()
        result.repeated = []
        for key, value in pairs:
            if key in result:
                result.repeated.append(key)
            result[key] = value
        return result


def _parse(text: bytes) -> Any:
    try:
        return json.loads(
            text.decode("utf-8-sig"),
            object_pairs_hook=_Object.from_pairs,
            parse_constant=_refuse_constant,
            parse_int=_parse_int,
        )
    except UnicodeDecodeError as error:
        raise _NotJsonError(f"is not UTF-8 (offset {error.start}); save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise _NotJsonError(f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise _NotJsonError("is not a sidecar: nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _NotJsonError(f"is not JSON: {name} has no JSON form")


def _parse_int(text: str) -> int:
    # Python refuses to read an int of more than 4300 digits, with advice that is of no use to a reader of ours.
    if len(text) > _MAX_DIGITS:
        raise _NotJsonError(f"is not a sidecar: it holds a number of {len(text)} digits")
    return int(text)


def _repeated_keys(data: Any, place: Place) -> list[Fault]:
    faults: list[Fault] = []
    # A stack, not recursion: the parser lets through whatever depth it could itself bear.
    stack: list[tuple[Any, Place]] = [(data, place)]
    while stack:
        value, where = stack.pop()
        if isinstance(value, _Object):
            faults += [
                Fault(place=(*where, key), message="is written twice; keep one of them") for key in value.repeated
            ]
            stack += [(item, (*where, key)) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [(item, (*where, index)) for index, item in enumerate(value)]
    return faults


def _sentence(fault: Fault) -> str:
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{short(step)[1:-1]}" for step in fault.place)
    return f"{place.removeprefix('.')}: {fault.message}" if place else fault.message
