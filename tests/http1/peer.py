"""A client in memory: it sends bytes straight to a connection and parses the replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import attrs
from attrs import field, frozen
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import alsoProvides

from treedbd.http1.registry import DEFAULT_OPTIONS, NO_LOGGING, RequestLogging, ServerOptions
from treedbd.http1.request import Request
from treedbd.http1.server import Http1Factory
from treedbd.limits import Limits

GET = b"GET /a.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"a":1}'


@frozen
class ParsedReply:
    """A reply as a client sees it; field names are in lower case."""

    status: int
    fields: list[tuple[bytes, bytes]] = field(eq=False)
    body: bytes

    def __getitem__(self, name: bytes) -> bytes:
        """Return the value of a field that occurs exactly once."""
        (value,) = [value for key, value in self.fields if key == name]
        return value

    def __contains__(self, name: bytes) -> bool:
        """Return whether a field is present."""
        return any(key == name for key, _ in self.fields)


def parse_replies(data: bytes, *methods: bytes) -> list[ParsedReply]:
    """Parse all replies in `data`, to requests of `methods` (GET after the last of them)."""
    replies = []
    waiting = list(methods)
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        fields = []
        for each in lines:
            name, colon, value = each.partition(b": ")
            assert colon, each
            fields.append((name.lower(), value))
        reply = ParsedReply(int(status), fields, b"")
        if reply.status == 100:
            replies.append(reply)
            continue
        method = waiting.pop(0) if waiting else b"GET"
        body, data = _split_body(reply, method, data)
        replies.append(ParsedReply(reply.status, fields, body))
    return replies


def _split_body(reply: ParsedReply, method: bytes, data: bytes) -> tuple[bytes, bytes]:
    if method == b"HEAD" or reply.status in (204, 304):
        return b"", data
    if b"transfer-encoding" in reply:
        assert b"content-length" not in reply
        body = b""
        while True:
            size, _, data = data.partition(b"\r\n")
            length = int(size, 16)
            body += data[:length]
            assert data[length : length + 2] == b"\r\n"
            data = data[length + 2 :]
            if not length:
                return body, data
    if b"content-length" in reply:
        length = int(reply[b"content-length"])
        assert len(data) >= length
        return data[:length], data[length:]
    assert reply[b"connection"] == b"close"
    return data, b""


class ScriptedResource(Resource):
    """A leaf that records its requests; a function answers them, or the test does later."""

    isLeaf = True

    def __init__(self, answer: Callable[[Request], object] | None = None) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self._answer = answer

    def render(self, request: Any) -> Any:
        """Record the request, and answer it if there is a function."""
        self.requests.append(request)
        if self._answer is None:
            return NOT_DONE_YET
        result = self._answer(request)
        return NOT_DONE_YET if result is None else result


def send_small(request: Request) -> None:
    """Answer with a small value in one write."""
    request.send(200, [(b"Content-Type", b"application/json")], BODY)


class CountingTransport(StringTransport):
    """A transport in memory that counts writes and can be closed in one direction.

    It pauses its producer while it holds more than `room` bytes, if that is set.
    """

    room: int | None = None

    def __init__(self, host: str = "192.0.2.1") -> None:
        super().__init__(
            hostAddress=IPv4Address("TCP", "127.0.0.1", 80),
            peerAddress=IPv4Address("TCP", host, 4321),
        )
        self.writes = 0
        self.half_closed = False

    def loseWriteConnection(self) -> None:
        """End the sending direction only."""
        self.half_closed = True

    def write(self, data: bytes) -> None:
        """Count the write and keep the bytes."""
        self.writes += 1
        super().write(data)
        if self.room is not None and self.producer and len(self.value()) > self.room:
            self.producer.pauseProducing()

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing: what is sent is there at once."""

    def writeSequence(self, data: Any) -> None:
        """Count all pieces as one write and keep the bytes."""
        self.writes += 1
        super().writeSequence(data)


class Server:
    """An `Http1Factory` with its own clock; wall-clock time is Sun, 06 Nov 1994 08:49:37 GMT."""

    def __init__(
        self,
        resource: IResource,
        limits: Limits | None = None,
        log_access: Callable[[Request], None] | RequestLogging = NO_LOGGING,
        options: ServerOptions = DEFAULT_OPTIONS,
    ) -> None:
        logs = log_access if isinstance(log_access, RequestLogging) else RequestLogging(log_access)
        self.clock = Clock()
        self.clock.advance(1000)
        self.factory = Http1Factory(
            resource,
            limits or Limits(),
            self.clock,
            attrs.evolve(options, logs=logs),
            lambda: 784111777.0,
        )

    def connect(self, host: str = "192.0.2.1", *, secure: bool = False) -> Peer:
        """Open a connection; if it is `secure`, as one over TLS whose handshake is done."""
        return Peer(self, host, secure=secure)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock second by second."""
        whole = int(seconds)
        self.clock.pump([1.0] * whole + [seconds - whole])


class Peer:
    """The client end of a connection in memory."""

    def __init__(self, server: Server, host: str, *, secure: bool = False) -> None:
        self.server = server
        self.transport = CountingTransport(host)
        self.connection = cast(Any, server.factory.buildProtocol(self.transport.getPeer()))
        if secure:
            alsoProvides(self.transport, ISSLTransport)
        self.connection.makeConnection(self.transport)
        if secure:
            self.connection.handshakeCompleted()

    def send(self, *pieces: bytes) -> None:
        """Send pieces, one after the other."""
        for piece in pieces:
            self.connection.dataReceived(piece)

    def exchange(self, *pieces: bytes, methods: tuple[bytes, ...] = ()) -> list[ParsedReply]:
        """Send pieces, let what is due be done; return the replies received since the last call."""
        self.send(*pieces)
        self.server.clock.advance(0)
        return self.read(*methods)

    def read(self, *methods: bytes) -> list[ParsedReply]:
        """Return the replies received since the last call."""
        data = self.transport.value()
        self.transport.clear()
        return parse_replies(data, *methods)

    def read_slowly(self, *methods: bytes) -> list[ParsedReply]:
        """Read what is sent whenever the transport is full; return the replies."""
        data = b""
        while piece := self.transport.value():
            data += piece
            self.transport.clear()
            if self.transport.producer:
                self.transport.producer.resumeProducing()
        return parse_replies(data, *methods)

    @property
    def status(self) -> int:
        """The status of the reply, of which perhaps only the beginning was sent."""
        return int(self.transport.value().split(b" ", 2)[1])

    def half_close(self) -> None:
        """Send no more, as the transport says it to the connection."""
        self.connection.readConnectionLost()

    def disconnect(self) -> None:
        """Close the connection from this end."""
        self.transport.connected = False
        self.transport.producer = None  # as those of Twisted do, then
        self.connection.connectionLost(Failure(ConnectionDone()))

    @property
    def is_closed(self) -> bool:
        """Whether the server closed the connection after sending everything."""
        closed = self.transport.disconnecting or self.transport.half_closed
        return closed and self.transport.producer is None and not self.is_dropped

    @property
    def is_dropped(self) -> bool:
        """Whether the server dropped the connection."""
        return self.transport.disconnected
