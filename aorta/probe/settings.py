"""What a recipe says of how its command is watched and judged.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import re

from aorta.probe.detectors import DETECTORS, TIERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

KEYS: tuple[str, ...] = (
    *("custom_patterns", "hang_window_sec", "hang_grace_period_at_start", "tier3_vram_growth", "disable_detectors"),
    *("disable_detector_tiers", "timeout_per_trial", "step_time_regex", "retain"),
)
"""The keys of a recipe that this room reads."""

VERDICTS: tuple[str, ...] = ("fail", "pass", "error")

EFFECTS: tuple[str, ...] = ("fail", "warn", "info")
"""What a pattern's match makes of a trial; ``info`` only records it."""

RETAIN_LEVELS: tuple[str, ...] = ("full", "summary", "log", "none")
"""What of a trial is kept: everything; result.json alone; result.json and the logs; nothing but the verdict."""

RESERVED: tuple[str, ...] = ("unavailable", "step_times")
"""What stands in ``capture`` beside the detectors."""

DEFAULT_VRAM_GROWTH_MIB = 1024.0

MAX_REGEX = 4096
"""Characters in a regular expression of a recipe."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Pattern:
    """One of the recipe's own detectors.

    Attributes:
        id: Its name among the detectors.
        regex: Searched on each line of both logs, or None for a condition on the trial as a whole.
        condition: What must hold of a line that the regex matched, or of the trial at its end; None for nothing more.
        on_match: ``fail``, ``warn`` or ``info``.
        required_for_pass: Whether a trial without a match has failed.
    """

    __slots__ = ("condition", "id", "on_match", "regex", "required_for_pass")

    def __init__(self, data: Mapping[str, Any]) -> None:
        match = data.get("match") or {}
        self.id: str = data["id"]
        self.regex: str | None = match.get("regex")
        self.condition: str | None = match.get("condition")
        self.required_for_pass = bool(data.get("required_for_pass", False))
        # A line that must be there is no fault when it is.
        self.on_match: str = data.get("on_match") or ("info" if self.required_for_pass else "fail")

    def to_json(self) -> dict[str, Any]:
        """Returns the pattern as a recipe has it."""
        match = {
            key: value for key, value in (("regex", self.regex), ("condition", self.condition)) if value is not None
        }
        return {
            "id": self.id,
            "match": match,
            "on_match": self.on_match,
            "required_for_pass": self.required_for_pass,
        }


class ProbeSettings:
    """How a command is watched and judged.

    Attributes:
        custom_patterns: The recipe's own detectors.
        hang_window_sec: Seconds without a sign of life that make a hang.
        hang_grace_period_at_start: Seconds from the start in which nothing is called a hang.
        vram_growth_mib: Growth of GPU memory that is warned about, in MiB, or None for no such check.
        disable_detectors: Detectors that never fire.
        disable_detector_tiers: Tiers that are not looked at.
        timeout_per_trial: Time limit of a trial in seconds, or None.
        step_time_regex: Finds a step's time on a line, or None.
        retain: What is kept of a trial, by its verdict: ``on_fail``, ``on_pass``, ``on_error``.
    """

    __slots__ = (
        *("custom_patterns", "disable_detector_tiers", "disable_detectors", "hang_grace_period_at_start"),
        *("hang_window_sec", "retain", "step_time_regex", "timeout_per_trial", "vram_growth_mib"),
    )

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        given = {key: value for key, value in (data or {}).items() if value is not None}
        self.custom_patterns = tuple(Pattern(pattern) for pattern in given.get("custom_patterns", ()))
        self.hang_window_sec = float(given.get("hang_window_sec", 30))
        self.hang_grace_period_at_start = float(given.get("hang_grace_period_at_start", 60))
        self.vram_growth_mib = _vram_growth(given.get("tier3_vram_growth", False))
        self.disable_detectors = frozenset(given.get("disable_detectors", ()))
        self.disable_detector_tiers = frozenset(_tier(tier) for tier in given.get("disable_detector_tiers", ()))
        limit = given.get("timeout_per_trial")
        self.timeout_per_trial = None if limit is None else float(limit)
        self.step_time_regex: str | None = given.get("step_time_regex")
        retain = given.get("retain", {})
        self.retain: dict[str, str] = {f"on_{verdict}": retain.get(f"on_{verdict}", "full") for verdict in VERDICTS}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> ProbeSettings:
        """Builds settings from a recipe's mapping, or from what :meth:`to_json` gave.

        Args:
            data: A mapping in which :func:`problems` found nothing; keys other than ``KEYS`` are left alone.
        """
        return cls(data)

    def to_json(self) -> dict[str, Any]:
        """Returns all settings, defaults too, as a mapping that has a JSON form."""
        return {
            "custom_patterns": [pattern.to_json() for pattern in self.custom_patterns],
            "hang_window_sec": self.hang_window_sec,
            "hang_grace_period_at_start": self.hang_grace_period_at_start,
            "tier3_vram_growth": False if self.vram_growth_mib is None else self.vram_growth_mib,
            "disable_detectors": sorted(self.disable_detectors),
            "disable_detector_tiers": sorted(self.disable_detector_tiers),
            "timeout_per_trial": self.timeout_per_trial,
            "step_time_regex": self.step_time_regex,
            "retain": dict(self.retain),
        }

    def is_on(self, detector: str) -> bool:
        """Tells whether a detector may fire; a name that is no built-in one's is a pattern's."""
        tier = DETECTORS[detector][0] if detector in DETECTORS else "tier5"
        return detector not in self.disable_detectors and self.tier_is_on(tier)

    def tier_is_on(self, tier: str) -> bool:
        """Tells whether a tier is looked at."""
        return tier not in self.disable_detector_tiers


def problems(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Finds what is wrong with a recipe's settings beyond their shape.

    Args:
        data: A recipe's mapping that follows the schema; only ``KEYS`` are looked at. What does not follow it may be
            left out, or be None in a list, and is then passed over.

    Returns:
        One (path, message) a fault, such as ``("custom_patterns[1].match.regex", "cannot be compiled: ...")``, in the
        order of the recipe.
    """
    found: list[tuple[str, str]] = []
    patterns = data.get("custom_patterns") or []
    seen: dict[str, int] = {}
    for index, pattern in enumerate(patterns):
        place = f"custom_patterns[{index}]"
        if pattern is None:
            continue
        if "id" in pattern:
            name = pattern["id"]
            found.extend(_id_problems(f"{place}.id", name, seen))
            seen.setdefault(str(name), index)
        found.extend(_pattern_problems(place, pattern))
    found.extend(_disabling_problems(data, set(seen)))
    step = data.get("step_time_regex")
    if step is not None:
        message = _regex_problem(step)
        if message is None and re.compile(step).groups == 0:
            message = "has no group; put round brackets around the number, such as step_time: ([0-9.]+) ms"
        if message is not None:
            found.append(("step_time_regex", message))
    return found


