"""What failing trials say of themselves: where each failed first, and their hints with the first cause in front."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aorta.matrix.numbers import count

# The engine puts this before the hint of a rank whose detail names neither; the detail's own fields have both.
_ATTRIBUTION = re.compile(r"rank \d+(, step \d+)?: ")


def failure_hints(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns each distinct hint of a workload's ``failure_details`` with the number of trials that gave it.

    They come in the order in which they first occur, by trial and within a trial by time: what goes wrong first is the
    cause, and the rest often follows from it. A trial that repeats a hint a thousand times counts once: how many trials
    failed so is what an intermittent failure is judged by. For the same reason the step and the rank that a detail has
    in fields of its own are left out of its hint, as ``step N``: thirty steps of one NaN are one hint.
    """
    counts: dict[str, int] = {}
    for record in records:
        hints = map(_hint, _details(record))
        for hint in dict.fromkeys(hint for hint in hints if hint is not None):
            counts[hint] = counts.get(hint, 0) + 1
    return [{"hint": hint, "count": number} for hint, number in counts.items()]


def first_failures(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns where failing trials failed first, equal places once, in the order in which they first occur.

    Returns:
        For each place ``phase``, ``step``, ``rank``, ``check`` and ``tensor`` (null where the detail does not say),
        ``count`` and ``trials``. Trials whose first detail says none of them are not among those.
    """
    trials: dict[tuple[Any, ...], list[int]] = {}
    for record in records:
        details = _details(record)
        if not details or record["result"]["passed"] is not False:
            continue
        first = details[0]
        tensor = _text(first.get("tensor")) or _text(first.get("buffer"))
        place = (_step(first), count(first.get("rank")), _text(first.get("check")), tensor)
        if any(part is not None for part in place):
            trials.setdefault((_text(first.get("phase")), *place), []).append(record["trial"])
    names = ("phase", "step", "rank", "check", "tensor")
    return [
        {**dict(zip(names, place, strict=True)), "count": len(indices), "trials": indices}
        for place, indices in trials.items()
    ]


def _details(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns a trial's failure details, earliest first where each of them has a step.

    A workload lists them as they happen, but those of several ranks stand rank by rank.
    """
    listed = (record["result"] or {}).get("failure_details") or ()
    details: list[Mapping[str, Any]] = [detail for detail in listed if isinstance(detail, dict)]
    steps = [_step(detail) for detail in details]
    if None in steps:
        return details
    return sorted(details, key=lambda detail: (detail.get("phase") != "warmup", _step(detail)))


def _step(detail: Mapping[str, Any]) -> int | None:
    return count(detail.get("step", detail.get("iteration")))


def _hint(detail: Mapping[str, Any]) -> str | None:
    """Returns the detail's hint without its place."""
    hint = _text(detail.get("hint"))
    if hint is None:
        return None
    if count(detail.get("rank")) is not None:
        attribution = _ATTRIBUTION.match(hint)
        hint = hint[attribution.end() :] if attribution else hint
    for word in ("step", "iteration", "rank"):
        number = count(detail.get(word))
        if number is not None:
            hint = re.sub(rf"\b{word} {number}\b(?!\.\d)", f"{word} N", hint)
    return hint


def _text(value: object) -> str | None:
    return (value.strip() or None) if isinstance(value, str) else None
