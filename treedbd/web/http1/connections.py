"""The connections of one factory: admission, time limits, draining.

No connection has a timer. Once a second, and only while there are connections, a sweep lets each
check its own time limit; limits are therefore kept to the second. The header line with the date is
made in the same sweep, so that no reply has to.
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

from treedbd.counts import Counting, Counts
from treedbd.limits import Limits
from treedbd.trusted_proxies import NO_PROXIES, TrustedProxies
from treedbd.web.headers import Header
from treedbd.web.http1.errors import (
    SHUTTING_DOWN,
    TOO_MANY,
    TOO_MANY_FROM_ADDRESS,
    ErrorReply,
)
from treedbd.web.http1.head_memory import HeadMemory
from treedbd.web.http1.identified_request import identified
from treedbd.web.http1.proxied_request import proxied_request
from treedbd.web.http1.request import Request
from treedbd.web.http1.tally import Tally

SWEEP_S: Final = 1.0
SWEPT_AT_ONCE: Final = 512
"""Connections that a sweep visits in one turn of the reactor."""
_MAX_REFUSED: Final = 256
_ALL: Final = "connections"
_FROM: Final = "connections from "
"""The keys of what is counted."""
_log: Final = Logger()


AnsweredRequest: TypeAlias = tuple[HeadMemory, bytes, int, float]
"""What its head asked, its method, the status of the reply, and how many seconds it took."""


class CountsRequests(Protocol):
    """What counts the answered requests.

    Attributes:
        answered: those that were not counted yet, which every connection adds to.

    """

    @property
    def answered(self) -> deque[AnsweredRequest]:
        """Those that were not counted yet."""

    def count(self) -> None:
        """Count them; called once a second while there are connections."""


class CountsCallers(Protocol):
    """What counts how much callers do (`web.rates`).

    Attributes:
        counts_bytes: whether it has to know of bytes.

    """

    @property
    def counts_bytes(self) -> bool:
        """Whether it has to know of bytes."""

    def refuse_malformed(self, address: str) -> ErrorReply | None:
        """Count what was no request; return what is sent if there were too many."""

    def note_answered(self, request: Any) -> None:
        """Count the bytes of an answered request."""

    def note_sent(self, request: Any, sent: int) -> None:
        """Count the bytes of a request of whose response so many were sent."""


@frozen
class OwnHeaders:
    """The headers that the server adds: `refusals` to what it refuses by itself, `secure` to all.

    Those named `secure` are in each reply to a request that came over TLS, and in no other.
    """

    refusals: tuple[Header, ...] = ()
    secure: tuple[Header, ...] = ()


NO_HEADERS: Final = OwnHeaders()


@frozen
class RequestLogging:
    """What is called for requests, so that it can log them.

    `answered` is called with each answered request that took at least `least_s` seconds, `lost`
    with each whose client went before it was answered. If it `sends_ids`, each response has the
    id of its request.
    """

    answered: Callable[[Request], None]
    lost: Callable[[Request], None] | None = None
    least_s: float = 0.0
    sends_ids: bool = False


NO_LOGGING: Final = RequestLogging(lambda _: None, least_s=inf)


def log_request(log: Callable[[Request], None], request: Request) -> None:
    """Log a request; what goes wrong is logged, too, and concerns nobody else."""
    try:
        log(request)
    except Exception:
        _log.failure("A request could not be logged.")


@frozen
class ServedResource:
    """What answers the requests, and what logs them.

    `rates` bound what callers do, None if nothing does.

    A resource that `takes_oversized` (an `IHttp1Resource`) also gets requests whose body was too
    large to be received. `own_headers` are those that the server adds.
    """

    resource: IResource
    is_leaf: bool
    takes_oversized: bool
    site: Site
    logging: RequestLogging = NO_LOGGING
    own_headers: OwnHeaders = NO_HEADERS
    rates: CountsCallers | None = None

    @property
    def note_bytes(self) -> Callable[[Request], None] | None:
        """What counts the bytes of an answered request; None if nothing has to."""
        if self.rates is None or not self.rates.counts_bytes:
            return None
        return self.rates.note_answered


class TrackedConnection(Protocol):
    """What the registry knows of a connection."""

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to the connection."""

    def sweep(self, now: float) -> None:
        """Do what is due at `now`, in seconds of the clock of the registry."""

    def drain(self) -> None:
        """Close now if no request is under way, else after it."""

    def abort(self) -> None:
        """Drop the connection."""


