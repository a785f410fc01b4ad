"""Runs one trial: reads the cell's request, holds a device, starts the worker, and writes the record.

Standard library only, and little of that: this is imported before every trial.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from aorta._jsonio import NotRegularError, PendingFile, json_text, require_regular, temporary_prefix, told
from aorta.run import record, request
from aorta.run.attempt import Attempt
from aorta.run.claim import Claim
from aorta.run.device import Held, hold
from aorta.run.launch import AgentLost, LaunchError, NoAnswer
from aorta.run.locks import LockError
from aorta.run.needed import read_outcome, seen_enough
from aorta.run.process import Interrupted, SignalWatch, fill_standard_descriptors
from aorta.run.retry import Attempts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from aorta.run.lost import Lost
    from aorta.run.slurmjob import Job

    T = TypeVar("T")

ROOM_BYTES = 64 * 1024
"""What a record's place is to hold before its trial starts; most records are smaller."""

_PATIENCE_SEC = 600.0
"""How long SLURM may not answer while a job waits for it, and while the end of a sweep does."""

_SETTLE_PATIENCE_SEC = 60.0

_JOB_SIGNAL_SEC = 0.5
"""How much later than a part of its job this process may hear of the job's end."""


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
        if arguments.join is not None:
            return _be_agent(arguments, cell, signals)
        trial_record = _Trial(arguments, cell, signals).run()
    except (request.RequestError, LockError, LaunchError) as error:
        _say(f"aorta: {error}")
        return 1 if isinstance(error, AgentLost) else 2
    except Interrupted as interrupted:
        _say(f"aorta: ended by {interrupted}; the trial has no record")
        return 128 + interrupted.signum
    except NoAnswer as error:
        _say(f"aorta: {arguments.cell} trial {arguments.trial}: {error}; the trial has no record")
        return 1
    except (OSError, NotRegularError) as error:
        _say(f"aorta: {told(error, arguments.run_dir)}; the trial has no record")
        return 1
    if trial_record is None:
        if arguments.settle:
            return 0
        _say(f"aorta: {arguments.cell} trial {arguments.trial}: is recorded already and does not run again")
        return 0
    colour = sys.stderr is not None and sys.stderr.isatty()
    _say(record.progress_line(trial_record, arguments.of, colour))
    return 0


def _error_of(lost: AgentLost, job: Job) -> dict[str, Any]:
    """Returns the error of a trial whose job has lost a part: which, and what SLURM says of it."""
    from aorta.run.slurmjob import Job, is_over_memory

    message = str(lost).removesuffix("; the trial has no record")
    hint = None
    if is_over_memory("\n".join(lost.said)):
        end = Job(job.number, state="OUT_OF_MEMORY")
        message, hint = f"{message}: SLURM ended it: {end.end_text()}", end.hint()
    return record.error_entry("process", "slurm", message, rank=lost.rank, hint=hint, stderr_tail=lost.said)


def _say(line: str) -> None:
    # Whoever listened may have gone, or closed the descriptor beforehand; the record matters more.
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)


