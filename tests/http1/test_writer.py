from __future__ import annotations

import socket

from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.internet.testing import MemoryReactorClock

from tests.http1.test_direct_send import SocketTransport
from treedbd.http1.connection import ConnectionWriter
from treedbd.http1.senders import Ring


def test_a_client_is_not_stalled_if_nothing_waits(transport: SocketTransport) -> None:
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    assert writer.stalled_s(0) is None
    writer.write(b"small")
    assert writer.stalled_s(100) is None


def test_a_client_that_reads_nothing_is_stalled(transport: SocketTransport) -> None:
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    writer.write(b"x" * 100_000)
    transport.flush()
    assert writer.stalled_s(10) == 0
    assert writer.stalled_s(30) == 20


def test_further_writes_do_not_reset_the_stalled_time(transport: SocketTransport) -> None:
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    writer.write(b"x" * 100_000)
    transport.flush()
    assert writer.stalled_s(10) == 0
    writer.write(b"more")
    assert writer.stalled_s(30) == 20


def test_a_client_that_reads_a_little_is_not_stalled(transport: SocketTransport) -> None:
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    writer.write(b"x" * 100_000)
    for now in range(0, 100, 10):
        assert writer.stalled_s(now) == 0
        transport.receive()
        transport.flush()


def test_a_client_that_leaves_small_writes_unread_is_stalled(transport: SocketTransport) -> None:
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    while not transport.is_waiting:
        writer.write(b"event\n" * 10)
    assert not writer.is_paused
    assert writer.stalled_s(0) == 0
    assert writer.stalled_s(61) == 61


def test_it_is_paused_from_when_the_transport_is_full_until_it_is_empty(
    transport: SocketTransport,
) -> None:
    is_paused: list[bool] = []
    writer = ConnectionWriter(
        transport.tcp, Ring(Clock()), lambda: is_paused.append(writer.is_paused)
    )
    writer.write(b"x" * 200_000)
    assert writer.is_paused
    while transport.is_waiting:
        transport.receive()
        transport.flush()
    assert not writer.is_paused
    assert is_paused == [False]


def test_close_sends_what_waits_first(transport: SocketTransport) -> None:
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    writer.write(b"x" * 200_000)
    writer.close()
    received = b""
    result = None
    while result is None:
        assert transport.is_waiting
        received += transport.receive()
        result = transport.flush()
    received += transport.receive()
    assert len(received) == 200_000


def test_close_half_sends_what_waits_and_keeps_reading(transport: SocketTransport) -> None:
    transport.tcp.startReading()
    writer = ConnectionWriter(transport.tcp, Ring(Clock()), lambda: None)
    writer.write(b"x" * 200_000)
    writer.close_half()
    received = b""
    while transport.is_waiting:
        transport.flush()
        received += transport.receive()
    assert len(received) == 200_000
    assert transport.theirs.recv(1) == b""
    assert transport.tcp in transport.reactor.readers


def test_the_kernel_keeps_little_of_what_a_client_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    tcp = Connection(accepted, Protocol(), MemoryReactorClock())
    tcp.connected = 1
    writer = ConnectionWriter(tcp, Ring(Clock()), lambda: None)
    sent = 0
    while not writer.is_paused:
        sent += writer.write_some(b"x" * 100_000)
    assert 0 < sent < 2 * 1024 * 1024
    client.close()
    accepted.close()
