"""What a replay left behind, tensor by tensor, and where two replays part. Standard library only."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Direction = Literal["forward", "backward", "update"]

_HEX = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Place:
    """A tensor of the training step.

    Attributes:
        block: Number of the block that it belongs to, or None (embedding, final norm, head, logits, loss).
        direction: ``forward``, ``backward`` (gradients), or ``update`` (parameters after the optimiser).
        tensor: Its name.
        role: What it is: ``block_pre`` and ``block_post`` (a block's input and output, or in ``backward`` their
            gradients), ``output`` (logits), ``loss``, ``parameter`` (in ``forward`` as it enters the step, in
            ``backward`` its gradient).
    """

    block: int | None
    direction: Direction
    tensor: str
    role: Literal["block_pre", "block_post", "output", "loss", "parameter"]

    def __str__(self) -> str:
        where = "" if self.block is None else f"block {self.block}, "
        return f"{where}{self.direction}, {self.tensor}"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The checksums of one run of the step, in the order in which the tensors came to be.

    Attributes:
        places: The tensors.
        plain: Sum of the bit patterns of each, signed 64-bit.
        ordered: Position-sensitive checksum of each, signed 64-bit; equality of tensors is judged by it.
    """

    places: tuple[Place, ...]
    plain: tuple[int, ...]
    ordered: tuple[int, ...]

    def digest(self) -> str:
        """Returns 16 hexadecimal digits that are the same for the same bits everywhere."""
        packed = struct.pack(f"<{len(self.ordered)}q", *self.ordered)
        return hashlib.blake2b(packed, digest_size=8).hexdigest()

    def index_of(self, role: str) -> int:
        """Returns the index of the one forward tensor of that role."""
        return next(i for i, p in enumerate(self.places) if p.role == role and p.direction == "forward")

    def blocks_checked(self) -> int:
        """Returns the number of blocks of which input, output and both gradients were recorded."""
        seen: dict[int | None, set[tuple[str, str]]] = {}
        for place in self.places:
            if place.role in ("block_pre", "block_post"):
                seen.setdefault(place.block, set()).add((place.direction, place.role))
        return sum(len(found) == 4 for found in seen.values())


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A tensor whose bits differ between two runs of the step on one rank.

    Attributes:
        step: Step of the second of the two runs.
        runs: Names of the two runs: ``r1`` and ``r2`` of the step, or ``r1 of step 0`` and ``r1``.
        rank: The rank.
        order: Place in the order in which tensors come to be in a step.
        place: The tensor.
        expected: Its ordered checksum in the first run.
        found: Its ordered checksum in the second run.
        seen_by_plain_sum: Whether the plain sum differs too.
    """

    step: int
    runs: tuple[str, str]
    rank: int
    order: int
    place: Place
    expected: int
    found: int
    seen_by_plain_sum: bool

    @property
    def sort_key(self) -> tuple[int, bool, int, int]:
        """Earlier in time first: step, pairs within a step before those across steps, tensor, rank."""
        return self.step, self.runs[0] != "r1", self.order, self.rank

    def reason(self) -> str:
        """Returns one line for the metrics."""
        first, second = self.runs
        return (
            f"step {self.step}, rank {self.rank}: {self.place}: checksum {self.expected & _HEX:016x} in {first}, "
            f"{self.found & _HEX:016x} in {second}"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the divergence as ``first_divergence`` of the metrics has it."""
        return {
            "step": self.step,
            "rank": self.rank,
            "block": self.place.block,
            "direction": self.place.direction,
            "tensor": self.place.tensor,
            "runs": list(self.runs),
            "expected": f"{self.expected & _HEX:016x}",
            "found": f"{self.found & _HEX:016x}",
            "seen_by_plain_sum": self.seen_by_plain_sum,
        }


def divergences(first: Replay, second: Replay, *, step: int, runs: tuple[str, str], rank: int) -> Iterator[Divergence]:
    """Yields the tensors that differ, in the order in which they come to be.

    Raises:
        RuntimeError: The two runs did not record the same tensors.
    """
    if first.places != second.places:
        raise RuntimeError(
            f"step {step}: {runs[0]} recorded {len(first.places)} tensors and {runs[1]} {len(second.places)}, "
            "or in another order; they cannot be compared"
        )
    for order, place in enumerate(first.places):
        if first.ordered[order] != second.ordered[order]:
            yield Divergence(
                step=step,
                runs=runs,
                rank=rank,
                order=order,
                place=place,
                expected=first.ordered[order],
                found=second.ordered[order],
                seen_by_plain_sum=first.plain[order] != second.plain[order],
            )
