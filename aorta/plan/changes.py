"""What differs between two JSON values, entry by entry. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

Change = dict[str, Any]
"""``key`` (a dotted path), ``a`` and ``b``; a side that does not have the key lacks the entry."""

IN_THE_VARIABLES = frozenset({"env", "source_package"})
"""Entries of a request's environment that its resolved variables show, or that change nothing: the file it is from."""

_WIDEST = 60


def find_changes(
    a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "", *, deep: bool = True
) -> Iterator[Change]:
    """Yields what differs, in the order of the keys of ``a``, then of those that only ``b`` has.

    Args:
        a: One side.
        b: The other.
        prefix: What each path begins with.
        deep: Whether objects inside are compared entry by entry, or as a whole.
    """
    for key in dict.fromkeys([*a, *b]):
        path = f"{prefix}{key}"
        if deep and isinstance(a.get(key), Mapping) and isinstance(b.get(key), Mapping):
            yield from find_changes(a[key], b[key], f"{path}.")
        elif key not in a or key not in b or a[key] != b[key]:
            yield {"key": path} | ({"a": a[key]} if key in a else {}) | ({"b": b[key]} if key in b else {})


def without(value: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns an object without some of its entries."""
    return {name: item for name, item in value.items() if name not in names}


def show_side(change: Change, name: str) -> str:
    """Shows one side of a change, ``a`` or ``b``, to a person; a long value is cut."""
    if name not in change:
        return "(absent)"
    value = change[name]
    if isinstance(value, Mapping) and set(value) == {"value", "layer"}:
        return f"{_short(value['value'])} ({value['layer']})"
    return _short(value)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
