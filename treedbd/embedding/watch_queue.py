"""One watch of a program: what it is notified of, waits until the program awaits it.

Theory of operation. A `WatchQueue` is a watcher of the database, like a stream over HTTP, and
begins as one does: with the present value, or with what was missed since an event. What is written
later waits, within bounds. If more waits, it is dropped, and the next event is one `put` of the
value as it is then. That is read only when the program awaits the next event, so a program that
does not read costs no more than the bound.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.database import Database
from treedbd.database.requests import SHUTTING_DOWN, PermissionDenied, Unavailable
from treedbd.database.resume import MissedNotification, Resumption
from treedbd.database.rights import ReadGrant
from treedbd.database.watchers import Notification, Subscription
from treedbd.embedding.local_requests import LocalAccess
from treedbd.embedding.values import TooLargeToRead, text_of
from treedbd.embedding.waiting_events import WaitingEvents, WatchEvent
from treedbd.http1.content import WaitingBytesRefused
from treedbd.names import DatabaseName
from treedbd.store.nodes import Nodes
from treedbd.tree.event import Position
from treedbd.tree.types import InvalidQuery
from treedbd.web.auth.identity import Identity
from treedbd.web.reading import FirstValue, Rendering, TooMuchWork, first_source
from treedbd.web.request import DataRequest, check_stream
from treedbd.web.streams.frames import parse_id
from treedbd.web.streams.registry import Subscriber


class WatchQueue:
    """The events of one watch; belongs to the reactor's thread.

    Attributes:
        last_sent: never, because nothing has to be kept alive.

    """

    _log = Logger()
    last_sent = math.inf

    def __init__(
        self,
        access: LocalAccess,
        name: DatabaseName,
        wanted: DataRequest,
        identity: Identity,
        resume_after: str | None,
    ) -> None:
        """Watch as `identity` what `wanted` reads; nothing is registered yet."""
        check_stream(wanted.parameters, wanted.place)
        self._access = access
        self._name = name
        self._wanted = wanted
        self._query = wanted.read_options.query
        self._identity = identity
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
        """Begin to watch, unless that has begun; raise if the rules do not allow it."""
        if self._database is None and not self._is_over:
            await self._access.translated(self._open())

    async def wait(self) -> None:
        """Wait until there is an event to take, or the end; begin to watch before."""
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

        Raises why the watch has ended, or `StopAsyncIteration`.
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
        """Watch no longer, and drop what waits; a second call does nothing."""
        self._finish()
        self._events.drop()
        self._wake()

    def close_soon(self) -> None:
        """Do as `close`, in a later turn of the reactor; may be called at any moment.

        Garbage is collected in any thread, and in the middle of anything that its thread does, such
        as going through the open streams.
        """
        clock: Any = self._access.clock
        clock.callFromThread(self.close)

    # As a watcher, and the stream of a query.

    def notify(self, notification: Notification) -> None:
        """Queue what was written."""
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
        """End: what it shows can no longer be read."""
        self._end(PermissionDenied("this read"))

    def overflow(self) -> None:
        """Drop what waits: the present value comes next."""
        self._events.drop()
        self._has_overflowed = True
        self._wake()

    def fail(self) -> None:
        """End after the exception that is being handled."""
        self._log.failure("A watch failed.")
        self._end(Unavailable("The watch has failed, the log says why: watch again."))

    # As a stream of the registry.

    def keep_alive(self) -> None:
        """Do nothing: there is no connection."""

    def retry(self) -> None:
        """Read the present value, for which there was no room."""
        self._is_held = False
        self.overflow()

    def end(self, last_frame: bytes = b"") -> None:
        """End, because the service stops."""
        self._end(Unavailable(SHUTTING_DOWN))

    def abort(self) -> None:
        """End, because the service stops."""
        self.end()

    async def _open(self) -> None:
        access, wanted = self._access, self._wanted
        database = access.resource.find(self._name)
        opening = access.catalog.acquire(database, wanted.timeout_s)
        try:
            if opening is not None:
                await opening
            if self._is_over:
                return
            self._begin_watching(database)
        finally:
            access.catalog.release(database)

    def _begin_watching(self, database: Database) -> None:
        wanted, path = self._wanted, self._wanted.place.path
        request = self._access.resource.data.admit(wanted, database, self._identity, None)
        self._grant = database.make_grant(request, self.revoke, self.overflow)
        self._subscription = database.subscribe(path, self._query, self)
        source = first_source(database, path, self._query, self._subscription)
        reads = self._access.resource.shared_reads
        self._first = FirstValue(source, self._grant.check_again, reads, "")
        self._database = database
        self._registry.add(self, Subscriber(self._name, None, self._identity))
        try:
            if self._resume_after is not None and self._query is None:
                self._resume(database, self._resume_after)
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
        self._resumption = Resumption(path, after, self, may_continue, self._resumed)
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
        waiting = self._first.render_large(database.hold, sequence, self._subscription)
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
        """Let the value of a state be the first event; what was written later follows it."""
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
            self._log.failure("A watch failed.", failure)
            self._end(Unavailable("The watch has failed, the log says why: watch again."))

    def _may_continue(self) -> bool:
        return not self._grant.must_be_checked or self._grant.recheck()

    def _end(self, reason: Exception) -> None:
        """End; what waits is still shown if its reader may see it."""
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
