"""The first supervisor of a trial whose ranks several supervisors start: it gathers the others, its agents.

An agent connects, says which ranks it starts and, once per host, what it holds there; gets the rendezvous; and tells
what becomes of its ranks. Whoever loses the other side ends its own ranks. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from aorta.run.launch import AgentLost, LaunchError, Place, world_size
from aorta.run.process import Ending
from aorta.run.ranks import Rank
from aorta.run.report import Report
from aorta.run.start import HUB_VARIABLE, KEY_VARIABLE
from aorta.run.wire import Link, Listener, WireError, connect, new_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from aorta.run.device import Held
    from aorta.run.launch import Launcher
    from aorta.run.process import SignalWatch, Source
    from aorta.run.request import Arguments
    from aorta.run.step import Step

GATHER_SEC = 120.0
"""How long the agents of a trial may take to come, waiting for their hosts' devices not counted."""

_POLL_SEC = 0.5

SUPERVISOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervise.py")


class Agent:
    """One agent; a source for the supervisor's waiting.

    Attributes:
        places: The ranks that it starts.
        host: Name of its host.
        held: What it holds for its host: ``devices`` and ``variables``; None where another process of the host does.
        ranks: Its ranks by number, once they were told to start.
    """

    def __init__(self, link: Link, places: list[Place], host: str, held: dict[str, Any] | None) -> None:
        self._link = link
        self.places = places
        self.host = host
        self.held = held
        self.ranks: dict[int, RemoteRank] = {}

    @property
    def source(self) -> int | None:
        """Descriptor to poll, or None once the agent has gone."""
        return self._link.source

    def drain(self) -> None:
        """Takes what the agent has said."""
        self._link.drain()
        while (message := self._link.next()) is not None:
            rank = self.ranks.get(message.get("rank", -1))
            if rank is not None:
                with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                    rank.take(message)

    def send(self, **message: Any) -> None:
        """Tells the agent something."""
        self._link.send(**message)

    def close(self) -> None:
        """Ends the connection, and with it the agent's ranks."""
        self._link.close()


class RemoteRank(Rank):
    """A rank that an agent started.

    Args:
        agent: The agent.
        place: Which rank it is.
        device: What it runs on.
        trouble: Says why the trial cannot go on, or None.
    """

    def __init__(self, agent: Agent, place: Place, device: dict[str, Any], trouble: Callable[[], str | None]) -> None:
        super().__init__(place, agent.host, device, None, Ending(time.monotonic()))
        self._agent = agent
        self._trouble = trouble
        self._report = Report(b"")
        self._tail: list[str] = []
        self._account: dict[str, Any] = {}
        self._cpu = 0.0
        self._eager = False

    def take(self, message: Mapping[str, Any]) -> None:
        """Takes one message about this rank.

        Raises:
            KeyError: The message lacks what it should have; the rank is as before.
        """
        self.pid = message.get("pid", self.pid)
        self._cpu = float(message.get("cpu", self._cpu))
        self._eager = bool(message.get("eager", self._eager))
        self.failed = bool(message.get("failed", self.failed))
        self.done = bool(message.get("done", self.done))
        if "logs" in message:
            self.logs = message["logs"]
        if "ended" not in message:
            return
        ended = message["ended"]
        report = Report(str(ended["report"]).encode("utf-8", "surrogateescape"))
        # The agent's clock is another host's.
        report.shift(time.monotonic() - float(ended["clock"]))
        self._report = report
        self._tail = [str(line) for line in ended["tail"]]
        self._account = dict(ended.get("account") or {})
        self.ending.exit_code = ended["exit"]
        self.ending.peak_rss_bytes = ended["peak_rss_bytes"]
        self.ending.left_behind = list(ended["left_behind"])
        self.ending.ended = time.monotonic()
        self.gone = True

    def look(self) -> None:
        """Raises AgentLost if the rank's agent, or the whole sweep, has gone before the rank had ended."""
        if self.gone:
            return
        if self._agent.source is None:
            told = f"rank {self.number}: its supervisor on host {self.host} has gone; the trial has no record"
            raise AgentLost(told, self.number)
        trouble = self._trouble()
        if trouble is not None:
            raise AgentLost(trouble)

    def terminate(self) -> None:
        """Has the agent end all of its ranks."""
        self._agent.send(stop=True)

    def activity(self) -> tuple[float, bool]:
        """Returns what the agent told last."""
        return self._cpu, self._eager

    def report(self) -> Report:
        """Returns what the rank has reported, once it has ended."""
        return self._report

    def tail(self) -> list[str]:
        """Returns the last lines of its standard error, once it has ended."""
        return self._tail

    def account(self) -> dict[str, Any]:
        """Returns what its agent saw when it was asked to end."""
        return {"doing": "unknown", "at": None, "state": None, **self._account}


