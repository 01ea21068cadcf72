"""A client in memory: what it sends goes straight to a channel, what it got back is read here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import field, frozen
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET

from treedbd.web.channel.factory import ChannelFactory
from treedbd.web.channel.lazy import LazyRequest
from treedbd.web.channel.lean import LeanRequest
from treedbd.web.channel.limits import ChannelLimits

GET = b"GET /a.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"a":1}'


@frozen
class Answer:
    """A reply as a client sees it; field names are in lower case."""

    status: int
    fields: list[tuple[bytes, bytes]] = field(eq=False)
    body: bytes

    def __getitem__(self, name: bytes) -> bytes:
        """Return the value of a field that must stand there once."""
        (value,) = [value for key, value in self.fields if key == name]
        return value

    def __contains__(self, name: bytes) -> bool:
        """Tell whether a field is there."""
        return any(key == name for key, _ in self.fields)


def parse_answers(data: bytes, *methods: bytes) -> list[Answer]:
    """Read all replies in `data`, to requests of `methods` (GET beyond them)."""
    answers = []
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
        answer = Answer(int(status), fields, b"")
        if answer.status == 100:
            answers.append(answer)
            continue
        method = waiting.pop(0) if waiting else b"GET"
        body, data = _take_body(answer, method, data)
        answers.append(Answer(answer.status, fields, body))
    return answers


def _take_body(answer: Answer, method: bytes, data: bytes) -> tuple[bytes, bytes]:
    if method == b"HEAD" or answer.status in (204, 304):
        return b"", data
    if b"transfer-encoding" in answer:
        assert b"content-length" not in answer
        body = b""
        while True:
            size, _, data = data.partition(b"\r\n")
            length = int(size, 16)
            body += data[:length]
            assert data[length : length + 2] == b"\r\n"
            data = data[length + 2 :]
            if not length:
                return body, data
    if b"content-length" in answer:
        length = int(answer[b"content-length"])
        assert len(data) >= length
        return data[:length], data[length:]
    assert answer[b"connection"] == b"close"
    return data, b""


class Scripted(Resource):
    """A leaf that keeps its requests and answers them by a function, or leaves them open."""

    isLeaf = True

    def __init__(self, answer: Callable[[LeanRequest], object] | None = None) -> None:
        super().__init__()
        self.requests: list[LeanRequest] = []
        self._answer = answer

    def render(self, request: Any) -> Any:
        """Answer."""
        self.requests.append(request)
        if self._answer is None:
            return NOT_DONE_YET
        result = self._answer(request)
        return NOT_DONE_YET if result is None else result


def send_small(request: LeanRequest) -> None:
    """Answer with a small value, whole."""
    request.send(200, [(b"Content-Type", b"application/json")], BODY)


class CountingTransport(StringTransport):
    """A transport in memory that counts writes and can be closed by halves."""

    def __init__(self, host: str = "192.0.2.1") -> None:
        super().__init__(
            hostAddress=IPv4Address("TCP", "127.0.0.1", 80),
            peerAddress=IPv4Address("TCP", host, 4321),
        )
        self.writes = 0
        self.half_closed = False

    def loseWriteConnection(self) -> None:
        """Send no more, read on."""
        self.half_closed = True

    def write(self, data: bytes) -> None:
        """Keep what is written."""
        self.writes += 1
        super().write(data)

    def writeSequence(self, data: Any) -> None:
        """Keep what is written, as one."""
        self.writes += 1
        super().writeSequence(data)


class Server:
    """A channel factory with a clock of its own."""

    def __init__(
        self,
        resource: IResource,
        limits: ChannelLimits | None = None,
        log_access: Callable[[LazyRequest], None] | None = None,
        refusal_headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self.clock = Clock()
        self.clock.advance(1000)
        self.factory = ChannelFactory(
            resource,
            limits or ChannelLimits(),
            self.clock,
            log_access,
            lambda: 784111777.0,
            refusal_headers,
        )

    def connect(self, host: str = "192.0.2.1") -> Peer:
        """Open a connection."""
        return Peer(self, host)

    def pass_time(self, seconds: float) -> None:
        """Let time pass as it does, second by second."""
        whole = int(seconds)
        self.clock.pump([1.0] * whole + [seconds - whole])


class Peer:
    """The client end of a connection in memory."""

    def __init__(self, server: Server, host: str) -> None:
        self.server = server
        self.transport = CountingTransport(host)
        self.channel = server.factory.buildProtocol(self.transport.getPeer())
        self.channel.makeConnection(self.transport)

    def send(self, *pieces: bytes) -> None:
        """Send pieces, one after the other."""
        for piece in pieces:
            self.channel.dataReceived(piece)

    def ask(self, *pieces: bytes, methods: tuple[bytes, ...] = ()) -> list[Answer]:
        """Send pieces and return what was answered since the last time."""
        self.send(*pieces)
        return self.read(*methods)

    def read(self, *methods: bytes) -> list[Answer]:
        """Return what was answered since the last time."""
        data = self.transport.value()
        self.transport.clear()
        return parse_answers(data, *methods)

    def hang_up(self) -> None:
        """Close the connection from this end."""
        self.transport.connected = False
        self.channel.connectionLost(Failure(ConnectionDone()))

    @property
    def is_closed(self) -> bool:
        """Whether the server closed in good order and lets the peer close too."""
        closed = self.transport.disconnecting or self.transport.half_closed
        return closed and self.transport.producer is None and not self.is_dropped

    @property
    def is_dropped(self) -> bool:
        """Whether the server dropped the connection."""
        return self.transport.disconnected
