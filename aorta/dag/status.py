"""What a run directory holds at this moment: trials done, running, failed and missing, and the time left."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from aorta import _owner
from aorta.dag.lock import read_owner
from aorta.run.claim import Found, claims_folder, find, waiting_for
from aorta.text import columns, plural, shortened

SCHEMA_VERSION = 1

_LISTED = 20
"""Lines of one kind that a person is shown; ``--json`` has them all."""


def sweep_status(run_dir: Path, *, place: _owner.Place | None = None, now: float | None = None) -> dict[str, Any]:
    """Reads a run directory and says where its sweep stands; writes nothing.

    Args:
        run_dir: The run directory.
        place: Where this process is; for tests.
        now: Seconds since the epoch; None for the present.

    Returns:
        A mapping ready for JSON: ``schema_version``, ``run_dir``, ``ticket``, ``workload``, ``state`` (``running``,
        ``stopped`` or ``complete``), ``sweep`` (``host``, ``pid`` and ``since`` of the process that runs it, or
        None), ``trials_expected``, ``trials_done``, ``counts`` (verdict to number), ``running`` (``cell``, ``trial``,
        ``host``, ``pid``, ``job``, ``since``, ``seconds``), ``waiting`` (the same of trials that have waited for
        longer than a moment for what they run on, and ``reason``), ``failed`` (``cell``, ``trial``, ``verdict``,
        ``exit_status``), ``missing`` (cell name to trial numbers), ``unreadable`` (messages), ``seconds_left`` (None
        if nothing is known) and ``cells`` (``name``, ``trials``, ``done``, ``counts``, ``running``, ``waiting``,
        ``missing``).

    Raises:
        aorta.plan.model.PlanFileError: ``plan.json`` is missing or damaged.
    """
    from aorta.matrix.load import load_run

    place = place or _owner.Place.here()
    now = time.time() if now is None else now
    run = load_run(run_dir)
    recorded = {(record["cell"], record["trial"]): record for record in run.records}
    claimed = [entry for entry in _claimed(run_dir, run.plan, place, now) if _key(entry) not in recorded]
    keys = {_key(entry) for entry in claimed}
    waiting = [entry for entry in claimed if entry["reason"] is not None]
    running = [
        {name: value for name, value in entry.items() if name != "reason"}
        for entry in claimed
        if entry["reason"] is None
    ]
    cells, missing = [], {}
    for cell in run.plan.cells:
        own = [recorded[cell.name, trial] for trial in range(cell.trials) if (cell.name, trial) in recorded]
        absent = [
            trial
            for trial in range(cell.trials)
            if (cell.name, trial) not in recorded and (cell.name, trial) not in keys
        ]
        if absent:
            missing[cell.name] = absent
        cells.append(
            {
                "name": cell.name,
                "trials": cell.trials,
                "done": len(own),
                "counts": _counts(own),
                "running": sum(entry["cell"] == cell.name for entry in running),
                "waiting": sum(entry["cell"] == cell.name for entry in waiting),
                "missing": len(absent),
            }
        )
    done, expected = len(run.records), run.plan.trial_count
    sweep = _sweep(run_dir, place, now)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_dir": str(run_dir),
        "ticket": run.plan.ticket,
        "workload": run.plan.workload,
        "state": "complete" if done == expected else "running" if sweep or claimed else "stopped",
        "sweep": sweep,
        "trials_expected": expected,
        "trials_done": done,
        "counts": _counts(run.records),
        "running": running,
        "waiting": waiting,
        "failed": [
            {name: record[name] for name in ("cell", "trial", "verdict", "exit_status")}
            for record in sorted(run.records, key=_key)
            if record["verdict"] in ("fail", "error")
        ],
        "missing": missing,
        "unreadable": [warning["message"] for warning in run.warnings],
        "seconds_left": _seconds_left(run.records, running, waiting, missing),
        "cells": cells,
    }


def _key(entry: Mapping[str, Any]) -> tuple[str, int]:
    return entry["cell"], entry["trial"]


def _counts(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found = Counter(str(record["verdict"] or record["exit_status"]) for record in records)
    return {"pass": 0, "fail": 0, "error": 0, **found}


def _lives(owner: dict[str, Any], place: _owner.Place, silent_sec: float) -> bool:
    """Whether an owner is at work; one that this host cannot look at is, as long as its file moves."""
    state = _owner.state(owner, place)
    return state == _owner.ALIVE or (state == _owner.UNKNOWN and silent_sec < _owner.LEASE_SEC)


def _claimed(run_dir: Path, plan: Any, place: _owner.Place, now: float) -> list[dict[str, Any]]:
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for cell in plan.cells:
        for claim in _claims(run_dir, cell.name):
            owner = claim.owner
            if claim.trial >= cell.trials or owner is None or not _lives(owner, place, now - claim.moved[1] / 1e9):
                continue
            since = owner.get("claimed_at")
            since = float(since) if isinstance(since, int | float) and not isinstance(since, bool) else None
            latest[cell.name, claim.trial] = {
                "cell": cell.name,
                "trial": claim.trial,
                "host": owner["host"],
                "pid": owner["pid"],
                "job": owner.get("job"),
                "since": _time(since),
                "seconds": None if since is None else max(0.0, round(now - since, 3)),
                "reason": waiting_for(claim.path),
            }
    return [latest[key] for key in sorted(latest)]


def _claims(run_dir: Path, cell: str) -> list[Found]:
    try:
        return find(os.path.join(claims_folder(str(run_dir)), cell))
    except OSError:
        return []


def _sweep(run_dir: Path, place: _owner.Place, now: float) -> dict[str, Any] | None:
    path = run_dir / ".aorta" / "lock"
    owner = read_owner(path)
    try:
        silent = now - path.stat().st_mtime
    except OSError:
        return None
    if owner is None or not _lives(owner, place, silent):
        return None
    since = owner.get("since")
    return {
        "host": owner["host"],
        "pid": owner["pid"],
        "since": _time(float(since)) if isinstance(since, int | float) and not isinstance(since, bool) else None,
    }


def _time(seconds: float | None) -> str | None:
    """Returns a time as ISO 8601 in the local zone, to the second."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return None


