"""All ranks on this host, started by the trial's own supervisor. Standard library only."""

from __future__ import annotations

from aorta.run.launch.interface import Launcher, LaunchError, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class LocalLauncher(Launcher):
    """``nproc_per_node`` ranks, side by side."""

    name = "local"
    gathers = False

    def places(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> list[Place]:
        """Returns all ranks."""
        if int(launch["nnodes"]) != 1:
            raise LaunchError(
                f"the trial was planned for {launch['nnodes']} hosts and is started on one; start the sweep on all of "
                "them with torchrun, or plan it anew"
            )
        count = int(launch["nproc_per_node"])
        return [Place(rank, count, rank, count, 0) for rank in range(count)]

    def address(self, launch: Mapping[str, Any], env: Mapping[str, str]) -> str:
        """Returns the loopback address: a host's own name may not resolve."""
        return "127.0.0.1"

    def agent_command(self, launch: Mapping[str, Any], agent: Sequence[str]) -> None:
        """Returns None: there are no agents."""
        return
