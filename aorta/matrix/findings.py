"""What a cell's trials have to say, each thing once: errors, metrics, and where they ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from aorta._jsonio import canonical_json
from aorta.matrix.numbers import finite_number, mean

NEVER_STARTED = "the workload ended without starting its main work"


def error_summary(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns each distinct (exit status, message) with the trials that ended so, most frequent first.

    Each has ``message``, ``exit_status``, ``did_not_run`` (whether all that went wrong is that the main work never
    started), ``hint`` (the error's own, of the first trial that has one, or None), ``count`` and ``trials``.
    """
    trials: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    hints: dict[tuple[str, str, bool], str] = {}
    for record in records:
        message, error = _error_message(record), record["error"]
        if message is None:
            continue
        key = record["exit_status"], message, error is None
        trials[key].append(record["trial"])
        hint = str((error or {}).get("hint") or "").strip()
        if hint:
            hints.setdefault(key, hint)
    ordered = sorted(trials.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {
            "message": key[1],
            "exit_status": key[0],
            "did_not_run": key[2],
            "hint": hints.get(key),
            "count": len(indices),
            "trials": sorted(indices),
        }
        for key, indices in ordered
    ]


def _error_message(record: Mapping[str, Any]) -> str | None:
    error = record["error"]
    if error is None:
        return NEVER_STARTED if record["did_not_run"] else None
    message, kind = str(error["message"] or "").strip(), str(error["type"] or "").strip()
    if not message:
        return kind or "no message"
    # The engine's own findings (signal, exit, timeout, a workload that cannot be found) are told by the message itself.
    is_exception = kind[:1].isupper() and kind != "ResolveError" and error["phase"] != "process"
    return f"{kind}: {message}" if is_exception and not message.startswith(kind) else message


def summarize_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the workload's metrics over the cell's trials, sorted by name.

    Returns:
        Metric name to ``{"kind": "number", "trials", "mean", "min", "max"}`` if it is a finite number in every trial
        that has it, ``{"kind": "value", "trials", "value"}`` if it is the same in all of them, or
        ``{"kind": "varies", "trials"}``.
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for record in records:
        for name, value in ((record["result"] or {}).get("metrics") or {}).items():
            values[name].append(value)
    return {name: _summarize_metric(values[name]) for name in sorted(values)}


def _summarize_metric(values: Sequence[Any]) -> dict[str, Any]:
    numbers = [number for number in map(finite_number, values) if number is not None]
    if len(numbers) == len(values):
        return {
            "kind": "number",
            "trials": len(values),
            "mean": mean(numbers),
            "min": min(numbers),
            "max": max(numbers),
        }
    if len({canonical_json(value) for value in values}) == 1:
        return {"kind": "value", "trials": len(values), "value": values[0]}
    return {"kind": "varies", "trials": len(values)}


def hosts(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the host names that the trials ran on, sorted."""
    return sorted({str(record["host"]["hostname"]) for record in records if (record["host"] or {}).get("hostname")})


def devices(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the distinct devices that the trials ran on, each with ``kind``, ``index`` and ``identity``."""
    found = {
        (str(kind), -1 if index is None else index, str(identity)): {"kind": kind, "index": index, "identity": identity}
        for kind, index, identity in (
            (device.get("kind"), device.get("index"), device.get("identity"))
            for device in (record["device"] for record in records)
            if device is not None
        )
    }
    return [found[key] for key in sorted(found)]
