from __future__ import annotations

import gzip
from typing import Any, Self

import pytest
from twisted.internet.interfaces import IPushProducer
from twisted.logger import ILogObserver, globalLogPublisher
from twisted.web.error import UnsupportedMethod
from twisted.web.http import combinedLogFormatter
from twisted.web.iweb import IRequest
from twisted.web.pages import notFound
from twisted.web.resource import EncodingResourceWrapper, Resource
from twisted.web.server import NOT_DONE_YET, GzipEncoderFactory
from twisted.web.static import Data
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.closing import Closing
from tests.http1.peer import BODY, GET, ParsedReply, Peer, ScriptedResource, Server, send_small
from treedbd.http1.content import Content, WaitingBytes
from treedbd.http1.request import Request

DATE = b"Sun, 06 Nov 1994 08:49:37 GMT"


def open_request(head: bytes = GET) -> tuple[Peer, Request]:
    """Return a request that has not been answered."""
    resource = ScriptedResource()
    peer = Server(resource).connect()
    peer.send(head)
    return peer, resource.requests[0]


def request_line(method: bytes = b"GET", version: bytes = b"HTTP/1.1", more: bytes = b"") -> bytes:
    return b"%b /a.json %b\r\nHost: localhost\r\n%b\r\n" % (method, version, more)


def test_it_is_a_request_of_twisted() -> None:
    _, request = open_request()
    assert verifyObject(IRequest, request)


def test_it_describes_what_the_client_sent() -> None:
    head = (
        b"POST /a%2Fb//c.json?x=1&x=2&y= HTTP/1.1\r\nHost: db.example:8443\r\nCookie: a=b; c=d\r\n"
        b"Authorization: Basic dTpw\r\nX-One: a\r\nX-One: b\r\nContent-Length: 3\r\n\r\na=b"
    )
    _, request = open_request(head)
    assert request.method == b"POST"
    assert request.uri == b"/a%2Fb//c.json?x=1&x=2&y="
    assert request.path == b"/a%2Fb//c.json"
    assert request.clientproto == b"HTTP/1.1"
    assert (request.prepath, request.postpath) == ([], [b"a/b", b"", b"c.json"])
    assert request.args == {b"x": [b"1", b"2"], b"y": [b""]}
    assert request.headers[b"x-one"] == [b"a", b"b"]
    assert request.getHeader(b"X-One") == b"b"
    assert request.getHeader("x-one") == "b"
    assert request.getHeader(b"absent") is None
    assert request.requestHeaders.getRawHeaders(b"x-one") == [b"a", b"b"]
    assert request.getAllHeaders()[b"host"] == b"db.example:8443"
    assert request.getRequestHostname() == b"db.example"
    assert request.getCookie(b"c") == b"d"
    assert (request.getUser(), request.getPassword()) == (b"u", b"p")
    assert not request.isSecure()
    assert request.getClientAddress().host == "192.0.2.1"
    assert request.getHost().port == 80
    assert request.content.read() == b"a=b"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/a//b?c?d", b"/a//b"),
        (b"/?a=http://x/", b"/"),
        (b"//a/b", b"//a/b"),
        (b"http://db.example/a/b?c", b"/a/b"),
        (b"http://db.example", b"/"),
        (b"*", b"*"),
    ],
)
def test_the_path_is_that_of_every_form_of_target(target: bytes, path: bytes) -> None:
    _, request = open_request(b"GET " + target + b" HTTP/1.1\r\n\r\n")
    assert request.path == path
    assert request.uri == target


