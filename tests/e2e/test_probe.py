"""Recipes that wrap a command: real commands, through the command line and through plain Snakemake."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from aorta._resources import load_schema
from tests.e2e.chaos import wait_until
from tests.e2e.conftest import Ended, Workspace
from tests.e2e.test_resume import started

pytestmark = pytest.mark.e2e


def write_recipe(workspace: Workspace, **fields: Any) -> str:
    """Writes a recipe of one cell and one run, unless the fields say otherwise; returns its name."""
    content = {
        "schema_version": 1,
        "mode": "probe",
        "ticket": "T",
        "trials": 1,
        "mitigation_axis": ["none"],
        **fields,
    }
    (workspace.folder / "probe.yaml").write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return "probe.yaml"


def probe(workspace: Workspace, *command: str, **fields: Any) -> Ended:
    """Runs a command under a recipe."""
    return workspace.aorta("sweep", "run", "--recipe", write_recipe(workspace, **fields), "--", *command)


def folder(workspace: Workspace, cell: str = "none-none", trial: int = 0, ticket: str = "T") -> Path:
    """The folder of one run of the command."""
    return workspace.folder / "triage_results" / ticket / cell / f"trial_{trial}"


def result(workspace: Workspace, cell: str = "none-none", trial: int = 0, ticket: str = "T") -> dict[str, Any]:
    """What one run of the command came to."""
    written = json.loads((folder(workspace, cell, trial, ticket) / "result.json").read_text("utf-8"))
    Draft202012Validator(load_schema("probe-result")).validate(written)
    return dict(written)


def record(workspace: Workspace, cell: str = "none-none", trial: int = 0) -> dict[str, Any]:
    """The engine's own record of the same run."""
    path = workspace.folder / "triage_results" / "T" / "cells" / cell / "probe" / f"trial_d0_m0_t{trial}.json"
    return json.loads(path.read_text("utf-8"))


def matrix(workspace: Workspace, ticket: str = "T") -> dict[str, Any]:
    """The run's matrix."""
    return json.loads((workspace.folder / "triage_results" / ticket / "matrix.json").read_text("utf-8"))


def test_each_pair_of_the_axes_runs_with_its_variables(workspace: Workspace) -> None:
    """The layout and every key of result.json are as the guide has them, and the variables reach the command."""
    script = 'echo "tf32=$DISABLE_TF32 xnack=$HSA_XNACK"; echo err >&2; pwd; test -z "$HSA_XNACK"'
    axes = {"mitigation_axis": ["none", "tf32_off"], "diagnostic_axis": ["none", "xnack"], "trials": 2}
    ended = probe(workspace, "bash", "-c", script, **axes)
    assert ended.code == 0, ended.stderr
    found = {cell["name"]: cell["verdict_counts"] for cell in matrix(workspace)["cells"]}
    passed, failed = {"pass": 2, "fail": 0, "error": 0}, {"pass": 0, "fail": 2, "error": 0}
    assert found == {
        "none-none": passed,
        "none-xnack": failed,
        "tf32_off-none": passed,
        "tf32_off-xnack": failed,
    }
    assert sorted(path.name for path in folder(workspace, "tf32_off-xnack", 1).iterdir()) == [
        *("result.json", "stderr.log", "stdout.log"),
    ]
    written = result(workspace, "tf32_off-xnack", 1)
    assert written["argv"] == ["bash", "-c", script]
    assert (written["cell_name"], written["trial_index"]) == ("tf32_off-xnack", 1)
    assert (written["verdict"], written["exit_code"]) == ("fail", 1)
    assert written["failure_detectors_fired"] == ["exit_nonzero"]
    assert written["env"] == {"DISABLE_TF32": "1", "HSA_XNACK": "1"}
    where = str(workspace.folder)
    assert (folder(workspace, "tf32_off-xnack") / "stdout.log").read_text() == f"tf32=1 xnack=1\n{where}\n"
    assert (folder(workspace) / "stderr.log").read_text() == "err\n"


