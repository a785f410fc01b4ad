"""Whether a cell that stops after some events still needs a trial.

The rule: trials are counted in the order of their numbers. With the k-th event the cell has seen enough, and every
trial with a higher number is beyond the stopping point. A trial looks at the records of lower numbers only, and is
skipped once k events are among them. Lower trials that still run cannot overturn that: an event among them only moves
the stopping point further down. So what counts never depends on how many trials ran side by side or how fast each
was; a trial that had started before the stopping point was known is recorded and left out of every rate.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import re

from aorta._jsonio import both_ends
from aorta._trialfile import HEAD_BYTES, begins_and_ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Any

EVENT_VERDICTS = ("fail", "pass", "error")

# A quote inside a JSON string is escaped, so no name of a cell or a workload can look like this.
_OUTCOME = re.compile(rb'"exit_status": "([a-z_]+)",\s*"verdict": (?:"([a-z]+)"|null)')


def read_outcome(path: str | os.PathLike[str], fingerprint: str) -> tuple[str, str | None] | None:
    """Returns a record's ``exit_status`` and ``verdict``; None if no whole record with this fingerprint is there.

    A look at both ends and no parse, as for ``is_current``. A record that does not say at its beginning how the trial
    ended, which none of ours does, has an empty status and no verdict; who reads all of it will refuse it.
    """
    head, tail = both_ends(path, HEAD_BYTES)
    if not begins_and_ends(head, tail, fingerprint):
        return None
    found = _OUTCOME.search(head)
    if found is None:
        return "", None
    return found[1].decode(), found[2].decode() if found[2] else None


def event_trials(
    path_of: Callable[[int], str | os.PathLike[str]], below: int, fingerprint: str, rule: Mapping[str, Any]
) -> list[int]:
    """Returns the numbers of the trials on disk that are the first events of a cell, at most as many as end it.

    Args:
        path_of: Gives the path of a trial's record.
        below: Only trials with a lower number are looked at.
        fingerprint: What a record must carry to count.
        rule: ``events`` and ``event_verdict``.
    """
    found: list[int] = []
    for trial in range(below):
        outcome = read_outcome(path_of(trial), fingerprint)
        if outcome is not None and outcome[1] == rule["event_verdict"]:
            found.append(trial)
            if len(found) == rule["events"]:
                break
    return found


def seen_enough(cell: Mapping[str, Any], stem: str, trial: int) -> dict[str, Any] | None:
    """Returns why a cell no longer needs a trial, as its record will say it; None if the trial is needed.

    Args:
        cell: The cell's request.
        stem: Path of the trial's files without their extension; it ends with the trial's number.
        trial: The trial's number.

    """
    rule = cell.get("stop_after")
    if rule is None:
        return None
    folder_and_name = stem.removesuffix(str(trial))
    found = event_trials(lambda number: f"{folder_and_name}{number}.json", trial, cell["fingerprint"], rule)
    if len(found) < rule["events"]:
        return None
    return {"events": rule["events"], "event_verdict": rule["event_verdict"], "event_trials": found}


def is_rule(rule: object) -> bool:
    """Tells whether a request's ``stop_after`` is a rule with its two values."""
    return (
        isinstance(rule, dict)
        and isinstance(rule.get("events"), int)
        and rule["events"] > 0
        and rule.get("event_verdict") in EVENT_VERDICTS
    )
