"""Whatever a workload returns, the record gets plain JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aorta.run.sanitize import MAX_ARRAY, MAX_ITEMS, MAX_TEXT, number, plain, result_fields, text


class Scalar:
    """Looks like a one-element array."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def numel(self) -> int:
        return 1

    def item(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Array:
    """Looks like an array of a given size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def tolist(self) -> list[int]:
        return list(range(self.size))

    def __repr__(self) -> str:
        return f"Array({self.size})"


class BadText:
    """An object that has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (-float("inf"), "-Infinity"),
        (True, True),
        (Scalar(3), 3),
        (Scalar(True), True),
        (Scalar(float("nan")), "NaN"),
        (Array(3), [0, 1, 2]),
        (Array(MAX_ARRAY + 1), f"Array({MAX_ARRAY + 1})"),
        ((1, 2), [1, 2]),
        ({2, 1}, [1, 2]),
        ({"a": {1: 2}}, {"a": {"1": 2}}),
        ({1: "a", "1": "b"}, {"1": "a", "1 (str)": "b"}),
        (b"\xff", "b'\\xff'"),
        (1 << 70, str(1 << 70)),
        ("\ud800", "\\ud800"),
        (BadText(), "<BadText: its text cannot be had, RuntimeError>"),
        (int, "<class 'int'>"),
        (..., "Ellipsis"),
    ],
)
def test_plain(value: Any, expected: Any) -> None:
    """Each kind of value has one plain form."""
    assert plain(value) == expected


def test_a_scalar_that_cannot_be_read_is_its_repr() -> None:
    """A lost device makes item() raise; the value is told by its repr, the record survives."""
    assert "Scalar object" in plain(Scalar(RuntimeError("device lost")))


def test_a_cycle_is_cut() -> None:
    """A list that contains itself ends where it begins again."""
    loop: list[Any] = [1]
    loop.append(loop)
    assert plain(loop) == [1, "(cut: a list that contains itself)"]


def test_the_same_list_twice_is_no_cycle() -> None:
    """Only what contains itself is cut."""
    shared = [1]
    assert plain([shared, shared]) == [[1], [1]]


def test_deep_nesting_is_cut() -> None:
    """Ten thousand levels end as JSON that any reader can take."""
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert "nested deeper" in json.dumps(plain(deep))


def test_too_many_values_are_cut_with_a_note() -> None:
    """The cut is visible at the end of what was kept."""
    cleaned = plain(list(range(MAX_ITEMS * 2)))
    assert (len(cleaned), cleaned[-1]) == (MAX_ITEMS, f"(cut: more than {MAX_ITEMS} values)")


def test_long_text_is_cut_with_its_length() -> None:
    """A megabyte string keeps its beginning and says how long it was."""
    assert text("x" * 10**6).endswith("... (cut: 1000000 characters)")
    assert len(text("x" * 10**6)) < MAX_TEXT + 50


@pytest.mark.parametrize(("value", "expected"), [(1, 1), (True, None), ("1", None), (float("inf"), None), (2.5, 2.5)])
def test_number(value: Any, expected: Any) -> None:
    """A number is a finite int or float, never a boolean or a text."""
    assert number(value) == expected


def test_result_fields_fill_what_is_missing() -> None:
    """A result with nothing but passed has every field."""
    fields = result_fields({"passed": True})
    assert (fields["failure_count"], fields["step_times_ms"], fields["main_work_started"]) == (0, [], None)


def test_result_fields_keep_a_verdict_despite_a_bad_count() -> None:
    """A field that is not what it should be is replaced, and the metrics say so."""
    fields = result_fields({"passed": False, "failure_count": "three", "elapsed_sec": "long"})
    assert (fields["passed"], fields["failure_count"], fields["elapsed_sec"]) == (False, 0, None)
    assert fields["metrics"]["_aorta_dropped"] == [
        "elapsed_sec: 'long' is not a finite number",
        "failure_count: 'three' is not an integer",
    ]


def test_non_finite_step_times_are_dropped_and_counted() -> None:
    """What is dropped from the step times is told in the metrics."""
    fields = result_fields({"passed": True, "step_times_ms": [1.0, float("nan"), Scalar(2.0), True]})
    assert fields["step_times_ms"] == [1.0, 2.0]
    assert fields["metrics"]["_aorta_dropped"] == ["step_times_ms: 2 of 4 are not finite numbers"]


@pytest.mark.parametrize("result", [None, 1, {}, {"passed": None}, {"passed": 1}, "passed"])
def test_result_fields_refuse_what_is_no_result(result: Any) -> None:
    """Without a boolean passed there is no verdict to record."""
    with pytest.raises(TypeError):
        result_fields(result)
