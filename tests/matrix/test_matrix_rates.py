"""Rates, intervals and tests of samples that end in different ways: checked by enumeration and by simulation."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.matrix.rates import Sample, fisher_p_value, sequential_p_value, wilson_interval


def outcomes(events: int, cap: int) -> Iterator[tuple[Sample, int]]:
    """Every way a capped plan can end, with the number of sequences of hits and misses that end so."""
    for size in range(events, cap + 1):
        yield Sample(hits=events, misses=size - events, ended_by="hit"), comb(size - 1, events - 1)
    for hits in range(events):
        yield Sample(hits=hits, misses=cap - hits), comb(cap, hits)


def chance(sample: Sample, paths: int, probability: Fraction) -> Fraction:
    return paths * probability**sample.hits * (1 - probability) ** sample.misses


PLANS = [(2, 2), (2, 5), (3, 12), (5, 20), (4, 40)]
RATES = [Fraction(1, 50), Fraction(1, 7), Fraction(1, 2), Fraction(9, 10)]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("probability", RATES)
def test_the_estimate_of_a_capped_plan_is_unbiased(plan: tuple[int, int], probability: Fraction) -> None:
    """Exactly: the mean over all outcomes, in fractions, is the true rate."""
    found = list(outcomes(*plan))
    assert sum(chance(sample, paths, probability) for sample, paths in found) == 1
    assert sum(chance(sample, paths, probability) * (sample.rate or 0) for sample, paths in found) == probability


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("probability", RATES)
def test_waiting_for_misses_mirrors_waiting_for_hits(plan: tuple[int, int], probability: Fraction) -> None:
    """A cell that stops at its passes estimates its fails as one minus the passes, and the interval turns with it."""
    for sample, _ in outcomes(*plan):
        ended_by = {"hit": "miss", "size": "size"}[sample.ended_by]
        mirrored = Sample(hits=sample.misses, misses=sample.hits, ended_by=ended_by)  # type: ignore[arg-type]
        assert (sample.rate, sample.estimator) == (1 - (mirrored.rate or 0), mirrored.estimator)
        low, high = sample.exact_interval() or (0, 0)
        assert mirrored.exact_interval() == pytest.approx([1 - high, 1 - low])
        assert sample.at_least(float(probability)) == pytest.approx(mirrored.at_most(1 - float(probability)))


@pytest.mark.parametrize("plan", [*PLANS, (1, 1), (1, 30)])
def test_the_exact_interval_covers_at_every_rate(plan: tuple[int, int]) -> None:
    """Exactly: at no rate do the outcomes whose interval misses it have more than 5% together."""
    found = [(sample, paths, sample.exact_interval() or [0, 0]) for sample, paths in outcomes(*plan)]
    for step in range(1, 200):
        probability = Fraction(step, 200)
        covering = sum(
            chance(sample, paths, probability) for sample, paths, (low, high) in found if low <= probability <= high
        )
        assert covering >= Fraction(95, 100), probability


@pytest.mark.parametrize("plan", PLANS)
def test_more_evidence_means_a_higher_interval(plan: tuple[int, int]) -> None:
    """Along the order of the outcomes neither bound ever turns back."""
    hit = [sample for sample, _ in outcomes(*plan) if sample.ended_by == "hit"]
    cap = sorted((sample for sample, _ in outcomes(*plan) if sample.ended_by == "size"), key=lambda one: -one.hits)
    intervals = [sample.exact_interval() or [0, 0] for sample in [*hit, *cap]]
    for higher, lower in pairwise(intervals):
        assert (higher[0] >= lower[0], higher[1] >= lower[1]) == (True, True)


@pytest.mark.parametrize("plan", PLANS)
def test_the_tails_are_the_sums_of_what_they_stand_for(plan: tuple[int, int]) -> None:
    """Both tails of each outcome, term by term along the order."""
    hit = [pair for pair in outcomes(*plan) if pair[0].ended_by == "hit"]
    cap = sorted((pair for pair in outcomes(*plan) if pair[0].ended_by == "size"), key=lambda pair: -pair[0].hits)
    ordered = [*hit, *cap]
    chances = [float(chance(sample, paths, Fraction(3, 10))) for sample, paths in ordered]
    for place, (sample, _) in enumerate(ordered):
        assert sample.at_least(0.3) == pytest.approx(sum(chances[: place + 1]))
        assert sample.at_most(0.3) == pytest.approx(sum(chances[place:]))


@pytest.mark.parametrize(
    ("plan", "other"), [((2, 6), (2, 6)), ((3, 15), (3, 15)), ((2, 12), (3, 8)), ((1, 10), (1, 10))]
)
def test_the_sequential_test_keeps_its_level(plan: tuple[int, int], other: tuple[int, int]) -> None:
    """Exactly: where both cells fail equally often, a p-value of 5% or less has no more than 5%."""
    pairs = [
        (first, second, first_paths * second_paths, p_value)
        for first, first_paths in outcomes(*plan)
        for second, second_paths in outcomes(*other)
        for p_value in [sequential_p_value(first, second)]
        if p_value is not None and p_value <= 0.05
    ]
    for step in range(1, 20):
        probability = Fraction(step, 20)
        size = sum(
            paths * probability ** (first.hits + second.hits) * (1 - probability) ** (first.misses + second.misses)
            for first, second, paths, _ in pairs
        )
        assert size <= Fraction(5, 100), probability


def test_the_sequential_test_finds_a_difference() -> None:
    """Three failures in five trials against none in sixty is no chance; equal cells are."""
    stopped, clean = Sample(hits=3, misses=2, ended_by="hit"), Sample(hits=0, misses=60)
    assert sequential_p_value(stopped, clean) == sequential_p_value(clean, stopped)
    assert (sequential_p_value(stopped, clean) or 1) < 0.002
    assert sequential_p_value(stopped, stopped) == 1.0
    assert sequential_p_value(clean, clean) == 1.0


samples = st.builds(
    lambda hits, misses, ended_by: Sample(hits=hits, misses=misses, ended_by=ended_by),
    st.integers(0, 400),
    st.integers(0, 400),
    st.sampled_from(["size", "hit", "miss"]),
).filter(lambda one: {"size": True, "hit": one.hits > 0, "miss": one.misses > 0}[one.ended_by])


@settings(max_examples=200, deadline=None)
@given(samples, samples)
def test_any_sample_has_figures_in_their_range(sample: Sample, other: Sample) -> None:
    """Rates, bounds and p-values are probabilities, the rate is within its bounds, and nothing is said of nothing."""
    rate, interval, p_value = sample.rate, sample.exact_interval(), sequential_p_value(sample, other)
    assert (rate is None) == (interval is None) == (sample.estimator is None) == (sample.size == 0)
    if rate is not None and interval is not None:
        assert 0 <= interval[0] <= rate <= interval[1] <= 1
    assert (p_value is None) == (sample.size == 0 or other.size == 0)
    assert p_value is None or 0 <= p_value <= 1


@pytest.mark.parametrize("probability", [0.03, 0.2, 0.6])
def test_a_simulated_sweep_has_no_bias_and_covers(probability: float) -> None:
    """Seeded trials through the plan {events: 4, max_trials: 60}: the mean is the rate and the intervals hold it."""
    events, cap, sweeps = 4, 60, 20_000
    drawn = np.random.default_rng(20450101).random((sweeps, cap)) < probability
    totals = drawn.cumsum(axis=1)
    reached = totals[:, -1] >= events
    sizes = np.where(reached, (totals < events).sum(axis=1) + 1, cap)
    hits = np.where(reached, events, totals[:, -1])
    kinds, place = np.unique(np.stack([hits, sizes, reached], axis=1), axis=0, return_inverse=True)
    ended = [
        Sample(hits=int(hit), misses=int(size - hit), ended_by="hit" if stopped else "size")
        for hit, size, stopped in kinds
    ]
    rates = np.array([float(sample.rate or 0) for sample in ended])[place.ravel()]
    bounds = np.array([sample.exact_interval() for sample in ended])[place.ravel()]
    covered = (bounds[:, 0] <= probability) & (probability <= bounds[:, 1])
    # Four standard errors of the simulation.
    assert abs(rates.mean() - probability) < 4 * rates.std() / np.sqrt(sweeps)
    assert covered.mean() > 0.95 - 4 * np.sqrt(0.95 * 0.05 / sweeps)
    # The plain proportion would not do: where the events are reached, it is clearly too high.
    if reached.mean() > 0.5:
        assert (hits / sizes).mean() - probability > 4 * (hits / sizes).std() / np.sqrt(sweeps)


@pytest.mark.parametrize("size", [8, 24, 60])
def test_wilson_covers_on_average(size: int) -> None:
    """Over all rates alike, the interval of a fixed number of trials holds the rate 95 times in a hundred."""
    intervals = [wilson_interval(hits, size) or [0, 0] for hits in range(size + 1)]
    coverage = []
    for step in range(1, 1000):
        rate = step / 1000
        coverage.append(
            sum(
                comb(size, hits) * rate**hits * (1 - rate) ** (size - hits)
                for hits, (low, high) in enumerate(intervals)
                if low <= rate <= high
            )
        )
    assert np.mean(coverage) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(("first", "second"), [((8, 2), (1, 9)), ((3, 3), (3, 3)), ((0, 5), (4, 4))])
def test_fishers_test_by_hand(first: tuple[int, int], second: tuple[int, int]) -> None:
    """All tables with these margins that are at most as likely as the one seen."""
    failed, judged = first[0] + second[0], sum(first)
    weights = {
        hits: comb(judged, hits) * comb(sum(second), failed - hits)
        for hits in range(failed + 1)
        if hits <= judged and failed - hits <= sum(second)
    }
    expected = sum(weight for weight in weights.values() if weight <= weights[first[0]]) / sum(weights.values())
    assert fisher_p_value(*first, *second) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sample", "rate", "estimator"),
    [
        (Sample(hits=3, misses=7, ended_by="hit"), Fraction(2, 9), "inverse_sampling"),
        (Sample(hits=3, misses=0, ended_by="hit"), Fraction(1), "inverse_sampling"),
        (Sample(hits=1, misses=11, ended_by="hit"), Fraction(1, 12), "proportion"),
        (Sample(hits=1, misses=0, ended_by="hit"), Fraction(1), "proportion"),
        (Sample(hits=2, misses=10), Fraction(1, 6), "proportion"),
        (Sample(hits=7, misses=3, ended_by="miss"), Fraction(7, 9), "inverse_sampling"),
        (Sample(hits=0, misses=3, ended_by="miss"), Fraction(0), "inverse_sampling"),
        (Sample(hits=0, misses=0), None, None),
    ],
)
def test_rates_of_known_samples(sample: Sample, rate: Fraction | None, estimator: str | None) -> None:
    """The formulas, one by one."""
    assert (sample.rate, sample.estimator) == (rate, estimator)
