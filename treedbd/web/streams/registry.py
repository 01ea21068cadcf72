"""The open streams of a service: their limits, keep-alives and expiry.

A stream that has sent nothing for a while sends a keep-alive; one whose reader has not read for too
long is closed; one whose token has expired ends with `auth_revoked`; one that had no room for its
value tries again. One timer finds them: it checks all streams once a second while there are any, or
more often if keep-alives are more frequent, and acts on a few in each turn of the reactor.

Limits count the streams of all processes that serve the same clients. What the program that embeds
the service watches is counted for its database, but has no address and no connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from treedbd.database.slices import in_slices
from treedbd.http1.request import IHttp1Request
from treedbd.limits import Limits, StreamLimits
from treedbd.loop import Counting, Counts
from treedbd.names import DatabaseName
from treedbd.web.auth.identity import ANONYMOUS, Identity, uid_of
from treedbd.web.rates import Rates
from treedbd.web.streams.frames import AUTH_REVOKED

TICK_S: Final = 1.0
TICKS_PER_KEEP_ALIVE: Final = 8
SENT_AT_ONCE: Final = 256
"""Keep-alives that are sent in one turn of the reactor."""
ENDED_AT_ONCE: Final = 32
"""Streams that end in one turn of the reactor because of the time."""
_ALL: Final = "streams"
_OF: Final = "streams of "
_FROM: Final = "streams from "
_OF_PROJECT: Final = "streams of the project "
_OF_USER: Final = "streams of the user "
"""The keys of what is counted."""
RETRIED_AT_ONCE: Final = 8
"""Postponed streams that begin again in one turn of the reactor."""


def tick_seconds(limits: StreamLimits) -> float:
    """Return how often what is due with the time is looked for."""
    return min(TICK_S, limits.keep_alive_s / TICKS_PER_KEEP_ALIVE)


class TooManyStreams(Exception):
    """A client address, a user, a project or a database has reached its limit of streams."""


class StreamsExhausted(Exception):
    """The service has reached its limit of streams."""


class OpenStream(Protocol):
    """What the registry knows of a stream: a `Stream`, or a watch of `embedding/watch`."""

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""
        ...

    def keep_alive(self) -> None:
        """Send a keep-alive."""
        ...

    def retry(self) -> None:
        """Try again what was postponed."""
        ...

    def end(self, last_frame: bytes = b"") -> None:
        """End cleanly, with a frame that says why."""
        ...

    def abort(self) -> None:
        """Drop the connection."""
        ...


@attrs.frozen
class Subscriber:
    """Who has a stream open: the database, the client's address, the identity.

    The address and the `request` are None if there is no client: the program itself watches.
    """

    name: DatabaseName
    address: str | None
    identity: Identity
    request: IHttp1Request | None = None


class StreamRegistry:
    """The open streams of a service, and what the program itself watches.

    Attributes:
        connected: how many of them have a connection.
        buffer_bytes: how many bytes may wait for the reader of one stream.
        opened, events_sent, event_bytes, overflowed: counters since the start; the bytes are
            those of events, without what streams begin with.

    """

    def __init__(
        self,
        limits: Limits,
        stream_limits: StreamLimits,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
        counts: Counting | None = None,
        rates: Rates | None = None,
    ) -> None:
        """Keep streams alive by `clock`; tokens expire by `wall_clock`, seconds since 1970.

        `counts` are the streams of all processes that serve the same clients; `rates` count the
        bytes that they send.
        """
        self._rates = rates if rates is not None and rates.counts_bytes else None
        self._counted_bytes: dict[OpenStream, int] = {}
        self.buffer_bytes: Final = stream_limits.buffer_bytes
        self.connected = 0
        self.opened = 0
        self.events_sent = 0
        self.event_bytes = 0
        self.overflowed = 0
        self._limits = limits
        self._writing = 0
        self._waiting: list[Deferred[None]] = []
        self._stream_limits = stream_limits
        self._clock = clock
        self._wall_clock = wall_clock
        self._subscribers: dict[OpenStream, Subscriber] = {}
        self._counts: Counting = Counts() if counts is None else counts
        self._expiring: dict[OpenStream, float] = {}
        self._paused: dict[OpenStream, float] = {}
        self._postponed: dict[OpenStream, None] = {}
        self._tick_s = tick_seconds(stream_limits)
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = clock

    def __len__(self) -> int:
        return len(self._subscribers)

    def count_of(self, name: DatabaseName) -> int:
        """Return how many streams of a database are open, at all processes together."""
        return self._counts.total(_OF + name.label)

    def check(
        self, name: DatabaseName, address: str | None, identity: Identity = ANONYMOUS
    ) -> None:
        """Raise `TooManyStreams` or `StreamsExhausted` if one more would be too many."""
        limits = self._limits
        if self._counts.total(_ALL) >= limits.streams:
            raise StreamsExhausted("There are too many streams of this service.")
        if self._counts.total(_OF + name.label) >= limits.streams_per_database:
            raise TooManyStreams("There are too many streams of this database.")
        if address is None:
            return
        if self._counts.total(_FROM + address) >= limits.streams_per_address:
            raise TooManyStreams("There are too many streams from this address.")
        of_project, of_uid = limits.streams_per_project, limits.streams_per_uid
        if of_project and self._counts.total(_OF_PROJECT + name.project) >= of_project:
            raise TooManyStreams("There are too many streams of this project.")
        uid = uid_of(identity)
        if not of_uid or uid is None:
            return
        if self._counts.total(f"{_OF_USER}{name.project}/{uid}") >= of_uid:
            raise TooManyStreams("There are too many streams of this user.")

    def add(self, stream: OpenStream, subscriber: Subscriber) -> None:
        """Register a stream that has been admitted, and keep it alive from now on."""
        self._subscribers[stream] = subscriber
        for key in _keys(subscriber):
            self._counts.add(key)
        self.opened += 1
        self.connected += subscriber.address is not None
        expires_at = subscriber.identity.expires_at
        if expires_at is not None:
            self._expiring[stream] = expires_at
        if not self._ticking.running:
            self._ticking.start(self._tick_s, now=False)

    def remove(self, stream: OpenStream) -> None:
        """Remove a stream that has ended; no error if it is not there."""
        subscriber = self._subscribers.pop(stream, None)
        if subscriber is None:
            return
        if self._rates is not None:
            self._count_bytes(self._rates, stream, subscriber)
            self._counted_bytes.pop(stream, None)
        self._paused.pop(stream, None)
        self._postponed.pop(stream, None)
        self._expiring.pop(stream, None)
        self.connected -= subscriber.address is not None
        for key in _keys(subscriber):
            self._counts.remove(key)
        if not self._subscribers:
            self._ticking.stop()

    def pause(self, stream: OpenStream) -> None:
        """Note that the reader of a stream has stopped reading."""
        self._paused[stream] = self._clock.seconds()

    def resume(self, stream: OpenStream) -> None:
        """Note that the reader reads again."""
        self._paused.pop(stream, None)

    def postpone(self, stream: OpenStream) -> None:
        """Let a stream retry at the next tick."""
        self._postponed[stream] = None

    def end(self) -> None:
        """End every stream cleanly."""
        for stream in list(self._subscribers):
            stream.end()

    def track(self, writing: Deferred[None]) -> None:
        """Let `written` wait for what a stream writes that has ended; `writing` never errbacks."""
        self._writing += 1

        def done(_: None) -> None:
            self._writing -= 1
            while not self._writing and self._waiting:
                self._waiting.pop().callback(None)

        writing.addCallback(done)

    def written(self) -> Deferred[None]:
        """Return what fires when all is written that streams write at their end, or is left."""
        waiter: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiter)
        if not self._writing:
            self._waiting.pop().callback(None)
        return waiter

    def recheck(self, trusts: Callable[[str, Identity], bool]) -> None:
        """End the streams of identities that a project no longer trusts."""
        for stream, subscriber in list(self._subscribers.items()):
            if not trusts(subscriber.name.project, subscriber.identity):
                stream.end(AUTH_REVOKED)

    def has_expired(self, identity: Identity) -> bool:
        """Return whether the token of an identity has expired."""
        return identity.expires_at is not None and identity.expires_at <= self._wall_clock()

    def _count_bytes(self, rates: Rates, stream: OpenStream, subscriber: Subscriber) -> None:
        """Count what a stream has sent since the last time."""
        if subscriber.request is None:
            return
        sent: int = subscriber.request.sentLength
        count = sent - self._counted_bytes.get(stream, 0)
        if count:
            self._counted_bytes[stream] = sent
            uid = uid_of(subscriber.identity)
            rates.note_bytes(subscriber.address, subscriber.name.project, uid, count)

    def _tick(self) -> None:
        if self._rates is not None:
            for stream, subscriber in self._subscribers.items():
                self._count_bytes(self._rates, stream, subscriber)
        expired_at = self._wall_clock()
        expired = [each for each, at in self._expiring.items() if at <= expired_at]
        self._in_turns(expired, ENDED_AT_ONCE, _end_expired)
        now = self._clock.seconds()
        late = now - self._stream_limits.stalled_s
        stalled = [each for each, since in self._paused.items() if since <= late]
        self._in_turns(stalled, ENDED_AT_ONCE, self._abort_stalled)
        postponed, self._postponed = list(self._postponed), {}
        self._in_turns(postponed, RETRIED_AT_ONCE, _retry)
        # A stream that sent something just after a tick is due just after a later one. The quarter
        # of a tick makes it due at that one, not at the next.
        silent = now - self._stream_limits.keep_alive_s + self._tick_s / 4
        quiet = [each for each in self._subscribers if each.last_sent <= silent]
        self._in_turns(quiet, SENT_AT_ONCE, _keep_alive)

    def _in_turns(
        self, streams: list[OpenStream], at_once: int, act: Callable[[OpenStream], None]
    ) -> None:
        """Do something with streams that are still open, so many in each turn of the reactor."""

        def act_if_open(stream: OpenStream) -> None:
            if stream in self._subscribers:
                act(stream)

        in_slices(self._clock, streams, at_once, act_if_open)

    def _abort_stalled(self, stream: OpenStream) -> None:
        if stream in self._paused:  # it may read again since the tick
            stream.abort()


def _end_expired(stream: OpenStream) -> None:
    stream.end(AUTH_REVOKED)


def _retry(stream: OpenStream) -> None:
    stream.retry()


def _keep_alive(stream: OpenStream) -> None:
    stream.keep_alive()


def _keys(subscriber: Subscriber) -> tuple[str, ...]:
    counted: tuple[str, ...] = (_ALL, _OF + subscriber.name.label)
    if subscriber.address is None:
        return counted
    name, uid = subscriber.name, uid_of(subscriber.identity)
    counted = (*counted, _FROM + subscriber.address, _OF_PROJECT + name.project)
    return counted if uid is None else (*counted, f"{_OF_USER}{name.project}/{uid}")
