"""The record of one trial: what ended it, the verdict, and everything that a reader needs to judge it.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import os
import signal
import time

import aorta
from aorta.run.sanitize import plain
from aorta.text import plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from aorta.run.process import Ending
    from aorta.run.report import Report
    from aorta.run.request import Arguments

NOT_NEEDED = "not_needed"
"""The ``exit_status`` of a trial that its cell no longer needed: it did not run and has no verdict."""

SETUP_PHASES = ("resolve", "setup")
"""Phases whose failure is ``workload_setup_failed``; a constructor's is ``infrastructure_failed``."""

_NODES_TOLD = 3
"""Nodes of a trial that its line names."""

_HINTS = {
    "SIGKILL": "the engine did not send it; most often it is the kernel's out-of-memory killer (see dmesg)",
    "SIGSEGV": "stderr_tail has the Python stack of every thread, unless the workload replaced the handler",
    "SIGABRT": "a library called abort(); it usually says why in stderr_tail",
    "SIGBUS": "a mapped file or /dev/shm may be full, or the device was lost",
    "SIGILL": "a library was built for another processor",
}
_WHERE = {
    "start": "before the workload was imported",
    "import": "while the workload was imported",
    "construct": "in the workload's constructor",
    "setup": "during setup()",
    "run": "during run()",
    "cleanup": "during cleanup()",
}


def verdict(exit_status: str, result: Mapping[str, Any] | None) -> tuple[str | None, bool]:
    """Returns ``pass``, ``fail``, ``error`` or None (not needed), and whether the trial's main work did not run.

    Args:
        exit_status: The record's ``exit_status``.
        result: The record's ``result``.
    """
    if exit_status == NOT_NEEDED:
        return None, False
    did_not_run = result is not None and result["main_work_started"] is False
    if did_not_run or exit_status not in ("ok", "workload_failed"):
        return "error", did_not_run
    return ("pass" if exit_status == "ok" else "fail"), False


def error_entry(phase: str, kind: str, message: str, **more: Any) -> dict[str, Any]:
    """Returns an ``error`` with all its keys; ``more`` fills those that are not None.

    Args:
        phase: ``resolve``, ``construct``, ``setup``, ``run``, ``cleanup`` or ``process``.
        kind: The exception's type, or ``signal``, ``exit``, ``timeout``, ``hang``, ``exec``, ``launch``.
        message: One or more sentences.
    """
    entry: dict[str, Any] = {"phase": phase, "type": kind, "message": message}
    for key in ("hint", "exit_code", "signal", "rank", "traceback"):
        entry[key] = more.get(key)
    entry["stderr_tail"] = more.get("stderr_tail", [])
    return entry


def judge(ending: Ending, report: Report, limit_sec: float | None) -> tuple[str, dict[str, Any] | None]:
    """Returns the ``exit_status``, and the ``error`` or None.

    How the process ended comes before what it reported: a result from a process that then crashed is kept, but the
    trial is no longer ``ok``. The one exception is a process that left by itself with status 0 after its result.

    Args:
        ending: How the worker ended.
        report: What it reported.
        limit_sec: The time limit in seconds.
    """
    where = _where(report)
    if ending.cut == "time_limit":
        message = f"the time limit of {limit_sec:g} s was reached {where}"
        return "timed_out", error_entry("process", "timeout", message, hint=_left_behind(ending))
    if ending.cut == "hang":
        message = f"it did nothing more after the other ranks had ended: it hung {where}"
        return "infrastructure_failed", error_entry("process", "hang", message, hint=_left_behind(ending))
    if ending.cut == "teardown":
        message = f"the worker had reported its end but did not exit: it hung {where}"
        return "infrastructure_failed", error_entry("process", "timeout", message, hint=_left_behind(ending))
    code = ending.exit_code
    if code is not None and code < 0:
        name = signal_name(-code)
        return "infrastructure_failed", error_entry(
            "process", "signal", f"killed by {name} {where}", signal=name, hint=_HINTS.get(name)
        )
    if report.error is not None:
        status = "workload_setup_failed" if report.error["phase"] in SETUP_PHASES else "infrastructure_failed"
        error = dict(report.error)
        return status, error_entry(error.pop("phase"), error.pop("type"), error.pop("message"), **error)
    if report.result is None:
        message = f"the process ended with exit status {code} {where}, before it returned a result"
        return "infrastructure_failed", error_entry("process", "exit", message, exit_code=code)
    if code != 0:
        message = f"the process ended with exit status {code} {where}, after it had returned a result"
        return "infrastructure_failed", error_entry("process", "exit", message, exit_code=code)
    return ("ok" if report.result["passed"] else "workload_failed"), None


def _where(report: Report) -> str:
    if report.done is not None:
        return "at the exit of the interpreter"
    return _WHERE[report.phase or "start"]


def _left_behind(ending: Ending) -> str | None:
    if not ending.left_behind:
        return None
    pids = ", ".join(map(str, ending.left_behind))
    return f"SIGKILL did not end process {pids}: it is likely stuck in a driver call; the device may need a reset"


