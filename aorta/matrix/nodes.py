"""Whether one of several nodes has more than its share of what went wrong. ``docs/statistics.md`` has the test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import hypergeom

ALPHA = 0.01
"""A node is a suspect when its p-value, corrected for the number of nodes, is not above this."""

Tally = tuple[int, int, int, int]
"""Of one cell: all its tries, the bad ones among them, the node's tries, the bad ones among those."""


def node_table(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns how trials ended on each node, and which nodes are suspects.

    What counts is the try: a trial's record, and each earlier attempt that ended in an error and ran again. A try on
    several nodes counts for each of them.

    Args:
        records: Trial records of any cells; those without a verdict are left out.

    Returns:
        For each node, by name: ``name``, ``passed``, ``failed``, ``errors``, ``p_value`` (corrected for the number of
        nodes) and ``suspect``. Empty where all tries were on one node, since there is nothing to compare with.
    """
    counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("pass", "fail", "error"), 0))
    tries: dict[str, list[tuple[frozenset[str], bool]]] = defaultdict(list)
    for record in records:
        for nodes, verdict in _tries(record):
            tries[record["cell"]].append((nodes, verdict != "pass"))
            for node in nodes:
                counts[node][verdict] += 1
    if len(counts) < 2:
        return []
    table = []
    for name in sorted(counts):
        tallies = [_tally(name, of_cell) for of_cell in tries.values()]
        p_value = min(1.0, len(counts) * more_than_its_share(tallies))
        found = counts[name]
        table.append(
            {
                "name": name,
                "passed": found["pass"],
                "failed": found["fail"],
                "errors": found["error"],
                "p_value": p_value,
                "suspect": p_value <= ALPHA,
            }
        )
    return table


def more_than_its_share(tallies: Sequence[Tally]) -> float:
    """Returns how likely it is that a node has so many bad tries, or more, if nodes make no difference.

    The exact test of one stratum after the other: in each cell, how many of its bad tries fell on the node's tries is
    hypergeometric; the sum over the cells has the convolution of these distributions. A cell that always fails, or
    never does, says nothing about nodes, and adds nothing.

    Args:
        tallies: One for each cell.
    """
    seen = sum(bad_here for _, _, _, bad_here in tallies)
    distribution = np.ones(1)
    for size, bad, here, _ in tallies:
        distribution = np.convolve(distribution, hypergeom.pmf(np.arange(min(bad, here) + 1), size, bad, here))
    return min(1.0, float(distribution[seen:].sum()))


def _tally(node: str, tries: Sequence[tuple[frozenset[str], bool]]) -> Tally:
    here = [bad for nodes, bad in tries if node in nodes]
    return len(tries), sum(bad for _, bad in tries), len(here), sum(here)


def _tries(record: Mapping[str, Any]) -> list[tuple[frozenset[str], str]]:
    if record["verdict"] is None:
        return []
    earlier = [(_nodes(attempt, attempt["host"]), "error") for attempt in record["attempts"]]
    ranks = [str(rank["host"]) for rank in record["ranks"] or ()]
    own = _nodes(record, *(ranks or [str((record["host"] or {}).get("hostname"))]))
    return [*earlier, (own, str(record["verdict"]))]


def _nodes(entry: Mapping[str, Any], *hosts: str) -> frozenset[str]:
    """Returns SLURM's names where there are any: several of its nodes may share one host's name."""
    return frozenset((entry.get("slurm") or {}).get("nodes") or hosts)
