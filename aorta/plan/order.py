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


def in_share(place: int, share: tuple[int, int]) -> bool:
    """Tells whether a trial is in a share: the places are dealt out one by one, like cards.

    Interleaved like this, every share has trials of every cell and of the whole time, and each trial is in exactly one
    share whatever has been run already.

    Args:
        place: The trial's place in the planned order, from 1.
        share: Number of the share, from 1, and how many shares there are.
    """
    number, count = share
    return (place - number) % count == 0