class _Hub:
    """The sweep's own process, which calls the followers; when it goes, the trial must."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.trouble: str | None = None
        """Why the trial cannot go on, or None."""

    @property
    def source(self) -> int | None:
        return self._link.source

    def drain(self) -> None:
        """Takes what the sweep has said; never raises, since processes may be about to be ended."""
        self._link.drain()
        while (message := self._link.next()) is not None:
            if "refused" in message:
                self.trouble = f"{message['refused']}; the trial has no record"
        if self._link.source is None and self.trouble is None:
            self.trouble = "the sweep has gone; the trial has no record"

    def close(self) -> None:
        self._link.close()


class Lead:
    """Gathers and leads the agents of one trial; a context manager, whose end lets them all go.

    Args:
        launcher: Who starts the agents.
        arguments: The supervisor's command line.
        cell: The cell's request.
        env: The supervisor's environment.
        signals: The supervisor's signals.
    """

    def __init__(
        self,
        launcher: Launcher,
        arguments: Arguments,
        cell: Mapping[str, Any],
        env: Mapping[str, str],
        signals: SignalWatch,
    ) -> None:
        self._launcher = launcher
        self._arguments = arguments
        self._launch = dict(cell["launch"])
        self._env = env
        self._signals = signals
        self._agents: list[Agent] = []
        self._hub: _Hub | None = None
        self._step: Step | None = None
        self._key = new_key()
        # Where this host's name among the ranks' is not known, they are told to look where their launcher came from.
        self._listener = Listener(launcher.address(self._launch, env) if launcher.leads_rank_0 else "", self._key)
        self.meeting: tuple[str, int] | None = None
        """Address and port that rank 0's agent has reserved, where this supervisor does not start rank 0 itself."""

    def __enter__(self) -> Lead:
        return self

    def __exit__(self, _kind: object, raised: BaseException | None, _traceback: object) -> None:
        for agent in self._agents:
            agent.close()
        if self._hub is not None:
            self._hub.close()
        self._listener.close()
        if self._step is not None:
            self._step.close()
            if isinstance(raised, AgentLost):
                raised.said = self._step.tail

    @property
    def sources(self) -> list[Source]:
        """What the supervision has to read: the agents, and the sweep that called them."""
        return [*self._agents, *(source for source in (self._hub, self._step) if source is not None)]

    def gather(self, own: Sequence[Place]) -> None:
        """Calls the agents and waits until every rank is some supervisor's.

        Args:
            own: The ranks that this supervisor starts itself.

        Raises:
            LaunchError: Not all ranks came, or one came twice.
            Interrupted: The supervisor was asked to end.
        """
        self._call()
        missing = set(range(world_size(self._launch))) - {place.rank for place in own}
        visitors: list[Link] = []
        deadline = time.monotonic() + GATHER_SEC
        while missing:
            self._signals.check()
            if self._trouble() is not None:
                raise AgentLost(str(self._trouble()))
            if visitors:
                # Who has come and says nothing yet waits for its host's devices, and that may take long.
                deadline = time.monotonic() + GATHER_SEC
            elif time.monotonic() >= deadline:
                told = ", ".join(map(str, sorted(missing)[:8]))
                raise AgentLost(f"rank {told}: nobody came to start it in {GATHER_SEC:g} s; the trial has no record")
            self._signals.wait(_POLL_SEC, [_Door(self._listener), *visitors, *self.sources])
            link = self._listener.accept()
            if link is not None:
                visitors.append(link)
            for visitor in list(visitors):
                hello = visitor.next()
                if hello is not None:
                    visitors.remove(visitor)
                    missing -= self._welcome(visitor, hello, missing)
                elif visitor.source is None:
                    raise AgentLost("an agent left before it had said what it starts; the trial has no record")

    def _welcome(self, link: Link, hello: Mapping[str, Any], missing: set[int]) -> set[int]:
        """Takes an agent in and returns the ranks that it starts."""
        try:
            places = [Place(*numbers) for numbers in hello["places"]]
            agent = Agent(link, places, str(hello["host"]), hello["held"])
            if hello["meeting"] is not None:
                self.meeting = str(hello["meeting"][0]), int(hello["meeting"][1])
        except (KeyError, TypeError, ValueError) as error:
            raise LaunchError(f"an agent's greeting has no {error}") from error
        self._agents.append(agent)
        ranks = {place.rank for place in places}
        if not ranks <= missing:
            raise LaunchError(f"rank {', '.join(map(str, sorted(ranks - missing)))} was started twice")
        return ranks

    def _trouble(self) -> str | None:
        if self._step is not None and self._step.trouble is not None:
            return f"{self._step.trouble}; the trial has no record"
        return self._hub.trouble if self._hub is not None else None

    def start(self, address: str, port: int, held: Held, probe: Mapping[str, str] | None) -> list[RemoteRank]:
        """Has the agents start their ranks.

        Args:
            address: Where every rank reaches rank 0's host.
            port: The trial's port there.
            held: What this supervisor holds on its own host, host 0.
            probe: The snapshot of the environment that rank 0 is asked for.
        """
        by_node: dict[int, Any] = {0: {"devices": held.devices, "variables": held.variables}}
        for agent in self._agents:
            if agent.held is not None:
                by_node[agent.places[0].node] = agent.held
        ranks = []
        for agent in self._agents:
            on_host = by_node[agent.places[0].node]
            devices = on_host["devices"]
            for place in agent.places:
                rank = RemoteRank(agent, place, devices[place.local_rank % len(devices)], self._trouble)
                agent.ranks[place.rank] = rank
                ranks.append(rank)
            agent.send(start={"address": address, "port": port, "held": on_host, "probe": probe})
        return ranks

    def _call(self) -> None:
        """Has agents started: by the launcher's own command, or by the sweep's followers, which its hub calls."""
        join = ["--join", self._listener.address]
        command = self._launcher.agent_command(
            self._launch, [sys.executable, "-I", "-S", SUPERVISOR, *self._arguments.argv, *join]
        )
        if command is not None:
            from aorta.run.launch.slurm import step_environment
            from aorta.run.step import Step

            try:
                self._step = Step(command, {**step_environment(self._env), KEY_VARIABLE: self._key})
            except OSError as error:
                raise LaunchError(f"--launcher {self._launcher.name}: {command[0]}: {error.strerror}") from error
            return
        hub = self._env.get(HUB_VARIABLE)
        if hub is None:
            raise LaunchError(
                f"--launcher {self._launcher.name}: nobody can be called to start other ranks ({HUB_VARIABLE} is not "
                "set); start the sweep with torchrun ... $(which aorta) sweep run"
            )
        arguments = self._arguments
        try:
            link = connect(hub, self._env.get(KEY_VARIABLE, ""))
        except WireError as error:
            raise AgentLost(f"the sweep cannot be reached: {error}") from error
        self._hub = _Hub(link)
        link.send(
            call=arguments.argv,
            join=self._listener.address,
            key=self._key,
        )


class _Door:
    """A listener as something to wait for; who knocks is let in after the wait."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def source(self) -> int | None:
        return self._listener.source

    def drain(self) -> None:
        """Leaves the visitor to ``accept()``."""
