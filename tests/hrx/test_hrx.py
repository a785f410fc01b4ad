"""``hrx`` on a stand-in runtime: every probe, every outcome, and every way in which nothing can be measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aorta.hrx.preload import PreloadError
from aorta.hrx.toolchain import HipSetupError
from aorta.workloads.base import WorkloadResult
from aorta.workloads.config import parse_config
from aorta.workloads.hrx import HrxConfig, HrxWorkload, meaning

PROBES = ["static", "module", "graph_add", "graph_setparams", "graph_execsetparams"]
Run = Callable[..., WorkloadResult]


@pytest.fixture
def run(hipcc: str, kfd: Path) -> Run:
    """Runs one trial with these settings."""

    def once(steps: int = 1, trial_env: Mapping[str, str] | None = None, **settings: Any) -> WorkloadResult:
        config = {"steps": steps, "hipcc": hipcc, "_aorta_trial_env": dict(trial_env or {}), **settings}
        workload = HrxWorkload(config, kfd=kfd)
        try:
            workload.setup()
            return workload.run()
        finally:
            workload.cleanup()

    return once


@pytest.mark.parametrize("probe", PROBES)
def test_every_probe_passes_on_a_sound_runtime(run: Run, probe: str) -> None:
    """7 + 100 arrives, once a step, and each step is timed."""
    result = run(steps=3, probe=probe)
    assert (result.passed, result.executed_iterations, len(result.step_times_ms)) == (True, 3, 3)
    assert result.metrics["outcomes"] == {"FULLY_WORKS": 3}
    assert (result.metrics["probe"], result.metrics["device_name"]) == (probe, "stand-in device")


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [("input_zero", "INPUT_READ_ZERO"), ("not_launched", "OUTPUT_NOT_WRITTEN"), ("garbage", "GARBAGE")],
)
def test_a_broken_runtime_is_told_apart(
    run: Run, monkeypatch: pytest.MonkeyPatch, probe: str, fault: str, outcome: str
) -> None:
    """What is wrong with the launch names the outcome, and fails the trial."""
    monkeypatch.setenv("HIP_STANDIN_FAULT", fault)
    result = run(probe=probe)
    (failure,) = result.failure_details
    assert (result.passed, failure["outcome"], failure["check"]) == (False, outcome, "launch_probe")
    assert failure["hint"].startswith(f"{probe}: {outcome}, ")


@pytest.mark.parametrize(
    ("probe", "outcome"),
    [
        ("graph_add", "FULLY_WORKS"),
        ("graph_setparams", "OUTPUT_NOT_WRITTEN"),
        ("graph_execsetparams", "OUTPUT_NOT_WRITTEN"),
    ],
)
def test_changed_parameters_that_are_ignored_are_seen(
    run: Run, monkeypatch: pytest.MonkeyPatch, probe: str, outcome: str
) -> None:
    """A graph that runs with its first parameters writes elsewhere."""
    monkeypatch.setenv("HIP_STANDIN_FAULT", "setparams_ignored")
    assert run(probe=probe).metrics["outcomes"] == {outcome: 1}


@pytest.mark.parametrize(
    ("result", "name"),
    [(107, "FULLY_WORKS"), (100, "INPUT_READ_ZERO"), (0, "OUTPUT_NOT_WRITTEN"), (7, "GARBAGE"), (-1, "GARBAGE")],
)
def test_results_have_names(result: int, name: str) -> None:
    """Three values mean something, all others are garbage."""
    assert meaning(result)[0] == name


def test_a_failed_call_is_a_failed_probe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch is what is tested, so a runtime that refuses it fails, and the call is named."""
    monkeypatch.setenv("HIP_STANDIN_FAULT", "no_graphs")
    result = run(probe="graph_add", steps=2)
    assert (result.passed, result.failure_count, result.metrics["outcomes"]) == (False, 2, {"CALL_FAILED": 2})
    expected = "graph_add: hipGraphInstantiateWithFlags(&instance, graph, 0): invalid argument"
    assert result.failure_details[0]["hint"] == expected


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no_device", "launch_probe module: no device to run on: the runtime finds none"),
        ("crash", "launch_probe module was ended by SIGSEGV"),
        ("hang", "launch_probe module did not end within 1 s"),
    ],
)
def test_a_run_that_says_nothing_of_the_launch_raises(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    """No device, a crash and a hang are errors, not failures of the probe."""
    run()  # the time limit below is for the program, not for compiling it
    monkeypatch.setenv("HIP_STANDIN_FAULT", fault)
    with pytest.raises(RuntimeError, match=words):
        run(timeout_sec=1)


def test_a_missing_preload_is_refused_before_anything_is_compiled(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The stock runtime is never measured under the other one's name."""
    monkeypatch.setenv("HIP_STANDIN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libhrx.so")
    with pytest.raises(PreloadError, match=r"'/nowhere/libhrx.so', and there is no such file"):
        run()
    assert not (tmp_path / "log").exists()


def test_an_ignored_preload_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch, kfd: Path) -> None:
    """A file that is no library exists, and the loader's message says that it was left out."""
    kfd.write_text("no library", "utf-8")
    monkeypatch.setenv("LD_PRELOAD", str(kfd))
    with pytest.raises(PreloadError, match=f"the loader ignored '{kfd}'"):
        run()


def test_the_compiler_runs_without_the_preload(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both cells of a comparison run what the same compiler made, for the target that was asked for."""
    monkeypatch.setenv("HIP_STANDIN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    assert run(gpu_arch="gfx950").passed
    lines = (tmp_path / "log").read_text("utf-8").splitlines()
    assert [line.startswith("preload= --offload-arch=gfx950 ") for line in lines] == [True, True]


def test_a_missing_driver_is_a_setup_failure(hipcc: str, tmp_path: Path) -> None:
    """Without the device file nothing is compiled or run."""
    with pytest.raises(HipSetupError, match="nowhere is not there"):
        HrxWorkload({"hipcc": hipcc}, kfd=tmp_path / "nowhere").setup()


def test_the_build_folder_goes_unless_it_is_kept(run: Run, tmp_path: Path) -> None:
    """Each trial has its own below build_dir; keep_build leaves it, and the metric says where."""
    builds = tmp_path / "builds"
    assert run(build_dir=str(builds)).metrics["build_dir"] is None
    assert list(builds.iterdir()) == []
    kept = Path(run(build_dir=str(builds), keep_build=True).metrics["build_dir"])
    assert list(builds.iterdir()) == [kept]
    assert sorted(path.name for path in kept.iterdir()) == ["add_hundred", "launch_probe"]


def test_a_build_folder_that_cannot_be_made_is_named(run: Run, kfd: Path) -> None:
    """A file in the way is a setup failure with the setting's name."""
    with pytest.raises(HipSetupError, match=r"workload_config.build_dir is .*kfd"):
        run(build_dir=str(kfd))


def test_the_program_s_output_is_the_trial_s(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """save_logs keeps what the program wrote."""
    run()
    assert "aorta result 107\n" in capfd.readouterr().out


def test_defaults_are_the_documented_ones() -> None:
    """Module probe for gfx942, two minutes, nothing kept."""
    assert HrxConfig() == HrxConfig(
        probe="module", gpu_arch="gfx942", hipcc=None, build_dir=None, timeout_sec=120.0, keep_build=False
    )


def test_bad_settings_are_reported_before_anything_runs() -> None:
    """A misspelt probe and key are found in the plan."""
    problems = parse_config(HrxConfig, {"probe": "grph_add", "arch": "gfx942"}).problems
    assert [(problem.key, problem.code) for problem in problems] == [
        ("arch", "unknown_config_key"),
        ("probe", "bad_config_value"),
    ]
