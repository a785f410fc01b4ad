"""Every way a workload can end becomes a valid record with the right status and verdict."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

import pytest

from aorta.run.worker import ResolveError, find_reference

from .conftest import Runner, wait_for

BUILT_IN = [
    point for point in importlib.metadata.distribution("aorta").entry_points if point.group == "aorta.workloads"
]


def outcome(record: dict[str, Any]) -> tuple[str, str]:
    return record["exit_status"], record["verdict"]


def test_a_good_trial_passes(trial: Runner) -> None:
    """A workload that passes is ok, with its numbers and without an error."""
    record = trial("Noop")
    assert outcome(record) == ("ok", "pass")
    assert (record["error"], record["result"]["step_times_ms"]) == (None, [1.0, 2.0])


def test_a_dataclass_result_is_accepted(trial: Runner) -> None:
    """WorkloadResult itself passes as well as anything that looks like it."""
    assert outcome(trial("Dataclass")) == ("ok", "pass")


def test_a_failed_check_is_a_fail(trial: Runner) -> None:
    """passed=False is a fail, not an error, and keeps its details."""
    record = trial("Fails")
    assert outcome(record) == ("workload_failed", "fail")
    assert record["result"]["failure_details"] == [{"hint": "look"}]
    assert record["error"] is None


@pytest.mark.parametrize(("passed", "status"), [(True, "ok"), (False, "workload_failed")])
def test_main_work_that_did_not_start_is_an_error(trial: Runner, passed: bool, status: str) -> None:
    """A result whose main work never started is no verdict on the hardware."""
    record = trial("NeverStarted", workload_config={"passed": passed})
    assert (outcome(record), record["did_not_run"]) == ((status, "error"), True)


def test_a_constructor_that_raises_is_infrastructure(trial: Runner) -> None:
    """The constructor's exception is infrastructure_failed in phase construct."""
    record = trial("ConstructorRaises")
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["phase"], record["error"]["type"]) == ("construct", "ValueError")


def test_setup_that_raises_is_a_setup_failure_and_cleanup_is_called(trial: Runner) -> None:
    """setup()'s exception is workload_setup_failed, and what it took is released."""
    record = trial("SetupRaises")
    assert outcome(record) == ("workload_setup_failed", "error")
    assert record["error"]["phase"] == "setup"
    assert record["error"]["stderr_tail"] == ["cleanup was called"]


def test_run_that_raises_keeps_message_traceback_and_last_words(trial: Runner) -> None:
    """run()'s exception is infrastructure_failed and says what happened and where."""
    error = trial("RunRaises")["error"]
    assert (error["phase"], error["type"], error["message"]) == ("run", "ValueError", "went wrong \\ud800")
    assert error["stderr_tail"] == ["last words"]
    assert "aorta/run/worker.py" not in error["traceback"]
    assert "in run\n" in error["traceback"]


def test_cleanup_that_raises_does_not_change_the_verdict(trial: Runner) -> None:
    """A good run stays good; the cleanup's exception is recorded beside it."""
    record = trial("CleanupRaises")
    assert outcome(record) == ("ok", "pass")
    assert record["cleanup_error"] == "OSError: device busy"


@pytest.mark.parametrize("code", [0, 3, None, "bye"])
def test_sys_exit_in_run_is_an_error_whatever_its_code(trial: Runner, code: Any) -> None:
    """sys.exit(0) before a result is not a pass."""
    record = trial("Exits", workload_config={"code": code})
    assert outcome(record) == ("infrastructure_failed", "error")
    assert record["error"]["exit_code"] == (code if isinstance(code, int) else 0 if code is None else 1)


def test_sys_exit_in_setup_is_a_setup_failure(trial: Runner) -> None:
    """sys.exit() in setup() is an end of setup() like an exception."""
    assert trial("Exits", workload_config={"code": 1, "phase": "setup"})["exit_status"] == "workload_setup_failed"


