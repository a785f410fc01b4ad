"""Trials of several ranks: what each rank is given, how they end together, and what the record says."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import Runner, alive, wait_for

TWO = {"mode": "distributed", "nproc_per_node": 2}


def run_ranks(trial: Runner, name: str, *options: str, ranks: int = 2, **changes: Any) -> dict[str, Any]:
    launch = {**TWO, "nproc_per_node": ranks}
    return trial(f"ranks_fixture:{name}", *options, launch=launch, **changes)


def left(folder: Path, name: str, ranks: int = 2) -> list[Any]:
    """What each rank left in the folder."""
    paths = [folder / f"{name}{rank}" for rank in range(ranks)]
    wait_for(lambda: all(path.exists() for path in paths), f"the ranks to leave {name}")
    return [json.loads(path.read_text()) for path in paths]


def everybody(folder: Path) -> list[int]:
    """The ids of all processes of the trial."""
    return [pid for pids in left(folder, "pids") for pid in pids]


def test_ranks_meet_where_the_launcher_says(trial: Runner) -> None:
    """Three ranks know their numbers and find each other on the trial's port."""
    told = run_ranks(trial, "Meets", ranks=3)["result"]["metrics"]["told"]
    assert [entry["rank"] for entry in told] == [1, 2]
    env = told[1]["env"]
    assert 1024 < int(env.pop("MASTER_PORT")) < 32768
    assert list(env.values()) == ["2", "3", "2", "3", "127.0.0.1"]


def test_the_record_lists_the_ranks(trial: Runner) -> None:
    """Each rank's process, end, memory and device are there; rank 0's process is the trial's."""
    record = run_ranks(trial, "Meets")
    assert [(rank["rank"], rank["exit"], rank["ended_by"]) for rank in record["ranks"]] == [
        (0, 0, "itself"),
        (1, 0, "itself"),
    ]
    assert record["ranks"][0]["pid"] == record["pid"] != record["ranks"][1]["pid"]
    assert all(rank["peak_rss_bytes"] > 5e6 and rank["device"]["kind"] == "cpu" for rank in record["ranks"])


def test_a_single_process_trial_has_no_ranks(trial: Runner) -> None:
    """The table is null for a workload that is not distributed."""
    assert trial("Noop")["ranks"] is None


ENDS = {
    "raise": ("run", "ValueError", "rank 1 of 2: went wrong", None),
    "exit": ("process", "exit", "rank 1 of 2: the process ended with exit status 7 during run()", 7),
    "kill": ("process", "signal", "rank 1 of 2: killed by SIGKILL during run()", None),
}


@pytest.mark.parametrize("end", ENDS)
def test_one_rank_that_dies_ends_all(trial: Runner, tmp_path: Path, end: str) -> None:
    """Whatever the death, within 5 s nothing is left, and the record names the rank, how, and its last words."""
    config = {"folder": str(tmp_path), "rank": 1, "end": end, "grandchild": True, "stubborn": True}
    record = run_ranks(trial, "EndsOn", workload_config=config)
    phase, kind, message, code = ENDS[end]
    error = record["error"]
    assert (record["exit_status"], record["verdict"]) == ("infrastructure_failed", "error")
    assert (error["phase"], error["type"], error["rank"], error["exit_code"]) == (phase, kind, 1, code)
    assert error["message"].startswith(message)
    assert "last words of rank 1" in error["stderr_tail"]
    assert record["wall_clock_sec"] < 5.0
    assert not any(alive(pid) for pid in everybody(tmp_path))
    assert record["ranks"][0]["ended_by"] == "engine"


def test_a_rank_that_hangs_is_found_when_the_others_have_ended(trial: Runner, tmp_path: Path) -> None:
    """Rank 1 sleeps on after rank 0 has returned: it is ended long before the limit, and named."""
    config = {"folder": str(tmp_path), "rank": 1, "end": "hang", "others": "return"}
    record = run_ranks(trial, "EndsOn", workload_config=config)
    assert (record["exit_status"], record["error"]["type"], record["error"]["rank"]) == (
        "infrastructure_failed",
        "hang",
        1,
    )
    assert record["error"]["message"].startswith("rank 1 of 2: it did nothing more")
    assert record["wall_clock_sec"] < 5.0 and record["result"]["passed"] is True
    assert any("in run" in line for line in record["error"]["stderr_tail"])


