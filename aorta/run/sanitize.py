"""Turns whatever a workload returns into plain JSON values, without ever failing on it.

Standard library only, and it imports neither numpy nor torch: their values are known by what they can do.
"""

from __future__ import annotations

import math
import reprlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_TEXT = 16 * 1024
"""Longest string kept, in characters."""

MAX_DEPTH = 24
"""Deepest nesting kept."""

MAX_ITEMS = 200_000
"""Most values kept in one result's metrics or details."""

MAX_ARRAY = 10_000
"""Largest array or tensor whose elements are kept."""

_MAX_INT_BITS = 64


def plain(value: Any) -> Any:
    """Returns ``value`` as JSON values: dict with string keys, list, str, int, finite float, bool, None.

    NaN and infinities become ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; numpy and torch scalars become numbers
    and small arrays lists; tuples and sets become lists; other objects become their ``repr``. What is too long,
    too deep, too many or recursive is cut, and the place says so.
    """
    return _Cleaner().clean(value, 0)


def text(value: Any) -> str:
    """Returns a string that UTF-8 can hold, cut to ``MAX_TEXT`` characters with a note of the full length."""
    string = value if type(value) is str else _safe(str, value)
    if len(string) > MAX_TEXT:
        string = f"{string[:MAX_TEXT]}... (cut: {len(string)} characters)"
    # A lone surrogate, as in a file name with odd bytes, has no UTF-8 form.
    return string.encode("utf-8", "backslashreplace").decode("utf-8")


def number(value: Any) -> float | int | None:
    """Returns a finite number, or None for anything else; numpy and torch scalars count, booleans do not."""
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else None
    return float(value) if math.isfinite(value) else None


def _safe(function: Any, value: Any) -> str:
    """Calls ``str`` or ``repr`` on an object that may raise, or return something that is no string."""
    try:
        # A huge or recursive __repr__ may also exhaust the stack.
        return str.__str__(function(value))
    except Exception as error:
        return f"<{type(value).__name__}: its text cannot be had, {type(error).__name__}>"


def _scalar(value: Any) -> Any:
    """Returns the Python number behind a numpy or torch scalar or one-element array; other values as they are."""
    if isinstance(value, (bool, int, float, str, bytes, dict, list, tuple, type)):
        return value
    item = getattr(value, "item", None)
    if callable(item) and _size(value) == 1:
        try:
            found = item()
        except Exception:
            return value
        if isinstance(found, (bool, int, float, str)):
            return found
    return value


def _size(value: Any) -> int | None:
    """Returns the number of elements of an array or tensor, or None."""
    for name in ("numel", "size"):  # a torch tensor's size() is its shape, a numpy array's size a number
        count = getattr(value, name, None)
        try:
            count = count() if callable(count) else count
        except Exception:
            continue
        if isinstance(count, int):
            return count
    return None


