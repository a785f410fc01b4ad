"""Searches logs for the recipe's own patterns (tier 5) and for step times, and lets no pattern search for ever.

A pattern of a recipe may be catastrophic: ``(a+)+$`` takes longer than the universe on a line of letters. Lines are
bounded, and a clock of processor time interrupts a search that has cost more than it may; that pattern is given up.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import contextlib
import math
import re
import signal

from aorta.probe.conditions import Condition, number_or_text
from aorta.probe.logs import lines
from aorta.probe.signatures import MAX_COUNT, Sighting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import Any

    from aorta.probe.conditions import Value
    from aorta.probe.settings import Pattern

TICK_SEC = 0.1
BASE_SEC = 2.0
SEC_PER_MIB = 0.25
"""What one pattern may cost in seconds of processor time: ``BASE_SEC``, and this for each MiB of log."""

MAX_STEPS = 100_000
"""Step times kept; what comes after them is counted."""

_TO_MS = {"us": 0.001, "ms": 1.0, "sec": 1000.0}


class TooSlow(Exception):
    """A pattern has cost more processor time than it may."""


class Match(Sighting):
    """Where a pattern first matched.

    Attributes:
        captured: What its first group, or the group named ``capture``, took; without groups the whole match.
    """

    __slots__ = ("captured",)

    def __init__(self, log: str, line: int, text: str, captured: str | None) -> None:
        super().__init__(log, line, text)
        self.captured = captured

    def to_json(self) -> dict[str, Any]:
        """Returns the match as a mapping that has a JSON form; a captured NaN stays text."""
        captured = None if self.captured is None else self.captured[:MAX_CAPTURED]
        return {**super().to_json(), "captured": captured}


MAX_CAPTURED = 200
"""Characters of captured text that are kept."""


class Search:
    """One pattern and what it has found.

    Attributes:
        pattern: The recipe's pattern.
        match: The first line that it holds of, or None.
        given_up: Why it was given up, or None.
        spent_ticks: Processor time that it has cost, in ticks.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.regex = None if pattern.regex is None else re.compile(pattern.regex)
        self.condition = None if pattern.condition is None else Condition(pattern.condition)
        self.match: Match | None = None
        self.given_up: str | None = None
        self.spent_ticks = 0

    def look_at(self, log: str, number: int, text: str, values: Mapping[str, Value]) -> None:
        """Looks at one line."""
        assert self.regex is not None
        if (self.match is not None and self.match.count >= MAX_COUNT) or (found := self.regex.search(text)) is None:
            return
        captured = _captured(found)
        if self.condition is not None:
            value = None if captured is None else number_or_text(captured)
            if not self.condition.holds({**values, "capture": value}):
                return
        if self.match is None:
            self.match = Match(log, number, text, captured)
        else:
            self.match.count += 1


class StepTimes:
    """The step times that a log tells.

    Args:
        regex: Its first group is a number of milliseconds, or a group named ``us``, ``ms`` or ``sec`` is one of those.

    Attributes:
        times_ms: The first ``MAX_STEPS`` of them.
        dropped: How many more there were.
    """

    def __init__(self, regex: str) -> None:
        self.regex = re.compile(regex)
        named = [name for name in self.regex.groupindex if name in _TO_MS]
        self._group: str | int = named[0] if named else 1
        self._factor = _TO_MS[named[0]] if named else 1.0
        self.times_ms: list[float] = []
        self.dropped = 0
        self.given_up: str | None = None
        self.spent_ticks = 0

    def look_at(self, log: str, number: int, text: str, values: Mapping[str, Value]) -> None:
        """Looks at one line; what is no number of zero or more is passed over."""
        if (found := self.regex.search(text)) is None:
            return
        value = number_or_text(found[self._group] or "")
        if isinstance(value, str) or not math.isfinite(value) or value < 0:
            return
        if len(self.times_ms) < MAX_STEPS:
            self.times_ms.append(value * self._factor)
        else:
            self.dropped += 1


def search_logs(
    searches: Sequence[Search | StepTimes], logs: Mapping[str, tuple[str, int | None]], values: Mapping[str, Value]
) -> None:
    """Searches logs for patterns; each search keeps what it found.

    Args:
        searches: Those that have a regex.
        logs: By name, the path and how many bytes count.
        values: What conditions may name besides ``capture``.
    """
    active = list(searches)
    with _Clock() as clock:
        for log, (path, size) in logs.items():
            for number, text in lines(path, size):
                if not active:
                    return
                clock.read_bytes += len(text)
                for search in active:
                    try:
                        clock.running = search
                        search.look_at(log, number, text, values)
                        clock.running = None
                    except TooSlow:
                        search.given_up = f"took too long at line {number} of {log}"
                        active = [other for other in active if other is not search]


class _Clock:
    """Samples in processor time which search is running, and interrupts one that has had its share.

    Python's regular expressions look for signals while they backtrack. Only the main thread can have a timer; elsewhere
    nothing is interrupted.
    """

    def __init__(self) -> None:
        self.running: Search | StepTimes | None = None
        self.read_bytes = 0

    def __enter__(self) -> _Clock:
        self._before: Any = None
        # ValueError: this is not the main thread.
        with contextlib.suppress(ValueError):
            self._before = signal.signal(signal.SIGVTALRM, self._tick)
            signal.setitimer(signal.ITIMER_VIRTUAL, TICK_SEC, TICK_SEC)
        return self

    def __exit__(self, *_error: object) -> None:
        self.running = None
        with contextlib.suppress(ValueError):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, self._before or signal.SIG_DFL)

    def _tick(self, _signum: int, _frame: FrameType | None) -> None:
        search = self.running
        if search is None:
            return
        search.spent_ticks += 1
        if search.spent_ticks * TICK_SEC > BASE_SEC + SEC_PER_MIB * self.read_bytes / (1 << 20):
            self.running = None
            raise TooSlow


def _captured(found: re.Match[str]) -> str | None:
    if "capture" in found.re.groupindex:
        return found["capture"]
    return found[1] if found.re.groups else found[0]
