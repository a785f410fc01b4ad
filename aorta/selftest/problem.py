"""A way in which a record differs from what was planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Code = Literal[
    "missing_trial",
    "error",
    "false_alarm",
    "not_planted",
    "missed",
    "wrong_rank",
    "wrong_step",
    "wrong_buffer",
    "wrong_position",
    "wrong_value",
    "wrong_ending",
    "not_slow",
]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that a trial's record should have said, or should not.

    Attributes:
        code: What kind of thing. ``missing_trial``: there is no record. ``error``: the trial ended in an error that
            nobody planted. ``false_alarm``: a finding without a fault. ``not_planted``: a fault was planned and did not
            strike as planned. ``missed``: it struck and was not found. ``wrong_...``: it was found, and described
            wrongly. ``not_slow``: a planted delay does not show in the times.
        message: What was planted and what the record says.
        fault: Place of the fault in ``workload_config.inject``, from 0; None for what belongs to no fault.
    """

    code: Code
    message: str
    fault: int | None = None
