"""Content that many replies contain: in order with all else, whole, and counted."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.examples import examples
from tests.http1.peer import GET, ScriptedResource, Server, parse_replies
from tests.http1.test_direct_send import SocketTransport
from treedbd.database.slices import Slices
from treedbd.http1.content import Content, WaitingBytes
from treedbd.http1.request import Request
from treedbd.http1.senders import FrameSender

PEER = IPv4Address("TCP", "192.0.2.1", 4321)
EVENT = b"0123456789"


class Sender(FrameSender):
    """Sends what a test writes, and has nothing else to send."""

    def __init__(self, request: Request) -> None:
        super().__init__(request, Slices(Clock()))

    write = FrameSender._write
    write_content = FrameSender._send_whole

    def _next_chunk(self) -> None:
        """Return None."""

    def _next_frame(self) -> None:
        """Return None."""

    def _fail(self, error: Exception) -> None:
        raise error


class Reply:
    """A reply over a socket, and how often content went through the request."""

    def __init__(self, head: bytes = GET, *, closes_connection: bool = True) -> None:
        resource = ScriptedResource()
        self.transport = SocketTransport()
        self.server = Server(resource)
        protocol = self.server.factory.buildProtocol(PEER)
        assert protocol is not None
        self.protocol: Any = protocol
        self.transport.tcp.protocol = self.protocol
        self.protocol.makeConnection(self.transport.tcp)
        self.protocol.dataReceived(head)
        self.request: Request = resource.requests[0]
        self.request.notifyFinish().addErrback(lambda _: None)
        self.request.start(200, (), closes_connection=closes_connection)
        self.writer = Sender(self.request)
        self.written = b""
        self.received = b""
        self.through = 0
        write_content = self.request.write_content

        def count(content: Content) -> None:
            self.through += 1
            write_content(content)

        self.request.write_content = count  # type: ignore[method-assign]

    def write(self, data: bytes) -> None:
        self.written += data
        self.writer.write(data)

    def write_content(self, data: bytes = EVENT) -> None:
        self.written += data
        self.writer.write_content(Content(WaitingBytes(0), data))

    def receive(self) -> None:
        """Have the transport send what waits, and read what has arrived."""
        if self.transport.is_waiting:
            self.transport.flush()
        self.received += self.transport.receive()

    def finish(self) -> bytes:
        """End the reply, and return its body."""
        self.writer.end_direct()
        self.request.finish()
        while self.transport.is_waiting:
            self.receive()
        self.receive()
        (reply,) = parse_replies(self.received)
        return reply.body


@pytest.fixture
def reply() -> Iterator[Reply]:
    made = Reply()
    yield made
    made.transport.close()


def test_while_the_client_keeps_up_content_goes_past_the_request(reply: Reply) -> None:
    for _ in range(10):
        reply.write_content()
    assert reply.through == 1
    assert not reply.transport.is_waiting
    assert reply.finish() == EVENT * 10


def test_what_goes_past_the_request_is_counted(reply: Reply) -> None:
    for number in range(5):
        reply.write_content()
        reply.receive()
        assert reply.server.factory.connections.bytes_sent == len(reply.received)
        reply.write_content()
        assert reply.server.factory.connections.bytes_sent > len(reply.received)
        assert reply.writer.sent_bytes == len(reply.written)
        if number == 3:
            reply.write(b"other")
    reply.writer.end_direct()
    reply.writer.end_direct()
    assert reply.request.sentLength == len(reply.written)
    reply.protocol.connectionLost(Failure(ConnectionError()))
    reply.receive()
    assert reply.server.factory.connections.bytes_sent == len(reply.received)


def test_after_anything_else_the_state_is_looked_up_again(reply: Reply) -> None:
    reply.write_content()
    reply.transport.tcp.write(b"")
    reply.write(b"other")
    reply.write_content()
    reply.write_content()
    assert reply.through == 2


def test_nothing_goes_before_what_waits(reply: Reply) -> None:
    reply.transport.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    reply.write_content()
    while not reply.transport.is_waiting:
        reply.write_content(b"x" * 1000)
    through = reply.through
    for _ in range(3):
        reply.write_content()
    assert reply.through == through + 3
    assert reply.finish() == reply.written


def test_a_broken_connection_is_left_to_the_transport(reply: Reply) -> None:
    reply.write_content()
    reply.transport.theirs.close()
    reply.write_content()
    assert reply.transport.is_waiting
    assert isinstance(reply.transport.flush(), Exception)
    assert reply.server.factory.connections.bytes_sent > 0


def test_a_socket_that_is_closed_sends_nothing(reply: Reply) -> None:
    reply.write_content()
    reply.transport.tcp.socket.close()
    sent = reply.server.factory.connections.bytes_sent
    reply.write_content()
    assert reply.server.factory.connections.sent_past_bytes == 0
    assert reply.server.factory.connections.bytes_sent >= sent


def test_a_chunked_body_goes_through_the_request() -> None:
    reply = Reply(closes_connection=False)
    for _ in range(3):
        reply.write_content()
    assert reply.through == 3
    assert reply.finish() == EVENT * 3
    assert reply.received.endswith(b"a\r\n0123456789\r\n0\r\n\r\n")
    reply.transport.close()


def test_over_another_transport_content_goes_through_the_request() -> None:
    resource = ScriptedResource()
    peer = Server(resource).connect()
    assert isinstance(peer.transport, StringTransport)
    peer.send(GET)
    resource.requests[0].start(200, (), closes_connection=True)
    writer = Sender(resource.requests[0])
    for _ in range(3):
        writer.write_content(Content(WaitingBytes(0), EVENT))
    assert peer.transport.value().endswith(b"\r\n\r\n" + EVENT * 3)


ACTIONS = st.lists(
    st.sampled_from(["write", "settle", "receive", "receive some"]) | st.integers(1, 9000),
    max_size=60,
)


@settings(max_examples=examples(60), deadline=None)
@given(ACTIONS)
def test_the_body_is_what_was_written_however_the_client_reads(actions: list[str | int]) -> None:
    reply = Reply()
    reply.transport.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    try:
        for number, action in enumerate(actions):
            match action:
                case int():
                    reply.write_content(b"%08d" % number + b"." * action)
                case "write":
                    reply.write(b"<%d>" % number)
                case "settle":
                    reply.writer.end_direct()
                case "receive":
                    reply.receive()
                case _:
                    with contextlib.suppress(BlockingIOError):
                        reply.received += reply.transport.receive_some()
        if not reply.written:
            reply.write(b"end")
        assert reply.finish() == reply.written
        assert reply.request.sentLength == len(reply.written)
    finally:
        reply.transport.close()
