"""What admins follow: items recorded while an admin looks, and the streams that send them.

A `Recorder` records items of what is watched, such as the requests of a project: for some seconds
after an admin has looked, and for as long as a stream follows them. It switches on what reports the
items when the first thing is watched, and off after the last, so that nothing is paid at other
times.

A `Feed` is a stream among others: the registry of streams counts it, sends its keep-alives, and
ends it when its token expires. It never makes anything wait: what its client does not read in time
is dropped, and the client is sent how many items that were.

Where several processes serve, `OthersFollowed` asks the other ones for what is followed here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from zope.interface import implementer

from treedbd.counting import Counting
from treedbd.database.slices import Slices
from treedbd.http1.parser import CutOff
from treedbd.http1.request import IHttp1Request
from treedbd.names import DatabaseName
from treedbd.web.auth.identity import Identity
from treedbd.web.listeners import TooManyStreams
from treedbd.web.response import counted_address_of
from treedbd.web.streams import AUTH_REVOKED, KEEP_ALIVE, STREAM_HEADERS

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

MAX_FEEDS: Final = 8
"""Streams of the requests of a project, or of its operations, in all processes together."""


class Watched(Generic[Item]):
    """The last items of one thing, and who follows it.

    Attributes:
        last: those that were recorded last.
        count: how many were recorded.
        until: when the recording ends unless it is asked for again, in seconds of the clock.
        followers: the feeds that are given each item.

    """

    def __init__(self, kept: int) -> None:
        """Keep the last `kept` items."""
        self.last: Final[deque[Item]] = deque(maxlen=kept)
        self.count = 0
        self.until = 0.0
        self.followers: Final[list[Feed[Item]]] = []

    def add(self, item: Item) -> None:
        """Keep an item, and show it to those who follow."""
        self.count += 1
        self.last.append(item)
        for each in self.followers:
            each.add(item)

    def after(self, number: int) -> list[Item]:
        """Return the kept items that were recorded after the first `number` ones."""
        return list(islice(self.last, max(0, len(self.last) - (self.count - number)), None))


class Recorder(Generic[Key, Item]):
    """Records items of what admins look at.

    Attributes:
        is_recording: whether anything is recorded.

    """

    kept: ClassVar[int]
    """Items of one thing that are kept."""
    watched_s: ClassVar[float]
    """For so many seconds a thing is recorded after an admin has asked for it."""
    most_watched: ClassVar[int]
    """Things that are recorded."""
    too_many: ClassVar[str]
    """The message if all of them are followed, and another one is asked for."""

    def __init__(self, clock: IReactorTime, switch: Callable[[], None]) -> None:
        """`switch` is called when `is_recording` has changed."""
        self.is_recording = False
        self._clock = clock
        self._switch = switch
        self._watched: dict[Key, Watched[Item]] = {}
        self._due: IDelayedCall | None = None

    def watch(self, key: Key) -> Watched[Item]:
        """Record a thing, for `watched_s` from now on; return what was recorded last.

        If too many are recorded, the one that was asked for longest ago is dropped, unless it is
        followed; raises `TooManyStreams` if all are.
        """
        watched = self._watched.pop(key, None)
        if watched is None:
            watched = Watched(self.kept)
            self._make_room()
        self._watched[key] = watched
        watched.until = self._clock.seconds() + self.watched_s
        self._record_any(True)
        if self._due is None:
            self._due = self._clock.callLater(self.watched_s, self._end_idle)
        return watched

    def close(self) -> None:
        """Record nothing from now on."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._watched.clear()
        self._record_any(False)

    def _record_any(self, is_on: bool) -> None:
        if self.is_recording is not is_on:
            self.is_recording = is_on
            self._switch()

    def _make_room(self) -> None:
        """Drop what was asked for longest ago if there is too much."""
        if len(self._watched) >= self.most_watched:
            idle = [key for key, each in self._watched.items() if not each.followers]
            if not idle:
                raise TooManyStreams(self.too_many)
            del self._watched[idle[0]]

    def _end_idle(self) -> None:
        """Record no longer what is not asked for."""
        self._due = None
        now = self._clock.seconds()
        for key, watched in list(self._watched.items()):
            if watched.followers:
                watched.until = now + self.watched_s
            elif watched.until <= now:
                del self._watched[key]
        if self._watched:
            until = min(each.until for each in self._watched.values())
            self._due = self._clock.callLater(until - now, self._end_idle)
        else:
            self._record_any(False)

    def follows(self, key: Key) -> bool:
        """Return whether a thing is followed."""
        watched = self._watched.get(key)
        return watched is not None and bool(watched.followers)

    def unfollow(self, key: Key, feed: Feed[Item]) -> None:
        """Give items to a feed no longer; the thing is recorded for a while."""
        watched = self._watched.get(key)
        if watched is not None and feed in watched.followers:
            watched.followers.remove(feed)

    def show(self, key: Key, item: Item) -> None:
        """Show an item of another process to those who follow."""
        watched = self._watched.get(key)
        for each in watched.followers if watched else ():
            each.add(item)

    def show_dropped(self, key: Key, count: int) -> None:
        """Say to those who follow that another process has dropped items."""
        watched = self._watched.get(key)
        for each in watched.followers if watched and count else ():
            each.add_dropped(count)


