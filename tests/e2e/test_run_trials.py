"""``aorta run`` and its Python form: trials of one workload, without a recipe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from jsonschema import Draft202012Validator

from aorta._resources import load_schema
from tests.e2e.conftest import Workspace

pytestmark = pytest.mark.e2e

T = TypeVar("T")
RUN = ["run", "--workload", "witness", "--trials", "2", "--steps", "3", "--output", "out"]


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("trial_*.json"))]


def test_trials_lie_below_the_workload_s_name(workspace: Workspace) -> None:
    """Each is a valid record of its own process, with the variables, settings and collectors of the flags."""
    ended = workspace.aorta(
        *RUN,
        *(
            "--mitigations",
            "tf32_off,xnack",
            "--extra-env",
            "HSA_XNACK=0",
            "--save-logs",
            "--collect",
            "layer_numerics",
        ),
        *("--workload-config", "watch=[DISABLE_TF32, HSA_XNACK]", "--workload-config", "a.b=1e3"),
    )
    assert ended.code == 0, ended.stderr
    assert ended.stdout == "2 of 2 trials passed, mean step 2 ms: out/witness\n"
    assert next(line for line in ended.stderr.splitlines() if ": pass" in line).startswith("[1/2] run trial 0: pass")
    found = records(workspace.folder / "out" / "witness")
    validator = Draft202012Validator(load_schema("trial"))
    assert [list(validator.iter_errors(record)) for record in found] == [[], []]
    metrics = [record["result"]["metrics"] for record in found]  # type: ignore[index]
    assert metrics[0]["at_start"] == {"DISABLE_TF32": "1", "HSA_XNACK": "0"}
    config = metrics[0]["config"]
    assert config["_aorta_collect"] == ["layer_numerics"]
    assert config["_aorta_log_prefix"] == str(workspace.folder / "out" / "witness" / "trial_d0_m0_t0")
    assert (workspace.folder / "out" / "witness" / "trial_d0_m0_t1.stderr.log").is_file()
    assert len({record["pid"] for record in found}) == 2


def test_a_trial_that_does_not_pass_ends_with_1(workspace: Workspace) -> None:
    """A crash and a failed check are results; both have their files."""
    for end, told in (("segfault", "1 errored"), ("fail", "1 failed")):
        ended = workspace.aorta(
            "run", "--workload", "chaos", "--steps", "1", "--output", end, "--workload-config", f"end={end}"
        )
        assert ended.code == 1
        assert ended.stdout.startswith(f"0 of 1 trial passed, {told}")
        assert len(records(workspace.folder / end / "chaos")) == 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--mitigations", "tf32_of"], "--mitigations: 'tf32_of' is not a registered mitigation"),
        (["--environment", "locl"], "--environment: 'locl' is not a registered environment"),
        (["--trials", "0"], "--trials: must be a whole number, 1 or more"),
        (["--extra-env", "A"], "--extra-env: 'A' is not of the form KEY=VALUE"),
        (["--workload-config", "steps=3"], "--workload-config: "),
        (["--collect", "x"], "--collect: 'x' is not a known collector"),
        (["--mitigations-file", "none.json"], "sidecar none.json: no such file"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(workspace: Workspace, flags: list[str], expected: str) -> None:
    """Exit code 2, the flag is named, and nothing is there."""
    before = workspace.files()
    ended = workspace.aorta(*RUN, *flags)
    assert (ended.code, ended.stdout) == (2, "")
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr
    assert workspace.files() == before


def test_results_are_never_mixed(workspace: Workspace) -> None:
    """A folder that holds trials is refused; without --output each command has a folder of its own."""
    assert workspace.aorta(*RUN).code == 0
    ended = workspace.aorta(*RUN)
    assert ended.code == 2
    assert "out/witness: holds trials already" in ended.stderr
    for _ in range(2):
        assert workspace.aorta(*RUN[:-2]).code == 0
    assert len(list(workspace.folder.glob("run_results/*/witness/trial_d0_m0_t1.json"))) == 2


def test_run_trials_from_python(workspace: Workspace) -> None:
    """The same from a program: results are frozen, and what a trial did is no exception."""
    program = """
