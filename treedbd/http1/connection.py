"""The connections of HTTP clients: what they serve, how they are counted, timed and ended.

An `Http1Connection` is the protocol between a transport and the requests of one client. Bytes go to
an `Http1Parser`; each request that is complete is rendered before the next is parsed, so replies
leave in order. A client that sends many at once has the first one rendered, then its connection
enters the `Ring`, after the others that have more. What a client sends meanwhile is held unread,
and past a bound the transport stops reading. While the client does not read its replies, no further
request of it is answered.

A connection is in one of these states, whose time limits `sweep` checks:

- handshake: until TLS is set up;
- idle: between requests, or before the first;
- head and body: a request is arriving; both end with 408;
- answering: without a limit, since the resource has its own;
- closing: everything has been sent; what the client still sends is read and dropped for a while,
  because closing with unread input would reset the connection and could destroy the last reply on
  its way (RFC 9112, section 9.6).

In all of them a client that reads too little of what is waiting for it is dropped after a while.

A client that has ended its sending direction may still wait for replies, or be gone. So what it has
sent is answered, if the reply begins soon; streams and other protocols end with it.

No connection has a timer. Once a second, and only while there are connections, a sweep of the
registry (`Connections`) lets each check its own `Deadline`; limits are therefore kept to the
second. The header line with the date is made in the same sweep, so that no reply has to. The
registry also admits connections, and drains them when the daemon stops.

`ServerOptions` has what a server does beside answering requests: it counts, bounds and logs them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any, Final, Literal, Protocol, TypeAlias

from attrs import frozen
from twisted.internet import protocol
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IReactorTime,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import datetimeToString
from twisted.web.resource import IResource
from twisted.web.server import Site
from zope.interface import implementer

from treedbd.counting import (
    SMALL_HELD_BYTES,
    Counting,
    Counts,
    HeldAccount,
    HeldBytes,
    HeldBytesRefused,
)
from treedbd.database.slices import in_slices
from treedbd.http1.content import SHARES
from treedbd.http1.headers import Header
from treedbd.http1.parser import (
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    HEAD_TIMEOUT,
    HELD_TOO_MUCH,
    SHUTTING_DOWN,
    TOO_MANY,
    TOO_MANY_BODIES,
    TOO_MANY_FROM_ADDRESS,
    CutOff,
    ErrorReply,
    HeadMemory,
    Http1Parser,
    ProtocolError,
    format_reply,
)
from treedbd.http1.proxies import proxied_request
from treedbd.http1.request import IHttp1Resource, Request, identified
from treedbd.http1.writer import ConnectionWriter, Ring
from treedbd.limits import Limits
from treedbd.loop import network_of
from treedbd.names import NO_PROXIES, TrustedProxies

_log: Final = Logger()

AnsweredRequest: TypeAlias = tuple[HeadMemory, bytes, int, float, int, int]
"""The memory of its head, its method, the status of the reply, how many seconds it took, and the
bytes of the bodies: those sent and those received."""

AdaptRequests: TypeAlias = Callable[[type[Request]], type[Request]]
"""Returns the class of requests to be made in place of another one."""


class CountsRequests(Protocol):
    """What counts the answered requests.

    One class has it, `web/activity.Activity`: this package does not know `web`.
    """

    @property
    def answered(self) -> deque[AnsweredRequest]:
        """Those that were not counted yet, which every connection adds to."""

    def count(self) -> None:
        """Count them; called once a second while there are connections."""


class CountsCallers(Protocol):
    """What counts how much callers do.

    One class has it, `web/rates.Rates`: this package does not know `web`.
    """

    @property
    def counts_bytes(self) -> bool:
        """Whether bytes are to be counted."""

    def refuse_malformed(self, address: str) -> ErrorReply | None:
        """Count a malformed request; return the reply if there were too many."""

    def note_answered(self, request: Any) -> None:
        """Count the bytes of an answered request."""

    def note_sent(self, request: Any, sent: int) -> None:
        """Count the bytes of a request of whose response so many were sent."""


@frozen
class RequestLogging:
    """What is called for requests, so that it can log them.

    `answered` is called with each answered request that took at least `least_s` seconds, `lost`
    with each whose client went before it was answered; of its target they must show at most
    `shown_path`. If it `sends_ids`, each response has the id of its request.
    """

    answered: Callable[[Request], None]
    lost: Callable[[Request], None] | None = None
    least_s: float = 0.0
    sends_ids: bool = False


NO_LOGGING: Final = RequestLogging(lambda _: None, least_s=inf)


@frozen
class ServerOptions:
    """What a server does beside answering requests.

    It `logs` requests. `refusal_headers` are in what it refuses by itself, `secure_headers` in each
    reply to a request over TLS and in no other. `counts` are the connections of all processes that
    serve the same clients, None if there is one process. `activity` counts what clients request,
    and `rates` bound it. What `trusted_proxies` say of their clients counts. `adapt_requests`
    returns the class of requests to be made. What connections hold is charged to `held`; None for a
    server that counts it by itself.
    """

    logs: RequestLogging = NO_LOGGING
    refusal_headers: tuple[Header, ...] = ()
    secure_headers: tuple[Header, ...] = ()
    counts: Counting | None = None
    activity: CountsRequests | None = None
    rates: CountsCallers | None = None
    trusted_proxies: TrustedProxies = NO_PROXIES
    adapt_requests: AdaptRequests | None = None
    held: HeldBytes | None = None

    @property
    def byte_rates(self) -> CountsCallers | None:
        """The `rates`, if they count bytes."""
        return None if self.rates is None or not self.rates.counts_bytes else self.rates

    def request_classes(self) -> tuple[type[Request], type[Request]]:
        """Return the classes of the requests of clients, and of those by a trusted proxy."""
        own: type[Request] = Request
        proxied: type[Request] = proxied_request(self.trusted_proxies.trusts)
        adaptations: list[AdaptRequests] = [identified] if self.logs.sends_ids else []
        if self.adapt_requests is not None:
            adaptations.append(self.adapt_requests)
        for adapt in adaptations:
            own, proxied = adapt(own), adapt(proxied)
        return own, proxied


DEFAULT_OPTIONS: Final = ServerOptions()


def log_request(log: Callable[[Request], None], request: Request) -> None:
    """Log a request; what goes wrong with that is logged, and affects nothing else."""
    try:
        log(request)
    except Exception:
        _log.failure("A request could not be logged.")


_LINGER_TIMES: Final = 6


class Deadline:
    """The deadline of one connection for its client; times are seconds of one clock.

    There is one deadline at a time. Those for a head and for a body are absolute: no byte that
    arrives extends them, except that a body gets the time that its content takes at the least rate.
    That for the end of a closing connection counts from the last thing that happened. How long a
    connection is idle it counts by itself, since that changes with every request.

    Attributes:
        is_set: whether there is a deadline.
        error: what to reply when the deadline passes, None to close without a reply.

    """

    def __init__(self, limits: Limits, clock: IReactorTime) -> None:
        """Set no deadline yet."""
        self.is_set = False
        self.error: ErrorReply | None = None
        self._limits = limits
        self._clock = clock
        self._at = inf
        self._body_began = 0.0
        self._linger_ends = inf

    def clear(self) -> None:
        """Remove the deadline."""
        self.is_set = False
        self.error = None

    def set_for_handshake(self) -> None:
        """Set the deadline of the TLS handshake."""
        self._set(self._clock.seconds() + self._limits.handshake_s, None)

    def set_for_head(self) -> None:
        """Set the deadline of a head; called for every piece of it."""
        if self.error is not HEAD_TIMEOUT:
            self._set(self._clock.seconds() + self._limits.head_s, HEAD_TIMEOUT)

    def set_for_body(self, received: int) -> bool:
        """Wait for the rest of a body; called for every piece; return whether it is the first."""
        is_first = self.error is not BODY_TIMEOUT
        if is_first:
            self._body_began = self._clock.seconds()
        rate_s = received / self._limits.body_bytes_per_s
        self._set(self._body_began + self._limits.body_s + rate_s, BODY_TIMEOUT)
        return is_first

    def set_for_close(self) -> None:
        """Set the deadline for the client to close; called for everything that it still sends."""
        now, linger_s = self._clock.seconds(), self._limits.linger_s
        self._linger_ends = min(self._linger_ends, now + _LINGER_TIMES * linger_s)
        self._set(min(now + linger_s, self._linger_ends), None)

    def extend_for_close(self, now: float) -> None:
        """Give a client time that is still reading what was sent before the close."""
        self._at = now + self._limits.linger_s

    def has_passed(self, now: float) -> bool:
        """Return whether there is a deadline and it is over."""
        return self.is_set and now >= self._at

    def _set(self, at: float, error: ErrorReply | None) -> None:
        self.is_set = True
        self.error = error
        self._at = at


class HeldBody:
    """What one connection holds of a body that is not complete, or not answered.

    It is counted among those of all connections, as the part of a message that has arrived is. One
    client address may have one of `SHARES` equal parts of the bound, but one whole body in any
    case, so that one client leaves room for the bodies of others.

    Attributes:
        held: how many bytes.
        address: that they are counted for; empty if that has no bound of its own.

    """

    __slots__ = ("_bodies", "_limits", "_share", "address", "held")

    def __init__(self, held: HeldBytes, limits: Limits, address: str = "") -> None:
        """Count it among the bodies of `held`, within `limits`."""
        self._bodies = held.bodies
        self.held = 0
        self.address = address
        self._limits = limits
        self._share = max(limits.held_body_bytes // SHARES, limits.write_body_bytes)

    def count(self, held: int) -> bool:
        """Count so many bytes; return whether the address, and all together, may hold them."""
        bodies, grown = self._bodies, held - self.held
        bodies.add(grown)
        bodies.add_for(self.address, grown)
        self.held = held
        return (
            bodies.total <= self._limits.held_body_bytes
            and bodies.count_of(self.address) <= self._share
        )

    def release(self) -> None:
        """Count nothing from now on."""
        self.count(0)


SWEEP_S: Final = 1.0
SWEPT_AT_ONCE: Final = 512
"""Connections that a sweep visits in one turn of the reactor."""
_MAX_REFUSED: Final = 256
_ALL: Final = "connections"
_FROM: Final = "connections from "
"""The keys of what is counted."""


class TrackedConnection(Protocol):
    """What the registry knows of a connection: an `Http1Connection`, or a `ProxiedConnection`."""

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to the connection."""

    def sweep(self, now: float) -> None:
        """Do what is due at `now`, in seconds of the clock of the registry."""

    def drain(self) -> None:
        """Close now if no request is under way, else after it."""

    def abort(self, reason: CutOff = "failed") -> None:
        """Drop the connection."""


