"""Errors that run again: how often, what is kept of each attempt, and what a killed supervisor remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import FINGERPRINT, Runner

SCRIPTED = "stopping_fixture:Scripted"


def plan(trial: Runner, ends: list[str], retries: int, **changes: Any) -> Path:
    """Plans a trial that ends so, and returns the file that counts its attempts."""
    tally = trial.run_dir.parent / "tally"
    trial.plan(SCRIPTED, retry_errors=retries, workload_config={"ends": ends, "tally": str(tally)}, **changes)
    return tally


def finish(trial: Runner) -> dict[str, Any]:
    """Runs the planned trial to its record."""
    process = trial.start()
    said = trial.finish(process)
    assert process.returncode == 0, said
    return trial.record()


@pytest.mark.parametrize(
    ("ends", "retries", "verdict", "attempts"),
    [
        (["raise", "raise", "pass"], 2, "pass", 3),
        (["raise", "fail"], 5, "fail", 2),
        (["absent", "pass"], 1, "pass", 2),
        (["raise", "raise", "pass"], 1, "error", 2),
        (["raise", "pass"], 0, "error", 1),
        (["fail", "pass"], 3, "fail", 1),
        (["pass"], 3, "pass", 1),
    ],
)
def test_only_errors_run_again_and_not_too_often(
    trial: Runner, ends: list[str], retries: int, verdict: str, attempts: int
) -> None:
    """The last attempt gives the verdict; a fail is never tried again."""
    tally = plan(trial, ends, retries)
    record = finish(trial)
    assert (record["verdict"], record["attempt"], len(record["attempts"])) == (verdict, attempts, attempts - 1)
    assert len(tally.read_text().splitlines()) == attempts


def test_each_attempt_is_kept_in_the_record(trial: Runner) -> None:
    """Status, error, times, host and device of the attempts before, in order."""
    plan(trial, ["raise", "absent", "pass"], 2)
    record = finish(trial)
    first, second = record["attempts"]
    assert (first["exit_status"], first["error"]["message"]) == ("infrastructure_failed", "attempt 1 went wrong")
    assert (second["exit_status"], second["error"]) == ("ok", None)
    assert first["started_at"] <= first["ended_at"] <= second["started_at"] <= record["started_at"]
    assert (first["host"], first["device"]["kind"]) == (record["host"]["hostname"], "cpu")


def test_a_killed_supervisor_does_not_start_to_count_anew(trial: Runner) -> None:
    """The second supervisor knows of the first one's error, and a killed attempt is none."""
    tally = plan(trial, ["raise", "kill", "raise", "raise"], 1)
    killed = trial.start()
    trial.finish(killed)
    assert killed.returncode == -9
    record = finish(trial)
    assert (record["verdict"], record["attempt"]) == ("error", 2)
    assert [entry["error"]["message"] for entry in record["attempts"]] == ["attempt 1 went wrong"]
    assert record["error"]["message"] == "attempt 3 went wrong"
    assert len(tally.read_text().splitlines()) == 3


def test_nothing_but_the_record_is_left(trial: Runner) -> None:
    """The note of the attempts goes once the record has them."""
    plan(trial, ["raise", "pass"], 1)
    finish(trial)
    assert [path.name for path in trial.path("").iterdir()] == ["trial_d0_m0_t0.json"]


@pytest.mark.parametrize(
    "note",
    [
        "",
        "[1]",
        '{"fingerprint": null}',
        json.dumps({"fingerprint": "cd" * 32, "attempts": []}),
        json.dumps({"fingerprint": FINGERPRINT, "attempts": [{"exit_status": 1}]}),
        json.dumps({"fingerprint": FINGERPRINT, "attempts": 3}),
    ],
)
def test_a_note_that_is_no_note_of_this_trial_counts_as_none(trial: Runner, note: str) -> None:
    """Half a file, or another request's, neither uses up a retry nor gets into the record."""
    plan(trial, ["raise", "pass"], 1)
    trial.path("").mkdir(parents=True)
    trial.path("trial_d0_m0_t0.attempts").write_text(note)
    assert [entry["error"]["message"] for entry in finish(trial)["attempts"]] == ["attempt 1 went wrong"]


def test_a_trial_that_cannot_be_launched_is_not_tried_again(trial: Runner) -> None:
    """Too few ranks now are too few ranks in a second."""
    plan(trial, [], 5, launch={"mode": "distributed", "min_world_size": 2})
    record = finish(trial)
    assert (record["exit_status"], record["attempt"], record["attempts"]) == ("workload_setup_failed", 1, [])


def test_a_request_without_the_key_has_no_retry(trial: Runner) -> None:
    """Runs that an older version planned go on as they were."""
    tally = trial.run_dir.parent / "tally"
    trial.plan(SCRIPTED, workload_config={"ends": ["raise"], "tally": str(tally)})
    assert finish(trial)["attempt"] == 1
