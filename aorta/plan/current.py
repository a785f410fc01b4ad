"""Which trial files of a cell need no run: whole records of the planned trial, or skips that are still right."""

from __future__ import annotations

from functools import cached_property

from aorta.plan.model import PlannedCell
from aorta.plan.paths import RunLayout
from aorta.run.needed import event_trials, read_outcome
from aorta.run.record import NOT_NEEDED


class CellFiles:
    """The trial files of one cell, as they are when they are first looked at.

    Args:
        layout: The run directory's paths.
        cell: The cell as it is planned now.
    """

    def __init__(self, layout: RunLayout, cell: PlannedCell) -> None:
        self._layout = layout
        self._cell = cell

    def is_current(self, trial: int) -> bool:
        """Whether a trial has a whole record with the cell's fingerprint.

        The record of a trial that was not needed is current as long as the cell's rule, as it is now, would skip it.
        """
        outcome = read_outcome(self._layout.trial(self._cell.name, trial), self._cell.fingerprint)
        if outcome is None:
            return False
        return outcome[0] != NOT_NEEDED or (self._stopped_at is not None and trial > self._stopped_at)

    @cached_property
    def _stopped_at(self) -> int | None:
        """Number of the trial whose event ended the cell, or None."""
        rule = self._cell.stop_after
        if rule is None:
            return None
        found = event_trials(
            lambda trial: self._layout.trial(self._cell.name, trial), self._cell.trials, self._cell.fingerprint, rule
        )
        return found[-1] if len(found) == rule["events"] else None
