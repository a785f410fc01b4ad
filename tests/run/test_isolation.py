"""What the workload is given: its environment variables, when they are there, and its config."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import FINGERPRINT, Runner


def views(trial: Runner, names: list[str], **changes: object) -> dict[str, dict[str, str]]:
    """The named variables as seen at exec, at the import of the workload's module, and in run()."""
    metrics = trial("Environ", workload_config={"names": names}, **changes)["result"]["metrics"]
    return {view: metrics[view] for view in ("exec", "import", "run")}


def test_process_isolation_puts_the_overlay_on_at_exec(trial: Runner) -> None:
    """The variables are there before the interpreter's first instruction."""
    overlay = {"HSA_XNACK": "1", "ODD": "a=b c"}
    assert views(trial, list(overlay), overlay=overlay) == dict.fromkeys(("exec", "import", "run"), overlay)


def test_in_process_isolation_puts_the_overlay_on_after_the_import(trial: Runner) -> None:
    """The workload's module is imported without the variables; its methods see them."""
    overlay = {"HSA_XNACK": "1"}
    seen = views(trial, ["HSA_XNACK"], overlay=overlay, isolation="in_process")
    assert seen == {"exec": {}, "import": {}, "run": overlay}


def test_the_overlay_beats_the_ambient_environment(trial: Runner) -> None:
    """A cell's value replaces what the user's shell has."""
    trial.env["HSA_XNACK"] = "0"
    assert views(trial, ["HSA_XNACK"], overlay={"HSA_XNACK": "1"})["exec"] == {"HSA_XNACK": "1"}


def test_interpreter_variables_take_effect(trial: Runner) -> None:
    """PYTHONHASHSEED in the overlay reaches the interpreter that runs the workload."""
    record = trial("Environ", workload_config={"names": []}, overlay={"PYTHONHASHSEED": "7"})
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('aorta'))"], env={"PYTHONHASHSEED": "7"}, capture_output=True, check=True
    )
    assert record["result"]["metrics"]["hash"] == int(expected.stdout)


def test_pythonpath_in_the_overlay_does_not_lose_the_engine(trial: Runner, tmp_path: Path) -> None:
    """Another package called aorta on the overlay's PYTHONPATH does not replace the engine."""
    (tmp_path / "aorta").mkdir()
    (tmp_path / "aorta" / "__init__.py").write_text("raise SystemExit('the wrong aorta')")
    overlay = {"PYTHONPATH": f"{tmp_path}:{trial.env['PYTHONPATH']}"}
    assert trial("Noop", overlay=overlay)["verdict"] == "pass"


def test_a_trial_inside_a_trial_does_not_inherit_its_overlay(trial: Runner) -> None:
    """Names that an enclosing trial put on are taken off; other variables stay."""
    trial.env.update({"AORTA_OVERLAY_KEYS": "HSA_XNACK,RANK", "HSA_XNACK": "1", "RANK": "0", "KEPT": "yes"})
    names = ["HSA_XNACK", "RANK", "KEPT", "AORTA_OVERLAY_KEYS"]
    assert views(trial, names, overlay={"OWN": "1"})["exec"] == {"KEPT": "yes", "AORTA_OVERLAY_KEYS": "OWN"}


def test_a_distributed_workload_gets_a_world_of_one(trial: Runner) -> None:
    """The launcher's variables describe one rank on this host, with a port."""
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    seen = views(trial, names, launch={"mode": "distributed"})["exec"]
    assert 1024 <= int(seen.pop("MASTER_PORT")) < 65536
    assert list(seen.values()) == ["0", "1", "0", "1", "127.0.0.1"]


def test_a_single_process_workload_gets_no_launcher_variables(trial: Runner) -> None:
    """A workload that is not distributed sees no rank."""
    assert views(trial, ["RANK", "MASTER_PORT"])["exec"] == {}


def test_standard_input_is_empty_and_the_command_line_bare(trial: Runner) -> None:
    """Neither the request nor the engine's arguments are there to be read by the workload."""
    metrics = trial("Environ", workload_config={"names": []})["result"]["metrics"]
    assert (metrics["stdin"], metrics["argv"]) == ("", ["-c"])


def config_of(trial: Runner, **changes: object) -> dict[str, object]:
    config: dict[str, object] = trial("Dataclass", **changes)["result"]["metrics"]["config"]
    return config


