"""A watch of a program: the events that wait for it, and the iterator that returns them.

Theory of operation. A `WatchQueue` is a watcher of the database and begins like a stream over HTTP:
with the present value, or with the events that were missed. Later events wait, within a limit
(`WaitingEvents`). Beyond the limit they are dropped, and the next event is one `put` of the value
at that time. The value is read only when the program awaits the next event, so a program that does
not read needs at most the memory of the limit.

The database refers to the queue, and the program to the `Watch`, which iterates over the queue.
When the program drops the `Watch`, the queue is closed.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.database import Database
from treedbd.database.requests import SHUTTING_DOWN, PermissionDenied, Unavailable
from treedbd.database.resume import MissedNotification, Resumption
from treedbd.database.watchers import Notification, ReadGrant, Subscription
from treedbd.embedding.requests import LocalAccess, LocalRequest, TooLargeToRead, text_of, wait_for
from treedbd.http1.content import ContentReader, WaitingBytes, WaitingBytesRefused
from treedbd.names import DatabaseName
from treedbd.store.nodes import Nodes
from treedbd.tree.event import Event, Position
from treedbd.tree.types import InvalidQuery
from treedbd.tree.value import parse
from treedbd.web.auth.identity import Identity
from treedbd.web.reading import FirstValue, Rendering, TooMuchWork, first_source
from treedbd.web.request import DataRequest, check_stream
from treedbd.web.streams import admit, hold_missed, parse_id, print_id

EVENT_BYTES: Final = 200
"""The memory that an event that waits needs beside its text."""
_FIRST: Final = b'{"path":"/","data":%b}'


@attrs.frozen
class WatchEvent:
    """At `path`, relative to the watched path, `data` was set (`put`) or merged (`patch`).

    Attributes:
        kind: `put`: `data` is the value now. `patch`: `data` has the members that were written.
        path: `/` for the watched path itself, else `/a/b`.
        data: plain Python, as a GET shows it; None if there is nothing.
        id: for `resume_after`.

    """

    kind: Literal["put", "patch"]
    path: str
    data: Any
    id: str


class _Printed(NamedTuple):
    """An event as text."""

    kind: Literal["put", "patch"]
    text: bytes
    id: str

    @property
    def size(self) -> int:
        """The bytes that it is counted as while it waits."""
        return len(self.text) + EVENT_BYTES


class WaitingEvents:
    """The events that wait for one program, in order; each is text until it is returned.

    All watches of a path share the text of an event, and each program gets values of its own.
    """

    def __init__(self, memory: WaitingBytes, limit: int) -> None:
        """Bound the events by `limit` bytes or one batch, and those of all programs by `memory`."""
        self._memory = memory
        self._limit = limit
        self._missed: deque[tuple[Position, Event]] = deque()
        self._held: ContentReader | None = None
        self._events: deque[_Printed] = deque()
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._missed or self._events)

    def add(self, notification: Notification) -> bool:
        """Append the events of a batch; return False if they have no room."""
        printed: tuple[_Printed, ...] | None = notification.shared.get(_Printed)
        if printed is None:
            printed = tuple([_print(*numbered) for numbered in notification.events])
            notification.shared[_Printed] = printed
        size = sum(each.size for each in printed)
        if self._events and self._size + size > self._limit:
            return False
        if not self._memory.has_room("", size):
            return False
        self._events.extend(printed)
        self._count(size)
        return True

    def add_missed(self, missed: MissedNotification) -> None:
        """Put the missed events first; each is printed when it is returned.

        Raises `WaitingBytesRefused` if they have no room.
        """
        self._held = hold_missed(missed, self._memory, "")
        self._missed.extend(missed.events)

    def add_first(self, text: bytes, position: Position) -> None:
        """Put an event first: a `put` of a value, as text."""
        first = _Printed("put", _FIRST % text, print_id(position))
        self._events.appendleft(first)
        self._count(first.size)

    def take(self) -> WatchEvent:
        """Return the next event."""
        if self._missed:
            printed = _print(*self._missed.popleft())
            self._release_missed()
            return _parse(printed)
        printed = self._events.popleft()
        self._count(-printed.size)
        return _parse(printed)

    def drop(self) -> None:
        """Drop all events."""
        self._missed.clear()
        self._release_missed()
        self._events.clear()
        self._count(-self._size)

    def _release_missed(self) -> None:
        """Release the memory of the missed events when all of them have been returned."""
        if not self._missed and self._held is not None:
            self._held.close()
            self._held = None

    def _count(self, size: int) -> None:
        self._size += size
        self._memory.add(size)


def _print(position: Position, event: Event) -> _Printed:
    kind: Literal["put", "patch"] = "patch" if event.kind == "patch" else "put"
    return _Printed(kind, event.print(), print_id(position))


def _parse(printed: _Printed) -> WatchEvent:
    shown: Any = parse(printed.text)
    return WatchEvent(printed.kind, shown["path"], shown["data"], printed.id)


class WatchQueue:
    """The events of one watch; belongs to the reactor's thread.

    Attributes:
        name, identity: the database that it watches, and the caller.
        address: None, because it has no client.
        last_sent: infinite, because no connection has to be kept alive.
        sent_bytes: 0, because it has no connection.

    """

    _log = Logger()
    address = None
    last_sent = math.inf
    sent_bytes = 0

    def __init__(
        self,
        access: LocalAccess,
        name: DatabaseName,
        wanted: DataRequest,
        identity: Identity,
        resume_after: str | None,
    ) -> None:
        """Prepare to watch what `wanted` reads, as `identity`; register nothing yet."""
        check_stream(wanted.parameters, wanted.place)
        self._access = access
        self.name = name
        self._wanted = wanted
        self._query = wanted.read_options.query
        self.identity = identity
        self._resume_after = parse_id(resume_after)
        self._registry = access.resource.streams
        self._database: Database | None = None
        self._grant: ReadGrant
        self._subscription: Subscription
        self._first: FirstValue
        self._resumption: Resumption | None = None
        self._events = WaitingEvents(
            access.resource.shared_reads.memory, self._registry.buffer_bytes
        )
        self._is_held = False
        self._has_overflowed = False
        self._is_over = False
        self._reason: Exception | None = None
        self._waiter: Deferred[None] | None = None
        self._is_awaited = False

    async def open(self) -> None:
        """Begin to watch, unless it has begun; raise if the rules do not allow it."""
        if self._database is None and not self._is_over:
            await self._access.translated(self._open())

    async def wait(self) -> None:
        """Wait for an event or the end; begin to watch, unless it has begun."""
        if self._is_awaited:
            raise RuntimeError("The next event is being awaited already.")
        self._is_awaited = True
        try:
            await self.open()
            await self._access.translated(self._wait())
        finally:
            self._is_awaited = False

    def take(self) -> WatchEvent | None:
        """Return the next event, None if it has to be awaited.

        Raises the reason for which the watch has ended, or `StopAsyncIteration`.
        """
        if self._is_held:
            return None
        if self._events:
            return self._events.take()
        if not self._is_over:
            return None
        reason, self._reason = self._reason, None
        raise StopAsyncIteration if reason is None else reason

    def close(self) -> None:
        """End the watch, and drop the events that wait; a second call does nothing."""
        self._finish()
        self._events.drop()
        self._wake()

    def close_soon(self) -> None:
        """Close in a later turn of the reactor; may be called at any moment.

        Garbage is collected in any thread and at any point of its work, such as an iteration over
        the open streams.
        """
        clock: Any = self._access.clock
        clock.callFromThread(self.close)

    # The methods of a watcher.

    def notify(self, notification: Notification) -> None:
        """Queue the events of a batch."""
        if self._is_over or self._has_overflowed or not self._may_continue():
            return
        if notification.is_missed:
            self.overflow()
            return
        if not self._events.add(notification):
            self._registry.overflowed += 1
            self.overflow()
            return
        self._registry.events_sent += len(notification.events)
        self._wake()

    def revoke(self) -> None:
        """End the watch, since its path can no longer be read."""
        self._end(PermissionDenied("this read"))

    def overflow(self) -> None:
        """Drop the events that wait; the next one is the present value."""
        self._events.drop()
        self._has_overflowed = True
        self._wake()

    def fail(self, failure: Failure | None = None) -> None:
        """End the watch because of a failure, None for the exception that is being handled."""
        self._log.failure("A watch failed.", failure)
        self._end(Unavailable("The watch has failed, the log says why: watch again."))

    # The methods of a stream of the registry.

    def keep_alive(self) -> None:
        """Do nothing, since a watch has no connection."""

    def retry(self) -> None:
        """Read the present value again: there was no room for it."""
        self._is_held = False
        self.overflow()

    def lose_identity(self) -> None:
        """End, as when the service stops: the identity is no longer trusted."""
        self.end()

    def end(self) -> None:
        """End, because the service stops."""
        self._end(Unavailable(SHUTTING_DOWN))

    def abort(self) -> None:
        """End, because the service stops."""
        self.end()

    async def _open(self) -> None:
        access, wanted = self._access, self._wanted
        database = access.resource.find(self.name)
        async with access.catalog.opened(database, wanted.timeout_s):
            if self._is_over:
                return
            self._begin_watching(database)

    def _begin_watching(self, database: Database) -> None:
        wanted, path = self._wanted, self._wanted.place.path
        data = self._access.resource.data
        request = admit(data, wanted, database, self.identity, None)
        if data.context.audit is not None and data.context.audit.reads:
            local: Any = LocalRequest(wanted.method, b"", None)
            data.context.audit.read(local, wanted, self.name, self.identity)
        self._grant = database.make_grant(request, self.revoke, self.overflow)
        self._subscription = database.subscribe(path, self._query, self)
        source = first_source(database, path, self._query, self._subscription)
        reads = self._access.resource.shared_reads
        self._first = FirstValue(source, self._grant.check_again, reads, "")
        self._database = database
        self._registry.add(self)
        try:
            after = self._resume_after
            if after is not None and self._query is None and database.may_resume(path):
                self._resume(database, after)
            else:
                self._show_present(database)
        except BaseException:
            self.close()
            raise

    def _resume(self, database: Database, after: Position) -> None:
        judged = database.read(self._judge)
        self._is_held = True
        may_continue = partial(self._grant.held_through, judged)
        path = self._wanted.place.path
        self._resumption = Resumption(
            path=path, after=after, watcher=self, may_continue=may_continue, begin=self._resumed
        )
        database.resume(self._resumption)

    def _judge(self, nodes: Nodes) -> int:
        """Evaluate the read rules; return the number of the state."""
        self._grant.check(nodes)
        return nodes.rows.sequence()

    def _resumed(self, missed: MissedNotification | None) -> None:
        self._is_held = False
        if missed is None:
            self.overflow()
            return
        try:
            self._events.add_missed(missed)
        except WaitingBytesRefused:
            self.overflow()
        else:
            self._wake()

    async def _wait(self) -> None:
        while self._is_held or not (self._events or self._is_over):
            if self._has_overflowed and not self._is_held:
                self._refill()
                continue
            self._waiter = waiter = Deferred[None]()
            await waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    def _refill(self) -> None:
        """Watch again from the present state, and show that."""
        if self._database is None:
            return
        try:
            self._show_present(self._database)
        except WaitingBytesRefused:
            self._is_held = True
            self._registry.postpone(self)
        except (PermissionDenied, InvalidQuery, TooLargeToRead) as error:
            self._end(error)

    def _show_present(self, database: Database) -> None:
        self._has_overflowed = False
        rendered, sequence = self._subscription.watch(self._render)
        if not isinstance(rendered, TooMuchWork):
            self._show(database, rendered, sequence)
            return
        self._is_held = True
        hold = partial(database.hold_first, self._query)
        waiting = self._first.render_large(hold, sequence, self._subscription)
        waiting.addCallback(partial(self._rendered, database)).addErrback(self._not_rendered)

    def _render(self, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Evaluate the read rules; return the present value."""
        self._grant.check(nodes)
        return self._first.render(nodes)

    def _rendered(self, database: Database, rendering: Rendering) -> None:
        if not self._is_over and self._may_continue():
            self._show(database, rendering, rendering.sequence)
            self._is_held = False
            self._wake()

    def _show(self, database: Database, rendered: bytes | Rendering, sequence: int) -> None:
        """Make the value of a state the first event; later events follow it."""
        self._events.add_first(text_of(rendered), database.watching.position(sequence))

    def _not_rendered(self, failure: Failure) -> None:
        if self._is_over:
            return
        error = failure.value
        if isinstance(error, WaitingBytesRefused):
            self._registry.postpone(self)
        elif isinstance(error, PermissionDenied | InvalidQuery | TooLargeToRead):
            self._end(error)
        else:
            self.fail(failure)

    def _may_continue(self) -> bool:
        return not self._grant.must_be_checked or self._grant.recheck()

    def _end(self, reason: Exception) -> None:
        """End the watch, after the events that wait if the program may still see them."""
        if self._is_over:
            return
        self._reason = reason
        self._finish()
        if not isinstance(reason, Unavailable):
            self._events.drop()
        self._wake()

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._is_held = False
        self._registry.remove(self)
        if self._database is not None:
            self._subscription.unwatch()
            self._grant.close()
            self._first.cancel()
        if self._resumption is not None:
            self._resumption.cancel()


