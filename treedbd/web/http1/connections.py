"""The connections of one factory: admission, time limits, draining.

No connection has a timer. Once a second, and only while there are connections, a sweep lets each
check its own time limit; limits are therefore kept to the second. The header line with the date is
made in the same sweep, so that no reply has to.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Literal, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.web.http import datetimeToString

from treedbd.database.slices import in_turns
from treedbd.held_bytes import HeldBytes
from treedbd.http1.parser import (
    SHUTTING_DOWN,
    TOO_MANY,
    TOO_MANY_FROM_ADDRESS,
    CutOff,
    ErrorReply,
    format_reply,
)
from treedbd.http1.request import Request
from treedbd.http1.writer import Ring
from treedbd.limits import Limits
from treedbd.loop import Counting, Counts, network_of
from treedbd.web.http1.served import AnsweredRequest, ServedResource
from treedbd.web.http1.tally import Tally

SWEEP_S: Final = 1.0
SWEPT_AT_ONCE: Final = 512
"""Connections that a sweep visits in one turn of the reactor."""
_MAX_REFUSED: Final = 256
_ALL: Final = "connections"
_FROM: Final = "connections from "
"""The keys of what is counted."""


class TrackedConnection(Protocol):
    """What the registry knows of a connection."""

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
        served: what they serve.
        limits: the bounds that they share.
        clock: what time limits are counted with.
        now: the time of the last sweep, in seconds of the clock; for what need not be exact.
        date_lines: the first header lines of a reply, with their line ends: the date over plain
            HTTP, and the date with the secure headers over TLS. All connections share this list.
        count: how many connections were admitted and are open.
        draining: whether no further connection and no further request is accepted.
        held: what the connections make the server hold.
        sent_past: the bytes that were sent past the writers of the connections.
        errors: how many errors the server has sent by itself, by status.
        refusals: those of them that no resource has answered, by code.
        cut_off: how many replies ended before their end, by the reason.
        note_answered: notes an answered request, to be counted later.
        ring: the connections that have more requests to render.

    """

    def __init__(
        self,
        served: ServedResource,
        limits: Limits,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
    ) -> None:
        """Count time with `clock`; `wall_clock` returns the seconds since 1970 for the date."""
        options = served.options
        self.served = served
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
        self.sent_past = Tally()
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
            + self.sent_past.bytes
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
        self.now = self.clock.seconds()  # it may be old: the last sweep had nobody to sweep
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
        rates = self.served.options.rates
        refusal = None if rates is None or not address else rates.refuse_malformed(address)
        error = error if refusal is None else refusal
        self.errors[error.status] += 1
        self.refusals[error.code] += 1
        return format_reply(error, self.date_lines[secure], self.served.options.refusal_headers)

    def refuses_without_reply(self) -> bool:
        """Return whether so many refused connections are open that further ones get no reply."""
        return len(self._addresses) - self.count > _MAX_REFUSED

    def remove(self, connection: TrackedConnection, request: Request | None = None) -> None:
        """Remove a connection that is closed; `request` is what was being answered."""
        rates = self.served.options.rates
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
        secure = b"".join([b"%b: %b\r\n" % each for each in self.served.options.secure_headers])
        self.date_lines[:] = date_line, date_line + secure
        if self._activity is not None:
            self._activity.count()
        if not self._addresses:  # those that were left have been counted
            self._next_sweep = None
            return
        self._next_sweep = self.clock.callLater(SWEEP_S, self._sweep)
        in_turns(self.clock, list(self._addresses), SWEPT_AT_ONCE, self._sweep_one)

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
