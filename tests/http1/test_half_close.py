"""A client that has sent its requests, and ends the sending direction, is answered."""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.daemon import Daemon
from tests.http1.peer import GET, ScriptedResource, Server, send_small
from treedbd.http1.request import Request
from treedbd.limits import Limits

PUT = b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
EVENTS = b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"


def begin(request: Request) -> None:
    """Begin a reply that is not complete."""
    request.start(200, (), 10)
    request.write(b"12345")


def begin_stream(request: Request) -> None:
    request.start(200, (), closes_connection=True)
    request.has_own_timeout = True
    request.write(b"event")


def test_a_request_under_way_is_answered_and_then_the_connection_is_closed() -> None:
    resource = ScriptedResource()
    server = Server(resource)
    peer = server.connect()
    peer.send(GET)
    peer.half_close()
    assert not peer.is_closed
    send_small(resource.requests[0])
    assert [reply.status for reply in peer.read()] == [200]
    assert peer.is_closed


def test_requests_that_were_sent_ahead_are_answered() -> None:
    server = Server(ScriptedResource(send_small))
    peer = server.connect()
    peer.send(GET * 50)
    peer.half_close()
    for _ in range(10):
        server.clock.advance(0)
    assert len(peer.read()) == 50
    assert peer.is_closed


@pytest.mark.parametrize("sent", [b"", GET, GET[:-2], PUT[:-1], GET + GET[:9]])
def test_without_a_whole_request_the_connection_is_closed(sent: bytes) -> None:
    server = Server(ScriptedResource(send_small))
    peer = server.connect()
    peer.send(sent)
    peer.half_close()
    server.clock.advance(0)
    assert peer.is_closed


def test_a_client_that_sends_no_more_is_gone_after_a_while() -> None:
    resource = ScriptedResource()
    server = Server(resource, Limits(linger_s=5))
    peer = server.connect()
    peer.send(GET)
    peer.half_close()
    server.pass_time(4)
    assert not peer.is_dropped
    server.pass_time(2)
    assert peer.is_dropped
    peer.disconnect()
    assert server.factory.connections.count == 0


def test_a_reply_that_has_begun_is_not_cut_off() -> None:
    server = Server(ScriptedResource(begin), Limits(linger_s=5))
    peer = server.connect()
    peer.send(GET)
    peer.half_close()
    server.pass_time(10)
    assert not peer.is_dropped


def begin_late(request: Request) -> None:
    """Leave a request without an answer."""


@pytest.mark.parametrize(("answer", "seconds"), [(begin_stream, 0), (begin_late, 6)])
def test_a_stream_ends_with_what_its_client_sends(
    answer: Callable[[Request], None], seconds: int
) -> None:
    resource = ScriptedResource(answer)
    server = Server(resource, Limits(linger_s=5))
    peer = server.connect()
    peer.send(EVENTS)
    peer.half_close()
    if answer is begin_late:
        begin_stream(resource.requests[0])
    server.pass_time(seconds)
    assert peer.is_dropped


def test_a_connection_that_lingers_ends_with_its_client() -> None:
    server = Server(ScriptedResource(send_small))
    peer = server.connect()
    peer.send(b"no request\r\n\r\n")
    assert peer.transport.half_closed
    peer.half_close()
    assert peer.transport.disconnecting


@pytest.mark.parametrize("sent", [PUT, GET, PUT + GET])
def test_over_a_socket(daemon: Daemon, sent: bytes) -> None:
    url = next(each for each in daemon.urls if each.startswith("http:"))
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        received = b""
        while more := client.recv(65_536):
            received += more
    assert received.count(b"HTTP/1.1 200 ") == sent.count(b"HTTP/1.1")


# Empty lines.


def test_empty_lines_keep_no_connection_open() -> None:
    server = Server(ScriptedResource(send_small), Limits(idle_s=20))
    peer = server.connect()
    for _ in range(10):
        peer.send(b"\r\n")
        server.pass_time(3)
    assert peer.is_closed


def test_many_empty_lines_are_no_request() -> None:
    server = Server(ScriptedResource(send_small))
    peer = server.connect()
    assert [reply.status for reply in peer.exchange(b"\r\n" * 8 + GET)] == [200]
    assert [reply.status for reply in peer.exchange(b"\r\n" * 100)] == [400]
