"""Runs one trial: reads the cell's request, holds a device, starts the worker, and writes the record.

Standard library only, and little of that: this is imported before every trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from aorta._jsonio import write_json_atomic
from aorta.run import record, request
from aorta.run.claim import Claim
from aorta.run.device import Held, hold
from aorta.run.launch import single_rank_env, too_few_ranks, world_size
from aorta.run.locks import LockError
from aorta.run.needed import read_outcome, seen_enough
from aorta.run.output import ErrorOutput
from aorta.run.process import (
    TOKEN_VARIABLE,
    Interrupted,
    SignalWatch,
    Worker,
    fill_standard_descriptors,
)
from aorta.run.report import ReportFile
from aorta.run.retry import Attempts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder that holds the package."""

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


def main(argv: Sequence[str], usage: str | None = None) -> int:
    """Runs one trial and writes its record.

    Args:
        argv: The command line without the program.
        usage: Text for ``--help``.

    Returns:
        The exit status: 0 when the record was written, else as ``aorta.run.supervise`` says.
    """
    if any(word in ("-h", "--help") for word in argv):
        print((usage or "").strip())
        return 0
    fill_standard_descriptors()
    signals = SignalWatch()
    try:
        arguments = request.Arguments(argv)
        cell = request.read_cell(arguments)
        trial_record = _Trial(arguments, cell, signals).run()
    except (request.RequestError, LockError) as error:
        _say(f"aorta: {error}")
        return 2
    except Interrupted as interrupted:
        _say(f"aorta: ended by {interrupted}; the trial has no record")
        return 128 + interrupted.signum
    except OSError as error:
        _say(f"aorta: {error.filename or arguments.run_dir}: {error.strerror}; the trial has no record")
        return 1
    if trial_record is None:
        _say(f"aorta: {arguments.cell} trial {arguments.trial}: is recorded already and does not run again")
        return 0
    colour = sys.stderr is not None and sys.stderr.isatty()
    _say(record.progress_line(trial_record, arguments.of, colour))
    return 0


def _say(line: str) -> None:
    # Whoever listened may have gone, or closed the descriptor beforehand; the record matters more.
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)


