"""A tree of YAML nodes to plain data: the meaning half of reading a recipe.

Scalars mean what PyYAML's safe loader says (YAML 1.1). What has no plain form is reported with its place, all of it
at once, and stands in the data as a ``Foreign`` value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import yaml
from yaml.constructor import SafeConstructor

from aorta.recipe.yaml_nodes import MAX_DEPTH, MAX_NODES, Node, YamlError, parse_nodes
from aorta.registry.names import bare, short
from aorta.registry.shape import MAX_FAULTS, Fault, Fits, Place, describe

_MAX_DIGITS = 1000
"""Digits of a number. Python itself refuses to read or print an int of more than 4300 digits."""

_MAX_CHARACTERS = 16 * 1024 * 1024
"""Characters of all strings after aliases are written out."""

_NO_JSON = {
    "timestamp": "a date",
    "binary": "a binary value",
    "set": "a set",
    "omap": "an ordered mapping",
    "pairs": "a list of pairs",
    "value": "a YAML value marker",
    "merge": "a YAML merge marker",
}
_SCALAR_WORDS = {"int": "an int", "float": "a float", "bool": "a bool", "null": "null"}
_KIND_OF_TAG = {"seq": "list", "map": "mapping", "set": "mapping", "omap": "list", "pairs": "list"}


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A value that YAML knows and JSON does not.

    Attributes:
        kind: What it is, for people, with its article.
        text: Its text, or an empty string.
        reported: Whether its fault is already among the document's faults.
    """

    kind: str
    text: str = ""
    reported: bool = False

    def __str__(self) -> str:
        return f"{self.kind} ({bare(self.text)})" if self.text else self.kind


class _Field(NamedTuple):
    order: int
    key: Node
    value: Node


