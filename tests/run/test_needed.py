"""Trials that their cell no longer needs: skipped at once, by the lower-numbered records alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aorta.run.needed import event_trials, is_rule, read_outcome

from .conftest import FINGERPRINT, Runner, wait_for

RULE = {"events": 2, "event_verdict": "fail"}


def put(path: Path, verdict: str | None, fingerprint: str = FINGERPRINT, status: str = "workload_failed") -> None:
    """Writes what the rule reads of a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"cell": '"verdict": "fail"', "fingerprint": fingerprint, "exit_status": status, "verdict": verdict}
    path.write_text(json.dumps({**head, "more": "x" * 10_000}, indent=1) + "\n")


def lay(folder: Path, verdicts: str) -> None:
    """Writes the records of trials 0, 1, ...: p, f, e, n (not needed) or a space for none."""
    words = {"p": "pass", "f": "fail", "e": "error", "n": None}
    for trial, letter in enumerate(verdicts):
        if letter != " ":
            put(folder / f"trial_d0_m0_t{trial}.json", words[letter])


@pytest.mark.parametrize(
    ("verdicts", "below", "event", "found"),
    [
        ("pfpf", 4, "fail", [1, 3]),
        ("pfpf", 3, "fail", [1]),
        ("fff", 3, "fail", [0, 1]),
        (" f f", 4, "fail", [1, 3]),
        ("effe", 4, "error", [0, 3]),
        ("pfpn", 4, "pass", [0, 2]),
        ("", 0, "fail", []),
    ],
)
def test_events_are_counted_in_order_below_the_trial(
    tmp_path: Path, verdicts: str, below: int, event: str, found: list[int]
) -> None:
    """Only lower numbers, only the rule's verdict, no more than end the cell; a gap is no event."""
    lay(tmp_path, verdicts)
    rule = {"events": 2, "event_verdict": event}
    assert event_trials(lambda trial: tmp_path / f"trial_d0_m0_t{trial}.json", below, FINGERPRINT, rule) == found


@pytest.mark.parametrize("content", [b"", b"{", b'{"exit_status": "ok", "verdict": "fail"}\n', b"[]}\n"])
def test_what_is_no_record_has_no_outcome(tmp_path: Path, content: bytes) -> None:
    """Half a file, or one without the fingerprint, decides nothing."""
    path = tmp_path / "trial.json"
    path.write_bytes(content)
    assert read_outcome(path, FINGERPRINT) is None


def test_another_requests_record_has_no_outcome(tmp_path: Path) -> None:
    """A stale record is no event."""
    put(tmp_path / "trial.json", "fail", fingerprint="cd" * 32)
    assert read_outcome(tmp_path / "trial.json", FINGERPRINT) is None


def test_a_name_cannot_pose_as_a_verdict(tmp_path: Path) -> None:
    """A cell called like a JSON key is read as the string that it is."""
    put(tmp_path / "trial.json", "pass", status="ok")
    assert read_outcome(tmp_path / "trial.json", FINGERPRINT) == ("ok", "pass")


@pytest.mark.parametrize(
    "rule", [{}, {"events": 0, "event_verdict": "fail"}, {"events": 1}, {**RULE, "event_verdict": "x"}]
)
def test_a_rule_needs_its_values(rule: dict[str, Any]) -> None:
    """Half a rule in a cell's request is refused."""
    assert not is_rule(rule)


def test_a_skipped_trial_has_a_whole_record_and_no_process(trial: Runner) -> None:
    """not_needed: no verdict, no worker, no device, and the events that decided it."""
    lay(trial.path(""), "fpf")
    trial.plan("Noop", stop_after=RULE)
    process = trial.start(trial=3)
    said = trial.finish(process)
    record = trial.record(3)
    assert (record["exit_status"], record["verdict"], record["pid"], record["device"]) == (
        "not_needed",
        None,
        None,
        None,
    )
    assert record["not_needed"] == {**RULE, "event_trials": [0, 2]}
    assert "not needed" in said


@pytest.mark.parametrize(("verdicts", "rule"), [("fpp", RULE), ("fff", None), ("ppp", RULE), ("  f", RULE)])
def test_a_needed_trial_runs(trial: Runner, verdicts: str, rule: dict[str, Any] | None) -> None:
    """Too few events yet, or no rule at all."""
    lay(trial.path(""), verdicts)
    trial.plan("Noop", stop_after=rule)
    trial.finish(trial.start(trial=3))
    assert trial.record(3)["exit_status"] == "ok"


def test_higher_numbers_decide_nothing(trial: Runner) -> None:
    """A trial that was overtaken is still needed: the count goes by number, not by time."""
    lay(trial.path(""), " ff")
    trial.plan("Noop", stop_after=RULE)
    trial.finish(trial.start(trial=0))
    assert trial.record(0)["exit_status"] == "ok"


def test_a_trial_that_waited_for_its_device_looks_again(trial: Runner) -> None:
    """What became known during the wait saves the run."""
    import fcntl

    locks = trial.run_dir.parent / "locks"
    trial.plan("Noop", stop_after=RULE)
    trial.finish(trial.start(trial=0))
    (lock,) = locks.glob("*.lock")
    lay(trial.path(""), "f ")
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = trial.start(trial=2)
        assert waiting.stderr is not None
        assert "waiting for" in wait_for(waiting.stderr.readline, "the trial to wait")
        lay(trial.path(""), "ff")
    trial.finish(waiting)
    assert trial.record(2)["exit_status"] == "not_needed"


def test_a_spoilt_rule_in_a_request_is_named(trial: Runner) -> None:
    """The cell's file says what is wrong with it, and nothing runs."""
    trial.plan("Noop", stop_after={"events": "two"})
    process = trial.start()
    assert "stop_after has no events or no event_verdict" in trial.finish(process)
    assert process.returncode == 2
