"""A trial's claim: at most one process runs a (cell, trial) of a run directory at a time, on whatever host.

A claim is a small file in ``<run>/.aorta/claims/<cell>/``, there from before the trial starts until its record is
written. It is made with ``link()``, which is atomic on local and network file systems alike and gives the file its
whole content at once. Its name ends in a generation: who finds a claim whose owner is dead makes the next generation
instead of removing the old one, so that of two who take over at once one gets it and the other sees that.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import time

from aorta import _owner
from aorta._jsonio import NotRegularError, naming, read_regular, temporary_name, write_text_atomic
from aorta.run.process import DEATH_SEC, kill_all, marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NOTICE_SEC = 1.0
"""A wait that is longer than this is reported once."""

_FIRST_PAUSE_SEC = 0.01
_LONGEST_PAUSE_SEC = 0.5
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
"""Where batch systems tell a process its job."""

_WAITING = ".waiting"
"""What the name of a note about a claim's wait ends in, after the claim's own."""


def claims_folder(run_dir: str) -> str:
    """Returns the folder of a run's claims; it has one folder a cell."""
    return os.path.join(run_dir, ".aorta", "claims")


class Found:
    """A claim on disk.

    Attributes:
        path: Its file.
        trial: The trial's index.
        generation: Its place among the claims of this trial, from 1.
        owner: Who made it, or None if the file is unreadable.
        moved: A value that changes with each heartbeat.
    """

    __slots__ = ("generation", "moved", "owner", "path", "trial")

    def __init__(
        self, path: str, trial: int, generation: int, owner: dict[str, Any] | None, moved: tuple[int, ...]
    ) -> None:
        self.path = path
        self.trial = trial
        self.generation = generation
        self.owner = owner
        self.moved = moved


def find(folder: str, trial: int | None = None) -> list[Found]:
    """Returns the claims in a cell's folder, oldest generation first.

    Args:
        folder: The cell's folder of claims; need not exist.
        trial: Only this trial's, or None for all.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names:
        number, _, generation = name.partition(".")
        if not (_is_number(number[1:]) and number[:1] == "t" and _is_number(generation)):
            continue
        if trial is None or number == f"t{trial}":
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                data, status = _look(path)
                moved = (status.st_ino, status.st_mtime_ns, status.st_size)
                found.append(Found(path, int(number[1:]), int(generation), _owner.parse_owner(data), moved))
    return sorted(found, key=lambda claim: (claim.trial, claim.generation))


def waiting_for(path: str) -> str | None:
    """Returns what the owner of a claim waits for before its trial starts; None if it is not known to wait.

    Args:
        path: The claim's file.
    """
    try:
        return read_regular(path + _WAITING).decode("utf-8", "replace")
    except (OSError, NotRegularError):
        return None


def remove(path: str) -> None:
    """Removes a claim's file and what was noted about it; never raises."""
    # The note first: without its claim it would be taken for the next one's.
    _remove(path + _WAITING)
    _remove(path)


