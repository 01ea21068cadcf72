"""What has ended is freed by the end of its last reference: it needs no collection of garbage.

The collection counts objects, not bytes, so what is large could wait for it for a long time.
"""

from __future__ import annotations

import gc
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from twisted.logger import Logger, LogPublisher

from tests.http1.peer import Peer
from tests.web.tree_server import TreeServer
from tests.websocket_frames import BINARY, CLOSE, KEY, PING, TEXT, print_frame
from treedbd.database.slices import Slices, Steps
from treedbd.web.realtime.listens import Listen
from treedbd.web.realtime.session import RealtimeSession
from treedbd.web.realtime.wire import LongMessage
from treedbd.web.streams import (
    Stream,
)

QUERY = "orderBy=%22$key%22&limitToFirst=2"
ON_DISCONNECT = "onDisconnect=%7B%22left%22%3A1%7D"
LONG = "x" * 100_000
PART_BYTES = 10_000


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Leave the garbage where it is, and all that there was before out of what is counted."""
    gc.collect()
    gc.freeze()
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


def check_freed(use: Callable[[], None]) -> None:
    """Check that what is done and has ended leaves no session, and no cycle of garbage."""
    use()
    gc.collect()
    before = count(RealtimeSession)
    use()
    assert count(RealtimeSession) == before
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    garbage = [repr(each)[:200] for each in gc.garbage]
    gc.garbage.clear()
    assert garbage == []


def shake_hands(server: TreeServer, version: str = "13", address: str = "192.0.2.1") -> Peer:
    """Ask for a WebSocket from an address."""
    peer = server.connect(address)
    lines = (
        *("GET /.ws?v=5 HTTP/1.1", "Host: demo.localhost", "Connection: Upgrade"),
        *("Upgrade: websocket", f"Sec-WebSocket-Version: {version}"),
        *(f"Sec-WebSocket-Key: {KEY}", "", ""),
    )
    peer.send("\r\n".join(lines).encode())
    server.clock.advance(0)
    return peer


def open_socket(server: TreeServer, address: str = "192.0.2.1") -> Peer:
    """Open a WebSocket from an address."""
    peer = shake_hands(server, address=address)
    assert b"101" in peer.transport.value()
    return peer


def send(server: TreeServer, peer: Peer, number: int, body: object, action: str = "q") -> None:
    """Send a request: to listen, or another action."""
    request = json.dumps({"t": "d", "d": {"r": number, "a": action, "b": body}}).encode()
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


@pytest.mark.parametrize("target", ["/a.json", f"/a.json?{QUERY}", f"/a.json?{ON_DISCONNECT}"])
def test_a_stream_that_has_ended_leaves_no_garbage(server: TreeServer, target: str) -> None:
    def use() -> None:
        stream = server.open_stream(target)
        server.write("PUT", "/a/c", 2)
        stream.peer.disconnect()
        server.pass_time(2)

    check_freed(use)


@pytest.mark.parametrize(
    "query", [None, {"i": ".key", "sp": "a"}, {"i": ".key", "l": 2, "vf": "l"}]
)
def test_listens_of_a_socket_that_was_closed_are_freed(server: TreeServer, query: object) -> None:
    before = count(Listen), count(RealtimeSession)
    peer = open_socket(server)
    body = {"p": "/a"} if query is None else {"p": "/a", "q": query, "t": 1}
    send(server, peer, 1, body)
    server.write("PUT", "/a/c", 2)
    assert (count(Listen), count(RealtimeSession)) == (before[0] + 1, before[1] + 1)
    peer.disconnect()
    server.clock.advance(0)
    assert (count(Listen), count(RealtimeSession)) == before


def test_a_session_whose_writes_were_answered_is_freed(server: TreeServer) -> None:
    before = count(RealtimeSession)
    peer = open_socket(server)
    for number in range(1, 4):
        send(server, peer, number, {"p": "/a/b", "d": number}, "p")
    assert count(RealtimeSession) == before + 1
    peer.disconnect()
    server.clock.advance(0)
    assert count(RealtimeSession) == before


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
    before = count_long(), count(LongMessage)
    peer = open_socket(server)
    peer.send(print_frame(TEXT, b"3000") * is_parsed + print_frame(TEXT, LONG.encode())[:-9])
    server.clock.advance(0)
    peer.disconnect()
    server.clock.advance(0)
    assert (count_long(), count(LongMessage)) == before


def drain(server: TreeServer, peer: Peer) -> None:
    server.resource.realtime.sockets.end()


def fall_silent(server: TreeServer, peer: Peer) -> None:
    server.pass_time(100)
    assert peer.is_dropped


def stop_in_a_message(server: TreeServer, peer: Peer) -> None:
    peer.send(print_frame(TEXT, b"3"))
    while not peer.transport.disconnecting:
        server.pass_time(20)
        peer.send(print_frame(PING, b""))


def read_nothing(server: TreeServer, peer: Peer) -> None:
    producer = peer.transport.producer
    assert producer is not None
    producer.pauseProducing()
    for _ in range(10):
        server.write("PUT", "/a/d", "x" * 5000)


def read_nothing_for_long(server: TreeServer, peer: Peer) -> None:
    read_nothing(server, peer)
    server.pass_time(100)


def close_properly(server: TreeServer, peer: Peer) -> None:
    peer.send(print_frame(CLOSE, b"\x03\xe8"))


def send_bytes(server: TreeServer, peer: Peer) -> None:
    peer.send(print_frame(BINARY, b"x"))


def send_a_broken_frame(server: TreeServer, peer: Peer) -> None:
    peer.send(b"\xff" + print_frame(TEXT, b"x")[1:])


def send_no_envelope(server: TreeServer, peer: Peer) -> None:
    peer.send(print_frame(TEXT, b"[]"))


def send_much_at_once(server: TreeServer, peer: Peer) -> None:
    server.clock.lag = 0.001
    peer.send(print_frame(TEXT, b"0") * 2000)
    server.clock.lag = 0.0


def write_and_leave(server: TreeServer, peer: Peer) -> None:
    for number, action in enumerate(["p", "q", "p", "auth", "g", "o", "oc", "unauth"]):
        body = {"p": "/a/w", "d": number, "cred": "none"}
        message = {"t": "d", "d": {"r": number, "a": action, "b": body}}
        peer.send(print_frame(TEXT, json.dumps(message).encode()))


def wait_and_leave(server: TreeServer, peer: Peer) -> None:
    read_nothing(server, peer)
    for number, action in enumerate(["q", "p", "q", "auth"]):
        send(server, peer, number, {"p": "/a/w", "d": number}, action)


def write_long_and_leave(server: TreeServer, peer: Peer) -> None:
    send(server, peer, 5, {"p": "/a/w", "d": LONG})
    send(server, peer, 6, {"p": "/a/w", "d": {"b": LONG}}, "p")


def fail_in_a_handler(server: TreeServer, peer: Peer) -> None:
    (session,) = server.resource.realtime._open
    session.receive(cast(bytes, None))


Ending = Callable[[TreeServer, Peer], None]


@pytest.mark.parametrize(
    "end",
    [
        drain,
        fall_silent,
        stop_in_a_message,
        read_nothing,
        read_nothing_for_long,
        close_properly,
        send_bytes,
        send_a_broken_frame,
        send_no_envelope,
        send_much_at_once,
        write_and_leave,
        wait_and_leave,
        write_long_and_leave,
        fail_in_a_handler,
    ],
)
def test_nothing_of_a_socket_is_left_however_it_ends(
    server: TreeServer, end: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before logging has begun Twisted keeps what is logged, with its frames.
    monkeypatch.setattr(RealtimeSession, "_log", Logger(observer=LogPublisher()))

    def use() -> None:
        peer = open_socket(server)
        send(server, peer, 1, {"p": "/a"})
        send(server, peer, 2, {"p": "/a", "q": {"i": ".key", "l": 2, "vf": "l"}, "t": 1})
        send(server, peer, 3, {"p": "/left", "d": 1}, "o")
        send(server, peer, 4, {"p": "/a/b", "d": 1}, "p")
        end(server, peer)
        server.clock.advance(0)
        peer.disconnect()
        server.pass_time(100)

    check_freed(use)


@pytest.mark.parametrize("version", ["13", "12"])
def test_nothing_of_a_refused_handshake_is_left(
    server: TreeServer, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use() -> None:
        peer = shake_hands(server, version)
        assert b"101" not in peer.transport.value()
        server.clock.advance(0)
        peer.disconnect()
        server.pass_time(100)

    if version == "13":
        monkeypatch.setattr("treedbd.http1.request.Request.upgrade", lambda *_: None)
    check_freed(use)


def test_a_socket_may_close_before_what_it_has_sent_has_its_turn(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = open_socket(server)
    waiting: list[Steps] = []
    monkeypatch.setattr(Slices, "start", lambda _, steps: waiting.append(steps))
    peer.send(print_frame(TEXT, b"{}") * 2_000)
    peer.disconnect()
    assert waiting
    for steps in waiting:
        assert list(steps) == []
