"""The open WebSockets of a service: their limits, signs of life, and what is due with the time.

A socket that has received nothing for a while sends a ping. A client that sends nothing for twice
that time is gone, and so is one that takes nothing of what waits for it. One timer finds them all,
and tokens that have expired; it looks at a part of the sockets in each turn of the reactor.

Limits count the sockets of all processes that serve the same clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from treedbd.database.slices import in_slices
from treedbd.limits import Limits, StreamLimits
from treedbd.loop import Counting, Counts
from treedbd.names import DatabaseName
from treedbd.web.auth.identity import Identity
from treedbd.web.streams.registry import tick_seconds

if TYPE_CHECKING:
    from treedbd.web.realtime.session import RealtimeSession

SEEN_AT_ONCE: Final = 256
"""Sockets that are looked at in one turn of the reactor."""
WEBSOCKET_VERSION: Final = "13"
_ALL: Final = "sockets"
_FROM: Final = "sockets from "
_OF: Final = "sockets of "
"""The keys of what is counted."""


class TooManySockets(Exception):
    """The service, or a client address, has as many WebSockets as it may have."""


class CannotUpgrade(LookupError):
    """The WebSocket cannot be opened in the server that the request came by."""

    def __init__(self) -> None:
        super().__init__("WebSockets are served by the endpoints of treedb alone (listen).")


class BadHandshake(Exception):
    """A request for a WebSocket that lacks what the handshake needs (RFC 6455, section 4.2.1)."""


class WrongVersion(Exception):
    """A request for another version of the WebSocket protocol than the one there is."""

    def __init__(self) -> None:
        super().__init__(f"The version of the WebSocket protocol is {WEBSOCKET_VERSION}.")


class SocketRegistry:
    """The open WebSockets of a service.

    Attributes:
        keep_alive_s: after how many seconds of silence a client is sent a ping.
        stalled_s: how long a client may take nothing of what waits for it.
        opened, messages_in, messages_out, events_sent, event_bytes, overflowed: counters since the
            start.
        refused: what was refused, or which sockets were closed, by the setting of the limit.
        listens: how many there are.

    """

    def __init__(
        self,
        limits: Limits,
        stream_limits: StreamLimits,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
        counts: Counting | None = None,
    ) -> None:
        """Count time by `clock`; tokens expire by `wall_clock`, seconds since 1970.

        `counts` are the sockets of all processes that serve the same clients.
        """
        self.keep_alive_s: Final = stream_limits.keep_alive_s
        self.stalled_s: Final = stream_limits.stalled_s
        self.opened = 0
        self.refused: Final[Counter[str]] = Counter()
        self.messages_in = 0
        self.messages_out = 0
        self.events_sent = 0
        self.event_bytes = 0
        self.overflowed = 0
        self.listens = 0
        self._limits = limits
        self._clock = clock
        self._wall_clock = wall_clock
        self._counts: Counting = Counts() if counts is None else counts
        self._sockets: dict[str, RealtimeSession] = {}
        self._tick_s = tick_seconds(stream_limits)
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = clock

    def __len__(self) -> int:
        return len(self._sockets)

    def count_of(self, name: DatabaseName) -> int:
        """Return how many sockets of a database are open, at all processes together."""
        return self._counts.total(_OF + name.label)

    def check(self, address: str) -> None:
        """Raise `TooManySockets` if one more would be too many."""
        if self._counts.total(_ALL) >= self._limits.sockets:
            self.refused["sockets"] += 1
            raise TooManySockets("There are too many WebSockets of this service (sockets).")
        if address and self._counts.total(_FROM + address) >= self._limits.sockets_per_address:
            self.refused["sockets_per_address"] += 1
            raise TooManySockets(
                "There are too many WebSockets from this address (sockets_per_address)."
            )

    def add(self, socket: RealtimeSession) -> None:
        """Register a socket that has been admitted."""
        self._sockets[socket.id] = socket
        self.opened += 1
        for key in _keys(socket):
            self._counts.add(key)
        if not self._ticking.running:
            self._ticking.start(self._tick_s, now=False)

    def remove(self, socket: RealtimeSession) -> None:
        """Remove a socket that has ended; no error if it is not there."""
        if self._sockets.pop(socket.id, None) is None:
            return
        for key in _keys(socket):
            self._counts.remove(key)
        if not self._sockets and self._ticking.running:
            self._ticking.stop()

    def find(self, session: str) -> RealtimeSession | None:
        """Return the socket of a session, None if it is not open here."""
        return self._sockets.get(session)

    def recheck(self, trusts: Callable[[str, Identity], bool]) -> None:
        """End the identities that a project no longer trusts."""
        for socket in list(self._sockets.values()):
            if not trusts(socket.name.project, socket.identity):
                socket.lose_identity()

    def end(self) -> None:
        """Close every socket."""
        for socket in list(self._sockets.values()):
            socket.end()

    def _tick(self) -> None:
        in_slices(self._clock, list(self._sockets.values()), SEEN_AT_ONCE, self._see)

    def _see(self, socket: RealtimeSession) -> None:
        if socket.id in self._sockets:
            socket.tick(self._clock.seconds(), self._wall_clock())


def _keys(socket: RealtimeSession) -> tuple[str, ...]:
    keys = _ALL, _OF + socket.name.label
    return (*keys, _FROM + socket.address) if socket.address else keys
