"""The processes of a trial: starting workers, waiting for them, and leaving nothing of them behind.

Linux only. Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import time

from aorta.run.output import ErrorOutput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import FrameType
    from typing import NoReturn, Protocol

    class Source(Protocol):
        """Something to read from while waiting."""

        @property
        def source(self) -> int | None:
            """Descriptor to poll, or None when there is nothing more to come."""

        def drain(self) -> None:
            """Takes what has come; never blocks."""


STRAGGLER_GRACE_SEC = 0.5
"""What a finished worker's helpers get to end by themselves; multiprocessing's unlink shared memory then."""

DEATH_SEC = 20.0
"""How long to wait after SIGKILL. A process in an uninterruptible driver call may never die."""

TOKEN_VARIABLE = "AORTA_TRIAL_TOKEN"
"""Marks every process of a trial, for the hosts where process ancestry alone cannot tell."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Interrupted(Exception):
    """The supervisor itself was asked to end.

    Attributes:
        signum: The signal that asked.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class SignalWatch:
    """Turns SIGTERM, SIGINT, SIGHUP and SIGCHLD into something that one ``poll()`` can wait for.

    A signal that the caller ignores (``nohup``, a background job's SIGINT) stays ignored.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._note)
        # An inherited "ignore" would make the kernel reap the worker and lose how it ended.
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self.received.append(signum)

    def check(self) -> None:
        """Raises Interrupted if the supervisor was asked to end."""
        if self.received:
            raise Interrupted(self.received[0])

    def wait(self, seconds: float, sources: Sequence[Source] = ()) -> None:
        """Waits until a signal comes or the time is over, and drains what has something to read meanwhile."""
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        open_sources = {source.source: source for source in sources if source.source is not None}
        for descriptor in open_sources:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _event in poller.poll(max(0.0, seconds) * 1000):
            if descriptor == self._reader:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reader, 4096)
            else:
                open_sources[descriptor].drain()


class Ending:
    """How a worker ended.

    Attributes:
        exit_code: Exit status; -n for signal n, as in ``subprocess``; None if it could not be killed.
        cut: Why the engine ended it: None if it ended by itself, ``"time_limit"``, ``"teardown"`` for one that did not
            exit after its last report, ``"hang"`` for one that the other ranks left behind, or ``"peer"`` for one whose
            trial had come to its end by another rank's fault.
        started: ``time.monotonic()`` at the start.
        ended: ``time.monotonic()`` when the end was seen.
        peak_rss_bytes: Largest resident size of the worker or of a child that it waited for, or None.
        left_behind: Processes that even SIGKILL did not end.
        core_dumped: Whether the kernel says that it dumped core.
        state: The kernel's letter for the worker (``R``, ``S``, ``D``, ``T`` ...) when the engine asked it to end, or
            None.
    """

    def __init__(self, started: float) -> None:
        self.exit_code: int | None = None
        self.cut: str | None = None
        self.started = started
        self.ended = started
        self.peak_rss_bytes: int | None = None
        self.left_behind: list[int] = []
        self.core_dumped = False
        self.state: str | None = None


