"""How a command's end, hang, host and the recipe's own patterns make its verdict (tiers 1, 2, 3 and 5)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from aorta.probe import patterns
from aorta.probe.classify import classify
from aorta.probe.observe import Hang, Observation
from aorta.probe.patterns import MAX_STEPS
from aorta.probe.settings import ProbeSettings

from .conftest import Judge

TRACEBACK = """\
Traceback (most recent call last):
  File "/w/train.py", line 88, in <module>
    main()
  File "/w/train.py", line 41, in main
    raise ValueError("bad shard")
ValueError: bad shard
"""


@pytest.mark.parametrize(
    ("code", "detectors"),
    [
        (1, ["exit_nonzero"]),
        (-11, ["exit_nonzero", "sigsegv"]),
        (139, ["exit_nonzero", "sigsegv"]),
        (-6, ["exit_nonzero", "sigabrt"]),
        (134, ["exit_nonzero", "sigabrt"]),
        (-7, ["exit_nonzero", "sigbus"]),
        (135, ["exit_nonzero", "sigbus"]),
        (-9, ["exit_nonzero"]),
        (0, []),
    ],
)
def test_an_exit_code_fires(judge: Judge, code: int, detectors: list[str]) -> None:
    """Signals count by themselves and as a shell reports them."""
    result = judge("done\n", exit_code=code)
    assert (result.failure_detectors_fired, result.verdict) == (detectors, "fail" if detectors else "pass")


def test_a_timeout_alone_is_an_error(judge: Judge) -> None:
    """The signal that the supervisor sent is no fault of the command."""
    result = judge("step 1\n", exit_code=-9, timed_out=True, walltime_sec=60.0)
    assert (result.verdict, result.error_detectors_fired, result.failure_detectors_fired) == ("error", ["timeout"], [])


def test_a_timeout_with_an_error_in_the_log_fails(judge: Judge) -> None:
    """fail is more than error."""
    result = judge("loss: nan\n", exit_code=-9, timed_out=True)
    assert (result.verdict, result.error_detectors_fired) == ("fail", ["timeout"])


@pytest.mark.parametrize(
    "observed", [{"exec_error": "no such file", "exit_code": None}, {"exit_code": 127}, {"exit_code": 126}]
)
def test_a_command_that_cannot_start_is_an_error(judge: Judge, observed: dict[str, Any]) -> None:
    """Neither the supervisor's nor a shell's failure to start it is a reproduced fault."""
    result = judge(**observed)
    assert (result.verdict, result.error_detectors_fired) == ("error", ["exec_failed"])


def test_a_core_dump_is_seen_by_the_wait_status_and_by_the_shell(judge: Judge) -> None:
    """A shell that goes on after its program died says so."""
    assert "coredump" in judge(exit_code=-11, core_dumped=True).failure_detectors_fired
    result = judge(stderr="run.sh: line 3:   712 Segmentation fault      (core dumped) python train.py\n", exit_code=1)
    assert result.failure_detectors_fired == ["exit_nonzero", "sigsegv", "coredump"]


def test_torchrun_reports_its_workers_signal(judge: Judge) -> None:
    """The launcher itself ends with 1."""
    stderr = (
        "  exitcode  : -11 (pid: 4242)\n  error_file: <N/A>\n  traceback : Signal 11 (SIGSEGV) received by PID 4242\n"
    )
    assert judge(stderr=stderr, exit_code=1).failure_detectors_fired == ["exit_nonzero", "sigsegv"]
    assert judge(stderr=stderr, exit_code=0).verdict == "pass"


def test_a_hang_fails(judge: Judge) -> None:
    """And its signal is not counted again."""
    hang = Hang(95.0, {"output": 31.0, "io": 30.5}, {"gpu": "no GPU"})
    result = judge("step 1\n", exit_code=-9, hang=hang)
    assert result.failure_detectors_fired == ["hang"]
    assert result.capture["hang"]["quiet_sec"] == {"output": 31.0, "io": 30.5}
    assert judge("step 1\n", exit_code=-9, hang=hang, settings={"disable_detectors": ["hang"]}).verdict == "pass"


def test_a_traceback_of_a_failed_command_fails(judge: Judge) -> None:
    """Where it stands does not matter then."""
    result = judge(stderr=TRACEBACK + "cleaning up\n" * 30, exit_code=1)
    assert result.failure_detectors_fired == ["exit_nonzero", "python_traceback"]
    assert result.capture["python_traceback"]["line"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "step 1\n" + TRACEBACK,
        "step 1\n" + "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()),
        TRACEBACK + "HIP kernel errors might be asynchronously reported at some other API call\n" * 5,
        TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK,
        TRACEBACK + "+ echo finished\nfinished\n",
    ],
)
def test_a_last_traceback_fails_though_a_script_lost_the_exit_code(judge: Judge, text: str) -> None:
    """``python train.py | tee log`` ends with 0."""
    assert judge(text).failure_detectors_fired == ["python_traceback"]


@pytest.mark.parametrize(
    "text",
    [
        TRACEBACK + "".join(f"step {step}\n" for step in range(20)),
        "2026-01-01 12:00:01,5 ERROR trainer: upload of metrics failed\n" + TRACEBACK,
        "Exception in thread Thread-3 (monitor):\n" + TRACEBACK,
    ],
)
def test_a_handled_traceback_warns(judge: Judge, text: str) -> None:
    """The command went on and ended with 0."""
    result = judge(text)
    assert (result.verdict, result.warn_detectors_fired) == ("pass", ["python_traceback"])


def test_a_traceback_is_handled_if_the_other_log_goes_on(judge: Judge, tmp_path: Path) -> None:
    """Errors go to standard error and progress to standard output; the times of the files tell which came last."""
    judge("step 1\nstep 2\n", TRACEBACK)
    os.utime(tmp_path / "stderr.log", (time.time() - 60, time.time() - 60))
    observation = Observation(stdout_path=str(tmp_path / "stdout.log"), stderr_path=str(tmp_path / "stderr.log"))
    assert classify(observation, ProbeSettings()).warn_detectors_fired == ["python_traceback"]


def test_a_finalisers_traceback_is_nothing(judge: Judge) -> None:
    """The interpreter prints those at its end."""
    assert judge(stderr="Exception ignored in: <function Pool.__del__ at 0x7f>\n" + TRACEBACK).capture == {}


def test_kernel_events_fire(judge: Judge) -> None:
    """Each kind once, with its first line and their number."""
    events = [
        ("vm_l2_fault", "page fault one"),
        ("vm_l2_fault", "page fault two"),
        ("amdgpu_reset", "GPU reset begin!"),
    ]
    result = judge(kernel_events=events)
    assert result.failure_detectors_fired == ["vm_l2_fault", "amdgpu_reset"]
    assert result.capture["vm_l2_fault"] == {"count": 2, "excerpt": "page fault one"}


def test_memory_growth_warns_when_asked_for(judge: Judge) -> None:
    """It is off by default, true means 1024 MiB, and a number is a limit in MiB."""
    assert judge(vram_growth_mib=5000.0).warn_detectors_fired == []
    assert judge(vram_growth_mib=5000.0, settings={"tier3_vram_growth": True}).warn_detectors_fired == ["vram_growth"]
    assert judge(vram_growth_mib=900.0, settings={"tier3_vram_growth": True}).warn_detectors_fired == []
    assert judge(vram_growth_mib=900.0, settings={"tier3_vram_growth": 512}).verdict == "pass"


def test_throttling_warns(judge: Judge) -> None:
    """A hot device is worth knowing, and no failure."""
    result = judge(throttled={"gpu 0": "hbm_thermal"})
    assert (result.verdict, result.warn_detectors_fired) == ("pass", ["thermal_throttle"])


def test_what_could_not_be_read_is_said(judge: Judge) -> None:
    """Never guessed: the reason is in the capture."""
    result = judge(unavailable={"tier3.kernel_log": "/dev/kmsg: Permission denied"})
    assert result.capture == {"unavailable": {"tier3.kernel_log": "/dev/kmsg: Permission denied"}}


def pattern(**data: Any) -> dict[str, Any]:
    """Settings of one pattern."""
    return {"custom_patterns": [{"id": "mine", **data}]}


@pytest.mark.parametrize(
    ("on_match", "fired"),
    [("fail", "failure_detectors_fired"), ("warn", "warn_detectors_fired")],
)
def test_a_pattern_fires_as_it_says(judge: Judge, on_match: str, fired: str) -> None:
    """The match is captured with log, line and what the group took."""
    result = judge("ok\nscore=7 end\n", settings=pattern(match={"regex": r"score=(\d+)"}, on_match=on_match))
    assert getattr(result, fired) == ["mine"]
    assert result.capture["mine"] == {
        "log": "stdout", "line": 2, "excerpt": "score=7 end", "count": 1, "captured": "7",
    }  # fmt: skip


def test_an_info_pattern_only_records(judge: Judge) -> None:
    """Nothing fires."""
    result = judge("score=7\n", settings=pattern(match={"regex": "score"}, on_match="info"))
    assert (result.verdict, result.warn_detectors_fired, result.capture["mine"]["line"]) == ("pass", [], 1)


def test_a_condition_judges_each_match(judge: Judge) -> None:
    """The first line whose capture satisfies it is the match."""
    settings = pattern(match={"regex": r"loss=(\S+)", "condition": "math.isnan(capture) or capture > 10"})
    assert judge("loss=1.5\nloss=2\n", settings=settings).verdict == "pass"
    assert judge("loss=1.5\nloss=11\n", settings=settings).capture["mine"]["line"] == 2
    result = judge("loss=1.5\nloss=nan\n", settings=settings)
    assert result.verdict == "fail"
    json.dumps(result.to_json(), allow_nan=False)


def test_a_condition_without_a_regex_judges_the_trial(judge: Judge) -> None:
    """Of what was not measured nothing holds."""
    settings = pattern(match={"condition": "walltime_sec > 100 or peak_vram_mib > 1000"})
    assert judge(walltime_sec=120.0, settings=settings).failure_detectors_fired == ["mine"]
    assert judge(walltime_sec=20.0, settings=settings).verdict == "pass"


def test_a_required_pattern_must_match(judge: Judge) -> None:
    """Its match is no fault, its absence is one."""
    settings = pattern(match={"regex": "^Training finished"}, required_for_pass=True)
    assert judge("Training finished\n", settings=settings).verdict == "pass"
    assert judge("Training\n", settings=settings).failure_detectors_fired == ["mine"]


@pytest.mark.parametrize("observed", [{"timed_out": True, "exit_code": -9}, {"exit_code": 127}])
def test_a_command_that_was_cut_is_not_asked_for_its_last_line(judge: Judge, observed: dict[str, Any]) -> None:
    """A timeout stays an error."""
    settings = pattern(match={"regex": "finished"}, required_for_pass=True)
    assert judge(settings=settings, **observed).verdict == "error"


def test_a_catastrophic_pattern_is_given_up(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when it has had its time, the check counts as not made, and the others go on."""
    monkeypatch.setattr(patterns, "BASE_SEC", 0.25)
    settings: dict[str, Any] = {
        "custom_patterns": [
            {"id": "slow", "match": {"regex": r"(a+)+$"}},
            {"id": "quick", "match": {"regex": "needle"}, "on_match": "warn"},
        ]
    }
    started = time.process_time()
    result = judge("a" * 4000 + "!\nneedle\n", settings=settings)
    assert time.process_time() - started < 5
    assert (result.error_detectors_fired, result.warn_detectors_fired) == (["slow"], ["quick"])
    assert "line 1 of stdout" in result.capture["slow"]["excerpt"]