def test_the_time_limit_ends_all_ranks_and_shows_where_each_was(trial: Runner, tmp_path: Path) -> None:
    """When nobody has failed or ended, all ranks are named, with the stack of each."""
    config = {"folder": str(tmp_path), "rank": 1, "end": "hang", "grandchild": True}
    record = run_ranks(trial, "EndsOn", workload_config=config, trial_timeout_sec=1.5)
    error = record["error"]
    assert (record["exit_status"], error["rank"]) == ("timed_out", None)
    assert error["message"].startswith("ranks 0, 1 of 2: the time limit of 1.5 s")
    assert {line[:8] for line in error["stderr_tail"]} == {"[rank 0]", "[rank 1]"}
    assert not any(alive(pid) for pid in everybody(tmp_path))


def test_a_stopped_rank_is_named_at_the_time_limit(trial: Runner, tmp_path: Path) -> None:
    """A process that SIGSTOP holds cannot show its stack; the record says that instead, and whose it is."""
    config = {"folder": str(tmp_path), "rank": 1, "end": "stop"}
    error = run_ranks(trial, "EndsOn", workload_config=config, trial_timeout_sec=1.5)["error"]
    assert error["message"].startswith("ranks 0, 1 of 2: the time limit of 1.5 s")
    assert error["rank"] == 1
    assert error["hint"].startswith("rank 1 did not answer: it was stopped (SIGSTOP) and left no stack")


def test_ranks_that_all_ignore_the_request_for_their_stack_are_not_told_apart(trial: Runner, tmp_path: Path) -> None:
    """Each is said to have been silent, and none is named."""
    config = {"folder": str(tmp_path), "rank": 1, "end": "hang", "stubborn": True}
    error = run_ranks(trial, "EndsOn", workload_config=config, trial_timeout_sec=1.5)["error"]
    assert error["rank"] is None
    assert error["hint"].count("did not answer when asked for its stack") == 2


def test_the_death_is_the_cause_and_the_exception_after_it_is_not(trial: Runner, tmp_path: Path) -> None:
    """A rank that notices its peer's death does not take the blame, whoever is seen first."""
    error = run_ranks(trial, "EndsTogether", workload_config={"folder": str(tmp_path)})["error"]
    assert (error["rank"], error["signal"]) == (1, "SIGKILL")
    assert "after it failed rank 0 (ConnectionError: connection closed by peer)" in error["hint"]


def test_a_setup_that_raises_is_a_setup_failure_of_that_rank(trial: Runner) -> None:
    """The first failing rank's phase decides the status."""
    record = trial("SetupRaises", launch=TWO)
    assert (record["exit_status"], record["error"]["phase"]) == ("workload_setup_failed", "setup")
    assert record["error"]["rank"] in (0, 1)


def test_what_all_ranks_say_alike_is_said_once(trial: Runner) -> None:
    """A setup that fails on every rank for one reason names them all, and repeats nothing in the hint."""
    error = trial("SetupRaises", launch=TWO)["error"]
    assert error["message"].startswith("ranks 0, 1 of 2: ")
    assert "after" not in (error["hint"] or "")


def test_a_failure_that_only_rank_1_saw_fails_the_trial(trial: Runner) -> None:
    """Rank 0 passed: the trial fails all the same, and the failure names rank and step."""
    found = {"passed": False, "failure_count": 2, "first_failure_iteration": 3, "failure_details": [{"hint": "off"}]}
    record = run_ranks(trial, "Results", workload_config={"results": {"1": found}})
    result = record["result"]
    assert (record["exit_status"], record["verdict"], result["passed"]) == ("workload_failed", "fail", False)
    assert (result["failure_count"], result["first_failure_iteration"]) == (2, 3)
    assert result["failure_details"] == [{"rank": 1, "step": 3, "hint": "rank 1, step 3: off"}]
    assert result["metrics"] == {"rank": 0}


def test_only_rank_0_is_asked_for_files_and_logged(trial: Runner, tmp_path: Path) -> None:
    """With save_logs rank 0's output is kept and rank 0 alone gets the keys."""
    record = run_ranks(trial, "Speaks", workload_config={"folder": str(tmp_path)}, save_logs=True)
    zero, one = left(tmp_path, "keys")
    assert {"_aorta_save_logs", "_aorta_log_prefix"} <= set(zero) - set(one)
    assert sorted(path.name for path in trial.path("x").parent.glob("*.log")) == sorted(record["logs"].values())
    assert trial.path(record["logs"]["stdout"]).read_text() == "out of rank 0\n"
    assert record["ranks"][1]["logs"] is None