@pytest.mark.parametrize(
    ("command", "verdict", "status", "detector"),
    [
        (["bash", "-c", "kill -SEGV $$"], "fail", "workload_failed", "sigsegv"),
        (["python3", "-c", "raise ValueError('no')"], "fail", "workload_failed", "python_traceback"),
        (["no-such-program-anywhere"], "error", "workload_setup_failed", "exec_failed"),
        (["sleep", "60"], "error", "timed_out", "timeout"),
    ],
)
def test_a_bad_end_is_named(workspace: Workspace, command: list[str], verdict: str, status: str, detector: str) -> None:
    """A signal, a traceback, a program that is not there, a time limit: each has its verdict and its detector."""
    ended = probe(workspace, *command, timeout_per_trial=2)
    assert ended.code == 0, ended.stderr
    written = result(workspace)
    assert written["verdict"] == verdict
    assert detector in [*written["failure_detectors_fired"], *written["error_detectors_fired"]]
    assert record(workspace)["exit_status"] == status
    assert matrix(workspace)["cells"][0]["verdict_counts"][verdict] == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["bash", "-c", "no-such-program-anywhere"], "a shell could not start a command (exit code 127)"),
        (["bash", "-c", "/etc/passwd"], "a shell could not start a command (exit code 126)"),
        (["no-such-program-anywhere"], "the command could not be started: [Errno 2] No such file or directory"),
    ],
)
def test_a_command_that_did_not_start_is_told_in_words(workspace: Workspace, command: list[str], told: str) -> None:
    """Whether it was the command itself or one in it: true, and fit for a person."""
    ended = probe(workspace, *command)
    assert ended.code == 0, ended.stderr
    message = record(workspace)["error"]["message"]
    assert message.startswith(told)
    assert "{" not in message
    assert told in ended.stdout


def test_a_command_that_hangs_is_ended_with_all_its_processes(workspace: Workspace) -> None:
    """No output and no I/O for the window: the command and what it started are killed, and the run fails."""
    script = "sleep 3600 & echo $! > child; wait"
    ended = probe(workspace, "bash", "-c", script, hang_window_sec=1, hang_grace_period_at_start=0)
    assert ended.code == 0, ended.stderr
    assert result(workspace)["failure_detectors_fired"] == ["hang"]
    assert not Path("/proc", (workspace.folder / "child").read_text().strip()).exists()


def test_a_second_command_gets_a_folder_of_its_own(workspace: Workspace) -> None:
    """Results are never mixed or overwritten: another command, or the same once more, goes beside the first."""
    assert probe(workspace, "echo", "one").code == 0
    assert probe(workspace, "echo", "two").code == 0
    assert probe(workspace, "echo", "one").code == 0
    outputs = [folder(workspace, ticket=name) / "stdout.log" for name in ("T", "T-2", "T-3")]
    assert [path.read_text() for path in outputs] == ["one\n", "two\n", "one\n"]


def test_another_command_may_not_continue_a_named_run(workspace: Workspace) -> None:
    """The refusal names both commands and the way out, and touches nothing."""
    assert probe(workspace, "echo", "one").code == 0
    words = ["sweep", "run", "--recipe", "probe.yaml", "--run-dir", "triage_results/T", "--", "echo", "two"]
    ended = workspace.aorta(*words)
    assert ended.code == 2
    assert "holds the results of 'echo one'" in ended.stderr
    assert "leave run_dir out" in ended.stderr
    assert (folder(workspace) / "stdout.log").read_text() == "one\n"


def test_a_matrix_of_the_same_ticket_shares_its_folder(workspace: Workspace) -> None:
    """The guide's layout holds for both kinds of recipe: one adds folders to the other's."""
    recipe = workspace.recipe([{"name": "a"}], ticket="T", workload="gpu_smoke")
    assert workspace.aorta("sweep", "run", "--recipe", recipe).code == 0
    assert probe(workspace, "echo", "one").code == 0
    assert result(workspace)["verdict"] == "pass"


def test_snakemake_runs_once_and_finds_it_done_the_next_time(workspace: Workspace) -> None:
    """A list keeps its words; the same call again has nothing to do, and a changed command runs beside it."""
    recipe = write_recipe(workspace)

    def run(*words: str) -> Ended:
        return workspace.snakemake("-c", "2", "--config", f"recipe={recipe}", f"command={json.dumps(words)}")

    assert run("bash", "-c", "echo a  b >> count").code == 0
    again = run("bash", "-c", "echo a  b >> count")
    assert "this plan has a finished run" in again.stderr
    assert (workspace.folder / "count").read_text() == "a b\n"
    assert run("echo", "x").code == 0
    assert (folder(workspace, ticket="T-2") / "stdout.log").read_text() == "x\n"


