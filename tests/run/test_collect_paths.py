"""What a command left where it ran is copied, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aorta.run.collect import copy_matches


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A folder in which a command ran: two logs at different depths, and a folder of dumps."""
    folder = tmp_path / "work [1]"  # glob's own characters, which are no pattern here
    for name in ("a.log", "deep/er/b.log", "dumps/one", "dumps/two/three", "other.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def copied(where: Path, target: Path, *patterns: str, outside: str = "/nowhere") -> list[str]:
    """The copies' paths; every copy is whole."""
    found = copy_matches(patterns, str(where), str(target), outside=outside)
    assert found["problems"] == []
    assert [(target / name).is_file() for name in found["files"]] == [True] * len(found["files"])
    return list(found["files"])


def test_files_keep_their_paths_and_come_once(where: Path, tmp_path: Path) -> None:
    """Two patterns may match one file."""
    target = tmp_path / "collected"
    assert copied(where, target, "**/*.log", "a.*") == ["a.log", "deep/er/b.log"]
    assert (target / "deep/er/b.log").read_text() == "deep/er/b.log"


def test_a_folder_brings_all_its_files(where: Path, tmp_path: Path) -> None:
    """Also those in folders below."""
    assert copied(where, tmp_path / "collected", "dumps") == ["dumps/one", "dumps/two/three"]


def test_a_file_from_elsewhere_keeps_its_whole_path(where: Path, tmp_path: Path) -> None:
    """So that it meets no other file."""
    (tmp_path / "core.1").write_text("core")
    (name,) = copied(where, tmp_path / "collected", str(tmp_path / "core.*"))
    assert name == str(tmp_path / "core.1").lstrip("/")


def test_the_run_s_own_files_are_left_out(where: Path, tmp_path: Path) -> None:
    """A wide pattern would copy the results into themselves, more of them each time."""
    own = where / "dumps"
    assert copied(where, own / "collected", "**", outside=str(own)) == ["a.log", "deep/er/b.log", "other.txt"]


def test_nothing_matches(where: Path, tmp_path: Path) -> None:
    """No folder is made for nothing."""
    assert copied(where, tmp_path / "collected", "*.core") == []
    assert not (tmp_path / "collected").exists()


def test_what_is_no_file_is_passed_over(where: Path, tmp_path: Path) -> None:
    """A pipe would block for ever, a link to a folder may lead round in a circle, a dead link leads nowhere."""
    os.mkfifo(where / "dumps" / "pipe")
    (where / "dumps" / "round").symlink_to(where / "dumps")
    (where / "dumps" / "dead").symlink_to("nothing")
    assert copied(where, tmp_path / "collected", "dumps") == ["dumps/one", "dumps/two/three"]


def test_a_link_out_of_the_folder_is_not_followed(
    where: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file or a folder elsewhere stays there, and the record says so once; a link within is a file like any other."""
    elsewhere = tmp_path_factory.mktemp("secrets")
    (elsewhere / "one.log").write_text("secret")
    (elsewhere / "two.log").write_text("secret")
    (where / "key.log").symlink_to(elsewhere / "one.log")
    (where / "data").symlink_to(elsewhere)
    (where / "latest.log").symlink_to("a.log")
    target = tmp_path / "collected"
    for patterns in (["*.log", "data/*"], [f"{where.parent}/work?[[]1]/**/*.log"], ["**/*.log"]):
        found = copy_matches(patterns, str(where), str(target), outside="/nowhere")
        assert {"a.log", "latest.log"} <= set(found["files"])
        assert "secret" not in [path.read_text() for path in target.rglob("*") if path.is_file()]
    assert [problem.split(": is a link")[0] for problem in found["problems"]] == [
        str(where / name) for name in ("data", "key.log")
    ]
    assert f"to {elsewhere / 'one.log'}, and is not followed" in found["problems"][1]


def test_a_link_that_is_named_itself_is_followed(where: Path, tmp_path: Path) -> None:
    """An absolute path without a wildcard says what is wanted."""
    (tmp_path / "core.1").write_text("core")
    (tmp_path / "core").symlink_to("core.1")
    target = tmp_path / "collected"
    (name,) = copied(where, target, str(tmp_path / "core"))
    assert (target / name).read_text() == "core"


def test_what_cannot_be_copied_is_named(where: Path, tmp_path: Path) -> None:
    """The rest is copied all the same."""
    target = tmp_path / "collected"
    target.mkdir()
    (target / "deep").write_text("in the way of a folder")
    found = copy_matches(["**/*.log"], str(where), str(target), outside="/nowhere")
    assert found["files"] == ["a.log"]
    assert len(found["problems"]) == 1
    assert "b.log: " in found["problems"][0]
