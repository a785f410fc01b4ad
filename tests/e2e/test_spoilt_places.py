"""Nothing lost when something else lies where a run's file belongs, or its disk cannot be written any more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aorta.plan.paths import RunLayout
from tests.e2e.conftest import Ended, Workspace

pytestmark = pytest.mark.e2e

RUN = ("sweep", "run", "--recipe", "recipe.yaml", "--run-dir", "mine")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe of 2 cells x 2 trials and its complete run ``mine``."""
    folder = tmp_path_factory.mktemp("finished")
    desk = Workspace(folder)
    desk.recipe([{"name": "a"}, {"name": "b"}], workload="witness", trials=2, confound={"baseline_cell": "a"})
    ended = desk.aorta(*RUN)
    assert ended.code == 0, ended.stderr
    return folder


@pytest.fixture
def desk(finished: Path, tmp_path: Path) -> Workspace:
    """A copy of it to spoil."""
    return Workspace(shutil.copytree(finished, tmp_path / "work"))


def layout(desk: Workspace) -> RunLayout:
    return RunLayout(desk.folder / "mine", "witness")


def occupy(path: Path) -> None:
    """Puts a folder that is not empty in a file's place."""
    path.unlink()
    path.mkdir()
    (path / "thesis.tex").write_text("x")


def pids(desk: Workspace) -> dict[str, int]:
    """The process of each recorded trial, which a trial that ran again has changed."""
    paths = sorted((desk.folder / "mine").glob("cells/*/*/trial_*.json"))
    return {f"{path.parts[-3]}{path.stem[-1]}": json.loads(path.read_text())["pid"] for path in paths}


def untroubled(ended: Ended) -> str:
    """What was said, which is no traceback."""
    said = ended.stdout + ended.stderr
    assert "Traceback" not in said, said
    return said


