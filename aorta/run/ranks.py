"""The ranks of a trial live and die together. Standard library only: the supervisor imports this before every trial."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from aorta.run.launch.interface import Place
    from aorta.run.output import ErrorOutput
    from aorta.run.process import Ending, SignalWatch, Source, Tree, Worker
    from aorta.run.report import Report, ReportFile

TERM_GRACE_SEC = 2.0
"""Between SIGTERM and SIGKILL: enough for a traceback and a flush."""

TEARDOWN_SEC = 60.0
"""A worker that has reported everything must be gone after this; a runtime that hangs at exit is a finding."""

FAILURE_GRACE_SEC = 1.0
"""Between the first rank's failure and the end of the others: they may have seen the fault too, and say so."""

HANG_GRACE_SEC = 3.0
"""A rank that does nothing for so long after all the others have ended hangs."""

BUSY_GRACE_SEC = 30.0
"""The same for a rank that uses or wants the processor: it may be working, or spinning on what never comes."""

_IDLE_SHARE = 0.05
_ELSEWHERE_SEC = 30.0
"""How long the lead waits for what agents could not end at once."""

_POLL_SEC = 5.0
_RANKS_POLL_SEC = 0.2
"""A rank's report cannot wake anybody; where others depend on it, it is looked at this often."""


class Rank:
    """One rank as its supervisor sees it.

    Attributes:
        place: Which rank it is; None for a workload that has no ranks.
        host: Name of the host it runs on.
        device: ``kind``, ``index`` and ``identity`` of its device.
        pid: Its process id, or None if it is not known.
        ending: How it ended.
        gone: Whether it has ended.
        failed: Whether it raised, died, or left without a result.
        done: Whether it has reported everything and has only to exit.
        logs: File names of its kept output, or None.
    """

    def __init__(
        self, place: Place | None, host: str, device: dict[str, Any], logs: dict[str, str] | None, ending: Ending
    ) -> None:
        self.place = place
        self.host = host
        self.device = device
        self.logs = logs
        self.ending = ending
        self.pid: int | None = None
        self.gone = False
        self.failed = False
        self.done = False

    @property
    def number(self) -> int:
        """The rank's number; 0 for a workload that has no ranks."""
        return self.place.rank if self.place else 0

    def look(self) -> None:
        """Brings ``gone``, ``failed`` and ``done`` up to date."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Asks the rank to end."""
        raise NotImplementedError

    def activity(self) -> tuple[float, bool]:
        """Returns the processor time that the rank has used, in seconds, and whether it wants to go on just now."""
        raise NotImplementedError

    def report(self) -> Report:
        """Returns what the rank has reported."""
        raise NotImplementedError

    def tail(self) -> list[str]:
        """Returns the last lines of its standard error."""
        raise NotImplementedError

    def account(self) -> dict[str, Any]:
        """Returns what it did when it was asked to end, as ``aorta.run.suspect.account`` tells it."""
        raise NotImplementedError


class LocalRank(Rank):
    """A rank that this process started.

    Args:
        worker: The process.
        report_file: Where it reports.
        output: Where it writes.
        place: Which rank it is.
        device: What it runs on.
        logs: File names of its kept output.
    """

    def __init__(
        self,
        worker: Worker,
        report_file: ReportFile,
        output: ErrorOutput,
        *,
        place: Place | None,
        device: dict[str, Any],
        logs: dict[str, str] | None,
    ) -> None:
        super().__init__(place, os.uname().nodename, device, logs, worker.ending)
        self.pid = worker.pid
        self.output = output
        self._worker = worker
        self._report_file = report_file

    def look(self) -> None:
        """Brings ``gone``, ``failed`` and ``done`` up to date."""
        self.gone = self._worker.gone
        news = self._report_file.news()
        if news is not None:
            self.failed = self.failed or news.error is not None
            self.done = news.done is not None
        if self.gone and not self.failed:
            self.failed = self.ending.exit_code != 0 or self._report_file.read().result is None

    def terminate(self) -> None:
        """Sends SIGTERM to the rank's process group."""
        self._worker.terminate()

    def activity(self) -> tuple[float, bool]:
        """Returns what the rank's own process does."""
        return self._worker.activity()

    def report(self) -> Report:
        """Returns what the rank has reported."""
        return self._report_file.read()

    def raw_report(self) -> bytes:
        """Returns the rank's report as it wrote it."""
        return self._report_file.raw()

    def tail(self) -> list[str]:
        """Returns the last lines of its standard error."""
        return self.output.tail()

    def account(self) -> dict[str, Any]:
        """Returns what it did when it was asked to end."""
        from aorta.run import suspect

        return suspect.account(self.output.recent(), self.ending)


