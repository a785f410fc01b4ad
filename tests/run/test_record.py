"""Verdicts, the progress line, and the parts of a record that need no process."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.run.record import error_entry, iso_utc, progress_line, signal_name, verdict
from aorta.run.report import Report

RESULT = {"main_work_started": None, "failure_count": 2}


@pytest.mark.parametrize(
    ("status", "started", "expected"),
    [
        ("ok", None, ("pass", False)),
        ("ok", True, ("pass", False)),
        ("ok", False, ("error", True)),
        ("workload_failed", None, ("fail", False)),
        ("workload_failed", False, ("error", True)),
        ("infrastructure_failed", None, ("error", False)),
        ("timed_out", None, ("error", False)),
        ("workload_setup_failed", None, ("error", False)),
    ],
)
def test_verdict(status: str, started: bool | None, expected: tuple[str, bool]) -> None:
    """The table of verdicts."""
    assert verdict(status, {"main_work_started": started}) == expected


def test_verdict_without_a_result() -> None:
    """A trial that ended without a result is an error."""
    assert verdict("infrastructure_failed", None) == ("error", False)


def record(**changes: Any) -> dict[str, Any]:
    base = {"cell": "baseline-local", "trial": 1, "order": 5, "verdict": "pass", "wall_clock_sec": 1.236}
    return {
        **base,
        "exit_status": "ok",
        "attempt": 1,
        "not_needed": None,
        "error": None,
        "did_not_run": False,
        "result": RESULT,
        **changes,
    }


def test_progress_of_a_pass() -> None:
    """Place, cell, trial, verdict, seconds."""
    assert progress_line(record(), 12, colour=False) == "[ 5/12] baseline-local trial 1: pass  1.24 s"


def test_progress_without_an_order() -> None:
    """A trial that is run by hand has no place."""
    assert progress_line(record(order=None), None, colour=False) == "baseline-local trial 1: pass  1.24 s"


@pytest.mark.parametrize(
    ("nodes", "told"), [(["n2"], "n2"), (["a", "b", "c"], "a, b, c"), (["a", "b", "c", "d", "e"], "a, b, c and 2 more")]
)
def test_progress_names_the_nodes(nodes: list[str], told: str) -> None:
    """The first few of those that SLURM gave the trial."""
    assert progress_line(record(slurm={"nodes": nodes}), None, colour=False).endswith(f"pass  1.24 s on {told}")


def test_progress_of_a_fail_counts_the_checks() -> None:
    """A fail says how many checks failed."""
    line = progress_line(record(verdict="fail", exit_status="workload_failed"), 12, colour=False)
    assert line.endswith("fail  1.24 s  2 checks failed")


def test_progress_of_an_error_is_one_line() -> None:
    """A message of several lines, however long, is told in one."""
    error = error_entry("run", "ValueError", "first\nsecond " + "x" * 500)
    line = progress_line(record(verdict="error", exit_status="infrastructure_failed", error=error), 12, colour=False)
    assert "infrastructure_failed: ValueError: first second xxx" in line
    assert ("\n" in line, len(line) < 300) == (False, True)


def test_colours_only_where_asked_for() -> None:
    """On a terminal the verdict is coloured, in a file it is not."""
    assert "\x1b[32mpass\x1b[0m" in progress_line(record(), 12, colour=True)


def test_iso_utc_rounds_to_milliseconds() -> None:
    """A time that rounds up to the next second is written right."""
    assert iso_utc(1_700_000_000.9996) == "2023-11-14T22:13:21.000Z"


def test_signal_names() -> None:
    """Known signals have their name, real-time ones their number."""
    assert (signal_name(11), signal_name(40)) == ("SIGSEGV", "SIG40")


def test_a_spoilt_report_line_is_passed_over() -> None:
    """A line that was cut or overwritten does not hide the others."""
    spoilt = [b"\xff\x00garbage", b"[]", b'{"phase": "setup"}', b"[" * 100_000, b'{"result": {"passed": true}, "at": 2']
    report = Report(b"\n".join([b'{"phase": "run", "at": 1.0}', *spoilt]))
    assert (report.phase, report.result) == ("run", None)
