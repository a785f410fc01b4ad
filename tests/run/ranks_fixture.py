"""Tiny workloads for trials of several ranks. Trials import this file by name, from PYTHONPATH."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from typing import Any

from workloads_fixture import ENVIRON_AT_IMPORT, Base, environ_at_exec, start_grandchild

LAUNCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranked(Base):
    """Knows its rank."""

    launch_mode = "distributed"

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])

    def leave(self, name: str, value: Any) -> None:
        """Writes a file of this rank's into the folder that the config names, whole."""
        path = f"{self.config['folder']}/{name}{self.rank}"
        with open(f"{path}.tmp", "w") as file:
            json.dump(value, file)
        os.replace(f"{path}.tmp", path)


class Meets(Ranked):
    """Meets the other ranks at the rendezvous and at nobody else's; the metrics are what they told each other."""

    def run(self) -> Any:
        # The supervisor's own mark of the trial, unless the ranks have several supervisors.
        token = self.config.get("token", os.environ["AORTA_TRIAL_TOKEN"])
        mine = {"rank": self.rank, "token": token, "env": {name: os.environ[name] for name in LAUNCH}}
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        told = [self._tell(address, mine)] if self.rank else self._hear(address, mine)
        tokens = {entry["token"] for entry in told}
        return self.good(passed=tokens == {mine["token"]}, metrics={"told": told})

    def _hear(self, address: tuple[str, int], mine: dict[str, Any]) -> list[dict[str, Any]]:
        told = []
        with socket.create_server(address) as server:
            server.settimeout(30)
            for _ in range(self.world - 1):
                peer, _address = server.accept()
                with peer, peer.makefile("rw") as stream:
                    told.append(json.loads(stream.readline()))
                    stream.write(json.dumps(mine) + "\n")
        return sorted(told, key=lambda entry: entry["rank"])

    def _tell(self, address: tuple[str, int], mine: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(address, 30) as peer, peer.makefile("rw") as stream:
                    stream.write(json.dumps(mine) + "\n")
                    stream.flush()
                    return dict(json.loads(stream.readline()))
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


class EndsOn(Ranked):
    """One rank ends as the config says, or the others do; the rest wait as if in a collective."""

    def run(self) -> Any:
        pids = [os.getpid()]
        if self.config.get("grandchild"):
            pids.append(start_grandchild())
        if self.config.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.leave("pids", pids)
        self._await_others()
        if self.rank == self.config["rank"]:
            print(f"last words of rank {self.rank}", file=sys.stderr, flush=True)
            self._end(self.config["end"])
        elif self.config.get("others") == "return":
            return self.good()
        time.sleep(600)
        return None

    def _await_others(self) -> None:
        for rank in range(self.world):
            while not os.path.exists(f"{self.config['folder']}/pids{rank}"):
                time.sleep(0.01)

    def _end(self, end: str) -> None:
        if end == "raise":
            raise ValueError("went wrong")
        if end == "exit":
            os._exit(7)
        if end == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


class EndsTogether(Ranked):
    """Rank 1 dies, and rank 0, which notices, raises right after."""

    def run(self) -> Any:
        path = f"{self.config['folder']}/dead"
        if self.rank == 1:
            with open(path, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.path.exists(path):
            time.sleep(0.001)
        raise ConnectionError("connection closed by peer")


class Results(Ranked):
    """Returns the result that the config has for its rank."""

    def run(self) -> Any:
        return self.good(metrics={"rank": self.rank}, **self.config["results"].get(str(self.rank), {}))


class Speaks(Ranked):
    """Says its rank on both outputs, and tells which reserved keys it got."""

    def run(self) -> Any:
        print(f"out of rank {self.rank}")
        print(f"err of rank {self.rank}", file=sys.stderr)
        self.leave("keys", sorted(name for name in self.config if name.startswith("_aorta_")))
        return self.good()


class Witness(Ranked):
    """Leaves what each rank's environment held at exec and at the import of this module."""

    def run(self) -> Any:
        names = self.config["names"]
        views = {"exec": environ_at_exec(), "import": ENVIRON_AT_IMPORT}
        self.leave("env", {view: {name: env.get(name) for name in names} for view, env in views.items()})
        return self.good()


class WorksOn(Ranked):
    """One rank computes for some seconds after the others have returned."""

    def run(self) -> Any:
        end = time.monotonic() + self.config["seconds"]
        while self.rank == self.config["rank"] and time.monotonic() < end:
            sum(range(1000))
        return self.good()
