"""Messages between the processes of a sweep that is spread over several supervisors: JSON lines over TCP.

Both ends prove that they know the sweep's key before anything else is said; the key itself never travels. What is sent
is not secret, but whoever could speak here could start programs. Standard library only.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import socket
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HANDSHAKE_SEC = 10.0
_RECEIVE_BYTES = 1 << 16
_LINE_BYTES = 1 << 28
"""Longest message: a report is a result, and that can be large; it cannot be endless."""


class WireError(Exception):
    """The other end is not there, or is not who it should be."""


def new_key() -> str:
    """Returns a fresh key, as hexadecimal digits."""
    return os.urandom(32).hex()


class Link:
    """One connection, after both ends have proved themselves.

    Attributes:
        source: Descriptor to poll, or None once the other end has gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._messages: deque[dict[str, Any]] = deque()
        self.source: int | None = connection.fileno()

    @property
    def closed(self) -> bool:
        """Whether the other end has gone and everything that it said has been taken."""
        return self.source is None and not self._messages

    def send(self, **message: Any) -> None:
        """Sends one message; a link whose other end has gone takes it to nobody, which reading tells."""
        data = json.dumps(message, allow_nan=False).encode("ascii") + b"\n"
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def drain(self) -> None:
        """Takes what has come; never blocks."""
        while self.source is not None:
            try:
                data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data or len(self._buffer) > _LINE_BYTES:
                self.source = None
                return
            self._buffer += data
            *lines, rest = self._buffer.split(b"\n")
            self._buffer = bytearray(rest)
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        self._messages.append(message)

    def next(self) -> dict[str, Any] | None:
        """Returns the next message that has come, or None."""
        return self._messages.popleft() if self._messages else None

    def receive(self, seconds: float) -> dict[str, Any]:
        """Waits for the next message.

        Raises:
            WireError: The other end has gone, or has said nothing in that time.
        """
        deadline = time.monotonic() + seconds
        while not self._messages:
            left = deadline - time.monotonic()
            if self.source is None or left <= 0:
                raise WireError("the other end has gone" if self.source is None else f"no answer in {seconds:g} s")
            select.select([self.source], [], [], left)
            self.drain()
        return self._messages.popleft()

    def finish(self) -> None:
        """Says that nothing more will be sent; what the other end still sends can be read.

        Closing at once could lose what was sent: the kernel throws it away where something unread has come in.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends the connection."""
        self.source = None
        with contextlib.suppress(OSError):
            self._socket.close()


class Listener:
    """Where others connect.

    Args:
        address: The name or number under which they reach this host; the loopback address keeps it to this host.
        key: What both ends must know.

    Attributes:
        address: ``host:port`` for :func:`connect`.
        source: Descriptor to poll.

    Raises:
        OSError: One cannot listen there.
    """

    def __init__(self, address: str, key: str) -> None:
        self._key = key
        if address in ("127.0.0.1", "localhost"):
            self._socket = socket.create_server(("127.0.0.1", 0))
        elif socket.has_dualstack_ipv6():
            self._socket = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._socket = socket.create_server(("", 0))
        self._socket.setblocking(False)
        self.address = f"{address}:{self._socket.getsockname()[1]}"
        self.source: int | None = self._socket.fileno()

    def accept(self) -> Link | None:
        """Returns a new link, or None where whoever came did not know the key, or nobody came."""
        try:
            connection, _peer = self._socket.accept()
        except OSError:
            return None
        try:
            connection.settimeout(HANDSHAKE_SEC)
            _prove(connection, self._key, "server", "client")
            return _ready(connection)
        except (OSError, WireError):
            connection.close()
            return None

    def close(self) -> None:
        """Stops listening."""
        if self.source is not None:
            self.source = None
            self._socket.close()


def connect(address: str, key: str) -> Link:
    """Connects to a :class:`Listener`.

    Args:
        address: Its ``address``.
        key: Its key.

    Raises:
        WireError: Nobody listens there, or somebody who does not know the key.
    """
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=HANDSHAKE_SEC)
    except (OSError, ValueError) as error:
        raise WireError(f"{address}: {error}") from error
    try:
        _prove(connection, key, "client", "server")
        return _ready(connection)
    except (OSError, WireError) as error:
        connection.close()
        raise WireError(f"{address}: {error}") from error


def _ready(connection: socket.socket) -> Link:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A host that has vanished says nothing; the kernel finds out within half a minute.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return Link(connection)


def _prove(connection: socket.socket, key: str, me: str, other: str) -> None:
    """Exchanges challenges and answers; each end's answer covers both challenges and its own role."""
    mine = os.urandom(32).hex()
    connection.sendall(mine.encode("ascii"))
    theirs = _exactly(connection, 64)
    connection.sendall(_answer(key, me, mine, theirs))
    if not hmac.compare_digest(_exactly(connection, 64), _answer(key, other, theirs.decode("ascii"), mine.encode())):
        raise WireError("the other end does not know this sweep's key")


def _answer(key: str, role: str, mine: str, theirs: bytes) -> bytes:
    text = f"{role} {mine} ".encode("ascii") + theirs
    return hmac.new(bytes.fromhex(key), text, "sha256").hexdigest().encode("ascii")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise WireError("the other end hung up")
        data += more
    try:
        data.decode("ascii")
    except UnicodeDecodeError as error:
        raise WireError("the other end speaks something else") from error
    return data
