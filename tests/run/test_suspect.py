"""Which of several hanging ranks stands out, from what each left when it was asked to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aorta.run.process import Ending
from aorta.run.suspect import account, silence, stands_out

TORCH = "/site-packages/torch/distributed/distributed_c10d.py"


def dump(*frames: str, thread: str = "Current thread") -> str:
    """A thread's stack as faulthandler writes it; each frame is ``file:line:function``."""
    lines = [f"{thread} 0x00007f0000000{len(thread):03x} (most recent call first):"]
    for frame in frames:
        file, line, function = frame.rsplit(":", 2)
        lines.append(f'  File "{file}", line {line} in {function}')
    return "\n".join(lines) + "\n"


def ending(exit_code: int | None = -15, state: str = "S") -> Ending:
    """How a rank ended that was asked to."""
    told = Ending(0.0)
    told.exit_code, told.state = exit_code, state
    return told


def calls(tmp_path: Path, line: str) -> str:
    """A frame whose source line is the given one."""
    path = tmp_path / f"code{len(list(tmp_path.iterdir()))}.py"
    path.write_text(line + "\n")
    return f"{path}:1:step"


HANGS = account(dump("/x/job/loop.py:7:_hang", "/x/job/loop.py:3:run"), ending())
WAITS = account(dump(f"{TORCH}:4000:all_reduce", "/x/job/loop.py:3:run"), ending())
SILENT = account("last words\n", ending(-9))
STOPPED = account("", ending(-9, "T"))
ENDED = account("no stack, but it left\n", ending())


@pytest.mark.parametrize(
    "line", ["self._work.wait()", "dist.all_reduce(x)", "torch.cuda.synchronize()", "all_gather_single(a, b)"]
)
def test_a_call_into_c_is_known_by_its_source_line(tmp_path: Path, line: str) -> None:
    """A collective's C++ frames are not in the stack, and the innermost Python frame is the caller's."""
    assert account(dump(calls(tmp_path, line)), ending())["doing"] == "waits"


def test_a_collective_on_another_thread_counts() -> None:
    """A backward pass waits on a thread of its own."""
    stderr = dump(f"{TORCH}:1:all_gather_into_tensor", thread="Thread") + "\n" + dump("/x/job/loop.py:7:backward")
    assert account(stderr, ending())["doing"] == "waits"


def test_only_the_last_dump_counts() -> None:
    """A stack that the workload itself left earlier says nothing of the end."""
    assert (
        account(dump(f"{TORCH}:1:barrier") + "went on\n" + dump("/x/a.py:2:sleep"), ending())["at"]
        == "sleep (x/a.py:2)"
    )


def test_a_stack_that_is_longer_than_the_tail_is_read_whole() -> None:
    """The innermost frames come first, so they are what a cut would take."""
    deep = [f"/x/deep.py:{n}:f{n}" for n in range(90)]
    assert account(dump("/x/job/loop.py:7:_hang", *deep), ending())["at"] == "_hang (job/loop.py:7)"


@pytest.mark.parametrize(
    ("accounts", "suspect", "hint"),
    [
        ([WAITS, HANGS], 1, "rank 1 is in _hang (job/loop.py:7); rank 0 waits in a collective"),
        ([WAITS, HANGS, WAITS], 1, "rank 1 is in _hang (job/loop.py:7); the others wait in a collective"),
        (
            [WAITS, SILENT],
            1,
            "rank 1 did not answer when asked for its stack (SIGTERM), and had to be killed; "
            "rank 0 waits in a collective",
        ),
        ([HANGS, STOPPED], 1, "rank 1 did not answer: it was stopped (SIGSTOP) and left no stack; "),
        ([STOPPED, STOPPED], None, "rank 0 did not answer: it was stopped"),
        (
            [SILENT, HANGS],
            None,
            "rank 0 did not answer when asked for its stack (SIGTERM), and had to be killed; rank 1 is in _hang",
        ),
        ([WAITS, WAITS], None, None),
        ([HANGS, HANGS], None, None),
        ([WAITS, ENDED], None, None),
        ([WAITS, HANGS, HANGS], None, None),
        ([WAITS, HANGS, ENDED], None, None),
    ],
)
def test_a_rank_is_named_only_where_one_stands_out(
    accounts: list[dict[str, Any]], suspect: int | None, hint: str | None
) -> None:
    """Two that are out of every collective, or one that nothing is known of, are not told apart."""
    found, said = stands_out(dict(enumerate(accounts)))
    assert found == suspect
    assert said is None if hint is None else (said or "").startswith(hint.removesuffix("; "))


def test_a_lone_process_that_is_stopped_is_said_to_be() -> None:
    """A trial of one process has nobody to name, but its missing stack has a reason."""
    assert silence(STOPPED) == "it did not answer: it was stopped (SIGSTOP) and left no stack"
    assert silence(HANGS) is None
