"""Plain-text layout for terminals."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Lays rows out in left-aligned columns.

    Args:
        rows: Cells of equal-length rows; the first row is usually the heading.
        indent: Put before each line.

    Returns:
        One line a row, without trailing white space.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
