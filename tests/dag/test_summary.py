"""The closing lines of a sweep, and text that is fit for a terminal."""

from __future__ import annotations

import pytest

from aorta.text import shortened


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a plain line", "a plain line"),
        ("two\nlines\tand more", "two lines and more"),
        ("\x1b[31mred\x07", "?[31mred?"),
        ("x" * 30, "x" * 17 + "..."),
        ("é" * 20, "é" * 20),
        (" " * 1000 + "late", "..."),
    ],
)
def test_what_a_trial_says_is_one_printable_line(text: str, expected: str) -> None:
    """A workload's message may hold escape sequences, line ends and megabytes."""
    assert shortened(text, 20) == expected