@pytest.mark.parametrize(
    "content_type", [b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x"]
)
def test_a_form_arrives_untouched(content_type: bytes) -> None:
    form = b"--x\r\na=b&c=d\r\n"
    _, request = open_request(
        b"POST / HTTP/1.1\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
        % (content_type, len(form), form)
    )
    assert request.content.read() == form
    assert request.args == {}


def test_a_request_without_a_body_has_empty_content() -> None:
    _, request = open_request()
    assert request.content.read() == b""


def test_a_host_that_was_set_replaces_that_of_the_client() -> None:
    _, request = open_request()
    request.setHost(b"front.example", 443, ssl=1)
    assert request.isSecure()
    assert request.getRequestHostname() == b"front.example"
    assert request.prePathURL() == b"https://front.example/"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (b"/a/b.json", "/a/b.json"),
        (b"/a.json?auth=x", "/a.json"),
        (b"/a.json#auth=x", "/a.json"),
        (b"/a.json;auth=x", "/a.json"),
        (b"/a.json%3Fauth=x", "/a.json"),
        (b"/a.json%3fauth=x", "/a.json"),
        (b"/a.json%253Fauth=x", "/a.json"),
        (b"/a%23auth=x", "/a"),
        (b"/a%20b%3A.json", "/a%20b%3A.json"),
        (b"http://me:secret@h/a.json?x", "/a.json"),
        (b"/eyJhbGciOiJIUzI1NiJ9.e30.sig-_nature", "/…"),
        (b"/eyJhbGciOiJIUzI1NiJ9%2Ee30%2esignature/b.json", "/…/b.json"),
        (b"/a/auth=eyJhbGciOiJIUzI1NiJ9.e30.", "/a/auth=…"),
        (b"/long-name-of-a.eyJhbGciOiJIUzI1NiJ9.e30.signature", "/…"),
        (b"/eyJhbGciOiJIUzI1NiJ9%252Ee30%252esignature/b.json", "/…/b.json"),
        (b"/eyJhbGciOiJIUzI1NiJ9%25252Ee30%252esignature", "/…"),
        (b"/eyJhbGciOiJIUzI1NiJ9%%32Ee30%%32Esignature", "/…"),
        (b"/%65yJhbGciOiJIUzI1NiJ9", "/…"),
        (b"/%2565%79JhbGciOiJIUzI1NiJ9/b", "/…/b"),
        (b"/eyJhbGciOiJIUzI1NiJ9/e30/signature", "/…/e30/signature"),
        (b"/opaque-token-of-a%252Eprovider%252Eof-ours", "/…"),
        (b"/a.json&auth=secret&print=pretty", "/a.json&auth=…&print=pretty"),
        (b"/a.json&access_token=secret", "/a.json&access_token=…"),
        (b"/a/AUTH=secret/b", "/a/AUTH=…/b"),
        (b"/a.json%26auth%3Dsecret", "/…"),
        (b"/a.json%26%61uth=secret", "/…"),
        (b"/a.json%%33Fauth=secret/b", "/…"),
        (b"/a.json%25%33Fauth=secret/b", "/…"),
        (b"/" + b"%25" * 9 + b"41/b", "/" + "%25" * 9 + "41/b"),
        (b"/%" + b"25" * 9 + b"41/b", "/…"),
        (b"/%2F%2e/%0A/100%", "/%2F%2e/%0A/100%"),
        (b"/" + b"%25" * 30_000, "/" + "%25" * 30_000),
        (b"/" + b"a" * 90_000, "/" + "a" * 90_000),
        ("/é/\x9b.json".encode(), "/\\xc3\\xa9/\\xc2\\x9b.json"),
    ],
)
def test_the_path_for_logs_has_no_query_and_nothing_that_may_be_a_token(
    target: bytes, shown: str
) -> None:
    resource = ScriptedResource(send_small)
    Server(resource).connect().send(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target)
    assert resource.requests[0].shown_path == shown


def test_its_repr_has_no_query() -> None:
    _, request = open_request(b"GET /a.json?auth=secret HTTP/1.1\r\n\r\n")
    assert "secret" not in repr(request)
    assert "a.json" in repr(request)


# send


def sent(
    status: int, headers: list[tuple[bytes, bytes]], body: bytes, head: bytes = GET
) -> tuple[bytes, ParsedReply]:
    peer, request = open_request(head)
    request.send(status, headers, body)
    assert peer.transport.writes == 1
    raw = peer.transport.value()
    (reply,) = peer.read(request.method)
    return raw, reply


