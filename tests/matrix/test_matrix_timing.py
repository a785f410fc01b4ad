"""The step-time ladder and the statistics on it."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_builders import record, request, result

from aorta.matrix.numbers import count, duration_ms, finite_number, mean, summarize
from aorta.matrix.timing import counts_for_timing, step_times

CELL = request("a")
ODD_VALUES = [True, False, None, "3", "NaN", math.nan, math.inf, -math.inf, 10**400, -(10**400)]


def trial(index: int, **fields: Any) -> dict[str, Any]:
    return record(CELL, index, result=result(**fields))


def test_per_step_series_are_concatenated_in_order_of_trial() -> None:
    """The first rung takes every timed step of every trial."""
    records = [trial(0, step_times_ms=[1.0, 2.0]), trial(1, step_times_ms=[3.0])]
    assert step_times(records) == ("per_step", [1.0, 2.0, 3.0])


def test_elapsed_time_is_divided_by_iterations() -> None:
    """The second rung is elapsed_sec / total_iterations, in milliseconds."""
    records = [trial(0, step_times_ms=[], elapsed_sec=0.5, total_iterations=10)]
    assert step_times(records) == ("elapsed_per_iter", [50.0])


def test_wall_clock_is_divided_by_steps() -> None:
    """The third rung is wall_clock_sec / steps, in milliseconds."""
    records = [trial(0, step_times_ms=[], elapsed_sec=None)]
    assert step_times(records) == ("wall_clock_total", [500.0])


def test_one_trial_without_a_series_moves_the_whole_cell_down() -> None:
    """Two kinds of time never meet in one mean."""
    records = [trial(0), trial(1, step_times_ms=[], elapsed_sec=0.08, total_iterations=4)]
    assert step_times(records) == ("elapsed_per_iter", [12.5, 20.0])


def test_a_trial_without_a_result_does_not_move_the_cell_down() -> None:
    """A crash gives no step time, and takes none away."""
    records = [trial(0, step_times_ms=[7.0]), record(CELL, 1, "crash"), record(CELL, 2, "timeout")]
    assert step_times(records) == ("per_step", [7.0])


@pytest.mark.parametrize("outcome", ["crash", "timeout", "did_not_run"])
def test_trials_that_gave_no_result_have_no_timing(outcome: str) -> None:
    """Their wall clock is no step time."""
    assert step_times([record(CELL, 0, outcome)]) == ("missing", [])


def test_a_trial_whose_main_work_never_started_has_no_timing() -> None:
    """Even when it returned a result with a series in it."""
    silent = record(CELL, 0, "did_not_run", result=result(passed=False, main_work_started=False))
    assert not counts_for_timing(silent)


def test_a_failed_trial_counts_for_timing() -> None:
    """A wrong answer was computed at full speed."""
    assert counts_for_timing(record(CELL, 0, "fail"))


@pytest.mark.parametrize("value", [*ODD_VALUES, 0, 0.0, -1.0, 1e16])
def test_what_is_no_duration_is_left_out(value: object) -> None:
    """Zero, negative, huge and non-finite values, booleans and text are no step times."""
    assert step_times([trial(0, step_times_ms=[5.0, value])]) == ("per_step", [5.0])


@pytest.mark.parametrize("iterations", [0, -1, True, None, 2.0, 2**70])
def test_impossible_iteration_counts_do_not_support_the_rung(iterations: object) -> None:
    """Nothing is divided by zero, by a boolean or by a count beyond belief."""
    records = [trial(0, step_times_ms=[], elapsed_sec=1.0, total_iterations=iterations)]
    assert step_times(records)[0] == "wall_clock_total"


@pytest.mark.parametrize("value", ODD_VALUES)
def test_odd_values_are_no_numbers(value: object) -> None:
    """The gate lets only finite numbers through."""
    assert (finite_number(value), duration_ms(value)) == (None, None)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (7, 7), (-1, None), (True, None), (1.0, None), (2**63, None)])
def test_counts_are_non_negative_integers_that_fit(value: object, expected: int | None) -> None:
    """The gate for sums of iterations."""
    assert count(value) == expected


def test_standard_deviation_is_the_samples() -> None:
    """Divisor n - 1."""
    assert summarize([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).std == pytest.approx(math.sqrt(32 / 7))


def test_one_value_has_no_deviation() -> None:
    """Nothing is known of the spread."""
    only = summarize([3.0])
    assert (only.mean, only.std, only.min, only.p99, only.max) == (3.0, None, 3.0, 3.0, 3.0)


def test_an_empty_series_has_no_statistics() -> None:
    """Null, not zero and not NaN."""
    assert {getattr(summarize([]), name) for name in ("mean", "std", "min", "max", "p50", "p90", "p99")} == {None}


def test_mean_survives_a_sum_beyond_the_range_of_floats() -> None:
    """Metrics may be as large as a float gets."""
    assert mean([1.7e308, 1.7e308]) == pytest.approx(1.7e308)


def interpolated(values: list[float], share: float) -> float:
    """A percentile worked out by hand: linear between the two nearest order statistics."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=40), st.randoms())
def test_statistics_agree_with_a_recomputation_in_any_order(values: list[float], random: Any) -> None:
    """Exact arithmetic, hand-made percentiles, and the same bits for a shuffled series."""
    summary = summarize(values)
    assert summary.mean == pytest.approx(float(statistics.fmean(values)))
    assert summary.std == pytest.approx(statistics.stdev(values), abs=1e-6)
    for share, found in ((0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99)):
        assert found == pytest.approx(interpolated(values, share))
    shuffled = list(values)
    random.shuffle(shuffled)
    assert summarize(shuffled) == summary


def test_percentiles_are_numpys_default() -> None:
    """The guide's readers will recompute them so."""
    series = [float(value) for value in range(1, 102)]
    assert summarize(series).p99 == float(np.percentile(series, 99))
