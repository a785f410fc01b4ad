"""Nothing lost: what a user sees after a death, with two at once, on a full disk, and after a change of the recipe."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aorta.dag.lock import read_owner
from aorta.run.process import kill_all
from tests.e2e.chaos import processes, wait_until
from tests.e2e.conftest import AORTA, SNAKEMAKE, Workspace

pytestmark = pytest.mark.e2e

MARK = "KNOWN_CHAOS"


@contextmanager
def started(
    workspace: Workspace, *words: str, prepare: Callable[[], object] | None = None, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Starts ``aorta`` or ``snakemake``; what it says is read by ``communicate``. Leaves no process behind.

    ``prepare`` is called in the new process.
    """
    mark = f"resume-{os.getpid()}-{time.monotonic_ns()}"
    program = SNAKEMAKE if words[0] == "snakemake" else AORTA
    with workspace.started(*program, *words[1:], prepare=prepare, **{MARK: mark, **environment}) as process:
        try:
            yield process
        finally:
            while left := processes(mark):
                kill_all(left)


def log_of(workspace: Workspace) -> list[dict[str, Any]]:
    """Every start of a trial's work, in order."""
    path = workspace.folder / "log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def gated(workspace: Workspace) -> tuple[str, Path]:
    """A recipe of a quick cell and one whose trial waits for a file; returns both."""
    workspace.environment["KNOWN_LOG"] = str(workspace.folder / "log")
    gate = workspace.folder / "gate"
    cells = [{"name": "quick"}, {"name": "held", "workload_config": {"gate": str(gate)}}]
    return workspace.recipe(cells, workload="known", steps=1, confound={"baseline_cell": "quick"}), gate


def all_started(workspace: Workspace) -> bool:
    """Whether the quick trial is recorded and the other one runs."""
    done = list(workspace.folder.glob("triage_results/*/*/*/cells/quick/known/trial_*.json"))
    return bool(done) and any(run["cell"] == "held" for run in log_of(workspace))


def test_an_orphan_is_waited_for_and_its_dead_sweep_named(workspace: Workspace) -> None:
    """SIGKILL of the command: its trial runs on, and the same command takes its result instead of racing it."""
    recipe, gate = gated(workspace)
    words = ("aorta", "sweep", "run", "--recipe", recipe, "--devices", "2")
    with started(workspace, *words) as first:
        wait_until(lambda: all_started(workspace), "both trials to start")
        lock = workspace.only_run() / ".aorta" / "lock"
        owner = read_owner(lock)
        first.kill()
        first.wait()
        with started(workspace, *words) as again:
            wait_until(lambda: read_owner(lock) not in (None, owner), "the second sweep to hold the run directory")
            gate.touch()
            said = again.communicate(timeout=240)[0]
    assert again.returncode == 0, said
    assert owner is not None and f"cleared the lock that pid {owner['pid']} on host {owner['host']}" in said
    assert "held trial 0: is recorded already and does not run again" in said
    assert [(run["raced"], run["recorded"]) for run in log_of(workspace)] == [(False, False)] * 2
    assert {trial["pid"] for trial in workspace.trials()} == {run["pid"] for run in log_of(workspace)}


def test_an_ignored_interrupt_stays_ignored(workspace: Workspace) -> None:
    """A script's background job ignores Ctrl-C: the sweep neither stops nor says that it does."""
    recipe, gate = gated(workspace)
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with started(workspace, "aorta", "sweep", "run", "--recipe", recipe, "--devices", "2") as sweep:
            wait_until(lambda: all_started(workspace), "both trials to start")
            os.killpg(sweep.pid, signal.SIGINT)
            gate.touch()
            said = sweep.communicate(timeout=240)[0]
    finally:
        signal.signal(signal.SIGINT, previous)
    assert sweep.returncode == 0, said
    assert "stopping" not in said