class Connections:
    """The registry of open connections.

    Attributes:
        served: what they serve.
        limits: the bounds that they share.
        clock: what time limits are counted with.
        now: the time of the last sweep, in seconds of the clock; for what need not be exact.
        date_lines: the first header lines of a reply, with their line ends: the date over plain
            HTTP, and the date with the secure headers over TLS. All connections share this list.
        count: how many connections were admitted and are open.
        draining: whether no further connection and no further request is accepted.
        held_body_bytes: content of unanswered requests that arrived in several pieces.
        sent_past: the bytes that were sent past the writers of the connections.
        errors: how many errors the server has sent by itself, by status.
        note_answered: notes an answered request, to be counted later.

    """

    def __init__(
        self,
        served: ServedResource,
        limits: Limits,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
        counts: Counting | None = None,
        activity: CountsRequests | None = None,
    ) -> None:
        """Count time with `clock`; `wall_clock` returns the seconds since 1970 for the date.

        `counts` are the connections of all processes that serve the same clients; `activity` counts
        what they request.
        """
        self.served = served
        self.limits = limits
        self.clock = clock
        self.now = clock.seconds()
        self.date_lines: Final = [b"", b""]
        self.count = 0
        self.draining = False
        self.held_body_bytes = 0
        self.errors: Counter[int] = Counter()
        self.trust(NO_PROXIES)
        answered: deque[AnsweredRequest] = deque(maxlen=0)
        # A method of the interpreter: it adds no call of ours to a request.
        self.note_answered: Final = (activity.answered if activity else answered).append
        self._activity = activity
        self.sent_past = Tally()
        self._wall_clock = wall_clock
        self._addresses: dict[TrackedConnection, str | None] = {}
        self._counts: Counting = Counts() if counts is None else counts
        self._sent_before = 0
        self._next_sweep: IDelayedCall | None = None
        self._waiting_for_end: list[Deferred[None]] = []

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to all connections so far, closed ones too."""
        return (
            self._sent_before
            + self.sent_past.bytes
            + sum(each.bytes_sent for each in self._addresses)
        )

    def trust(self, proxies: TrustedProxies) -> None:
        """Let the headers of `proxies` count; to be called before there are connections."""
        self._trusts = proxies.trusts if proxies else None
        self._proxied_request = proxied_request(proxies.trusts)

    def requests_of(self, peer: IAddress) -> tuple[type[Request], str]:
        """Return the class of the requests of a peer, and the address that it is counted for.

        That is empty for a peer without an address, and for a trusted proxy: the connections of all
        its clients come from there.
        """
        address: str = getattr(peer, "host", "")
        kind = Request
        if self._trusts is not None and self._trusts(address):
            kind, address = self._proxied_request, ""
        return identified(kind) if self.served.logging.sends_ids else kind, address

    def admit(self, connection: TrackedConnection, address: str) -> ErrorReply | None:
        """Register a connection; return why it is refused, None if it is not.

        It is counted for `address` unless that is empty. A refused connection is registered too,
        until it is closed.
        """
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

    def refuses_without_reply(self) -> bool:
        """Return whether so many refused connections are open that further ones get no reply."""
        return len(self._addresses) - self.count > _MAX_REFUSED

    def note_error(self, error: ErrorReply, address: str) -> ErrorReply:
        """Count an error that the server sends by itself; return what it sends."""
        rates = self.served.rates
        refusal = None if rates is None else rates.refuse_malformed(address)
        error = error if refusal is None else refusal
        self.errors[error.status] += 1
        return error

    def remove(self, connection: TrackedConnection, request: Request | None = None) -> None:
        """Remove a connection that is closed; `request` is what was being answered."""
        rates = self.served.rates
        if request is not None and rates is not None and rates.counts_bytes:
            rates.note_sent(request, min(request.sentLength, connection.bytes_sent))
        address = self._addresses.pop(connection)
        self._sent_before += connection.bytes_sent
        if address is not None:
            self.count -= 1
            self._count(address, -1)
        if not self._addresses:
            self._end()

    def drain(self) -> Deferred[None]:
        """Close what is idle, let requests under way finish; fires when no connection is left."""
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
            connection.abort()

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
        secure = b"".join([b"%b: %b\r\n" % each for each in self.served.own_headers.secure])
        self.date_lines[:] = date_line, date_line + secure
        self._next_sweep = self.clock.callLater(SWEEP_S, self._sweep)
        if self._activity is not None:
            self._activity.count()
        self._sweep_some(list(self._addresses))

    def _sweep_some(self, connections: list[TrackedConnection]) -> None:
        for connection in connections[:SWEPT_AT_ONCE]:
            if connection in self._addresses:
                connection.sweep(self.now)
        rest = connections[SWEPT_AT_ONCE:]
        if rest:
            self.clock.callLater(0, self._sweep_some, rest)

    def _end(self) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()
            self._next_sweep = None
        waiting, self._waiting_for_end = self._waiting_for_end, []
        for ended in waiting:
            ended.callback(None)