def test_the_logs_of_all_ranks_on_request(trial: Runner, tmp_path: Path) -> None:
    """With rank_logs each rank's output is kept under its number."""
    record = run_ranks(trial, "Speaks", workload_config={"folder": str(tmp_path)}, rank_logs=True)
    logs = record["ranks"][1]["logs"]
    assert logs == {"stdout": "trial_d0_m0_t0.rank1.stdout.log", "stderr": "trial_d0_m0_t0.rank1.stderr.log"}
    assert trial.path(logs["stderr"]).read_text() == "err of rank 1\n"
    assert trial.path("trial_d0_m0_t0.stdout.log").read_text() == "out of rank 0\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_ends_all_ranks(trial: Runner, tmp_path: Path, signum: signal.Signals) -> None:
    """The supervisor leaves without a record, and without any process."""
    config = {"folder": str(tmp_path), "rank": 1, "end": "hang", "grandchild": True, "stubborn": True}
    trial.plan("ranks_fixture:EndsOn", launch=TWO, workload_config=config)
    supervisor = trial.start()
    pids = everybody(tmp_path)
    supervisor.send_signal(signum)
    trial.finish(supervisor)
    assert supervisor.returncode == 128 + signum
    assert not any(alive(pid) for pid in pids)


def test_the_ranks_die_with_a_killed_supervisor(trial: Runner, tmp_path: Path) -> None:
    """SIGKILL of the supervisor takes every rank with it."""
    config = {"folder": str(tmp_path), "rank": 1, "end": "hang", "stubborn": True}
    trial.plan("ranks_fixture:EndsOn", launch=TWO, workload_config=config)
    supervisor = trial.start()
    pids = everybody(tmp_path)
    supervisor.kill()
    trial.finish(supervisor)
    wait_for(lambda: not any(alive(pid) for pid in pids), "the ranks to die")


NAMES = ["NCCL_PROTO", "NCCL_DEBUG", "OMP_NUM_THREADS"]


def environments(trial: Runner, folder: Path, **changes: Any) -> list[dict[str, dict[str, str | None]]]:
    for path in folder.glob("env*"):
        path.unlink()
    run_ranks(trial, "Witness", workload_config={"folder": str(folder), "names": NAMES}, **changes)
    return left(folder, "env")


def test_import_time_variables_are_there_at_exec_on_each_rank(trial: Runner, tmp_path: Path) -> None:
    """A cell's variables precede the interpreter's first instruction on every rank; the next cell does not see them."""
    overlay = {"NCCL_PROTO": "LL", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2"}
    assert environments(trial, tmp_path, overlay=overlay) == [{"exec": overlay, "import": overlay}] * 2
    default = {"NCCL_PROTO": None, "NCCL_DEBUG": None, "OMP_NUM_THREADS": "1"}
    assert environments(trial, tmp_path) == [{"exec": default, "import": default}] * 2


def test_the_users_thread_count_beats_the_default(trial: Runner, tmp_path: Path) -> None:
    """Ranks on one host get one OpenMP thread each, as under torchrun, unless the user's environment says otherwise."""
    trial.env["OMP_NUM_THREADS"] = "3"
    assert [seen["exec"]["OMP_NUM_THREADS"] for seen in environments(trial, tmp_path)] == ["3", "3"]


def test_an_outer_launchers_variables_do_not_leak(trial: Runner) -> None:
    """RANK and the like from where the sweep was started reach no trial, nor does what torchrun sets besides."""
    outer = {"RANK": "3", "MASTER_ADDR": "elsewhere", "TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_RANK": "1"}
    trial.env.update(outer)
    seen = trial("Environ", workload_config={"names": list(outer)})["result"]["metrics"]["exec"]
    assert seen == {}
    told = run_ranks(trial, "Meets")["result"]["metrics"]["told"]
    assert told[0]["env"]["MASTER_ADDR"] == "127.0.0.1"


def test_a_failing_rank_ends_the_trial_soon_also_when_it_cleans_up_in_vain(trial: Runner, tmp_path: Path) -> None:
    """The time from the failure to the record is bounded by the graces, not by the peers."""
    config = {"folder": str(tmp_path), "rank": 0, "end": "raise"}
    begin = time.monotonic()
    record = run_ranks(trial, "EndsOn", workload_config=config)
    assert time.monotonic() - begin < 5.0
    assert record["error"]["rank"] == 0


def test_a_rank_that_works_on_after_the_others_is_waited_for(trial: Runner, tmp_path: Path) -> None:
    """Longer than an idle rank is given: one that uses the processor may be busy, and its result counts."""
    config = {"folder": str(tmp_path), "rank": 1, "seconds": 4.5}
    record = run_ranks(trial, "WorksOn", workload_config=config)
    assert (record["exit_status"], record["verdict"]) == ("ok", "pass")
    assert record["wall_clock_sec"] > 4.5
