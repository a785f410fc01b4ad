"""A port of a trial's own: no two distributed trials on a host meet at the same one.

Asking the kernel for a free port and closing it again does not do: the kernel may give the same number to the next who
asks, or to any outgoing connection, before the trial's rank 0 listens there. So the ports lie where the kernel gives
none away by itself, and a lock file holds each for as long as the trial lives.
Standard library only.
"""

from __future__ import annotations

import errno
import socket

from aorta.run.locks import DEFAULT_FOLDER, FOLDER_VARIABLE, HostLocks, LockError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PORTS = range(22600, 24600)
"""Below the usual ephemeral range (32768 and up) and the range that Kubernetes forwards (30000 to 32767)."""


class Port:
    """A reserved port.

    Attributes:
        number: The port.
    """

    def __init__(self, number: int, locks: HostLocks | None) -> None:
        self.number = number
        self._locks = locks

    def release(self) -> None:
        """Gives the port back."""
        if self._locks is not None:
            self._locks.release()


def reserve_port(env: Mapping[str, str], token: str, *, lock: bool) -> Port:
    """Reserves a port on which nobody listens, on any of the host's addresses.

    Args:
        env: The environment, which may name the host's lock folder.
        token: Marks the trial's processes; the search begins at a place that it decides.
        lock: Whether to hold the port against other trials; without, it is only free now.

    Raises:
        LockError: The lock folder cannot be used, or no port is free.
    """
    locks = HostLocks(env.get(FOLDER_VARIABLE) or DEFAULT_FOLDER, token) if lock else None
    # Where trials follow each other, a late process of one must not find the next behind the same port.
    first = int(token[:8], 16) % len(PORTS)
    for step in range(len(PORTS)):
        port = PORTS[(first + step) % len(PORTS)]
        if not is_free(port):
            continue
        if locks is None:
            return Port(port, None)
        if not locks.try_one(f"port-{port}"):
            continue
        # Somebody may have listened between the look and the lock.
        if is_free(port):
            return Port(port, locks)
        locks.release()
    raise LockError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free here for the trial's ranks to meet")


def is_free(port: int) -> bool:
    """Tells whether one could listen on a port, on every address of the host."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # a host without IPv6
            return False
    return True
