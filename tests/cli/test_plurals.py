"""One of a thing is told in the singular: nobody reads of "1 trials"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import aorta
from aorta.text import plural

SOURCES = sorted(Path(aorta.__file__).parent.rglob("*.py"))
COUNTED = re.compile(r" (trials|cells|shares|jobs|ranks a host)\b")


def counted(node: ast.AST, *, chosen: bool = False) -> Iterator[str]:
    """Yields texts with a number before a plural, except those that a condition on the number chooses."""
    chosen = chosen or isinstance(node, ast.IfExp)
    if isinstance(node, ast.JoinedStr) and not chosen:
        for value, after in zip(node.values, node.values[1:], strict=False):
            text = str(after.value) if isinstance(after, ast.Constant) else ""
            if isinstance(value, ast.FormattedValue) and COUNTED.match(text):
                yield ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from counted(child, chosen=chosen)


def test_one_is_no_plural() -> None:
    """The helper that every such text uses."""
    assert [plural(number, "trial") for number in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]


def test_numbers_of_things_agree_with_their_nouns() -> None:
    """No text puts a plural after whatever number there is."""
    assert [text for path in SOURCES for text in counted(ast.parse(path.read_text("utf-8")))] == []