def test_an_interrupt_of_the_command_alone_stops_it(workspace: Workspace) -> None:
    """Also in a terminal's foreground, where Ctrl-C would have reached Snakemake as well; twice at once is once."""
    workspace.environment["KNOWN_LOG"] = str(workspace.folder / "log")
    gate = workspace.folder / "gate"
    cells = [{"name": "held", "workload_config": {"gate": str(gate)}}]
    recipe = workspace.recipe(cells, workload="known", steps=1, trials=2)
    terminal, own_end = os.openpty()
    words = ("aorta", "sweep", "run", "--recipe", recipe, "--devices", "1")
    try:
        with started(workspace, *words, prepare=lambda: fcntl.ioctl(own_end, termios.TIOCSCTTY, 0)) as sweep:
            wait_until(lambda: log_of(workspace), "a trial to start")
            sweep.send_signal(signal.SIGINT)
            sweep.send_signal(signal.SIGINT)
            assert sweep.stdout is not None
            wait_until(lambda: "interrupted: stopping" in sweep.stdout.readline(), "the sweep to hear of it")
            gate.touch()
            said = sweep.communicate(timeout=240)[0]
    finally:
        os.close(terminal)
        os.close(own_end)
    assert (sweep.returncode, len(log_of(workspace))) == (1, 1), said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_of_two_at_once_one_runs_and_the_other_is_refused(workspace: Workspace, command: str) -> None:
    """Started in the same instant: one completes the matrix, the other ends with 2 and names pid and host."""
    recipe, gate = gated(workspace)
    words = ("aorta", "sweep", "run", "--recipe", recipe)
    if command == "snakemake":
        words = ("snakemake", "--config", f"recipe={recipe}")
    with started(workspace, *words) as one, started(workspace, *words) as two:
        wait_until(lambda: one.poll() == 2 or two.poll() == 2, "one to be refused")
        gate.touch()
        said = {process.communicate(timeout=240)[0]: process.returncode for process in (one, two)}
    assert sorted(said.values()) == [0, 2], said
    (refused,) = (text for text, code in said.items() if code == 2)
    assert f"on host {os.uname().nodename}" in refused and "is in use by another sweep (pid " in refused
    assert "Traceback" not in refused
    assert (workspace.matrix()["complete"], len(log_of(workspace))) == (True, 2)


def test_two_recipes_share_one_device(tmp_path: Path) -> None:
    """Two sweeps of different recipes on one host at once: both complete, and no two trials ever overlap."""
    desks = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        desk = Workspace(tmp_path / name)
        desk.environment |= {"AORTA_LOCK_DIR": str(tmp_path / "locks"), "KNOWN_SECONDS": "0.3"}
        desk.recipe([{"name": name}], workload="known", steps=1, trials=4)
        desks.append(desk)
    words = ("aorta", "sweep", "run", "--recipe", "recipe.yaml", "--devices", "1")
    with started(desks[0], *words) as one, started(desks[1], *words) as two:
        said = [process.communicate(timeout=240)[0] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0), said
    trials = sorted(
        (trial["started_at"], trial["ended_at"], trial["cell"]) for desk in desks for trial in desk.trials()
    )
    assert len(trials) == 8
    assert all(before[1] <= after[0] for before, after in pairwise(trials)), trials
    assert {trial[2] for trial in trials[:5]} == {"one", "two"}, "one sweep waited for all of the other's trials"


def test_status_and_report_work_while_the_sweep_runs(workspace: Workspace) -> None:
    """The running trial is named with its process; the report shows what there is; the sweep ends as if alone."""
    recipe, gate = gated(workspace)
    with started(workspace, "aorta", "sweep", "run", "--recipe", recipe, "--devices", "2") as sweep:
        wait_until(lambda: all_started(workspace), "both trials to start")
        run_dir = str(workspace.only_run())
        status = json.loads(workspace.aorta("sweep", "status", run_dir, "--json").stdout)
        report = workspace.aorta("sweep", "report", run_dir)
        partial = workspace.matrix()
        gate.touch()
        sweep.communicate(timeout=240)
    assert (status["state"], status["trials_done"], status["missing"]) == ("running", 1, {})
    assert [(entry["cell"], entry["host"]) for entry in status["running"]] == [("held", os.uname().nodename)]
    assert (report.code, partial["complete"], partial["trials_present"]) == (1, False, 1)
    assert (sweep.returncode, workspace.matrix()["complete"]) == (0, True)
    assert "complete" in workspace.aorta("sweep", "status", run_dir).stdout


def test_three_of_four_is_said_and_completed_later(workspace: Workspace) -> None:
    """A trial whose supervisor dies each time is missing by name, in the row too; a later run adds it alone."""
    recipe = workspace.recipe(
        [
            {"name": "good", "trials": 1},
            {"name": "dies", "workload_config": {"end": "fourth", "marker": str(workspace.folder / "repaired")}},
        ],
        workload="known",
        trials=4,
        steps=1,
        confound={"baseline_cell": "good"},
    )
    ended = workspace.aorta("sweep", "run", "--recipe", recipe)
    cell = workspace.cells()["dies"]
    assert (ended.code, cell["missing_trials"], cell["trials_present"]) == (1, [3], 3)
    page = (workspace.only_run() / "matrix.md").read_text()
    assert "dies: 1 of 4 (trial 3)" in page
    assert "dies: 1 missing of 4 trials" in ended.stdout
    status = workspace.aorta("sweep", "status", str(workspace.only_run()))
    heading, *rows = [line.split() for line in status.stdout.splitlines() if line.startswith(("cell ", "dies "))]
    assert dict(zip(heading, rows[0], strict=True)).items() >= {"done": "3", "pass": "3", "missing": "1"}.items()
    first = {trial["pid"] for trial in workspace.trials()}
    (workspace.folder / "repaired").touch()
    assert workspace.aorta("sweep", "run", "--recipe", recipe).code == 0
    again = {trial["pid"] for trial in workspace.trials()}
    assert (first < again, len(again - first), workspace.matrix()["complete"]) == (True, 1, True)


