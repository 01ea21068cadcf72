"""What has ended is freed by the end of its last reference: it needs no collection of garbage.

The collection counts objects, not bytes, so what is large could wait for it for a long time.
"""

from __future__ import annotations

import gc
import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.web.http1.peer import Peer
from tests.web.tree_server import TreeServer
from tests.websocket_frames import KEY, TEXT, print_frame
from treedbd.web.realtime.listens import Listen
from treedbd.web.realtime.pieces import LongMessage
from treedbd.web.sse.stream import Stream

QUERY = "orderBy=%22$key%22&limitToFirst=2"
LONG = "x" * 100_000
PART_BYTES = 10_000


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    server = TreeServer(tmp_path)
    server.write("PUT", "/a", {"b": 1})
    return server


def count(kind: type) -> int:
    """Return how many objects there are of a class."""
    return sum(type(each) is kind for each in gc.get_objects())


def count_long() -> int:
    """Return how many long texts objects refer to; long are the parts of a message, too."""
    objects = gc.get_objects()
    return sum(
        isinstance(each, str | bytes | bytearray) and len(each) >= PART_BYTES
        for each in gc.get_referents(*objects)
    )


def open_socket(server: TreeServer) -> Peer:
    """Open a WebSocket."""
    peer = server.connect()
    lines = (
        *("GET /.ws?v=5 HTTP/1.1", "Host: demo.localhost", "Connection: Upgrade"),
        *("Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}", "", ""),
    )
    peer.send("\r\n".join(lines).encode())
    server.clock.advance(0)
    assert b"101" in peer.transport.value()
    return peer


def send(server: TreeServer, peer: Peer, number: int, body: object) -> None:
    """Listen."""
    request = json.dumps({"t": "d", "d": {"r": number, "a": "q", "b": body}}).encode()
    pieces = [request[at : at + 16_000] for at in range(0, len(request), 16_000)]
    if len(pieces) > 1:
        peer.send(print_frame(TEXT, str(len(pieces)).encode()))
    for piece in pieces:
        peer.send(print_frame(TEXT, piece))
    server.clock.advance(0)


@pytest.mark.parametrize("target", ["/a.json", f"/a.json?{QUERY}"])
def test_a_stream_whose_client_has_gone_is_freed(server: TreeServer, target: str) -> None:
    before = count(Stream)
    stream = server.open_stream(target)
    server.write("PUT", "/a/c", 2)
    assert count(Stream) == before + 1
    stream.peer.disconnect()
    del stream
    server.clock.advance(0)
    assert count(Stream) == before


@pytest.mark.parametrize(
    "query", [None, {"i": ".key", "sp": "a"}, {"i": ".key", "l": 2, "vf": "l"}]
)
def test_listens_of_a_socket_that_was_closed_are_freed(server: TreeServer, query: object) -> None:
    before = count(Listen)
    peer = open_socket(server)
    body = {"p": "/a"} if query is None else {"p": "/a", "q": query, "t": 1}
    send(server, peer, 1, body)
    server.write("PUT", "/a/c", 2)
    assert count(Listen) == before + 1
    peer.disconnect()
    server.clock.advance(0)
    assert count(Listen) == before


def test_a_closed_socket_keeps_nothing_of_long_queries(server: TreeServer) -> None:
    before = count_long()
    peer = open_socket(server)
    send(server, peer, 1, {"p": "/a", "q": {"i": ".key", "sp": f"b{LONG}"}, "t": 1})
    assert count_long() > before
    peer.disconnect()
    server.clock.advance(0)
    assert count_long() == before


@pytest.mark.parametrize("is_parsed", [True, False])
def test_a_closed_socket_keeps_nothing_of_an_unfinished_message(
    server: TreeServer, is_parsed: bool
) -> None:
    before = count_long()
    peer = open_socket(server)
    peer.send(print_frame(TEXT, b"3000") * is_parsed + print_frame(TEXT, LONG.encode())[:-9])
    server.clock.advance(0)
    peer.disconnect()
    server.clock.advance(0)
    assert count_long() == before
    assert count(LongMessage) == 0