def _be_agent(arguments: request.Arguments, cell: dict[str, Any], signals: SignalWatch) -> int:
    from aorta.run.agent import LeadLost, run_agent

    try:
        run_agent(arguments, cell, signals, os.environ, lambda text: _say(f"aorta: {arguments.cell}: {text}"))
    except LeadLost as lost:
        _say(f"aorta: {arguments.cell} trial {arguments.trial}: {lost}")
        return 1
    return 0


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
        self._claim = Claim(arguments.run_dir, arguments.cell, arguments.trial, self._token)

    def run(self) -> dict[str, Any] | None:
        """Runs the trial and writes its record, unless there is one already.

        Returns:
            The record that was written, or None where the trial had one.

        Raises:
            Interrupted: The supervisor was asked to end; nothing of the trial is left.
            LockError: What the trial runs on cannot be locked.
            NotRegularError: Something other than a file lies in the record's place; nothing was started.
            OSError: The claim, the record, or a log file cannot be written.
        """
        claim = self._claim
        # Before the device: who waits for another process's trial must not keep the device from it.
        claimed = claim.acquire(
            is_recorded=self._is_recorded,
            pause=self._pause,
            notify=self._notify,
        )
        if not claimed:
            return None
        try:
            self._clear_after(claim.dead)
            return self._run_claimed()
        finally:
            claim.release()

    def _run_claimed(self) -> dict[str, Any] | None:
        path = f"{self._stem}.json"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            require_regular(path)
        # Before anything is started: a trial of hours whose record then finds no room would be lost, and tried again.
        pending = PendingFile(path, ROOM_BYTES)
        try:
            ended = self._run_to_its_end()
            if ended is None:
                return None
            attempts, trial_record = ended
            pending.commit(json_text(trial_record))
        finally:
            pending.discard()
        attempts.forget()
        return trial_record

    def _run_to_its_end(self) -> tuple[Attempts, dict[str, Any]] | None:
        base = request.outer_env(os.environ)
        job = self._job()
        attempts = Attempts(self._cell, self._stem, job, sweep=self._arguments.sweep)
        # Who asks SLURM imports what asking takes; few trials have anything to ask.
        lost = self._answered(attempts.take_up_lost) if attempts.has_open else None
        if lost is None and self._arguments.settle:
            return None
        trial_record = self._not_needed() if lost is None else self._lost(lost)
        while trial_record is None or attempts.again(trial_record):
            held = hold(
                base,
                self._overlay,
                # Only a command itself knows how many accelerators it uses.
                count=sys.maxsize if "probe" in self._cell else int(self._cell["launch"]["nproc_per_node"]),
                slots=self._arguments.devices,
                lock=self._arguments.device_lock,
                token=self._token,
                pause=self._pause,
                notify=self._notify_wait,
            )
            try:
                self._claim.forget_wait()
                # Once more: the wait for a device may have been long.
                trial_record = self._not_needed()
                if trial_record is None:
                    attempts.begin(held.device)
                    trial_record = self._attempt(base, held, job)
                self._signals.check()
            except Interrupted:
                attempts.interrupted()
                raise
            except (LockError, LaunchError, OSError) as error:
                if not isinstance(error, AgentLost):
                    attempts.give_up()
                raise
            finally:
                held.release()
        attempts.number(trial_record)
        return attempts, trial_record

    def _clear_after(self, dead: Sequence[Mapping[str, Any]]) -> None:
        """Removes the files that killed supervisors of this trial had begun."""
        folder = os.path.dirname(self._stem)
        for owner in dead:
            prefix = temporary_prefix(owner["host"], owner["pid"])
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.startswith(prefix):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, name))

    @staticmethod
    def _job() -> Job | None:
        """Returns the SLURM job that this process runs in, or None."""
        if "SLURM_JOB_ID" not in os.environ:
            return None
        from aorta.run.slurmjob import this_job

        return this_job(os.environ)

    def _answered(self, ask: Callable[[], T]) -> T:
        """Asks SLURM until it answers: a controller that is down for a while ends no trial and decides nothing."""
        from aorta.run.slurmjob import answered

        patience = _SETTLE_PATIENCE_SEC if self._arguments.settle else _PATIENCE_SEC
        return answered(ask, patience_sec=patience, pause=self._pause, notify=self._notify)

    def _lost(self, lost: Lost) -> dict[str, Any]:
        """Returns the record of an attempt that its job's end took along, and after which there is no other."""
        left = lost.note
        made = self._unstarted("infrastructure_failed", lost.error, left["device"], lost.started, lost.ended)
        seconds = 0.0 if lost.ended is None else round(lost.ended - lost.started, 6)
        return {**made, "wall_clock_sec": seconds, "host": dict(left["host"]), "slurm": dict(left["slurm"])}

    def _unstarted(
        self,
        exit_status: str,
        error: dict[str, Any],
        device: Mapping[str, Any] | None,
        started_at: float,
        ended_at: float | None = None,
    ) -> dict[str, Any]:
        """Returns a record that no worker has contributed to."""
        return record.build(
            self._arguments,
            self._cell,
            exit_status=exit_status,
            error=error,
            overlay=self._overlay,
            device=device,
            started_at=started_at,
            ended_at=time.time() if ended_at is None else ended_at,
        )

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

    def _notify_wait(self, text: str) -> None:
        """Tells of a long wait for what the trial runs on, also whoever asks how the sweep stands."""
        self._claim.note_wait(text)
        self._notify(text)

    def _attempt(self, env: Mapping[str, str], held: Held, job: Job | None) -> dict[str, Any]:
        kind: type[Attempt | CommandAttempt] = Attempt
        if "probe" in self._cell:
            from aorta.run.opaque import CommandAttempt

            kind = CommandAttempt
        attempt = kind(self._arguments, self._cell, self._signals, self._token, env, held, self._notify)
        started_at, began = time.time(), time.monotonic()
        try:
            trial_record = attempt.run()
        except AgentLost as lost:
            if job is None or not self._outlives(job):
                raise
            # Of the job, this supervisor has outlived a part: a step, a node. It can still say so.
            error = _error_of(lost, job)
            trial_record = self._unstarted("infrastructure_failed", error, held.device, started_at)
            trial_record["wall_clock_sec"] = round(time.monotonic() - began, 6)
        if job is not None:
            from aorta.run.lost import job_entry

            if trial_record["exit_status"] == "infrastructure_failed":
                # What ends a job reaches its worker and this process, in whatever order; the trial has not failed then.
                self._hear_of_the_end()
            trial_record["slurm"] = job_entry(job)
        return trial_record

    def _outlives(self, job: Job) -> bool:
        """Whether the job goes on; the signal that tells this process of its end may come a moment later."""
        from aorta.run.slurmjob import find_job

        self._hear_of_the_end()
        return self._answered(lambda: find_job(job.number)).state == "RUNNING"

    def _hear_of_the_end(self) -> None:
        """Gives the signal that ends this process's job time to come.

        Raises:
            Interrupted: It came.
        """
        deadline = time.monotonic() + _JOB_SIGNAL_SEC
        while (left := deadline - time.monotonic()) > 0:
            self._signals.wait(left)
            self._signals.check()

    def _pause(self, seconds: float) -> None:
        self._signals.check()
        self._signals.wait(seconds)
