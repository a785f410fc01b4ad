"""Cells that stop after some events: which of their trials count, and why the sampling ended.

Trials count in the order of their numbers, up to and with the one whose event ends the cell. Later ones were skipped,
or had started before that was known: these are recorded and left out, whatever they found, since counting them would
let the machine's speed decide about the rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aorta.matrix.rates import EndedBy
from aorta.run.record import NOT_NEEDED

Record = Mapping[str, Any]
Rule = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A cell's records, parted.

    Attributes:
        records: Those that every rate and statistic is over.
        excess: Numbers of the trials that ran beyond the stopping point.
        skipped: How many trials were not needed.
        reason: ``events_reached``, ``cap_reached``, or None without a rule and while that is open.
    """

    records: Sequence[Record]
    excess: list[int]
    skipped: int
    reason: Literal["events_reached", "cap_reached"] | None


def counted(records: Sequence[Record], rule: Rule | None, trials: int) -> Counted:
    """Parts a cell's records into those that count and the others.

    Args:
        records: The cell's records in order of trial.
        rule: ``events`` and ``event_verdict``, or None.
        trials: How many trials the cell has at most.
    """
    ran = [record for record in records if record["exit_status"] != NOT_NEEDED]
    skipped = len(records) - len(ran)
    if rule is None:
        return Counted(records=ran, excess=[], skipped=skipped, reason=None)
    last = last_counted(ran, rule)
    if last is None:
        return Counted(records=ran, excess=[], skipped=skipped, reason="cap_reached" if len(ran) == trials else None)
    return Counted(
        records=[record for record in ran if record["trial"] <= last],
        excess=[record["trial"] for record in ran if record["trial"] > last],
        skipped=skipped,
        reason="events_reached",
    )


def last_counted(records: Sequence[Record], rule: Rule) -> int | None:
    """Returns the number of the trial whose event ends the cell, or None.

    Args:
        records: The cell's records in order of trial.
        rule: ``events`` and ``event_verdict``.
    """
    events = [record["trial"] for record in records if record["verdict"] == rule["event_verdict"]]
    return events[rule["events"] - 1] if len(events) >= rule["events"] else None


def failures_ended_by(rule: Rule | None, reason: str | None) -> EndedBy:
    """Returns what ended the sampling of passes and fails, seen as misses and hits."""
    if rule is None or reason != "events_reached":
        return "size"
    # Where errors are waited for, how many passes and fails there are does not depend on what those are.
    ends: dict[str, EndedBy] = {"fail": "hit", "pass": "miss", "error": "size"}
    return ends[rule["event_verdict"]]


def errors_ended_by(rule: Rule | None, reason: str | None) -> EndedBy:
    """Returns what ended the sampling of errors and other trials, seen as hits and misses."""
    waited = rule is not None and rule["event_verdict"] == "error" and reason == "events_reached"
    return "hit" if waited else "size"


def is_sequential(rule: Rule | None) -> bool:
    """Whether the number of passes and fails depends on what they are, so that it is no fixed number of trials."""
    return rule is not None and rule["event_verdict"] != "error"