def test_a_whole_reply_is_one_write() -> None:
    raw, _ = sent(200, [(b"ETag", b'"x"'), (b"X-A", b"b")], BODY)
    assert raw == (
        b"HTTP/1.1 200 OK\r\nDate: " + DATE + b'\r\nETag: "x"\r\nX-A: b\r\n'
        b"Content-Length: 7\r\n\r\n" + BODY
    )


def test_a_large_reply_is_one_write_too() -> None:
    body = b"x" * 1_000_000
    assert sent(200, [], body)[1].body == body


def test_a_reply_to_head_has_the_length_without_the_body() -> None:
    raw, reply = sent(200, [], BODY, request_line(b"HEAD"))
    assert reply[b"content-length"] == b"7"
    assert raw.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_has_no_length(status: int) -> None:
    raw, reply = sent(status, [], b"ignored")
    assert b"content-length" not in reply
    assert raw.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("evil", [b"a\r\nX: y", b"a\nX: y", b"a\rX: y"])
def test_a_header_with_a_line_end_is_never_sent(evil: bytes) -> None:
    peer, request = open_request()
    for headers in ([(b"X-A", evil)], [(evil, b"x")]):
        for _ in range(2):
            with pytest.raises(ValueError, match="line end"):
                request.send(200, headers, BODY)
    assert peer.transport.value() == b""
    request.send(200, [], BODY)
    assert peer.read()[0].status == 200


def test_sending_twice_sends_once() -> None:
    peer, request = open_request()
    request.send(200, [], BODY)
    request.send(500, [], BODY)
    request.finish()
    assert [reply.status for reply in peer.read()] == [200]


def test_a_reply_begun_with_write_cannot_be_sent_whole() -> None:
    _, request = open_request()
    request.write(b"x")
    with pytest.raises(RuntimeError):
        request.send(200, [], BODY)


# write and finish


def test_pieces_of_unknown_length_are_chunks() -> None:
    peer, request = open_request()
    request.setHeader(b"content-type", b"text/event-stream")
    request.write(b"one")
    request.write(b"")
    request.write(b"two" * 10)
    request.finish()
    raw = peer.transport.value()
    assert raw.endswith(b"\r\n\r\n3\r\none\r\n1e\r\n" + b"two" * 10 + b"\r\n0\r\n\r\n")
    assert peer.transport.writes == 3
    (reply,) = peer.read()
    assert reply.body == b"one" + b"two" * 10
    assert reply[b"content-type"] == b"text/event-stream"
    assert reply[b"date"] == DATE


def test_content_is_one_write_like_a_piece_and_counted_like_one() -> None:
    peer, request = open_request()
    content = Content(WaitingBytes(0), b"0123456789")
    request.write(b"one")
    for _ in range(2):
        request.write_content(content)
    assert peer.transport.value().endswith(b"\r\n3\r\none\r\n" + 2 * b"a\r\n0123456789\r\n")
    assert (peer.transport.writes, request.sentLength) == (3, 23)
    request.notifyFinish().addErrback(lambda _: None)
    peer.disconnect()
    request.write_content(content)
    assert request.sentLength == 23


def test_content_is_encoded_like_a_piece() -> None:
    peer, request = open_request()
    resource = EncodingResourceWrapper(Data(b"", "text/plain"), [GzipEncoderFactory()])
    request.headers = {**request.headers, b"accept-encoding": [b"gzip"]}
    request._encoder = resource.getEncoder(request)
    request.write(b"one")
    request.write_content(Content(WaitingBytes(0), b"two"))
    request.finish()
    (reply,) = peer.read()
    assert gzip.decompress(reply.body) == b"onetwo"


def test_pieces_of_a_declared_length_are_not_chunks() -> None:
    peer, request = open_request()
    request.setHeader(b"content-length", b"6")
    request.write(b"one")
    request.write(b"two")
    request.finish()
    (reply,) = peer.read()
    assert reply.body == b"onetwo"
    assert not peer.is_closed


@pytest.mark.parametrize("body", [b"less", b"more than ten bytes"])
def test_a_body_of_another_length_than_declared_ends_the_connection(body: bytes) -> None:
    peer, request = open_request()
    request.setHeader(b"content-length", b"10")
    request.write(body)
    request.finish()
    assert peer.is_closed