def signal_name(signum: int) -> str:
    """Returns ``SIGSEGV`` and the like; real-time signals have only a number."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"SIG{signum}"


def build(
    arguments: Arguments,
    cell: Mapping[str, Any],
    *,
    exit_status: str,
    error: dict[str, Any] | None,
    overlay: Mapping[str, str],
    device: Mapping[str, Any] | None,
    started_at: float,
    ended_at: float,
    ending: Ending | None = None,
    report: Report | None = None,
    result: Mapping[str, Any] | None = None,
    worker_pid: int | None = None,
    environment_probe: str | None = None,
    logs: Mapping[str, str] | None = None,
    not_needed: Mapping[str, Any] | None = None,
    ranks: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Returns the record, with every key that ``schemas/trial.schema.json`` asks for.

    Args:
        arguments: The supervisor's command line.
        cell: The cell's request.
        exit_status: How the trial ended.
        error: What ended it, or None.
        overlay: The controlled variables as applied.
        device: What the trial ran on; None for one that was skipped.
        started_at: Time of the start, in seconds since the epoch.
        ended_at: Time of the end, in seconds since the epoch.
        ending: How the worker, or rank 0, ended, or None if there was none.
        report: What the worker, or rank 0, reported.
        result: What the trial found.
        worker_pid: The process id of the worker, or of rank 0.
        environment_probe: ``captured`` or ``missing`` if a snapshot was asked for.
        logs: File names of the kept output.
        not_needed: Why the trial was skipped.
        ranks: The ranks, or None for a workload that has none.
    """
    verdict_, did_not_run = verdict(exit_status, result)
    nothing = dict.fromkeys(("start", "import", "construct", "setup", "run", "cleanup"))
    return {
        "schema_version": 1,
        "aorta_version": aorta.__version__,
        "cell": arguments.cell,
        "trial": arguments.trial,
        "workload": cell["workload"],
        "fingerprint": cell["fingerprint"],
        "exit_status": exit_status,
        "verdict": verdict_,
        "did_not_run": did_not_run,
        "error": plain(error),
        "result": dict(result) if result is not None else None,
        "cleanup_error": _cleanup_error(report, ending),
        "wall_clock_sec": round(ending.ended - ending.started, 6) if ending else 0.0,
        "phases_sec": report.phases_sec(ending.started, ending.ended) if report and ending else nothing,
        "started_at": iso_utc(started_at),
        "ended_at": iso_utc(ended_at),
        "order": arguments.order,
        "attempt": arguments.attempt,
        "attempts": [],
        "not_needed": dict(not_needed) if not_needed else None,
        "steps": cell["steps"],
        "resolved_env_vars": plain(dict(overlay)),
        "environment": cell["environment"],
        "workload_config": cell["workload_config"],
        "isolation": cell["isolation"],
        "host": this_host(),
        "slurm": None,
        "device": dict(device) if device is not None else None,
        "pid": worker_pid,
        "supervisor_pid": os.getpid(),
        "peak_rss_bytes": ending.peak_rss_bytes if ending else None,
        "peak_device_memory_bytes": report.done["peak_device_memory_bytes"] if report and report.done else None,
        "environment_probe": environment_probe,
        "logs": dict(logs) if logs else None,
        "ranks": [dict(rank) for rank in ranks] if ranks is not None else None,
    }


def this_host() -> dict[str, Any]:
    """Returns the record's ``host``."""
    host = os.uname()
    return {
        "hostname": host.nodename,
        "machine": host.machine,
        "kernel": host.release,
        "cpu_count": os.cpu_count(),
    }


def _cleanup_error(report: Report | None, ending: Ending | None) -> str | None:
    if report is None or report.cleanup_error is not None:
        return report.cleanup_error if report else None
    if ending and ending.exit_code == 0 and ending.cut is None and report.result and report.done is None:
        return "the process ended itself with exit status 0 during cleanup()"
    return None


def iso_utc(seconds: float) -> str:
    """Returns a time since the epoch as ISO 8601 in UTC with milliseconds."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def progress_line(record: Mapping[str, Any], of: int | None, colour: bool) -> str:
    """Returns the line that tells a person how the trial ended.

    Args:
        record: The trial's record.
        of: Number of trials in the run, or None.
        colour: Whether to use terminal colours.
    """
    place = ""
    if record["order"] is not None:
        width = len(str(of)) if of else 0
        place = f"[{record['order']:>{width}}" + (f"/{of}] " if of else "] ")
    word = record["verdict"] or "not needed"
    if colour and record["verdict"]:
        code = {"pass": 32, "fail": 31, "error": 33}[word]
        word = f"\x1b[{code}m{word}\x1b[0m"
    line = f"{place}{record['cell']} trial {record['trial']}: {word}  {record['wall_clock_sec']:.2f} s{_nodes(record)}"
    if record["attempt"] > 1:
        line += f"  (attempt {record['attempt']})"
    reason = _reason(record)
    return f"{line}  {reason}" if reason else line


def _nodes(record: Mapping[str, Any]) -> str:
    """Names the nodes that SLURM gave the trial, the first few of many."""
    names = (record.get("slurm") or {}).get("nodes") or []
    more = len(names) - _NODES_TOLD
    return f" on {', '.join(names[:_NODES_TOLD])}{f' and {more} more' if more > 0 else ''}" if names else ""


def _reason(record: Mapping[str, Any]) -> str:
    """Says in one line why a trial did not pass."""
    error = record["error"]
    if record["not_needed"] is not None:
        events, word = record["not_needed"]["events"], record["not_needed"]["event_verdict"]
        reason = f"the cell has its {plural(events, 'trial')} with verdict {word}"
    elif error is not None:
        kind = (
            "" if error["phase"] == "process" or error["type"] in ("launch", "ResolveError") else f"{error['type']}: "
        )
        reason = f"{record['exit_status']}: {kind}{error['message']}"
    elif record["did_not_run"]:
        reason = "the main work did not start"
    elif record["verdict"] == "fail":
        details = record["result"].get("failure_details") or []
        detectors = [str(detail["detector"]) for detail in details if "detector" in detail]
        reason = ", ".join(detectors) or f"{plural(record['result']['failure_count'], 'check')} failed"
    else:
        return ""
    reason = " ".join(reason.split())
    return reason if len(reason) <= 200 else f"{reason[:197]}..."
