"""Messages between supervisors: who may speak, and what arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from aorta.run.wire import Link, Listener, WireError, connect, new_key

from .conftest import wait_for

KEY = new_key()


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener("127.0.0.1", KEY)
    yield one
    one.close()


def pair(listener: Listener, key: str = KEY) -> tuple[Link | None, Link | WireError]:
    """The two ends of a connection, or what each side made of it."""
    ends: list[Link | WireError] = []

    def call() -> None:
        try:
            ends.append(connect(listener.address, key))
        except WireError as error:
            ends.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    links: list[Link | None] = []
    wait_for(lambda: links.append(listener.accept()) or links[-1] or not caller.is_alive(), "the connection")
    caller.join()
    return next((link for link in links if link), None), ends[0]


def test_messages_arrive_whole_and_in_order(listener: Listener) -> None:
    """Small and large messages come as they were sent, both ways."""
    server, client = pair(listener)
    assert server is not None and isinstance(client, Link)
    sender = threading.Thread(target=lambda: [client.send(n=1), client.send(text="x" * 3_000_000)])
    sender.start()
    assert server.receive(10) == {"n": 1}
    assert server.receive(10) == {"text": "x" * 3_000_000}
    sender.join()
    server.send(answer=True)
    assert client.receive(10) == {"answer": True}
    server.close()
    client.close()


def test_who_does_not_know_the_key_is_not_heard(listener: Listener) -> None:
    """A caller with another key gets no link, and none is made for it."""
    server, client = pair(listener, new_key())
    assert server is None and isinstance(client, WireError)


def test_a_stranger_does_not_disturb(listener: Listener) -> None:
    """Something that speaks another protocol is hung up on, and the next caller is served."""
    host, _, port = listener.address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n" + b"\xff" * 200)
        wait_for(lambda: listener.accept() is None and _hung_up(stranger), "the stranger to be hung up on")
    server, client = pair(listener)
    assert server is not None and isinstance(client, Link)
    server.close()
    client.close()


def _hung_up(stranger: socket.socket) -> bool:
    stranger.settimeout(0.1)
    try:
        while stranger.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_an_end_is_seen_after_the_last_message(listener: Listener) -> None:
    """What was sent before the end is read before the end is."""
    server, client = pair(listener)
    assert server is not None and isinstance(client, Link)
    client.send(last=1)
    client.finish()
    assert server.receive(10) == {"last": 1}
    with pytest.raises(WireError, match="gone"):
        server.receive(10)
    assert server.closed
    client.close()
    server.close()


def test_nobody_there_is_an_error() -> None:
    """An address that nobody listens at says so with the address."""
    listener = Listener("127.0.0.1", KEY)
    listener.close()
    with pytest.raises(WireError, match=listener.address):
        connect(listener.address, KEY)
