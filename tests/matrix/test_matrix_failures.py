"""What failing trials say of themselves: hints, first failures, errors."""

from __future__ import annotations

from typing import Any

import pytest
from matrix_builders import failure, plan, record, request, result

from aorta.matrix import Matrix, aggregate, render_markdown
from aorta.matrix.failures import failure_hints, first_failures

A = request("a", trials=8)


def failed(trial: int, *details: Any, **fields: Any) -> dict[str, Any]:
    """The record of a trial that failed with these details."""
    return record(A, trial, "fail", result=result(passed=False, failure_details=list(details), **fields))


def matrix_of(*records: dict[str, Any]) -> Matrix:
    return aggregate(plan([A]), {"a": A}, records)


def section(text: str, title: str) -> list[str]:
    """The lines of one part of a page."""
    lines = text.split(f"## {title}\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [line.removeprefix("- ") for line in lines]


def test_hints_are_counted_by_trial() -> None:
    """A thousand repetitions within one trial are one observation."""
    records = [
        failed(0, *({"hint": "NaN in loss", "step": step} for step in range(1000))),
        failed(1, {"hint": " NaN in loss "}, {"hint": None}),
    ]
    assert failure_hints(records) == [{"hint": "NaN in loss", "count": 2}]


def test_the_first_cause_leads() -> None:
    """Neither the alphabet nor what follows from it in most trials comes before it."""
    records = [
        failed(0, {"step": 3, "hint": "zero input"}, {"step": 3, "hint": "NaN in loss"}),
        failed(1, {"step": 5, "hint": "NaN in loss"}),
    ]
    assert [entry["hint"] for entry in failure_hints(records)] == ["zero input", "NaN in loss"]


def test_ranks_that_are_listed_one_after_the_other_are_put_in_order_of_time() -> None:
    """The rank that failed first is the cause, whatever its number; the warm-up comes before step 0."""
    late = {"rank": 0, "step": 5, "hint": "late"}
    early = {"rank": 2, "step": 3, "hint": "early"}
    warmup = {"rank": 1, "step": 9, "phase": "warmup", "hint": "warm"}
    trial = failed(0, late, early, warmup)
    assert [entry["hint"] for entry in failure_hints([trial])] == ["warm", "early", "late"]
    assert [(entry["rank"], entry["step"]) for entry in first_failures([trial])] == [(1, 9)]


@pytest.mark.parametrize(
    "detail",
    [
        {"step": 7, "rank": 1, "hint": "NaN, rank 1, step 7"},
        {"step": 7, "rank": 1, "hint": "rank 1, step 7: NaN, rank 1, step 7"},
        {"iteration": 12, "rank": 3, "hint": "rank 3, step 12: NaN, rank 3, step N"},
    ],
)
def test_steps_and_ranks_do_not_tell_hints_apart(detail: dict[str, Any]) -> None:
    """They are in fields of their own, whether the workload or the engine wrote them into the text."""
    assert failure_hints([failed(0, detail)]) == [{"hint": "NaN, rank N, step N", "count": 1}]


@pytest.mark.parametrize("hint", ["step 71 is odd", "step 7.5 of the ramp", "misstep 7", "rank 1 is silent"])
def test_other_numbers_of_a_hint_stay(hint: str) -> None:
    """Only what the fields say is left out."""
    assert failure_hints([failed(0, {"step": 7, "hint": hint})]) == [{"hint": hint, "count": 1}]


def test_thirty_steps_of_one_failure_are_one_line() -> None:
    """And the page begins with where it was first seen."""
    details = [
        {"step": step, "rank": 0, "check": "finite", "tensor": "logits", "hint": f"NaN in logits, step {step}"}
        for step in range(30)
    ]
    text = render_markdown(matrix_of(*(failed(trial, *details) for trial in range(4))))
    assert section(text, "Failure hints") == ["4 trials (a): NaN in logits, step N"]
    assert section(text, "First failures") == ["a: step 0, rank 0, logits, finite (trials 0-3)"]


def test_first_failures_are_grouped_by_place() -> None:
    """An intermittent failure strikes at different steps; a buffer is a tensor too."""
    matrix = matrix_of(
        failed(0, {"step": 4, "tensor": "loss"}, {"step": 5, "tensor": "other"}),
        failed(1, {"iteration": 2, "rank": 1, "buffer": "h2d"}),
        failed(2, {"step": 4, "tensor": "loss"}),
        failed(3, {"step": 1, "phase": "warmup", "check": "finite"}),
        failed(4, {"hint": "no place"}),
        record(A, 5, result=result(failure_details=[{"step": 0}])),
        record(A, 6, "crash"),
    )
    assert [entry["trials"] for entry in matrix["cells"][0]["first_failures"]] == [[0, 2], [1], [3]]
    assert section(render_markdown(matrix), "First failures") == [
        "a: step 4, loss (trials 0, 2); step 2, rank 1, h2d (trial 1); warm-up step 1, finite (trial 3)"
    ]


@pytest.mark.parametrize("value", [None, [], {}, True, -1, 1.5, "x" * 9, 10**30, "\x1b[31m"])
def test_fields_of_any_type_are_no_trouble(value: object) -> None:
    """A workload may write what it likes, and nothing of it steers the terminal."""
    names = ("step", "iteration", "rank", "check", "tensor", "buffer", "phase", "hint")
    text = render_markdown(matrix_of(failed(0, dict.fromkeys(names, value), value)))
    assert all(line.isprintable() for line in text.splitlines())


def test_advice_of_the_engine_stands_with_its_error() -> None:
    """It is no finding of the workload, so it is no failure hint."""
    killed = failure(type="signal", message="killed by SIGSEGV", hint="stderr_tail has the Python stack")
    text = render_markdown(matrix_of(*(record(A, trial, "crash", error=killed) for trial in range(2))))
    assert "## Failure hints" not in text
    assert section(text, "Errors")[0].endswith("SIGSEGV (hint: stderr_tail has the Python stack)")


@pytest.mark.parametrize("status", ["ok", "workload_failed"])
def test_trials_that_did_not_run_are_named_so(status: str) -> None:
    """'ok, 4 trials' is no error that anybody understands."""
    records = [record(A, trial, "did_not_run") for trial in range(4)]
    for one in records:
        one["exit_status"], one["result"]["passed"] = status, status == "ok"
    matrix = matrix_of(*records)
    text = render_markdown(matrix)
    assert section(text, "Errors")[0].startswith("did_not_run, 4 trials (a 0-3): ")
    # The guide's definition of the rate: exit_status other than ok, or passed false.
    assert matrix["cells"][0]["failure_rate"] == (0 if status == "ok" else 1)
    assert ("an error, and not in Failure rate." in text) == (status == "ok")
