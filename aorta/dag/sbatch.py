"""Submits jobs by sbatch, and asks beforehand whether SLURM would take them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence

from aorta.dag.errors import say
from aorta.run.slurmjob import call

_ANSWER_SEC = 120.0
_READY_SEC = 60.0
_POLL_SEC = 2.0

_NO_NODES = "Requested node configuration is not available"
"""What sbatch says of what no node has; of every job while the controller, just started, waits for its nodes; and by
``--test-only`` of a job whose nodes are out of service, which it would take and let wait."""

_PASSING = ("busy", "down, drained")
"""What sbatch says of a job that could run at another time."""

_IN_SERVICE = ("allocated", "completing", "idle", "mixed", "planned")


def run_sbatch(command: Sequence[str], script: str = "") -> tuple[int, str, str]:
    """Runs sbatch; returns its exit status, what it printed, and what it said on standard error on one line.

    Args:
        command: The command.
        script: What it reads on standard input.
    """
    # Defaults that a site or user has set for sbatch are kept, but none of another array's.
    environment = {name: value for name, value in os.environ.items() if name != "SBATCH_ARRAY_INX"}
    try:
        done = subprocess.run(
            command,
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SEC,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"SLURM does not answer within {_ANSWER_SEC:g} s"
    return done.returncode, done.stdout, said_by_sbatch(done.stderr)


def said_by_sbatch(text: str) -> str:
    """Returns what sbatch says on standard error, on one line."""
    lines = [line.removeprefix("sbatch: error: ").strip() for line in text.splitlines()]
    return "; ".join(line for line in lines if line)


class Examiner:
    """Asks SLURM whether it would take jobs, and submits none.

    Args:
        plain: Command of a job that any cluster would take; what SLURM says against it says nothing of another.
        script: What the jobs run.
        pause: Waits for the given seconds; for tests.
    """

    def __init__(self, plain: Sequence[str], script: str = "", *, pause: Callable[[float], None] = time.sleep) -> None:
        self._plain = plain
        self._script = script
        self._pause = pause
        self._told = False
        self._ready_by: float | None = None

    def refusal(self, command: Sequence[str]) -> str | None:
        """Returns what SLURM says against a job, or None where it would take it, perhaps to let it wait."""
        said = self._said(command)
        return None if said is not None and _NO_NODES in said and _has_nodes_out_of_service() else said

    def refusals(self, command: Sequence[str]) -> tuple[str | None, str | None]:
        """Returns :meth:`refusal` of a job, and where there is one what SLURM says against the plain one, or None.

        A controller that was just started is waited for.
        """
        while True:
            whole = self._said(command)
            plain = None if whole is None else self._said(self._plain)
            if self._ready_by is None:
                self._ready_by = time.monotonic() + _READY_SEC
            if plain is None or _NO_NODES not in plain or time.monotonic() >= self._ready_by:
                break
            if not self._told:
                say("SLURM has no nodes for any job, as after a restart of its controller; it is asked again")
            self._told = True
            self._pause(_POLL_SEC)
        if whole is not None and _NO_NODES in whole and _has_nodes_out_of_service():
            return None, None
        return whole, plain

    def _said(self, command: Sequence[str]) -> str | None:
        code, _printed, said = run_sbatch([*command, "--test-only"], self._script)
        if code == 0 or any(text in said for text in _PASSING):
            return None
        known = partitions() if "invalid partition" in said.lower() else []
        return f"{said}; there is {', '.join(known)}" if known else said


def partitions() -> list[str]:
    """Returns the names of the cluster's partitions; none where SLURM names none."""
    return (call(["sinfo", "-h", "-o", "%R"]) or "").split()


def _has_nodes_out_of_service() -> bool:
    """Whether some node is down, drained or reserved: jobs for it would wait, so that SLURM's word is none."""
    states = (call(["sinfo", "-h", "-o", "%T"]) or "").split()
    # A mark behind the state tells more: * of a node that does not answer, ~ of one that is powered up when needed.
    return any(state.endswith("*") or state.rstrip("~#%@^$+-!") not in _IN_SERVICE for state in states)