def _look(path: str) -> tuple[bytes, os.stat_result]:
    """Reads a claim; what is no plain file holds nothing, and is in nobody's way.

    Raises:
        OSError: The file cannot be read.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        return b"", status
    # Opened, not only looked at: a network file system's client then asks the server.
    with open(path, "rb") as file:
        return file.read(65536), os.fstat(file.fileno())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


class Claim:
    """The right to run one trial, from :meth:`acquire` to :meth:`release`.

    Args:
        run_dir: The run directory.
        cell: The cell's name.
        trial: The trial's index.
        token: Marks the trial's processes, so that the next owner can end what a killed one left behind.
        place: Where this process is; for tests.
        lease_sec: How long an owner out of sight may be silent.
        heartbeat_sec: How often this claim shows that its owner lives.
    """

    def __init__(
        self,
        run_dir: str,
        cell: str,
        trial: int,
        token: str,
        *,
        place: _owner.Place | None = None,
        lease_sec: float = _owner.LEASE_SEC,
        heartbeat_sec: float = _owner.HEARTBEAT_SEC,
    ) -> None:
        self._folder = os.path.join(claims_folder(run_dir), cell)
        self._trial = trial
        self._token = token
        self._place = place or _owner.Place.here()
        self._lease_sec = lease_sec
        self._heartbeat_sec = heartbeat_sec
        self._path = ""
        self._waits = False
        self.dead: list[dict[str, Any]] = []
        """The owners that this claim was taken over from."""

    def acquire(
        self,
        *,
        is_recorded: Callable[[], bool],
        pause: Callable[[float], None],
        notify: Callable[[str], None],
    ) -> bool:
        """Waits until no other process runs this trial, then claims it.

        A living owner is waited for, however long its trial takes; what a dead one left running is ended first.

        Args:
            is_recorded: Tells whether the trial's record is there.
            pause: Waits for the given seconds; may raise to end the wait.
            notify: Takes a sentence about a wait or a takeover.

        Returns:
            True with the claim held; False, and nothing held, if the trial has a record.

        Raises:
            OSError: The folder cannot be used.
        """
        watch = _Watch(self._place, self._lease_sec)
        begin = time.monotonic()
        notified = False
        delay = _FIRST_PAUSE_SEC
        while True:
            others = find(self._folder, self._trial)
            living = [claim for claim in others if not watch.is_dead(claim)]
            if not living and self._make(others, notify):
                # Asked only now: whoever held the claim before has written its record before letting go.
                if not is_recorded():
                    self._start_heartbeat()
                    return True
                self.release()
                return False
            if living and not notified and time.monotonic() - begin >= NOTICE_SEC:
                notified = True
                notify(f"waiting for this trial, which {_owner.owner_text(living[-1].owner)} is running")
            pause(delay)
            delay = min(delay * 2, _LONGEST_PAUSE_SEC)

    def note_wait(self, what: str) -> None:
        """Notes what the trial waits for before it starts, for those who ask how it stands. Never raises."""
        with contextlib.suppress(OSError):
            write_text_atomic(self._path + _WAITING, what)
            self._waits = True

    def forget_wait(self) -> None:
        """Removes the note of a wait that is over, if there is one. Never raises."""
        if self._waits:
            _remove(self._path + _WAITING)
            self._waits = False

    def release(self) -> None:
        """Gives the claim up; does nothing if it is not held. Never raises: the record matters more."""
        if not self._path:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        with contextlib.suppress(OSError):
            # The dead ones first: as long as ours is there, nobody can start the count anew.
            for claim in find(self._folder, self._trial):
                if claim.path != self._path:
                    remove(claim.path)
        self.forget_wait()
        _remove(self._path)
        self._path = ""

    def _make(self, dead: list[Found], notify: Callable[[str], None]) -> bool:
        """Makes the next generation's file; False if another was faster."""
        path = os.path.join(self._folder, f"t{self._trial}.{dead[-1].generation + 1 if dead else 1}")
        job = next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), None)
        text = json.dumps(
            _owner.describe_self(self._place, job=job, token=self._token, claimed_at=round(time.time(), 3))
        )
        if not _link_new(path, text.encode("ascii")):
            return False
        self._path = path
        known = {claim.path: (claim.moved, claim.owner) for claim in dead}
        now = find(self._folder, self._trial)
        if any(claim.path != path and known.get(claim.path) != (claim.moved, claim.owner) for claim in now):
            # Somebody started the count anew between our look and our link.
            _remove(path)
            self._path = ""
            return False
        self.dead = [claim.owner for claim in dead if claim.owner is not None]
        for owner in self.dead:
            self._end_what_is_left(owner)
        # Of several, only the last held the trial; those before it were named when it took over.
        for claim in dead[-1:]:
            if claim.owner is not None:
                notify(f"taking over from {_owner.owner_text(claim.owner)}, which died without a record")
        return True

    def _end_what_is_left(self, owner: dict[str, Any]) -> None:
        """Ends processes of a dead owner's trial: its worker dies with it, but grandchildren may live."""
        token = owner.get("token")
        same_kernel = (owner["boot_id"], owner["pid_namespace"]) == (self._place.boot_id, self._place.pid_namespace)
        if not same_kernel or not isinstance(token, str) or not token:
            return
        deadline = time.monotonic() + DEATH_SEC
        while (left := marked(token)) and time.monotonic() < deadline:
            kill_all(left)
            time.sleep(0.005)

    def _start_heartbeat(self) -> None:
        # A timer's signal, not a thread: nothing here may be in the way of the fork that starts the worker, and the
        # kernel clears the timer in the new process.
        signal.signal(signal.SIGALRM, self._beat)
        signal.setitimer(signal.ITIMER_REAL, self._heartbeat_sec, self._heartbeat_sec)

    def _beat(self, _signum: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._path)


class _Watch:
    """Tells dead claims from living ones; remembers when each was last seen to move."""

    def __init__(self, place: _owner.Place, lease_sec: float) -> None:
        self._place = place
        self._lease_sec = lease_sec
        self._seen: dict[str, tuple[tuple[int, ...], float]] = {}

    def is_dead(self, claim: Found) -> bool:
        found = _owner.UNKNOWN if claim.owner is None else _owner.state(claim.owner, self._place)
        if found != _owner.UNKNOWN:
            return found == _owner.DEAD
        now = time.monotonic()
        moved, since = self._seen.get(claim.path, (None, now))
        if moved != claim.moved:
            self._seen[claim.path] = claim.moved, now
            return False
        return now - since >= (_owner.WAIT_SEC if claim.owner is None else self._lease_sec)


def _link_new(path: str, data: bytes) -> bool:
    """Makes a file with its whole content, or returns False if the name is taken.

    Raises:
        OSError: The disk refuses.
    """
    folder = os.path.dirname(path)
    temporary = temporary_name(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(temporary, flags, 0o666)
    try:
        with naming(path):
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            finally:
                os.close(descriptor)
            os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        _remove(temporary)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
