"""Who holds a lock or a claim, and whether that process is still there. Standard library only, and light.

A process id alone says little: another host has its own, a container as well, a reboot starts anew, and the kernel
gives a number out again. So an owner is the host's name, the boot's id, the process-id namespace, the process id and
the process's start time.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ALIVE = "alive"
"""The owner's process is there."""

DEAD = "dead"
"""The owner's process is provably gone."""

UNKNOWN = "unknown"
"""The owner ran where this process cannot look; only its heartbeat can tell."""

HEARTBEAT_SEC = 10.0
"""How often an owner touches its file, for those who cannot look at its process."""

LEASE_SEC = 45.0
"""An owner whom nobody can look at counts as dead when its file has not moved for this long.

The time is measured by the one who waits, on a clock that never jumps; no two hosts' clocks are compared.
"""

WAIT_SEC = 2.0
"""How long an unreadable file may stay so before it counts as what a power cut left."""


class Place:
    """Where process ids mean the same: one boot of one host, in one process-id namespace.

    Attributes:
        host: The host's name.
        boot_id: The kernel's id of this boot; empty if it is not told.
        pid_namespace: The namespace's id; empty if it is not told.
    """

    __slots__ = ("boot_id", "host", "pid_namespace")

    def __init__(self, host: str, boot_id: str, pid_namespace: str) -> None:
        self.host = host
        self.boot_id = boot_id
        self.pid_namespace = pid_namespace

    @classmethod
    def here(cls) -> Place:
        """Returns this process's place."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                boot_id = file.read().strip()
            namespace = os.readlink("/proc/self/ns/pid")
        except OSError:
            boot_id = namespace = ""
        return cls(os.uname().nodename, boot_id, namespace)


def start_time(pid: int) -> int | None:
    """Returns when a live process started, in clock ticks since the boot; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name may hold blanks and brackets; what follows its last bracket does not.
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X", b"x") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def describe_self(place: Place, **more: Any) -> dict[str, Any]:
    """Returns this process as an owner, ready for JSON.

    Args:
        place: Where this process is.
        more: Further facts to keep with it.
    """
    pid = os.getpid()
    return {
        "host": place.host,
        "boot_id": place.boot_id,
        "pid_namespace": place.pid_namespace,
        "pid": pid,
        "pid_started": start_time(pid),
        **more,
    }


def parse_owner(data: bytes) -> dict[str, Any] | None:
    """Reads an owner back; None if the text is not one, as after a power cut."""
    try:
        owner = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(owner, dict):
        return None
    texts = all(isinstance(owner.get(key), str) for key in ("host", "boot_id", "pid_namespace"))
    pid = owner.get("pid")
    return owner if texts and isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 1 << 31 else None


def state(owner: dict[str, Any], here: Place) -> str:
    """Returns ``ALIVE``, ``DEAD`` or ``UNKNOWN``.

    Args:
        owner: What :func:`parse_owner` returned.
        here: Where this process is.
    """
    if not here.boot_id:
        return UNKNOWN
    if owner["boot_id"] != here.boot_id:
        # The same host under another boot has lost all its processes; another host may be running.
        return DEAD if owner["host"] == here.host else UNKNOWN
    if owner["pid_namespace"] != here.pid_namespace:
        return UNKNOWN
    started = start_time(owner["pid"])
    return ALIVE if started is not None and started == owner.get("pid_started") else DEAD


def owner_text(owner: dict[str, Any] | None) -> str:
    """Returns an owner as a person reads it."""
    return "a process that did not record itself" if owner is None else f"pid {owner['pid']} on host {owner['host']}"