def become_subreaper() -> bool:
    """Makes orphans of this process's descendants its own children, so that none escapes by ``setsid``.

    Returns:
        Whether the kernel agreed.
    """
    return bool(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Worker:
    """One worker process, started by :meth:`Tree.start`.

    Attributes:
        pid: Its process id, which is also its process group's and its session's.
        ending: How it ended, once it has.
        gone: Whether it has ended.
    """

    def __init__(self, pid: int, started: float) -> None:
        self.pid = pid
        self.ending = Ending(started)
        self.gone = False

    def terminate(self) -> None:
        """Sends SIGTERM to the worker's group, and notes in what state the worker was."""
        if not self.gone:
            with contextlib.suppress(OSError, IndexError):
                self.ending.state = self._stat()[0].decode("ascii", "replace")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def activity(self) -> tuple[float, bool]:
        """Returns what the worker does.

        Returns:
            The processor time that its threads have used, in seconds, and whether its main thread wants to go on: it is
            runnable, or in an uninterruptible wait for a disk or a driver. Nothing of either where it cannot be read.
        """
        try:
            fields = self._stat()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            return used, fields[0] in (b"R", b"D")
        except (OSError, ValueError, IndexError):
            return 0.0, False

    def _stat(self) -> list[bytes]:
        """Returns the fields of the kernel's line about the worker from its state on."""
        with open(f"/proc/{self.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()


class Tree:
    """All processes of one trial on this host: its workers and whatever they start.

    Args:
        token: The value of ``AORTA_TRIAL_TOKEN`` in the workers' environment.
        signals: The supervisor's signals.
    """

    def __init__(self, token: str, signals: SignalWatch) -> None:
        self._token = token
        self._signals = signals
        self._subreaper = become_subreaper()
        self._workers: dict[int, Worker] = {}

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stdin: int,
        output: ErrorOutput,
        keep: Iterable[int],
        failed: Callable[[OSError | ValueError], None],
        cwd: str | None = None,
    ) -> Worker:
        """Starts a worker.

        Args:
            argv: The program and its arguments.
            env: The worker's whole environment, as its first instruction sees it.
            stdin: Descriptor that becomes the worker's standard input.
            output: Where standard output and error go.
            keep: Descriptors that the worker inherits under the same number.
            failed: Called in the new process when the program cannot be executed.
            cwd: The worker's working folder; None for this process's own.
        """
        libc = _libc()  # looked up before the fork: the new process only calls it
        parent = os.getpid()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                # Kept over exec: the worker dies with the supervisor, even when that is killed by SIGKILL.
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)
                _become(argv, env, stdin, output, keep, cwd)
            except (OSError, ValueError) as error:
                failed(error)
            finally:
                os._exit(127)
        worker = Worker(pid, started)
        self._workers[pid] = worker
        return worker

    def reap(self) -> None:
        """Collects every child that has ended, workers among them."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker = self._workers.get(pid)
            if worker is not None and not worker.gone:
                worker.gone = True
                worker.ending.ended = time.monotonic()
                worker.ending.exit_code = os.waitstatus_to_exitcode(status)
                worker.ending.core_dumped = os.WCOREDUMP(status)
                worker.ending.peak_rss_bytes = usage.ru_maxrss * 1024

    def let_helpers_end(self, sources: Sequence[Source]) -> None:
        """Gives what finished workers left a moment to end by itself."""
        deadline = time.monotonic() + STRAGGLER_GRACE_SEC
        while has_children() and (left := deadline - time.monotonic()) > 0:
            self._signals.check()
            self._signals.wait(left, sources)
            self.reap()

    def kill(self, sources: Sequence[Source]) -> list[int]:
        """Kills until no process of the trial remains; returns those that did not die in time."""
        deadline = time.monotonic() + DEATH_SEC
        pause = 0.002
        while True:
            self.reap()
            if self._subreaper and not has_children():
                return []
            # A process that was started during the walk is missed; where orphans come to us, the next round sees it.
            alive = family(os.getpid(), None if self._subreaper else self._token)
            if not alive and not self._subreaper:
                return []
            now = time.monotonic()
            if now >= deadline:
                for worker in self._workers.values():
                    if not worker.gone:
                        worker.ending.ended = now
                        worker.ending.left_behind = sorted(alive)
                return sorted(alive)
            kill_all(alive)
            self._signals.wait(pause, sources)
            pause = min(pause * 2, 0.1)


def has_children() -> bool:
    """Tells whether this process has a child, alive or not yet collected; collects nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _become(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: int,
    output: ErrorOutput,
    keep: Iterable[int],
    cwd: str | None,
) -> NoReturn:
    """Turns the forked process into the worker."""
    # The kernel's out-of-memory killer should take the trial, which is a result, not the supervisor.
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, score + 200)))
    os.dup2(stdin, 0)
    os.dup2(output.stdout, 1)
    os.dup2(output.stderr, 2)
    for descriptor in keep:
        os.set_inheritable(descriptor, True)
    # Python ignores these two, and what is ignored stays so over exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if cwd is not None:
        os.chdir(cwd)
    # A program's bare name is looked up in the worker's own PATH.
    os.execvpe(argv[0], list(argv), dict(env))


def fill_standard_descriptors() -> None:
    """Opens descriptors 0, 1 and 2 if the caller closed them, so that no file of ours lands on those numbers."""
    for descriptor in (0, 1, 2):
        try:
            fcntl.fcntl(descriptor, fcntl.F_GETFD)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)


def family(ancestor: int, token: str | None = None) -> set[int]:
    """Returns the live descendants of a process, and with ``token`` every process that carries it.

    Args:
        ancestor: A process id; it is not part of the result, nor are zombies.
        token: A value of ``AORTA_TRIAL_TOKEN``.
    """
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command's name may hold blanks and brackets; what follows its last bracket does not.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        children.setdefault(int(parent), []).append(pid)
        if state in (b"Z", b"X"):
            zombies.add(pid)
    found |= marked(token) if token else set()
    waiting = [ancestor]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if pid not in found:
                found.add(pid)
            waiting.append(pid)
    return found - zombies - {ancestor, os.getpid()}


def marked(token: str) -> set[int]:
    """Returns the live processes, other than this one, whose environment at exec carried the token."""
    found: set[int] = set()
    needle = f"{TOKEN_VARIABLE}={token}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if needle in file.read().split(b"\0"):
                    found.add(int(name))
    return found


def kill_all(pids: Iterable[int]) -> None:
    """Sends SIGKILL to each process; one that is gone already, or is another user's, is skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
