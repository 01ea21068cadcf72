"""Requests of our own server and of a `Site` meet one interface: one table, both servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import Clock, Cooperator
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.http1.peer import GET, ParsedReply, Peer, ScriptedResource, Server
from treedbd.http1.adapter import AdaptedRequest
from treedbd.http1.content import Content, WaitingBytes
from treedbd.http1.request import IHttp1Request, IHttp1Resource
from treedbd.limits import Limits
from treedbd.names import parse_trusted_proxies

LIMIT = 10
LONG = b"0123456789" * 50_000
JSON = (b"Content-Type", b"application/json")
ETAG = (b"ETag", b'"x"')
POST = b"POST /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"

Answer = Callable[[Any], object]


@implementer(IHttp1Resource)
class AdaptingResource(Resource):
    """A leaf that adapts its requests as `TreeResource` does, and records them."""

    isLeaf = True

    def __init__(self, answer: Answer | None) -> None:
        super().__init__()
        self.requests: list[Any] = []
        self._answer = answer

    def render(self, request: Any) -> Any:
        if not IHttp1Request.providedBy(request):
            request = AdaptedRequest(request, LIMIT)
        self.requests.append(request)
        if self._answer is not None:
            self._answer(request)
        return NOT_DONE_YET


class SiteServer(Server):
    """A stock `Site` in place of our own server."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(ScriptedResource())
        factory: Any = Site(resource, reactor=self.clock)
        self.factory = factory


def connect_own(resource: Resource) -> Peer:
    return Server(resource, Limits(write_body_bytes=LIMIT)).connect()


def connect_site(resource: Resource) -> Peer:
    return SiteServer(resource).connect()


BOTH = pytest.mark.parametrize("connect", [connect_own, connect_site])


def open_request(connect: Callable[[Resource], Peer], head: bytes = GET) -> tuple[Peer, Any]:
    """Return a peer and its request, which has not been answered."""
    resource = AdaptingResource(None)
    peer = connect(resource)
    peer.send(head)
    return peer, resource.requests[0]


@BOTH
def test_a_request_provides_the_interface(connect: Callable[[Resource], Peer]) -> None:
    _, request = open_request(connect)
    assert verifyObject(IHttp1Request, request)
    assert isinstance(request, AdaptedRequest) == (connect is connect_site)


@BOTH
def test_a_request_describes_what_the_client_sent(connect: Callable[[Resource], Peer]) -> None:
    head = (
        b"PUT /a%2Fb//c.json?x=1 HTTP/1.1\r\nHost: db.example\r\nX-One: a\r\nx-one: b\r\n"
        b"Content-Length: 3\r\n\r\nabc"
    )
    _, request = open_request(connect, head)
    assert (request.method, request.uri) == (b"PUT", b"/a%2Fb//c.json?x=1")
    assert request.path == b"/a%2Fb//c.json"
    assert (request.prepath, request.postpath) == ([], [b"a/b", b"", b"c.json"])
    assert request.headers == {
        b"host": [b"db.example"],
        b"x-one": [b"a", b"b"],
        b"content-length": [b"3"],
    }
    assert request.content.read() == b"abc"
    assert request.getClientAddress().host == "192.0.2.1"
    assert not request.is_oversized
    assert not request.has_own_timeout
    assert not request.startedWriting


def send(status: int, *headers: tuple[bytes, bytes], body: bytes = b"body") -> Answer:
    return lambda request: request.send(status, headers, body)


def start(
    status: int,
    *headers: tuple[bytes, bytes],
    length: int | None = None,
    pieces: tuple[bytes, ...] = (b"bo", b"dy"),
    closes_connection: bool = False,
) -> Answer:
    def answer(request: Any) -> None:
        request.start(status, headers, length, closes_connection=closes_connection)
        for piece in pieces:
            request.write(piece)
        request.finish()

    return answer


def start_with_content(
    status: int,
    length: int | None = None,
    before: bytes = b"",
    *,
    closes_connection: bool = False,
) -> Answer:
    """Return an answer that writes content which other replies contain too."""
    content = Content(WaitingBytes(0), b"body")

    def answer(request: Any) -> None:
        request.start(status, (JSON,), length, closes_connection=closes_connection)
        if before:
            request.write(before)
        request.write_content(content)
        request.write_content(content)
        request.finish()

    return answer


def send_twice(request: Any) -> None:
    request.send(200, (JSON,), b"first")
    request.send(500, (JSON,), b"second")


