"""What a trial writes: kept in files when asked for, bounded when not."""

from __future__ import annotations

import os

from aorta.run.output import TAIL_BYTES, TAIL_LINES, ErrorOutput, tail_lines

from .conftest import Runner


def test_save_logs_keeps_everything_that_was_written(trial: Runner) -> None:
    """Python's, C's and subprocesses' output are in the two files beside the record."""
    record = trial("Prints", save_logs=True)
    assert record["logs"] == {"stdout": "trial_d0_m0_t0.stdout.log", "stderr": "trial_d0_m0_t0.stderr.log"}
    assert sorted(trial.path(record["logs"]["stdout"]).read_text().split("\n")) == ["", "child out", "python out"]
    assert trial.path(record["logs"]["stderr"]).read_text() == "python err\nchild err\n"


def test_another_attempt_overwrites_the_logs(trial: Runner) -> None:
    """The logs are those of the attempt that wrote the record."""
    for _ in range(2):
        trial("Prints", save_logs=True)
    assert trial.path("trial_d0_m0_t0.stderr.log").read_text() == "python err\nchild err\n"


def test_without_save_logs_only_the_record_is_left(trial: Runner) -> None:
    """Nothing but the trial's record lies in its folder."""
    trial("Prints")
    assert [path.name for path in trial.path("x").parent.iterdir()] == ["trial_d0_m0_t0.json"]


def test_a_chatty_worker_leaves_a_bounded_tail(trial: Runner) -> None:
    """Tens of megabytes of output end as the last lines, undecodable bytes replaced."""
    tail = trial("Chatty")["error"]["stderr_tail"]
    assert tail[-1] == "\N{REPLACEMENT CHARACTER} the end"
    assert len(tail) == TAIL_LINES


def test_the_tail_is_read_from_the_log_too(trial: Runner) -> None:
    """With save_logs the last words are both in the log and in the record."""
    record = trial("RunRaises", save_logs=True)
    assert record["error"]["stderr_tail"] == ["last words"]


def test_tail_lines_cuts_long_lines() -> None:
    """One line that is longer than the whole room is cut at its front."""
    (line,) = tail_lines(b"x" * (2 * TAIL_BYTES) + b"end\n")
    assert (len(line), line[-3:]) == (TAIL_BYTES, "end")


def test_tail_lines_keeps_whole_lines_within_the_room() -> None:
    """Lines that do not fit are dropped from the front."""
    lines = tail_lines(b"\n".join([b"a" * 3000] * 5))
    assert lines == ["a" * 3000] * 2


def test_the_ring_keeps_the_end() -> None:
    """What is read from the pipe is bounded, and its end is kept."""
    output = ErrorOutput()
    for _ in range(8):
        os.write(output.stderr, b"y" * 32_000)
        output.drain()
    os.write(output.stderr, b"\nlast\n")
    output.drain()
    output.release()
    assert output.tail()[-1] == "last"


def test_ending_a_forked_helper_leaves_no_stack_in_the_log(trial: Runner) -> None:
    """The stack that SIGTERM leaves at the time limit is the worker's alone."""
    record = trial("EndsHelper", save_logs=True)
    assert record["result"]["metrics"]["status"] == 15
    assert trial.path("trial_d0_m0_t0.stderr.log").read_text() == ""
