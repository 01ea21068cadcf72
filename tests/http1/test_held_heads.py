"""What connections hold of long heads: charged while they need it, and freed for certain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from tests.http1.peer import Peer, ScriptedResource, Server, send_small
from treedbd.counting import HeldBytes
from treedbd.http1.registry import AnsweredRequest, ServerOptions
from treedbd.http1.request import Request
from treedbd.limits import KIB, Limits

LONG = b"x" * 30_000
HEAD = b"GET /a.json?long=%b HTTP/1.1\r\nHost: localhost\r\nFiller: %b\r\n" % (LONG, LONG)
WITH_BODY = HEAD.replace(b"GET", b"PUT") + b"Content-Length: 10\r\n\r\n"
GET = HEAD + b"\r\n"


def held_of(server: Server) -> HeldBytes:
    return server.factory.connections.held


def never(_: Request) -> None:
    """Leave a request without an answer."""


def begin_stream(request: Request) -> None:
    """Begin a reply that lasts."""
    request.start(200, (), closes_connection=True)
    request.write(b"event")


def test_an_idle_connection_keeps_nothing_of_its_last_request() -> None:
    resource = ScriptedResource(send_small)
    server = Server(resource)
    peer = server.connect()
    assert peer.exchange(GET)[0].status == 200
    parser = peer.connection._parser
    assert (parser.headers, parser.target, parser.body) == ({}, b"", None)
    assert parser.head_memory is not resource.requests[0].head_memory
    assert held_of(server).total == 0
    assert peer.exchange(GET)[0].status == 200


@pytest.mark.parametrize(("size", "is_kept"), [(15 * KIB, True), (16 * KIB, False)])
def test_what_a_resource_made_of_a_short_head_is_kept_while_it_is_small(
    size: int, is_kept: bool
) -> None:
    activity = CountedAtOnce()

    def answer(request: Request) -> None:
        if request.head_memory.question is None:
            request.head_memory.question = "question"
            request.head_memory.size += size
        send_small(request)

    resource = ScriptedResource(answer)
    server = Server(resource, options=ServerOptions(activity=activity))
    peer = server.connect()
    activity.counted.clear()
    for _ in range(3):
        assert peer.exchange(b"GET /a.json HTTP/1.1\r\nHost: a\r\n\r\n")[0].status == 200
    parser = peer.connection._parser
    assert (parser.head_memory is resource.requests[-1].head_memory) == is_kept
    assert (parser.target == b"/a.json") == is_kept
    assert activity.counted == ([] if is_kept else [1, 1, 1])


def test_a_body_belongs_to_its_request_alone() -> None:
    server = Server(ScriptedResource(send_small))
    peer = server.connect()
    peer.exchange(b"PUT /a.json HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
    assert peer.connection._parser.body is None


def test_a_refused_connection_keeps_nothing_of_what_was_wrong() -> None:
    server = Server(ScriptedResource(never))
    peer = server.connect()
    (reply,) = peer.exchange(GET.replace(b"Filler:", b"Filler"))
    assert reply.status == 400
    parser = peer.connection._parser
    assert (parser.headers, parser.unread_bytes) == ({}, 0)
    assert held_of(server).total == 0


def test_a_reply_that_lasts_keeps_only_what_is_read_of_its_head_later() -> None:
    resource = ScriptedResource(begin_stream)
    server = Server(resource)
    peer = server.connect()
    peer.send(GET)
    (request,) = resource.requests
    assert request.uri == b"/a.json"
    assert request.headers == {b"host": [b"localhost"]}
    assert held_of(server).total == 0


@pytest.mark.parametrize("sent", [GET[:-4], WITH_BODY, WITH_BODY + b"half", GET])
def test_what_is_not_answered_is_charged(sent: bytes) -> None:
    server = Server(ScriptedResource(never))
    peer = server.connect()
    peer.send(sent)
    assert held_of(server).total > len(LONG)
    assert held_of(server).count_of("192.0.2.1") == held_of(server).total


@pytest.mark.parametrize(
    "limit", ["held_bytes", "held_bytes_per_address", "held_bytes_per_connection"]
)
@pytest.mark.parametrize("sent", [GET[:-4], WITH_BODY, GET])
def test_too_much_is_refused_by_each_bound(limit: str, sent: bytes) -> None:
    server = Server(ScriptedResource(never), Limits(**{limit: 50_000}))
    peer = server.connect()
    (reply,) = peer.exchange(sent)
    assert reply.status == 503
    assert reply[b"retry-after"] == b"1"
    assert reply.body.startswith(b'{"error":"unavailable"')
    assert held_of(server).refused == {limit: 1}
    assert held_of(server).total == 0


def test_what_one_connection_holds_leaves_room_for_others_when_it_is_gone() -> None:
    server = Server(ScriptedResource(never), Limits(held_bytes_per_address=100_000))
    first, other = server.connect(), server.connect("192.0.2.2")
    first.send(GET[:-4])
    assert server.connect().exchange(GET[:-4])[0].status == 503
    other.send(GET[:-4])
    first.disconnect()
    again = server.connect()
    again.send(GET[:-4])
    assert not again.read()


def reset(_: Server, peer: Peer) -> None:
    """Let the client be gone."""
    peer.connection.connectionLost(Failure(ConnectionLost()))


def time_out(server: Server, peer: Peer) -> None:
    """Let the server wait in vain."""
    server.pass_time(40)
    peer.disconnect()


def stop(server: Server, peer: Peer) -> None:
    """Let the server stop."""
    server.factory.drain()
    server.factory.abort()
    peer.disconnect()


@pytest.mark.parametrize("end", [reset, time_out, stop])
@pytest.mark.parametrize("answer", [never, send_small, begin_stream])
@pytest.mark.parametrize("secure", [False, True])
def test_after_many_connections_nothing_is_charged(
    end: Callable[[Server, Peer], None], answer: Callable[[Request], None], secure: bool
) -> None:
    for sent in (b"", GET[:-4], WITH_BODY, WITH_BODY + b"half", GET, GET + GET[:-4], b"no\r\n\r\n"):
        server = Server(ScriptedResource(answer))
        for _ in range(3):
            peer = server.connect(secure=secure)
            peer.send(sent)
            end(server, peer)
        assert held_of(server).total == 0
        assert held_of(server).count_of("192.0.2.1") == 0


def test_after_a_thousand_connections_nothing_is_charged() -> None:
    server = Server(ScriptedResource(send_small))
    sent = (GET, GET[:-4], WITH_BODY, WITH_BODY + b"half", GET + GET[:-4])
    for number in range(1000):
        peer = server.connect()
        peer.send(sent[number % len(sent)])
        reset(server, peer)
    assert held_of(server).total == 0


class CountedAtOnce:
    """Counts answered requests, and how many of them waited for that."""

    def __init__(self) -> None:
        self.answered: deque[AnsweredRequest] = deque()
        self.counted: list[int] = []

    def count(self) -> None:
        self.counted.append(len(self.answered))
        self.answered.clear()


def test_a_long_head_does_not_wait_to_be_counted() -> None:
    activity = CountedAtOnce()
    server = Server(ScriptedResource(send_small), options=ServerOptions(activity=activity))
    peer = server.connect()
    activity.counted.clear()
    peer.exchange(b"GET /a.json HTTP/1.1\r\nHost: a\r\n\r\n")
    assert activity.counted == []
    peer.exchange(GET)
    assert activity.counted == [2]