class OthersFollowed(ABC, Generic[Key]):
    """Asks the other processes for items of what is followed in this one.

    Each is asked for the items after a number of its own. The items come in their order within a
    process; those of several processes come as they answer.
    """

    poll_s: ClassVar[float]
    """How often they are asked; a process that has more is asked at once."""

    def __init__(self, clock: IReactorTime, slices: Slices) -> None:
        """Show items in `slices`."""
        self._clock, self._slices = clock, slices
        self._after: dict[Key, dict[str, int]] = {}

    async def follow(self, key: Key) -> None:
        """Begin to ask for a thing, unless that is done; return when the others record it."""
        if key not in self._after:
            self._after[key] = {}
            await self._poll(key)

    async def _poll(self, key: Key) -> None:
        is_more = False
        with suppress(Exception):  # a process that cannot answer now may later
            is_more = await self._poll_once(key)
        self._clock.callLater(0 if is_more else self.poll_s, self._poll_again, key)

    def _poll_again(self, key: Key) -> None:
        if self.is_followed(key):
            Deferred.fromCoroutine(self._poll(key))
        else:
            del self._after[key]

    async def _poll_once(self, key: Key) -> bool:
        """Ask once, and show what was answered; return whether a process has more."""
        after, is_more = self._after[key], False
        for number, answer in (await self.ask(key, after)).items():
            await self._slices.run(self.show_each(key, answer))
            after[str(number)] = answer["count"]
            is_more = is_more or answer.get("more", False)
        return is_more

    @abstractmethod
    def is_followed(self, key: Key) -> bool:
        """Return whether a thing is still followed."""

    @abstractmethod
    def ask(self, key: Key, after: dict[str, int]) -> Awaitable[Mapping[int, dict[str, Any]]]:
        """Return the answers of the other processes, by their numbers."""

    @abstractmethod
    def show_each(self, key: Key, answer: dict[str, Any]) -> Generator[None, None, None]:
        """Show the items of an answer to those who follow, in steps."""