@pytest.mark.parametrize("code", [0, 7])
def test_os_exit_in_run_is_an_error_whatever_its_code(trial: Runner, code: int) -> None:
    """A process that vanishes without a result is an error in phase process, with its status."""
    record = trial("Exits", workload_config={"code": code, "hard": True})
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["phase"], record["error"]["exit_code"]) == ("process", code)
    assert "during run()" in record["error"]["message"]


def test_os_exit_zero_in_cleanup_keeps_the_verdict(trial: Runner) -> None:
    """A workload may leave by os._exit(0) after its result; the record says so."""
    record = trial("Exits", workload_config={"code": 0, "hard": True, "phase": "cleanup"})
    assert outcome(record) == ("ok", "pass")
    assert "cleanup()" in record["cleanup_error"]


def test_os_exit_nonzero_in_cleanup_is_an_error_with_the_result(trial: Runner) -> None:
    """A non-zero exit after the result is a finding, and the numbers survive it."""
    record = trial("Exits", workload_config={"code": 9, "hard": True, "phase": "cleanup"})
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["exit_code"], record["result"]["passed"]) == (9, True)


@pytest.mark.parametrize("phase", ["setup", "run", "cleanup"])
@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_fatal_signal_is_named_with_its_phase(trial: Runner, signal: str, phase: str) -> None:
    """A process killed by a signal is infrastructure_failed, whatever it was doing."""
    record = trial("Killed", workload_config={"signal": signal, "phase": phase})
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["phase"], record["error"]["signal"]) == ("process", signal)
    assert f"during {phase}()" in record["error"]["message"]
    assert (record["result"] is not None) == (phase == "cleanup")


def test_a_segfault_leaves_the_python_stack(trial: Runner) -> None:
    """The tail of standard error names the Python function that crashed."""
    record = trial("Killed", workload_config={"signal": "SIGSEGV", "phase": "run"})
    assert any("in _die" in line for line in record["error"]["stderr_tail"])


def test_a_crash_at_interpreter_exit_keeps_the_numbers(trial: Runner) -> None:
    """A runtime that crashes while it is torn down is an error with the result kept."""
    record = trial("CrashesAtExit")
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["signal"], record["result"]["metrics"]) == ("SIGSEGV", {"kept": 1})
    assert "exit of the interpreter" in record["error"]["message"]


@pytest.mark.parametrize("what", ["none", "text", "int_passed", "type"])
def test_something_else_than_a_result_is_an_error(trial: Runner, what: str) -> None:
    """A return value without a boolean passed is a TypeError of run()."""
    record = trial("Returns", workload_config={"what": what})
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["phase"], record["error"]["type"]) == ("run", "TypeError")


def test_odd_values_become_json(trial: Runner) -> None:
    """numpy, torch, sets, cycles, NaN, huge things: all end as plain JSON, none loses the trial."""
    result = trial("OddValues")["result"]
    metrics = result["metrics"]
    assert (result["passed"], result["step_times_ms"]) == (True, [1.0, 3.0])
    assert (metrics["nan"], metrics["inf"]) == ("NaN", "-Infinity")
    assert (metrics["np"], metrics["np_int"], metrics["np_array"]) == (1.5, 7, [0, 1, 2])
    assert (metrics["tensor"], metrics["tensor_nan"]) == (2.5, [1.0, "NaN"])
    assert (metrics["set"], metrics["tuple"]) == ([1, 2, 3], [1, "a"])
    assert (metrics["1"], metrics["(1, 2)"], metrics["None"]) == ("int key", "tuple key", "none key")
    assert len(metrics["long"]) < 20_000


@pytest.mark.parametrize("workload", ["broken_fixture:Broken", "leaving_fixture:Any", "no_such_module:Any"])
def test_a_module_that_cannot_be_imported_is_a_setup_failure(trial: Runner, workload: str) -> None:
    """A missing module, inside the workload's or itself, is workload_setup_failed in phase resolve."""
    record = trial(workload)
    assert outcome(record) == ("workload_setup_failed", "error")
    assert record["error"]["phase"] == "resolve"


