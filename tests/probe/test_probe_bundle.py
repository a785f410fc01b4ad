"""What ``aorta bundle`` packs, what it takes out, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aorta.cli import main
from aorta.probe.bundle import default_output

RECIPE = """\
mode: probe
redaction:
  scrub_env_keys: ["*TOKEN*"]
  scrub_paths: true
  scrub_ip_addresses: true
"""

PLAN: dict[str, Any] = {"ticket": "T-1", "command": {"argv": ["true"]}, "cells": [{"name": "none-none"}]}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with logs that hold secrets."""
    run = tmp_path / "results" / "run-1"
    trial = run / "none-none" / "trial_0"
    trial.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps(PLAN))
    (run / "recipe.resolved.yaml").write_text(RECIPE)
    (trial / "stdout.log").write_text("step 1\nconnect 10.0.0.7 with hf_abcdefgh\nstep 2\n")
    (trial / "result.json").write_text(json.dumps({"env": {"HF_TOKEN": "hf_abcdefgh"}, "verdict": "fail"}))
    (trial / "stderr.log").write_bytes(b"\xff /home/ann/job/train.py\n")
    return run


def bundle(*arguments: str | Path) -> Result:
    """Runs the command."""
    return CliRunner().invoke(main, ["bundle", *map(str, arguments)])


def contents(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The run's files in a bundle, and its manifest."""
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers() if member.isfile()}
        read = {name: file.read() for name, file in files.items() if file is not None}
        assert all(
            member.uid == member.gid == member.mtime == 0 and not member.uname for member in archive.getmembers()
        )
    manifest = json.loads(read.pop("T-1/manifest.json"))
    return {name.removeprefix("T-1/run/"): data for name, data in read.items()}, manifest


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's bytes and time."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_bundle_is_redacted_and_listed(run_dir: Path, tmp_path: Path) -> None:
    """Secrets are taken out of every file, those without a name beside them too; the manifest says of which."""
    before = tree(run_dir)
    result = bundle(run_dir, "--output", tmp_path / "b.tar.gz")
    assert result.exit_code == 0, result.output
    files, manifest = contents(tmp_path / "b.tar.gz")
    assert files["none-none/trial_0/stdout.log"] == b"step 1\nconnect <ip> with <redacted>\nstep 2\n"
    assert json.loads(files["none-none/trial_0/result.json"])["env"] == {"HF_TOKEN": "<redacted>"}
    assert files["none-none/trial_0/stderr.log"] == b"\xff <path>/train.py\n"
    listed = {entry["path"]: entry for entry in manifest["files"]}
    assert listed.keys() == files.keys()
    assert all(listed[name]["sha256"] == hashlib.sha256(data).hexdigest() for name, data in files.items())
    assert all(listed[name]["size"] == len(data) for name, data in files.items())
    assert listed["none-none/trial_0/stdout.log"]["redactions"] == {"env": 1, "path": 0, "ip": 1}
    assert tree(run_dir) == before


def test_the_same_run_gives_the_same_bytes(run_dir: Path, tmp_path: Path) -> None:
    """Nothing of the time, the machine or the user goes in."""
    for name in ("a.tar.gz", "b.tar.gz"):
        assert bundle(run_dir, "--output", tmp_path / name).exit_code == 0
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_review_writes_nothing(run_dir: Path, tmp_path: Path) -> None:
    """It shows each file with what would be taken out, and the lines as they would be packed."""
    before = tree(tmp_path)
    result = bundle(run_dir, "--review", "--output", tmp_path / "b.tar.gz")
    assert result.exit_code == 0
    assert "none-none/trial_0/stdout.log:2: connect <ip> with <redacted>" in result.output
    assert "nothing was written" in result.output
    assert tree(tmp_path) == before


def test_without_a_ticket_there_is_no_bundle(run_dir: Path, tmp_path: Path) -> None:
    """Naming one helps."""
    (run_dir / "plan.json").write_text(json.dumps({**PLAN, "ticket": None}))
    result = bundle(run_dir, "--output", tmp_path / "b.tar.gz")
    assert (result.exit_code, (tmp_path / "b.tar.gz").exists()) == (2, False)
    assert "name it with --ticket" in result.output
    assert bundle(run_dir, "--output", tmp_path / "b.tar.gz", "--ticket", "T-1").exit_code == 0


