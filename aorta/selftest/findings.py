"""What each workload's records say about a fault, in one form, and what follows from a fault by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aorta.selftest.planting import Strike

WARMUP_STEP = -1
"""The step of a finding of the warm-up, in which no fault strikes."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One entry of ``failure_details``.

    Attributes:
        rank: The rank that it names.
        step: The step that it names; :data:`WARMUP_STEP` in the warm-up.
        buffer: The buffer, by the name that ``inject`` has for it.
        count: Number of wrong elements, where the workload counts them.
        position: The first wrong element, where the workload says it.
        expected: The bits that it should have.
        found: The bits that it has.
        leads: Whether it is the first of its step, by which a person would go.
    """

    rank: int
    step: int
    buffer: str
    count: int | None = None
    position: int | None = None
    expected: str | None = None
    found: str | None = None
    leads: bool = True

    def __str__(self) -> str:
        when = "in the warm-up" if self.step == WARMUP_STEP else f"at step {self.step}"
        return f"{self.buffer} on rank {self.rank} {when}"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How to read one workload's records.

    Attributes:
        finding: Reads an entry of ``failure_details``.
        shows_in: Names the buffer in which a strike has to be found.
        follows: Tells whether a finding follows from a strike, and is no fault of its own.
    """

    finding: Callable[[Mapping[str, Any]], Finding]
    shows_in: Callable[[Strike], str]
    follows: Callable[[Finding, Strike], bool]

    def findings(self, details: Iterable[Mapping[str, Any]]) -> list[Finding]:
        """Reads ``failure_details``."""
        return [self.finding(entry) for entry in details]


def _step(entry: Mapping[str, Any]) -> int:
    return WARMUP_STEP if entry.get("phase") == "warmup" else int(entry["step"])


def _race_finding(entry: Mapping[str, Any]) -> Finding:
    return Finding(
        rank=entry["rank"],
        step=entry["iteration"],
        buffer=entry["buffer"],
        count=entry["count"],
        position=entry["first_position"],
        expected=entry["expected"]["bits"],
        found=entry["found"]["bits"],
    )


_REDUCED = re.compile(r"(layer\d+\.)?(?:bucket\d+\.)?(?:all_reduce|reduce_scatter)")


def _race_follows(finding: Finding, strike: Strike) -> bool:
    """An update that follows a wrong gradient is wrong too, on the same rank, in the same iteration."""
    reduced = _REDUCED.fullmatch(strike.buffer)
    if reduced is None or (finding.rank, finding.step) != (strike.rank, strike.step):
        return False
    return finding.buffer == f"{reduced[1] or ''}optimizer_param"


def _replay_finding(entry: Mapping[str, Any]) -> Finding:
    suffix = ".updated" if entry["direction"] == "update" else ""
    # A first replay that differs from that of step 0 is no strike's doing: faults strike second replays.
    step = _step(entry) if entry["check"] == "replays_agree" else WARMUP_STEP
    return Finding(rank=entry["rank"], step=step, buffer=entry["tensor"] + suffix, leads="hint" in entry)


def _replay_shows_in(strike: Strike) -> str:
    return "blocks.0.input" if strike.buffer == "input" else strike.buffer


def _replay_follows(finding: Finding, strike: Strike) -> bool:
    """Collectives carry a fault to the other ranks within its step; only the first rank is named by a hint."""
    return finding.step == strike.step and finding.rank != strike.rank and not finding.leads


_TRAINING_ORDER = {"logits": 0, "loss": 1}


def _training_finding(entry: Mapping[str, Any]) -> Finding:
    count = entry["nan_count"] + entry["inf_count"]
    # Only a count of one tensor can be compared.
    one = entry["tensor_count"] == 1
    return Finding(rank=entry["rank"], step=_step(entry), buffer=entry["tensor"], count=count if one else None)


def _training_shows_in(strike: Strike) -> str:
    """A wrong input or parameter shows in what is computed from it."""
    return strike.buffer if strike.buffer in _TRAINING_ORDER or strike.buffer.endswith(".grad") else "logits"


def _training_follows(finding: Finding, strike: Strike) -> bool:
    """A value that is not finite spreads: forward within its rank, by reduced gradients to all, and to later steps."""
    if finding.step != strike.step:
        return finding.step > strike.step
    stage = _TRAINING_ORDER.get(finding.buffer, len(_TRAINING_ORDER))
    struck = _TRAINING_ORDER.get(_training_shows_in(strike), len(_TRAINING_ORDER))
    return stage > struck and (finding.rank == strike.rank or stage == len(_TRAINING_ORDER))


def _inference_finding(entry: Mapping[str, Any]) -> Finding:
    counted = "nan_count" in entry
    return Finding(
        rank=0,
        step=_step(entry),
        buffer=entry["tensor"].replace(" ", "_"),
        count=entry["nan_count"] + entry["inf_count"] if counted else None,
    )


def _inference_shows_in(strike: Strike) -> str:
    """A NaN is found in the pass that it struck; any other change by the checksum of all logits of the step."""
    return strike.buffer if strike.kind == "nan_logits" else "logits"


def _inference_follows(finding: Finding, strike: Strike) -> bool:
    """A NaN changes its step's checksum as well; a parameter stays as it was struck; all steps compare with step 0."""
    if finding.step == strike.step:
        return finding.buffer == "logits" or strike.kind not in ("nan_logits", "bitflip")
    passes = ("input", "prefill_logits", "decode_logits")
    lasts = strike.buffer not in passes or (strike.step == 0 and finding.buffer == "logits")
    return lasts and finding.step > strike.step


READERS: Mapping[str, Reader] = {
    "race": Reader(finding=_race_finding, shows_in=lambda strike: strike.buffer, follows=_race_follows),
    "llm_determinism": Reader(finding=_replay_finding, shows_in=_replay_shows_in, follows=_replay_follows),
    "training": Reader(finding=_training_finding, shows_in=_training_shows_in, follows=_training_follows),
    "inference": Reader(finding=_inference_finding, shows_in=_inference_shows_in, follows=_inference_follows),
}
"""The workloads whose records can be compared with what was planted."""