@pytest.mark.parametrize("flow", ["aorta", "snakemake"])
def test_a_killed_sweep_is_resumed(workspace: Workspace, flow: str) -> None:
    """What was recorded stays; the run that died with its supervisor is made anew, in the same folder."""
    wait = "while ! test -e gate; do sleep 0.05; done"
    script = f'echo "$AORTA_TRIAL_DIR" >> log; case $AORTA_TRIAL_DIR in *trial_1) {wait};; esac'
    recipe = write_recipe(workspace, trials=2)
    words: tuple[str, ...] = ("sweep", "run", "--recipe", recipe, "--", "bash", "-c", script)
    if flow == "snakemake":
        words = ("-c", "2", "--config", f"recipe={recipe}", f"command={json.dumps(['bash', '-c', script])}")
    log = workspace.folder / "log"
    with started(workspace, flow, *words) as first:
        wait_until(lambda: log.exists() and "trial_1" in log.read_text(), "the second run to start")
        # The whole session, as a power cut would: the command dies with its supervisor.
        os.killpg(first.pid, signal.SIGKILL)
    (workspace.folder / "gate").touch()
    ended = getattr(workspace, flow)(*words)
    assert ended.code == 0, ended.stderr
    assert [line.rpartition("_")[2] for line in log.read_text().split()] == ["0", "1", "1"]
    assert matrix(workspace)["complete"]
    assert result(workspace, trial=1)["verdict"] == "pass"


def test_stop_after_ends_a_cell(workspace: Workspace) -> None:
    """With the first event the cell has seen enough; later runs leave no folder."""
    ended = probe(workspace, "false", trials=3, stop_after={"events": 1})
    assert ended.code == 0, ended.stderr
    assert matrix(workspace)["cells"][0]["trials_counted"] == 1
    assert not folder(workspace, trial=1).exists()


def test_variables_by_file(workspace: Workspace) -> None:
    """The file is its owner's alone and named to the command, whose environment stays as it was."""
    script = 'echo "in env: $HSA_XNACK"; cat "$AORTA_ENV_FILE"'
    fields = {"mitigation_axis": ["xnack"], "env_passthrough_mode": "file"}
    assert probe(workspace, "bash", "-c", script, **fields).code == 0
    where = folder(workspace, "xnack-none")
    assert (where / "stdout.log").read_text() == "in env: \nHSA_XNACK=1\n"
    assert stat.S_IMODE((where / "probe.env").stat().st_mode) == 0o600


def test_the_command_sees_the_environment_that_the_sweep_was_started_in(workspace: Workspace) -> None:
    """Snakemake's own numbers of threads and its temporary folder do not reach it."""
    script = "env | grep -E 'NUM_THREADS|^TE?MP|MAXIMUM' | sort"
    recipe = write_recipe(workspace)
    kept = {"OMP_NUM_THREADS": "7", "TMPDIR": str(workspace.folder)}
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--", "bash", "-c", script, **kept)
    assert ended.code == 0, ended.stderr
    assert (folder(workspace) / "stdout.log").read_text().split() == [f"{name}={kept[name]}" for name in sorted(kept)]
    snapshot = workspace.folder / "triage_results" / "T" / "environments" / "local" / "env.json"
    assert '"OMP_NUM_THREADS": "7"' in snapshot.read_text()


def test_collected_files_and_what_is_retained(workspace: Workspace) -> None:
    """Matches are copied with their paths, the run's own files are not; each verdict keeps what the recipe says."""
    script = 'mkdir -p out; echo 1 > out/a.txt; echo "$HSA_XNACK"; test -z "$HSA_XNACK"'
    fields = {"mitigation_axis": ["none", "xnack"], "collect_paths": ["**/*.txt", "nothing*"]}
    retain = {"on_pass": "full", "on_fail": "summary"}
    assert probe(workspace, "bash", "-c", script, retain=retain, **fields).code == 0
    assert result(workspace)["collected"] == {"files": ["out/a.txt"], "problems": []}
    assert (folder(workspace) / "collected" / "out" / "a.txt").read_text() == "1\n"
    assert [path.name for path in folder(workspace, "xnack-none").iterdir()] == ["result.json"]


def test_nothing_is_retained(workspace: Workspace) -> None:
    """The verdict is in the matrix all the same."""
    assert probe(workspace, "true", retain={"on_pass": "none"}).code == 0
    assert not folder(workspace).exists()
    assert matrix(workspace)["cells"][0]["verdict_counts"]["pass"] == 1


def test_step_times_are_compared(workspace: Workspace) -> None:
    """What the expression finds in the output is the cell's series of step times."""
    script = 't=10; test -z "$HSA_XNACK" || t=20; for i in 1 2 3; do echo "step_ms=$t"; done'
    fields = {"mitigation_axis": ["none", "xnack"], "step_time_regex": r"step_ms=([0-9.]+)"}
    assert probe(workspace, "bash", "-c", script, **fields).code == 0
    base, slow = matrix(workspace)["cells"]
    assert (base["step_time_source"], base["mean_step_time_ms"]) == ("per_step", 10.0)
    assert slow["confound"]["ratio"] == pytest.approx(2.0)


