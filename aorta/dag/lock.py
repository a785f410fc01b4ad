"""One sweep per run directory: a lock that its owner's death releases. Standard library only."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from aorta import _owner
from aorta._jsonio import NotRegularError, naming, read_regular, require_regular
from aorta.plan.model import Plan

PATIENCE_SEC = 1.0
"""How long a lock that is held is asked for again: an owner that was just killed takes a moment to die."""

_PAUSE_SEC = 0.05


class LockedError(Exception):
    """Another live process holds the lock; the message names its host and pid."""


class RunLock:
    """An exclusive lock on a file, held until the process ends or :meth:`release` is called.

    The kernel drops it when the owner dies, however it dies. Some network file systems keep such a lock to one host;
    so the file's text also names the owner, who touches the file from time to time.

    Args:
        path: The lock file; its folder is made if need be.
        what: What the lock protects, for the message.
        notify: Takes a sentence about a dead owner's lock, or about a wait.
        place: Where this process is; for tests.
        lease_sec: How long an owner on another host may be silent before it counts as dead.
        heartbeat_sec: How often this lock shows that its owner lives.
        patience_sec: How long a lock that is held is asked for again.

    Raises:
        LockedError: Somebody else holds it.
        OSError: The file cannot be opened or written.
        NotRegularError: Something else lies in its place.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        *,
        notify: Callable[[str], None] = lambda text: None,
        place: _owner.Place | None = None,
        lease_sec: float = _owner.LEASE_SEC,
        heartbeat_sec: float = _owner.HEARTBEAT_SEC,
        patience_sec: float = PATIENCE_SEC,
    ) -> None:
        self._path = path
        self._what = what
        self._place = place or _owner.Place.here()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not inherited by children (the default), so a surviving trial cannot keep a dead sweep's lock.
        with contextlib.suppress(FileNotFoundError):
            require_regular(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            # A full disk's error names no file.
            with naming(path):
                self._lock(time.monotonic() + patience_sec)
                self._outlive_earlier_owner(notify, lease_sec)
                text = json.dumps(_owner.describe_self(self._place, since=round(time.time(), 3)))
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"{text}\n".encode(), 0)
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise
        self._released = threading.Event()
        # An owner that ends as it should leaves no name behind.
        atexit.register(self.release)
        threading.Thread(target=self._beat, args=(heartbeat_sec,), daemon=True).start()

    def release(self) -> None:
        """Gives the lock up and empties the file."""
        if self._descriptor >= 0:
            self._released.set()
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1
            atexit.unregister(self.release)

    def _lock(self, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise self._refusal(read_owner(self._path)) from error
            time.sleep(_PAUSE_SEC)

    def _outlive_earlier_owner(self, notify: Callable[[str], None], lease_sec: float) -> None:
        """Makes sure that the owner whom the file names is dead although the kernel gave us the lock."""
        text = os.pread(self._descriptor, 65536, 0)
        if not text:
            return
        owner = _owner.parse_owner(text)
        if owner is not None:
            state = _owner.state(owner, self._place)
            living = state == _owner.ALIVE and owner["pid"] != os.getpid()
            if living or (state == _owner.UNKNOWN and self._moves(owner, notify, lease_sec)):
                raise self._refusal(owner)
        who = f"pid {owner['pid']} on host {owner['host']}" if owner else "an unknown process"
        notify(f"cleared the lock that {who} left on {self._what} when it died")

    def _moves(self, owner: dict[str, object], notify: Callable[[str], None], lease_sec: float) -> bool:
        """Watches whether an owner that this host cannot look at still touches the file."""
        notify(
            f"{self._what} was last used by {_owner.owner_text(owner)}; watching for {lease_sec:g} s whether it lives"
        )
        seen = self._touched()
        deadline = time.monotonic() + lease_sec
        while time.monotonic() < deadline:
            time.sleep(min(1.0, lease_sec / 10))
            if self._touched() != seen:
                return True
        return False

    def _touched(self) -> tuple[int, int]:
        # Opened anew: a network file system's client then asks the server.
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
        return status.st_mtime_ns, status.st_size

    def _refusal(self, owner: dict[str, object] | None) -> LockedError:
        who = _owner.owner_text(owner)
        return LockedError(f"{self._what} is in use by another sweep ({who}); wait for it, or end it first")

    def _beat(self, seconds: float) -> None:
        while not self._released.wait(seconds):
            try:
                os.utime(self._descriptor)
            except OSError:
                return


def read_owner(path: Path) -> dict[str, object] | None:
    """Returns who wrote a lock file last; None if it is free, unreadable or not there."""
    try:
        return _owner.parse_owner(read_regular(path))
    except (OSError, NotRegularError):
        return None


def lock_plan(plan: Plan, runs: Path, *, notify: Callable[[str], None] = lambda text: None) -> RunLock:
    """Locks a plan while its run directory is chosen and made, so that two starts cannot make two runs of it.

    Args:
        plan: The plan.
        runs: The folder of the workload's runs.
        notify: Takes a sentence about a wait or a dead owner's lock.

    Raises:
        LockedError: Another process is starting or running the same plan.
    """
    return RunLock(runs / ".aorta" / f"{plan.key[:16]}.lock", f"recipe: {plan.recipe_source}", notify=notify)
