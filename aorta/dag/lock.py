"""One sweep per run directory: a lock that its owner's death releases. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from aorta.plan.model import Plan


class LockedError(Exception):
    """Another live process holds the lock; the message names its host and pid."""


class RunLock:
    """An exclusive lock on a file, held until the process ends or :meth:`release` is called.

    The kernel drops it when the owner dies, however it dies, so no stale lock can stay behind; the file's text
    only tells a person who holds it.

    Args:
        path: The lock file; its folder is made if need be.
        what: What the lock protects, for the message.

    Raises:
        LockedError: Somebody else holds it.
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, what: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not inherited by children (the default), so a surviving trial cannot keep a dead sweep's lock.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(self._descriptor, 4096).decode("utf-8", "replace").strip()
            os.close(self._descriptor)
            raise LockedError(
                f"{what} is in use by another sweep ({_owner_text(owner)}); wait for it, or end it first"
            ) from error
        except OSError:
            os.close(self._descriptor)
            raise
        text = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{text}\n".encode(), 0)

    def release(self) -> None:
        """Gives the lock up and empties the file."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1


def lock_plan(plan: Plan, runs: Path) -> RunLock:
    """Locks a plan while its run directory is chosen and made, so that two starts cannot make two runs of it.

    Args:
        plan: The plan.
        runs: The folder of the workload's runs.

    Raises:
        LockedError: Another process is starting or running the same plan.
    """
    return RunLock(runs / ".aorta" / f"{plan.key[:16]}.lock", f"recipe: {plan.recipe_source}")


def _owner_text(text: str) -> str:
    try:
        owner = json.loads(text)
        return f"pid {owner['pid']} on host {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "its owner is not recorded yet"
