"""How often a cell fails, how sure that is, and whether it differs from the baseline."""

from __future__ import annotations

from scipy.stats import binomtest, fisher_exact


def rate(part: int, whole: int) -> float | None:
    """Returns ``part / whole``, or None where there is nothing to divide by."""
    return part / whole if whole else None


def wilson_interval(failed: int, judged: int) -> list[float] | None:
    """Returns the 95% Wilson score interval of a failure rate as ``[low, high]``.

    Args:
        failed: Trials with verdict fail.
        judged: Trials with verdict pass or fail.

    Returns:
        The two bounds, both within 0 and 1, or None without a judged trial.
    """
    if not judged:
        return None
    interval = binomtest(failed, judged).proportion_ci(confidence_level=0.95, method="wilson")
    return [max(0.0, float(interval.low)), min(1.0, float(interval.high))]


def fisher_p_value(failed: int, passed: int, baseline_failed: int, baseline_passed: int) -> float | None:
    """Returns the two-sided p-value of Fisher's exact test on fail/pass against the baseline's.

    Returns:
        The probability of tables at least as unlikely as this one if both cells fail equally often, or None if one
        of the two has no trial with a verdict.
    """
    if not (failed + passed) or not (baseline_failed + baseline_passed):
        return None
    _, p_value = fisher_exact([[failed, passed], [baseline_failed, baseline_passed]])
    return min(1.0, float(p_value))
