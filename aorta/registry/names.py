"""Words for error messages: values shown short, and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable

LAUNCHER_IDENTITY = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that only the launcher may set, because they say which process of a group this one is."""

_LONGEST_SHOWN = 80
_LONGEST_COMPARED = 100


def short(value: object) -> str:
    """Returns the repr of ``value`` on one line, cut to a readable length."""
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"{value[: _LONGEST_SHOWN - 20]!r}... ({len(value)} characters)"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def bare(text: str) -> str:
    """Returns ``text`` on one line, cut to a readable length, without quotes around it."""
    shown = text if len(text) <= 40 else text[:37] + "..."
    return repr(shown)[1:-1]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that ``name`` is probably a slip of, or None."""
    # Only now: most recipes have no slip, and difflib costs milliseconds to import.
    from difflib import get_close_matches

    candidates = list(known)
    # A long string is no slip of a name, and comparing it would take seconds.
    if not name or len(name) > _LONGEST_COMPARED:
        return None
    folded = {candidate.casefold(): candidate for candidate in reversed(candidates)}
    if name.casefold() in folded:
        return folded[name.casefold()]
    found = get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.7)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"``, or nothing where no known name is near."""
    found = nearest(name, known)
    return f"; did you mean {found!r}?" if found is not None else ""