class Connections:
    """The registry of open connections.

    Attributes:
        resource: answers the requests: a leaf all of them, else its children are looked up.
        site: the `Site` of the resource, which its requests belong to.
        is_leaf: whether the resource is a leaf.
        takes_oversized: whether it also gets requests whose body was too large to be received.
        options: what the server does beside answering requests.
        limits: the bounds that they share.
        clock: what time limits are counted with.
        now: the time of the last sweep, in seconds of the clock; for what need not be exact.
        date_lines: the first header lines of a reply, with their line ends: the date over plain
            HTTP, and the date with the secure headers over TLS. All connections share this list.
        count: how many connections were admitted and are open.
        draining: whether no further connection and no further request is accepted.
        held: what the connections make the server hold.
        sent_past_bytes: those that were sent past the writers of the connections.
        errors: how many errors the server has sent by itself, by status.
        refusals: those of them that no resource has answered, by code.
        cut_off: how many replies ended before their end, by the reason.
        note_answered: notes an answered request, to be counted later.
        ring: the connections that have more requests to render.

    """

    def __init__(
        self,
        resource: IResource,
        limits: Limits,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
        options: ServerOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Count time with `clock`; `wall_clock` returns the seconds since 1970 for the date."""
        self.resource = resource
        self.site = Site(resource, reactor=clock)
        self.is_leaf = bool(resource.isLeaf)
        self.takes_oversized = IHttp1Resource.providedBy(resource)
        self.options = options
        self.limits = limits
        self.clock = clock
        self.now = clock.seconds()
        self.ring: Final = Ring(clock)
        self.date_lines: Final = [b"", b""]
        self.count = 0
        self.draining = False
        self.held: Final = options.held or HeldBytes(limits, clock.seconds)
        self.errors: Counter[int] = Counter()
        self._activity = options.activity
        self.refusals: Counter[str] = Counter()
        self.cut_off: Counter[str] = Counter()
        answered: deque[AnsweredRequest] = deque(maxlen=0)
        # A method of the interpreter: it adds no call of ours to a request.
        self.note_answered: Final = (self._activity.answered if self._activity else answered).append
        proxies = options.trusted_proxies
        self._trusts = proxies.trusts if proxies else None
        self._own_request, self._proxied_request = options.request_classes()
        self.sent_past_bytes = 0
        self._wall_clock = wall_clock
        self._addresses: dict[TrackedConnection, str | None] = {}
        self._counts: Counting = Counts() if options.counts is None else options.counts
        self._sent_before = 0
        self._next_sweep: IDelayedCall | None = None
        self._waiting_for_end: list[Deferred[None]] = []

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to all connections so far, closed ones too."""
        return (
            self._sent_before
            + self.sent_past_bytes
            + sum(each.bytes_sent for each in self._addresses)
        )

    def requests_of(self, peer: IAddress) -> tuple[type[Request], str]:
        """Return the class of the requests of a peer, and the network that it is counted for.

        That is empty for a peer without an address, and for a trusted proxy: the connections of all
        its clients come from there.
        """
        address: str = getattr(peer, "host", "")
        if self._trusts is not None and self._trusts(address):
            return self._proxied_request, ""
        return self._own_request, network_of(address)

    def admit(self, connection: TrackedConnection, address: str) -> ErrorReply | None:
        """Register a connection; return why it is refused, None if it is not.

        It is counted for `address` unless that is empty. A refused connection is registered too,
        until it is closed.
        """
        self.now = self.clock.seconds()  # it may be old: the last sweep had no connections
        # First counted, then compared: others may admit connections at the same time.
        self._count(address, 1)
        error = self._error_for(address)
        self._addresses[connection] = None if error else address
        if error is None:
            self.count += 1
        else:
            self._count(address, -1)
        if self._next_sweep is None:
            self._sweep()
        return error

    def format_error(self, error: ErrorReply, address: str, *, secure: bool) -> bytes:
        """Return the last reply of a connection that is counted for an address, and count it.

        The address is as in `admit`: what the clients of a trusted proxy do wrong is not counted
        for the proxy, whose own requests it would refuse.
        """
        rates = self.options.rates
        refusal = None if rates is None or not address else rates.refuse_malformed(address)
        error = error if refusal is None else refusal
        self.errors[error.status] += 1
        self.refusals[error.code] += 1
        return format_reply(error, self.date_lines[secure], self.options.refusal_headers)

    def refuses_without_reply(self) -> bool:
        """Return whether so many refused connections are open that further ones get no reply."""
        return len(self._addresses) - self.count > _MAX_REFUSED

    def remove(self, connection: TrackedConnection, request: Request | None = None) -> None:
        """Remove a connection that is closed; `request` is what was being answered."""
        rates = self.options.byte_rates
        if request is not None and rates is not None:
            rates.note_sent(request, min(request.sentLength, connection.bytes_sent))
        address = self._addresses.pop(connection)
        self._sent_before += connection.bytes_sent
        if address is not None:
            self.count -= 1
            self._count(address, -1)
        if not self._addresses:
            self._end()

    def drain(self) -> Deferred[None]:
        """Close idle connections now, others after their request; fires when none is left."""
        self.draining = True
        for connection in tuple(self._addresses):
            connection.drain()
        ended: Deferred[None] = Deferred()
        self._waiting_for_end.append(ended)
        if not self._addresses:
            self._end()
        return ended

    def abort(self) -> None:
        """Drop all connections."""
        for connection in tuple(self._addresses):
            connection.abort("stop")

    def _error_for(self, address: str) -> ErrorReply | None:
        if self.draining:
            return SHUTTING_DOWN
        if self._counts.total(_ALL) > self.limits.connections:
            return TOO_MANY
        if address and self._counts.total(_FROM + address) > self.limits.connections_per_address:
            return TOO_MANY_FROM_ADDRESS
        return None

    def _count(self, address: str, by: Literal[1, -1]) -> None:
        change = self._counts.add if by == 1 else self._counts.remove
        change(_ALL)
        if address:
            change(_FROM + address)

    def _sweep(self) -> None:
        self.now = self.clock.seconds()
        date_line = b"Date: %b\r\n" % datetimeToString(self._wall_clock())
        secure = b"".join([b"%b: %b\r\n" % each for each in self.options.secure_headers])
        self.date_lines[:] = date_line, date_line + secure
        if self._activity is not None:
            self._activity.count()
        if not self._addresses:  # those that were left have been counted
            self._next_sweep = None
            return
        self._next_sweep = self.clock.callLater(SWEEP_S, self._sweep)
        in_slices(self.clock, list(self._addresses), SWEPT_AT_ONCE, self._sweep_one)

    def _sweep_one(self, connection: TrackedConnection) -> None:
        if connection in self._addresses:
            connection.sweep(self.now)

    def _end(self) -> None:
        if self.draining and self._next_sweep is not None:
            self._next_sweep.cancel()
            self._next_sweep = None
        waiting, self._waiting_for_end = self._waiting_for_end, []
        for ended in waiting:
            ended.callback(None)


_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_COPIES: Final = 2
"""How often a long head is held: as it was sent, and parsed."""
_HELD_BYTES: Final = 64 * 1024
REQUESTS_AT_ONCE: Final = 8
"""Requests of a connection that are rendered when it has come up in the ring."""


@implementer(IHandshakeListener, IHalfCloseableProtocol)
class Http1Connection(protocol.Protocol):
    """The protocol of one connection; its requests call it too.

    Attributes:
        secure: whether it uses TLS.
        peer, host: the address of the client, and the local one.
        site: the `Site` that requests belong to.
        writer: what writes to the transport.
        registry: the connections to which it belongs.
        date_lines: the first header lines of plain and of secure replies.

    """

    secure = False
    writer: ConnectionWriter
    _make_request: type[Request]
    _counted_for: str  # an address, empty for none

    transport: Any
    _request: Request | None = None
    _parsing = False  # requests are being parsed and rendered by a caller
    _is_in_ring = False  # continues to parse, after other connections
    _is_read_paused = False  # the transport was paused
    _closing = False
    _idle_since = inf  # while no first request is awaited yet
    _is_half_closed = False  # the client has ended what it sends,
    _half_closed_at = inf  # at this time
    _receive: Callable[[bytes], None] | None = None  # of another protocol, after an upgrade
    _account: HeldAccount | None = None  # of what is held of long heads
    _dropped = 0
    _cut_off: CutOff | None = None  # why the connection was dropped from this end

    def __init__(self, connections: Connections) -> None:
        """Belong to `connections`."""
        options = connections.options
        self.site = connections.site
        self.registry = connections
        self._note_answered = connections.note_answered
        self._logs = options.logs
        self._log_least_s = options.logs.least_s
        self._byte_rates = options.byte_rates
        self.date_lines = connections.date_lines
        self._limits = connections.limits
        self._parser = Http1Parser(connections.limits)
        self._body = HeldBody(connections.held, connections.limits)
        self._deadline = Deadline(connections.limits, connections.clock)

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to this connection."""
        return self.writer.bytes_sent

    # From the transport.

    def connectionMade(self) -> None:
        """Start, or refuse the client."""
        transport = self.transport
        self.peer, self.host = transport.getPeer(), transport.getHost()
        self.secure = ISSLTransport.providedBy(transport)
        self.writer = ConnectionWriter(transport, self.registry.ring, self._resume_parsing)
        self._make_request, self._counted_for = self.registry.requests_of(self.peer)
        self._body.address = self._counted_for
        error = self.registry.admit(self, self._counted_for)
        if error is not None:
            if self.secure or self.registry.refuses_without_reply():
                self.abort()
            else:
                self._refuse(error)
            return
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        if self.secure:
            self._deadline.set_for_handshake()
        else:
            self._await_first()

    def handshakeCompleted(self) -> None:
        """Begin to wait for the first request over TLS."""
        if not self._closing:
            self._await_first()

    def dataReceived(self, data: bytes) -> None:
        """Receive what the client sent."""
        if self._is_occupied():
            self._hold_or_drop(data)
        else:
            self._parse(data)

    def readConnectionLost(self) -> None:
        """Answer what the client has sent: it has ended its sending direction, or is gone."""
        if self._closing:
            self.transport.loseConnection()
        elif self._request is None and not self._is_occupied():
            self._close(linger=False)
        elif self._request is not None and self._request.has_own_timeout:
            self.abort("client")
        elif not self._is_half_closed:
            self._is_half_closed = True
            self._half_closed_at = self.registry.clock.seconds()

    def writeConnectionLost(self) -> None:
        """Do nothing: the client was sent everything."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the request under way that its client is gone."""
        self._closing = True
        self._receive = None
        self._body.release()
        if self._account is not None:
            self._account.close()
        self.writer.release()
        request, self._request = self._request, None
        self._count_end(request)
        if request is not None:
            if self._logs.lost is not None:
                log_request(self._logs.lost, request)
            request.connectionLost(reason)
        self.registry.remove(self, request)
        self._parser.close()

    # From the request.

    def answered(self, request: Request) -> None:
        """Go on to the next request, or close."""
        self._request = None
        self._idle_since = self.registry.now
        if self._body.held:
            self._body.release()
        if self._parser.head_bytes:
            self._parser.forget()
        memory, seconds = request.head_memory, perf_counter() - request.began
        sent, received = request.sentLength, self._parser.body_size
        self._note_answered((memory, request.method, request.code, seconds, sent, received))
        if self._byte_rates is not None:
            self._byte_rates.note_answered(request)
        if seconds >= self._log_least_s:
            log_request(self._logs.answered, request)
        if not request.persistent:
            is_sending = request.is_oversized or self._receive is not None
            self._close(linger=is_sending or self._parser.unread_bytes > 0)
        elif not self._parsing:
            self._resume_parsing()

    def lose_connection(self) -> None:
        """Close once everything is sent."""
        self._close(linger=False)

    def switch(self, receive: Callable[[bytes], None]) -> bytes:
        """Pass all that follows to another protocol; return what was received already."""
        self._receive = receive
        return self._parser.end()

    def shorten_head(self, request: Request) -> None:
        """Keep little of a long head: its reply lasts, or another protocol follows."""
        if self._parser.head_bytes:
            kept_bytes = request.keep_little()
            self._parser.forget()
            self._may_hold(_COPIES * kept_bytes)

    def set_reading(self, is_reading: bool) -> None:
        """Read what the client sends, or leave it unread."""
        if self._is_read_paused is is_reading and not self._closing:
            self._is_read_paused = not is_reading
            (self.transport.resumeProducing if is_reading else self.transport.pauseProducing)()

    # From the registry of connections.

    def sweep(self, now: float) -> None:
        """Do what is due at `now`."""
        if now >= self._half_closed_at + self._limits.linger_s:
            self._end_half_closed()
        stalled_s = self.writer.stalled_s(now, self._limits.least_read_bytes)
        if stalled_s is not None:
            has_own_timeout = self._request is not None and self._request.has_own_timeout
            if stalled_s >= self._limits.write_stalled_s and not has_own_timeout:
                self.abort("slow")
            elif self._closing:
                self._deadline.extend_for_close(now)
            else:
                self._idle_since = now
        elif self._deadline.has_passed(now):
            self._expire()
        elif self._is_idle() and now >= self._idle_since + self._limits.idle_s:
            self._close(linger=False)

    def _end_half_closed(self) -> None:
        """Drop a client that has ended its sending direction, unless its reply has begun."""
        request = self._request
        if request is not None and (request.has_own_timeout or not request.startedWriting):
            self.abort("client")

    def drain(self) -> None:
        """Close now if no request is under way, else after it."""
        if self._request is not None:
            self._request.persistent = False
        elif not self._parser.in_body and not self._parser.unread_bytes:
            self._close(linger=False)

    def abort(self, reason: CutOff = "failed") -> None:
        """Drop the connection."""
        self._closing = True
        if self._cut_off is None:
            self._cut_off = reason
        self.writer.abort()

    # Requests.

    def _is_occupied(self) -> bool:
        return (
            self._request is not None or self._closing or self._is_in_ring or self.writer.is_paused
        )

    def _is_idle(self) -> bool:
        return self._request is None and not self._closing and not self._deadline.is_set

    def _parse(self, data: bytes = b"", at_most: int = 1) -> None:
        """Render complete requests, until one is not answered at once; then enter the ring."""
        parser, rendered = self._parser, 0
        self._parsing = True
        try:
            while parser.receive(data):
                self._render()
                rendered += 1
                if not parser.unread_bytes or self._is_occupied():
                    break
                if rendered == at_most:
                    self._is_in_ring = True
                    self.registry.ring.add(self._continue_parsing)
                    break
                data = b""
        except ProtocolError as error:
            if error.reply is BODY_TOO_LARGE and self.registry.takes_oversized:
                self._render_oversized()
            else:
                self._refuse(error.reply)
        finally:
            self._parsing = False
        if self._request is None and not self._closing:
            self._await_more()

    def _render(self) -> None:
        if self._parser.head_bytes and not self._may_hold(_COPIES * self._parser.head_bytes):
            self._refuse(HELD_TOO_MUCH)
            return
        request = self._request = self._make_request(self, self._parser)
        if self.registry.draining:
            request.persistent = False
        if self._deadline.is_set:
            self._deadline.clear()
        try:
            if self.registry.is_leaf:
                request.render(self.registry.resource)
            else:
                request.process()
        except Exception:
            request.processingFailed(Failure())

    def _render_oversized(self) -> None:
        """Refuse a request by the resource; what still arrives of its body is dropped."""
        self._body.release()
        self.registry.errors[BODY_TOO_LARGE.status] += 1
        request = self._request = self._make_request(self, self._parser)
        request.is_oversized = True
        request.persistent = False
        self._deadline.clear()
        request.render(self.registry.resource)

    def _continue_parsing(self) -> None:
        """Parse what is left when the ring comes to this connection; it may be closed by now."""
        self._is_in_ring = False
        if not self._is_occupied():
            self._parse(at_most=REQUESTS_AT_ONCE)

    def _resume_parsing(self) -> None:
        """Parse what was held, unless the connection is still occupied."""
        if self._parsing or self._is_occupied():
            return
        if self._parser.unread_bytes:
            self._parse()
        else:
            self._await_more()

    def _await_first(self) -> None:
        """Wait for the first request; bytes that belong to none leave the client idle."""
        self._idle_since = self.registry.now
        self._await_more()

    def _await_more(self) -> None:
        """Set the time limit for what the client is to send next."""
        parser = self._parser
        if self._is_half_closed and not self._is_occupied():
            self._close(linger=False)
            return
        if parser.in_body:
            if self._deadline.set_for_body(parser.body_bytes) and parser.awaits_continue:
                self.writer.write(_CONTINUE)
            if not self._body.count(parser.body_bytes):
                self._refuse(TOO_MANY_BODIES)
            elif parser.head_bytes and not self._may_hold(_COPIES * parser.head_bytes):
                self._refuse(HELD_TOO_MUCH)
        elif parser.unread_bytes:
            self._deadline.set_for_head()
            if not self._may_hold(parser.unread_bytes):
                self._refuse(HELD_TOO_MUCH)
        else:
            if self._account is not None:
                self._account.set(0)
            if self._deadline.is_set:
                self._deadline.clear()
        if self._is_read_paused and not self._is_occupied():
            self._is_read_paused = False
            self.transport.resumeProducing()

    def _hold_or_drop(self, data: bytes) -> None:
        """Hold bytes that cannot be parsed yet; drop those of a closing connection."""
        if self._receive is not None and not self._closing:
            self._receive(data)
            return
        if not self._closing:
            self._parser.hold(data)
            if not self._may_hold(self._parser.unread_bytes):
                self.abort()
            if not self._is_read_paused and self._parser.unread_bytes > _HELD_BYTES:
                self._is_read_paused = True
                self.transport.pauseProducing()
            return
        self._dropped += len(data)
        if self._dropped > 2 * self._limits.write_body_bytes:
            self.abort()
        self._deadline.set_for_close()

    def _may_hold(self, size: int) -> bool:
        """Charge what is held of heads and of requests that wait; return whether that may be."""
        if self._account is None:
            if size <= SMALL_HELD_BYTES:
                return True
            self._account = self.registry.held.account(self._counted_for)
        try:
            self._account.set(size if size > SMALL_HELD_BYTES else 0)
        except HeldBytesRefused:
            return False
        return True

    # The end.

    def _count_end(self, request: Request | None) -> None:
        """Count what ended with the connection: a reply, that to `request` if there is one."""
        reason = self._cut_off
        if request is not None:
            if reason is None:
                reason = "failed" if self.writer.is_aborted else "client"
            if request.note_cut_off(reason):
                self.registry.cut_off[reason] += 1
            elif request.startedWriting:
                # A stream, or another protocol, which ends so.
                memory, seconds = request.head_memory, perf_counter() - request.began
                sent, received = request.sentLength, self._parser.body_size
                self._note_answered((memory, request.method, request.code, seconds, sent, received))
        elif reason in ("slow", "stop") and self.writer.waiting_bytes:
            # It was answered before: only its last bytes waited.
            self.registry.cut_off[reason] += 1

    def _expire(self) -> None:
        if self._closing:
            self.abort()
        elif self._deadline.error is not None:
            self._refuse(self._deadline.error)
        else:
            self._close(linger=False)

    def _refuse(self, error: ErrorReply) -> None:
        self._body.release()
        reply = self.registry.format_error(error, self._counted_for, secure=self.secure)
        self.writer.write(reply)
        self._close(linger=True)

    def _close(self, *, linger: bool) -> None:
        """Close after everything written is sent; `linger` if the client may still be sending."""
        if self._closing:
            return
        self._closing = True
        self._parser.end()
        if self._account is not None:
            self._account.set(0)
        self._deadline.set_for_close()
        if self._is_read_paused:
            self.transport.resumeProducing()
        if linger:
            self.writer.close_half()
        else:
            self.writer.close()
