"""The order in which trials run: seeded random blocks, so that hours of drift do not land on one cell."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence


def trial_order(cells: Sequence[tuple[str, int]], seed: int) -> Iterator[tuple[str, int]]:
    """Yields every (cell, trial) once, block by block.

    Block *b* holds trial *b* of each cell that has that many, shuffled by its own seed. A block's order among
    cells does not depend on how many blocks there are, so adding trials to a run keeps the order of the old ones.

    Args:
        cells: Name and number of trials of each cell.
        seed: Any integer; the same seed gives the same order on every machine.

    Yields:
        Cell name and trial index, from 0.
    """
    longest = max((trials for _, trials in cells), default=0)
    for block in range(longest):
        members = [name for name, trials in cells if trials > block]
        # A string seed is hashed with SHA-512 by the library: independent of the interpreter and its hash seed.
        random.Random(f"aorta-order:{seed}:{block}").shuffle(members)
        for name in members:
            yield name, block


def positions(order: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Numbers an order from 1."""
    return {slot: place for place, slot in enumerate(order, start=1)}