def test_what_lies_in_a_records_place_is_set_aside(desk: Workspace) -> None:
    """A named pipe and a folder: their trials run again, the others stay, and nothing of the folder is lost."""
    before = pids(desk)
    layout(desk).trial("a", 0).unlink()
    os.mkfifo(layout(desk).trial("a", 0))
    occupy(layout(desk).trial("b", 1))
    ended = desk.aorta(*RUN)
    said = untroubled(ended)
    assert ended.code == 0, said
    assert "trial_d0_m0_t0.json is a named pipe, not a regular file; it is set aside" in said
    assert {name for name, pid in pids(desk).items() if before[name] != pid} == {"a0", "b1"}
    assert (layout(desk).trial_folder("b") / "trial_d0_m0_t1.json.invalid" / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize("name", ["recipe.resolved.yaml", "environments/local/env.json"])
def test_a_file_that_cannot_be_made_is_named_and_no_trial_is_called_missing(desk: Workspace, name: str) -> None:
    """The matrix is complete; the exit code and one line say what is not."""
    occupy(desk.folder / "mine" / name)
    ended = desk.aorta(*RUN)
    said = untroubled(ended)
    assert ended.code == 1, said
    assert f"could not be written: mine/{name}: is a folder, not a regular file; move it away" in said
    assert "missing trials" not in said and "INCOMPLETE" not in said
    assert json.loads(layout(desk).matrix_json.read_text())["complete"] is True


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_folder_in_a_pages_place_takes_no_other_page_along(desk: Workspace, command: str) -> None:
    """One line says what to move; matrix.json is there before, meanwhile and after."""
    occupy(layout(desk).matrix_md)
    inode = layout(desk).matrix_json.stat().st_ino
    ended = desk.aorta(*(RUN if command == "run" else ("sweep", "report", "mine")))
    said = untroubled(ended)
    assert ended.code == (2 if command == "run" else 0), said
    (line,) = [line for line in said.splitlines() if "move it away" in line]
    assert "mine/matrix.md" in line and "is a folder, where a file belongs" in line
    assert json.loads(layout(desk).matrix_json.read_text())["complete"] is True
    assert command == "report" or layout(desk).matrix_json.stat().st_ino == inode


@pytest.mark.parametrize("content", ["pipe", "null", "[]", '{"schema_version": 1}', "gone"])
def test_a_damaged_plan_is_written_anew_as_the_advice_says(desk: Workspace, content: str) -> None:
    """``status`` and ``report`` send to the same command, and that keeps every trial, although none is missing."""
    before = pids(desk)
    plan = layout(desk).plan
    plan.unlink()
    if content == "pipe":
        os.mkfifo(plan)
    elif content != "gone":
        plan.write_text(content)
    for path in (desk.folder / "mine").glob("cells/*/cell.json"):
        path.write_bytes(b"\0" * 100)
    for command in ("status", "report"):
        ended = desk.run("-c", "from aorta.cli import main; main()", "sweep", command, "mine", timeout=60)
        assert ended.code == 2 and "run the same command again" in untroubled(ended)
        assert "fresh" not in ended.stderr
    ended = desk.aorta(*RUN)
    assert ended.code == 0, ended.stderr
    assert "written anew" in ended.stderr
    assert pids(desk) == before
    assert "complete" in desk.aorta("sweep", "status", "mine").stdout


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_spoilt_lock_is_named_and_not_waited_for(desk: Workspace, kind: str) -> None:
    """It says what to move; looking in goes on."""
    lock = desk.folder / "mine/.aorta/lock"
    lock.unlink()
    os.mkfifo(lock) if kind == "pipe" else lock.mkdir()
    layout(desk).matrix_json.unlink()
    ended = desk.aorta(*RUN)
    said = untroubled(ended)
    assert ended.code == 2, said
    assert "mine/.aorta/lock: is a" in said and "move it away" in said
    assert desk.aorta("sweep", "status", "mine").code == 0


def test_a_file_in_the_place_of_the_engines_folder_is_named(desk: Workspace) -> None:
    """It says what to do."""
    shutil.rmtree(desk.folder / "mine/.aorta")
    (desk.folder / "mine/.aorta").write_text("x")
    layout(desk).matrix_json.unlink()
    ended = desk.aorta(*RUN)
    assert ended.code == 2
    assert "mine/.aorta: is no folder, and one belongs there; move it away" in untroubled(ended)


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_finished_run_on_a_read_only_disk_is_shown(
    desk: Workspace, command: str, small_disk: Callable[[str], Path]
) -> None:
    """Nothing needs to run, so the matrix is the answer; a line says that nothing was written."""
    disk = small_disk("size=4m")
    shutil.copytree(desk.folder / "mine", disk / "mine")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    words = (*RUN[:-1], str(disk / "mine")) if command == "run" else ("sweep", "report", str(disk / "mine"))
    ended = desk.aorta(*words)
    said = untroubled(ended)
    assert ended.code == 0, said
    assert "Read-only file system" in ended.stderr
    assert "| a " in ended.stdout or "a " in ended.stdout.split("matrix")[0], said


def test_a_trial_without_room_for_its_record_never_starts(
    workspace: Workspace, small_disk: Callable[[str], Path]
) -> None:
    """No attempt of any trial runs; each says why, and with room the same command completes the matrix."""
    disk = small_disk("size=8m")
    recipe = workspace.recipe([{"name": "only"}], workload="known", trials=3, steps=1)
    words = ("sweep", "run", "--recipe", recipe, "--run-dir", str(disk / "run"))
    log = workspace.folder / "log"
    workspace.environment |= {"KNOWN_LOG": str(log), "KNOWN_SECONDS": "0"}
    # The snapshot, the recipe and the plan still fit in what is left after the filler, a record's room does not.
    first = workspace.aorta(*words)
    assert first.code == 0, first.stderr
    started = len(log.read_text().splitlines())
    for path in disk.glob("run/cells/*/*/trial_*.json"):
        path.unlink()
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
        file.truncate(os.fstat(file.fileno()).st_size - 40_960)
    ended = workspace.aorta(*words)
    said = untroubled(ended)
    assert ended.code == 1, said
    assert "trial_d0_m0_t0.json: No space left on device; make room" in said
    assert len(log.read_text().splitlines()) == started
    (disk / "filler").unlink()
    assert workspace.aorta(*words).code == 0
    assert len(log.read_text().splitlines()) == started + 3