def test_the_config_holds_settings_steps_and_reserved_keys(trial: Runner) -> None:
    """The constructor gets the cell's settings, the steps, the environment, the overlay and the collectors."""
    config = config_of(
        trial,
        workload_config={"model": {"kind": "mlp"}},
        overlay={"HSA_XNACK": "1"},
        collect={"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}},
    )
    environment = config.pop("_aorta_environment")
    assert isinstance(environment, dict) and environment["name"] == "local"
    assert config == {
        "model": {"kind": "mlp"},
        "steps": 4,
        "_aorta_trial_env": {"HSA_XNACK": "1"},
        "_aorta_trial_index": 0,
        "_aorta_collect": ["layer_numerics"],
        "_aorta_collect_options": {"NANLOG_SAMPLE_EVERY": "10"},
    }


def test_a_large_config_arrives_whole(trial: Runner) -> None:
    """The request may be far larger than a pipe holds."""
    config = config_of(trial, workload_config={"table": list(range(100_000))})
    assert config["table"] == list(range(100_000))


def test_log_keys_come_with_save_logs_only(trial: Runner) -> None:
    """With save_logs the workload is told an absolute prefix beside the record."""
    config = config_of(trial, save_logs=True)
    assert config["_aorta_save_logs"] is True
    assert config["_aorta_log_prefix"] == str(trial.path("trial_d0_m0_t0"))


def isolated() -> dict[str, object]:
    return {"name": "img", "docker": "acme/box:2", "venv": None, "env": {}, "source_package": "recipe"}


def test_an_isolated_environment_is_probed_until_a_snapshot_is_there(trial: Runner) -> None:
    """The probe is asked for, its place is absolute, and once captured it is not asked for again."""
    out = trial.run_dir / "environments" / "img" / "env.json"
    record = trial("WritesSnapshot", environment=isolated())
    probe = record["result"]["metrics"]["probe"]
    assert (probe["out"], record["environment_probe"]) == (str(out), "missing")
    assert (Path(probe["src"]) / "aorta" / "run" / "worker.py").is_file()
    record = trial("WritesSnapshot", environment=isolated(), workload_config={"write": True})
    assert record["environment_probe"] == "captured"
    record = trial("WritesSnapshot", environment=isolated())
    assert (record["result"]["metrics"]["probe"], record["environment_probe"]) == (None, None)


def test_a_placeholder_is_no_snapshot(trial: Runner) -> None:
    """A file that says snapshot_captured false keeps the probe asked for."""
    out = trial.run_dir / "environments" / "img" / "env.json"
    out.parent.mkdir(parents=True)
    out.write_text(json.dumps({"schema_version": 1, "snapshot_captured": False}))
    assert trial("WritesSnapshot", environment=isolated())["environment_probe"] == "missing"


def test_the_worker_does_not_import_torch(trial: Runner) -> None:
    """Heavy libraries come with the workload or not at all."""
    modules = trial("Dataclass")["result"]["metrics"]["modules"]
    assert not {"torch", "numpy", "pandas", "importlib.metadata"} & set(modules)


def test_a_stale_fingerprint_is_refused(trial: Runner) -> None:
    """A command line that was made for another plan runs nothing and writes nothing."""
    trial.plan("Noop")
    process = trial.start(fingerprint="cd" * 32)
    said = trial.finish(process)
    assert process.returncode == 2
    assert "fingerprint" in said and FINGERPRINT in said
    assert not trial.path("trial_d0_m0_t0.json").exists()


@pytest.mark.parametrize(
    ("text", "expected"), [(None, "cannot be read"), ("{", "cell.json"), ('{"schema_version": 1}', "'cell'")]
)
def test_a_bad_cell_file_is_refused_with_its_fault(trial: Runner, text: str | None, expected: str) -> None:
    """A missing, spoilt or incomplete request names the file and the fault."""
    trial.plan("Noop")
    path = trial.run_dir / "cells" / "baseline-local" / "cell.json"
    path.unlink() if text is None else path.write_text(text)
    process = trial.start()
    said = trial.finish(process)
    assert (process.returncode, expected in said) == (2, True)


@pytest.mark.parametrize("option", [["--bogus", "1"], ["--order"], ["--order", "-1"], ["--attempt", "0"]])
def test_a_bad_option_is_refused(trial: Runner, option: list[str]) -> None:
    """The command line's faults end with status 2 and name the option."""
    trial.plan("Noop")
    process = trial.start(*option)
    assert (option[0] in trial.finish(process), process.returncode) == (True, 2)


def test_the_worker_goes_first_when_memory_runs_out(trial: Runner) -> None:
    """The kernel prefers the trial, whose death is a result, to the supervisor, whose death is none."""
    metrics = trial("Environ", workload_config={"names": []})["result"]["metrics"]
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert metrics["oom_score_adj"] == min(1000, own + 200)


def test_order_and_attempt_are_recorded(trial: Runner) -> None:
    """The record tells its place in the run and which try it was."""
    record = trial("Noop", "--order", "5", "--of=12", "--attempt", "2")
    assert (record["order"], record["attempt"]) == (5, 2)
    assert record["said"].startswith("[ 5/12] baseline-local trial 0: pass ")
