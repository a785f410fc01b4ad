"""Trials run in seeded random blocks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from aorta.plan.order import in_share, positions, trial_order

GOLDEN_ORDER = [("c", 0), ("b", 0), ("a", 0), ("a", 1), ("b", 1)]
CELLS = st.dictionaries(st.text(min_size=1, max_size=5), st.integers(1, 6), max_size=6).map(lambda d: list(d.items()))


@given(CELLS, st.integers())
def test_every_trial_comes_once(cells: list[tuple[str, int]], seed: int) -> None:
    """No trial is lost or doubled."""
    order = list(trial_order(cells, seed))
    assert sorted(order) == sorted((name, trial) for name, trials in cells for trial in range(trials))


@given(CELLS, st.integers())
def test_a_block_has_one_trial_of_each_cell(cells: list[tuple[str, int]], seed: int) -> None:
    """Trial numbers never go back: block b holds trial b of every cell that has one."""
    blocks = [trial for _, trial in trial_order(cells, seed)]
    assert blocks == sorted(blocks)


@given(CELLS, st.integers())
def test_more_trials_keep_the_order_of_the_old_ones(cells: list[tuple[str, int]], seed: int) -> None:
    """Extending a run by a whole block leaves the start of its order as it was."""
    shortest = min((trials for _, trials in cells), default=0)
    old = [slot for slot in trial_order(cells, seed) if slot[1] < shortest]
    longer = [(name, trials + 1) for name, trials in cells]
    assert list(trial_order(longer, seed))[: len(old)] == old


def test_the_order_is_the_same_on_every_machine() -> None:
    """A fixed seed gives this order for good."""
    assert list(trial_order([("a", 2), ("b", 2), ("c", 1)], 0)) == GOLDEN_ORDER


def test_seeds_differ() -> None:
    """Another seed shuffles otherwise."""
    cells = [(name, 3) for name in "abcdefgh"]
    assert list(trial_order(cells, 0)) != list(trial_order(cells, 1))


def test_positions_count_from_one() -> None:
    """The first trial has place 1."""
    assert positions([("a", 0), ("b", 0)]) == {("a", 0): 1, ("b", 0): 2}


@given(st.integers(1, 60), st.integers(1, 12))
def test_every_trial_is_in_exactly_one_share(trials: int, count: int) -> None:
    """Shares hold every count-th place and differ by at most one trial."""
    shares = [[place for place in range(1, trials + 1) if in_share(place, (n, count))] for n in range(1, count + 1)]
    assert sorted(place for share in shares for place in share) == list(range(1, trials + 1))
    assert all(later - earlier == count for share in shares for earlier, later in itertools.pairwise(share))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(CELLS, st.integers(), st.integers(1, 5))
def test_shares_are_stable_when_trials_are_added(cells: list[tuple[str, int]], seed: int, count: int) -> None:
    """A trial of a whole block stays in its share when the recipe asks for more."""
    shortest = min((trials for _, trials in cells), default=0)
    old = positions(trial_order(cells, seed))
    new = positions(trial_order([(name, trials + 1) for name, trials in cells], seed))
    kept = [slot for slot in old if slot[1] < shortest]
    assert [in_share(old[slot], (1, count)) for slot in kept] == [in_share(new[slot], (1, count)) for slot in kept]
