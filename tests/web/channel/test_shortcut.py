from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.internet.testing import MemoryReactorClock, StringTransport

from treedbd.web.channel.outgoing import Outlet
from treedbd.web.channel.shortcut import find_shortcut


class _Connected(Connection):
    """A pair of sockets is quicker than TCP to show what is read, but has no addresses."""

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", 4321)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 80)

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass


class Wire:
    """A TCP transport of Twisted over a pair of sockets, whose reactor does nothing by itself."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.reactor = MemoryReactorClock()
        self.tcp = _Connected(ours, Protocol(), self.reactor)
        self.tcp.connected = 1
        self.theirs.setblocking(False)

    @property
    def waits(self) -> bool:
        """Whether the transport asked the reactor to be called when it can write."""
        return self.tcp in self.reactor.writers

    def receive(self) -> bytes:
        """Return what has arrived."""
        data = b""
        while True:
            try:
                piece = self.theirs.recv(1 << 20)
            except BlockingIOError:
                return data
            if not piece:
                return data
            data += piece

    def receive_some(self) -> bytes:
        """Return a little of what has arrived."""
        return self.theirs.recv(2000)

    def turn(self) -> Any:
        """Let the transport write as the reactor would."""
        return self.tcp.doWrite()

    def close(self) -> None:
        """Close both ends."""
        self.theirs.close()
        if hasattr(self.tcp, "socket"):
            self.tcp.socket.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """A wire that is closed in the end."""
    made = Wire()
    yield made
    made.close()


def test_what_there_is_room_for_is_sent_at_once(wire: Wire) -> None:
    assert find_shortcut(wire.tcp)(b"hello") == 5
    assert wire.receive() == b"hello"
    assert not wire.waits


def test_nothing_is_sent_past_what_waits(wire: Wire) -> None:
    wire.tcp.write(b"first ")
    shortcut = find_shortcut(wire.tcp)
    assert shortcut(b"second") == 0
    wire.turn()
    assert shortcut(b"second") == 6
    assert wire.receive() == b"first second"


def test_nothing_is_sent_once_the_connection_is_closing_or_gone(wire: Wire) -> None:
    shortcut = find_shortcut(wire.tcp)
    wire.tcp.loseWriteConnection()
    assert shortcut(b"x") == 0
    wire.tcp._writeDisconnecting = False
    wire.tcp.disconnecting = 1
    assert shortcut(b"x") == 0
    wire.tcp.connected = 0
    assert shortcut(b"x") == 0


def test_a_broken_connection_is_left_for_the_transport_to_find(wire: Wire) -> None:
    shortcut = find_shortcut(wire.tcp)
    wire.theirs.close()
    assert shortcut(b"x") == 0


def test_other_transports_have_no_shortcut() -> None:
    assert find_shortcut(StringTransport())(b"x") == 0


def test_a_transport_without_the_known_attributes_has_no_shortcut(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(wire.tcp, "_tempDataBuffer")
    assert find_shortcut(wire.tcp)(b"x") == 0
    wire.tcp._tempDataBuffer = []


def test_nothing_is_sent_past_what_was_sent_in_part(wire: Wire) -> None:
    wire.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    outlet.write(b"x" * 2_000_000)
    wire.turn()
    received = wire.receive()
    assert wire.tcp.dataBuffer
    assert not wire.tcp._tempDataBuffer
    outlet.write(b"end")
    while wire.waits:
        received += wire.receive()
        wire.turn()
    received += wire.receive()
    assert received == b"x" * 2_000_000 + b"end"


def test_what_the_socket_does_not_take_follows_in_order(wire: Wire) -> None:
    wire.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    pieces = [bytes([number]) * 30_000 for number in range(10)]
    for piece in pieces:
        outlet.write(piece)
    assert wire.waits
    received = wire.receive()
    assert 0 < len(received) < 300_000
    while wire.waits:
        wire.turn()
        received += wire.receive()
    assert received == b"".join(pieces)
    assert outlet.bytes_sent == 300_000
    assert not outlet.choked
    outlet.write(b"again")
    assert wire.receive() == b"again"


def test_a_large_body_follows_its_head(wire: Wire) -> None:
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    body = b"x" * 1_000_000
    outlet.write_pair(b"head", body)
    received = b""
    while wire.waits:
        wire.turn()
        received += wire.receive()
    assert received == b"head" + body
    assert outlet.bytes_sent == 1_000_004
