"""The registry of connections: what they serve, how they are counted, timed and drained.

No connection has a timer. Once a second, and only while there are connections, a sweep of the
registry (`Connections`) makes each check its own deadline, so time limits are accurate to the
second. The same sweep makes the header line with the date, once for all replies. The registry also
admits connections, and drains them when the daemon stops.

`ServerOptions` has what a server does beside answering requests: it counts, bounds and logs them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Any, Final, Literal, Protocol, TypeAlias

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.web.http import datetimeToString
from twisted.web.resource import IResource
from twisted.web.server import Site

from treedbd.counting import Counting, Counts, HeldBytes
from treedbd.database.slices import in_slices
from treedbd.http1.content import SHARES
from treedbd.http1.parser import (
    SHUTTING_DOWN,
    TOO_MANY,
    TOO_MANY_FROM_ADDRESS,
    CutOff,
    ErrorReply,
    Header,
    HeaderBlocks,
    HeadMemory,
    format_reply,
)
from treedbd.http1.proxies import proxied_request
from treedbd.http1.request import IHttp1Resource, Request, identified
from treedbd.http1.senders import Ring
from treedbd.limits import Limits
from treedbd.loop import network_of
from treedbd.names import NO_PROXIES, TrustedProxies

_log: Final = Logger()

AnsweredRequest: TypeAlias = tuple[HeadMemory, bytes, int, float, int, int]
"""The memory of its head, its method, the status of the reply, the seconds it took, and the bytes
of the bodies: those sent and those received."""

AdaptRequests: TypeAlias = Callable[[type[Request]], type[Request]]
"""Returns the class of requests to be made in place of another one."""


NOTED_AT_ONCE: Final = 256
"""Answered requests that are counted together: many would keep memory from being used again that is
still in the caches of the processor."""


class CountsRequests(Protocol):
    """Counts the answered requests.

    One class implements it, `web/activity.Activity`: this package does not know `web`.
    """

    @property
    def answered(self) -> deque[AnsweredRequest]:
        """Those that were not counted yet; every connection appends to it."""

    def count(self) -> None:
        """Count them.

        Called for each `NOTED_AT_ONCE`, after a long head, and once a second while clients connect.
        """


class CountsCallers(Protocol):
    """Counts how much callers do.

    One class implements it, `web/rates.Rates`: this package does not know `web`.
    """

    @property
    def counts_bytes(self) -> bool:
        """Whether bytes are to be counted."""

    def refuse_malformed(self, address: str) -> ErrorReply | None:
        """Count a malformed request; return the reply if there were too many."""

    def note_answered(self, request: Any) -> None:
        """Count the bytes of an answered request."""

    def note_sent(self, request: Any, sent: int) -> None:
        """Count the bytes of a request of whose response `sent` bytes were sent."""


@frozen
class RequestLogging:
    """What is called to log requests.

    `answered` is called with each answered request that took at least `least_s` seconds, `lost`
    with each whose client disconnected before the answer; of its target they must show at most
    `shown_path`. With `sends_ids` each response has the id of its request.
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
    reply to a request over TLS and in no other. `counts` counts the connections of all processes
    that serve the same clients, None if there is one process. `activity` counts what clients
    request, and `rates` bounds it. What `trusted_proxies` say of their clients counts.
    `adapt_requests` returns the class of requests to be made. `held` accounts for the memory that
    connections use; None for a server that makes its own.
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
    """Log a request; an error in that is logged, and affects nothing else."""
    try:
        log(request)
    except Exception:
        _log.failure("A request could not be logged.")


class HeldBody:
    """The memory of a body on one connection that is not complete, or not answered.

    It is counted with those of all connections, as is the part of a message that has arrived. One
    client address may have one of `SHARES` equal parts of the bound, but one whole body in any
    case, so that one client leaves room for the bodies of others.

    Attributes:
        held: how many bytes.
        address: the address that they are counted for; empty if it has no bound.

    """

    __slots__ = ("_bodies", "_limits", "_share", "address", "held")

    def __init__(self, held: HeldBytes, limits: Limits, address: str = "") -> None:
        """Count it with the bodies of `held`, within `limits`."""
        self._bodies = held.bodies
        self.held = 0
        self.address = address
        self._limits = limits
        self._share = max(limits.held_body_bytes // SHARES, limits.write_body_bytes)

    def count(self, held: int) -> bool:
        """Set the bytes; return whether the address, and all together, may have them."""
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
CONNECTIONS: Final = "connections"
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

    def set_logs(self, logs: RequestLogging) -> None:
        """Log its requests by `logs` from now on."""


class Connections:
    """The registry of open connections.

    Attributes:
        resource: answers the requests: a leaf all of them, else its children are looked up.
        site: the `Site` of the resource, which its requests belong to.
        is_leaf: whether the resource is a leaf.
        header_blocks: the header blocks that clients sent last.
        takes_oversized: whether it also gets requests whose body was too large to be received.
        options: what the server does beside answering requests.
        logs: logs the requests; at first those of the options.
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
        noted: the answered requests that are to be counted, which keep what was made of them.
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
        self.resource, self.site = resource, Site(resource, reactor=clock)
        self.is_leaf = bool(resource.isLeaf)
        self.header_blocks: Final = HeaderBlocks(limits)
        self.takes_oversized = IHttp1Resource.providedBy(resource)
        self.options = options
        self.logs = options.logs
        self.limits = limits
        self.clock = clock
        self.now = clock.seconds()
        self.ring: Final = Ring(clock)
        self.date_lines: Final = [b"", b""]
        self.count = 0
        self.draining = False
        self.held: Final = options.held or HeldBytes(limits, clock.seconds)
        self.errors: Counter[int] = Counter()
        self.refusals: Counter[str] = Counter()
        self.cut_off: Counter[str] = Counter()
        nothing: deque[AnsweredRequest] = deque(maxlen=0)
        self.noted: Final = options.activity.answered if options.activity else nothing
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
        if self._counts.total(CONNECTIONS) > self.limits.connections:
            return TOO_MANY
        if address and self._counts.total(_FROM + address) > self.limits.connections_per_address:
            return TOO_MANY_FROM_ADDRESS
        return None

    def _count(self, address: str, by: Literal[1, -1]) -> None:
        change = self._counts.add if by == 1 else self._counts.remove
        change(CONNECTIONS)
        if address:
            change(_FROM + address)

    def log_by(self, logs: RequestLogging) -> None:
        """Log the requests of all connections by `logs`, soon also those of open ones."""
        self.logs = logs
        in_slices(self.clock, list(self._addresses), SWEPT_AT_ONCE, self._set_logs)

    def _set_logs(self, connection: TrackedConnection) -> None:
        connection.set_logs(self.logs)  # the present ones: another call may have come first

    def count_answered(self) -> None:
        """Count what was noted: until then it keeps what was made of heads, which may be long."""
        if self.options.activity is not None:
            self.options.activity.count()

    def _sweep(self) -> None:
        self.now = self.clock.seconds()
        date_line = b"Date: %b\r\n" % datetimeToString(self._wall_clock())
        secure = b"".join([b"%b: %b\r\n" % each for each in self.options.secure_headers])
        self.date_lines[:] = date_line, date_line + secure
        self.count_answered()
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