def test_collectors_reach_the_command_as_variables(workspace: Workspace) -> None:
    """A workload would get them in its configuration; a command gets the same names as variables."""
    collect = {"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}}
    script = 'echo "$AORTA_COLLECT $NANLOG_SAMPLE_EVERY $NANLOG_DIR"'
    assert probe(workspace, "bash", "-c", script, collect=collect).code == 0
    where = folder(workspace) / "layer_numerics"
    assert (folder(workspace) / "stdout.log").read_text() == f"layer_numerics 10 {where}\n"


@pytest.mark.parametrize("words", [("sweep", "run"), ("probe",), ("triage", "run")])
def test_a_dry_run_shows_the_command_and_writes_nothing(workspace: Workspace, words: tuple[str, ...]) -> None:
    """The guide's own smoke test, under the new name and the old ones."""
    write_recipe(workspace)
    before = workspace.files()
    ended = workspace.aorta(*words, "--recipe", "probe.yaml", "--dry-run", "--", "echo", "hi there")
    assert ended.code == 0, ended.stderr
    assert shlex.join(["echo", "hi there"]) in ended.stdout
    assert workspace.files() == before


def test_a_missing_command_is_refused_by_both_flows(workspace: Workspace) -> None:
    """The message says how to give one, and nothing is written."""
    recipe = write_recipe(workspace)
    before = workspace.files()
    for ended in (
        workspace.aorta("sweep", "run", "--recipe", recipe),
        workspace.snakemake("-c", "1", "--config", f"recipe={recipe}"),
    ):
        assert ended.code != 0
        assert "command: probe.yaml wraps a command (mode: probe), and none was given" in ended.stderr
    assert {path for path in workspace.files() if not path.startswith(".snakemake")} == before


def test_the_resolved_recipe_runs_again(workspace: Workspace) -> None:
    """The snapshot of the recipe, with the same command, is the same plan."""
    fields = {"custom_patterns": [{"id": "bad", "match": {"regex": "BAD ([0-9]+)", "condition": "capture > 5"}}]}
    assert probe(workspace, "echo", "BAD 9", **fields).code == 0
    assert result(workspace)["failure_detectors_fired"] == ["bad"]
    kept = workspace.folder / "triage_results" / "T" / "recipe.resolved.yaml"
    ended = workspace.aorta("sweep", "run", "--recipe", str(kept), "--output", "again", "--", "echo", "BAD 9")
    assert ended.code == 0, ended.stderr
    keys = [
        json.loads((workspace.folder / output / "T" / "plan.json").read_text())["plan_key"]
        for output in ("triage_results", "again")
    ]
    assert keys[0] == keys[1]


def test_the_smoke_recipe_runs_from_an_empty_folder(workspace: Workspace) -> None:
    """Word for word what its first lines say."""
    recipe = "recipes/probe/example-probe-smoke.yaml"
    ended = workspace.aorta("sweep", "run", "--recipe", recipe, "--", "echo", "hi")
    assert ended.code == 0, ended.stderr
    assert "all 4 trials passed" in ended.stdout
    assert (folder(workspace, ticket="PROBE-188-SMOKE") / "stdout.log").read_text() == "hi\n"


def test_secrets_are_taken_out_of_the_result(workspace: Workspace) -> None:
    """The command gets the value; what is written for others has none."""
    sidecar = {"version": 1, "mitigations": {"signed": {"API_TOKEN": "hunter2hunter2"}}}
    (workspace.folder / "site.json").write_text(json.dumps(sidecar), "utf-8")
    recipe = write_recipe(workspace, mitigation_axis=["signed"], redaction={"scrub_env_keys": ["*token*"]})
    words = ["sweep", "run", "--recipe", recipe, "--mitigations-file", "site.json", "--", "printenv", "API_TOKEN"]
    assert workspace.aorta(*words).code == 0
    assert result(workspace, "signed-none")["env"] == {"API_TOKEN": "<redacted>"}
    assert (folder(workspace, "signed-none") / "stdout.log").read_text() == "hunter2hunter2\n"


def test_no_process_outlives_a_run(workspace: Workspace) -> None:
    """A daemon that the command leaves behind, in a session of its own, is ended with it."""
    assert probe(workspace, "bash", "-c", "setsid sleep 3600 & echo $! > child").code == 0
    pid = (workspace.folder / "child").read_text().strip()
    assert not Path("/proc", pid).exists()
