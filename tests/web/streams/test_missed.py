"""What resumed streams missed is kept until they have read it: counted, and bounded by address."""

from __future__ import annotations

import pathlib

import attrs
import pytest

from tests.web.tree_server import PATIENT, SETTINGS, StreamClient, TreeServer
from treedbd.http1.content import SHARES

WRITES = 20
TEXT = "x" * 8000
SHARE = 3 * WRITES * len(TEXT)
OTHER = "192.0.2.2"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    limits = attrs.evolve(PATIENT, waiting_bytes=SHARES * SHARE)
    return TreeServer(tmp_path, options=attrs.evolve(SETTINGS, limits=limits))


def write_log(server: TreeServer) -> list[str]:
    """Write often, and return the identifiers of all writes, as a stream shows them."""
    client = server.open_stream("/a.json?resume=true")
    for number in range(WRITES):
        server.write("PUT", f"/a/{number}", f"{number}{TEXT}")
    client.read_events()
    client.peer.disconnect()
    return client.ids


def begin(server: TreeServer, last: str, address: str) -> StreamClient:
    """Begin to resume a stream that reads nothing after the first bytes."""
    return server.open_stream(
        "/a.json?resume=true", f"Last-Event-ID: {last}\r\n", host=address, room=1000
    )


def resume(server: TreeServer, last: str, address: str = "192.0.2.1") -> StreamClient:
    """Do so, until what it missed is known."""
    client = begin(server, last, address)
    for _ in range(3):
        server.clock.advance(0)
    return client


def waiting(server: TreeServer) -> int:
    return server.resource.shared_reads.memory.total


def is_resumed(client: StreamClient) -> bool:
    """Return whether it has received an event of one write, not the whole value."""
    received = client.peer.transport.value()
    return b'{"path":"/' in received and b'{"path":"/"' not in received


def test_what_was_missed_counts_until_it_was_read(server: TreeServer) -> None:
    first, *_ = write_log(server)
    client = resume(server, first)
    assert is_resumed(client)
    assert waiting(server) >= WRITES * len(TEXT)
    while client.producer is not None and client.peer.transport.value():
        client.peer.transport.clear()
        client.producer.resumeProducing()
        server.clock.advance(0)
    assert waiting(server) == 0


def test_a_client_that_goes_leaves_nothing_counted(server: TreeServer) -> None:
    first, *_ = write_log(server)
    client = resume(server, first)
    client.peer.disconnect()
    assert waiting(server) == 0


def test_one_address_keeps_its_share_and_then_begins_with_the_present_value(
    server: TreeServer,
) -> None:
    ids = write_log(server)
    clients = [resume(server, last) for last in ids[:4]]
    assert [is_resumed(each) for each in clients] == [True, False, False, False]
    assert is_resumed(resume(server, ids[4], OTHER))
    for each in clients:
        each.peer.disconnect()
    assert is_resumed(resume(server, ids[5]))


def test_clients_that_missed_the_same_share_one_copy(server: TreeServer) -> None:
    first, *_ = write_log(server)
    server.clock.lag = 0.01  # they wait for the same
    clients = [begin(server, first, f"198.51.100.{number}") for number in range(20)]
    server.clock.lag = 0
    for _ in range(3):
        server.clock.advance(0)
    assert all(map(is_resumed, clients))
    assert SHARE / 2 < waiting(server) < SHARE


def test_who_missed_little_is_never_refused(server: TreeServer) -> None:
    ids = write_log(server)
    resume(server, ids[0])
    server.write("PUT", "/a/last", 1)
    assert is_resumed(resume(server, ids[-1]))