def test_for_http_1_0_the_end_of_the_connection_ends_a_body_of_unknown_length() -> None:
    peer, request = open_request(
        request_line(version=b"HTTP/1.0", more=b"Connection: keep-alive\r\n")
    )
    request.write(b"one")
    request.write(b"two")
    request.finish()
    (reply,) = peer.read()
    assert reply.body == b"onetwo"
    assert reply[b"connection"] == b"close"
    assert peer.is_closed


def test_finishing_without_writing_sends_an_empty_body() -> None:
    peer, request = open_request()
    request.setResponseCode(404, b"Gone\r\nFishing")
    request.finish()
    assert peer.transport.value().startswith(b"HTTP/1.1 404 Gone Fishing\r\n")
    (reply,) = peer.read()
    assert reply[b"content-length"] == b"0"
    assert b"content-type" not in reply


@pytest.mark.parametrize("status", [204, 304])
def test_a_written_body_is_dropped_if_the_status_allows_none(status: int) -> None:
    peer, request = open_request()
    request.setResponseCode(status)
    request.write(b"dropped")
    request.finish()
    (reply,) = peer.read()
    assert b"content-length" not in reply
    assert b"transfer-encoding" not in reply


def test_a_written_body_is_dropped_for_head() -> None:
    peer, request = open_request(request_line(b"HEAD"))
    request.write(b"dropped")
    request.write(b"too")
    request.finish()
    raw = peer.transport.value()
    assert raw.endswith(b"\r\n\r\n")
    assert not peer.is_closed


def test_no_reply_names_the_server() -> None:
    peer, request = open_request()
    request.setHeader(b"server", b"secret/1.0")
    request.write(b"x")
    request.finish()
    assert b"server" not in peer.read()[0]
    peer = Server(Data(b"x", "text/plain")).connect()
    assert b"server" not in peer.exchange(GET)[0]


def test_stock_fields_are_sent() -> None:
    peer, request = open_request()
    request.setETag(b'"x"')
    request.setLastModified(784111777)
    request.addCookie(b"a", b"b")
    request.write(b"")
    request.finish()
    (reply,) = peer.read()
    assert reply[b"etag"] == b'"x"'
    assert reply[b"last-modified"] == DATE
    assert reply[b"set-cookie"] == b"a=b"
    assert reply[b"content-type"] == b"text/html"


def test_the_resource_may_close_the_connection() -> None:
    peer, request = open_request()
    request.setHeader(b"connection", b"close")
    request.write(b"x")
    request.finish()
    (reply,) = peer.read()
    assert reply[b"connection"] == b"close"
    assert peer.is_closed


def test_writing_after_the_end_is_an_error() -> None:
    _, request = open_request()
    request.finish()
    with pytest.raises(RuntimeError):
        request.write(b"x")


# the end


def test_notify_finish_fires_at_the_end_of_the_reply() -> None:
    for end in (lambda r: r.send(200, [], BODY), lambda r: r.finish()):
        _, request = open_request()
        ended: list[object] = []
        request.notifyFinish().addCallback(ended.append)
        end(request)
        assert ended == [None]


def test_answering_after_the_client_has_gone_does_nothing() -> None:
    peer, request = open_request()
    lost: list[Any] = []
    request.notifyFinish().addErrback(lost.append)
    peer.disconnect()
    assert len(lost) == 1
    request.write(b"x")
    request.send(200, [], BODY)
    request.finish()
    request.loseConnection()
    assert peer.transport.value() == b""


