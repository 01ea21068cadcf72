from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from twisted.internet.task import Clock

from tests.web.channel.test_shortcut import Wire
from treedbd.web.channel.outgoing import Outlet


@pytest.fixture
def wire() -> Iterator[Wire]:
    """A wire whose sender has little room."""
    made = Wire()
    made.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield made
    made.close()


def test_nothing_stalls_where_nothing_waits(wire: Wire) -> None:
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    assert outlet.stalled_s(0) is None
    outlet.write(b"small")
    assert outlet.stalled_s(100) is None


def test_a_peer_that_reads_nothing_stalls(wire: Wire) -> None:
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    outlet.write(b"x" * 100_000)
    wire.turn()
    assert outlet.stalled_s(10) == 0
    assert outlet.stalled_s(30) == 20


def test_what_is_written_meanwhile_is_no_sign_of_life(wire: Wire) -> None:
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    outlet.write(b"x" * 100_000)
    wire.turn()
    assert outlet.stalled_s(10) == 0
    outlet.write(b"more")
    assert outlet.stalled_s(30) == 20


def test_a_peer_that_reads_a_little_does_not_stall(wire: Wire) -> None:
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    outlet.write(b"x" * 100_000)
    for now in range(0, 100, 10):
        assert outlet.stalled_s(now) == 0
        wire.receive()
        wire.turn()


def test_small_things_unread_stall_too(wire: Wire) -> None:
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    while not wire.waits:
        outlet.write(b"event\n" * 10)
    assert not outlet.choked
    assert outlet.stalled_s(0) == 0
    assert outlet.stalled_s(61) == 61


def test_a_transport_that_is_full_chokes_until_it_is_empty(wire: Wire) -> None:
    room: list[bool] = []
    outlet = Outlet(wire.tcp, Clock(), lambda: room.append(outlet.choked))
    outlet.write(b"x" * 200_000)
    assert outlet.choked
    while wire.waits:
        wire.receive()
        wire.turn()
    assert not outlet.choked
    assert room == [False]


def test_closing_sends_what_waits_first(wire: Wire) -> None:
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    outlet.write(b"x" * 200_000)
    outlet.close()
    received = b""
    outcome = None
    while outcome is None:
        assert wire.waits
        received += wire.receive()
        outcome = wire.turn()
    received += wire.receive()
    assert len(received) == 200_000


def test_closing_half_sends_what_waits_and_reads_on(wire: Wire) -> None:
    wire.tcp.startReading()
    outlet = Outlet(wire.tcp, Clock(), lambda: None)
    outlet.write(b"x" * 200_000)
    outlet.close_half()
    received = b""
    while wire.waits:
        wire.turn()
        received += wire.receive()
    assert len(received) == 200_000
    assert wire.theirs.recv(1) == b""
    assert wire.tcp in wire.reactor.readers
