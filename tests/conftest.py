"""How the whole suite is spread over worker processes."""

from __future__ import annotations

import os

import pytest


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: the tests on a cluster wait a good part of their time for its queue."""
    return min(8, len(os.sched_getaffinity(0)) + 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest tests first, so that no worker sits on one at the end; the order is the same otherwise."""
    items.sort(key=lambda item: item.get_closest_marker("slurm") is None)
