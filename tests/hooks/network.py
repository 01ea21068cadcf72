"""A network in memory: receivers of webhooks at addresses, and a clock that is their reactor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import attrs
from twisted.internet.error import ConnectionDone
from twisted.internet.error import ConnectionRefusedError as ConnectionRefused
from twisted.python.failure import Failure

from tests.database.world import TurnClock

ADDRESS: Final = "93.184.215.14"


@attrs.frozen
class Posted:
    """A request that a receiver has got, and when."""

    head: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def event(self) -> dict[str, Any]:
        """The event in the body."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def value(self) -> Any:
        """The value after the write."""
        return self.event["after"]


def reply(status: int = 200, body: str = "", **headers: object) -> bytes:
    """Print an answer."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


class Network(TurnClock):
    """The reactor of tests: connections lead to `respond`, which returns what is answered.

    None is no answer, an exception refuses the connection or closes it.

    Attributes:
        posted: the requests.
        connected: the address and port of each connection.
        open: connections that are not closed.
        most: requests that were unanswered at once, at most.

    """

    def __init__(self) -> None:
        super().__init__()
        self.respond: Callable[[Posted], bytes | None] = lambda _: reply()
        self.is_away = False
        self.posted: list[Posted] = []
        self.connected: list[tuple[str, int]] = []
        self.open: list[Connection] = []
        self.unanswered: list[Connection] = []
        self.most = 0

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30, bindAddress: object = None
    ) -> None:
        """Connect in the next turn."""
        del timeout, bindAddress
        self.connected.append((host, port))
        self.callLater(0, self._connect, factory)

    def _connect(self, factory: Any) -> None:
        if self.is_away:
            factory.clientConnectionFailed(None, Failure(ConnectionRefused()))
            return
        protocol = factory.buildProtocol(None)
        connection = Connection(self, protocol)
        self.open.append(connection)
        protocol.makeConnection(connection)


class Connection:
    """The transport of a client, and the receiver at its other end."""

    disconnecting = False

    def __init__(self, network: Network, protocol: Any) -> None:
        self.network, self.protocol = network, protocol
        self.received = b""

    def write(self, data: bytes) -> None:
        """Receive bytes, and answer each request that is whole."""
        self.received += data
        head, is_whole, rest = self.received.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        length = int(headers.get("Content-Length", "0"))
        if not is_whole or len(rest) < length:
            return
        self.received = b""
        posted = Posted(
            head.decode().split("\r\n")[0], headers, rest[:length], self.network.rightNow
        )
        self.network.posted.append(posted)
        self.network.unanswered.append(self)
        self.network.most = max(self.network.most, len(self.network.unanswered))
        self.network.callLater(0, self._answer, posted)

    def _answer(self, posted: Posted) -> None:
        try:
            answer = self.network.respond(posted)
        except ConnectionError:
            self.loseConnection()
            return
        if answer is not None:
            self.send(answer)

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self in self.network.unanswered:
            self.network.unanswered.remove(self)
        if self in self.network.open:
            self.protocol.dataReceived(data)

    def loseConnection(self) -> None:
        """Close it."""
        self.abortConnection()

    def abortConnection(self) -> None:
        """Close it."""
        if self in self.network.unanswered:
            self.network.unanswered.remove(self)
        if self in self.network.open:
            self.network.open.remove(self)
            self.network.callLater(0, self.protocol.connectionLost, Failure(ConnectionDone()))
