"""The capture file: one JSON line for each replay. Standard library only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from aorta.llm_determinism.compare import Replay

_PARAMETER_FIELDS = {"forward": "parameters_before", "backward": "gradients", "update": "parameters"}


class Capture:
    """Writes ``rank<NNN>.jsonl``; a line is on disk as soon as its replay is over.

    Args:
        folder: Where the file goes; made if it is not there. ``{trial}`` in it stands for the trial's number.
        rank: This process's rank.
        trial: The trial's number.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, folder: str, *, rank: int, trial: int) -> None:
        self._rank = rank
        self._trial = trial
        self.path = Path(folder.replace("{trial}", str(trial))) / f"rank{rank:03d}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8")

    def write(self, replay: Replay, *, step: int, run: str) -> None:
        """Adds one replay: step from 0, run ``r1`` or ``r2``."""
        line = {"rank": self._rank, "trial": self._trial, "step": step, "run": run, **capture_fields(replay)}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def capture_fields(replay: Replay) -> dict[str, Any]:
    """Returns the checksums of a replay by what they are of.

    Returns:
        ``loss_bits`` and ``output_bits`` (plain sums; of the one loss that is its bit pattern); ``block_pre`` and
        ``block_post``, one plain sum a block, with ``_grad`` for the gradients; by name ``parameters_before``,
        ``gradients`` and ``parameters`` (after the step); and each of them again with ``_ordered``, as
        position-sensitive checksums. All are signed 64-bit integers.
    """
    fields: dict[str, Any] = {}
    for suffix, sums in (("", replay.plain), ("_ordered", replay.ordered)):
        blocks: dict[str, dict[int, int]] = {
            name: {} for name in ("block_pre", "block_post", "block_pre_grad", "block_post_grad")
        }
        named: dict[str, dict[str, int]] = {name: {} for name in _PARAMETER_FIELDS.values()}
        for place, value in zip(replay.places, sums, strict=True):
            if place.role in ("loss", "output"):
                fields[f"{place.role}_bits{suffix}"] = value
            elif place.role == "parameter":
                named[_PARAMETER_FIELDS[place.direction]][place.tensor.removesuffix(".grad")] = value
            elif place.block is not None:
                blocks[f"{place.role}{'_grad' if place.direction == 'backward' else ''}"][place.block] = value
        fields |= {f"{name}{suffix}": [of[block] for block in sorted(of)] for name, of in blocks.items()}
        fields |= {f"{name}{suffix}": of for name, of in named.items()}
    return fields
