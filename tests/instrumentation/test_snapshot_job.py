"""The workflow's environment jobs, and the probe's own command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta.instrumentation import _probe_main, collect_env, is_valid_snapshot, placeholder_snapshot, snapshot
from tests.instrumentation.conftest import through_fifo

SchemaErrors = Callable[[Any], list[str]]


def entry(name: str, **fields: Any) -> dict[str, Any]:
    """An environment's entry in plan.json."""
    return {
        "name": name, "docker": None, "venv": None, "buck_target": None, "emulator": None, "mirage_profile": None,
        "env": {}, "source_package": "aorta", "isolated": False, **fields,
    }  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory whose plan has an environment of each kind."""
    entries = [
        entry("local"),
        entry("tuned", env={"HSA_XNACK": "1", "LC_ALL": "POSIX"}),
        entry("emulated", emulator="rocjitsu", mirage_profile="mi350x"),
        entry("crashing", env={"PYTHONHOME": "/nonexistent"}),
        entry("box", docker="acme/box:2", isolated=True),
    ]
    (tmp_path / "plan.json").write_text(json.dumps({"environments": {each["name"]: each for each in entries}}))
    return tmp_path


def job(run_dir: Path, name: str) -> dict[str, Any]:
    """Runs one environment job without PyTorch and returns what it wrote."""
    assert snapshot.main(["--run-dir", str(run_dir), "--environment", name, "--no-torch"]) == 0
    value: dict[str, Any] = json.loads((run_dir / "environments" / name / "env.json").read_text("utf-8"))
    return value


def test_a_host_environment_is_probed(run_dir: Path, schema_errors: SchemaErrors) -> None:
    """The file is a snapshot with the descriptor of the plan."""
    value = job(run_dir, "local")
    assert schema_errors(value) == []
    assert is_valid_snapshot(value)
    assert value["environment"] == {key: item for key, item in entry("local").items() if key != "isolated"}


def test_the_environments_own_variables_are_in_force(run_dir: Path, schema_errors: SchemaErrors) -> None:
    """The probe runs under the variables that the trials get, in a process that started with them."""
    value = job(run_dir, "tuned")
    assert schema_errors(value) == []
    assert value["env_vars"]["set"]["HSA_XNACK"] == "1"
    assert value["pytorch"]["version"] == collect_env(import_torch=False)["pytorch"]["version"]
    assert [path.name for path in (run_dir / "environments/tuned").iterdir()] == ["env.json"]


def test_an_emulator_that_nothing_acts_on_invents_nothing(run_dir: Path) -> None:
    """The emulator is in the descriptor; the blocks describe the real host."""
    value, host = job(run_dir, "emulated"), job(run_dir, "local")
    assert value["environment"]["emulator"] == "rocjitsu"
    assert (value["gpu_arch"], value["host"]) == (host["gpu_arch"], host["host"])


def test_variables_that_break_python_leave_a_placeholder(run_dir: Path, schema_errors: SchemaErrors) -> None:
    """A snapshot that cannot be taken is said to be missing, with the reason."""
    value = job(run_dir, "crashing")
    assert schema_errors(value) == []
    assert value["snapshot_captured"] is False
    assert "(PYTHONHOME) exited with 1" in value["reason"]


def test_an_isolated_environment_without_a_capture_gets_the_placeholder(
    run_dir: Path, schema_errors: SchemaErrors
) -> None:
    """The host's state is not recorded for the container's."""
    value = job(run_dir, "box")
    assert schema_errors(value) == []
    assert (value["snapshot_captured"], value["environment"]["docker"]) == (False, "acme/box:2")


def test_a_capture_from_inside_is_kept(run_dir: Path, schema_errors: SchemaErrors) -> None:
    """What the wrapper left stays, with the descriptor added; running the job again changes nothing."""
    path = run_dir / "environments/box/env.json"
    path.parent.mkdir(parents=True)
    inside = {**collect_env(import_torch=False), "captured_at": "2026-01-02T03:04:05Z"}
    path.write_text(json.dumps(inside))
    value = job(run_dir, "box")
    assert schema_errors(value) == []
    assert value == {**inside, "environment": value["environment"]}
    assert job(run_dir, "box") == value


def test_a_capture_may_lie_elsewhere(run_dir: Path) -> None:
    """A workflow that removes a job's output first can pass the capture under another name."""
    captured = run_dir / "captured.json"
    captured.write_text(json.dumps(collect_env(import_torch=False)))
    arguments = ["--run-dir", str(run_dir), "--environment", "box", "--captured", str(captured)]
    assert snapshot.main(arguments) == 0
    assert is_valid_snapshot(json.loads((run_dir / "environments/box/env.json").read_text("utf-8")))


@pytest.mark.parametrize("left", ["", "{", "[]", '{"schema_version": 1, "snapshot_captured": true}'])
def test_half_a_capture_counts_as_none(run_dir: Path, schema_errors: SchemaErrors, left: str) -> None:
    """A truncated or foreign file is replaced, and the placeholder says that there was one."""
    path = run_dir / "environments/box/env.json"
    path.parent.mkdir(parents=True)
    path.write_text(left)
    value = job(run_dir, "box")
    assert schema_errors(value) == []
    assert "the file that it left" in value["reason"]


def test_a_placeholder_is_not_mistaken_for_a_foreign_file(run_dir: Path) -> None:
    """A second run of the job writes the same placeholder."""
    assert job(run_dir, "box") == job(run_dir, "box")


