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

from treedbd.http1.connection import ConnectionWriter, find_direct_send
from treedbd.http1.senders import Ring


class _PairedConnection(Connection):
    """One end of a socket pair: it shows sooner than TCP what is read, but has no addresses."""

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", 4321)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 80)

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass


class SocketTransport:
    """A TCP transport of Twisted over a socket pair; the test plays its reactor."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.reactor = MemoryReactorClock()
        self.tcp = _PairedConnection(ours, Protocol(), self.reactor)
        self.tcp.connected = 1
        self.theirs.setblocking(False)

    @property
    def is_waiting(self) -> bool:
        """Whether the transport waits for the reactor to report that it can write."""
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
        """Return at most 2000 bytes of what has arrived."""
        return self.theirs.recv(2000)

    def flush(self) -> Any:
        """Have the transport write what waits, as the reactor does when the socket is writable."""
        return self.tcp.doWrite()

    def close(self) -> None:
        """Close both ends."""
        self.theirs.close()
        if hasattr(self.tcp, "socket"):
            self.tcp.socket.close()


@pytest.fixture
def transport() -> Iterator[SocketTransport]:
    """A transport that is closed at the end."""
    made = SocketTransport()
    yield made
    made.close()


def test_bytes_that_fit_the_socket_buffer_are_sent_at_once(transport: SocketTransport) -> None:
    assert find_direct_send(transport.tcp)(b"hello") == 5
    assert transport.receive() == b"hello"
    assert not transport.is_waiting


def test_nothing_is_sent_before_bytes_that_wait(transport: SocketTransport) -> None:
    transport.tcp.write(b"first ")
    send = find_direct_send(transport.tcp)
    assert send(b"second") == 0
    transport.flush()
    assert send(b"second") == 6
    assert transport.receive() == b"first second"


def test_nothing_is_sent_once_the_connection_is_closing_or_gone(transport: SocketTransport) -> None:
    send = find_direct_send(transport.tcp)
    transport.tcp.loseWriteConnection()
    assert send(b"x") == 0
    transport.tcp._writeDisconnecting = False
    transport.tcp.disconnecting = 1
    assert send(b"x") == 0
    transport.tcp.connected = 0
    assert send(b"x") == 0


def test_on_a_broken_connection_nothing_is_sent_and_nothing_raised(
    transport: SocketTransport,
) -> None:
    send = find_direct_send(transport.tcp)
    transport.theirs.close()
    assert send(b"x") == 0


def test_other_transports_have_no_direct_send() -> None:
    assert find_direct_send(StringTransport())(b"x") == 0


def test_a_transport_without_the_known_attributes_has_no_direct_send(
    transport: SocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(transport.tcp, "_tempDataBuffer")
    assert find_direct_send(transport.tcp)(b"x") == 0
    transport.tcp._tempDataBuffer = []


def test_nothing_is_sent_before_the_rest_of_a_partial_send(transport: SocketTransport) -> None:
    transport.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    writer.write(b"x" * 2_000_000)
    transport.flush()
    received = transport.receive()
    assert transport.tcp.dataBuffer
    assert not transport.tcp._tempDataBuffer
    writer.write(b"end")
    while transport.is_waiting:
        received += transport.receive()
        transport.flush()
    received += transport.receive()
    assert received == b"x" * 2_000_000 + b"end"


def test_bytes_that_do_not_fit_the_socket_buffer_follow_in_order(
    transport: SocketTransport,
) -> None:
    transport.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    pieces = [bytes([number]) * 30_000 for number in range(10)]
    for piece in pieces:
        writer.write(piece)
    assert transport.is_waiting
    received = transport.receive()
    assert 0 < len(received) < 300_000
    while transport.is_waiting:
        transport.flush()
        received += transport.receive()
    assert received == b"".join(pieces)
    assert writer.bytes_sent == 300_000
    assert not writer.is_paused
    writer.write(b"again")
    assert transport.receive() == b"again"


def test_a_large_body_follows_its_head(transport: SocketTransport) -> None:
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    body = b"x" * 1_000_000
    writer.write_pair(b"head", body)
    received = b""
    while transport.is_waiting:
        transport.flush()
        received += transport.receive()
    assert received == b"head" + body
    assert writer.bytes_sent == 1_000_004
