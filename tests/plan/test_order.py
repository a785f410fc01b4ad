"""Trials run in seeded random blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aorta.plan.order import positions, trial_order

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
