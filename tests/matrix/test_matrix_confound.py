"""The confound column, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.matrix.confound import Standing, compare
from aorta.matrix.rates import fisher_p_value, wilson_interval


def standing(name: str = "cell", **fields: Any) -> Standing:
    values: dict[str, Any] = {
        "present": 4,
        "did_not_run": 0,
        "passed": 4,
        "failed": 0,
        "mean_step_time_ms": 100.0,
        "step_time_source": "per_step",
        **fields,
    }
    return Standing(name=name, **values)


BASELINE = standing("base", passed=2, failed=2)
SILENT = {"passed": 0, "failed": 0, "mean_step_time_ms": None, "step_time_source": "missing"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mean_step_time_ms": 116.0}, "speed (+16%)"),
        ({"mean_step_time_ms": 250.4}, "speed (+150%)"),
        ({"mean_step_time_ms": 115.0}, "-"),
        ({"mean_step_time_ms": 50.0}, "-"),
        ({"passed": 1, "failed": 3}, "worse"),
        ({"passed": 2, "failed": 2}, "no effect"),
        ({"passed": 1, "failed": 1}, "no effect"),
        ({"passed": 3, "failed": 1}, "-"),
        ({"passed": 4, "failed": 0}, "-"),
        ({"passed": 0, "failed": 4, "mean_step_time_ms": 200.0}, "speed (+100%)"),
        ({"step_time_source": "wall_clock_total"}, "n/a"),
        ({"step_time_source": "missing", "mean_step_time_ms": None}, "n/a"),
        ({"present": 0, **SILENT}, "n/a"),
        ({**SILENT}, "error"),
        ({"did_not_run": 3, **SILENT}, "error"),
        ({"did_not_run": 4, **SILENT}, "did_not_run"),
    ],
)
def test_tag_of_a_cell(fields: dict[str, Any], expected: str) -> None:
    """Each rule of the column, in its order of precedence."""
    assert compare(standing(**fields), BASELINE, 1.15).tag == expected


def test_both_without_failures_is_unremarkable() -> None:
    """No effect is said only where there was something to have an effect on."""
    assert compare(standing(), standing("base"), 1.15).tag == "-"


@pytest.mark.parametrize("fields", [SILENT, {"did_not_run": 4, **SILENT}, {"present": 0, **SILENT}])
def test_a_silent_baseline_leaves_nothing_to_compare_with(fields: dict[str, Any]) -> None:
    """Its own row stays the baseline, the others are n/a and say why."""
    baseline = standing("base", **fields)
    assert compare(baseline, baseline, 1.15).tag == "(baseline)"
    other = compare(standing(), baseline, 1.15)
    assert (other.tag, other.ratio) == ("n/a", None)
    assert other.reason is not None and other.reason.startswith("baseline base: ")


def test_rounding_does_not_push_a_ratio_over_the_threshold() -> None:
    """3 * 0.1 is a little more than 0.3 in floating point."""
    baseline = standing("base", mean_step_time_ms=0.1)
    assert 3 * 0.1 / 0.1 > 3.0
    assert compare(standing(mean_step_time_ms=3 * 0.1), baseline, 3.0).tag == "-"


def test_a_comparison_keeps_its_ratio() -> None:
    """The number behind the tag is there for the reader."""
    assert compare(standing(mean_step_time_ms=110.0), BASELINE, 1.15).ratio == pytest.approx(1.1)


def test_times_that_no_float_can_relate_are_not_compared() -> None:
    """An infinite ratio is no JSON."""
    baseline = standing("base", mean_step_time_ms=5e-324)
    assert compare(standing(mean_step_time_ms=1e15), baseline, 1.15).tag == "n/a"


def test_wilson_interval_of_a_known_case() -> None:
    """3 of 8, worked out from the formula with z = 1.959964."""
    z, n, p = 1.959963984540054, 8, 3 / 8
    centre, spread = p + z * z / (2 * n), z * ((p * (1 - p) + z * z / (4 * n)) / n) ** 0.5
    expected = [(centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)]
    assert wilson_interval(3, 8) == pytest.approx(expected)


def test_no_judged_trial_has_no_interval() -> None:
    """Null, not zero to one."""
    assert wilson_interval(0, 0) is None


def test_fisher_of_a_known_table() -> None:
    """Lady tasting tea: 3 of 4 against 1 of 4 is 0.4857 two-sided."""
    assert fisher_p_value(3, 1, 1, 3) == pytest.approx(34 / 70)


@pytest.mark.parametrize("table", [(0, 0, 1, 1), (1, 1, 0, 0)])
def test_fisher_needs_a_verdict_on_both_sides(table: tuple[int, int, int, int]) -> None:
    """Nothing can be said of a cell without a verdict."""
    assert fisher_p_value(*table) is None