class RecordingProducer:
    """A push producer that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


def test_a_push_producer_is_paced_by_the_transport() -> None:
    peer, request = open_request()
    producer: Any = RecordingProducer()
    request.registerProducer(producer, True)
    with pytest.raises(ValueError, match="registered already"):
        request.registerProducer(RecordingProducer(), True)
    upstream = IPushProducer(peer.transport.producer)
    upstream.pauseProducing()
    upstream.resumeProducing()
    request.unregisterProducer()
    upstream.pauseProducing()
    assert producer.calls == ["pause", "resume"]


def test_a_producer_begins_paused_if_the_transport_is_paused() -> None:
    peer, request = open_request()
    IPushProducer(peer.transport.producer).pauseProducing()
    producer = RecordingProducer()
    request.registerProducer(producer, True)
    assert producer.calls == ["pause"]


def test_a_producer_is_stopped_when_the_client_disconnects() -> None:
    peer, request = open_request()
    producer, late = RecordingProducer(), RecordingProducer()
    request.registerProducer(producer, True)
    peer.disconnect()
    request.registerProducer(late, True)
    assert producer.calls == ["stop"]
    assert late.calls == ["stop"]


def test_a_producer_still_registered_at_the_end_is_not_called_for_the_next_request() -> None:
    resource = ScriptedResource()
    peer = Server(resource).connect()
    peer.send(GET)
    producer = RecordingProducer()
    resource.requests[0].registerProducer(producer, True)
    resource.requests[0].finish()
    IPushProducer(peer.transport.producer).pauseProducing()
    assert producer.calls == []


# rendering


class OnlyGet(Resource):
    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        return b"body of " + request.method


class WritesGet(Resource):
    isLeaf = True

    def render_GET(self, request: Any) -> Any:
        request.write(b"body")
        request.finish()
        return NOT_DONE_YET

    def render(self, request: Any) -> Any:
        if request.method == b"HEAD":
            raise UnsupportedMethod([b"GET"])
        return super().render(request)


def test_a_returned_body_is_one_write() -> None:
    peer = Server(OnlyGet()).connect()
    (reply,) = peer.exchange(GET)
    assert reply.body == b"body of GET"
    assert reply[b"content-length"] == b"11"
    assert peer.transport.writes == 1


def test_head_is_answered_like_get_without_the_body() -> None:
    data = Data(b"data", "text/plain")
    data.isLeaf = True
    peer = Server(data).connect()
    peer.send(request_line(b"HEAD"))
    raw = peer.transport.value()
    (reply,) = peer.read(b"HEAD")
    assert raw.endswith(b"\r\n\r\n")
    assert reply[b"content-length"] == b"4"
    peer = Server(WritesGet()).connect()
    peer.send(request_line(b"HEAD"))
    assert b"body" not in peer.transport.value()
    assert peer.read(b"HEAD")[0].status == 200


def test_a_method_that_a_resource_does_not_have_is_refused_in_json() -> None:
    peer = Server(OnlyGet()).connect()
    (reply,) = peer.exchange(request_line(b"BREW"))
    assert reply.status == 405
    assert set(reply[b"allow"].split(b", ")) == {b"GET", b"HEAD"}
    assert reply.body == (
        b'{"error":"method_not_allowed","message":"The method BREW is not allowed here."}'
    )
    assert peer.exchange(GET)[0].status == 200


@implementer(ILogObserver)
class RecordedLog(Closing):
    """Records log events while it is open."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def __enter__(self) -> Self:
        globalLogPublisher.addObserver(self)
        return self

    def close(self) -> None:
        globalLogPublisher.removeObserver(self)

    def failures(self) -> list[type]:
        return [event["log_failure"].type for event in self.events if "log_failure" in event]


def raise_error(request: Request) -> None:
    raise KeyError("inside")


def test_a_resource_that_raises_is_an_internal_error_without_details() -> None:
    with RecordedLog() as log:
        peer = Server(ScriptedResource(raise_error)).connect()
        (reply,) = peer.exchange(b"GET /a.json%3Fx=secret;auth=secret HTTP/1.1\r\n\r\n")
    assert reply.status == 500
    assert reply.body == (
        b'{"error":"internal_error","message":"The server failed to answer this request."}'
    )
    assert reply[b"content-type"] == b"application/json; charset=utf-8"
    assert reply[b"x-content-type-options"] == b"nosniff"
    assert reply[b"cache-control"] == b"no-store"
    assert log.failures() == [KeyError]
    assert "secret" not in repr(log.events)


def test_a_resource_that_returns_something_else_than_bytes_is_an_internal_error() -> None:
    with RecordedLog() as log:
        peer = Server(ScriptedResource(lambda request: "text")).connect()
        assert peer.exchange(GET)[0].status == 500
    assert log.failures() == [TypeError]


