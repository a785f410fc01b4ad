"""One go at a trial: starts its ranks, supervises them, and builds the record of what came of it.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import time

from aorta.run import record, request
from aorta.run.launch import find_launcher, too_few_ranks, world_size
from aorta.run.process import Ending, Tree
from aorta.run.ranks import Group
from aorta.run.start import ROOT, Starter, base_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from aorta.run.device import Held
    from aorta.run.launch import Launcher
    from aorta.run.process import SignalWatch, Source
    from aorta.run.ranks import Rank


class OneTry:
    """What one go at a trial is given.

    Args:
        arguments: The supervisor's command line.
        cell: The cell's request.
        signals: The supervisor's signals.
        token: The value of ``AORTA_TRIAL_TOKEN``.
        env: The supervisor's environment without an enclosing trial's variables.
        held: What the trial holds on this host.
        say: Tells a person something.
    """

    def __init__(
        self,
        arguments: request.Arguments,
        cell: dict[str, Any],
        signals: SignalWatch,
        token: str,
        env: Mapping[str, str],
        held: Held,
        say: Callable[[str], None],
    ) -> None:
        self._arguments = arguments
        self._cell = cell
        self._signals = signals
        self._token = token
        self._env = env
        self._held = held
        self._say = say
        self._overlay = request.overlay_of(cell)


class Attempt(OneTry):
    """One go at a trial of a workload."""

    @property
    def _distributed(self) -> bool:
        return bool(self._cell["launch"]["mode"] == "distributed")

    def run(self) -> dict[str, Any]:
        """Runs the trial's ranks and returns the record.

        Raises:
            Interrupted: The supervisor was asked to end, or lost the other supervisors of the trial.
            LockError: No port can be reserved.
            LaunchError: The trial cannot be started where it was asked for.
            OSError: A log file cannot be made.
        """
        launch = self._cell["launch"]
        needed, world = int(launch["min_world_size"]), world_size(launch)
        if self._distributed and needed > world:
            return self._refused(too_few_ranks(self._cell["workload"], needed, world))
        if not self._distributed and world > 1:
            return self._refused(f"the trial asks for {world} ranks, and its workload is a single_process one")
        probe = request.probe_request(self._arguments, self._cell, ROOT)
        tree = Tree(self._token, self._signals)
        starter = Starter(self._arguments, self._cell, tree, base_env(self._env), self._held, self._token)
        if not self._distributed:
            # Before the start, or the end, which is reckoned from it, would lie after the release of the devices.
            started_at = time.time()
            return self._supervise([starter.start(None, {}, probe)], tree, [], probe, started_at)
        launcher = find_launcher(self._arguments.launcher)
        if launcher.gathers:
            return self._run_gathered(launcher, tree, starter, probe)
        return self._run_here(launcher, tree, starter, probe)

    def _run_here(
        self, launcher: Launcher, tree: Tree, starter: Starter, probe: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """Runs a trial whose ranks are all on this host."""
        from aorta.run.ports import reserve_port

        places = launcher.places(self._cell["launch"], self._env)
        port = reserve_port(self._env, self._token, lock=self._arguments.device_lock)
        try:
            address = launcher.address(self._cell["launch"], self._env)
            started_at = time.time()
            ranks = [starter.start(place, place.variables(address, port.number), probe) for place in places]
            return self._supervise(ranks, tree, [], probe, started_at)
        finally:
            port.release()

    def _run_gathered(
        self, launcher: Launcher, tree: Tree, starter: Starter, probe: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """Runs a trial whose ranks are started by several supervisors, of which this is the first."""
        from aorta.run.lead import Lead
        from aorta.run.ports import reserve_port

        if not launcher.leads_rank_0:
            return self._run_elsewhere(launcher, probe)
        places = launcher.places(self._cell["launch"], self._env)
        address = launcher.address(self._cell["launch"], self._env)
        with Lead(launcher, self._arguments, self._cell, self._env, self._signals) as lead:
            lead.gather(places)
            port = reserve_port(self._env, self._token, lock=self._arguments.device_lock)
            try:
                started_at = time.time()
                ranks: list[Rank] = [
                    starter.start(place, place.variables(address, port.number), probe) for place in places
                ]
                ranks += lead.start(address, port.number, self._held, probe)
                ranks.sort(key=lambda rank: rank.number)
                return self._supervise(ranks, tree, lead.sources, probe, started_at)
            finally:
                port.release()

    def _run_elsewhere(self, launcher: Launcher, probe: Mapping[str, str] | None) -> dict[str, Any]:
        """Runs a trial of whose ranks this supervisor starts none."""
        from aorta.run.lead import Lead
        from aorta.run.step import NoTree

        with Lead(launcher, self._arguments, self._cell, self._env, self._signals) as lead:
            lead.gather([])
            assert lead.meeting is not None  # rank 0's agent says it, and without that agent nothing is gathered
            address, port = lead.meeting
            started_at = time.time()
            ranks = sorted(lead.start(address, port, self._held, probe), key=lambda rank: rank.number)
            return self._supervise(ranks, NoTree(self._token, self._signals), lead.sources, probe, started_at)

    def _supervise(
        self,
        ranks: Sequence[Rank],
        tree: Tree,
        more: Sequence[Source],
        probe: Mapping[str, str] | None,
        started_at: float,
    ) -> dict[str, Any]:
        limit = self._cell["trial_timeout_sec"]
        left_behind = Group(ranks, tree, self._signals, limit, more).supervise()
        if left_behind:
            self._say(f"SIGKILL did not end process {', '.join(map(str, left_behind))}")
        first = ranks[0]
        report = first.report()
        table = None
        if len(ranks) == 1:
            exit_status, error = record.judge(first.ending, report, limit)
            result = report.result
            if error is not None:
                error["stderr_tail"] = first.tail()
                error["rank"] = first.number if first.place else None
                if first.ending.cut is not None and error["hint"] is None:
                    from aorta.run.suspect import silence

                    error["hint"] = silence(first.account())
        else:
            from aorta.run.world import judge_ranks

            exit_status, error, result = judge_ranks(ranks, limit)
        if self._distributed:
            from aorta.run.world import rank_table

            table = rank_table(ranks)
        whole = _whole(ranks)
        captured = None
        if probe is not None:
            captured = "captured" if request.has_snapshot(probe["out"]) else "missing"
        return record.build(
            self._arguments,
            self._cell,
            exit_status=exit_status,
            error=error,
            overlay=self._overlay,
            device=first.device,
            started_at=started_at,
            ended_at=started_at + (whole.ended - whole.started),
            ending=whole,
            report=report,
            result=result,
            worker_pid=first.pid,
            environment_probe=captured,
            logs=first.logs,
            ranks=table,
        )

    def _refused(self, message: str) -> dict[str, Any]:
        """Returns the record of a trial that cannot be launched."""
        now = time.time()
        return record.build(
            self._arguments,
            self._cell,
            exit_status="workload_setup_failed",
            error=record.error_entry("resolve", "launch", message),
            overlay=self._overlay,
            device=self._held.device,
            started_at=now,
            ended_at=now,
        )


def _whole(ranks: Sequence[Rank]) -> Ending:
    """Returns the trial's own beginning, end and peak memory, with how rank 0 ended."""
    whole = Ending(min(rank.ending.started for rank in ranks))
    whole.ended = max(rank.ending.ended for rank in ranks)
    whole.exit_code, whole.cut = ranks[0].ending.exit_code, ranks[0].ending.cut
    whole.peak_rss_bytes = max(
        (rank.ending.peak_rss_bytes for rank in ranks if rank.ending.peak_rss_bytes is not None), default=None
    )
    return whole