def test_a_changed_step_count_reruns_that_cell_alone(workspace: Workspace) -> None:
    """The other cell's records stay as they are, to the nanosecond."""

    def recipe(steps: int) -> str:
        return workspace.recipe(
            [{"name": "kept"}, {"name": "changed", "steps": steps}],
            workload="witness",
            trials=2,
            confound={"baseline_cell": "kept"},
        )

    def dates() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in workspace.folder.glob("mine/cells/*/*/trial_*.json")}

    assert workspace.aorta("sweep", "run", "--recipe", recipe(2), "--run-dir", "mine").code == 0
    first = dates()
    assert workspace.aorta("sweep", "run", "--recipe", recipe(3), "--run-dir", "mine").code == 0
    changed = {path for path, date in dates().items() if first[path] != date}
    assert changed == {path for path in first if "/changed/" in path}
    matrix = json.loads((workspace.folder / "mine/matrix.json").read_text())
    assert {cell["name"]: cell["steps"] for cell in matrix["cells"]} == {"kept": 2, "changed": 3}


def test_from_8_trials_to_12_and_back(workspace: Workspace) -> None:
    """12 adds exactly 4; back at 8 nothing runs, the matrix has 8, and the 4 files stay."""

    def run(trials: int) -> list[int]:
        recipe = workspace.recipe([{"name": "only"}], workload="witness", trials=trials)
        assert workspace.aorta("sweep", "run", "--recipe", recipe, "--run-dir", "mine", "--devices", "2").code == 0
        matrix = json.loads((workspace.folder / "mine/matrix.json").read_text())
        assert (matrix["cells"][0]["trials_present"], matrix["complete"]) == (trials, True)
        files = workspace.folder.glob("mine/cells/only/witness/trial_*.json")
        return sorted(path.stat().st_mtime_ns for path in files)

    eight, twelve, back = run(8), run(12), run(8)
    assert (len(eight), len(twelve), twelve[:8]) == (8, 12, eight)
    assert back == twelve


def test_a_disk_that_fills_up_loses_nothing(workspace: Workspace, small_disk: Callable[[str], Path]) -> None:
    """Trials that fit are kept, the others say why, and with room the same command completes the matrix."""
    disk = small_disk("size=1m,nr_inodes=22")
    recipe = workspace.recipe([{"name": "only"}], workload="witness", trials=12)
    words = ("sweep", "run", "--recipe", recipe, "--run-dir", str(disk / "run"))
    ended = workspace.aorta(*words)
    said = ended.stdout + ended.stderr
    assert ended.code in (1, 2)
    assert "No space left on device" in said and "Traceback" not in said
    kept = {path.name: path.read_bytes() for path in disk.glob("run/cells/*/*/trial_*.json")}
    assert all(json.loads(data)["verdict"] == "pass" for data in kept.values())
    subprocess.run(["mount", "-o", "remount,size=16m,nr_inodes=1000", str(disk)], check=True)
    again = workspace.aorta(*words)
    assert again.code == 0, again.stderr
    files = {path.name: path.read_bytes() for path in disk.glob("run/cells/*/*/trial_*.json")}
    assert len(files) == 12 and all(files[name] == data for name, data in kept.items())


@pytest.mark.parametrize("command", ["snakemake", "aorta"])
def test_a_read_only_folder_is_bad_input(workspace: Workspace, small_disk: Callable[[str], Path], command: str) -> None:
    """Exit code 2, one line that names the folder, no traceback."""
    disk = small_disk("size=1m,ro")
    recipe = workspace.recipe([{"name": "only"}], workload="witness")
    ended = (
        workspace.aorta("sweep", "run", "--recipe", recipe, "--output", str(disk))
        if command == "aorta"
        else workspace.snakemake("--config", f"recipe={recipe}", f"output={disk}")
    )
    assert (ended.code, "Traceback" in ended.stderr) == (2, False)
    assert "Read-only file system" in ended.stderr and str(disk) in ended.stderr


def test_a_newline_and_255_bytes_in_paths(workspace: Workspace) -> None:
    """Names that shells and templates stumble over are only names."""
    ticket = "line one\nline two " + "é" * 150
    recipe = workspace.recipe([{"name": "only"}], workload="witness", ticket=ticket)
    output = "out\nput " + "n" * 240
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--output", output)
    assert ended.code == 0, ended.stderr
    assert len(list((workspace.folder / output).glob("*/witness/*/matrix.md"))) == 1
