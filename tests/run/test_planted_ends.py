"""Ranks of ``race`` that a planted fault kills or stops in the middle of a collective, in real trials of two ranks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Runner, alive

ENDS = {
    "sigkill": ("process", "signal", "SIGKILL", None, "rank 1 of 2: killed by SIGKILL during run()"),
    "sigsegv": ("process", "signal", "SIGSEGV", None, "rank 1 of 2: killed by SIGSEGV during run()"),
    "exit": ("process", "exit", None, 1, "rank 1 of 2: the process ended with exit status 1 during run()"),
    "exception": ("run", "RuntimeError", None, None, "rank 1 of 2: planted fault: crash_rank on rank 1 at step 2"),
}


def race(trial: Runner, mode: str, fault: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Runs a small race trial whose rank 1 is struck at step 2; the limit is long, as torch takes its time to load."""
    config = {
        "mode": mode,
        "device": "cpu",
        "warmup_iterations": 1,
        "verify_iterations": 1000,
        "simulate_compute": False,
        "gemm_layers": 2,
        "inject": {**fault, "rank": 1, "step": 2},
    }
    launch = {"mode": "distributed", "nproc_per_node": 2, "min_world_size": 2}
    request = {"launch": launch, "workload": "race", "workload_config": config, **changes}
    return trial("aorta.workloads.race:RaceWorkload", **request)


def no_rank_lives(record: dict[str, Any]) -> bool:
    return not any(alive(rank["pid"]) for rank in record["ranks"])


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("mode", "how"), [("default", "sigkill"), ("ddp", "sigsegv"), ("fsdp", "exit"), ("fsdp", "exception")]
)
def test_a_rank_that_dies_ends_the_race_trial(trial: Runner, mode: str, how: str) -> None:
    """Within 5 s all is over, and the record names the rank, how it ended and its last lines, not who waited for it."""
    record = race(trial, mode, {"kind": "crash_rank", "how": how})
    phase, kind, signal, code, message = ENDS[how]
    error = record["error"]
    assert (record["exit_status"], record["verdict"]) == ("infrastructure_failed", "error")
    found = (error["phase"], error["type"], error["signal"], error["exit_code"])
    assert found == (phase, kind, signal, code)
    assert error["rank"] == 1 and error["message"].startswith(message)
    said = "\n".join(error["stderr_tail"])
    assert f"planted fault: crash_rank (inject[0]): rank 1, step 2, how {how}" in said
    # The strike comes right after the start of run(), so this is the time from the death to the end, and a bit.
    assert record["phases_sec"]["run"] < 5.0
    assert no_rank_lives(record)


@pytest.mark.e2e
def test_a_rank_that_hangs_ends_the_race_trial_at_its_limit(trial: Runner) -> None:
    """Nobody fails, as rank 0 waits in a collective: the limit ends both, and the record shows what each was doing."""
    for limit in (8.0, 25.0):  # the second for a machine so busy that torch was still loading
        record = race(trial, "fsdp", {"kind": "hang_rank"}, trial_timeout_sec=limit)
        if record["phases_sec"]["run"] is not None:
            break
    error = record["error"]
    assert (record["exit_status"], record["verdict"], error["type"]) == ("timed_out", "error", "timeout")
    assert error["message"].startswith(f"ranks 0, 1 of 2: the time limit of {limit:g} s")
    assert "during run()" in error["message"]
    assert error["rank"] == 1
    assert re.fullmatch(r"rank 1 is in _hang \(workloads/inject\.py:\d+\); rank 0 waits in a collective", error["hint"])
    assert limit <= record["wall_clock_sec"] < limit + 5.0
    of_rank = [[line for line in error["stderr_tail"] if line.startswith(f"[rank {rank}]")] for rank in (0, 1)]
    assert any("planted fault: hang_rank (inject[0]): rank 1, step 2" in line for line in of_rank[1])
    assert any("in _hang" in line for line in of_rank[1])
    assert any("in wait" in line or "in all_" in line for line in of_rank[0])
    assert [rank["ended_by"] for rank in record["ranks"]] == ["engine", "engine"]
    assert no_rank_lives(record)
