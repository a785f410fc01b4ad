"""Where a sweep stands, from its files alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aorta import _owner
from aorta.cli import main
from aorta.dag.lock import RunLock
from aorta.dag.status import status_lines, sweep_status
from aorta.plan.paths import RunLayout
from aorta.run.claim import claims_folder
from tests.dag.test_leftovers import HERE, dead_owner
from tests.matrix.matrix_builders import record
from tests.plan.conftest import compiled as compiled
from tests.plan.test_rundir import Compile, choose, materialise

NOW = 2_000_000_000.0


class Run:
    """A planned run: cells baseline-local and image with 3 trials, stacked with 5."""

    def __init__(self, compiled: Compile, folder: Path) -> None:
        self.plan = compiled()
        choice = choose(self.plan, folder)
        materialise(choice, exclusive=True)
        self.dir = choice.run_dir
        self.layout = RunLayout(self.dir, self.plan.workload)
        self.cells = {cell.name: cell for cell in self.plan.cells}

    def put(self, name: str, trial: int, verdict: str = "pass", seconds: float = 10.0) -> None:
        path = self.layout.trial(name, trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        request = dict(self.cells[name].request or {})
        outcome = "crash" if verdict == "error" else verdict
        path.write_text(json.dumps(record(request, trial, outcome, wall_clock_sec=seconds), indent=1) + "\n")

    def claim(self, name: str, trial: int, owner: dict[str, Any], beaten: float = NOW) -> None:
        path = Path(claims_folder(str(self.dir)), name, f"t{trial}.1")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(owner))
        os.utime(path, (beaten, beaten))

    def status(self) -> dict[str, Any]:
        return sweep_status(self.dir, now=NOW)


@pytest.fixture
def run(compiled: Compile, tmp_path: Path) -> Run:
    return Run(compiled, tmp_path)


def test_done_running_failed_and_missing_add_up(run: Run) -> None:
    """Each trial is in exactly one place."""
    run.put("baseline-local", 0)
    run.put("baseline-local", 1, "fail")
    run.put("stacked", 0, "error")
    run.claim("stacked", 1, _owner.describe_self(HERE, job="77", claimed_at=NOW - 4))
    run.claim("stacked", 2, dead_owner(claimed_at=NOW - 4))
    run.claim("stacked", 0, _owner.describe_self(HERE, claimed_at=NOW - 4))
    status = run.status()
    assert status["counts"] == {"pass": 1, "fail": 1, "error": 1}
    (running,) = status["running"]
    assert (running["cell"], running["trial"], running["job"], running["seconds"]) == ("stacked", 1, "77", 4.0)
    assert (running["pid"], running["host"]) == (os.getpid(), HERE.host)
    assert [(entry["cell"], entry["verdict"]) for entry in status["failed"]] == [
        ("baseline-local", "fail"),
        ("stacked", "error"),
    ]
    assert status["missing"] == {"baseline-local": [2], "stacked": [2, 3, 4], "image": [0, 1, 2]}
    assert status["trials_expected"] == 11 == status["trials_done"] + 1 + 7


def test_a_trial_that_waits_for_its_device_does_not_run(run: Run) -> None:
    """It is shown with what it waits for, counts in one place, and costs a whole trial's time."""
    run.put("stacked", 0, seconds=100.0)
    for trial in (1, 2):
        run.claim("stacked", trial, _owner.describe_self(HERE, claimed_at=NOW - 60))
    note = Path(claims_folder(str(run.dir)), "stacked", "t1.1.waiting")
    note.write_text("waiting for cpu-0, held by process 7\x1b[2J")
    # A note whose claim is dead says nothing.
    run.claim("stacked", 3, dead_owner(claimed_at=NOW - 4))
    note.with_name("t3.1.waiting").write_text("waiting for cpu-0")
    status = run.status()
    assert [entry["trial"] for entry in status["running"]] == [2]
    assert [(entry["trial"], entry["pid"]) for entry in status["waiting"]] == [(1, os.getpid())]
    (cell,) = (cell for cell in status["cells"] if cell["name"] == "stacked")
    assert [cell[name] for name in ("trials", "done", "running", "waiting", "missing")] == [5, 1, 1, 1, 2]
    # 6 of the other cells at the mean, 2 missing and 1 waiting of its own, and 40 s of the running one.
    assert status["seconds_left"] == 600 + 200 + 100 + 40
    text = "\n".join(status_lines(status))
    assert "\nwaiting:\n  stacked trial 1: pid " in text and ": waiting for cpu-0, held by process 7?[2J" in text


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_no_note_of_a_wait(run: Run, kind: str) -> None:
    """Nothing waits for a pipe, and the trial counts as one that runs."""
    run.claim("stacked", 1, _owner.describe_self(HERE, claimed_at=NOW - 60))
    note = Path(claims_folder(str(run.dir)), "stacked", "t1.1.waiting")
    note.mkdir() if kind == "folder" else os.mkfifo(note)
    status = run.status()
    assert (len(status["running"]), status["waiting"]) == (1, [])


