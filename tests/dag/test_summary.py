"""The closing lines of a sweep, and text that is fit for a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.dag.runner import summary
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


def matrix(*hints: str, trials: int = 1) -> dict[str, Any]:
    """A complete matrix of one cell, whose trials all fail if there are hints and all pass otherwise."""
    cell = {
        "name": "a",
        "trials": trials,
        "trials_counted": trials,
        "verdict_counts": {"fail": trials if hints else 0, "error": 0},
        "missing_trials": [],
        "stop_reason": None,
        "error_summary": [],
        "failure_hints": [{"hint": hint} for hint in hints],
    }
    return {"complete": True, "cells": [cell], "nodes": [], "trials_expected": trials, "trials_present": trials}


@pytest.mark.parametrize(("trials", "told"), [(1, "the trial passed"), (2, "all 2 trials passed")])
def test_a_sweep_without_a_failure_says_so(trials: int, told: str) -> None:
    """One trial is not all of them."""
    assert summary(matrix(trials=trials)) == [told]


def test_reasons_that_are_not_shown_are_counted() -> None:
    """The first three say why; a longer line than a terminal's ends in dots."""
    lines = summary(matrix("x" * 201, "two", "three", "four", "five"))
    assert lines == ["a: 1 failed of 1 trial", f"  {'x' * 197}...", "  two", "  three", "  and 2 more (matrix.json)"]
