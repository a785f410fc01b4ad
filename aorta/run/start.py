"""Starts a rank: its request, its environment, its output. Standard library only: imported before every trial."""

from __future__ import annotations

import json
import os
import sys

from aorta.run import request
from aorta.run.launch import FOREIGN_PREFIXES, LAUNCH_VARIABLES
from aorta.run.output import ErrorOutput
from aorta.run.process import TOKEN_VARIABLE
from aorta.run.ranks import LocalRank
from aorta.run.report import ReportFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from aorta.run.device import Held
    from aorta.run.launch import Place
    from aorta.run.process import Tree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder that holds the package."""

ENGINE_PREFIX = "AORTA_TORCHRUN_"
"""Variables by which the processes of a sweep under torchrun find each other; no business of a trial's."""

HUB_VARIABLE = "AORTA_TORCHRUN_HUB"
"""Address of the sweep's own process, which calls the other ranks' parents."""

KEY_VARIABLE = "AORTA_TORCHRUN_KEY"
"""What proves that a process belongs to the sweep, or to the trial that it joins."""

THREADS_VARIABLE = "OMP_NUM_THREADS"

# -c, not -m or a script: it finds this very copy of the package whatever PYTHONPATH the overlay sets, -P keeps the
# working folder off the path, and the modules come compiled. The package's folder goes last, as if installed.
_BOOTSTRAP = """\
import sys
root = sys.argv.pop(3)
sys.path.insert(0, root)
import aorta.run.worker
sys.path.remove(root)
if root not in sys.path: sys.path.append(root)
aorta.run.worker.main()
"""


def base_env(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what a trial inherits: the given environment without anything that a launcher told this process.

    Args:
        env: An environment from which ``request.outer_env`` has taken an enclosing trial's variables.
    """
    return {
        name: value
        for name, value in env.items()
        if name not in LAUNCH_VARIABLES and not name.startswith((*FOREIGN_PREFIXES, ENGINE_PREFIX))
    }


class Starter:
    """Starts the ranks of one trial on this host.

    Args:
        arguments: The supervisor's command line.
        cell: The cell's request.
        tree: The processes of the trial on this host.
        base: What the ranks inherit.
        held: What the trial holds on this host.
        token: The value of ``AORTA_TRIAL_TOKEN``.
    """

    def __init__(
        self,
        arguments: request.Arguments,
        cell: Mapping[str, Any],
        tree: Tree,
        base: Mapping[str, str],
        held: Held,
        token: str,
    ) -> None:
        self._arguments = arguments
        self._cell = cell
        self._tree = tree
        self._base = base
        self._held = held
        self._token = token
        self._stem = request.trial_stem(arguments, cell)
        self._overlay = request.overlay_of(cell)
        self._rank_logs = bool(cell.get("rank_logs"))

    def start(
        self, place: Place | None, rendezvous: Mapping[str, str], probe: Mapping[str, str] | None = None
    ) -> LocalRank:
        """Starts one fresh interpreter.

        Args:
            place: Which rank it is, or None for a workload that has no ranks.
            rendezvous: The launcher's variables for it.
            probe: The snapshot of the environment that rank 0 is asked for.

        Raises:
            OSError: A log file cannot be made.
        """
        first = place is None or place.rank == 0
        keep_logs = self._rank_logs or (first and bool(self._cell["save_logs"]))
        stem = self._stem if first or place is None else f"{self._stem}.rank{place.rank}"
        # The keys that ask a workload for files of its own are for rank 0 alone: the ranks would overwrite each other.
        config = request.workload_config(
            self._cell,
            self._overlay,
            probe,
            self._stem if first and keep_logs else None,
            self._arguments.trial,
        )
        logs = None
        if keep_logs:
            name = os.path.basename(stem)
            logs = {"stdout": f"{name}.stdout.log", "stderr": f"{name}.stderr.log"}
            output = ErrorOutput(f"{stem}.stdout.log", f"{stem}.stderr.log")
        else:
            output = ErrorOutput()
        report_file = ReportFile()
        stdin = _in_memory(json.dumps(request.worker_request(self._cell, config, self._overlay)).encode("ascii"))
        worker = self._tree.start(
            [sys.executable, "-P", "-c", _BOOTSTRAP, str(report_file.descriptor), str(os.getpid()), ROOT],
            self._env(place, rendezvous),
            stdin=stdin,
            output=output,
            keep=[report_file.descriptor],
            failed=report_file.exec_failed,
        )
        os.close(stdin)
        output.release()
        devices = self._held.devices
        device = devices[place.local_rank % len(devices)] if place else devices[0]
        return LocalRank(worker, report_file, output, place=place, device=device, logs=logs)

    def _env(self, place: Place | None, rendezvous: Mapping[str, str]) -> dict[str, str]:
        env = {**self._base, **self._held.variables, **rendezvous}
        if place is not None and place.local_world_size > 1:
            # As torchrun does: ranks that each take every core measure their quarrel over it.
            env.setdefault(THREADS_VARIABLE, "1")
        if self._cell["isolation"] == "process":
            env.update(self._overlay)
            env.update(request.overlay_mark(self._overlay, place is not None))
        elif place is not None:
            env.update(request.overlay_mark({}, launched=True))
        env[TOKEN_VARIABLE] = self._token
        return env


def _in_memory(data: bytes) -> int:
    """Returns a descriptor to read ``data`` from: unlike a pipe, it holds any amount and needs no writer."""
    descriptor = os.memfd_create("aorta-trial-request", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