def test_the_host_form_writes_host_env_json(run_dir: Path, schema_errors: SchemaErrors) -> None:
    """Once a run, the engine's own host."""
    assert snapshot.main(["--run-dir", str(run_dir), "--host", "--no-torch"]) == 0
    value = json.loads((run_dir / "host_env.json").read_text("utf-8"))
    assert schema_errors(value) == []
    assert "environment" not in value


def test_an_unknown_environment_is_named_with_the_known_ones(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what the plan has, and nothing is written."""
    assert snapshot.main(["--run-dir", str(run_dir), "--environment", "locl"]) == 1
    assert "no environment 'locl'; the plan has: box, crashing" in capsys.readouterr().err
    assert not (run_dir / "environments").exists()


@pytest.mark.parametrize("what", [["--host"], ["--environment", "local"]])
def test_a_folder_that_is_no_run_directory_is_refused(
    tmp_path: Path, what: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped --run-dir is a usage error, and no folder is made."""
    with pytest.raises(SystemExit) as ended:
        snapshot.main(["--run-dir", str(tmp_path / "typo"), "--no-torch", *what])
    assert ended.value.code == 2
    assert f"{tmp_path}/typo is no run directory, it holds no plan.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--run-dir", "--out", "--captured"])
def test_an_empty_path_is_refused(run_dir: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unset shell variable must not mean the current folder."""
    with pytest.raises(SystemExit) as ended:
        snapshot.main(["--run-dir", str(run_dir), "--host", "--no-torch", flag, ""])
    assert ended.value.code == 2
    assert f"{flag} is empty; name a path" in capsys.readouterr().err


def test_the_folder_of_out_must_exist(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the run directory's own folders are made."""
    out = run_dir / "typo" / "env.json"
    assert snapshot.main(["--run-dir", str(run_dir), "--host", "--no-torch", "--out", str(out)]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    assert not out.parent.exists()


@pytest.mark.parametrize("plan", ["{", "[]", '{"environments": 3}'])
def test_an_unreadable_plan_is_an_error(tmp_path: Path, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No plan that can be read, no snapshot, and no traceback."""
    (tmp_path / "plan.json").write_text(plan)
    assert snapshot.main(["--run-dir", str(tmp_path), "--environment", "local"]) == 1
    assert "not a plan that can be read" in capsys.readouterr().err


def test_the_probe_command_writes_the_same_shape(tmp_path: Path, schema_errors: SchemaErrors) -> None:
    """Run as the wrapper contract says, it writes a valid snapshot and prints nothing."""
    out = tmp_path / "env.json"
    command = [sys.executable, "-m", "aorta.instrumentation._probe_main", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    value = json.loads(out.read_text("utf-8"))
    assert schema_errors(value) == []
    assert set(value) == set(collect_env(import_torch=False))
    assert (done.stdout, done.stderr) == ("", "")


def test_a_snapshot_that_cannot_be_written_does_not_fail_the_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrapper joins the probe and the trial with &&, so the probe says what is wrong and returns 0."""
    assert _probe_main.main(["--no-torch", str(tmp_path / "no" / "env.json")]) == 0
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--help"], [""], ["--no-torch", ""]])
def test_wrong_usage_of_the_probe_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Anything but one path that is not empty is a usage error."""
    assert _probe_main.main(arguments) == 2
    assert "usage: python -m aorta.instrumentation._probe_main" in capsys.readouterr().err


def test_the_probe_command_writes_through_a_pipe(tmp_path: Path, schema_errors: SchemaErrors) -> None:
    """What is no plain file is written to and stays."""
    pipe = tmp_path / "pipe"
    with through_fifo(pipe) as received:
        assert _probe_main.main(["--no-torch", str(pipe)]) == 0
    assert schema_errors(json.loads(received[0])) == []
    assert pipe.is_fifo()


def test_of_several_that_take_a_snapshot_once_one_does(run_dir: Path) -> None:
    """The others wait for it and leave it alone; nobody's claim stays."""
    words = ["--run-dir", str(run_dir), "--environment", "local", "--no-torch", "--once"]
    command = [sys.executable, "-m", "aorta.instrumentation.snapshot", *words]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    path = run_dir / "environments" / "local" / "env.json"
    first = path.stat().st_ino, path.read_bytes()
    assert snapshot.main(words) == 0
    assert (path.stat().st_ino, path.read_bytes()) == first
    assert [found for found in run_dir.glob(".aorta/claims/*/*") if found.is_file()] == []


def test_a_damaged_snapshot_is_taken_again(run_dir: Path) -> None:
    """What a power cut left is no snapshot."""
    path = run_dir / "host_env.json"
    path.write_text('{"schema_')
    assert snapshot.main(["--run-dir", str(run_dir), "--host", "--no-torch", "--once"]) == 0
    assert is_valid_snapshot(json.loads(path.read_text("utf-8")))


def test_the_placeholder_keeps_an_unknown_descriptor_as_it_is() -> None:
    """Nothing is added to or taken from what the plan said."""
    assert placeholder_snapshot({"name": "x", "new_field": 1})["environment"] == {"name": "x", "new_field": 1}


def test_a_variable_spares_the_import_of_pytorch(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep's jobs take no options of the user's; what is left out is said, not guessed."""
    monkeypatch.setenv(snapshot.NO_TORCH_VARIABLE, "1")
    assert snapshot.main(["--run-dir", str(run_dir), "--host"]) == 0
    with_variable = json.loads((run_dir / "host_env.json").read_text("utf-8"))["pytorch"]
    monkeypatch.delenv(snapshot.NO_TORCH_VARIABLE)
    assert snapshot.main(["--run-dir", str(run_dir), "--host", "--no-torch"]) == 0
    assert json.loads((run_dir / "host_env.json").read_text("utf-8"))["pytorch"] == with_variable
    assert with_variable["missing"]
