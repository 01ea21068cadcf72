"""One stream: a long-lived request that receives everything written at a path.

Theory of operation. A stream begins with one `put` of the present value and registers as a watcher
in the same call, so nothing can be missed in between. From then on each notification becomes
frames, printed once for all streams of a path, which go to the request through the `SendQueue`.
When that has overflowed, because the reader did not read, the stream starts again: with one `put`
of the value as it is then. If there is no room for that, because too much waits for readers, it is
postponed to the next tick of the registry. A stream that resumes begins with what it missed.

What a stream shows of its path is in `database.watchers`, what it begins with in `first_value`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.database.requests import PermissionDenied, Unavailable
from treedbd.database.resume import MissedNotification, Resumption
from treedbd.database.watchers import Notification
from treedbd.held_bytes import HeldBytesRefused
from treedbd.http1.content import Content, WaitingBytesRefused
from treedbd.http1.headers import Header
from treedbd.http1.interface import IHttp1Request
from treedbd.http1.parser import CutOff
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.nodes import Nodes
from treedbd.tree.event import Position
from treedbd.tree.types import InvalidQuery
from treedbd.web.queues import SendQueue
from treedbd.web.reading import FirstValue, Rendering, SharedReads, TooMuchWork, first_source
from treedbd.web.sse import frames
from treedbd.web.sse.missed import MissedReader
from treedbd.web.sse.registry import StreamRegistry
from treedbd.web.sse.stream_request import StreamRequest


@implementer(IPushProducer)
class Stream:
    """A watcher that writes to its request; also the producer of the request's transport."""

    __slots__ = (
        "_can_expire",
        "_first",
        "_grant",
        "_is_ending",
        "_is_over",
        "_queue",
        "_reads",
        "_refuse",
        "_refused",
        "_registry",
        "_request",
        "_resumption",
        "_subscription",
        "_wanted",
    )
    _log = Logger()

    def __init__(
        self,
        request: IHttp1Request,
        wanted: StreamRequest,
        registry: StreamRegistry,
        reads: SharedReads,
        clock: IReactorTime,
        refuse: Callable[[IHttp1Request, BaseException], None],
    ) -> None:
        """Write to `request`; `refuse` answers it if a large first value cannot be rendered."""
        self._refuse = refuse
        self._request = request
        self._wanted = wanted
        self._can_expire = wanted.identity.expires_at is not None
        self._registry = registry
        self._reads = reads
        self._queue = SendQueue(
            request, registry.buffer_bytes, self, clock, reads.slices, wanted.address
        )
        database = wanted.database
        self._grant = database.make_grant(wanted.read, self.revoke, self._queue.overflow)
        self._subscription = database.subscribe(
            wanted.path, wanted.query, self, account=wanted.account
        )
        source = first_source(database, wanted.path, wanted.query, self._subscription)
        self._first = FirstValue(source, self._grant.check_again, reads, wanted.address)
        self._resumption: Resumption | None = None
        self._refused: WaitingBytesRefused | None = None
        self._is_ending = False
        self._is_over = False

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""
        return self._queue.last_sent

    def start(self, headers: tuple[Header, ...], last_received: Position | None) -> None:
        """Begin: with what was missed since `last_received` if known, else with a first `put`.

        Raises `PermissionDenied` or `WaitingBytesRefused` before anything is sent.
        """
        wanted, request = self._wanted, self._request
        request.notifyFinish().addBoth(self._close)
        if self._is_over:
            return  # the client has disconnected before
        if request.method == b"HEAD":
            wanted.database.read(self._judge)
            request.start(200, headers, closes_connection=True)
            request.finish()
        elif wanted.with_ids and wanted.query is None and last_received is not None:
            judged = wanted.database.read(self._judge)
            self._start_sending(headers)
            self._queue.is_held = True
            may_continue = partial(self._grant.held_through, judged)
            self._resumption = Resumption(
                wanted.path, last_received, self, may_continue, self._begin
            )
            wanted.database.resume(self._resumption)
        else:
            self._start_with_value(headers)

    def _judge(self, nodes: Nodes) -> int:
        """Evaluate the read rules; return the number of the state."""
        self._grant.check(nodes)
        return nodes.rows.sequence()

    def _start_with_value(self, headers: tuple[Header, ...]) -> None:
        rendered, sequence = self._subscription.watch(self._render)
        if isinstance(rendered, TooMuchWork):
            self._start_sending(headers)
            self._render_large(sequence)
            return
        try:
            self._queue.send_next(self._first.open(rendered, self._position(sequence)))
        except WaitingBytesRefused:
            self._close(None)
            raise
        self._start_sending(headers)
        self._queue.resume()

    def _start_sending(self, headers: tuple[Header, ...]) -> None:
        request, writes = self._request, self._wanted.writes
        if writes is not None:
            writes.has_begun = True
        request.start(200, headers, closes_connection=True)
        request.has_own_timeout = True
        request.registerProducer(self, True)

    def notify(self, notification: Notification) -> None:
        """Send what was written."""
        # Called for each stream and event, so with as few calls as possible.
        try:
            if self._is_over or (
                (self._can_expire or self._grant.must_be_checked) and not self._may_continue()
            ):
                return None
            queue, with_ids = self._queue, self._wanted.with_ids
            if queue.has_overflowed:
                return None
            if notification.is_missed:
                return self._read_again()
            data: Content | None = notification.shared.get(with_ids)
            if data is None:
                data = frames.content_of(notification, self._reads.memory, with_ids)
            registry = self._registry
            registry.events_sent += len(notification.events)
            registry.event_bytes += data.size
            if data.size and not queue.send(data):
                registry.overflowed += 1
        except PermissionDenied:
            self.revoke()
        except Exception:
            self.fail()

    def keep_alive(self) -> None:
        """Send a keep-alive, unless something is waiting to be sent anyway."""
        try:
            if self._may_continue() and self._queue.is_idle:
                self._queue.send_at_once(frames.KEEP_ALIVE)
        except Exception:
            self.fail()

    def end(self, last_frame: bytes = b"") -> None:
        """End cleanly, with a frame that says why, after the frame that is being sent."""
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        self._unwatch()
        self._queue.finish(lambda: self._finish(last_frame))

    def abort(self, reason: CutOff = "slow") -> None:
        """Drop the connection."""
        if not self._is_over:
            self._close(None)
            self._request.abort(reason)

    def fail(self) -> None:
        """End after an error of ours, so that the client connects again."""
        self._log.failure("A stream failed.")
        self.abort("failed")

    def pauseProducing(self) -> None:
        """Write no more until the reader has read what was sent."""
        self._queue.is_paused = True
        self._registry.pause(self)

    def resumeProducing(self) -> None:
        """Write what waits, or the present value if the queue has overflowed."""
        self._queue.is_paused = False
        self._registry.resume(self)
        if not (self._is_over or self._is_ending):
            self._may_continue()
        self._queue.resume()

    def stopProducing(self) -> None:
        """Stop writing: the connection is gone."""
        self._close(None)

    def _finish(self, last_frame: bytes) -> None:
        self._close(None)
        self._request.unregisterProducer()
        if last_frame:
            self._request.write(last_frame)
        self._request.finish()

    def _close(self, _: object) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._unwatch()
        if self._wanted.account is not None:
            self._wanted.account.close()
        self._registry.remove(self)
        self._queue.close()
        # What refers to the stream forgets it: no collection of garbage is needed to free it.
        self._subscription.end()
        self._grant.end()

    def _unwatch(self) -> None:
        self._subscription.unwatch()
        if self._wanted.writes is not None:
            self._wanted.writes.end()
        self._grant.close()
        self._first.cancel()
        if self._resumption is not None:
            self._resumption.cancel()

    def _may_continue(self) -> bool:
        """Return whether the caller may still receive anything; if not, end."""
        if self._can_expire and self._registry.has_expired(self._wanted.identity):
            self.end(frames.AUTH_REVOKED)
            return False
        return not self._grant.must_be_checked or self._grant.recheck()

    def revoke(self) -> None:
        """End with `cancel`: what it shows can no longer be read."""
        self.end(frames.CANCEL)

    def refill(self) -> None:
        """Watch again, and send one `put` of the present value next."""
        try:
            rendered, sequence = self._subscription.watch(self._render)
            if isinstance(rendered, TooMuchWork):
                self._render_large(sequence)
            else:
                self._queue.send_next(self._first.open(rendered, self._position(sequence)))
        except (PermissionDenied, InvalidQuery, HeldBytesRefused, Unavailable):
            self.revoke()
        except WaitingBytesRefused as error:
            self._postpone(error)

    def _read_again(self) -> None:
        """Send the present value for an event that is too large: at once, if it is short."""
        queue = self._queue
        if self._wanted.query is None and not queue.is_idle:
            rendered, sequence = self._subscription.watch(self._render)
            if isinstance(rendered, bytes):
                queue.send(self._first.print(rendered, self._position(sequence)))
                return
        queue.overflow()

    def retry(self) -> None:
        """Send the present value after all, if there is room for it now."""
        if self._refused is not None and not self._refused.has_room(self._wanted.address):
            self._registry.postpone(self)
            return
        self._refused = None
        self._queue.is_held = False
        self._queue.resume()

    def _postpone(self, error: WaitingBytesRefused) -> None:
        self._refused = error.with_traceback(None)
        self._queue.postpone()
        self._registry.postpone(self)

    def _begin(self, missed: MissedNotification | None) -> None:
        """Send what was missed next, or the present value if that is not known, or too much."""
        self._queue.is_held = False
        try:
            reader = None if missed is None else self._read_missed(missed)
            if reader is None:
                self.refill()
            else:
                self._queue.send_next([reader])
            self._queue.resume()
        except Exception:
            self.fail()

    def _read_missed(self, missed: MissedNotification) -> MissedReader | None:
        """Return what reads the events; None if there is no room to keep them meanwhile."""
        try:
            return MissedReader(missed, self._reads.memory, self._wanted.address)
        except WaitingBytesRefused:
            return None

    def _render(self, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Evaluate the read rules; return the present value."""
        self._grant.check(nodes)
        return self._first.render(nodes)

    def _position(self, sequence: int) -> Position | None:
        """Return what identifies an event that shows a state, None if nothing does."""
        wanted = self._wanted
        return wanted.database.watching.position(sequence) if wanted.with_ids else None

    def _render_large(self, judged: int) -> None:
        """Render a large value; the read rules already allowed the state `judged`."""
        self._queue.is_held = True
        waiting = self._first.render_large(self._wanted.database.hold, judged, self._subscription)
        waiting.addCallback(self._rendered).addErrback(self._not_rendered)

    def _rendered(self, rendering: Rendering) -> None:
        if self._is_ending or self._is_over or not self._may_continue():
            return
        readers = self._first.open(rendering, self._position(rendering.sequence))
        self._queue.is_held = False
        self._queue.send_next(readers)
        self._queue.resume()

    def _not_rendered(self, failure: Failure) -> None:
        if self._is_ending or self._is_over:
            return
        error, has_begun = failure.value, self._request.startedWriting
        if isinstance(error, PermissionDenied) or (
            has_begun and isinstance(error, InvalidQuery | HeldBytesRefused)
        ):
            self.revoke()
        elif isinstance(error, WaitingBytesRefused) and has_begun:
            self._postpone(error)
        elif (
            isinstance(
                error,
                DiskFull | StoreFailed | WaitingBytesRefused | HeldBytesRefused | InvalidQuery,
            )
            and not has_begun
        ):
            if self._wanted.writes is not None:
                self._wanted.writes.has_begun = False
            self._close(None)
            self._request.unregisterProducer()
            self._refuse(self._request, error)
        else:
            self._log.failure("A stream failed.", failure)
            self.abort("failed")
