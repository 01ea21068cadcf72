"""One stream: a long-lived request that receives everything written at a path.

Theory of operation. A stream begins with one `put` of the present value and registers as a watcher
in the same call, so nothing can be missed in between. From then on each notification becomes
frames, printed once for all streams of a path, which go to the request through the `SendQueue`.
When that has overflowed, because the reader did not read, the stream starts again: with one `put`
of the value as it is then. A large first value is rendered into a file first.

What a stream shows of its path, and so which events it sends, is in `subscription`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.database.database import Database
from treedbd.database.errors import PermissionDenied
from treedbd.database.read_grants import ReadRequest
from treedbd.database.resume import MissedEvents
from treedbd.database.watchers import Notification
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.tree.errors import InvalidPath, InvalidQuery
from treedbd.tree.event import Position
from treedbd.tree.query import Query
from treedbd.tree.types import Path, Place
from treedbd.web.auth.identity import Identity
from treedbd.web.headers import Header
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.large_reads import render_in_slices
from treedbd.web.parameters import Parameters, parse_choice
from treedbd.web.representation import PLAIN, chunks_of
from treedbd.web.sse import frames
from treedbd.web.sse.registry import StreamRegistry
from treedbd.web.sse.send_queue import CHUNK_BYTES, SendQueue, cut_into_chunks
from treedbd.web.sse.subscription import NodeSubscription, QuerySubscription, Subscription

STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"X-Accel-Buffering", b"no"),
)
_EXCLUDED: Final = ("shallow", "print", "callback", "download")


def check_stream(parameters: Parameters, place: Place) -> None:
    """Raise `InvalidQuery` or `InvalidPath` for what does not work with a stream."""
    for name in _EXCLUDED:
        if name in parameters:
            raise InvalidQuery(f"{name} does not work with a stream.")
    parse_choice(parameters, "resume", "true", "false")
    if place.is_priority:
        raise InvalidPath("A priority cannot be watched; watch its node.")


@attrs.frozen
class StreamRequest:
    """What a stream watches: a path, all of it or a query; `with_ids` if it can be resumed.

    `read` is what the rules are evaluated for, `identity` who reads.
    """

    database: Database
    path: Path
    query: Query | None
    read: ReadRequest
    identity: Identity
    with_ids: bool


@implementer(IPushProducer)
class Stream:
    """A watcher that writes to its request; also the producer of the request's transport."""

    __slots__ = (
        "_clock",
        "_file",
        "_grant",
        "_is_ending",
        "_is_over",
        "_queue",
        "_refuse",
        "_registry",
        "_rendering",
        "_request",
        "_subscription",
        "_wanted",
    )
    _log = Logger()

    def __init__(
        self,
        request: IHttp1Request,
        wanted: StreamRequest,
        registry: StreamRegistry,
        clock: IReactorTime,
        refuse: Callable[[IHttp1Request, BaseException], None],
    ) -> None:
        """Write to `request`; `refuse` answers it if the first value cannot be rendered."""
        self._refuse = refuse
        self._request = request
        self._wanted = wanted
        self._registry = registry
        self._clock = clock
        self._queue = SendQueue(request, registry.buffer_bytes, self, clock)
        database = wanted.database
        self._grant = database.make_grant(wanted.read, self._revoke, self._queue.overflow)
        self._subscription: Subscription = (
            NodeSubscription(wanted.path, clock)
            if wanted.query is None
            else QuerySubscription(database, database.read, wanted.path, wanted.query, registry)
        )
        self._rendering: Deferred[Any] | None = None
        self._file: IO[bytes] | None = None
        self._is_ending = False
        self._is_over = False

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""
        return self._queue.last_sent

    def start(self, headers: tuple[Header, ...], last_received: Position | None) -> None:
        """Begin: with what was missed since `last_received` if known, else with a first `put`.

        Raises `PermissionDenied` before anything is sent.
        """
        wanted, request = self._wanted, self._request
        request.notifyFinish().addBoth(self._close)
        if request.method == b"HEAD":
            wanted.database.read(self._grant.check)
            request.start(200, headers)
            request.finish()
            return
        may_resume = wanted.with_ids and wanted.query is None
        first, sequence = wanted.database.watch(
            wanted.path,
            self,
            lambda nodes: self._first(nodes, last_received if may_resume else None),
        )
        request.start(200, headers, closes_connection=True)
        request.has_own_timeout = True
        request.registerProducer(self, True)
        if isinstance(first, list):
            self._queue.send(frames.print_frames(first, with_ids=True))
        else:
            self._put_first(first, sequence)
            self._queue.resume()

    def notify(self, notification: Notification) -> None:
        """Send what was written."""
        try:
            if self._is_over or not self._may_continue() or self._queue.has_overflowed:
                return
            data = self._print(notification)
            if data:
                self._queue.send(data)
                self._registry.overflowed += self._queue.has_overflowed
        except Exception:
            self.fail()

    def keep_alive(self) -> None:
        """Send a keep-alive, unless something is waiting to be sent anyway."""
        try:
            if self._may_continue() and self._queue.is_idle:
                self._queue.send(frames.KEEP_ALIVE)
        except Exception:
            self.fail()

    def end(self, last_frame: bytes = b"") -> None:
        """End cleanly, with a frame that says why, after the frame that is being sent."""
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        self._unwatch()
        self._queue.finish(lambda: self._finish(last_frame))

    def abort(self) -> None:
        """Drop the connection."""
        if not self._is_over:
            self._close(None)
            self._request.abort()

    def fail(self) -> None:
        """End after an error of ours, so that the client connects again."""
        self._log.failure("A stream failed.")
        self.abort()

    def pauseProducing(self) -> None:
        """Write no more until the reader has read what was sent."""
        self._queue.is_paused = True
        self._registry.pause(self)

    def resumeProducing(self) -> None:
        """Write what waits, or the present value if the queue has overflowed."""
        self._queue.is_paused = False
        self._registry.resume(self)
        self._queue.resume()

    def stopProducing(self) -> None:
        """Stop writing: the connection is gone."""
        self._close(None)

    # The end.

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
        self._registry.remove(self)
        self._queue.close()
        if self._file is not None:
            self._file.close()

    def _unwatch(self) -> None:
        self._wanted.database.unwatch(self._wanted.path, self)
        self._grant.close()
        if self._rendering is not None:
            self._rendering.cancel()

    def _may_continue(self) -> bool:
        """Return whether the caller may still receive anything; if not, end."""
        if self._registry.has_expired(self._wanted.identity):
            self.end(frames.AUTH_REVOKED)
            return False
        return not self._grant.is_timed or self._grant.recheck()

    def _revoke(self) -> None:
        self.end(frames.CANCEL)

    # The first value.

    def refill(self) -> None:
        """Watch again, and send one `put` of the present value next."""
        wanted = self._wanted
        try:
            body, sequence = wanted.database.watch(wanted.path, self, self._render)
        except PermissionDenied:
            self._revoke()
            return
        self._put_first(body, sequence)

    def _first(self, nodes: Nodes, last_received: Position | None) -> MissedEvents | bytes | None:
        """Return what was missed or the present value; None for a large one.

        The read rules are evaluated here, once, against the state that the stream starts from.
        """
        self._grant.check(nodes)
        if last_received is not None:
            wanted = self._wanted
            missed = wanted.database.missed_events(nodes, wanted.path, last_received, self._grant)
            if missed is not None:
                return missed
        return self._subscription.render(nodes)

    def _render(self, nodes: Nodes) -> bytes | None:
        self._grant.check(nodes)
        return self._subscription.render(nodes)

    def _put_first(self, body: bytes | None, sequence: int) -> None:
        """Send one `put` of the present value next; if `body` is None, render that value first."""
        if body is None:
            self._render_large(sequence)
        else:
            before, after = frames.FIRST_PUT
            put = before + body + after + self._first_end(sequence)
            self._queue.send_next(cut_into_chunks((put,)))

    def _render_large(self, checked: int) -> None:
        """Render a large value into a file; the read rules already allowed the state `checked`."""
        self._queue.is_held = True
        held = self._wanted.database.watch_held(self._wanted.path, self)
        rendering = render_in_slices(
            held, lambda nodes: self._large_chunks(nodes, held, checked), self._clock, None
        )
        self._rendering = Deferred.fromCoroutine(rendering)
        self._rendering.addCallback(self._rendered, held.sequence).addErrback(self._not_rendered)

    def _large_chunks(self, nodes: Nodes, held: HeldNodes, checked: int) -> Iterator[bytes]:
        if held.sequence != checked:  # a commit became durable in between
            self._grant.check(nodes)
        return chunks_of(PLAIN, Place(self._wanted.path))(nodes)

    def _rendered(self, file: IO[bytes], sequence: int) -> None:
        self._rendering = None
        self._file = file
        self._queue.is_held = False
        self._queue.send_next(self._file_chunks(file, sequence))
        self._queue.resume()

    def _not_rendered(self, failure: Failure) -> None:
        self._rendering = None
        if self._is_ending or self._is_over:
            return
        error = failure.value
        if isinstance(error, PermissionDenied):
            self._revoke()
        elif isinstance(error, DiskFull | StoreFailed) and not self._request.startedWriting:
            self._close(None)
            self._request.unregisterProducer()
            self._refuse(self._request, error)
        else:
            self._log.failure("A stream failed.", failure)
            self.abort()

    def _file_chunks(self, file: IO[bytes], sequence: int) -> Iterator[bytes]:
        before, after = frames.FIRST_PUT
        yield before
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
        file.close()
        self._file = None
        yield after + self._first_end(sequence)

    def _first_end(self, sequence: int) -> bytes:
        wanted = self._wanted
        return frames.frame_end(wanted.database.position(sequence) if wanted.with_ids else None)

    def _print(self, notification: Notification) -> bytes:
        with_ids = self._wanted.with_ids
        events = self._subscription.events(notification)
        self._registry.events_sent += len(events)
        key = (self._subscription.window, with_ids)
        data: bytes | None = notification.shared.get(key)
        if data is None:
            data = notification.shared[key] = frames.print_frames(events, with_ids=with_ids)
        return data
