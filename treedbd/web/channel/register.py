"""The connections of one factory: who gets in, one clock for all their deadlines, and the end.

No connection has a timer. Once a second, and only while there are connections, each is asked to
look at its own deadline; deadlines are therefore kept to the second. The line with the date is
made at the same beat, so that no reply has to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.web.http import datetimeToString

from treedbd.web.channel.limits import ChannelLimits
from treedbd.web.channel.refusal import SHUTTING_DOWN, TOO_MANY, TOO_MANY_FROM_ADDRESS, Refusal

BEAT_S: Final = 1.0
_TURNED_AWAY_AT_ONCE: Final = 256


class Member(Protocol):
    """What the register knows of a connection."""

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to the connection."""

    def look(self, now: float) -> None:
        """Do what is due at `now`, in seconds of the register's clock."""

    def drain(self) -> None:
        """Close now if no request is under way, else after it."""

    def abort(self) -> None:
        """Drop the connection."""


class Register:
    """The open connections.

    Attributes:
        limits: the bounds that all connections share.
        clock: what deadlines are counted with.
        now: the time of the last beat, in seconds of the clock; for what need not be exact.
        date_line: the header line with the date, with its line end.
        connections: how many connections were let in and are open.
        draining: set once no further connection and no further request is wanted.
        held_body_bytes: content of requests that came in several pieces and are not answered.
        refusals: how many refusals of the channel were sent, by status.

    """

    def __init__(
        self, limits: ChannelLimits, clock: IReactorTime, wall_clock: Callable[[], float]
    ) -> None:
        """Count deadlines with `clock`; `wall_clock` gives the seconds since 1970 for the date."""
        self.limits = limits
        self.clock = clock
        self.now = clock.seconds()
        self.date_line = b""
        self.connections = 0
        self.draining = False
        self.held_body_bytes = 0
        self.refusals: Counter[int] = Counter()
        self._wall_clock = wall_clock
        self._members: dict[Member, str | None] = {}
        self._per_address: Counter[str] = Counter()
        self._sent_before = 0
        self._beat: IDelayedCall | None = None
        self._waiting_for_end: list[Deferred[None]] = []

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to all connections so far, closed ones too."""
        return self._sent_before + sum(member.bytes_sent for member in self._members)

    def admit(self, member: Member, address: str) -> Refusal | None:
        """Take in a connection from `address`, or return why there is no room for it.

        A connection without room is watched all the same until it is closed.
        """
        refusal = self._refusal_of(address)
        self._members[member] = None if refusal else address
        if refusal is None:
            self.connections += 1
            self._per_address[address] += 1
        if self._beat is None:
            self._keep_time()
        return refusal

    def turns_away_many(self) -> bool:
        """Tell whether so many refused connections are open that further ones get no answer."""
        return len(self._members) - self.connections > _TURNED_AWAY_AT_ONCE

    def forget(self, member: Member) -> None:
        """Let go of a connection that is closed."""
        address = self._members.pop(member)
        self._sent_before += member.bytes_sent
        if address is not None:
            self.connections -= 1
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]
        if not self._members:
            self._end()

    def drain(self) -> Deferred[None]:
        """Close what is idle, let requests under way finish; fires when no connection is left."""
        self.draining = True
        for member in tuple(self._members):
            member.drain()
        ended: Deferred[None] = Deferred()
        self._waiting_for_end.append(ended)
        if not self._members:
            self._end()
        return ended

    def abort(self) -> None:
        """Drop all connections."""
        for member in tuple(self._members):
            member.abort()

    def _refusal_of(self, address: str) -> Refusal | None:
        if self.draining:
            return SHUTTING_DOWN
        if self.connections >= self.limits.connections:
            return TOO_MANY
        if address and self._per_address[address] >= self.limits.connections_per_address:
            return TOO_MANY_FROM_ADDRESS
        return None

    def _keep_time(self) -> None:
        self.now = self.clock.seconds()
        self.date_line = b"Date: %b\r\n" % datetimeToString(self._wall_clock())
        self._beat = self.clock.callLater(BEAT_S, self._keep_time)
        for member in tuple(self._members):
            member.look(self.now)

    def _end(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        waiting, self._waiting_for_end = self._waiting_for_end, []
        for ended in waiting:
            ended.callback(None)
