"""What a launcher is, and what a rank is told. Standard library only."""

from __future__ import annotations

import os

from aorta.text import plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher tells each rank."""

FOREIGN_PREFIXES = ("TORCHELASTIC_", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_", "NODE_RANK")
"""What torchrun sets besides; a rank of ours that saw ``TORCHELASTIC_USE_AGENT_STORE`` would look for its store."""


class LaunchError(Exception):
    """A launcher's surroundings do not fit what the trial asks for."""


class NoAnswer(Exception):
    """The batch system does not answer, so that nothing can be said of a job."""


class AgentLost(LaunchError):
    """Another process that the trial needs has gone: like the supervisor's own death, no result.

    Attributes:
        rank: The rank whose process it was, or None.
        said: The last lines of the command that had started it, where there was one.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.said: list[str] = []


class Place:
    """One rank, and where it stands among the others.

    Attributes:
        rank: Number among all ranks, from 0.
        world_size: Number of ranks.
        local_rank: Number among the ranks of its host.
        local_world_size: Number of ranks on its host.
        node: Number of the host, from 0.
    """

    __slots__ = ("local_rank", "local_world_size", "node", "rank", "world_size")

    def __init__(self, rank: int, world_size: int, local_rank: int, local_world_size: int, node: int) -> None:
        """Takes the numbers.

        Raises:
            LaunchError: They contradict each other.
        """
        if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size <= world_size or node < 0:
            raise LaunchError(
                f"rank {rank} of {world_size}, local rank {local_rank} of {local_world_size}, on host {node}: "
                "these numbers of the launcher contradict each other"
            )
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.node = node

    def variables(self, address: str, port: int) -> dict[str, str]:
        """Returns the ``LAUNCH_VARIABLES`` of this rank.

        Args:
            address: Where every rank reaches rank 0's host.
            port: The trial's own port there.
        """
        values = (self.rank, self.world_size, self.local_rank, self.local_world_size, address, port)
        return {name: str(value) for name, value in zip(LAUNCH_VARIABLES, values, strict=True)}


class Launcher:
    """Where the ranks of a trial are started, and by whom.

    A supervisor starts the ranks of ``places()`` itself. All other ranks are started by *agents*: supervisors in other
    processes that join the first one and do as it says.

    Attributes:
        name: Name on the command line.
        gathers: Whether ranks are spread over several supervisors, so that agents have to join.
        leads_rank_0: Whether the supervisor that gathers is on rank 0's host and starts rank 0 itself; if not, it
            starts none, and may be on a host that has no rank at all.
    """

    name: str
    gathers: bool = True
    leads_rank_0: bool = True

    def places(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> list[Place]:
        """Returns the ranks that a supervisor or agent with this environment starts itself.

        Args:
            launch: The cell's ``launch`` block: ``nnodes`` and ``nproc_per_node``.
            env: The environment of the calling process.

        Raises:
            LaunchError: The environment is not this launcher's, or its world is not the one that is asked for.
        """
        raise NotImplementedError

    def address(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> str:
        """Returns the name or number under which every rank reaches rank 0's host.

        Raises:
            LaunchError: The environment does not say.
        """
        raise NotImplementedError

    def rendezvous(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> str:
        """Returns ``address`` in a form that resolves here, which may mean to ask somebody."""
        return self.address(launch, env)

    def lead_host(self, env: Mapping[str, str]) -> str:
        """Returns where an agent finds the supervisor that it joins, when that did not know how it is reached.

        Raises:
            LaunchError: The environment does not say.
        """
        raise NotImplementedError

    def host_name(self, env: Mapping[str, str]) -> str:
        """Returns the name under which this process's host stands in the record."""
        return os.uname().nodename

    def agent_command(self, launch: Mapping[str, Any], agent: Sequence[str]) -> list[str] | None:
        """Returns the command that starts an agent for each rank, or None where nobody has to be started for that.

        Args:
            launch: The cell's ``launch`` block.
            agent: The command of one agent.
        """
        raise NotImplementedError


def whole_number(env: Mapping[str, str], name: str, launcher: str) -> int:
    """Reads a number that a launcher has set.

    Raises:
        LaunchError: The variable is missing or is no whole number.
    """
    text = env.get(name)
    if text is None or not text.isascii() or not text.isdigit():
        found = "not set" if text is None else f"'{text}', not a whole number"
        raise LaunchError(f"{name} is {found}; it is set by {launcher}")
    return int(text)


def check_world(launch: Mapping[str, Any], found: int, launcher: str) -> None:
    """Raises LaunchError if a launcher started another number of ranks than the trial asks for."""
    wanted = int(launch["nnodes"]) * int(launch["nproc_per_node"])
    if found != wanted:
        raise LaunchError(
            f"the trial was planned for {plural(wanted, 'rank')} and {launcher} started {found}; plan it anew"
        )
