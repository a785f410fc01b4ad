"""A sweep that is killed again and again, in every way, ends with the same matrix as an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chaos import COUNTS, Chaos

pytestmark = pytest.mark.e2e

KILLS = 25


def test_killed_at_25_moments_the_matrix_is_the_same(tmp_path: Path) -> None:
    """Every verdict, count and fingerprint is there, no recorded trial ran again, and nothing is left behind."""
    chaos = Chaos(tmp_path, seed=20261130)
    chaos.finish()
    chaos.check_end()
    undisturbed = chaos.outcome()
    assert {cell["name"]: cell["verdict_counts"] for cell in undisturbed["cells"]} == COUNTS
    outcomes = []
    check = chaos.check_end

    def check_and_keep() -> None:
        check()
        outcomes.append(chaos.outcome())

    chaos.check_end = check_and_keep  # type: ignore[method-assign]
    chaos.new_round()
    chaos.disturb(KILLS)
    assert sum(chaos.tally.kills.values()) == KILLS
    assert set(chaos.tally.kills) == set(chaos.ways)
    assert outcomes == [undisturbed] * len(outcomes)
