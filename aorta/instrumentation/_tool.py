"""Runs one foreign tool so that it can neither hang, flood nor outlive the probe."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LIMIT_BYTES = 1 << 20
# A tool stuck in the kernel on a hung GPU cannot be killed; it is left behind rather than waited for.
_REAP_SEC = 0.5
# Output that is still in the pipe when the tool has ended; a daemon it left behind may hold the pipe open for good.
_DRAIN_SEC = 0.2


class ToolResult:
    """How a tool ended.

    Attributes:
        stdout: Standard output, at most 1 MiB, decoded as UTF-8 with replacement characters.
        stderr: Standard error, likewise.
        returncode: Exit status; negative for a signal; None when it was still running at its time limit.
    """

    def __init__(self, stdout: str, stderr: str, returncode: int | None) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.returncode = returncode

    def failure(self, timeout_sec: float) -> str | None:
        """Returns why the tool's output cannot be trusted, or None."""
        if self.returncode is None:
            return f"did not end within {timeout_sec:g} s"
        if self.returncode == 0:
            return None
        last = self.stderr.strip().splitlines()[-1:] or self.stdout.strip().splitlines()[-1:]
        said = f": {last[0].strip()[:200]}" if last else ""
        if self.returncode < 0:
            return f"was ended by {_signal_name(-self.returncode)}{said}"
        return f"exited with {self.returncode}{said}"


def run_tool(argv: Sequence[str], *, env: Mapping[str, str], timeout_sec: float, c_locale: bool = True) -> ToolResult:
    """Runs ``argv`` in a session of its own, reads at most 1 MiB of each stream, and ends it at the time limit.

    Args:
        argv: Program and arguments; no shell.
        env: The whole environment of the tool.
        timeout_sec: Time limit in seconds.
        c_locale: Whether to add ``LC_ALL=C``, so that messages can be parsed.

    Raises:
        OSError: The program cannot be started.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**env, "LC_ALL": "C"} if c_locale else dict(env),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout_sec
    chunks: dict[int, list[bytes]] = {process.stdout.fileno(): [], process.stderr.fileno(): []}
    kept = dict.fromkeys(chunks, 0)
    drain_until: float | None = None
    with selectors.DefaultSelector() as selector:
        for descriptor in chunks:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            now = time.monotonic()
            if drain_until is None and process.poll() is not None:
                drain_until = now + _DRAIN_SEC
            if now >= (deadline if drain_until is None else drain_until):
                break
            for key, _ in selector.select(0.05):
                data = _read(key.fd)
                if data == b"":
                    selector.unregister(key.fd)
                elif data is not None and kept[key.fd] < _LIMIT_BYTES:
                    chunks[key.fd].append(data)
                    kept[key.fd] += len(data)
    returncode = _finish(process, deadline)
    out, err = (b"".join(parts)[:_LIMIT_BYTES].decode("utf-8", "replace") for parts in chunks.values())
    process.stdout.close()
    process.stderr.close()
    return ToolResult(out, err, returncode)


def _read(descriptor: int) -> bytes | None:
    """Returns what is there: b"" at the end of the stream, None if nothing is ready."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _finish(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Waits until the deadline, then ends the tool and its children."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_SEC)
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