from dataclasses import FrozenInstanceError
from aorta.run import RunRequest, run_trials
seen = []
results = run_trials(
    RunRequest(workload="chaos", trials=2, steps=3, output_dir="out", mitigations=["tf32_off"],
               config_overrides={"end": "fail"}),
    on_result=seen.append,
)
assert results == seen and [result.trial for result in results] == [0, 1]
(first, _) = results
assert (first.verdict, first.exit_status, first.passed) == ("fail", "workload_failed", False)
assert first.result.failure_details[0]["hint"] == "the planted failure"
assert first.resolved_env_vars == {"DISABLE_TF32": "1"}
assert first.path.is_file() and first.record["fingerprint"]
try:
    first.trial = 3
except FrozenInstanceError:
    print("frozen")
"""
    ended = workspace.run("-c", program)
    assert (ended.code, ended.stdout) == (0, "frozen\n"), ended.stderr


def test_a_supervisor_that_dies_is_an_error(workspace: Workspace) -> None:
    """Its trial has no record; the command says so and ends with 1, the program gets what had ended before."""
    program = """
from aorta.run import RunError, RunRequest, run_trials
try:
    run_trials(RunRequest(workload="chaos", trials=2, steps=1, output_dir="out",
                          config_overrides={"end": "marker", "marker": "none"}))
except RunError as error:
    print(len(error.results), error)
"""
    ended = workspace.run("-c", program)
    assert ended.stdout.startswith("0 trial 0 left no record: its supervisor ended with status -9"), ended.stderr
    command = ["run", "--workload", "chaos", "--steps", "1", "--output", "cli"]
    ended = workspace.aorta(*command, "--workload-config", "end=marker", "--workload-config", "marker=none")
    assert (ended.code, ended.stdout) == (1, "0 of 1 trial passed, 1 missing: cli/chaos\n")


def test_ranks_of_a_distributed_workload(workspace: Workspace) -> None:
    """As many as were asked for; too few, or a launcher around the command, are refused with the ways out."""
    command = ["run", "--workload", "training", "--steps", "1", "--output", "out"]
    command += ["--workload-config", "model={kind: mlp, hidden_size: 16, num_layers: 1, vocab_size: 32}"]
    command += ["--workload-config", "device=cpu", "--workload-config", "parallelism=ddp"]
    ended = workspace.aorta(*command, "--nproc-per-node", "2")
    assert ended.code == 0, ended.stderr
    (record,) = records(workspace.folder / "out" / "training")
    assert record["result"]["metrics"]["world_size"] == 2  # type: ignore[index]
    few = workspace.aorta("run", "--workload", "race", "--steps", "1", "--output", "race")
    assert few.code == 2
    assert "needs at least 2 ranks" in few.stderr
    around = workspace.aorta(*command, WORLD_SIZE="2", RANK="0", LOCAL_WORLD_SIZE="2")
    assert around.code == 2
    assert "launcher: WORLD_SIZE is 2" in around.stderr
    assert not (workspace.folder / "race").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_ends_its_trial(workspace: Workspace, number: signal.Signals) -> None:
    """Nothing of it is left running, and there is no record of it."""
    command = ["run", "--workload", "chaos", "--steps", "1", "--output", "out", "--workload-config", "end=hang"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from aorta.cli import main; main(prog_name='aorta')", *command],
        cwd=workspace.folder,
        env=workspace.environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        workers = wait_for(lambda: processes_in(workspace.folder, "aorta.run.worker"))
        process.send_signal(number)
        assert process.wait(30) not in (0, None)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    finally:
        process.kill()
        process.wait()
    assert not list((workspace.folder / "out" / "chaos").glob("*.json"))


def processes_in(folder: Path, word: str) -> list[int]:
    """Live processes that work in a folder and have a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == folder.resolve():
                found += [int(entry.name)] if word in (entry / "cmdline").read_text() else []
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], T], seconds: float = 30) -> T:
    """Waits until a condition is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
    return value