class Watch(AsyncIterator[WatchEvent]):
    """The events at a path, each a `WatchEvent`: `async for event in database.watch("users")`.

    The first is a `put` of the present value; the others are all later writes, in order. If the
    program is slow and more waits than the setting `buffer_bytes` of `[streams]`, one `put` of the
    present value replaces the events that wait.

    It ends by an exception: `PermissionDenied` if the path can no longer be read,
    `Unavailable` if the service stops or the watch has failed. It ends without an exception after
    `aclose`, which `async with` calls at its end; a watch that the program drops is closed too. If
    waiting for an event is cancelled, the watch goes on.
    """

    def __init__(self, queue: WatchQueue) -> None:
        """Iterate over a queue; called by `LocalDatabase.watch`."""
        self._queue = queue
        weakref.finalize(self, queue.close_soon).atexit = False

    async def __aenter__(self) -> Watch:
        """Begin to watch; raise if the rules do not allow it."""
        await wait_for(self._queue.open())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the watch."""
        self._queue.close()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchEvent:
        """Wait for the next event."""
        # An event is removed in the turn in which it is returned, so a cancelled wait loses none.
        while (event := self._queue.take()) is None:
            await wait_for(self._queue.wait())
        return event

    async def aclose(self) -> None:
        """Stop watching; an iteration that waits for an event ends."""
        self._queue.close()
