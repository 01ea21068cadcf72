"""The open streams and WebSockets of a service: their limits, and what is due by the clock.

`StreamRegistry` has the streams, and the watches of the program that embeds the service;
`SocketRegistry` has the WebSockets. Both admit listeners by the same rules (`ListenerRegistry`):
the limits count the listeners of all processes that serve the same clients. A watch of the program
is counted for its database, but has neither an address nor a connection.

Each registry has one timer, which runs while there are listeners: once a second, or more often if
keep-alives are more frequent. Each turn of the reactor handles a few listeners. A stream that has
sent nothing for a while sends a keep-alive; one whose client has not read for too long is closed;
one whose token has expired ends with `auth_revoked`; one that had no room for its value tries
again. A socket that has received nothing for a while sends a ping. It is closed if its client sends
nothing for twice that time, or does not read what waits for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall

from treedbd.counting import Counting, Counts
from treedbd.database.slices import in_slices
from treedbd.names import DatabaseName
from treedbd.web.auth.identity import ANONYMOUS, Identity

if TYPE_CHECKING:
    from treedbd.web.context import WebContext
    from treedbd.web.profile import Profiler
    from treedbd.web.rates import Rates
    from treedbd.web.realtime.listens import Get, Listen
    from treedbd.web.realtime.session import RealtimeSession

TICK_S: Final = 1.0
TICKS_PER_KEEP_ALIVE: Final = 8
SENT_AT_ONCE: Final = 256
"""Keep-alives that are sent in one turn of the reactor."""
ENDED_AT_ONCE: Final = 32
"""Streams that expire or stall and are ended in one turn of the reactor."""
RETRIED_AT_ONCE: Final = 8
"""Postponed streams that begin again in one turn of the reactor."""
TICKED_AT_ONCE: Final = 256
"""Sockets that are checked in one turn of the reactor."""


class TooManyStreams(Exception):
    """A client address, a user, a project or a database has reached its limit of streams."""


class StreamsExhausted(Exception):
    """The service has reached its limit of streams."""


class TooManySockets(Exception):
    """The service, or a client address, has reached its limit of WebSockets."""


class Listener(Protocol):
    """What every registry knows of a stream, a watch or a session.

    The address is None for a watch of the program itself, and empty for a client whose address is
    not known.
    """

    @property
    def name(self) -> DatabaseName:
        """The database that it has addressed."""

    @property
    def address(self) -> str | None:
        """The address of its client."""

    @property
    def identity(self) -> Identity:
        """Its identity at present."""

    def lose_identity(self) -> None:
        """End the identity: its token is no longer trusted, or has expired."""

    def revoke(self) -> None:
        """End it: what it shows can no longer be read."""

    def end(self) -> None:
        """End cleanly: the server stops."""


class OpenStream(Listener, Protocol):
    """What `StreamRegistry` knows of a stream, or of a watch of the program itself."""

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""

    @property
    def sent_bytes(self) -> int:
        """How many bytes were sent so far."""

    def keep_alive(self) -> None:
        """Send a keep-alive."""

    def retry(self) -> None:
        """Retry what was postponed."""

    def abort(self) -> None:
        """Drop the connection."""


_Listener = TypeVar("_Listener", bound=Listener)


class ListenerRegistry(ABC, Generic[_Listener]):
    """The open listeners of one kind: counted, admitted, ended.

    Attributes:
        keep_alive_s: after how many seconds without traffic a keep-alive or a ping is sent.
        stalled_s: for how many seconds a client may leave what waits for it unread.
        opened, events_sent, event_bytes, overflowed: counters since the start; first values are not
            among the events and their bytes.

    """

    _kind: ClassVar[str]
    """What the keys begin with by which listeners are counted."""

    def __init__(self, context: WebContext) -> None:
        """Admit listeners by the settings, clocks and counts of a service."""
        limits = context.settings.streams
        self.keep_alive_s: Final = limits.keep_alive_s
        self.stalled_s: Final = limits.stalled_s
        self.opened = 0
        self.events_sent = 0
        self.event_bytes = 0
        self.overflowed = 0
        self._limits = context.settings.limits
        self._clock = context.clock
        self._wall_clock = context.wall_clock
        self._counts: Counting = Counts() if context.counts is None else context.counts
        self._open: dict[_Listener, tuple[str, ...]] = {}
        self._tick_s = min(TICK_S, limits.keep_alive_s / TICKS_PER_KEEP_ALIVE)
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = context.clock

    def __len__(self) -> int:
        return len(self._open)

    @property
    def listeners(self) -> list[_Listener]:
        """Those that are open in this process, the newest last."""
        return list(self._open)

    def count_of(self, name: DatabaseName) -> int:
        """Return how many listeners of a database are open in all processes together."""
        return self._counts.total(f"{self._kind} of {name.label}")

    def add(self, listener: _Listener) -> None:
        """Register a listener, which `check` has admitted."""
        keys = self._keys(listener.name, listener.address, listener.identity)
        self._open[listener] = keys
        for key in keys:
            self._counts.add(key)
        self.opened += 1
        if not self._ticking.running:
            self._ticking.start(self._tick_s, now=False)

    def remove(self, listener: _Listener) -> bool:
        """Remove a listener that has ended; return whether it was registered."""
        keys = self._open.pop(listener, None)
        if keys is None:
            return False
        for key in keys:
            self._counts.remove(key)
        if not self._open:
            self._ticking.stop()
        return True

    def end(self) -> None:
        """End every listener cleanly."""
        for listener in list(self._open):
            listener.end()

    def revoke(self, name: DatabaseName) -> None:
        """End every listener of a database, which is deleted."""
        key = f"{self._kind} of {name.label}"
        found = [listener for listener, keys in self._open.items() if keys[1] == key]
        self._in_slices(found, ENDED_AT_ONCE, lambda listener: listener.revoke())

    def recheck(self, trusts: Callable[[str, Identity], bool]) -> None:
        """End the identities that their project no longer trusts."""
        for listener in list(self._open):
            if not trusts(listener.name.project, listener.identity):
                listener.lose_identity()

    def _keys(self, name: DatabaseName, address: str | None, _: Identity) -> tuple[str, ...]:
        """Return the keys under which a listener is counted."""
        keys = self._kind, f"{self._kind} of {name.label}"
        return (*keys, f"{self._kind} from {address}") if address else keys

    @abstractmethod
    def _tick(self) -> None:
        """Do what is due."""

    def _in_slices(
        self, listeners: list[_Listener], at_once: int, act: Callable[[_Listener], None]
    ) -> None:
        """Act on those listeners that are still open, at most `at_once` in each reactor turn."""

        def act_if_open(listener: _Listener) -> None:
            if listener in self._open:
                act(listener)

        in_slices(self._clock, listeners, at_once, act_if_open)


class StreamRegistry(ListenerRegistry[OpenStream]):
    """The open streams of a service, and the watches of the program itself.

    Attributes:
        connected: how many of them have a connection.
        buffer_bytes: how many bytes may wait for the client of one stream.

    """

    _kind = "streams"

    def __init__(self, context: WebContext) -> None:
        super().__init__(context)
        self.connected = 0
        self.buffer_bytes: Final = context.settings.streams.buffer_bytes
        rates = context.rates
        self._rates = rates if rates is not None and rates.counts_bytes else None
        self._counted_bytes: dict[OpenStream, int] = {}
        self._writing = 0
        self._waiting: list[Deferred[None]] = []
        self._expiring: dict[OpenStream, float] = {}
        self._paused: dict[OpenStream, float] = {}
        self._postponed: dict[OpenStream, None] = {}

    def check(
        self, name: DatabaseName, address: str | None, identity: Identity = ANONYMOUS
    ) -> None:
        """Raise `TooManyStreams` or `StreamsExhausted` if there is no room for one more."""
        limits, total = self._limits, self._counts.total
        if total("streams") >= limits.streams:
            raise StreamsExhausted("There are too many streams of this service.")
        if total(f"streams of {name.label}") >= limits.streams_per_database:
            raise TooManyStreams("There are too many streams of this database.")
        if address is None:
            return
        if total(f"streams from {address}") >= limits.streams_per_address:
            raise TooManyStreams("There are too many streams from this address.")
        of_project, of_uid = limits.streams_per_project, limits.streams_per_uid
        if of_project and total(_project_key(name)) >= of_project:
            raise TooManyStreams("There are too many streams of this project.")
        uid = identity.uid if of_uid else None
        if uid is not None and total(_user_key(name, uid)) >= of_uid:
            raise TooManyStreams("There are too many streams of this user.")

    def add(self, listener: OpenStream) -> None:
        """Register a stream, and send it keep-alives from now on."""
        super().add(listener)
        self.connected += listener.address is not None
        expires_at = listener.identity.expires_at
        if expires_at is not None:
            self._expiring[listener] = expires_at

    def remove(self, listener: OpenStream) -> bool:
        """Remove a stream that has ended; return whether it was registered."""
        if not super().remove(listener):
            return False
        if self._rates is not None:
            self._count_bytes(self._rates, listener)
            self._counted_bytes.pop(listener, None)
        self._paused.pop(listener, None)
        self._postponed.pop(listener, None)
        self._expiring.pop(listener, None)
        self.connected -= listener.address is not None
        return True

    def pause(self, stream: OpenStream) -> None:
        """Note that the client of a stream does not keep up."""
        self._paused[stream] = self._clock.seconds()

    def resume(self, stream: OpenStream) -> None:
        """Note that the client reads again."""
        self._paused.pop(stream, None)

    def postpone(self, stream: OpenStream) -> None:
        """Retry a stream at the next tick."""
        self._postponed[stream] = None

    def track(self, writing: Deferred[None]) -> None:
        """Make `written` wait for the write of a stream that has ended; it never errbacks."""
        self._writing += 1

        def done(_: None) -> None:
            self._writing -= 1
            while not self._writing and self._waiting:
                self._waiting.pop().callback(None)

        writing.addCallback(done)

    def written(self) -> Deferred[None]:
        """Return what fires when every write of a stream that has ended is done or has failed."""
        waiter: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiter)
        if not self._writing:
            self._waiting.pop().callback(None)
        return waiter

    def has_expired(self, identity: Identity) -> bool:
        """Return whether the token of an identity has expired."""
        return identity.expires_at is not None and identity.expires_at <= self._wall_clock()

    def _keys(self, name: DatabaseName, address: str | None, identity: Identity) -> tuple[str, ...]:
        if address is None:
            return super()._keys(name, None, identity)
        keys = (
            "streams",
            f"streams of {name.label}",
            f"streams from {address}",
            _project_key(name),
        )
        uid = identity.uid
        return keys if uid is None else (*keys, _user_key(name, uid))

    def _count_bytes(self, rates: Rates, stream: OpenStream) -> None:
        """Count what a stream has sent since the last time."""
        sent = stream.sent_bytes
        count = sent - self._counted_bytes.get(stream, 0)
        if count:
            self._counted_bytes[stream] = sent
            name, identity = stream.name, stream.identity
            rates.note_bytes(stream.address, name.project, identity.uid, count)

    def _tick(self) -> None:
        if self._rates is not None:
            for stream in self._open:
                self._count_bytes(self._rates, stream)
        expired_at = self._wall_clock()
        expired = [each for each, at in self._expiring.items() if at <= expired_at]
        self._in_slices(expired, ENDED_AT_ONCE, lambda stream: stream.lose_identity())
        now = self._clock.seconds()
        late = now - self.stalled_s
        stalled = [each for each, since in self._paused.items() if since <= late]
        self._in_slices(stalled, ENDED_AT_ONCE, self._abort_stalled)
        postponed, self._postponed = list(self._postponed), {}
        self._in_slices(postponed, RETRIED_AT_ONCE, lambda stream: stream.retry())
        # A stream that sent something just after a tick is due just after a later one. The quarter
        # of a tick makes it due at that one, not at the next.
        silent = now - self.keep_alive_s + self._tick_s / 4
        quiet = [each for each in self._open if each.last_sent <= silent]
        self._in_slices(quiet, SENT_AT_ONCE, lambda stream: stream.keep_alive())

    def _abort_stalled(self, stream: OpenStream) -> None:
        if stream in self._paused:  # it may read again since the tick
            stream.abort()


def _project_key(name: DatabaseName) -> str:
    return f"streams of the project {name.project}"


def _user_key(name: DatabaseName, uid: str) -> str:
    return f"streams of the user {name.project}/{uid}"


class SocketRegistry(ListenerRegistry["RealtimeSession"]):
    """The open WebSockets of a service.

    Attributes:
        messages_in, messages_out: counters since the start.
        refused: refused messages and closed sockets, by the setting of the limit.
        listens: how many listens the sessions have.
        observe: is called with each session that is added; None while no admin looks.
        denied: are called with the database of each denial by the rules.
        listen_kinds: the classes of listens and gets; while a database is profiled, those that
            record what they send.
        profiler: records the operations of databases that are profiled.

    """

    _kind = "sockets"
    listen_kinds: tuple[type[Listen], type[Get]]
    profiler: Profiler

    def __init__(self, context: WebContext) -> None:
        super().__init__(context)
        self.refused: Final[Counter[str]] = Counter()
        self.messages_in = 0
        self.messages_out = 0
        self.listens = 0
        self.observe: Callable[[RealtimeSession], None] | None = None
        self.denied: Final[list[Callable[[DatabaseName], None]]] = []
        self._sessions: dict[str, RealtimeSession] = {}

    def check(self, address: str) -> None:
        """Raise `TooManySockets` if there is no room for one more."""
        if self._counts.total("sockets") >= self._limits.sockets:
            self.refused["sockets"] += 1
            raise TooManySockets("There are too many WebSockets of this service (sockets).")
        if (
            address
            and self._counts.total(f"sockets from {address}") >= self._limits.sockets_per_address
        ):
            self.refused["sockets_per_address"] += 1
            raise TooManySockets(
                "There are too many WebSockets from this address (sockets_per_address)."
            )

    def find(self, session_id: str) -> RealtimeSession | None:
        """Return the session with an id, None if it is not open in this process."""
        return self._sessions.get(session_id)

    def add(self, listener: RealtimeSession) -> None:
        """Register a session that has been admitted."""
        super().add(listener)
        self._sessions[listener.id] = listener
        if self.observe is not None:
            self.observe(listener)

    def remove(self, listener: RealtimeSession) -> bool:
        """Remove a session that has ended; return whether it was registered."""
        is_found = super().remove(listener)
        if is_found:
            del self._sessions[listener.id]
        return is_found

    def _tick(self) -> None:
        self._in_slices(list(self._open), TICKED_AT_ONCE, self._tick_one)

    def _tick_one(self, socket: RealtimeSession) -> None:
        socket.tick(self._clock.seconds(), self._wall_clock())