def test_a_link_that_leaves_the_run_is_refused(run_dir: Path, tmp_path: Path) -> None:
    """To a file or a folder; nothing is written."""
    (tmp_path / "outside").mkdir()
    for name, target in (("file", tmp_path / "x"), ("folder", tmp_path / "outside"), ("up", Path("../../../.."))):
        (run_dir / "none-none" / "trial_0" / name).symlink_to(target)
    result = bundle(run_dir, "--output", tmp_path / "b.tar.gz")
    assert (result.exit_code, (tmp_path / "b.tar.gz").exists()) == (2, False)
    assert all(f"{name} -> " in result.output for name in ("file", "folder", "up"))


def test_a_link_within_the_run_stays_one(run_dir: Path, tmp_path: Path) -> None:
    """An absolute one becomes relative."""
    trial = run_dir / "none-none" / "trial_0"
    (trial / "latest").symlink_to(trial / "stdout.log")
    assert bundle(run_dir, "--output", tmp_path / "b.tar.gz").exit_code == 0
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        assert archive.getmember("T-1/run/none-none/trial_0/latest").linkname == "stdout.log"


def test_other_runs_in_its_folder_are_left_out(run_dir: Path, tmp_path: Path) -> None:
    """Runs of a workload of the same ticket, wherever they lie, and files of a person: named, and not packed."""
    other = {**PLAN, "command": None}
    for place in ("training/2026-01-31T12-00-00", "none-none/2026-01-31T12-00-00", "cells/2026-01-31", "sidecars/x"):
        nested = run_dir / place
        (nested / "cells" / "a").mkdir(parents=True)
        (nested / "plan.json").write_text(json.dumps(other))
        (nested / "matrix.md").write_text("theirs")
        (nested / "away").symlink_to("/etc/passwd")
    (run_dir / "training" / ".aorta").mkdir()
    (run_dir / "notes.txt").write_text("mine")
    (run_dir / "none-none" / "trial_0" / "theirs").symlink_to("../../training/2026-01-31T12-00-00")
    result = bundle(run_dir, "--output", tmp_path / "b.tar.gz")
    assert result.exit_code == 0, result.output
    files, manifest = contents(tmp_path / "b.tar.gz")
    trial = [f"none-none/trial_0/{name}" for name in ("result.json", "stderr.log", "stdout.log")]
    assert sorted(files) == [*trial, "plan.json", "recipe.resolved.yaml"]
    assert {entry["path"]: entry["reason"] for entry in manifest["left_out"]} == {
        "cells/2026-01-31": "another run",
        "none-none/2026-01-31T12-00-00": "another run",
        "none-none/trial_0/theirs": "a link to what is not a file of this run",
        "notes.txt": "not a file of this run",
        "sidecars/x": "another run",
        "training/2026-01-31T12-00-00": "another run",
    }
    assert "left out: training/2026-01-31T12-00-00: another run" in result.output


def test_all_that_a_run_writes_is_packed(run_dir: Path, tmp_path: Path) -> None:
    """Reports, cells, also those of an earlier recipe, environments, sidecars, and what was set aside."""
    plan = {**PLAN, "command": None, "history": [{"trials": {"old": 1}}]}
    (run_dir / "plan.json").write_text(json.dumps(plan))
    names = [
        *(".aorta/settings.json", "cells/none-none/cell.json", "cells/none-none/training/trial_d0_m0_t0.json"),
        *("cells/old/training/trial_d0_m0_t0.json", "environments/local/env.json", "host_env.json"),
        *("inline_environments.sidecar.json", "matrix.html", "matrix.json", "matrix.json.invalid", "matrix.md"),
        *("matrix.md.invalid-2", "perf.md", "plan.json", "recipe.resolved.yaml", "sidecars/site.json"),
    ]
    for name in set(names) - {"plan.json", "recipe.resolved.yaml"}:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text("x")
    assert bundle(run_dir, "--output", tmp_path / "b.tar.gz").exit_code == 0
    files, manifest = contents(tmp_path / "b.tar.gz")
    assert sorted(files) == names
    assert [entry["path"] for entry in manifest["left_out"]] == ["none-none"]


