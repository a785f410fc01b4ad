"""One result from several ranks'."""

from __future__ import annotations

from typing import Any

from aorta.run.world import merged_result


def result(passed: bool = True, *details: dict[str, Any], first: int | None = None) -> dict[str, Any]:
    return {
        "passed": passed,
        "failure_count": len(details),
        "first_failure_iteration": first,
        "failure_details": list(details),
        "metrics": {},
    }


def test_all_passed_is_rank_0s_result() -> None:
    """Nothing is added where nobody found anything."""
    assert merged_result({0: result(), 1: result()}) == result()


def test_what_every_rank_reports_is_counted_once() -> None:
    """A workload whose ranks tell each other reports the same failures on each of them."""
    shared = result(False, {"step": 2, "rank": 1, "hint": "loss, rank 1"}, first=2)
    assert merged_result({0: shared, 1: shared}) == shared


def test_what_only_another_rank_saw_is_added() -> None:
    """Counts add up, the first step is the earliest, and each new failure names its rank."""
    merged = merged_result(
        {
            0: result(False, {"step": 5, "hint": "a"}, first=5),
            2: result(False, {"step": 3, "hint": "b"}, first=3),
        }
    )
    assert (merged["failure_count"], merged["first_failure_iteration"]) == (2, 3)
    assert merged["failure_details"][1] == {"rank": 2, "step": 3, "hint": "rank 2, step 3: b"}


def test_a_rank_that_fails_without_details_is_named() -> None:
    """passed=False alone is enough to fail the trial."""
    merged = merged_result({0: result(), 1: result(False)})
    assert (merged["passed"], merged["failure_count"]) == (False, 1)
    assert merged["failure_details"] == [{"rank": 1, "hint": "rank 1: a check failed that only this rank saw"}]


def test_an_iteration_counts_as_a_step() -> None:
    """Workloads that call their steps iterations are understood."""
    merged = merged_result({0: result(), 1: result(False, {"iteration": 7, "hint": "buffer a"})})
    assert merged["failure_details"][0]["hint"] == "rank 1, step 7: buffer a"


def test_a_hint_that_names_the_rank_stays_as_it_is() -> None:
    """A workload's own wording is not told twice."""
    merged = merged_result({0: result(), 1: result(False, {"step": 1, "hint": "NaN on rank 1 at step 1"})})
    assert merged["failure_details"][0]["hint"] == "NaN on rank 1 at step 1"
