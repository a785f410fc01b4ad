"""Foreign tools cannot hang, flood, outlive or confuse the probe."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from aorta.instrumentation._tool import ToolResult, run_tool


def shell(script: str, timeout_sec: float = 5.0) -> ToolResult:
    """Runs a shell script as a tool."""
    return run_tool(["/bin/sh", "-c", script], env=dict(os.environ), timeout_sec=timeout_sec)


def alive(pid: int) -> bool:
    """Whether a process still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_and_status_come_back() -> None:
    """Both streams and a clean exit are reported."""
    result = shell("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.returncode, result.failure(5)) == ("out\n", "err\n", 0, None)


def test_a_hanging_tool_is_ended_with_its_children(tmp_path: Path) -> None:
    """The time limit ends the whole process group, and the failure names the limit."""
    started = time.monotonic()
    result = shell(f"sleep 60 & echo $! > {tmp_path}/child; wait", timeout_sec=0.3)
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert result.failure(0.3) == "did not end within 0.3 s"
    assert not alive(child)
    assert time.monotonic() - started < 10


def test_a_daemon_that_keeps_the_pipe_open_does_not_hold_the_probe() -> None:
    """A tool that ended is not waited for until its daemon closes the pipe."""
    started = time.monotonic()
    result = shell("echo said; sleep 20 & echo $! >&2", timeout_sec=15)
    os.kill(int(result.stderr), 9)
    assert (result.stdout, result.returncode) == ("said\n", 0)
    assert time.monotonic() - started < 10


def test_a_flood_of_output_is_cut_at_one_mebibyte() -> None:
    """An endless writer costs bounded memory and still ends."""
    result = shell("head -c 5000000 /dev/zero")
    assert (len(result.stdout), result.returncode) == (1 << 20, 0)


def test_bytes_that_are_no_text_are_replaced() -> None:
    """Output that is not UTF-8 does not raise."""
    assert shell(r"printf 'a\377b'").stdout == "a\ufffdb"


def test_a_signal_is_named() -> None:
    """A tool that crashed is told from one that exited."""
    assert shell("kill -SEGV $$").failure(5) == "was ended by SIGSEGV"


def test_the_last_line_of_the_complaint_is_quoted() -> None:
    """A failing tool's own words are part of the reason."""
    assert shell("echo first >&2; echo 'no device' >&2; exit 3").failure(5) == "exited with 3: no device"


def test_messages_are_in_the_c_locale() -> None:
    """Parsers of tool output see English."""
    assert shell("echo $LC_ALL").stdout == "C\n"


def test_a_missing_program_raises_oserror() -> None:
    """Nothing is invented for a program that does not exist."""
    with pytest.raises(FileNotFoundError):
        run_tool(["/nonexistent/tool"], env={}, timeout_sec=1)
