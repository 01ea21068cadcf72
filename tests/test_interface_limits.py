"""Raw bytes over the wire: invalid requests, limits, slow clients, and plain HTTP/1.1.

Every error is JSON in the documented form, never HTML, and is sent without delay.
"""

from __future__ import annotations

import json
import pathlib
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.rest import JSON_TYPE, Client, Wire, check_error, configured, print_request

KIB = 1024
MIB = 1_048_576
AT_ONCE_S = 15.0  # without waiting for a limit of time, of which the shortest is 20 s
PATIENCE_MS = 60_000
HOST = "raw.localhost"
GET = print_request("GET", "/a.json", host=HOST)
IMPATIENT = """
default_project = "shop"
[limits]
head_s = 1.0
body_s = 1.0
body_bytes_per_s = 100_000
idle_s = 1.0
handshake_s = 1.0
linger_s = 0.5
write_stalled_s = 1.0
[projects.shop]
rules_file = "open.json"
"""
# No other limit of time: on a busy machine the client that writes the value may be slow.
UNREAD = """
default_project = "shop"
[limits]
write_stalled_s = 1.0
[projects.shop]
rules_file = "open.json"
"""
NARROW = """
default_project = "shop"
[limits]
write_body_bytes = 10_000
header_bytes = 2048
header_count = 20
request_line_bytes = 2048
connections = 6
connections_per_address = 4
[projects.shop]
rules_file = "open.json"
"""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with short timeouts."""
    with configured(tmp_path_factory.mktemp("impatient"), IMPATIENT) as running:
        yield running


@pytest.fixture(params=["tcp", "tls"])
def wire(shared_daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Wire]:
    url = shared_daemon.https if request.param == "tls" else shared_daemon.http
    with Wire(url, shared_daemon.ca) as connected:
        yield connected


def check_refused_at_once(wire: Wire, data: bytes, status: int, code: str) -> None:
    """Send bytes; check that a whole error is received at once and the connection is closed."""
    start = time.monotonic()
    wire.send(data)
    response = wire.receive()
    check_error(response, status, code)
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers.get_all("Access-Control-Allow-Origin") == ["*"]
    assert wire.is_ended()
    assert time.monotonic() - start < AT_ONCE_S


# Broken requests


@pytest.mark.parametrize(
    "data",
    [
        *(b"NONSENSE\r\n\r\n", b"GET\r\n\r\n", b"GET /a.json\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n"),
        *(b"GET  /a.json HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /a.json HTTP/1.1 \r\nHost: x\r\n\r\n"),
        *(b"GET /a.json HTTP/2.0\r\nHost: x\r\n\r\n", b"GET /a.json HTTP/1.2\r\nHost: x\r\n\r\n"),
        *(b"GET /a.json http/1.1\r\nHost: x\r\n\r\n", b"GET /a.json HTTP/0.9\r\nHost: x\r\n\r\n"),
        *(b"GET /a.json FTP/1.1\r\n\r\n", b"G\x00T /a.json HTTP/1.1\r\nHost: x\r\n\r\n"),
        *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"\x00\x00\x00\x00\r\n\r\n"),
        *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /a\tb.json HTTP/1.1\r\nHost: x\r\n\r\n"),
        *(b"GET /a.json HTTP/1.1\nHost: x\n\n", b"{}\r\n\r\n", b"GE(T /a.json HTTP/1.1\r\n\r\n"),
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nBroken\r\n\r\n",
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\n: empty\r\n\r\n",
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nA b: c\r\n\r\n",
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n",
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nA: b\r\n folded\r\n\r\n",
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nA: b\x00c\r\n\r\n",
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nA: b\rc\r\n\r\n",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n1",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n1",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\n1",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1, 1\r\n\r\n1",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n1",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n1",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        b"0\r\n\r\n",
        b"PUT /a.json HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n1\r\n",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n1\r\n",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n12\r\n",
    ],
)
def test_an_invalid_request_is_refused_at_once(wire: Wire, data: bytes) -> None:
    start = time.monotonic()
    wire.send(data)
    response = wire.receive()
    assert response.status == 400
    assert response.headers["Content-Type"] == JSON_TYPE
    assert response.json["error"].startswith("invalid_")
    assert response.json["message"]
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers.get_all("Access-Control-Allow-Origin") == ["*"]
    assert wire.is_ended()
    assert time.monotonic() - start < AT_ONCE_S


@pytest.mark.parametrize(
    "target",
    [b"/\xff.json", b"/a/\xc3.json", b"/\xed\xa0\x80.json", b"/\xc0\xaf/a.json", b"/a\x80b.json"],
)
@pytest.mark.parametrize("method", [b"GET", b"PUT", b"HEAD"])
def test_a_raw_path_that_is_not_utf_8_is_refused(wire: Wire, method: bytes, target: bytes) -> None:
    head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1" % (method, target)
    wire.send(head)
    response = wire.receive(method.decode())
    assert response.status == 400
    if method != b"HEAD":
        check_error(response, 400, "invalid_path")


def test_a_raw_query_that_is_not_utf_8_is_refused(wire: Wire) -> None:
    wire.send(b"GET /a.json?x=\xff HTTP/1.1\r\nHost: localhost\r\n\r\n")
    check_error(wire.receive(), 400, "invalid_query")


def test_a_raw_space_in_the_target_is_refused(wire: Wire) -> None:
    wire.send(b"GET /a b.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert wire.receive().status == 400


def test_an_unescaped_utf_8_path_and_unescaped_quotes_are_accepted(wire: Wire) -> None:
    target = '/rå/"{x}".json?orderBy="å"&limitToFirst=1'.encode()
    wire.send(b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, HOST.encode()))
    response = wire.receive()
    assert (response.status, response.body) == (200, b"null")


# Limits of the head


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("length", [64 * KIB, 100 * KIB, MIB, 8 * MIB])
def test_headers_too_large_are_431_at_once(
    shared_daemon: Daemon, secure: bool, length: int
) -> None:
    head = b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nX-Long: "
    with Wire(shared_daemon.https if secure else shared_daemon.http, shared_daemon.ca) as wire:
        check_while_sending(wire, head + b"x" * length, 431)


def check_while_sending(wire: Wire, data: bytes, status: int) -> None:
    """Send bytes that the peer may stop reading; check the error that it sends meanwhile."""
    start = time.monotonic()
    wire.send_until_response(data)
    response = wire.receive()
    check_error(response, status, "too_long" if status != 413 else "payload_too_large")
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers.get_all("Access-Control-Allow-Origin") == ["*"]
    assert time.monotonic() - start < AT_ONCE_S


def test_many_headers_are_431_too(wire: Wire) -> None:
    lines = b"".join(b"X-%d: %b\r\n" % (at, b"y" * 50) for at in range(2000))
    head = b"GET /a.json HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n"
    check_while_sending(wire, head, 431)


def test_headers_just_below_the_limit_are_accepted(wire: Wire) -> None:
    wire.send(print_request("GET", "/a.json", headers={"X-Long": "x" * 60 * KIB}))
    assert wire.receive().status == 200


@pytest.mark.parametrize("length", [97 * KIB, 200 * KIB, 8 * MIB])
@pytest.mark.parametrize("has_end", [True, False])
def test_a_request_line_too_long_is_414_at_once(wire: Wire, length: int, has_end: bool) -> None:
    line = b"GET /" + b"a" * length
    if has_end:
        line += b".json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    check_while_sending(wire, line, 414)


def test_a_request_line_has_96_kib_at_most(wire: Wire) -> None:
    longest = 96 * KIB - len("GET  HTTP/1.1")
    target = "/a.json?x="
    wire.send(print_request("GET", target + "y" * (longest - len(target))))
    assert wire.receive().status == 200
    wire.send(print_request("GET", target + "y" * (longest - len(target) + 1)))
    check_error(wire.receive(), 414, "too_long")


def test_the_limits_of_the_head_can_be_set(tmp_path_factory: pytest.TempPathFactory) -> None:
    with configured(tmp_path_factory.mktemp("narrow"), NARROW) as daemon:
        for data, status in (
            (print_request("GET", "/a.json", headers={"X": "x" * 2100}), 431),
            (print_request("GET", "/a.json", headers={f"X{at}": "" for at in range(30)}), 431),
            (print_request("GET", "/a.json?x=" + "y" * 2100), 414),
            (print_request("PUT", "/a.json", b"1".ljust(10_001)), 413),
        ):
            with Wire(daemon.http) as wire:
                wire.send(data)
                assert wire.receive().status == status
        check_connections(daemon)


def check_connections(daemon: Daemon) -> None:
    """Check that the fifth connection of one address is refused until another one is closed."""
    held = [await_connection(daemon) for _ in range(4)]
    with Wire(daemon.http) as refused:
        check_error(refused.receive(), 429, "too_many_requests")
        assert refused.is_ended()
    for wire in held:
        wire.close()
    await_connection(daemon).close()


def await_connection(daemon: Daemon) -> Wire:
    """Return a connection that is accepted, once those that were closed do not count any more."""
    for _ in range(100):
        wire = Wire(daemon.http)
        wire.send(print_request("GET", "/a.json"))
        if wire.receive().status == 200:
            return wire
        wire.close()
        threading.Event().wait(0.05)
    raise AssertionError("Closed connections still count.")


# Bodies


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_a_body_too_large_is_413_before_it_is_sent(wire: Wire, method: str) -> None:
    head = print_request(method, "/a.json", headers={"Content-Length": str(16 * MIB + 1)})
    check_refused_at_once(wire, head, 413, "payload_too_large")


def test_a_body_too_large_is_413_while_it_is_sent(wire: Wire) -> None:
    check_while_sending(wire, print_request("PUT", "/a.json", b"x" * (40 * MIB)), 413)


def test_a_chunked_body_too_large_is_413(wire: Wire) -> None:
    head = print_request("PUT", "/a.json", headers={"Transfer-Encoding": "chunked"})
    chunk = b"%x\r\n%b\r\n" % (MIB, b" " * MIB)
    check_while_sending(wire, head + chunk * 20, 413)


def test_a_chunk_header_beyond_the_limit_is_413_at_once(wire: Wire) -> None:
    head = print_request("PUT", "/a.json", headers={"Transfer-Encoding": "chunked"})
    check_refused_at_once(wire, head + b"7fffffff\r\n1", 413, "payload_too_large")


def test_expect_100_continue_is_answered_with_100(wire: Wire) -> None:
    request = print_request("PUT", "/c.json", b'{"a":1}', {"Expect": "100-continue"}, HOST)
    head, body = request[:-7], request[-7:]
    wire.send(head)
    assert wire.receive().status == 100
    wire.send(body)
    response = wire.receive("PUT")
    assert (response.status, response.body) == (200, b'{"a":1}')


def test_expect_100_continue_with_a_body_too_large_is_413(wire: Wire) -> None:
    headers = {"Expect": "100-continue", "Content-Length": str(17 * MIB)}
    check_refused_at_once(
        wire, print_request("PUT", "/c.json", headers=headers), 413, "payload_too_large"
    )


def test_a_request_may_arrive_byte_by_byte(wire: Wire) -> None:
    for byte in print_request("PUT", "/p.json", b'{"a":[1,2,3]}', host=HOST):
        wire.send(bytes([byte]))
    response = wire.receive("PUT")
    assert (response.status, response.body) == (200, b'{"a":[1,2,3]}')


def test_an_incomplete_body_writes_nothing(shared_daemon: Daemon) -> None:
    with Client(shared_daemon, HOST) as client:
        client.put("/cut.json", "before")
        for piece in (b"", b"1", b"12"):
            with Wire(shared_daemon.http) as wire:
                head = print_request("PUT", "/cut.json", b"123", host=HOST)[:-3]
                wire.send(head + piece)
                wire.socket.shutdown(socket.SHUT_WR)
                assert not wire.socket.recv(4096).startswith(b"HTTP/1.1 2")
        assert client.get("/cut.json") == "before"


# Several requests on one connection


def test_requests_may_be_pipelined(wire: Wire) -> None:
    requests = [
        print_request("PUT", "/q.json", b'"first"', host=HOST),
        print_request("GET", "/q.json", host=HOST),
        print_request("HEAD", "/q.json", host=HOST),
        print_request("PUT", "/q.json", b'"second"', host=HOST),
        print_request("PATCH", "/q.json", b"{", host=HOST),
        print_request("GET", "/q.json", host=HOST),
        print_request("DELETE", "/q.json", host=HOST),
        print_request("GET", "/q.json", host=HOST),
    ]
    wire.send(b"".join(requests))
    received = [
        (response.status, response.body)
        for response in (wire.receive(request.split()[0].decode()) for request in requests)
        if response.status != 400
    ]
    assert received == [
        (200, b'"first"'),
        (200, b'"first"'),
        (200, b""),
        (200, b'"second"'),
        (200, b'"second"'),
        (200, b"null"),
        (200, b"null"),
    ]


def test_hundreds_of_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    wire.send(b"".join(print_request("PUT", "/n.json", str(at), host=HOST) for at in range(300)))
    assert [wire.receive("PUT").json for _ in range(300)] == list(range(300))


def test_a_connection_is_kept_or_closed_as_the_client_requests(wire: Wire) -> None:
    wire.send(GET)
    assert wire.receive().headers.get("Connection", "keep-alive").lower() == "keep-alive"
    wire.send(print_request("GET", "/a.json", headers={"Connection": "close"}))
    response = wire.receive()
    assert (response.status, response.headers["Connection"].lower()) == (200, "close")
    assert wire.is_ended()


def test_http_1_0_is_answered_and_closed(wire: Wire) -> None:
    wire.send(b"GET /a.json HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert wire.receive().status == 200
    assert wire.is_ended()


def test_http_1_0_may_request_keep_alive(wire: Wire) -> None:
    for _ in range(2):
        wire.send(b"GET /a.json HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
        response = wire.receive()
        assert (response.status, response.headers["Connection"].lower()) == (200, "keep-alive")


def test_an_error_of_the_interface_keeps_the_connection(wire: Wire) -> None:
    for target, status in (("/a", 404), ("/a.b.json", 400), ("/a.json?x=%zz", 400)):
        wire.send(print_request("GET", target, host=HOST))
        assert wire.receive().status == status
    wire.send(GET)
    assert wire.receive().status == 200


def test_an_upgrade_is_ignored(wire: Wire) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    wire.send(print_request("GET", "/a.json", headers=headers))
    assert wire.receive().status == 200


def test_http_2_is_not_negotiated(shared_daemon: Daemon) -> None:
    with Wire(shared_daemon.https, shared_daemon.ca) as wire:
        wire.send(GET)
        assert wire.receive().status == 200


def test_plain_http_on_a_tls_port_is_closed(shared_daemon: Daemon) -> None:
    with Wire(shared_daemon.https.replace("https:", "http:")) as wire:
        wire.send(GET)
        with pytest.raises((OSError, ValueError, AssertionError)):
            wire.receive()


# Slow and silent clients


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    "part",
    [
        b"G",
        b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n[1,",
    ],
)
def test_a_request_that_never_ends_times_out(impatient: Daemon, secure: bool, part: bytes) -> None:
    """The same holds for a client that sends a byte from time to time."""
    with Wire(impatient.https if secure else impatient.http, impatient.ca) as wire:
        start = time.monotonic()
        wire.send(part)
        while not wire.has_response(0.1):
            wire.send(b"1")
        response = wire.receive()
        assert 0.5 < time.monotonic() - start < 15
        assert (response.status, response.json["error"]) == (408, "request_timeout")


def test_a_slow_body_above_the_minimum_rate_is_accepted(impatient: Daemon) -> None:
    with Wire(impatient.http) as wire:
        body = b" " * 400_000 + b"1"
        request = print_request("PUT", "/slow.json", body)
        for offset in range(0, len(request), 40_000):
            wire.send(request[offset : offset + 40_000])
            threading.Event().wait(0.15)
        assert wire.receive("PUT").status == 200


@pytest.mark.parametrize("secure", [False, True])
def test_an_idle_connection_is_closed(impatient: Daemon, secure: bool) -> None:
    with Wire(impatient.https if secure else impatient.http, impatient.ca) as wire:
        wire.send(print_request("GET", "/a.json"))
        assert wire.receive().status == 200
        start = time.monotonic()
        assert wire.is_ended()
        assert 0.5 < time.monotonic() - start < 15


def test_a_connection_without_a_tls_handshake_is_closed(impatient: Daemon) -> None:
    with Wire(impatient.https.replace("https:", "http:")) as wire:
        start = time.monotonic()
        assert wire.is_ended()
        assert 0.5 < time.monotonic() - start < 15


def test_a_client_that_does_not_read_is_disconnected(tmp_path: pathlib.Path) -> None:
    with configured(tmp_path, UNREAD) as daemon, Client(daemon) as client:
        for at in range(10):
            client.put(f"/big/{at}.json", ["x" * MIB, "y" * MIB])
        with Wire(daemon.http) as wire:
            wire.bound_unread()
            wire.send(print_request("GET", "/big.json"))
            end = select.poll()
            end.register(wire.socket, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
            assert end.poll(PATIENCE_MS)


# Every error, in its form


@pytest.mark.parametrize(
    ("method", "target", "body", "headers", "status", "code"),
    [
        ("PUT", "/a.json", "{", {}, 400, "invalid_data"),
        ("PUT", "/a.json", None, {}, 400, "invalid_data"),
        ("GET", "/a.b.json", None, {}, 400, "invalid_path"),
        ("GET", "/a.json?print=x", None, {}, 400, "invalid_query"),
        ("GET", "/a", None, {}, 404, "not_found"),
        ("GET", "/", None, {}, 404, "not_found"),
        ("GET", "/favicon.icon", None, {}, 404, "not_found"),
        ("BREW", "/a.json", None, {}, 405, "method_not_allowed"),
        ("TRACE", "/a.json", None, {}, 405, "method_not_allowed"),
        ("CONNECT", "/a.json", None, {}, 405, "method_not_allowed"),
        ("PUT", "/a.json", b"x" * (16 * MIB + 1), {}, 413, "payload_too_large"),
        ("GET", "/a.json?x=" + "y" * 97 * KIB, None, {}, 414, "too_long"),
        ("GET", "/a.json", None, {"X": "y" * 65 * KIB}, 431, "too_long"),
        ("POST", "/.health", "1", {}, 405, "method_not_allowed"),
    ],
)
@pytest.mark.parametrize("secure", [False, True])
def test_every_error_has_the_documented_form(
    shared_daemon: Daemon,
    method: str,
    target: str,
    body: bytes | str | None,
    headers: dict[str, str],
    status: int,
    code: str,
    secure: bool,
) -> None:
    with Client(shared_daemon, HOST, secure=secure) as client:
        response = client.request(method, target, body, headers)
        check_error(response, status, code)
        assert response.headers["Content-Length"] == str(len(response.body))
        assert json.loads(response.body)["message"].endswith(".")
        assert "Traceback" not in response.body.decode()


def test_the_daemon_still_works_after_these_tests(shared_daemon: Daemon) -> None:
    with Client(shared_daemon, HOST) as client:
        assert client.request("GET", "/a.json").status == 200
        assert client.request("GET", "/.health").status == 200
    assert "Traceback" not in shared_daemon.log
    assert "Unhandled" not in shared_daemon.log


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("PUT", "/a", 404, "not_found"),
        ("BREW", "/a.json", 405, "method_not_allowed"),
        ("PUT", "/a.json?timeout=never", 413, "payload_too_large"),
    ],
)
def test_not_found_and_wrong_methods_precede_too_large_and_that_precedes_invalid(
    wire: Wire, method: str, target: str, status: int, code: str
) -> None:
    headers = {"Content-Length": str(17 * MIB)}
    wire.send(print_request(method, target, headers=headers))
    response = wire.receive()
    check_error(response, status, code)
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert wire.is_ended()
