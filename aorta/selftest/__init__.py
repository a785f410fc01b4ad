"""Does the detector work here? Plants known faults, and compares every trial's record with what was planted."""

from __future__ import annotations

from aorta.selftest.judge import judge, judge_speed
from aorta.selftest.problem import Problem

__all__ = ["Problem", "judge", "judge_speed"]