@pytest.mark.parametrize("plan", [{"ticket": "T-1"}, {"ticket": "T-1", "cells": [{"name": ["a"]}]}, [1]])
def test_a_plan_without_cells_is_refused(run_dir: Path, tmp_path: Path, plan: Any) -> None:
    """Nothing then says which files are the run's."""
    (run_dir / "plan.json").write_text(json.dumps(plan))
    result = bundle(run_dir, "--output", tmp_path / "b.tar.gz", "--ticket", "T-1")
    assert (result.exit_code, (tmp_path / "b.tar.gz").exists()) == (2, False)
    assert "plan.json: does not say which cells the run has" in result.output


def test_an_empty_ticket_is_refused(run_dir: Path, tmp_path: Path) -> None:
    """It is not taken for none."""
    result = bundle(run_dir, "--output", tmp_path / "b.tar.gz", "--ticket", " ")
    assert (result.exit_code, (tmp_path / "b.tar.gz").exists()) == (2, False)
    assert "--ticket: is empty" in result.output


def test_what_cannot_be_redacted_is_left_out(run_dir: Path, tmp_path: Path) -> None:
    """Binary files, pipes and temporary files, each with its reason; without redaction binary files go in."""
    trial = run_dir / "none-none" / "trial_0"
    (trial / "core.1").write_bytes(b"\x7fELF\0HF_TOKEN=hf_abcdefgh")
    (run_dir / ".tmp-host-1-ab").write_text("half")
    os.mkfifo(trial / "pipe")
    assert bundle(run_dir, "--output", tmp_path / "b.tar.gz").exit_code == 0
    files, manifest = contents(tmp_path / "b.tar.gz")
    core = "none-none/trial_0/core.1"
    assert [entry["path"] for entry in manifest["left_out"]] == [".tmp-host-1-ab", core, "none-none/trial_0/pipe"]
    assert core not in files
    (run_dir / "recipe.resolved.yaml").write_text("redaction: {}\n")
    assert bundle(run_dir, "--output", tmp_path / "c.tar.gz").exit_code == 0
    assert core in contents(tmp_path / "c.tar.gz")[0]


def test_another_recipes_block_counts(run_dir: Path, tmp_path: Path) -> None:
    """--redaction-from comes before the run's own recipe."""
    recipe = tmp_path / "other.yaml"
    recipe.write_text("redaction: {scrub_ip_addresses: true}\n")
    assert bundle(run_dir, "--output", tmp_path / "b.tar.gz", "--redaction-from", recipe).exit_code == 0
    assert contents(tmp_path / "b.tar.gz")[0]["none-none/trial_0/stdout.log"].split()[3:] == [
        b"<ip>", b"with", b"hf_abcdefgh", b"step", b"2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ticket: X\n", "has no redaction: block"),
        ("redaction: {scrub_everything: true}\n", "redaction.scrub_everything: is not known"),
        ("- a\n", "holds no mapping"),
        ("a: [", "is no YAML"),
    ],
)
def test_a_wrong_recipe_is_refused(run_dir: Path, tmp_path: Path, text: str, message: str) -> None:
    """By its name and place; nothing is written."""
    recipe = tmp_path / "other.yaml"
    recipe.write_text(text)
    result = bundle(run_dir, "--output", tmp_path / "b.tar.gz", "--redaction-from", recipe)
    assert (result.exit_code, (tmp_path / "b.tar.gz").exists()) == (2, False)
    assert message in result.output and "Traceback" not in result.output


def test_nothing_is_overwritten(run_dir: Path, tmp_path: Path) -> None:
    """Neither an earlier bundle nor anything of the run."""
    (tmp_path / "b.tar.gz").write_text("mine")
    assert bundle(run_dir, "--output", tmp_path / "b.tar.gz").exit_code == 2
    assert (tmp_path / "b.tar.gz").read_text() == "mine"
    assert "lies in the run directory" in bundle(run_dir, "--output", run_dir / "b.tar.gz").output


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """It has no plan."""
    result = bundle(tmp_path, "--ticket", "T")
    assert (result.exit_code, "is no run directory" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("T-1", "T-1.tar.gz"), ("T-1-2", "T-1-2.tar.gz"), ("2026-01-31T12-00-00", "T-1-2026-01-31T12-00-00.tar.gz")],
)
def test_a_bundle_is_named_by_ticket_and_run(tmp_path: Path, folder: str, name: str) -> None:
    """The folder of a command's run is its ticket, which is then said once."""
    assert default_output(tmp_path / folder, "T-1") == Path(name)