def test_the_time_left_follows_the_cells(run: Run) -> None:
    """Missing trials cost what their cell's trials cost, running ones what is left of that."""
    run.put("baseline-local", 0, seconds=10.0)
    run.put("stacked", 0, seconds=100.0)
    run.claim("stacked", 1, _owner.describe_self(HERE, claimed_at=NOW - 60))
    # 2 of baseline at 10 s, 3 of stacked at 100 s, 3 of image at the mean of 55 s, and 40 s of the running one.
    assert run.status()["seconds_left"] == 20 + 300 + 165 + 40


def test_nothing_done_gives_no_estimate(run: Run) -> None:
    """Before the first trial has ended nothing is known."""
    status = run.status()
    assert (status["seconds_left"], status["state"]) == (None, "stopped")
    assert "unknown until a trial has ended" in "\n".join(status_lines(status))


def test_another_hosts_claim_runs_as_long_as_it_beats(run: Run) -> None:
    """Who cannot look at a process goes by its heartbeat."""
    elsewhere = _owner.Place("node7", "another-boot", "pid:[1]")
    run.claim("stacked", 0, _owner.describe_self(elsewhere), beaten=NOW - 5)
    run.claim("stacked", 1, _owner.describe_self(elsewhere), beaten=NOW - 500)
    assert [(entry["host"], entry["trial"]) for entry in run.status()["running"]] == [("node7", 0)]


def test_the_sweep_that_runs_is_named(run: Run) -> None:
    """Its process, host and start are those of the run's lock."""
    lock = RunLock(run.dir / ".aorta" / "lock", "x")
    status = sweep_status(run.dir)
    lock.release()
    assert (status["state"], status["sweep"]["pid"], status["sweep"]["host"]) == ("running", os.getpid(), HERE.host)
    assert f"running by pid {os.getpid()} on host {HERE.host} since " in status_lines(status)[0]
    assert sweep_status(run.dir)["sweep"] is None


def test_a_complete_run_has_nothing_left(run: Run) -> None:
    """All trials recorded: complete, whoever holds the lock."""
    for cell in run.plan.cells:
        for trial in range(cell.trials):
            run.put(cell.name, trial)
    status = run.status()
    assert (status["state"], status["seconds_left"], status["missing"]) == ("complete", 0.0, {})


def test_the_command_prints_json_and_text(run: Run) -> None:
    """``aorta sweep status`` shows the same both ways."""
    run.put("stacked", 3, "fail")
    shown = CliRunner().invoke(main, ["sweep", "status", str(run.dir), "--json"])
    assert (shown.exit_code, json.loads(shown.output)["trials_done"]) == (0, 1)
    text = CliRunner().invoke(main, ["sweep", "status", str(run.dir)]).output
    assert "1 of 11 trials done" in text
    assert "stacked trial 3: workload_failed" in text
    assert "stacked: 0, 1, 2, 4" in text


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"schema_version": 1}'])
@pytest.mark.parametrize("command", ["status", "report"])
def test_no_run_is_bad_input(tmp_path: Path, command: str, content: str | None) -> None:
    """A folder without a sound plan is refused with its name, and nothing is written."""
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    shown = CliRunner().invoke(main, ["sweep", command, str(tmp_path)])
    assert (shown.exit_code, "plan.json" in shown.output) == (2, True)
    assert {path.name for path in tmp_path.iterdir()} <= {"plan.json"}


def test_the_report_is_written_at_any_moment(run: Run) -> None:
    """With trials missing the four files are written, the missing are named, and the exit code says so."""
    run.put("baseline-local", 1)
    shown = CliRunner().invoke(main, ["sweep", "report", str(run.dir)])
    assert (shown.exit_code, "matrix:" in shown.output) == (1, True)
    matrix = json.loads(run.layout.matrix_json.read_text())
    assert {cell["name"]: cell["missing_trials"] for cell in matrix["cells"]}["baseline-local"] == [0, 2]
    assert all(path.is_file() for path in (run.layout.matrix_md, run.layout.matrix_html, run.layout.perf_md))


def test_an_incomplete_matrix_is_older_than_all_it_was_made_from(run: Run) -> None:
    """So a trial that is recorded meanwhile is newer, also when the clock has gone back since."""
    run.put("baseline-local", 1)
    os.utime(run.layout.trial("baseline-local", 1), (NOW - 1e9, NOW - 1e9))
    CliRunner().invoke(main, ["sweep", "report", str(run.dir)])
    assert run.layout.matrix_json.stat().st_mtime < NOW - 1e9
