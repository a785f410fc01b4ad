"""YAML text to a tree of nodes that know their lines: the syntax half of reading a recipe.

PyYAML's own composer recurses in C (deep nesting ends the process) and keeps the last of two equal keys without a
word, so the tree is built here from its events, with limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from aorta.registry.shape import Place

MAX_NODES = 50_000
"""Values in one file, and values after aliases are written out."""

MAX_DEPTH = 100
"""Levels of nesting; recipes use five or so, and everything that walks the data later recurses."""

# The C scanner is ten times faster; a PyYAML built without libyaml has only the other.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_STANDARD = "tag:yaml.org,2002:"


class YamlError(ValueError):
    """Text that is no YAML document of this kind.

    Attributes:
        place: The value at which reading stopped, where one can be named; else empty.
        line: Line in the file, counted from 1, or None.
    """

    def __init__(self, message: str, *, place: Place = (), line: int | None = None) -> None:
        super().__init__(message)
        self.place = place
        self.line = line


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One value of the document; an alias is the same node again.

    Attributes:
        kind: Shape of the node.
        tag: Resolved tag without the standard prefix (``int``), or a foreign tag as written (``!frob``).
        line: Line on which it begins, counted from 1.
        text: A scalar's text.
        items: A list's items.
        pairs: A mapping's keys and values, repeated keys and merge keys included.
    """

    kind: Literal["scalar", "list", "mapping"]
    tag: str
    line: int
    text: str = ""
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Open:
    """A list or mapping whose end has not come yet."""

    node: Node
    key: Node | None = None

    def next_step(self) -> str | int | None:
        """Returns the key or position of the value that comes next."""
        if self.node.kind == "list":
            return len(self.node.items)
        return self.key.text if self.key is not None else None

    def last_step(self) -> str | int | None:
        """Returns the key or position of the value that came last."""
        if self.node.kind == "list":
            return len(self.node.items) - 1
        return self.node.pairs[-1][0].text if self.node.pairs else None


def parse_nodes(data: bytes) -> Node:
    """Returns the root node of the only document in ``data``.

    Raises:
        YamlError: Not UTF-8, not YAML, not exactly one document, or beyond the limits of this module.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}); save it as UTF-8"
        raise YamlError(message, line=line) from None
    loader = _Loader(text.removeprefix("\ufeff"))
    try:
        return _Builder(loader).build()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    except yaml.YAMLError as error:
        raise YamlError(f"is not YAML: {_reader_problem(error)}", line=_line_of_reader_error(error, text)) from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, YamlError):
            raise
        # PyYAML's Python scanner passes an escape such as "\U99999999" straight to chr().
        raise YamlError(f"is not YAML: {error}") from None
    finally:
        loader.dispose()


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> YamlError:
    mark = error.problem_mark or error.context_mark
    said = ", ".join(part for part in (error.context, error.problem) if part)
    column = f" (column {mark.column + 1})" if mark is not None else ""
    if mark is not None and "\t" in _indentation(text, mark.line):
        said += "; a tab may not indent, use spaces"
    return YamlError(f"is not YAML: {said}{column}".replace("\n", " "), line=_mark_line(error))


def _mark_line(error: yaml.MarkedYAMLError) -> int | None:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark is not None else None


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _indentation(text: str, line: int) -> str:
    lines = text.splitlines()
    found = lines[line] if line < len(lines) else ""
    return found[: len(found) - len(found.lstrip())]


def _reader_problem(error: yaml.YAMLError) -> str:
    character = getattr(error, "character", None)
    if isinstance(character, int):
        return f"the character U+{character:04X} may not stand in a YAML file"
    return str(error).replace("\n", " ")


def _line_of_reader_error(error: yaml.YAMLError, text: str) -> int | None:
    position = getattr(error, "position", None)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else None


class _Builder:
    """Builds the tree without recursion."""

    def __init__(self, loader: Any) -> None:
        # Any: the C and the Python loader share these methods and no type.
        self._next_event: Callable[[], Any] = loader.get_event
        self._resolve: Callable[[type[yaml.Node], str | None, Any], str] = loader.resolve
        self._anchors: dict[str, Node] = {}
        self._open: list[_Open] = []
        self._nodes = 0
        self._root: Node | None = None

    def build(self) -> Node:
        documents = 0
        while True:
            event = self._event()
            if isinstance(event, yaml.StreamEndEvent):
                break
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise YamlError("holds more than one YAML document; keep one document a file", line=_line(event))
            elif isinstance(event, yaml.NodeEvent):
                self._add(event)
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                self._open.pop()
        if self._root is None:
            raise YamlError("is empty; it must hold a mapping of recipe keys")
        return self._root

    def _event(self) -> Any:
        try:
            return self._next_event()
        except yaml.MarkedYAMLError as error:
            # libyaml has its own limit, and looks far enough ahead to meet it before ours.
            if "maximum nesting depth" in str(error.problem):
                message = f"is nested more than {MAX_DEPTH} levels deep"
                raise YamlError(message, place=self._place(), line=_mark_line(error)) from None
            raise

    def _place(self) -> Place:
        """Returns the place of the value that is about to be attached."""
        steps = [level.last_step() for level in self._open[:-1]] + [level.next_step() for level in self._open[-1:]]
        return tuple(step for step in steps if step is not None)

    def _add(self, event: Any) -> None:
        line = _line(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise YamlError(f"holds more than {MAX_NODES} values", line=line)
        if isinstance(event, yaml.AliasEvent):
            target = self._anchors.get(str(event.anchor))
            if target is None:
                raise YamlError(f"is not YAML: the alias *{event.anchor} has no anchor before it", line=line)
            self._attach(target)
            return
        node = self._node(event, line)
        if event.anchor is not None:
            if event.anchor in self._anchors:
                raise YamlError(f"is not YAML: the anchor &{event.anchor} is set twice", line=line)
            self._anchors[event.anchor] = node
        if node.kind != "scalar" and len(self._open) >= MAX_DEPTH:
            raise YamlError(f"is nested more than {MAX_DEPTH} levels deep", place=self._place(), line=line)
        self._attach(node)
        if node.kind != "scalar":
            self._open.append(_Open(node=node))

    def _node(self, event: Any, line: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            tag = self._tag(event.tag, yaml.ScalarNode, event.value, event.implicit)
            return Node(kind="scalar", tag=tag, line=line, text=event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(kind="list", tag=self._tag(event.tag, yaml.SequenceNode, None, event.implicit), line=line)
        return Node(kind="mapping", tag=self._tag(event.tag, yaml.MappingNode, None, event.implicit), line=line)

    def _tag(self, tag: str | None, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        resolved = self._resolve(kind, value, implicit) if tag is None or tag == "!" else tag
        return resolved.removeprefix(_STANDARD)

    def _attach(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if parent.node.kind == "list":
            parent.node.items.append(node)
        elif parent.key is None:
            parent.key = node
        else:
            parent.node.pairs.append((parent.key, node))
            parent.key = None