class _Cleaner:
    """One pass over one value."""

    def __init__(self) -> None:
        self._left = MAX_ITEMS
        self._path: set[int] = set()

    def clean(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            return f"(cut: more than {MAX_ITEMS} values)"
        try:
            value = self._from_array(_scalar(value))
            if value is None or isinstance(value, bool):
                return value
            if isinstance(value, str):
                return text(value)
            if isinstance(value, int):
                return self._int(value)
            if isinstance(value, float):
                return self._float(value)
            if isinstance(value, (dict, list, tuple, set, frozenset)) or _is_mapping(value):
                return self._container(value, depth)
        except Exception as error:
            return f"<{type(value).__name__}: cannot be read, {type(error).__name__}>"
        return text(_safe(repr, value))

    @staticmethod
    def _int(value: int) -> int | str:
        if value.bit_length() <= _MAX_INT_BITS:
            return int(value)
        return str(int(value)) if value.bit_length() <= 4096 else f"(cut: an integer of {value.bit_length()} bits)"

    @staticmethod
    def _float(value: float) -> float | str:
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    @staticmethod
    def _from_array(value: Any) -> Any:
        if isinstance(value, (dict, list, tuple, str, bytes)):
            return value
        tolist = getattr(value, "tolist", None)
        if callable(tolist) and not isinstance(value, type):
            size = _size(value)
            if size is not None and size <= MAX_ARRAY:
                return tolist()
        return value

    def _container(self, value: Any, depth: int) -> Any:
        if id(value) in self._path:
            return f"(cut: a {type(value).__name__} that contains itself)"
        if depth >= MAX_DEPTH:
            return f"(cut: nested deeper than {MAX_DEPTH}) {reprlib.repr(value)}"
        self._path.add(id(value))
        try:
            if isinstance(value, dict) or _is_mapping(value):
                return self._mapping(value, depth)
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            cleaned = []
            for item in items:
                cleaned.append(self.clean(item, depth + 1))
                if self._left < 0:
                    break
            return cleaned
        finally:
            self._path.discard(id(value))

    def _mapping(self, value: Any, depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        for key in list(value):
            name = text(key) if isinstance(key, (str, int, float)) or key is None else text(_safe(repr, key))
            while name in cleaned:  # 1 and "1" are two keys
                name += f" ({type(key).__name__})"
            cleaned[name] = self.clean(value[key], depth + 1)
            if self._left < 0:
                break
        return cleaned


def _is_mapping(value: Any) -> bool:
    return hasattr(type(value), "keys") and hasattr(type(value), "__getitem__") and hasattr(type(value), "__iter__")


RESULT_FIELDS = (
    "passed",
    "failure_count",
    "first_failure_iteration",
    "failure_details",
    "total_iterations",
    "step_times_ms",
    "elapsed_sec",
    "metrics",
    "main_work_started",
    "executed_iterations",
    "configured_iterations",
)


def result_fields(result: Any) -> dict[str, Any]:
    """Returns the fields of a WorkloadResult, or of an object or mapping that looks like one, as JSON values.

    Non-finite step times are dropped. Any other field that is not what it should be gets its default, and the entry
    ``_aorta_dropped`` of the metrics says what was there: a slip in a count must not lose a verdict.

    Raises:
        TypeError: There is no ``passed``, or it is not a boolean.
    """
    fields = _read_fields(result)
    passed = _scalar(fields.get("passed"))
    if not isinstance(passed, bool):
        raise TypeError(f"run() returned a result whose passed is {reprlib.repr(passed)}; it must be True or False")
    dropped: list[str] = []

    def integer(name: str, default: int | None) -> int | None:
        value = fields.get(name)
        if value is None:
            return default
        found = number(value)
        if found is None or found != int(found):
            dropped.append(f"{name}: {text(_safe(reprlib.repr, value))} is not an integer")
            return default
        return int(found)

    details = plain(fields.get("failure_details") or [])
    details = details if isinstance(details, list) else [details]
    metrics = plain({} if fields.get("metrics") is None else fields["metrics"])
    if not isinstance(metrics, dict):
        dropped.append(f"metrics: {reprlib.repr(metrics)} is not a mapping")
        metrics = {}
    started = _scalar(fields.get("main_work_started"))
    if started is not None and not isinstance(started, bool):
        dropped.append(f"main_work_started: {reprlib.repr(started)} is not a boolean")
        started = None
    elapsed = number(fields.get("elapsed_sec"))
    if elapsed is None and fields.get("elapsed_sec") is not None:
        dropped.append(f"elapsed_sec: {text(_safe(reprlib.repr, fields['elapsed_sec']))} is not a finite number")
    clean = {
        "passed": passed,
        "failure_count": integer("failure_count", 0),
        "first_failure_iteration": integer("first_failure_iteration", None),
        "failure_details": [detail if isinstance(detail, dict) else {"detail": detail} for detail in details],
        "total_iterations": integer("total_iterations", 0),
        "step_times_ms": _step_times(fields.get("step_times_ms"), dropped),
        "elapsed_sec": elapsed,
        "metrics": metrics,
        "main_work_started": started,
        "executed_iterations": integer("executed_iterations", None),
        "configured_iterations": integer("configured_iterations", None),
    }
    if dropped:
        metrics["_aorta_dropped"] = dropped
    return clean


def _read_fields(result: Any) -> dict[str, Any]:
    if isinstance(result, dict) or (_is_mapping(result) and not hasattr(result, "passed")):
        fields = {name: result[name] for name in RESULT_FIELDS if name in result}
    else:
        fields = {name: getattr(result, name) for name in RESULT_FIELDS if hasattr(result, name)}
    if "passed" not in fields:
        raise TypeError(f"run() returned {reprlib.repr(result)}, not a WorkloadResult (it has no field passed)")
    return fields


def _step_times(values: Any, dropped: list[str]) -> list[float | int]:
    if values is None:
        return []
    if not isinstance(values, (list, tuple)):
        tolist = getattr(values, "tolist", None)
        try:
            values = tolist() if callable(tolist) else list(values)
        except Exception:
            values = None
        if not isinstance(values, list):
            dropped.append("step_times_ms: not a list of numbers")
            return []
    times = [found for value in values if (found := number(value)) is not None]
    if len(times) < len(values):
        dropped.append(f"step_times_ms: {len(values) - len(times)} of {len(values)} are not finite numbers")
    return times
