"""All open streams of a service: how many there may be, and the one clock that keeps them alive.

A stream that has sent nothing for a while gets a keep-alive; one whose reader has not read for too
long is closed; one whose token has run out is told so. One timer finds them, which looks at all
streams once a second while there are any, or more often where keep-alives are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from treedbd.database.catalog import DatabaseName
from treedbd.tree.window import Window
from treedbd.web.frame import AUTH_REVOKED
from treedbd.web.identity.identity import Identity

K = TypeVar("K")

TICK_S: Final = 1.0
TICKS_PER_KEEP_ALIVE: Final = 8
SENT_AT_ONCE: Final = 256
"""So many keep-alives go out before others get their turn."""


class TooManyStreams(Exception):
    """One caller or one database has as many streams as it may; the message says which."""


class NoRoomForStreams(Exception):
    """The service has as many streams as it may."""


@attrs.frozen
class StreamLimits:
    """Bounds on streams: how many, how long silent, how much waits for a slow reader."""

    streams: int = 16_000
    streams_per_database: int = 16_000
    streams_per_address: int = 4000
    keep_alive_s: float = 30.0
    buffer_bytes: int = 1_048_576
    stalled_s: float = 60.0


class Live(Protocol):
    """What this room knows of a stream."""

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""
        ...

    def keep_alive(self) -> None:
        """Send a keep-alive."""
        ...

    def end(self, last_words: bytes = b"") -> None:
        """End in good order, saying why."""
        ...

    def abort(self) -> None:
        """Drop the connection."""
        ...


@attrs.frozen
class Holder:
    """Who has a stream open: of which database, from which address, as whom."""

    name: DatabaseName
    address: str
    identity: Identity


class Streams:
    """The open streams of a service, with counters for whoever watches it."""

    def __init__(
        self, limits: StreamLimits, clock: IReactorTime, wall_clock: Callable[[], float]
    ) -> None:
        """Keep streams alive by `clock`; tokens expire by `wall_clock`, seconds since 1970."""
        self.limits: Final = limits
        self.opened = 0
        self.events_sent = 0
        self.went_stale = 0
        self._clock = clock
        self._wall_clock = wall_clock
        self._holders: dict[Live, Holder] = {}
        self._of_database: Counter[DatabaseName] = Counter()
        self._of_address: Counter[str] = Counter()
        self._expiring: dict[Live, float] = {}
        self._paused: dict[Live, float] = {}
        self._windows: WeakValueDictionary[object, Window] = WeakValueDictionary()
        self._tick_s = min(TICK_S, limits.keep_alive_s / TICKS_PER_KEEP_ALIVE)
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = clock

    def __len__(self) -> int:
        return len(self._holders)

    def check(self, name: DatabaseName, address: str) -> None:
        """Raise `TooManyStreams` or `NoRoomForStreams` where one more would be too many."""
        limits = self.limits
        if len(self._holders) >= limits.streams:
            raise NoRoomForStreams("The service has as many streams as it may.")
        if self._of_database[name] >= limits.streams_per_database:
            raise TooManyStreams("The database has as many streams as it may.")
        if self._of_address[address] >= limits.streams_per_address:
            raise TooManyStreams("Your address has as many streams as it may.")

    def add(self, stream: Live, holder: Holder) -> None:
        """Count a stream that has been let in, and keep it alive from now on."""
        self._holders[stream] = holder
        self._of_database[holder.name] += 1
        self._of_address[holder.address] += 1
        self.opened += 1
        expires_at = holder.identity.expires_at
        if expires_at is not None:
            self._expiring[stream] = expires_at
        if not self._ticking.running:
            self._ticking.start(self._tick_s, now=False)

    def remove(self, stream: Live) -> None:
        """Forget a stream that has ended; one that is not there is no error."""
        holder = self._holders.pop(stream, None)
        if holder is None:
            return
        self._paused.pop(stream, None)
        self._expiring.pop(stream, None)
        _decrease(self._of_database, holder.name)
        _decrease(self._of_address, holder.address)
        if not self._holders:
            self._ticking.stop()

    def pause(self, stream: Live) -> None:
        """Note that the reader of a stream has stopped to read."""
        self._paused[stream] = self._clock.seconds()

    def resume(self, stream: Live) -> None:
        """Note that the reader reads again."""
        self._paused.pop(stream, None)

    def share(self, key: object, window: Window) -> Window:
        """Return a window of the same query that shows the same: one that others have, or this."""
        known = self._windows.get(key)
        if known is not None and known.shows_same_as(window):
            return known
        self._windows[key] = window
        return window

    def end(self) -> None:
        """End every stream in good order."""
        for stream in list(self._holders):
            stream.end()

    def recheck(self, trusts: Callable[[str, Identity], bool]) -> None:
        """End the streams of those whom a project does not trust any more."""
        for stream, holder in list(self._holders.items()):
            if not trusts(holder.name.project, holder.identity):
                stream.end(AUTH_REVOKED)

    def has_expired(self, identity: Identity) -> bool:
        """Tell whether the token of an identity is past its time."""
        return identity.expires_at is not None and identity.expires_at <= self._wall_clock()

    def _tick(self) -> None:
        expired_at = self._wall_clock()
        for stream in [each for each, at in self._expiring.items() if at <= expired_at]:
            stream.end(AUTH_REVOKED)
        now = self._clock.seconds()
        late = now - self.limits.stalled_s
        for stream in [each for each, since in self._paused.items() if since <= late]:
            stream.abort()
        # What was sent just behind a tick is answered by the tick that comes just before its time.
        silent = now - self.limits.keep_alive_s + self._tick_s / 4
        self._keep_alive([each for each in self._holders if each.last_sent <= silent])

    def _keep_alive(self, streams: list[Live]) -> None:
        for stream in streams[:SENT_AT_ONCE]:
            if stream in self._holders:
                stream.keep_alive()
        rest = streams[SENT_AT_ONCE:]
        if rest:
            self._clock.callLater(0, self._keep_alive, rest)


def _decrease(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
