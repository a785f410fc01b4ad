"""Which rank of a trial that had to be ended the others waited for, as far as their last words tell.

SIGTERM asks a worker for the Python stack of its threads (``faulthandler``). A rank that left none although it had to
be killed did not answer; one whose stack is in no collective, while everyone else's is, keeps the others waiting. Where
no single rank stands out none is named. Standard library only; loaded once a trial had to be cut.
"""

from __future__ import annotations

import linecache
import os
import re
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from aorta.run.process import Ending

SILENT = "silent"
"""It left no stack, and SIGTERM did not end it."""
WAITS = "waits"
"""It is in a collective, or waits for its device, which may be in one."""
ELSEWHERE = "elsewhere"
"""It is in neither."""
UNKNOWN = "unknown"
"""Its last words do not tell."""

_TOLD = 8
_INNERMOST = 6
"""Frames from the innermost one that may belong to one collective call: decorators, dispatchers."""

_HEADER = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+).*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
_COLLECTIVE = (
    r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|wait_tensor|isend|irecv|send|recv|"
    r"gather|scatter|reduce)(?:_\w+)?"
)
_IN_TORCH = re.compile(
    rf"_*(?:{_COLLECTIVE}|_?store_based_barrier|_?create_c10d_store|init_process_group|\w*rendezvous\w*)"
)
# A call into C++ has no frame of its own: the source line says which it is.
_CALL = re.compile(rf"(?:\bdist\w*\.{_COLLECTIVE}|\.wait|\bsynchronize|\b(?:all|reduce)_\w*)\(")
_ENGINE = re.compile(r"_engine_run_backward|run_backward")
_STATES = {"T": "it was stopped (SIGSTOP)", "t": "it was stopped by a debugger", "D": "it was stuck in the kernel"}


def account(stderr: str, ending: Ending) -> dict[str, Any]:
    """Returns what a rank did when it was asked to end.

    Args:
        stderr: The end of its standard error.
        ending: How it ended.

    Returns:
        ``doing``, one of the words of this module; ``at``, the innermost frame of the main thread as
        ``function (folder/file:line)``, or None; ``state``, the kernel's letter for the process when it was asked.
    """
    threads = _stacks(stderr)
    told: dict[str, Any] = {"doing": UNKNOWN, "at": None, "state": ending.state}
    if not threads:
        if ending.exit_code in (-signal.SIGKILL, None):
            told["doing"] = SILENT
        return told
    main = threads[-1]
    file, line, function = main[0]
    told["at"] = f"{function} ({'/'.join(file.split(os.sep)[-2:])}:{line})"
    if any(_waits(frames) for frames in threads):
        told["doing"] = WAITS
    elif not any(_ENGINE.fullmatch(name) for _file, _line, name in main[:2]):
        # Backward passes run on threads of their own, whose C++ frames are not shown.
        told["doing"] = ELSEWHERE
    return told


def _stacks(stderr: str) -> list[list[tuple[str, int, str]]]:
    """Returns the frames of each thread of the last dump, innermost first; the main thread is dumped last."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    thread = ""
    for line in stderr.splitlines():
        header, frame = _HEADER.match(line), _FRAME.match(line)
        if header:
            thread = header[1]
            if thread in found:
                found = {}  # another dump begins
            found[thread] = []
        elif frame and thread:
            found[thread].append((frame["file"], int(frame["line"]), frame["function"]))
        elif line.strip():
            thread = ""
    return [frames for frames in found.values() if frames]


def _waits(frames: Sequence[tuple[str, int, str]]) -> bool:
    for file, _line, function in frames[:_INNERMOST]:
        if "/torch/distributed/" in file and _IN_TORCH.fullmatch(function):
            return True
    file, number, function = frames[0]
    if "/torch/cuda/" in file and function == "synchronize":
        return True
    return _CALL.search(linecache.getline(file, number)) is not None


def stands_out(accounts: Mapping[int, Mapping[str, Any]]) -> tuple[int | None, str | None]:
    """Returns the rank that the others waited for, or None, and what is known in words, or None.

    A stopped process is at fault wherever the others are. Else the others all have to be seen waiting: where two
    ranks are out of every collective, either may be the one that is late.

    Args:
        accounts: Rank to its :func:`account`, of all ranks that had to be ended.
    """
    silent = [rank for rank, told in accounts.items() if told["doing"] == SILENT]
    stopped = [rank for rank in silent if accounts[rank]["state"] in ("T", "t")]
    odd = [rank for rank, told in accounts.items() if told["doing"] != WAITS]
    if len(stopped) == 1:
        suspect: int | None = stopped[0]
    elif len(odd) == 1 and len(accounts) > 1 and accounts[odd[0]]["doing"] in (SILENT, ELSEWHERE):
        suspect = odd[0]
    else:
        suspect = None
    facts = [_silence(rank, accounts[rank]) for rank in silent[:_TOLD]]
    if len(silent) > _TOLD:
        facts.append(f"and {len(silent) - _TOLD} more did not answer")
    if suspect is not None and suspect not in silent:
        facts.append(f"rank {suspect} is in {accounts[suspect]['at']}")
    elif silent and len(odd) > len(silent):
        # Not enough to name one, but what a person would look at next.
        outside = [rank for rank in odd if accounts[rank]["doing"] == ELSEWHERE]
        facts += [f"rank {rank} is in {accounts[rank]['at']}" for rank in outside[:_TOLD]]
    waiting = [rank for rank, told in accounts.items() if told["doing"] == WAITS]
    if facts and waiting:
        whole = len(waiting) == len(accounts) - 1
        who = ("the others wait" if len(waiting) > 1 else f"rank {waiting[0]} waits") if whole else None
        numbers = ", ".join(map(str, waiting[:_TOLD])) + (" ..." if len(waiting) > _TOLD else "")
        who = who or (f"ranks {numbers} wait" if len(waiting) > 1 else f"rank {waiting[0]} waits")
        facts.append(f"{who} in a collective")
    return suspect, "; ".join(facts) or None


def silence(told: Mapping[str, Any]) -> str | None:
    """Returns why a process without peers left no stack, or None if it answered."""
    return f"it did not answer{_why(told)}" if told["doing"] == SILENT else None


def _silence(rank: int, told: Mapping[str, Any]) -> str:
    return f"rank {rank} did not answer{_why(told)}"


def _why(told: Mapping[str, Any]) -> str:
    why = _STATES.get(told["state"])
    return f": {why} and left no stack" if why else " when asked for its stack (SIGTERM), and had to be killed"