@pytest.mark.parametrize("reference", ["workloads_fixture:Gone", "workloads_fixture:NotAWorkload", ":Noop"])
def test_a_reference_that_leads_nowhere_is_a_setup_failure(trial: Runner, reference: str) -> None:
    """A missing class, one without run(), and a malformed reference are told as such."""
    record = trial(reference)
    assert outcome(record) == ("workload_setup_failed", "error")
    assert record["error"]["type"] == "ResolveError"


def test_an_unknown_name_lists_the_nearest(trial: Runner) -> None:
    """A name that no package registers is workload_setup_failed and says what was probably meant."""
    record = trial("Noop", workload_ref=None, workload="inferrence")
    assert outcome(record) == ("workload_setup_failed", "error")
    assert "did you mean 'inference'?" in record["error"]["message"]


@pytest.mark.parametrize("mode", ["distributed", "single_process"])
def test_too_few_ranks_names_the_two_ways_out(trial: Runner, mode: str) -> None:
    """A distributed workload that needs more ranks is refused before it runs, known to the plan or not."""
    launch = {"mode": mode, "min_world_size": 2 if mode == "distributed" else 1}
    record = trial("NeedsTwo", launch=launch)
    assert outcome(record) == ("workload_setup_failed", "error")
    assert "torchrun" in record["error"]["message"] and "nproc_per_node" in record["error"]["message"]


def test_a_vandal_cannot_spoil_the_report(trial: Runner) -> None:
    """Garbage on stdout, closed descriptors, another folder, patched modules: the result arrives."""
    assert outcome(trial("Vandal")) == ("ok", "pass")


def test_a_forked_copy_does_not_report(trial: Runner) -> None:
    """Only the worker itself reports, not a child that returns through the engine's code."""
    assert outcome(trial("Forks")) == ("ok", "pass")


def test_a_worker_that_hangs_at_exit_is_an_error_with_its_result(trial: Runner) -> None:
    """After its last report a worker gets a bounded time to exit."""
    trial.plan("HangsAtExit")
    shortened = (
        "import sys, aorta.run.ranks as p; p.TEARDOWN_SEC, p._POLL_SEC = 0.2, 0.1; "
        "from aorta.run.trial import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", shortened, *trial.command()[4:]]
    process = trial.start_command(command)
    wait_for(lambda: process.poll() is not None, "the supervisor to end")
    record = trial.record()
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["type"], record["result"]["passed"]) == ("timeout", True)


def test_a_worker_that_cannot_be_executed_is_a_result(trial: Runner) -> None:
    """An environment that is too large for the kernel ends as an error that says so."""
    record = trial("Noop", overlay={"LARGE": "x" * 3_000_000})
    assert outcome(record) == ("infrastructure_failed", "error")
    assert (record["error"]["phase"], "did not start" in record["error"]["message"]) == ("process", True)


def test_phases_add_up_to_the_wall_clock(trial: Runner) -> None:
    """Every phase is timed, and together they fit into the trial's time."""
    record = trial("Noop")
    assert all(seconds is not None for seconds in record["phases_sec"].values())
    assert sum(record["phases_sec"].values()) <= record["wall_clock_sec"]


def test_a_phase_that_was_not_reached_has_no_time(trial: Runner) -> None:
    """After a failed setup() there is no time for run()."""
    phases = trial("SetupRaises")["phases_sec"]
    assert (phases["run"], phases["setup"] is not None) == (None, True)


def test_memory_is_measured(trial: Runner) -> None:
    """The worker's peak resident memory is a plausible number of bytes."""
    assert 5e6 < trial("Noop")["peak_rss_bytes"] < 5e8


@pytest.mark.parametrize("name", sorted(point.name for point in BUILT_IN))
def test_an_installation_that_is_older_than_the_code_says_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A workload of the checkout that the installed entry points lack needs no plugin, but a new installation."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
    with pytest.raises(ResolveError, match="the installation is older than the code; run 'make install'"):
        find_reference(name)


@pytest.mark.parametrize("name", ["config", "base", "no_such", "not a name", "process_group"])
def test_what_is_no_workload_of_the_code_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A helper's module is none."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
    with pytest.raises(ResolveError, match="a plugin that registers it"):
        find_reference(name)
