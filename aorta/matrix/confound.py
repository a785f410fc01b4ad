"""The confound column: is a cell only slower, or does it change how often the failure happens?

A mitigation that slows the program down can hide a race without touching its cause. So a cell whose step takes
clearly longer than the baseline's is flagged before its failure rate is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from aorta.matrix.rates import EndedBy, Sample
from aorta.matrix.timing import Source

BASELINE = "(baseline)"
UNREMARKABLE = "-"
NO_EFFECT = "no effect"
WORSE = "worse"
NOT_AVAILABLE = "n/a"
ERROR = "error"
DID_NOT_RUN = "did_not_run"
SPEED = "speed"
"""First word of the tag of a slower cell, ``speed (+N%)``."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the comparison needs to know of a cell.

    Attributes:
        name: The cell's name.
        present: Trials that count.
        did_not_run: Those of them whose main work never started.
        passed: Trials with verdict pass.
        failed: Trials with verdict fail.
        ended_by: What ended the sampling of passes and fails, as in ``Sample``.
        mean_step_time_ms: Mean step time in milliseconds, or None.
        step_time_source: The rung that the mean came from.
    """

    name: str
    present: int
    did_not_run: int
    passed: int
    failed: int
    mean_step_time_ms: float | None
    step_time_source: Source
    ended_by: EndedBy = "size"

    @property
    def judged(self) -> int:
        """Trials with verdict pass or fail."""
        return self.passed + self.failed

    @property
    def failures(self) -> Sample:
        """Passes and fails as a sample whose hits are the fails."""
        return Sample(hits=self.failed, misses=self.passed, ended_by=self.ended_by)

    @property
    def rate(self) -> Fraction:
        """Estimated failure rate; 0 without a verdict."""
        return self.failures.rate or Fraction(0)

    @property
    def silence(self) -> tuple[str, str] | None:
        """Tag and reason if no trial of the cell gave a verdict, else None."""
        if self.judged:
            return None
        if not self.present:
            return NOT_AVAILABLE, "no trial is present"
        if self.did_not_run == self.present:
            return DID_NOT_RUN, "no trial started its main work"
        return ERROR, "every trial ended in an error, none gave a verdict"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A cell's place relative to the baseline.

    Attributes:
        tag: The text of the confound column.
        ratio: Mean step time over the baseline's, or None where that cannot be said.
        reason: Why there is no ratio or no verdict, or None.
    """

    tag: str
    ratio: float | None = None
    reason: str | None = None


def compare(cell: Standing, baseline: Standing, threshold: float) -> Comparison:
    """Returns the cell's confound tag.

    Args:
        cell: The cell.
        baseline: The baseline cell, which may be the same.
        threshold: A ratio above this, and not equal to it, is flagged as speed.
    """
    if cell.name == baseline.name:
        silence = cell.silence
        return Comparison(tag=BASELINE, reason=None if silence is None else silence[1])
    if cell.silence is not None:
        tag, reason = cell.silence
        return Comparison(tag=tag, reason=reason)
    if baseline.silence is not None:
        return Comparison(tag=NOT_AVAILABLE, reason=f"baseline {baseline.name}: {baseline.silence[1]}")
    ratio = _ratio(cell, baseline)
    if isinstance(ratio, str):
        return Comparison(tag=NOT_AVAILABLE, reason=ratio)
    # Rounding in a mean must not push a ratio that is exactly at the threshold over it.
    if ratio > threshold and not math.isclose(ratio, threshold, rel_tol=1e-12):
        return Comparison(tag=f"{SPEED} ({round((ratio - 1) * 100):+d}%)", ratio=ratio)
    # Fractions, so that equal rates are equal.
    if cell.rate > baseline.rate:
        return Comparison(tag=WORSE, ratio=ratio)
    if cell.rate == baseline.rate and cell.failed:
        return Comparison(tag=NO_EFFECT, ratio=ratio)
    return Comparison(tag=UNREMARKABLE, ratio=ratio)


def _ratio(cell: Standing, baseline: Standing) -> float | str:
    """Returns the ratio of mean step times, or the reason why there is none."""
    for side in (cell, baseline):
        if side.mean_step_time_ms is None:
            who = "baseline" if side is baseline else "cell"
            return f"the {who} has no usable step times"
    if cell.step_time_source != baseline.step_time_source:
        return f"step times are {cell.step_time_source}, the baseline's are {baseline.step_time_source}"
    assert cell.mean_step_time_ms is not None and baseline.mean_step_time_ms is not None
    try:
        ratio = cell.mean_step_time_ms / baseline.mean_step_time_ms
    except (OverflowError, ZeroDivisionError):
        ratio = math.inf
    return ratio if math.isfinite(ratio) else "the step times are too far apart to compare"
