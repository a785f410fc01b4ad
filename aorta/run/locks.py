"""Host-wide locks on what a trial runs on, shared by every sweep and every user of the host.

One file a device, held by ``flock``: the kernel lets go of it when the holder dies, however it dies.
Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time

from aorta._jsonio import naming
from aorta.run.process import kill_all, marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FOLDER_VARIABLE = "AORTA_LOCK_DIR"
DEFAULT_FOLDER = "/tmp/aorta-locks"

NOTICE_SEC = 2.0
"""A wait that is longer than this is reported once."""

_FIRST_PAUSE_SEC = 0.01
_LONGEST_PAUSE_SEC = 0.25


class LockError(Exception):
    """The lock folder or a file in it cannot be used."""


class HostLocks:
    """The lock files of one host.

    Args:
        folder: The folder; made if it is not there, open to every user as ``/tmp`` is.
        token: Marks the holder's processes, so that the next holder can end what a killed one left behind.

    Raises:
        LockError: The folder cannot be made.
    """

    def __init__(self, folder: str, token: str) -> None:
        self._folder = folder
        self._token = token
        self._held: list[int] = []
        try:
            os.makedirs(folder, exist_ok=True)
            # Refused where another user made the folder, who then did the same.
            with contextlib.suppress(PermissionError):
                os.chmod(folder, 0o1777)
        except OSError as error:
            raise LockError(
                f"device locks: cannot make the folder {folder}: {error.strerror}; set {FOLDER_VARIABLE} to a folder "
                "that every user of this host can write to, or pass --no-device-lock"
            ) from error

    def acquire(
        self,
        names: Sequence[str],
        count: int,
        *,
        pause: Callable[[float], None],
        notify: Callable[[str], None],
    ) -> list[str]:
        """Holds ``count`` of the named locks, all or none at a time, and waits for as long as it takes.

        Args:
            names: Candidates, in order of preference.
            count: How many to hold.
            pause: Waits for the given seconds; may raise to end the wait.
            notify: Called once, with a sentence, when the wait is long.

        Returns:
            The names held.

        Raises:
            LockError: There are fewer candidates than ``count``, or a lock file cannot be opened.
        """
        if count > len(names):
            raise LockError(f"the trial needs {count} devices and this host has {len(names)}: {', '.join(names)}")
        start = time.monotonic()
        notified = False
        delay = _FIRST_PAUSE_SEC
        while True:
            taken: list[tuple[str, int]] = []
            for name in names:
                if len(taken) < count and (descriptor := self._try(name)) is not None:
                    taken.append((name, descriptor))
            if len(taken) == count:
                for name, descriptor in taken:
                    self._claim(name, descriptor)
                self._held += [descriptor for _name, descriptor in taken]
                return [name for name, _descriptor in taken]
            for _name, descriptor in taken:
                os.close(descriptor)
            if not notified and time.monotonic() - start >= NOTICE_SEC:
                notified = True
                notify(f"waiting for {' or '.join(names)}, held by {self._holders(names)}")
            pause(delay)
            delay = min(delay * 2, _LONGEST_PAUSE_SEC)

    def try_one(self, name: str) -> bool:
        """Holds one lock if it is free now, and tells whether it was.

        Raises:
            LockError: The lock file cannot be opened.
        """
        descriptor = self._try(name)
        if descriptor is None:
            return False
        self._claim(name, descriptor)
        self._held.append(descriptor)
        return True

    def release(self) -> None:
        """Lets go of everything held."""
        for descriptor in self._held:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
        self._held = []

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, re.sub(r"[^A-Za-z0-9_.:-]", "_", name) + ".lock")

    def _try(self, name: str) -> int | None:
        """Returns a descriptor that holds the lock, or None where another holds it."""
        descriptor = self._open(self._path(name))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _open(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                # Without O_CREAT first: in a sticky folder the kernel may refuse it for another user's file.
                return os.open(path, flags)
            except FileNotFoundError:
                try:
                    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                    os.fchmod(descriptor, 0o666)  # whatever the umask says: every user locks this file
                    return descriptor
                except FileExistsError:
                    return os.open(path, flags)
        except OSError as error:
            raise LockError(
                f"device locks: cannot open {path}: {error.strerror}; make it writable for every user, or remove it"
            ) from error

    def _claim(self, name: str, descriptor: int) -> None:
        """Signs the lock file. A signature that is there already is a holder's who was killed."""
        with naming(self._path(name)):
            _pid, _, token = os.pread(descriptor, 256, 0).decode("ascii", "replace").strip().partition(" ")
            if token:
                # Its worker died with it, but grandchildren may still use the device.
                kill_all(marked(token))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {self._token}\n".encode("ascii"), 0)

    def _holders(self, names: Sequence[str]) -> str:
        pids = []
        for name in names:
            try:
                with open(self._path(name), "rb") as file:
                    pids.append(file.read(256).decode("ascii", "replace").partition(" ")[0].strip())
            except OSError:
                continue
        return ", ".join(f"process {pid}" for pid in pids if pid) or "another process"
