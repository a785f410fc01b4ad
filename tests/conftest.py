"""How the whole suite is spread over worker processes, and what those inherit."""

from __future__ import annotations

import os
import signal

import pytest

for _signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    # Ignored under nohup and in a script's background, and then by every command that a test starts and interrupts.
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, signal.default_int_handler if _signum == signal.SIGINT else signal.SIG_DFL)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: the tests on a cluster wait a good part of their time for its queue."""
    return min(8, len(os.sched_getaffinity(0)) + 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest tests first, so that no worker sits on one at the end; the order is the same otherwise."""
    items.sort(key=lambda item: item.get_closest_marker("slurm") is None)
