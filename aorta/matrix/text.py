"""Text for people: numbers rounded, lists cut, Markdown escaped, columns padded for a terminal."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from aorta.text import plural

LIST_LIMIT = 10
"""Longest list in a page for people; the rest is in matrix.json."""

_NAMED_CELLS = 6
"""Most cells that are all named; a line that names more is no longer read."""

# A cell's name is made of these characters, and ends with another one than a full stop that ends a sentence.
_LONG_LIST = re.compile(rf"(?<![\w.-])[\w.-]*[\w-](?:, [\w.-]*[\w-]){{{_NAMED_CELLS},}}")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_BACKSLASH = re.compile(r"\\(?=[!-/:-@\[-`{-~]|$)")
_EDGE_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")


def one_line(text: str, limit: int | None = None) -> str:
    """Returns ``text`` as one line of printable characters, cut to ``limit`` characters.

    Escape sequences, direction marks and lone surrogates become U+FFFD: text from a trial must not steer the
    terminal that shows it.
    """
    line = " ".join(text.split())
    line = "".join("\ufffd" if unicodedata.category(char) in ("Cc", "Cf", "Cs") else char for char in line)
    return line if limit is None or len(line) <= limit else line[: limit - 1].rstrip() + "…"


def escape_markdown(text: str) -> str:
    """Escapes what Markdown would act on inside a line or a table cell, and nothing that it would leave alone."""
    text = _BACKSLASH.sub(r"\\\\", text)
    text = _ENTITY.sub(r"\\&", text)
    text = re.sub(r"[`*<|]", r"\\\g<0>", text).replace("~~", r"\~\~").replace("](", r"\](")
    return _EDGE_UNDERSCORE.sub(r"\\_", text)


def capped(items: Sequence[str], limit: int = LIST_LIMIT) -> list[str]:
    """Returns the first items, and how many more there are as the last one."""
    if len(items) <= limit:
        return list(items)
    return [*items[:limit], f"and {len(items) - limit} more (matrix.json)"]


def joined(items: Sequence[str], limit: int = LIST_LIMIT) -> str:
    """Returns the items in one line, cut like :func:`capped`."""
    return ", ".join(capped(items, limit))


def cells_named(names: Sequence[str], total: int) -> str:
    """Returns the cells that something is said of: all by name, or how many of them and the first three.

    Args:
        names: The cells' names.
        total: How many cells there are.
    """
    if len(names) == total > 1:
        return "all cells"
    if len(names) > _NAMED_CELLS:
        return f"{plural(len(names), 'cell')} ({', '.join(names[:3])}, ...)"
    return ", ".join(names)


def with_short_lists(text: str, names: Collection[str]) -> str:
    """Returns ``text`` with each long list of cells in it, ``a, b, c, ...``, drawn together as in a heading."""

    def shortened(match: re.Match[str]) -> str:
        listed = match[0].split(", ")
        return cells_named(listed, len(names)) if all(name in names for name in listed) else match[0]

    return _LONG_LIST.sub(shortened, text)


def ranges(numbers: Iterable[int]) -> str:
    """Returns increasing numbers with runs drawn together: ``0, 2-4, 7``; cut after ten runs."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return joined([str(first) if first == last else f"{first}-{last}" for first, last in runs])


def percent(share: float | None) -> str:
    """Returns a share as a percentage that is never rounded to 0% or 100% unless it is that."""
    if share is None:
        return "-"
    value = 100 * share
    if 0 < value < 0.1:
        return "<0.1%"
    if 99.9 < value < 100:
        return ">99.9%"
    return f"{value:.0f}%" if math.isclose(value, round(value), abs_tol=1e-9) else f"{value:.1f}%"


def decimals_for(values: Iterable[float | None]) -> int:
    """Returns the decimals, 0 to 4, that give the smallest of positive values three significant digits."""
    sizes = [abs(value) for value in values if value]
    return 0 if not sizes else max(0, min(4, 2 - math.floor(math.log10(min(sizes)))))


def fixed(value: float | None, decimals: int) -> str:
    """Returns a number with that many decimals, ``-`` for None; very large and very small ones in powers of ten."""
    if value is None:
        return "-"
    if value and not 10.0 ** -(decimals + 1) <= abs(value) < 1e9:
        return f"{value:.3g}"
    return f"{value:.{decimals}f}"


def p_value(value: float) -> str:
    """Returns a p-value with two significant digits."""
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.2g}"


def display_width(text: str) -> int:
    """Returns the columns that ``text`` takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[str] = ()) -> list[str]:
    """Returns the lines of a padded Markdown table.

    Args:
        header: Column titles.
        rows: Plain text, one entry a column; escaped here.
        right: Titles of the columns to align to the right.
    """
    cells = [[escape_markdown(text) for text in row] for row in (header, *rows)]
    widths = [max(3, *(display_width(row[column]) for row in cells)) for column in range(len(header))]
    to_right = set(right)
    aligned = [title in to_right for title in header]
    lines = [_table_line(row, widths, aligned) for row in cells]
    rule = "|".join(
        f" {'-' * (width - 1)}: " if is_right else f" {'-' * width} "
        for width, is_right in zip(widths, aligned, strict=True)
    )
    return [lines[0], f"|{rule}|", *lines[1:]]


def _table_line(row: Sequence[str], widths: Sequence[int], aligned: Sequence[bool]) -> str:
    padded = []
    for text, width, is_right in zip(row, widths, aligned, strict=True):
        gap = " " * (width - display_width(text))
        padded.append(f"{gap}{text}" if is_right else f"{text}{gap}")
    return f"| {' | '.join(padded)} |"