@implementer(IPushProducer)
class Feed(ABC, Generic[Item]):
    """A stream of items as they come; also the producer of its transport.

    Attributes:
        name, identity, address: as those of each stream.
        last_sent: when something was sent last, in seconds of the clock.
        sent_bytes: how many bytes were sent so far.

    """

    kind: ClassVar[str]
    """What the feeds of a project are counted under, and called in a message."""
    most_waiting: ClassVar[int]
    most_waiting_bytes: ClassVar[int]
    """Items, and bytes of them, that wait for the client; of more, the oldest are dropped."""
    send_s: ClassVar[float]
    """It sends what has come at most this often."""
    sent_at_once: ClassVar[int]
    sent_bytes_at_once: ClassVar[int]
    """Items, and bytes, that it sends at once."""

    def __init__(
        self,
        *,
        data: DataHandlers,
        counts: Counting,
        request: IHttp1Request,
        name: DatabaseName,
        identity: Identity,
    ) -> None:
        """Send to the admin who has requested something of the database `name`.

        `counts` counts the feeds of all processes.
        """
        self.name: Final = name
        self.identity: Final = identity
        self.address: Final = counted_address_of(request)
        self._request, self._counts = request, counts
        self._key = f"{self.kind} of {name.project}"
        self._streams, self._writer = data.streams, data.context.writer
        self._clock = data.context.clock
        self.last_sent = self._clock.seconds()
        self.sent_bytes = 0
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._due: IDelayedCall | None = None
        self._is_paused = False
        self._is_open = False

    @abstractmethod
    def begin(self) -> None:
        """Follow; raise `TooManyStreams`."""

    @abstractmethod
    def stop(self) -> None:
        """Follow no longer."""

    @abstractmethod
    def size_of(self, item: Item) -> int:
        """Return the bytes that an item takes while it waits, the same each time."""

    @abstractmethod
    def frame_of(self, item: Item) -> bytes:
        """Return the frame of an item."""

    @abstractmethod
    def frame_of_dropped(self, count: int) -> bytes:
        """Return the frame that says how many items were dropped."""

    def open(self) -> None:
        """Begin; raise `TooManyStreams` or `StreamsExhausted`."""
        request = self._request
        self._streams.check(self.name, self.address, self.identity)
        if self._counts.total(self._key) >= MAX_FEEDS:
            raise TooManyStreams(f"There are too many {self.kind} of this project.")
        headers = (*STREAM_HEADERS, *self._writer.common_headers(request, no_store=False))
        if request.method == b"HEAD":
            request.start(200, headers, closes_connection=True)
            request.finish()
            return
        self.begin()
        self._is_open = True
        self._counts.add(self._key)
        self._streams.add(self)
        request.notifyFinish().addBoth(self._close)
        if not self._is_open:
            return  # the client has disconnected before
        request.start(200, headers, closes_connection=True)
        request.has_own_timeout = True
        request.registerProducer(self, True)
        self._write(KEEP_ALIVE)

    def add(self, item: Item) -> None:
        """Send an item soon."""
        waiting = self._waiting
        self._waiting_bytes += self.size_of(item)
        waiting.append(item)
        while len(waiting) > self.most_waiting or self._waiting_bytes > self.most_waiting_bytes:
            self._waiting_bytes -= self.size_of(waiting.popleft())
            self._dropped += 1
        self._send_soon()

    def add_dropped(self, count: int) -> None:
        """Say soon that items were dropped before they came here."""
        self._dropped += count
        self._send_soon()

    def _send_soon(self) -> None:
        if self._due is None and not self._is_paused and self._is_open:
            self._due = self._clock.callLater(self.send_s, self._send_some)

    def _send_some(self) -> None:
        self._due = None
        frames = []
        if self._dropped:
            frames.append(self.frame_of_dropped(self._dropped))
            self._dropped = 0
        size = 0
        while self._waiting and len(frames) < self.sent_at_once and size < self.sent_bytes_at_once:
            item = self._waiting.popleft()
            self._waiting_bytes -= self.size_of(item)
            frame = self.frame_of(item)
            size += len(frame)
            frames.append(frame)
        if self._waiting:
            self._due = self._clock.callLater(self.send_s, self._send_some)
        self._write(b"".join(frames))

    def _write(self, data: bytes) -> None:
        if data and self._is_open:
            self.last_sent = self._clock.seconds()
            self.sent_bytes += len(data)
            self._request.write(data)

    # From the registry of streams.

    def keep_alive(self) -> None:
        """Send a keep-alive, unless the client does not read."""
        if not self._is_paused:
            self._write(KEEP_ALIVE)

    def retry(self) -> None:
        """Do nothing: it is never postponed."""

    def lose_identity(self) -> None:
        """End with `auth_revoked`: the token has expired, or is no longer trusted."""
        self.end(AUTH_REVOKED)

    def revoke(self) -> None:
        """Go on: it shows the project, of which one database is deleted."""

    def end(self, last_frame: bytes = b"") -> None:
        """End cleanly; `last_frame` says why."""
        if self._is_open:
            self._write(last_frame)
            self._close(None)
            self._request.unregisterProducer()
            self._request.finish()

    def abort(self, reason: CutOff = "slow") -> None:
        """Drop the connection."""
        if self._is_open:
            self._close(None)
            self._request.abort(reason)

    # The transport.

    def pauseProducing(self) -> None:
        """Stop writing until the client has read what was sent."""
        self._is_paused = True
        self._streams.pause(self)
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def resumeProducing(self) -> None:
        """Write what waits."""
        self._is_paused = False
        self._streams.resume(self)
        if self._waiting or self._dropped:
            self._send_soon()

    def stopProducing(self) -> None:
        """Stop writing: the connection is gone."""
        self._close(None)

    def _close(self, _: object) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._waiting.clear()
        self._dropped = 0
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._counts.remove(self._key)
        self._streams.remove(self)
        self.stop()
