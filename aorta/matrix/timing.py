"""The ladder that finds a cell's step times, best source first.

A trial counts only if its main work ran and its workload returned a result: a crash, a timeout or a trial that
never started, or did not execute one step, has no step time worth comparing. A cell uses the best rung that *all* its
counting trials support, so that one trial without a series cannot mix two kinds of time in one mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from aorta.matrix.numbers import count, duration_ms, finite_number

Source = Literal["per_step", "elapsed_per_iter", "wall_clock_total", "missing"]

LADDER: tuple[Source, ...] = ("per_step", "elapsed_per_iter", "wall_clock_total")


def counts_for_timing(record: Mapping[str, Any]) -> bool:
    """Returns whether the trial's main work ran to an end and its workload returned a result."""
    result = record["result"]
    return (
        result is not None
        and record["exit_status"] in ("ok", "workload_failed")
        and not record["did_not_run"]
        and result.get("main_work_started") is not False
        and result.get("executed_iterations") != 0
    )


def step_times(records: Sequence[Mapping[str, Any]]) -> tuple[Source, list[float]]:
    """Returns where a cell's step times come from, and the series in milliseconds.

    Args:
        records: The cell's trial records in order of trial.

    Returns:
        The rung, and the trials' series one after the other: each timed step for ``per_step``, one mean a trial for
        the lower rungs, nothing for ``missing``.
    """
    counting = [record for record in records if counts_for_timing(record)]
    for rung in LADDER:
        series = [_series(record, rung) for record in counting]
        if series and all(series):
            return rung, [value for part in series for value in part]
    return "missing", []


def _series(record: Mapping[str, Any], rung: Source) -> list[float]:
    """Returns the trial's step times on one rung in milliseconds; empty if it does not support the rung."""
    result = record["result"]
    if rung == "per_step":
        usable = (duration_ms(value) for value in result.get("step_times_ms") or ())
        return [value for value in usable if value is not None]
    if rung == "elapsed_per_iter":
        return _per_iteration(result.get("elapsed_sec"), result.get("total_iterations"))
    return _per_iteration(record["wall_clock_sec"], record["steps"])


def _per_iteration(seconds: object, iterations: object) -> list[float]:
    total_sec, divisor = finite_number(seconds), count(iterations)
    if total_sec is None or not divisor:
        return []
    value = duration_ms(total_sec * 1000 / divisor)
    return [] if value is None else [value]
