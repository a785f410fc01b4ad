"""The record of failed checks that a workload keeps while it runs on. Standard library only."""

from __future__ import annotations

import logging
from typing import Any, Literal

Phase = Literal["warmup", "timed"]

KEPT = 32
"""Failures kept in full; the rest are counted. A run whose weights turned NaN fails at every later step."""


class FailureLog:
    """Counts failed checks, keeps the first ones, and says each kept one on the log as it happens.

    Args:
        workload: Name for the log line.

    Attributes:
        count: Number of failed checks.
        details: The first ``KEPT`` failures, each with at least ``step``, ``phase``, ``check`` and ``hint``.
        first_step: Timed step of the first failure. 0 when the warm-up failed first, as it comes before step 0.
    """

    def __init__(self, workload: str) -> None:
        self._logger = logging.getLogger("aorta.workloads")
        self._workload = workload
        self.count = 0
        self.details: list[dict[str, Any]] = []
        self.first_step: int | None = None

    def add(self, *, step: int, check: str, hint: str, phase: Phase = "timed", **found: Any) -> None:
        """Records a failed check.

        Args:
            step: Step inside its phase, from 0.
            check: Name of the check, that of its switch in ``workload_config.checks`` where it has one.
            hint: One sentence for the reader of the matrix, without step, rank or counts: trials that fail for the
                same reason are counted by it. Those have fields of their own.
            phase: Whether the step was one of the warm-up.
            **found: What else to record, such as the rank and the tensor.
        """
        self.count += 1
        if self.first_step is None:
            self.first_step = step if phase == "timed" else 0
        if len(self.details) < KEPT:
            self.details.append({"step": step, "phase": phase, "check": check, **found, "hint": hint})
            rank = f", rank {found['rank']}" if "rank" in found else ""
            self._logger.warning("%s: %s step %d%s: %s: %s", self._workload, phase, step, rank, check, hint)
