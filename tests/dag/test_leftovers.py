"""What killed processes left goes, and nothing of the living."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aorta import _owner
from aorta._jsonio import temporary_name, write_json_atomic
from aorta.dag.leftovers import STRANGER_SEC, clear_leftovers, put_back, read_prepared, withdraw
from aorta.run.claim import claims_folder
from aorta.run.process import TOKEN_VARIABLE

HERE = _owner.Place.here()
ELSEWHERE = _owner.Place("node7", "another-boot", "pid:[1]")


def dead_owner(**more: Any) -> dict[str, Any]:
    """A process of this kernel that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return {**_owner.describe_self(HERE, **more), "pid": child.pid}


def put(path: Path, content: str = "half", age: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (time.time() - age,) * 2)
    return path


def claim(run_dir: Path, name: str, owner: dict[str, Any]) -> Path:
    return put(Path(claims_folder(str(run_dir)), "base", name), json.dumps(owner))


def test_temporary_files_of_dead_processes_go(tmp_path: Path) -> None:
    """Everywhere in the run directory, and with one line about them."""
    host, pid = HERE.host, dead_owner()["pid"]
    dead = [put(tmp_path / folder / f".tmp-{host}-{pid}-00{n}a") for n, folder in enumerate(("", "cells/a", "x/y/z"))]
    assert clear_leftovers(tmp_path) == ["removed 3 temporary files of processes that died"]
    assert [path for path in dead if path.exists()] == []


def test_temporary_files_of_the_living_stay(tmp_path: Path) -> None:
    """What this process writes, and what another host may be writing."""
    kept = [put(Path(temporary_name(str(tmp_path)))), put(tmp_path / ".tmp-node7-12-ab"), put(tmp_path / ".tmp-abc")]
    assert clear_leftovers(tmp_path) == []
    assert all(path.exists() for path in kept)


def test_old_temporary_files_of_strangers_go(tmp_path: Path) -> None:
    """Nobody writes one file for an hour."""
    put(tmp_path / ".tmp-node7-12-ab", age=STRANGER_SEC + 60)
    put(tmp_path / ".tmp-probe-0011", age=STRANGER_SEC + 60)
    assert clear_leftovers(tmp_path) == ["removed 2 temporary files of processes that died"]


def test_other_files_stay(tmp_path: Path) -> None:
    """A record, and a user's hidden file."""
    write_json_atomic(tmp_path / "trial_d0_m0_t0.json", {})
    put(tmp_path / ".temporary", age=1e6)
    assert clear_leftovers(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_claims_of_dead_processes_go(tmp_path: Path) -> None:
    """Only a trial's claims that nobody living, here or elsewhere, has a part in."""
    claim(tmp_path, "t0.1", dead_owner())
    note = put(Path(claims_folder(str(tmp_path)), "base", "t0.1.waiting"))
    claim(tmp_path, "t1.1", dead_owner())
    living = [
        claim(tmp_path, "t1.2", _owner.describe_self(HERE)),
        claim(tmp_path, "t2.1", _owner.describe_self(ELSEWHERE)),
        claim(tmp_path, "t3.1", {}),
    ]
    assert clear_leftovers(tmp_path) == ["removed 1 claim of processes that died"]
    assert not note.exists()
    assert all(path.exists() for path in living)


def test_what_a_dead_claims_owner_left_running_is_ended(tmp_path: Path) -> None:
    """A grandchild in a session of its own carries the trial's token."""
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN_VARIABLE: "tok1"}, start_new_session=True)
    claim(tmp_path, "t0.1", dead_owner(token="tok1"))
    clear_leftovers(tmp_path)
    assert left.wait(timeout=20) == -9


def test_a_run_directory_that_is_not_there_has_no_leftovers(tmp_path: Path) -> None:
    """May be called before anything exists."""
    assert clear_leftovers(tmp_path / "none") == []


PREPARED = ("plan.json", "cells/a/cell.json", ".aorta/settings.json", ".aorta/recipe.yaml")


def prepared(run_dir: Path) -> None:
    """What a start writes before Snakemake begins."""
    for name in PREPARED:
        put(run_dir / name)
    (run_dir / "environments" / "local").mkdir(parents=True)


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_that_was_refused_is_taken_back(tmp_path: Path, keep: bool) -> None:
    """With its directory, unless that was there before."""
    prepared(tmp_path / "run")
    withdraw(tmp_path / "run", keep_folder=keep)
    assert (tmp_path / "run").exists() is keep
    assert list(tmp_path.rglob("*")) == ([tmp_path / "run"] if keep else [])


@pytest.mark.parametrize("begun", [".aorta/lock", "cells/a/training/trial_d0_m0_t0.json"])
def test_a_run_that_has_begun_is_not(tmp_path: Path, begun: str) -> None:
    """Another start of the same command may have it."""
    prepared(tmp_path)
    put(tmp_path / begun)
    withdraw(tmp_path, keep_folder=False)
    assert all((tmp_path / name).is_file() for name in (*PREPARED, begun))


def test_what_is_not_the_runs_own_stays(tmp_path: Path) -> None:
    """Other runs' files, and empty folders of theirs: a ticket's folder holds several."""
    prepared(tmp_path)
    put(tmp_path / "notes.txt")
    (tmp_path / "other" / "empty").mkdir(parents=True)
    withdraw(tmp_path, keep_folder=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "notes.txt", "other"]


def test_a_start_that_was_refused_changes_no_run(tmp_path: Path) -> None:
    """Its settings and its flags' recipe are the earlier start's again; nothing is made that was not there."""
    settings = put(tmp_path / ".aorta" / "settings.json", "{}")
    earlier = read_prepared(tmp_path)
    put(settings, '{"recipe": "bad.yaml"}')
    put(tmp_path / ".aorta" / "recipe.yaml")
    put_back(earlier)
    assert settings.read_text() == "{}" and read_prepared(tmp_path / "none") == {}
    settings.unlink()
    put_back(earlier)
    assert not settings.exists()
