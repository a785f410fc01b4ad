"""docs/guide-coverage.md names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_PAGE = REPOSITORY / "docs" / "guide-coverage.md"
_REFERENCE = re.compile(r"`(?P<path>tests/[^`:]+)(::(?P<name>[^`]+))?`")


def rows(text: str) -> list[list[str]]:
    """The rows of all tables of a page, without headings: promise, proof, state."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] not in ("promise", "---") and not set(row[0]) <= {"-"}]


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The names of a file's test functions, without running it."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def missing(text: str, root: Path) -> list[str]:
    """The tests and files that a page names and that are not there."""
    absent = []
    for found in _REFERENCE.finditer(text):
        path = root / found["path"]
        there = path.is_file() and (found["name"] is None or found["name"] in functions_of(path))
        if not there:
            absent.append(found[0])
    return absent


def test_each_named_test_exists() -> None:
    """A test that was renamed or removed leaves no promise without its proof."""
    assert missing(_PAGE.read_text("utf-8"), REPOSITORY) == []


def test_each_promise_has_a_proof_and_a_state() -> None:
    """Three columns; a row without a test says why."""
    table = rows(_PAGE.read_text("utf-8"))
    assert len(table) > 70
    assert [row for row in table if len(row) != 3 or not all(row)] == []
    assert [row for row in table if not _REFERENCE.search(row[1]) and not row[2].startswith("not done: ")] == []


@pytest.mark.parametrize(
    ("reference", "there"),
    [
        ("tests/a.py::test_x", True),
        ("tests/a.py::test_y", False),
        ("tests/a.py::helper", False),
        ("tests/b.py::test_x", False),
        ("tests/a.py", True),
        ("tests/b.py", False),
    ],
)
def test_a_wrong_reference_is_found(tmp_path: Path, reference: str, there: bool) -> None:
    """The check above can fail."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("def helper(): ...\ndef test_x(): ...\n", "utf-8")
    assert (missing(f"| promise | `{reference}` | done |", tmp_path) == []) is there
