"""Plain-text layout for terminals.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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


def shortened(text: str, width: int) -> str:
    """Returns ``text`` on one line of at most ``width`` characters, fit to be printed on a terminal.

    White space is folded; whatever else cannot be printed (escape sequences, control characters) becomes ``?``.
    """
    # No more than can be shown: the text may be a trial's megabytes.
    line = " ".join(text[: 4 * width].split())
    printable = "".join(character if character.isprintable() else "?" for character in line)
    cut = len(printable) > width or len(text) > 4 * width
    return f"{printable[: width - 3]}..." if cut else printable


def plural(number: int, noun: str) -> str:
    """Returns ``1 trial``, ``2 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