@pytest.mark.parametrize(
    ("regex", "text", "expected"),
    [
        (r"step_time: ([\d.]+) ms", "step_time: 12.5 ms\nother\nstep_time: 13 ms\n", [12.5, 13.0]),
        (r"took (?P<sec>[\d.]+)s", "took 0.5s\n", [500.0]),
        (r"t=(\S+)", "t=nan\nt=-1\nt=x\nt=2\n", [2.0]),
    ],
)
def test_step_times_are_found(judge: Judge, regex: str, text: str, expected: list[float]) -> None:
    """In milliseconds; the group's name may say another unit; what is no time is passed over."""
    assert judge(text, settings={"step_time_regex": regex}).step_times_ms == expected


def test_step_times_are_bounded(judge: Judge) -> None:
    """What is dropped is counted."""
    result = judge("t=1\n" * (MAX_STEPS + 5), settings={"step_time_regex": r"t=(\d)"})
    assert (len(result.step_times_ms), result.capture["step_times"]["dropped"]) == (MAX_STEPS, 5)


def test_every_tier_has_its_duration(judge: Judge) -> None:
    """The whole classification has a JSON form."""
    result = judge("x\n", durations_ms={"tier2": 4.0}).to_json()
    assert list(result["tier_durations_ms"]) == ["tier1", "tier2", "tier3", "tier4", "tier5"]
    assert result["tier_durations_ms"]["tier2"] >= 4.0
    json.dumps(result, allow_nan=False)
