"""One POST to a receiver: its connection, its limits, and how it ended.

A small client of HTTP/1.1 (RFC 9112). It sends one request at a time on a connection, and reads of
the answer what is needed: the status, a few headers, and the first characters of the body. It
follows no redirect and knows no proxy. A connection is made to an address that `addresses` has
checked; with TLS the certificate is verified by the function that is given, before anything is
sent. Connections that are whole are kept for a while, and at most `KEPT` of each receiver.

A receiver that sends too much, or is too slow, is cut off: the time of a request counts from its
beginning to the end of its answer, and the answer is bounded. The status counts as soon as it has
come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import (
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    wrapClientTLS,
)
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.error import ConnectionRefusedError as ConnectionRefused
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.internet.interfaces import (
    IDelayedCall,
    IOpenSSLClientConnectionCreator,
    ISSLTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from treedbd.errors import in_one_line
from treedbd.hooks.addresses import AddressRefused, CannotResolve, Resolver
from treedbd.limits import KIB

MakeCreator: TypeAlias = Callable[[str], IOpenSSLClientConnectionCreator]
"""Returns what makes verified TLS connections to a host."""

CONNECT_S: Final = 5.0
"""Seconds that one address may take to accept a connection."""
MAX_HEAD_BYTES: Final = 32 * KIB
MAX_ANSWER_BYTES: Final = 64 * KIB
"""Of all that comes before an answer has ended: interim answers, heads, body, and its chunks."""
SHOWN_CHARACTERS: Final = 200
"""Characters of an answer that are shown to admins."""
KEPT: Final = 8
"""Connections of one receiver that are kept while nothing is sent."""
KEPT_S: Final = 15.0
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_LONG: Final = re.compile(r"[0-9]+")


class PostFailed(Exception):
    """A request that was not answered; `str()` is a clause without an address or a URL."""


@attrs.frozen
class PostAnswer:
    """How a receiver has answered.

    Attributes:
        status: its status.
        retry_after: the header of that name; empty without one.
        text: the first characters of the body, on one line.

    """

    status: int
    retry_after: str = ""
    text: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the receiver has accepted what was sent."""
        return 200 <= self.status < 300

    def retry_after_s(self, now: float) -> float | None:
        """Return for how many seconds the receiver wants nothing to be sent; None if unsaid.

        `now` is in seconds since 1970.
        """
        if _LONG.fullmatch(self.retry_after):
            return float(self.retry_after)
        try:
            return max(0.0, parsedate_to_datetime(self.retry_after).timestamp() - now)
        except (ValueError, TypeError, OverflowError):
            return None