class _Trial:
    """One trial, from the request to the written record."""

    def __init__(self, arguments: request.Arguments, cell: dict[str, Any], signals: SignalWatch) -> None:
        self._arguments = arguments
        self._cell = cell
        self._signals = signals
        self._token = os.urandom(16).hex()
        self._overlay = request.overlay_of(cell)
        self._distributed = cell["launch"]["mode"] == "distributed"
        self._stem = request.trial_stem(arguments, cell)

    def run(self) -> dict[str, Any] | None:
        """Runs the trial and writes its record, unless there is one already.

        Returns:
            The record that was written, or None where the trial had one.

        Raises:
            Interrupted: The supervisor was asked to end; nothing of the trial is left.
            LockError: What the trial runs on cannot be locked.
            OSError: The claim, the record, or a log file cannot be written.
        """
        arguments = self._arguments
        claim = Claim(arguments.run_dir, arguments.cell, arguments.trial, self._token)
        # Before the device: who waits for another process's trial must not keep the device from it.
        claimed = claim.acquire(
            is_recorded=self._is_recorded,
            pause=self._pause,
            notify=self._notify,
        )
        if not claimed:
            return None
        try:
            return self._run_claimed()
        finally:
            claim.release()

    def _run_claimed(self) -> dict[str, Any]:
        os.makedirs(os.path.dirname(self._stem), exist_ok=True)
        base = request.outer_env(os.environ)
        attempts = Attempts(self._cell, self._stem)
        trial_record = self._not_needed()
        while trial_record is None or attempts.again(trial_record):
            held = hold(
                base,
                self._overlay,
                count=int(self._cell["launch"]["nproc_per_node"]),
                slots=self._arguments.devices,
                lock=self._arguments.device_lock,
                token=self._token,
                pause=self._pause,
                notify=self._notify,
            )
            try:
                # Once more: the wait for a device may have been long.
                trial_record = self._not_needed() or self._refusal(held) or self._run_worker(base, held)
                self._signals.check()
            finally:
                held.release()
        attempts.number(trial_record)
        write_json_atomic(f"{self._stem}.json", trial_record)
        attempts.forget()
        return trial_record

    def _is_recorded(self) -> bool:
        """Tells whether the trial has a record that still holds."""
        outcome = read_outcome(f"{self._stem}.json", self._cell["fingerprint"])
        if outcome is None or outcome[0] != record.NOT_NEEDED:
            return outcome is not None
        return seen_enough(self._cell, self._stem, self._arguments.trial) is not None

    def _not_needed(self) -> dict[str, Any] | None:
        """Returns the record of a trial whose cell has seen enough without it, or None."""
        reason = seen_enough(self._cell, self._stem, self._arguments.trial)
        if reason is None:
            return None
        now = time.time()
        return record.build(
            self._arguments,
            self._cell,
            exit_status=record.NOT_NEEDED,
            error=None,
            overlay=self._overlay,
            device=None,
            started_at=now,
            ended_at=now,
            not_needed=reason,
        )

    def _notify(self, text: str) -> None:
        _say(f"aorta: {self._arguments.cell} trial {self._arguments.trial}: {text}")

    def _pause(self, seconds: float) -> None:
        self._signals.check()
        self._signals.wait(seconds)

    def _refusal(self, held: Held) -> dict[str, Any] | None:
        """Returns the record of a trial that cannot be launched, or None."""
        launch = self._cell["launch"]
        needed, world = int(launch["min_world_size"]), world_size(launch)
        if self._distributed and needed > world:
            message = too_few_ranks(self._cell["workload"], needed, world)
        elif world > 1:
            message = f"the trial asks for {world} ranks; this version starts one"
        else:
            return None
        now = time.time()
        return record.build(
            self._arguments,
            self._cell,
            exit_status="workload_setup_failed",
            error=record.error_entry("resolve", "launch", message),
            overlay=self._overlay,
            device=held.device,
            started_at=now,
            ended_at=now,
        )

    def _worker_env(self, base: Mapping[str, str], held: Held) -> dict[str, str]:
        env = {**base, **held.variables}
        if self._distributed:
            env.update(single_rank_env())
        if self._cell["isolation"] == "process":
            env.update(self._overlay)
            env.update(request.overlay_mark(self._overlay, self._distributed))
        elif self._distributed:
            env.update(request.overlay_mark({}, launched=True))
        env[TOKEN_VARIABLE] = self._token
        return env

    def _run_worker(self, base: Mapping[str, str], held: Held) -> dict[str, Any]:
        arguments, cell = self._arguments, self._cell
        limit = cell["trial_timeout_sec"]
        probe = request.probe_request(arguments, cell, _ROOT)
        prefix = self._stem if cell["save_logs"] else None
        config = request.workload_config(cell, self._overlay, probe, prefix, arguments.trial)
        logs = None
        if cell["save_logs"]:
            stem = os.path.basename(self._stem)
            logs = {"stdout": f"{stem}.stdout.log", "stderr": f"{stem}.stderr.log"}
            output = ErrorOutput(f"{self._stem}.stdout.log", f"{self._stem}.stderr.log")
        else:
            output = ErrorOutput()
        report_file = ReportFile()
        stdin = _in_memory(json.dumps(request.worker_request(cell, config, self._overlay)).encode("ascii"))
        started_at = time.time()
        worker = Worker(
            [
                sys.executable,
                "-P",
                "-c",
                _BOOTSTRAP,
                str(report_file.descriptor),
                str(os.getpid()),
                _ROOT,
            ],
            self._worker_env(base, held),
            token=self._token,
            stdin=stdin,
            output=output,
            keep=[report_file.descriptor],
            failed=report_file.exec_failed,
        )
        os.close(stdin)
        output.release()
        ending = worker.supervise(self._signals, limit, report_file.reported)
        if ending.left_behind:
            pids = ", ".join(map(str, ending.left_behind))
            _say(f"aorta: {arguments.cell} trial {arguments.trial}: SIGKILL did not end process {pids}")
        ended_at = started_at + (ending.ended - ending.started)
        report = report_file.read()
        exit_status, error = record.judge(ending, report, limit)
        if error is not None:
            error["stderr_tail"] = output.tail()
        captured = None
        if probe is not None:
            captured = "captured" if request.has_snapshot(probe["out"]) else "missing"
        return record.build(
            arguments,
            cell,
            exit_status=exit_status,
            error=error,
            overlay=self._overlay,
            device=held.device,
            started_at=started_at,
            ended_at=ended_at,
            ending=ending,
            report=report,
            worker_pid=worker.pid,
            environment_probe=captured,
            logs=logs,
        )


def _in_memory(data: bytes) -> int:
    """Returns a descriptor to read ``data`` from: unlike a pipe, it holds any amount and needs no writer."""
    descriptor = os.memfd_create("aorta-trial-request", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
