"""A sweep that torchrun started: rank 0 drives the workflow, the other ranks follow it trial by trial.

Rank 0's process holds a *hub*. Its trials' supervisors reach it, and it passes their call on to every follower, which
then starts an agent for that one trial. A connection is also how each side knows that the other lives: whoever goes,
by whatever death, takes the rest along. Where the hub is, rank 0 leaves in a file that only the user can read, in the
working folder, which all ranks share.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from aorta._jsonio import read_json
from aorta.dag.errors import say
from aorta.dag.launching import World
from aorta.dag.sweep import SUPERVISOR
from aorta.run.start import HUB_VARIABLE, KEY_VARIABLE
from aorta.run.wire import Link, Listener, WireError, connect, new_key

FOLDER_VARIABLE = "AORTA_TORCHRUN_DIR"
"""Names a folder that all ranks share, where the working folder is not shared."""

MEET_SEC = 300.0
"""How long ranks wait for each other at the start: started at once, they still import at different speed."""

_POLL_SEC = 0.1
_PR_SET_PDEATHSIG = 1
_END_SEC = 5.0


def announcement(env: Mapping[str, str], working_directory: Path) -> Path:
    """Returns the file in which rank 0 says where its hub is, the same on all ranks of one launch.

    Args:
        env: The environment that torchrun made.
        working_directory: The folder that the ranks share unless AORTA_TORCHRUN_DIR names another.
    """
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    text = "\0".join(env.get(name, "") for name in names)
    folder = Path(env.get(FOLDER_VARIABLE) or working_directory / ".snakemake" / "aorta")
    return folder / f"torchrun-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


class Hub:
    """Rank 0's side; a context manager around the workflow.

    Args:
        world: The ranks.
        env: The environment that torchrun made.
        working_directory: The folder that the ranks share.

    Attributes:
        variables: What the workflow's processes need in their environment.
        exit_code: What the followers leave with; set it before the end of the context.
    """

    def __init__(self, world: World, env: Mapping[str, str], working_directory: Path) -> None:
        self._followers_wanted = world.size - 1
        self._workflow: subprocess.Popen[bytes] | None = None
        self._key = new_key()
        address = "127.0.0.1" if world.nnodes == 1 else env.get("MASTER_ADDR", "")
        self._listener = Listener(address, self._key)
        self._file = announcement(env, working_directory)
        self.variables = {HUB_VARIABLE: self._listener.address, KEY_VARIABLE: self._key}
        self._followers: dict[int, Link] = {}
        self._visitors: list[Link] = []
        self._calls: list[dict[str, Any]] = []
        self._caller: Link | None = None
        self._ended = False
        self._broken = False
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="aorta-hub", daemon=True)
        self.exit_code = 1

    def __enter__(self) -> Hub:
        self._thread.start()
        _write_private(self._file, {"hub": self._listener.address, "key": self._key})
        return self

    def __exit__(self, *_raised: object) -> None:
        """Lets the followers go, with the exit code that the sweep has come to."""
        self._ended = True
        os.write(self._waker, b"x")
        self._thread.join(_END_SEC)
        with contextlib.suppress(OSError):
            self._file.unlink()

    def watch(self, workflow: subprocess.Popen[bytes]) -> None:
        """Ends the workflow as soon as a follower has gone: no trial could be started any more."""
        self._workflow = workflow
        if self._broken:
            workflow.terminate()

    def _serve(self) -> None:
        try:
            while not self._ended:
                links = [*self._followers.values(), *self._visitors]
                sources = [self._wake, self._listener.source, *(link.source for link in links)]
                select.select([source for source in sources if source is not None], [], [], 1.0)
                link = self._listener.accept()
                if link is not None:
                    self._visitors.append(link)
                for link in links:
                    link.drain()
                self._hear()
        finally:
            self._let_go([*self._followers.values(), *self._visitors])
            self._listener.close()

    def _let_go(self, links: list[Link]) -> None:
        """Sends everybody away, and gives them a moment to hear it."""
        for link in links:
            link.send(leave=self.exit_code)
            link.finish()
        deadline = time.monotonic() + _END_SEC / 2
        while (left := deadline - time.monotonic()) > 0 and any(link.source is not None for link in links):
            select.select([link.source for link in links if link.source is not None], [], [], left)
            for link in links:
                link.drain()
        for link in links:
            link.close()

    def _hear(self) -> None:
        for rank, link in list(self._followers.items()):
            message = link.next()
            if message is not None and "failed" in message and self._caller is not None:
                told = f"rank {rank}: its supervisor ended with status {message['failed']}"
                self._caller.send(refused=told)
            if link.source is None and not self._ended:
                self._followers.pop(rank).close()
                self._broken = True
                say(f"the process of rank {rank} has gone; stopping, finished trials are kept")
                if self._workflow is not None:
                    self._workflow.terminate()
        for visitor in list(self._visitors):
            message = visitor.next()
            if message is not None and isinstance(message.get("follower"), int):
                self._visitors.remove(visitor)
                self._followers[message["follower"]] = visitor
            elif message is not None and "call" in message:
                self._calls.append({**message, "_from": visitor})
            elif visitor.source is None:
                self._visitors.remove(visitor)
                visitor.close()
        if self._broken:
            for call in self._calls:
                call["_from"].send(refused="a rank has gone; the sweep ends")
            self._calls.clear()
        elif len(self._followers) == self._followers_wanted:
            for call in self._calls:
                wanted = {name: value for name, value in call.items() if name != "_from"}
                self._caller = call["_from"]
                for follower in self._followers.values():
                    follower.send(**wanted)
            self._calls.clear()


def _write_private(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a file that only the user can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
    os.replace(temporary, path)


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """In a new process, before its program: has the kernel send a signal when the parent dies, however it dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