@attrs.frozen
class Receiver:
    """Where a URL leads: the host and port that are called, and what is requested there."""

    host: str
    port: int
    is_tls: bool
    authority: str
    target: str

    @classmethod
    def parse(cls, url: str) -> Receiver:
        """Return that of a URL; raise ValueError for one that cannot be called."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_bare = parts.username is None and parts.password is None and not parts.fragment
        if parts.scheme not in ("http", "https") or not host or not is_bare:
            raise ValueError("This is not the URL of a webhook.")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("The URL of a webhook has other than printable ASCII characters.")
        is_tls = parts.scheme == "https"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        port = parts.port or (443 if is_tls else 80)
        return cls(host, port, is_tls, parts.netloc, target)


class Poster:
    """Sends requests to one receiver; belongs to the reactor's thread."""

    def __init__(
        self,
        reactor: Any,
        receiver: Receiver,
        resolver: Resolver,
        make_creator: MakeCreator,
        *,
        timeout_s: float,
    ) -> None:
        """Send to `receiver`; a request may take `timeout_s`."""
        self._reactor, self._receiver, self._resolver = reactor, receiver, resolver
        self._make_creator, self._timeout_s = make_creator, timeout_s
        self._idle: list[_Connection] = []
        self._under_way: set[Deferred[PostAnswer]] = set()
        self._is_closed = False

    def post(self, headers: Sequence[tuple[str, str]], body: bytes) -> Deferred[PostAnswer]:
        """Send a request; errback with `PostFailed`.

        Cancelling closes the connection.
        """
        content = self._print(headers, body)
        posting = Deferred.fromCoroutine(self._post(content))
        self._under_way.add(posting)
        late = self._reactor.callLater(self._timeout_s, posting.cancel)

        def end(result: PostAnswer | Failure) -> PostAnswer | Failure:
            self._under_way.discard(posting)
            if late.active():
                late.cancel()
            elif isinstance(result, Failure):
                return Failure(PostFailed(f"it did not answer within {self._timeout_s:g} s"))
            return result

        return cast("Deferred[PostAnswer]", posting.addBoth(end))

    def close(self) -> None:
        """Close all connections; what is under way fails."""
        self._is_closed = True
        for posting in list(self._under_way):
            posting.cancel()
        for connection in list(self._idle):
            connection.close()

    def _print(self, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
        lines = [
            f"POST {self._receiver.target} HTTP/1.1",
            f"Host: {self._receiver.authority}",
            *(f"{name}: {value}" for name, value in headers),
            f"Content-Length: {len(body)}",
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def _post(self, content: bytes) -> PostAnswer:
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._send(connection, content)
            except _Stale:
                continue  # it was closed while nothing was sent: another one is used
        return await self._send(await self._connect(), content)

    async def _send(self, connection: _Connection, content: bytes) -> PostAnswer:
        try:
            answer = await connection.send(content)
        except BaseException:
            connection.abort()
            raise
        if connection.is_usable and not self._is_closed and len(self._idle) < KEPT:
            self._idle.append(connection)
            connection.rest(self._reactor, self._idle)
        else:
            connection.abort()
        return answer

    async def _connect(self) -> _Connection:
        try:
            addresses = await self._resolver.resolve(self._receiver.host)
        except (AddressRefused, CannotResolve) as error:
            raise PostFailed(str(error)) from None
        failed: Exception = PostFailed("it has no address")
        for address in addresses:
            try:
                return await self._connect_to(address)
            except CancelledError:
                raise
            except Exception as error:
                failed = PostFailed(reason_of(error))
        raise failed

    async def _connect_to(self, address: str) -> _Connection:
        """Connect to an address that was checked; it is not resolved again."""
        make: Any = TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint
        timeout_s = min(CONNECT_S, self._timeout_s)
        endpoint: Any = make(self._reactor, address, self._receiver.port, timeout_s)
        if self._receiver.is_tls:
            creator = self._make_creator(self._receiver.host)
            endpoint = wrapClientTLS(creator, endpoint, self._reactor)
        factory = Factory.forProtocol(_Connection)
        factory.noisy = False
        connection: _Connection = await endpoint.connect(factory)
        return connection


class _Stale(Exception):
    """A connection that was kept is not there any more; nothing was answered."""


class _Connection(Protocol):
    """A connection, and the answer that is read on it.

    Attributes:
        is_usable: whether another request may be sent.

    """

    is_usable = False

    def __init__(self) -> None:
        self._answered: Deferred[PostAnswer] | None = None
        self._was_used = False
        self._idle: list[_Connection] = []
        self._timer: IDelayedCall | None = None
        self._lost: Failure | None = None
        self._begin()

    def _begin(self) -> None:
        self._buffer = bytearray()
        self._answer: PostAnswer | None = None
        self._body = bytearray()
        self._received = 0
        self._left: int | None = 0
        self._is_chunked = False
        self._keeps_open = False
        self._in_chunks = self._in_trailers = False

    def send(self, content: bytes) -> Deferred[PostAnswer]:
        """Send a request, and fire with its answer."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self.is_usable = False
        self._begin()
        answered: Deferred[PostAnswer] = Deferred(lambda _: self._late())
        self._answered = answered
        if self._lost is not None or self.transport is None:
            self.connectionLost(self._lost or connectionDone)
        else:
            self.transport.write(content)
        return answered

    def rest(self, reactor: Any, idle: list[_Connection]) -> None:
        """Be one of those that are `idle`, for a while."""
        self._was_used, self._idle = True, idle
        self._timer = reactor.callLater(KEPT_S, self.close)

    def close(self) -> None:
        """Close it while nothing is under way: over TLS at once, else in order."""
        transport: Any = self.transport
        if transport is not None and not ISSLTransport.providedBy(transport):
            transport.loseConnection()
            self._lost = connectionDone  # which `abort` leaves as it is
        self.abort()

    def abort(self) -> None:
        """Close it at once."""
        self.is_usable = False
        if self in self._idle:
            self._idle.remove(self)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        transport: Any = self.transport
        if transport is not None and self._lost is None:
            transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        """Read an answer."""
        if self._answered is None:
            self.abort()  # nothing was asked
            return
        self._buffer += data
        self._received += len(data)
        try:
            if self._answer is None:
                self._read_head()
            if self._answer is not None:
                self._read_body()
            if self._received > MAX_ANSWER_BYTES:
                self._end_cut()
        except PostFailed as error:
            self._fail(error)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End the request that is under way."""
        self._lost = reason
        self.is_usable = False
        if self in self._idle:
            self._idle.remove(self)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._answered is None:
            return
        if self._answer is not None:
            self._end()  # the status has come, which is what counts
        elif self._was_used and not self._buffer:
            self._fail(_Stale())
        else:
            self._fail(PostFailed(reason_of(reason.value)))

    def _late(self) -> None:
        """End a request whose time is over: the status counts if it has come."""
        if self._answer is not None:
            self._end()
        self._answered = None
        self.abort()

    def _read_head(self) -> None:
        while self._answer is None:
            found = _HEAD_END.search(self._buffer)
            if (found.start() if found else len(self._buffer)) > MAX_HEAD_BYTES:
                raise PostFailed("the head of its answer is too long")
            if found is None:
                return
            lines = bytes(self._buffer[: found.start()]).replace(b"\r\n", b"\n").split(b"\n")
            del self._buffer[: found.end()]
            status = _STATUS.fullmatch(lines[0])
            if status is None:
                raise PostFailed("its answer is not HTTP")
            if status[2].startswith(b"1"):
                continue  # 100 Continue and the like come before the answer
            self._judge_head(int(status[2]), lines[1:], is_old=status[1] == b"0")

    def _judge_head(self, status: int, lines: Sequence[bytes], *, is_old: bool) -> None:
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.decode("latin-1").partition(":")
            lower, value = name.strip().lower(), value.strip()
            headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
        self._answer = PostAnswer(status, headers.get("retry-after", "")[:100])
        self._keeps_open = not is_old and "close" not in headers.get("connection", "").lower()
        length = headers.get("content-length", "")
        if status in (204, 304):
            self._left = 0
        elif "transfer-encoding" in headers:
            self._is_chunked = True
            self._keeps_open &= headers["transfer-encoding"].lower() == "chunked"
        elif _SECONDS.fullmatch(length):
            self._left = int(length)
        else:
            self._left, self._keeps_open = None, False  # until the connection is closed

    def _read_body(self) -> None:
        while self._buffer and self._answered is not None:
            if self._is_chunked and not self._left:
                if not self._read_chunk_size():
                    return
                continue
            taken = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
            self._take(taken)
            if self._left is not None:
                self._left -= taken
                if not (self._left or self._is_chunked):
                    break
        if self._answered is not None and self._left == 0 and not self._is_chunked:
            self._keeps_open &= not self._buffer
            self._end()

    def _read_chunk_size(self) -> bool:
        """Read what is between chunks; return False if more has to come first."""
        if self._in_trailers:
            self._keeps_open &= bytes(self._buffer) == b"\r\n"  # trailers are not read
            self._end()
            return False
        begin = 2 if self._in_chunks and self._buffer[:2] == b"\r\n" else 0
        found = _CHUNK.match(self._buffer, begin)
        if found is None:
            if len(self._buffer) > KIB:
                self._end_cut()
            return False
        self._left = int(found[1], 16)
        self._in_chunks, self._in_trailers = True, not self._left
        del self._buffer[: found.end()]
        return True

    def _take(self, size: int) -> None:
        room = 4 * SHOWN_CHARACTERS - len(self._body)
        if room > 0:
            self._body += self._buffer[: min(size, room)]
        del self._buffer[:size]

    def _end_cut(self) -> None:
        """End a request whose answer goes on: the rest of it is not read.

        Raises `PostFailed` without a status.
        """
        if self._answer is None:
            raise PostFailed("its answer is too long")
        self._keeps_open = False
        self._end()

    def _end(self) -> None:
        answered, self._answered = self._answered, None
        if answered is None or self._answer is None:
            return
        text = in_one_line(self._body.decode("utf-8", "replace")[:SHOWN_CHARACTERS])
        self.is_usable = self._keeps_open and self._lost is None
        answered.callback(attrs.evolve(self._answer, text=text))

    def _fail(self, error: Exception) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered.errback(Failure(error))


_REASONS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (PostFailed, ""),
    (ConnectionRefused, "it refused the connection"),
    (ConnectTimeout, "it did not accept a connection"),
    (ConnectError, "it cannot be connected to"),
    (ConnectionClosed, "the connection was closed before it had answered"),
)


def reason_of(error: BaseException | None) -> str:
    """Return why a request failed, as a clause without an address."""
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason or str(error)
    problem = getattr(error, "problem", None)  # of a certificate
    if isinstance(problem, str):
        return f"its certificate {problem}"
    name = type(error).__name__
    if name == "VerificationError":
        return "its certificate is for another name"
    return "TLS failed" if name in ("Error", "SSLError") else f"the connection failed ({name})"