class Group:
    """The ranks of one trial, under one policy: the first to fail ends all, and none is left behind.

    Args:
        ranks: All ranks, in order.
        tree: The processes of the trial on this host.
        signals: The supervisor's signals.
        limit_sec: Time limit in seconds from the start, or None.
        more: What to read besides the ranks' output.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        tree: Tree,
        signals: SignalWatch,
        limit_sec: float | None,
        more: Sequence[Source] = (),
    ) -> None:
        self._ranks = ranks
        self._tree = tree
        self._signals = signals
        self._sources: list[Source] = [*more, *(rank.output for rank in ranks if isinstance(rank, LocalRank))]
        start = min((rank.ending.started for rank in ranks), default=time.monotonic())
        self._limit = start + limit_sec if limit_sec is not None else float("inf")
        self._poll_sec = _POLL_SEC if len(ranks) < 2 else _RANKS_POLL_SEC
        self._failed_at = float("inf")
        self._done_at: dict[int, float] = {}
        self._last_end = 0.0
        self._used: dict[int, float] = {}
        self._window = 0.0

    def supervise(self) -> list[int]:
        """Waits for the end of all ranks, and ends whatever is left of the trial on this host.

        Returns:
            Processes that even SIGKILL did not end.

        Raises:
            Interrupted: The supervisor was asked to end; the trial's processes have been killed.
        """
        left_behind: list[int] = []
        try:
            self._wait()
            self._tree.let_helpers_end(self._sources)
        finally:
            left_behind = self._tree.kill(self._sources)
            for source in self._sources:
                source.drain()
        return left_behind

    def _wait(self) -> None:
        while running := self._look():
            self._check()
            now = time.monotonic()
            cut = self._due(now, running)
            if cut is not None:
                self._end(running, *cut)
                return
            self._signals.wait(min(self._wake(running) - now, self._poll_sec), self._sources)

    def _check(self) -> None:
        """Raises if the supervision itself has to end."""
        self._signals.check()

    def _look(self) -> list[Rank]:
        """Takes note of what has changed, and returns the ranks that have not ended."""
        self._tree.reap()
        now = time.monotonic()
        for rank in self._ranks:
            rank.look()
            if rank.failed:
                self._failed_at = min(self._failed_at, now)
            if (rank.gone or rank.done) and rank.number not in self._done_at:
                self._done_at[rank.number] = now
                self._begin_window(now)
                self._last_end = now
        return [rank for rank in self._ranks if not rank.gone]

    def _due(self, now: float, running: Sequence[Rank]) -> tuple[str, list[Rank]] | None:
        """Returns why ranks have to be ended now, and at which of them the fault lies; None while all is well."""
        if now >= self._limit:
            return "time_limit", list(running)
        late = [rank for rank in running if now >= self._teardown_at(rank)]
        if late:
            return "teardown", late
        if len(self._ranks) < 2:
            return None
        if now >= self._failed_at + FAILURE_GRACE_SEC:
            return "peer", list(running)
        hung = self._hung(now, [rank for rank in running if not rank.done])
        return ("hang", hung) if hung else None

    def _teardown_at(self, rank: Rank) -> float:
        return self._done_at[rank.number] + TEARDOWN_SEC if rank.done else float("inf")

    def _wake(self, running: Sequence[Rank]) -> float:
        """Returns when something may become due that no signal announces."""
        return min([self._limit, *map(self._teardown_at, running)])

    def _hung(self, now: float, waited_for: list[Rank]) -> list[Rank]:
        """Returns the ranks that the others wait for in vain."""
        if not self._done_at or now - self._window < HANG_GRACE_SEC:
            return []
        if now - self._last_end >= BUSY_GRACE_SEC:
            return waited_for
        idle = _IDLE_SHARE * (now - self._window)
        hung = []
        for rank in waited_for:
            used, eager = rank.activity()
            # On an overloaded host a rank may not get to use the processor that it wants.
            if used - self._used.get(rank.number, 0.0) <= idle and not eager:
                hung.append(rank)
        self._begin_window(now)
        return hung

    def _begin_window(self, now: float) -> None:
        """Begins to measure anew what the ranks do while others have ended."""
        self._window = now
        if len(self._ranks) > 1:
            self._used = {rank.number: rank.activity()[0] for rank in self._ranks if not rank.gone}

    def _end(self, running: Sequence[Rank], why: str, at_fault: Sequence[Rank]) -> None:
        """SIGTERM to every rank's group, a short grace, then SIGKILL to every descendant."""
        for rank in running:
            rank.ending.cut = why if rank in at_fault else "peer"
            rank.terminate()
        deadline = time.monotonic() + TERM_GRACE_SEC
        while self._look() and (left := deadline - time.monotonic()) > 0:
            self._signals.check()
            self._signals.wait(left, self._sources)
        self._tree.kill(self._sources)
        # Ranks on other hosts are ended by those who started them.
        deadline = time.monotonic() + _ELSEWHERE_SEC
        while [rank for rank in self._look() if not isinstance(rank, LocalRank)] and time.monotonic() < deadline:
            self._signals.check()
            self._signals.wait(self._poll_sec, self._sources)
