"""A distributed workload for end-to-end tests: its ranks meet at the rendezvous by plain sockets, without torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from aorta._owner import start_time
from aorta.workloads import Workload, WorkloadResult

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NCCL_PROTO", "TORCHELASTIC_USE_AGENT_STORE")


class Ranked(Workload):
    """Rank 0 collects what every rank sees of its environment; ``kill`` names a rank that dies, ``hang`` a folder.

    ``pids`` names a folder in which each rank notes itself and a helper that it leaves running; ``take_mb`` is memory
    that the last rank holds for a minute.
    """

    launch_mode: ClassVar[Literal["single_process", "distributed"]] = "distributed"
    min_world_size: ClassVar[int] = 2

    def run(self) -> WorkloadResult:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if "hang" in self.config:
            Path(self.config["hang"], str(os.getpid())).touch()
            time.sleep(3600)
        if self.config.get("kill") == rank:
            print(f"last words of rank {rank}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if "take_mb" in self.config and rank == world - 1:
            # Not zeros, which would take no memory.
            taken = b"x" * (self.config["take_mb"] << 20)
            time.sleep(60)
            del taken
        mine: dict[str, Any] = {name: os.environ.get(name) for name in NAMES}
        if "pids" in self.config:
            mine["earlier"] = self._look_back(Path(self.config["pids"]), self.config["_aorta_trial_index"])
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        seen = [mine, *self._hear(address, world - 1)] if rank == 0 else self._tell(address, mine)
        return WorkloadResult(
            passed=True,
            total_iterations=self.config["steps"],
            step_times_ms=[1.0] * self.config["steps"],
            main_work_started=True,
            metrics={"ranks": sorted(seen, key=lambda entry: str(entry["RANK"]))},
        )

    @staticmethod
    def _look_back(folder: Path, trial: int) -> dict[str, bool]:
        """Notes this rank and a helper; tells of each process that another trial noted whether it is alive."""
        for pid in (os.getpid(), subprocess.Popen(["sleep", "3600"]).pid):
            (folder / f"{trial}.{pid}").write_text(str(start_time(pid)))
        found = {}
        for note in folder.iterdir():
            number, pid = note.name.split(".")
            if int(number) != trial:
                found[note.name] = str(start_time(int(pid))) == note.read_text()
        return found

    @staticmethod
    def _hear(address: tuple[str, int], others: int) -> list[dict[str, Any]]:
        seen = []
        with socket.create_server(address) as server:
            server.settimeout(60)
            for _ in range(others):
                peer, _address = server.accept()
                with peer, peer.makefile() as stream:
                    seen.append(json.loads(stream.readline()))
        return seen

    @staticmethod
    def _tell(address: tuple[str, int], mine: dict[str, Any]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(address, 60) as server:
                    server.sendall(json.dumps(mine).encode() + b"\n")
                return [mine]
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