def test_an_error_in_the_middle_of_a_reply_drops_the_connection() -> None:
    def begin_and_raise(request: Request) -> None:
        request.write(b"x")
        raise KeyError("inside")

    with RecordedLog() as log:
        peer = Server(ScriptedResource(begin_and_raise)).connect()
        peer.send(GET)
    assert peer.is_dropped
    assert not peer.transport.value().endswith(b"0\r\n\r\n")
    assert log.failures() == [KeyError]


def test_an_error_after_the_reply_is_only_logged() -> None:
    def answer_and_raise(request: Request) -> None:
        send_small(request)
        raise KeyError("inside")

    with RecordedLog() as log:
        peer = Server(ScriptedResource(answer_and_raise)).connect()
        assert [reply.status for reply in peer.exchange(GET, GET)] == [200, 200]
    assert log.failures() == [KeyError, KeyError]


def make_tree() -> Resource:
    root = Resource()
    root.putChild(b"data", Data(b"stock", "text/plain"))
    root.putChild(b"absent", notFound())
    root.putChild(b"leaf", ScriptedResource(send_small))
    root.putChild(
        b"gzip", EncodingResourceWrapper(Data(b"x" * 500, "text/plain"), [GzipEncoderFactory()])
    )
    return root


def test_child_resources_are_looked_up_as_a_site_does() -> None:
    peer = Server(make_tree()).connect()
    data, absent, nothing, leaf = peer.exchange(
        *(b"GET /%b HTTP/1.1\r\n\r\n" % name for name in (b"data", b"absent", b"x", b"leaf/a/b"))
    )
    assert (data.status, data.body, data[b"content-type"]) == (200, b"stock", b"text/plain")
    assert absent.status == nothing.status == 404
    assert leaf.body == BODY


def test_the_paths_of_a_leaf_show_where_it_is_mounted() -> None:
    root, leaf = Resource(), ScriptedResource(send_small)
    root.putChild(b"db", leaf)
    Server(root).connect().send(b"GET /db/a/b.json HTTP/1.1\r\n\r\n")
    (request,) = leaf.requests
    assert (request.prepath, request.postpath) == ([b"db"], [b"a", b"b.json"])
    assert request.path == b"/db/a/b.json"


def test_options_of_the_target_asterisk_is_answered_for_the_whole_server() -> None:
    peer = Server(make_tree()).connect()
    options, get = peer.exchange(b"OPTIONS * HTTP/1.1\r\n\r\n", b"GET * HTTP/1.1\r\n\r\n")
    assert (options.status, get.status) == (200, 405)


def test_an_encoder_of_a_resource_is_used() -> None:
    peer = Server(make_tree()).connect()
    (reply,) = peer.exchange(b"GET /gzip HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n")
    assert reply[b"content-encoding"] == b"gzip"
    assert 0 < len(reply.body) < 100


def test_a_session_lasts_over_several_requests() -> None:
    sessions = []

    def remember(request: Any) -> bytes:
        request.sitepath = []
        sessions.append(request.getSession())
        return b"x"

    peer = Server(ScriptedResource(remember)).connect()
    (reply,) = peer.exchange(GET)
    cookie = reply[b"set-cookie"].split(b";")[0]
    peer.send(request_line(more=b"Cookie: " + cookie + b"\r\n"))
    assert sessions[0] is sessions[1]


def test_the_access_log_is_called_for_every_answered_request() -> None:
    lines: list[str] = []
    server = Server(
        ScriptedResource(send_small),
        log_access=lambda request: lines.append(combinedLogFormatter("[now]", request)),
    )
    server.connect().exchange(GET + GET)
    assert len(lines) == 2
    assert lines[0].startswith('"192.0.2.1" - - [now] "GET /a.json HTTP/1.1" 200 7')


def test_an_error_of_the_access_log_is_only_logged() -> None:
    with RecordedLog() as log:
        server = Server(ScriptedResource(send_small), log_access=raise_error)
        assert [reply.status for reply in server.connect().exchange(GET + GET)] == [200, 200]
    assert log.failures() == [KeyError, KeyError]