ANSWERS: dict[str, Answer] = {
    "send": send(200, JSON, ETAG),
    "send an empty body": send(200, JSON, body=b""),
    "send a large body": send(200, JSON, body=b"x" * 400_000),
    "send an error": send(403, JSON, (b"Allow", b"GET, HEAD")),
    "send 204": send(204, ETAG, body=b""),
    "send 204 with a body": send(204, ETAG),
    "send 304 with a body": send(304, ETAG),
    "send twice": send_twice,
    "start with a length": start(200, JSON, length=4),
    "start without a length": start(200, JSON),
    "start with the length 0": start(200, JSON, length=0, pieces=()),
    "start 204": start(204, JSON, ETAG, pieces=()),
    "start 304": start(304, ETAG, pieces=()),
    "content first": start_with_content(200),
    "content after a piece": start_with_content(200, before=b"before"),
    "content of a declared length": start_with_content(200, length=8),
    "content after a piece of a declared length": start_with_content(200, 14, b"before"),
    "content that the status does not allow": start_with_content(304, before=b"before"),
    "start and close": start(200, JSON, closes_connection=True),
    "start 204 and close": start(204, JSON, pieces=(), closes_connection=True),
    "start and close, empty": start(200, JSON, pieces=(), closes_connection=True),
    "content and close": start_with_content(200, closes_connection=True),
    "content after a piece and close": start_with_content(
        200, before=b"before", closes_connection=True
    ),
    "start with a length and close": start(200, JSON, length=4, closes_connection=True),
}


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_reply_is_the_same_from_both_servers(answer: Answer, method: bytes) -> None:
    own, site = (connect(AdaptingResource(answer)) for connect in (connect_own, connect_site))
    line = b"%b /a.json HTTP/1.1\r\nHost: localhost\r\n\r\n" % method
    expected, expected_bytes = _read_reply(own, line)
    found, found_bytes = _read_reply(site, line)
    assert found.status == expected.status
    assert found.body == expected.body
    assert found_bytes == expected_bytes
    assert _fields(found) == _fields(expected)
    assert site.is_closed == own.is_closed
    assert b"date" in found
    assert b"server" not in found


@BOTH
def test_a_reply_that_ends_with_its_connection_is_not_chunked(
    connect: Callable[[Resource], Peer],
) -> None:
    peer, request = open_request(connect)
    request.start(200, (JSON,), closes_connection=True)
    request.write(b"one")
    request.write_content(Content(WaitingBytes(0), b"two"))
    head, _, body = peer.transport.value().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head.lower()
    assert b"content-length" not in head.lower()
    assert body == b"onetwo"
    assert not peer.is_closed
    request.finish()
    assert peer.transport.value().endswith(b"onetwo")
    assert peer.is_closed


def test_a_cookie_of_the_site_is_in_a_reply_that_ends_with_its_connection() -> None:
    peer, request = open_request(connect_site)
    request.addCookie(b"session", b"1")
    request.start(200, (JSON,), closes_connection=True)
    request.write(b"one")
    request.finish()
    (reply,) = peer.read()
    assert (reply[b"set-cookie"], reply.body) == (b"session=1", b"one")


def _read_reply(peer: Peer, line: bytes) -> tuple[ParsedReply, bytes]:
    """Send a request; return the reply, and the bytes after its head as they were sent."""
    peer.send(line)
    raw = peer.transport.value().partition(b"\r\n\r\n")[2]
    (reply,) = peer.read(line.partition(b" ")[0])
    return reply, raw


def _fields(reply: ParsedReply) -> list[tuple[bytes, bytes]]:
    return sorted(each for each in reply.fields if each[0] != b"date")


@BOTH
@pytest.mark.parametrize("is_begun", [False, True])
def test_abort_drops_the_connection(connect: Callable[[Resource], Peer], is_begun: bool) -> None:
    peer, request = open_request(connect)
    if is_begun:
        request.start(200, (JSON,))
        request.write(b"x")
    request.abort()
    assert peer.is_dropped


@BOTH
def test_answering_after_the_client_has_disconnected_does_nothing(
    connect: Callable[[Resource], Peer],
) -> None:
    peer, request = open_request(connect)
    failures: list[object] = []
    request.notifyFinish().addErrback(failures.append)
    peer.disconnect()
    request.send(200, (JSON,), b"body")
    assert len(failures) == 1
    assert peer.transport.value() == b""


