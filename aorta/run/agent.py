"""An agent: starts some of the ranks of a trial that another supervisor leads, and tells it what becomes of them.

Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from aorta.run import request
from aorta.run.device import Held, hold
from aorta.run.launch import find_launcher
from aorta.run.ports import reserve_port
from aorta.run.process import Tree
from aorta.run.ranks import Group
from aorta.run.start import KEY_VARIABLE, Starter, base_env
from aorta.run.wire import Link, WireError, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from aorta.run.process import SignalWatch
    from aorta.run.ranks import LocalRank, Rank

_TELL_SEC = 1.0
"""How often the lead is told of the processor time that the ranks have used."""

_LEAD_SEC = 30.0
"""How long the lead may take to read the last reports."""

_PR_SET_PDEATHSIG = 1


class LeadLost(Exception):
    """The supervisor that leads the trial has gone; the ranks have been ended."""


def run_agent(
    arguments: request.Arguments,
    cell: dict[str, Any],
    signals: SignalWatch,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> None:
    """Joins a trial, and runs this agent's ranks until they have ended.

    Args:
        arguments: The command line; ``join`` is set.
        cell: The cell's request.
        signals: This process's signals.
        environ: This process's environment, with the launcher's variables and the trial's key.
        notify: Takes a sentence about a long wait.

    Raises:
        LaunchError: The launcher's variables do not fit.
        LeadLost: The lead cannot be reached, or has gone.
        Interrupted: This process was asked to end.
        LockError: What the ranks run on cannot be locked.
    """
    # The parent that torchrun started may be killed; nobody would then end this process.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    env = request.outer_env(environ)
    launcher = find_launcher(arguments.launcher)
    places = launcher.places(cell["launch"], env)
    token = os.urandom(16).hex()
    host, _, number = (arguments.join or "").rpartition(":")
    try:
        link = connect(f"{host or launcher.lead_host(env)}:{number}", env.get(KEY_VARIABLE, ""))
    except WireError as error:
        raise LeadLost(str(error)) from error
    held = port = None

    def pause(seconds: float) -> None:
        signals.check()
        signals.wait(seconds, [link])
        if link.source is None:
            raise LeadLost("the trial was given up while this host's devices were waited for")

    try:
        # One process a host holds its devices for all of them; on rank 0's host that may be the lead.
        if any(place.local_rank == 0 and (place.node > 0 or not launcher.leads_rank_0) for place in places):
            held = hold(
                env,
                request.overlay_of(cell),
                count=places[0].local_world_size,
                slots=arguments.devices,
                lock=arguments.device_lock,
                token=token,
                pause=pause,
                notify=notify,
            )
        if not launcher.leads_rank_0 and places[0].rank == 0:
            # Locked whatever else is: another job's trial may be on the same host.
            port = reserve_port(env, token, lock=True)
        link.send(
            places=[[p.rank, p.world_size, p.local_rank, p.local_world_size, p.node] for p in places],
            host=launcher.host_name(env),
            held=None if held is None else {"devices": held.devices, "variables": held.variables},
            meeting=None if port is None else [launcher.rendezvous(cell["launch"], env), port.number],
        )
        order = _order(link, signals)
        tree = Tree(token, signals)
        shared = Held(order["held"]["devices"], order["held"]["variables"])
        starter = Starter(arguments, cell, tree, base_env(env), shared, token)
        ranks = [
            starter.start(place, place.variables(str(order["address"]), int(order["port"])), order["probe"])
            for place in places
        ]
        _Following(ranks, tree, signals, link).follow()
        link.finish()
        deadline = time.monotonic() + _LEAD_SEC
        while link.source is not None and time.monotonic() < deadline:
            signals.check()
            signals.wait(deadline - time.monotonic(), [link])
    finally:
        link.close()
        if port is not None:
            port.release()
        if held is not None:
            held.release()


def _order(link: Link, signals: SignalWatch) -> dict[str, Any]:
    """Waits until the lead says how to start."""
    while True:
        message = link.next()
        if message is not None and "start" in message:
            return dict(message["start"])
        if link.closed:
            raise LeadLost("the trial was given up before it had started")
        signals.check()
        signals.wait(60.0, [link])


class _Following(Group):
    """The agent's ranks, which end when the lead says so, and tell it everything."""

    def __init__(self, ranks: Sequence[LocalRank], tree: Tree, signals: SignalWatch, link: Link) -> None:
        super().__init__(ranks, tree, signals, None, [link])
        self._local = ranks
        self._link = link
        self._stopped = False
        self._told: dict[int, tuple[bool, bool]] = {}
        self._told_at = 0.0
        # Even of a single rank: others wait for it.
        self._poll_sec = 0.2

    def follow(self) -> None:
        """Runs the ranks to their end and reports each.

        Raises:
            LeadLost: The lead has gone; the ranks have been ended.
        """
        for rank in self._local:
            self._link.send(rank=rank.number, pid=rank.pid, logs=rank.logs)
        self.supervise()
        for rank in self._local:
            self._link.send(
                rank=rank.number,
                ended={
                    "exit": rank.ending.exit_code,
                    "peak_rss_bytes": rank.ending.peak_rss_bytes,
                    "left_behind": rank.ending.left_behind,
                    "report": rank.raw_report().decode("utf-8", "replace"),
                    "tail": rank.tail(),
                    "account": rank.account() if rank.ending.cut is not None else None,
                    "clock": time.monotonic(),
                },
            )

    def _check(self) -> None:
        super()._check()
        while (message := self._link.next()) is not None:
            self._stopped = self._stopped or "stop" in message
        if self._link.source is None:
            raise LeadLost("the trial's lead has gone")
        now = time.monotonic()
        periodic = now - self._told_at >= _TELL_SEC
        for rank in self._local:
            state = (rank.failed, rank.done or rank.gone)
            if periodic or self._told.get(rank.number) != state:
                self._told[rank.number] = state
                used, eager = rank.activity()
                self._link.send(rank=rank.number, failed=rank.failed, done=state[1], cpu=used, eager=eager)
        if periodic:
            self._told_at = now

    def _due(self, now: float, running: Sequence[Rank]) -> tuple[str, list[Rank]] | None:
        return ("peer", list(running)) if self._stopped else None