class Document:
    """A document's data, and where each value stands in the text.

    Attributes:
        data: Plain data; mappings have string keys, and ``Foreign`` stands for what has no plain form.
        faults: What is wrong with the document as YAML data.
    """

    def __init__(self, text: bytes) -> None:
        """Reads one document.

        Args:
            text: The content of the file.

        Raises:
            YamlError: There is no data to go on with.
        """
        self.faults: list[Fault] = []
        self._root = parse_nodes(text)
        self._fields: dict[Node, dict[str, _Field]] = {}
        self._flattening: set[Node] = set()
        self._open: set[Node] = set()
        self._values = 0
        self._characters = 0
        self.data: Any = self._value(self._root, ())

    def line(self, place: Place) -> int:
        """Returns the line of the value at ``place``, or of what is nearest to it."""
        line = self._root.line
        for node, key in self._walk(place):
            line = key.line if key is not None else node.line
        return line

    def order(self, place: Place) -> tuple[int, ...]:
        """Returns a sort key that puts places into the order of the document, missing keys first."""
        return tuple(self._positions(place))

    def describe(self, place: Place, value: object, fits: Fits = lambda value: False) -> str:
        """Says what was found, with what YAML made of it and a change that would make it right, if there is one."""
        node = self._node(place)
        found = describe(place, value)
        if node is None or node.kind != "scalar":
            return found
        if (isinstance(value, bool) and node.text.lower() not in ("true", "false")) or self.is_base_60(place):
            found = f"{found} (YAML reads {bare(node.text)} so)"
        if value is None:
            return f'{found}; write "" for an empty string' if fits("") else found
        if not isinstance(value, str) and fits(node.text):
            return f'{found}; quote it: "{bare(node.text)}"'
        whole = _whole_number(node.text)
        if whole is None or not fits(whole):
            return found
        if isinstance(value, str) and node.text == str(whole):
            return f"{found}; remove the quotes"
        return f"{found}; write {whole if abs(whole) < 10**15 else 'it without a point'}"

    def is_base_60(self, place: Place) -> bool:
        """Whether the value at a place is a number written with colons: 1:30 is 90 in YAML 1.1."""
        node = self._node(place)
        return node is not None and node.tag in ("int", "float") and ":" in node.text

    def _walk(self, place: Place) -> Iterator[tuple[Node, Node | None]]:
        """Yields the nodes that lead to ``place`` with their keys, as far as they exist."""
        node = self._root
        for step in place:
            key: Node | None = None
            if isinstance(step, int) and node.kind == "list" and step < len(node.items):
                node = node.items[step]
            elif isinstance(step, str) and step in self._fields.get(node, {}):
                found = self._fields[node][step]
                node, key = found.value, found.key
            else:
                return
            yield node, key

    def _node(self, place: Place) -> Node | None:
        nodes = list(self._walk(place))
        if len(nodes) < len(place):
            return None
        return nodes[-1][0] if nodes else self._root

    def _positions(self, place: Place) -> Iterator[int]:
        node: Node | None = self._root
        for step in place:
            if isinstance(step, int):
                yield step
                inside = node is not None and node.kind == "list" and step < len(node.items)
                node = node.items[step] if inside and node is not None else None
                continue
            found = self._fields.get(node, {}).get(step) if node is not None else None
            yield found.order if found is not None else -1
            node = found.value if found is not None else None

    def _fault(self, place: Place, message: str, line: int, *, inside: bool = False) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(place=place, message=message, line=line, inside=inside))

    def _spend(self, node: Node, place: Place, values: int = 1) -> None:
        """Counts what aliases and merges would write out, so that a few lines cannot fill the memory."""
        self._values += values
        self._characters += len(node.text)
        if self._values > MAX_NODES or self._characters > _MAX_CHARACTERS or len(place) > MAX_DEPTH:
            raise YamlError("holds too much once its aliases are written out", place=place, line=node.line)

    def _value(self, node: Node, place: Place) -> Any:
        self._spend(node, place)
        expected = _KIND_OF_TAG.get(node.tag, "scalar")
        if node.kind != expected or (node.kind == "scalar" and node.tag not in _SCALARS and node.tag not in _NO_JSON):
            tag = f"!!{node.tag}" if node.tag.isalnum() else node.tag
            raise YamlError(f"the tag {bare(tag)} is not allowed; write a plain value", line=node.line)
        if node.tag in _NO_JSON:
            return Foreign(kind=_NO_JSON[node.tag], text=node.text)
        if node.kind == "scalar":
            return self._scalar(node, place)
        if node in self._open:
            self._fault(place, "contains itself through an alias, which cannot be written down", node.line)
            return Foreign(kind="a value that contains itself", reported=True)
        self._open.add(node)
        try:
            if node.kind == "list":
                return [self._value(item, (*place, index)) for index, item in enumerate(node.items)]
            fields = self._flatten(node, place, 0)
            return {key: self._value(found.value, (*place, key)) for key, found in fields.items()}
        finally:
            self._open.discard(node)

    def _scalar(self, node: Node, place: Place) -> Any:
        if node.tag == "str":
            return _text(node)
        try:
            return _number(node)
        except (ValueError, ArithmeticError, LookupError, AttributeError):
            kind = _SCALAR_WORDS[node.tag]
            reason = (
                f"of more than {_MAX_DIGITS} digits" if len(node.text) >= _MAX_DIGITS // 4 else "that cannot be read"
            )
            self._fault(place, f"is {kind} {reason}: {short(node.text)}", node.line)
            return Foreign(kind=kind, text=node.text, reported=True)

    def _flatten(self, node: Node, place: Place, depth: int) -> dict[str, _Field]:
        """Returns a mapping's fields by key, merge keys resolved: explicit keys win, then the first merged."""
        if node in self._fields:
            return self._fields[node]
        if node in self._flattening or depth > MAX_DEPTH:
            raise YamlError("merges (<<) a mapping into itself, or too many levels deep", place=place, line=node.line)
        self._flattening.add(node)
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        merge_key: Node | None = None
        for key_node, value in node.pairs:
            if key_node.kind == "scalar" and key_node.tag == "merge":
                if merge_key is not None:
                    self._fault(
                        place,
                        f"the merge key (<<) is written twice, first on line {merge_key.line}",
                        key_node.line,
                        inside=True,
                    )
                    continue
                merge_key = key_node
                for source in self._merge_sources(value, place):
                    fields = self._flatten(source, place, depth + 1)
                    self._spend(source, place, len(fields))
                    for name, found in fields.items():
                        merged.setdefault(name, (found.key, found.value))
                continue
            key = self._key(key_node, place)
            if key is None:
                continue
            if key in own:
                first = own[key][0].line
                self._fault((*place, key), f"is written twice, first on line {first}", key_node.line)
                continue
            own[key] = (key_node, value)
        both = {**merged, **own}
        fields = {
            key: _Field(order=order, key=key_node, value=value)
            for order, (key, (key_node, value)) in enumerate(both.items())
        }
        self._flattening.discard(node)
        self._fields[node] = fields
        return fields

    def _merge_sources(self, value: Node, place: Place) -> list[Node]:
        sources = value.items if value.kind == "list" else [value]
        good = [source for source in sources if source.kind == "mapping" and source.tag == "map"]
        if len(good) < len(sources):
            self._fault(place, "the merge key (<<) takes a mapping or a list of mappings", value.line, inside=True)
        return good

    def _key(self, node: Node, place: Place) -> str | None:
        if node.kind != "scalar":
            self._fault((), f"a {node.kind} cannot be a key", node.line)
            return None
        if node.tag == "str":
            return _text(node)
        text = bare(node.text)
        what = _NO_JSON.get(node.tag, _SCALAR_WORDS.get(node.tag, "value with a tag"))
        message = f'the key {text} is {what} in YAML, and keys are strings; quote it: "{text}"'
        self._fault(place, message, node.line, inside=True)
        return None


def _text(node: Node) -> str:
    # libyaml refuses lone surrogates; PyYAML's Python scanner lets them through.
    if not node.text.isascii() and any("\ud800" <= character <= "\udfff" for character in node.text):
        raise YamlError("holds a lone surrogate, which is no text", line=node.line)
    return node.text


def _number(node: Node) -> int | float | bool | None:
    """Returns a bool, number or null as PyYAML's safe loader would."""
    if len(node.text) > 2 * _MAX_DIGITS:
        raise ValueError("too long")
    scalar = yaml.ScalarNode(tag=f"tag:yaml.org,2002:{node.tag}", value=node.text)
    value: int | float | bool | None = getattr(_constructor(), _SCALARS[node.tag])(scalar)
    if isinstance(value, int) and abs(value) >= 10**_MAX_DIGITS:
        raise ValueError("too long")
    return value


_SCALARS = {
    "str": "construct_yaml_str",
    "int": "construct_yaml_int",
    "float": "construct_yaml_float",
    "bool": "construct_yaml_bool",
    "null": "construct_yaml_null",
}


@lru_cache(maxsize=1)
def _constructor() -> Any:
    return SafeConstructor()


def _whole_number(text: str) -> int | None:
    """Returns the whole number that a text stands for to a person, or None."""
    try:
        number = Decimal(text)
    except ArithmeticError:
        return None
    # Beyond that many digits no value is right, and making the int would take long.
    if not number.is_finite() or number.adjusted() > 20 or number != number.to_integral_value():
        return None
    return int(number)
