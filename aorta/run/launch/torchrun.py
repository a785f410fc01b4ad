"""Ranks whose long-lived parents were all started by torchrun: each has a fresh worker started for every trial.

Standard library only; torchrun itself is told apart from others by what it sets, so any launcher that sets the same
variables will do.
"""

from __future__ import annotations

from aorta.run.launch.interface import Launcher, LaunchError, Place, check_world, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class TorchrunLauncher(Launcher):
    """The rank that torchrun gave this process's parent."""

    name = "torchrun"

    def places(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> list[Place]:
        """Returns the one rank of RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE."""
        rank, world, local, beside = (
            whole_number(env, name, "torchrun") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        )
        check_world(launch, world, "torchrun")
        # Not GROUP_RANK: other launchers do not set it.
        return [Place(rank, world, local, beside, rank // max(1, beside))]

    def address(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> str:
        """Returns MASTER_ADDR, or the loopback address for ranks that share one host."""
        if int(launch["nnodes"]) == 1:
            return "127.0.0.1"
        address = env.get("MASTER_ADDR")
        if not address:
            raise LaunchError("MASTER_ADDR is not set; it is set by torchrun")
        return address

    def agent_command(self, launch: Mapping[str, Any], agent: Sequence[str]) -> None:
        """Returns None: the parents that torchrun started follow rank 0's and start the agents."""
        return
