"""Long messages are counted from their first byte until they are parsed, also by address."""

from __future__ import annotations

import json
import pathlib

import attrs
import pytest

from tests.http1.peer import Peer
from tests.web.test_freed_at_the_end import open_socket
from tests.web.tree_server import PATIENT, SETTINGS, TreeServer
from tests.websocket_frames import TEXT, print_frame
from treedbd.web.write import Admission

BODY = 60_000
SHARE = 100_000
LIMITS = attrs.evolve(PATIENT, held_body_bytes=4 * SHARE, write_body_bytes=90_000)
FULL = b"\x03\xf5too many messages are arriving"
PIECES = 30


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path, options=attrs.evolve(SETTINGS, limits=LIMITS))


def held(server: TreeServer) -> int:
    return server.resource.shared_reads.held.bodies.total


def is_closed(peer: Peer) -> bool:
    return peer.is_closed or FULL in peer.transport.value()


def message(size: int = BODY) -> bytes:
    request = {"t": "d", "d": {"r": 7, "a": "p", "b": {"p": "a", "d": "x" * size}}}
    return json.dumps(request).encode()


def send(server: TreeServer, peer: Peer, *, is_whole: bool) -> None:
    text = message()
    size = -(-len(text) // PIECES)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    peer.send(print_frame(TEXT, b"%d" % (len(pieces) + (not is_whole))))
    for piece in pieces:
        peer.send(print_frame(TEXT, piece))


def fill_gate(server: TreeServer) -> Admission:
    """Let messages wait to be parsed; return what they wait for."""
    admission = Admission(LIMITS.parsed_bytes, 0)
    gate = server.resource.data.gate
    for queue in (gate._small, gate._large):
        queue.enter(admission)
    return admission


def go_on(server: TreeServer, admission: Admission) -> None:
    for queue in (server.resource.data.gate._small, server.resource.data.gate._large):
        queue.leave(admission)
    for _ in range(5):
        server.clock.advance(0)


def test_messages_of_one_address_leave_room_for_those_of_others(server: TreeServer) -> None:
    peers = [open_socket(server) for _ in range(2)]
    other = open_socket(server, "192.0.2.2")
    for peer in (*peers, other):
        send(server, peer, is_whole=False)
    assert [is_closed(each) for each in (*peers, other)] == [False, True, False]
    assert BODY < held(server) - BODY < 2 * SHARE


def test_messages_and_bodies_of_one_address_count_together(server: TreeServer) -> None:
    body = server.connect()
    body.send(b"PUT /a.json HTTP/1.1\r\nHost: demo.localhost\r\nContent-Length: 80000\r\n\r\n")
    body.send(b" " * BODY)
    peer = open_socket(server)
    send(server, peer, is_whole=False)
    assert (body.is_closed, is_closed(peer)) == (False, True)


def test_messages_that_wait_to_be_parsed_are_counted_until_then(server: TreeServer) -> None:
    admission = fill_gate(server)
    first, second, other = open_socket(server), open_socket(server), open_socket(server)
    send(server, first, is_whole=True)
    assert held(server) > BODY
    send(server, second, is_whole=False)
    assert is_closed(second)
    go_on(server, admission)
    assert b'"r":7,"b":{"s":"ok"' in first.transport.value()
    assert held(server) == 0
    send(server, other, is_whole=False)
    assert not is_closed(other)


def test_messages_behind_one_that_waits_are_counted(server: TreeServer) -> None:
    admission = fill_gate(server)
    peer = open_socket(server)
    for _ in range(8):
        peer.send(print_frame(TEXT, message(9000)))
    assert held(server) > 8 * 9000
    go_on(server, admission)
    assert peer.transport.value().count(b'"s":"ok"') == 8
    assert held(server) == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_closed_socket_holds_no_message(server: TreeServer, is_whole: bool) -> None:
    admission = fill_gate(server)
    peer = open_socket(server)
    send(server, peer, is_whole=is_whole)
    assert held(server) > 0
    peer.disconnect()
    server.clock.advance(0)
    assert held(server) == 0
    go_on(server, admission)
    assert held(server) == 0


def test_small_messages_are_not_counted(server: TreeServer) -> None:
    admission = fill_gate(server)
    peer = open_socket(server)
    peer.send(print_frame(TEXT, message(2000)))
    assert held(server) == 0
    go_on(server, admission)