def _id_problems(place: str, name: Any, seen: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    if not isinstance(name, str) or not _ID.fullmatch(name):
        yield place, f"{name!r} is not a name; use up to 64 letters, digits, '_', '-' and '.'"
    elif name in DETECTORS or name in RESERVED:
        yield place, f"'{name}' is a name of the engine's own; use another one"
    elif name in seen:
        yield place, f"'{name}' is the name of custom_patterns[{seen[name]}] already; use another one"


def _pattern_problems(place: str, pattern: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from aorta.probe.conditions import Condition, ConditionError

    match = pattern.get("match") or {}
    regex, condition = match.get("regex"), match.get("condition")
    if "match" in pattern and regex is None and condition is None:
        yield f"{place}.match", "is empty; give regex, condition or both"
    if regex is not None and (message := _regex_problem(regex)) is not None:
        yield f"{place}.match.regex", message
    if condition is not None:
        try:
            names = Condition(condition).names
        except ConditionError as error:
            yield f"{place}.match.condition", str(error)
        else:
            if "capture" in names and regex is None:
                yield f"{place}.match.condition", "names capture, and there is no match.regex that captures"
    if pattern.get("on_match") == "fail" and pattern.get("required_for_pass"):
        yield f"{place}.required_for_pass", "a match that fails a trial cannot be required for its pass; drop one"


def _regex_problem(regex: str) -> str | None:
    if len(regex) > MAX_REGEX:
        return f"has {len(regex)} characters; {MAX_REGEX} are allowed"
    try:
        re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        return f"cannot be compiled: {error}"
    return None


def _disabling_problems(data: Mapping[str, Any], patterns: set[str]) -> Iterator[tuple[str, str]]:
    for index, name in enumerate(data.get("disable_detectors") or []):
        if name is not None and name not in DETECTORS and name not in patterns:
            near, known = _nearest(name, [*DETECTORS, *patterns]), ", ".join(DETECTORS)
            yield f"disable_detectors[{index}]", f"'{name}' is not a detector{near}; there are: {known}"
    for index, tier in enumerate(data.get("disable_detector_tiers") or []):
        if tier is not None and _tier(tier) not in TIERS:
            yield f"disable_detector_tiers[{index}]", f"'{tier}' is not a tier; there are: {', '.join(TIERS)}"


def _nearest(name: Any, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(str(name), known, 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _tier(value: Any) -> str:
    """Returns a tier's name; ``3`` is another way to say ``tier3``."""
    text = str(value)
    return f"tier{text}" if text.isdigit() else text


def _vram_growth(value: bool | float) -> float | None:
    if isinstance(value, bool):
        return DEFAULT_VRAM_GROWTH_MIB if value else None
    return float(value)
