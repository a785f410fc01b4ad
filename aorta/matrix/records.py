"""Trial files that count: each one parsed, held against the schema, its own path and the plan's fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from aorta._jsonio import NotRegularError, read_json
from aorta._resources import load_schema
from aorta.run.record import verdict

# Deeper than any record that a workload writes for a reason, and shallow enough for every later recursion.
_DEEPEST_NESTING = 64
_LONGEST_REASON = 200


class RejectedError(Exception):
    """A file that does not count.

    Attributes:
        code: ``unreadable``, ``invalid`` or ``stale``.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a trial's path and the plan say its record must hold.

    Attributes:
        cell: The cell's name.
        trial: The trial's index.
        workload: The workload's name.
        fingerprint: The cell's fingerprint.
    """

    cell: str
    trial: int
    workload: str
    fingerprint: str


def read_record(path: Path, expected: Expected) -> dict[str, Any]:
    """Reads one trial's record.

    Raises:
        FileNotFoundError: There is no file.
        RejectedError: The file is there and does not count; the message is the reason.
    """
    record = read_object(path)
    problem = _schema_problem(record) or _identity_problem(record, expected) or _verdict_problem(record)
    if problem is not None:
        raise RejectedError("invalid", problem)
    if record["fingerprint"] != expected.fingerprint:
        raise RejectedError(
            "stale",
            f"was made for another request of this cell (fingerprint {record['fingerprint'][:12]}, "
            f"the plan has {expected.fingerprint[:12]})",
        )
    return record


def read_object(path: Path) -> dict[str, Any]:
    """Reads one JSON object from a regular file.

    Raises:
        FileNotFoundError: There is no file.
        RejectedError: It cannot be read, or holds something else.
    """
    try:
        value = read_json(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(path)) from error
    except NotRegularError as error:
        raise RejectedError("unreadable", str(error)) from error
    except OSError as error:
        raise RejectedError("unreadable", error.strerror or type(error).__name__) from error
    except ValueError as error:
        raise RejectedError("unreadable", _shortened(f"is not JSON: {error}")) from error
    if not isinstance(value, dict):
        raise RejectedError("invalid", f"holds a JSON {_kind(value)}, not an object")
    if _too_deep(value):
        raise RejectedError("invalid", f"is nested deeper than {_DEEPEST_NESTING} levels")
    return value


@cache
def _validator() -> Validator:
    """The trial schema, compiled once: compiling costs more than validating a record."""
    return Draft202012Validator(load_schema("trial"))


def _schema_problem(record: Mapping[str, Any]) -> str | None:
    # Checking each of a million step times through the schema takes minutes. A list of plain positive numbers needs
    # no such check; any other list goes through the schema as it is.
    result = record.get("result")
    times = result.get("step_times_ms") if isinstance(result, dict) else None
    if isinstance(times, list) and all(type(value) is float and value > 0 for value in times):
        record = {**record, "result": {**result, "step_times_ms": times[:1]}}  # type: ignore[dict-item]
    validator = _validator()
    if validator.is_valid(record):
        return None
    errors = sorted(validator.iter_errors(record), key=lambda error: (error.json_path, error.message))
    first = errors[0]
    where = first.json_path.removeprefix("$").removeprefix(".")
    # What the schema forbids, it forbids together with another field's value, which jsonschema does not name.
    message = f"{first.instance!r} contradicts the rest of the record" if first.validator == "not" else first.message
    text = _shortened(f"{where}: {message}" if where else message)
    return text if len(errors) == 1 else f"{text} (and {len(errors) - 1} more)"


def _identity_problem(record: Mapping[str, Any], expected: Expected) -> str | None:
    for field in ("cell", "trial", "workload"):
        if record[field] != (wanted := getattr(expected, field)):
            return _shortened(f"{field} is {record[field]!r}, its path says {wanted!r}")
    return None


def _verdict_problem(record: Mapping[str, Any]) -> str | None:
    """A record that contradicts itself says nothing about the failure rate."""
    found = record["verdict"], record["did_not_run"]
    if found != (implied := verdict(record["exit_status"], record["result"])):
        return f"verdict and did_not_run are {found}, the rest of the record says {implied}"
    return None


def _too_deep(value: Any) -> bool:
    """Walks level by level, so that the check itself cannot run out of stack."""
    level = [value]
    for _ in range(_DEEPEST_NESTING):
        below: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            below.extend(child for child in children if isinstance(child, dict | list))
        if not below:
            return False
        level = below
    return True


def _kind(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
