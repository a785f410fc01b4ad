"""Tiny workloads, one for each way a trial can end. Trials import this file by name, from PYTHONPATH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

ENVIRON_AT_IMPORT = dict(os.environ)


def environ_at_exec() -> dict[str, str]:
    """What the kernel was given at exec: earlier than any Python code."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def own_facts() -> dict[str, Any]:
    """What the kernel knows of this process."""
    with open("/proc/self/oom_score_adj") as file:
        return {"oom_score_adj": int(file.read()), "session": os.getsid(0)}


class Base:
    """A good trial whose parts are replaced one by one below; it needs nothing of aorta."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        pass

    def run(self) -> Any:
        return self.good()

    def cleanup(self) -> None:
        pass

    @staticmethod
    def good(**fields: Any) -> dict[str, Any]:
        return {"passed": True, "total_iterations": 2, "step_times_ms": [1.0, 2.0], "elapsed_sec": 0.003, **fields}


class Noop(Base):
    pass


class Fails(Base):
    def run(self) -> Any:
        return self.good(passed=False, failure_count=3, first_failure_iteration=1, failure_details=[{"hint": "look"}])


class NeverStarted(Base):
    def run(self) -> Any:
        return self.good(passed=bool(self.config.get("passed", True)), main_work_started=False)


class Dataclass(Base):
    def run(self) -> Any:
        from aorta.workloads.base import WorkloadResult

        return WorkloadResult(passed=True, metrics={"config": self.config, "modules": sorted(sys.modules)})


class Environ(Base):
    def run(self) -> Any:
        names = self.config["names"]
        views = {"exec": environ_at_exec(), "import": ENVIRON_AT_IMPORT, "run": dict(os.environ)}
        metrics = {view: {name: env[name] for name in names if name in env} for view, env in views.items()}
        return self.good(
            metrics={**metrics, "hash": hash("aorta"), "argv": sys.argv, "stdin": sys.stdin.read(), **own_facts()}
        )


class ConstructorRaises(Base):
    def __init__(self, config: dict[str, Any]) -> None:
        raise ValueError("no such device")


class SetupRaises(Base):
    def setup(self) -> None:
        raise RuntimeError("no compiler")

    def cleanup(self) -> None:
        print("cleanup was called", file=sys.stderr)


class RunRaises(Base):
    def run(self) -> Any:
        print("last words", file=sys.stderr)
        raise ValueError("went wrong \ud800")


class CleanupRaises(Base):
    def cleanup(self) -> None:
        raise OSError("device busy")


class Exits(Base):
    """Leaves by ``sys.exit`` or ``os._exit``, in the phase and with the code that the config names."""

    def _leave(self, phase: str) -> None:
        if self.config.get("phase", "run") == phase:
            if self.config.get("hard"):
                os._exit(self.config["code"])
            sys.exit(self.config["code"])

    def setup(self) -> None:
        self._leave("setup")

    def run(self) -> Any:
        self._leave("run")
        return self.good()

    def cleanup(self) -> None:
        self._leave("cleanup")


class Killed(Base):
    """Dies of a signal in the phase that the config names."""

    def _die(self, phase: str) -> None:
        if self.config["phase"] == phase:
            os.kill(os.getpid(), getattr(signal, self.config["signal"]))

    def setup(self) -> None:
        self._die("setup")

    def run(self) -> Any:
        self._die("run")
        return self.good()

    def cleanup(self) -> None:
        self._die("cleanup")


class CrashesAtExit(Base):
    def run(self) -> Any:
        import atexit

        atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
        return self.good(metrics={"kept": 1})


class Returns(Base):
    """Returns something that is not a result."""

    def run(self) -> Any:
        return {"none": None, "text": "passed", "int_passed": {"passed": 1}, "type": Noop}[self.config["what"]]


class OddValues(Base):
    def run(self) -> Any:
        import numpy
        import torch

        class Odd:
            def __repr__(self) -> str:
                raise RuntimeError("no repr")

        loop: list[Any] = [1]
        loop.append(loop)
        metrics = {
            "nan": float("nan"),
            "inf": -float("inf"),
            "np": numpy.float32(1.5),
            "np_int": numpy.int64(7),
            "np_array": numpy.arange(3),
            "tensor": torch.tensor(2.5),
            "tensor_nan": torch.tensor([1.0, float("nan")]),
            "set": {3, 1, 2},
            "tuple": (1, "a"),
            "loop": loop,
            "long": "x" * 2_000_000,
            "odd": Odd(),
            "surrogate": "\udcff",
            "huge": 10**5000,
            "object": threading.Lock(),
            1: "int key",
            (1, 2): "tuple key",
            None: "none key",
        }
        return self.good(passed=numpy.bool_(True), metrics=metrics, step_times_ms=numpy.array([1.0, float("nan"), 3.0]))


class Sleeps(Base):
    """Writes its process ids to the folder that the config names, then sleeps for a long time.

    ``stubborn`` ignores SIGTERM; ``grandchild`` starts one that has left the session and keeps the output open.
    """

    def run(self) -> Any:
        if self.config.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pids = [os.getpid()]
        if self.config.get("grandchild"):
            pids.append(start_grandchild())
        with open(f"{self.config['folder']}/pids.tmp", "w") as file:
            json.dump(pids, file)
        os.replace(f"{self.config['folder']}/pids.tmp", f"{self.config['folder']}/pids")
        if not self.config.get("returns"):
            time.sleep(600)
        return self.good(metrics={"pids": pids})


def start_grandchild() -> int:
    """Returns the id of a process that left the session, ignores SIGTERM, and whose parent has gone."""
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    middle = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {program!r}], start_new_session=True); "
        "print(child.pid)"
    )
    read, write = os.pipe()
    subprocess.run([sys.executable, "-S", "-c", middle], stdout=write, start_new_session=True, check=True)
    pid = int(os.read(read, 64))
    os.close(read)
    os.close(write)
    return pid


class Chatty(Base):
    def run(self) -> Any:
        line = b"x" * 99 + b"\n"
        for _ in range(400):
            os.write(1, line * 1000)
            os.write(2, line * 100)
        os.write(2, b"\xff the end\n")
        raise ValueError("said enough")


class Prints(Base):
    def run(self) -> Any:
        print("python out")
        print("python err", file=sys.stderr)
        subprocess.run("echo child out; echo child err >&2", shell=True, check=True)
        return self.good()


class Vandal(Base):
    """Does to its process what no workload should: everything here must leave the report whole."""

    def run(self) -> Any:
        os.write(1, b'{"result": {"passed": false}}\n\x00\xff')
        os.chdir("/")
        os.closerange(0, 64)
        os.open("/dev/null", os.O_RDWR)
        json.dumps = None  # type: ignore[assignment]
        os.write = None  # type: ignore[assignment]
        os.environ.clear()
        return self.good()


class Forks(Base):
    """A copy of the process returns through the engine's code."""

    def run(self) -> Any:
        pid = os.fork()
        if pid == 0:
            return {"passed": False}
        os.waitpid(pid, 0)
        return self.good()


class EndsHelper(Base):
    """Ends a forked helper that has begun its work, as data loaders do."""

    def run(self) -> Any:
        ready, begun = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(begun, b"x")
            while True:
                signal.pause()
        os.read(ready, 1)
        os.kill(pid, signal.SIGTERM)
        return self.good(metrics={"status": os.waitpid(pid, 0)[1]})


class HangsAtExit(Base):
    def run(self) -> Any:
        threading.Thread(target=time.sleep, args=(600,)).start()
        return self.good()


class NeedsTwo(Base):
    launch_mode = "distributed"
    min_world_size = 2


class WritesSnapshot(Base):
    """Captures the environment as a container's wrapper would: another Python, nothing installed, two paths."""

    def run(self) -> Any:
        probe = self.config.get("_aorta_env_probe")
        if probe is not None and self.config.get("write"):
            os.makedirs(os.path.dirname(probe["out"]), exist_ok=True)
            command = [sys.executable, "-S", "-m", "aorta.instrumentation._probe_main", probe["out"]]
            subprocess.run(command, env={"PYTHONPATH": probe["src"], "PATH": os.environ["PATH"]}, check=True)
        return self.good(metrics={"probe": probe})


class NotAWorkload:
    pass