_LIBC = ctypes.CDLL(None)
"""Looked up before any fork: the new process only calls it."""


class _Asked(Exception):
    """This process was asked to end by a signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def follow(world: World, env: Mapping[str, str], working_directory: Path) -> int:
    """Follows rank 0 until it leaves.

    Args:
        world: The ranks, this one's own number among them.
        env: The environment that torchrun made.
        working_directory: The folder that the ranks share.

    Returns:
        The sweep's exit code; 1 if rank 0 has gone without one, 128 + n if signal n ended this process.
    """

    def asked(signum: int, _frame: FrameType | None) -> None:
        raise _Asked(signum)

    previous = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    agent: subprocess.Popen[bytes] | None = None
    link: Link | None = None
    try:
        link = _meet(announcement(env, working_directory))
        if link is None:
            say(f"rank {world.rank}: rank 0 did not begin the sweep in {MEET_SEC:g} s")
            return 1
        link.send(follower=world.rank)
        while True:
            message = _next(link, agent)
            if message is None:
                say(f"rank {world.rank}: rank 0 has gone; leaving")
                return 1
            if "leave" in message:
                return int(message["leave"])
            if "call" in message:
                _end(agent)
                agent = _start_agent(message, env)
    except _Asked as asked_by:
        return 128 + asked_by.signum
    finally:
        for number in previous:
            signal.signal(number, signal.SIG_IGN)
        _end(agent)
        if link is not None:
            link.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _meet(file: Path) -> Link | None:
    """Waits for rank 0's hub; an old file leads to nobody, or to somebody who does not know its key."""
    deadline = time.monotonic() + MEET_SEC
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, WireError):
            found = read_json(file)
            return connect(found["hub"], found["key"])
        time.sleep(_POLL_SEC)
    return None


def _next(link: Link, agent: subprocess.Popen[bytes] | None) -> dict[str, Any] | None:
    """Waits for rank 0's next message, and meanwhile collects an agent that has ended; None if rank 0 has gone."""
    while True:
        try:
            return link.receive(1.0)
        except WireError:
            if link.closed:
                return None
            if agent is not None and agent.poll():
                # It could not even join, perhaps, and then the trial would wait for it.
                link.send(failed=agent.returncode)
                agent = None


def _start_agent(message: Mapping[str, Any], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", os.fspath(SUPERVISOR), *message["call"], "--join", message["join"]]
    return subprocess.Popen(command, env={**env, KEY_VARIABLE: message["key"]}, stdin=subprocess.DEVNULL)


def _end(agent: subprocess.Popen[bytes] | None) -> None:
    """Ends an agent that has not ended by itself; it ends its ranks first."""
    if agent is None:
        return
    # At the next trial the last one's lead has hung up, and the agent is about to leave by itself.
    for ask, seconds in ((None, 1.0), (agent.terminate, 2 * _END_SEC), (agent.kill, _END_SEC)):
        if ask is not None:
            ask()
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(seconds)
            return