@BOTH
def test_notify_finish_fires_at_the_end_of_a_reply(connect: Callable[[Resource], Peer]) -> None:
    for answer in (send(200), start(200)):
        _, request = open_request(connect)
        ended: list[object] = []
        request.notifyFinish().addCallback(ended.append)
        answer(request)
        assert ended == [None]


@BOTH
@pytest.mark.parametrize(("size", "is_oversized"), [(0, False), (LIMIT, False), (LIMIT + 1, True)])
def test_a_body_above_the_limit_is_oversized_and_the_resource_answers(
    connect: Callable[[Resource], Peer], size: int, is_oversized: bool
) -> None:
    peer, request = open_request(connect, POST % (size, b"x" * size))
    assert request.is_oversized is is_oversized
    if not is_oversized:
        assert request.content.read() == b"x" * size
    request.send(413, (JSON,), b"too large")
    assert [(reply.status, reply.body) for reply in peer.read()] == [(413, b"too large")]


@BOTH
def test_a_push_producer_is_paused_and_resumed_with_the_transport(
    connect: Callable[[Resource], Peer],
) -> None:
    peer, request = open_request(connect)
    calls: list[str] = []

    class RecordingProducer:
        def pauseProducing(self) -> None:
            calls.append("pause")

        def resumeProducing(self) -> None:
            calls.append("resume")

        def stopProducing(self) -> None:
            calls.append("stop")

    request.start(200, (JSON,))
    producer: Any = RecordingProducer()
    request.registerProducer(producer, True)
    transport_producer = IPushProducer(peer.transport.producer)
    transport_producer.pauseProducing()
    transport_producer.resumeProducing()
    request.unregisterProducer()
    transport_producer.pauseProducing()
    assert calls == ["pause", "resume"]


# Long content.


def send_content(waiting: WaitingBytes) -> Answer:
    return lambda request: request.send_content(200, [JSON], Content(waiting, LONG).open(""))


@BOTH
def test_long_content_is_sent_whole_and_released(
    connect: Callable[[Resource], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    turns = Cooperator(scheduler=lambda turn: clock.callLater(0, turn))
    monkeypatch.setattr("twisted.internet._producer_helpers.cooperate", turns.cooperate)
    waiting = WaitingBytes(len(LONG))
    peer = connect(AdaptingResource(send_content(waiting)))
    peer.send(GET)
    while waiting.total:
        clock.advance(0)
    (reply,) = peer.read()
    assert (reply.status, reply.body) == (200, LONG)


@BOTH
def test_long_content_for_head_is_not_sent(connect: Callable[[Resource], Peer]) -> None:
    waiting = WaitingBytes(len(LONG))
    peer = connect(AdaptingResource(send_content(waiting)))
    peer.send(GET.replace(b"GET", b"HEAD"))
    (reply,) = peer.read(b"HEAD")
    assert (reply[b"content-length"], reply.body) == (b"%d" % len(LONG), b"")
    assert waiting.total == 0


@BOTH
def test_long_content_is_released_when_the_client_disconnects(
    connect: Callable[[Resource], Peer],
) -> None:
    waiting = WaitingBytes(len(LONG))
    peer = connect(AdaptingResource(send_content(waiting)))
    producer: Any = peer.transport.producer
    producer.pauseProducing()
    peer.disconnect()
    assert waiting.total == 0


@BOTH
def test_long_content_for_a_client_that_has_gone_is_released(
    connect: Callable[[Resource], Peer],
) -> None:
    waiting = WaitingBytes(len(LONG))
    peer, request = open_request(connect)
    peer.disconnect()
    send_content(waiting)(request)
    assert waiting.total == 0


def test_of_a_trusted_proxy_before_a_site_address_scheme_and_host_count() -> None:
    head = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 198.51.100.7\r\n"
        b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example.com\r\n\r\n"
    )
    _, request = open_request(connect_site, head)
    seen = []
    for trusted in (["192.0.2.1"], ["192.0.2.2"]):
        adapted: Any = AdaptedRequest(request.original, LIMIT, parse_trusted_proxies(trusted))
        seen.append(
            (
                adapted.getClientAddress().host,
                adapted.isSecure(),
                adapted.headers[b"host"],
                adapted.came_by_trusted_proxy,
            )
        )
    assert seen == [
        ("198.51.100.7", True, [b"shop.example.com"], True),
        ("192.0.2.1", False, [b"localhost"], False),
    ]
