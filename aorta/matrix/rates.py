"""How often a cell fails, how sure that is, and whether it differs from the baseline.

``docs/statistics.md`` has the formulas, their sources, and when each of them holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from scipy.optimize import minimize_scalar
from scipy.special import betainc, betaincinv
from scipy.stats import binomtest, fisher_exact

_TAIL = 0.025
"""Each side of a 95% interval."""

EndedBy = Literal["size", "hit", "miss"]
Estimator = Literal["proportion", "inverse_sampling"]


def rate(part: int, whole: int) -> float | None:
    """Returns ``part / whole``, or None where there is nothing to divide by."""
    return part / whole if whole else None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Trials with one of two outcomes, a hit or a miss, and what ended the sampling.

    Attributes:
        hits: How many were hits.
        misses: How many were not.
        ended_by: ``size``: the number of trials was given, or a cap on it was reached first. ``hit``: the sampling
            waited for that many hits, and the last trial was one. ``miss``: it waited for that many misses.
    """

    hits: int
    misses: int
    ended_by: EndedBy = "size"

    @property
    def size(self) -> int:
        """How many trials there are."""
        return self.hits + self.misses

    @property
    def estimator(self) -> Estimator | None:
        """Which formula ``rate`` uses; None without a trial.

        Waiting for a single event leaves no useful unbiased estimator: it would be 1 if the first trial is the event
        and 0 otherwise. The plain proportion, which then is too high on average, is given instead.
        """
        if not self.size:
            return None
        awaited = {"size": 0, "hit": self.hits, "miss": self.misses}[self.ended_by]
        return "inverse_sampling" if awaited > 1 else "proportion"

    @property
    def rate(self) -> Fraction | None:
        """Estimate of a hit's probability; None without a trial."""
        if self.estimator is None:
            return None
        if self.estimator == "proportion":
            return Fraction(self.hits, self.size)
        # (k - 1) / (n - 1) for the outcome that was waited for; for misses, one minus that.
        return Fraction(self.hits - (self.ended_by == "hit"), self.size - 1)

    def exact_interval(self) -> list[float] | None:
        """Returns the 95% interval of a hit's probability as ``[low, high]``, exact under what ended the sampling.

        Returns:
            The two bounds, both within 0 and 1, or None without a trial.
        """
        if not self.size:
            return None
        low = betaincinv(self.hits, self.misses + (self.ended_by != "miss"), _TAIL) if self.hits else 0.0
        high = betaincinv(self.hits + (self.ended_by != "hit"), self.misses, 1 - _TAIL) if self.misses else 1.0
        return [float(low), float(high)]

    def at_least(self, probability: float) -> float:
        """Returns how likely this much evidence for a high rate, or more, is if a hit has that probability."""
        if not self.hits:
            return 1.0
        return float(betainc(self.hits, self.misses + (self.ended_by != "miss"), probability))

    def at_most(self, probability: float) -> float:
        """Returns how likely this much evidence for a low rate, or more, is if a hit has that probability."""
        if not self.misses:
            return 1.0
        return float(betainc(self.misses, self.hits + (self.ended_by != "hit"), 1 - probability))


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


def sequential_p_value(cell: Sample, baseline: Sample) -> float | None:
    """Returns a two-sided p-value of "both fail equally often" that holds whatever ended either sampling.

    The two tails are exact and independent, so Fisher's product of them has a known distribution; the probability
    that both cells share is unknown, so the largest p-value over it counts. That makes the test valid, and
    conservative.

    Returns:
        The p-value, or None if one of the two samples is empty.
    """
    if not cell.size or not baseline.size:
        return None
    return min(1.0, 2 * min(_one_sided(cell, baseline), _one_sided(baseline, cell)))


def _one_sided(higher: Sample, lower: Sample) -> float:
    def product(logit: float) -> float:
        probability = 1 / (1 + math.exp(-logit))
        return higher.at_least(probability) * lower.at_most(probability)

    best = max((step / 4 for step in range(-120, 121)), key=product)
    refined = minimize_scalar(lambda logit: -product(logit), bounds=(best - 0.25, best + 0.25), method="bounded")
    largest = max(product(best), -float(refined.fun))
    # P(U1 U2 <= u) of two independent uniform variables.
    return largest * (1 - math.log(largest)) if 0 < largest < 1 else largest