def _seconds_left(
    records: Sequence[Mapping[str, Any]],
    running: Sequence[Mapping[str, Any]],
    waiting: Sequence[Mapping[str, Any]],
    missing: Mapping[str, Sequence[int]],
) -> float | None:
    """Estimates the time left from the mean wall clock of each cell's trials, as many at once as run now."""
    if not running and not waiting and not missing:
        return 0.0
    times: dict[str, list[float]] = {}
    for record in records:
        if record["verdict"] is not None:
            times.setdefault(record["cell"], []).append(record["wall_clock_sec"])
    every = [seconds for own in times.values() for seconds in own]
    if not every:
        return None
    means = {cell: sum(own) / len(own) for cell, own in times.items()}
    usual = sum(every) / len(every)
    work = sum(len(trials) * means.get(cell, usual) for cell, trials in missing.items())
    work += sum(means.get(entry["cell"], usual) for entry in waiting)
    work += sum(max(0.0, means.get(entry["cell"], usual) - (entry["seconds"] or 0.0)) for entry in running)
    return round(work / max(1, len(running)), 3)


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Returns a status as a person reads it."""
    sweep = status["sweep"]
    where = f" by pid {sweep['pid']} on host {sweep['host']} since {sweep['since']}" if sweep else ""
    table = [["cell", "trials", "done", "pass", "fail", "error", "running", "waiting", "missing"]]
    for cell in status["cells"]:
        counts = [str(cell["counts"][verdict]) for verdict in ("pass", "fail", "error")]
        left = [str(cell[state]) for state in ("running", "waiting", "missing")]
        table.append([cell["name"], str(cell["trials"]), str(cell["done"]), *counts, *left])
    lines = [
        f"{status['run_dir']}: {status['state']}{where}",
        f"{status['trials_done']} of {plural(status['trials_expected'], 'trial')} done; time left: {_left(status)}",
        "",
        *columns(table),
    ]
    running = [_who(entry) for entry in status["running"]]
    waiting = [f"{_who(entry)}: {shortened(entry['reason'], 200)}" for entry in status["waiting"]]
    failed = [f"{entry['cell']} trial {entry['trial']}: {entry['exit_status']}" for entry in status["failed"]]
    missing = [f"{cell}: {', '.join(map(str, trials))}" for cell, trials in status["missing"].items()]
    for heading, entries in (
        ("running", running),
        ("waiting", waiting),
        ("failed", failed),
        ("missing", missing),
        ("to look at", status["unreadable"]),
    ):
        if entries:
            more = [f"  and {len(entries) - _LISTED} more"] if len(entries) > _LISTED else []
            lines += ["", f"{heading}:", *(f"  {entry}" for entry in entries[:_LISTED]), *more]
    return lines


def _who(entry: Mapping[str, Any]) -> str:
    job = f" in job {entry['job']}" if entry["job"] else ""
    who = f"pid {entry['pid']} on host {entry['host']}{job}"
    return f"{entry['cell']} trial {entry['trial']}: {who} since {entry['since']}"


def _left(status: Mapping[str, Any]) -> str:
    seconds = status["seconds_left"]
    if seconds is None:
        return "unknown until a trial has ended"
    if status["state"] == "complete":
        return "none"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"about {text}" if status["state"] == "running" else f"about {text} once it runs again"
