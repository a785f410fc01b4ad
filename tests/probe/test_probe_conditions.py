"""The language of conditions: what it means, what it refuses, and that nothing escapes from it."""

from __future__ import annotations

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.probe.conditions import MAX_LENGTH, NAMES, Condition, ConditionError, number_or_text

VALUES = {"capture": 2.5, "exit_code": 0, "walltime_sec": 12.0, "peak_vram_mib": 4096.0}


def holds(text: str, **values: bool | float | str | None) -> bool:
    """Whether a condition holds of the values above, or of those given instead."""
    return Condition(text).holds({**VALUES, **values})


@pytest.mark.parametrize(
    "text",
    [
        "capture > 2",
        "capture == 2.5 and exit_code == 0",
        "1 < capture < 3",
        "not capture < 1",
        "capture + 1 - 0.5 == 3",
        "peak_vram_mib / 1024 >= 4",
        "-capture < 0",
        "walltime_sec > 1000 or exit_code == 0",
        "not math.isnan(capture)",
        " capture != 3 ",
    ],
)
def test_a_true_condition_holds(text: str) -> None:
    """Comparison, boolean logic, arithmetic and the two functions mean what they do in Python."""
    assert holds(text)


@pytest.mark.parametrize("text", ["capture > 3", "exit_code != 0", "1 < capture < 2", "math.isinf(capture)"])
def test_a_false_condition_does_not_hold(text: str) -> None:
    """A chain is false as soon as one of its links is."""
    assert not holds(text)


def test_nan_is_a_number_that_equals_none() -> None:
    """NaN compares as IEEE 754 says, and isnan finds it."""
    nan = number_or_text("nan")
    assert holds("math.isnan(capture)", capture=nan)
    assert holds("capture != capture", capture=nan)
    assert not holds("capture > 1 or capture <= 1", capture=nan)


@pytest.mark.parametrize(
    "text", ["capture > 1", "not capture > 1", "capture != 1", "math.isnan(capture)", "-capture < 1"]
)
def test_what_is_missing_makes_no_condition_hold(text: str) -> None:
    """A value that was not measured is unknown, and so is its negation."""
    assert not holds(text, capture=None)
    assert not Condition(text).holds({})


@pytest.mark.parametrize("text", ["exit_code == 0 or capture > 1", "capture > 1 or exit_code == 0"])
def test_what_is_known_decides_beside_the_unknown(text: str) -> None:
    """``True or unknown`` is true in either order."""
    assert holds(text, capture=None)


@pytest.mark.parametrize("text", ["1 / exit_code > 0", "1 / exit_code <= 0", "not 1 / exit_code > 0"])
def test_a_division_by_zero_is_unknown(text: str) -> None:
    """It makes nothing true, not even a negation."""
    assert not holds(text)


def test_an_overflow_is_infinite() -> None:
    """A quotient that is too large is IEEE 754's infinity."""
    assert holds("math.isinf(1e308 / 1e-308)")


def test_text_compares_with_text_only() -> None:
    """Captured text equals text; against a number it is unknown, both ways."""
    assert holds("capture == 'diverged'", capture="diverged")
    assert not holds("capture == 1", capture="diverged")
    assert not holds("capture != 1", capture="diverged")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "capture.__class__",
        "math.sqrt(capture) > 1",
        "isnan(capture)",
        "capture * 2 > 1",
        "capture ** 2 > 1",
        "capture % 2 == 0",
        "capture in (1, 2)",
        "[x for x in capture]",
        "(lambda: 1)()",
        "capture if exit_code else 1",
        "capture is None",
        "f'{capture}' == '1'",
        "(capture := 3) > 1",
        "math.isnan(*capture)",
        "math.isnan(x=capture)",
        "loss > 1",
        "None == 1",
        "b'x' == capture",
        "1j == capture",
        "capture[0] > 1",
        "~exit_code == 0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """The error shows the part that is not allowed."""
    with pytest.raises(ConditionError, match="is not allowed"):
        Condition(text)


@pytest.mark.parametrize("text", ["", "capture >", "a = 1", "capture\n> 1\n> 2)", "(" * 250, "\0"])
def test_what_does_not_parse_is_refused(text: str) -> None:
    """A syntax error is an error of the condition."""
    with pytest.raises(ConditionError, match="cannot be parsed"):
        Condition(text)


def test_a_long_condition_is_refused() -> None:
    """256 characters are allowed, 257 are not."""
    assert Condition("1 < 2".ljust(MAX_LENGTH)).holds({})
    with pytest.raises(ConditionError, match="257 characters; 256"):
        Condition("1 < 2".ljust(MAX_LENGTH + 1))


def test_the_deepest_condition_evaluates() -> None:
    """As many signs as fit do not exhaust the stack."""
    assert holds("-" * (MAX_LENGTH - 9) + "capture", capture=1.0)


ATOMS = st.one_of(
    st.sampled_from(NAMES),
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e6, allow_nan=False).map(lambda number: format(number, ".3f")),
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger expressions of smaller ones."""
    binary = st.sampled_from(["+", "-", "/", "<", "<=", ">", ">=", "==", "!=", "and", "or"])
    return st.one_of(
        st.tuples(inner, binary, inner).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        inner.map(lambda part: f"(not {part})"),
        inner.map(lambda part: f"(-{part})"),
        inner.map(lambda part: f"math.isnan({part})"),
    )


NUMBERS = st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=3))


@given(
    st.recursive(ATOMS, grown, max_leaves=8).filter(lambda text: len(text) <= MAX_LENGTH),
    st.fixed_dictionaries(dict.fromkeys(NAMES, NUMBERS)),
)
def test_every_expression_has_a_value(text: str, values: dict[str, float | str | None]) -> None:
    """Whatever the language builds and whatever was measured, the answer is yes or no, never an exception."""
    assert Condition(text).holds(values) in (True, False)


@given(st.recursive(ATOMS, grown, max_leaves=6).filter(lambda text: len(text) <= MAX_LENGTH - 6))
def test_a_condition_and_its_negation_never_both_hold(text: str) -> None:
    """Unknown is neither."""
    values: dict[str, bool | float | str | None] = {"capture": None, "exit_code": 1, "walltime_sec": 0.0}
    assert not (Condition(text).holds(values) and Condition(f"not {text}").holds(values))


@given(st.text(string.printable, max_size=MAX_LENGTH))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    """Garbage parses or is refused with this room's own error."""
    with contextlib.suppress(ConditionError):
        Condition(text).holds(VALUES)
