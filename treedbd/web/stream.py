"""One stream: a long-lived request that hears of everything written at a path.

Theory of operation. A stream begins with one `put` of the present value and registers as a watcher
in the same call, so that nothing falls between. From then on each notice becomes frames, rendered
once for all streams of a path, and goes to the request through the `Backlog`. When that went stale,
because the reader did not read, its stream begins once more: with one `put` of the value as it is
then. A long first value is drawn into a file first.

What a stream shows of its path, and so which events it tells, is told in `watched`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, Final, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.server import Request
from zope.interface import implementer

from treedbd.database.database import Database
from treedbd.database.permit import Claim
from treedbd.database.question import PermissionDenied
from treedbd.database.watchers import Notice
from treedbd.store.mapping import Failed, Full
from treedbd.store.nodes import Nodes
from treedbd.tree.event import Position
from treedbd.tree.path import InvalidPath, Path, Place
from treedbd.tree.query import InvalidQuery, Query
from treedbd.web import frame
from treedbd.web.answer import Header
from treedbd.web.backlog import PIECE_BYTES, Backlog, cut
from treedbd.web.identity.identity import Identity
from treedbd.web.parameters import Parameters, parse_choice
from treedbd.web.read import PLAIN, pieces_of
from treedbd.web.send import abort, close_behind, write_head
from treedbd.web.streams import Streams
from treedbd.web.transfer import draw_in_slices
from treedbd.web.watched import Watched, WatchedNode, WatchedQuery

STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"X-Accel-Buffering", b"no"),
)
_REFUSED: Final = ("shallow", "print", "callback", "download")


def check_stream(parameters: Parameters, place: Place) -> None:
    """Refuse what does not go with a stream: raise `InvalidQuery` or `InvalidPath`."""
    for name in _REFUSED:
        if name in parameters:
            raise InvalidQuery(f"{name} does not go with a stream.")
    parse_choice(parameters, "resume", "true", "false")
    if place.of_priority:
        raise InvalidPath("A priority cannot be watched; watch its node.")


@attrs.frozen
class Watch:
    """What a stream watches: a path, all of it or a query's window; `with_ids` to be resumed.

    `claim` is what the rules are asked, `identity` who asks.
    """

    database: Database
    path: Path
    query: Query | None
    claim: Claim
    identity: Identity
    with_ids: bool


@implementer(IPushProducer)
class Stream:
    """A watcher that writes to its request; also what produces for the request's transport."""

    __slots__ = (
        "_backlog",
        "_clock",
        "_drawing",
        "_file",
        "_is_ending",
        "_is_over",
        "_permit",
        "_refuse",
        "_request",
        "_streams",
        "_watch",
        "_watched",
    )
    _log = Logger()

    def __init__(
        self,
        request: Request,
        watch: Watch,
        streams: Streams,
        clock: IReactorTime,
        refuse: Callable[[Request, BaseException], None],
    ) -> None:
        """Write to `request`; `refuse` answers it where the first value cannot be drawn."""
        self._refuse = refuse
        self._request = request
        self._watch = watch
        self._streams = streams
        self._clock = clock
        self._backlog = Backlog(request, streams.limits.buffer_bytes, self, clock)
        self._permit = watch.database.permit(watch.claim, self._deny, self._backlog.begin_anew)
        self._watched: Watched = (
            WatchedNode(watch.path, clock)
            if watch.query is None
            else WatchedQuery(watch.database, watch.path, watch.query, streams)
        )
        self._drawing: Deferred[Any] | None = None
        self._file: IO[bytes] | None = None
        self._is_ending = False
        self._is_over = False

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""
        return self._backlog.last_sent

    def start(self, headers: tuple[Header, ...], last_heard: Position | None) -> None:
        """Begin: with what was missed since `last_heard` if that is known, else with a first `put`.

        Raises `PermissionDenied` before anything is sent.
        """
        watch, request = self._watch, self._request
        request.notifyFinish().addBoth(self._leave)
        watch.database.read(self._permit.judge)
        write_head(request, 200, headers, None)
        if request.method == b"HEAD":
            request.finish()
            return
        close_behind(request)
        cast(Any, request).has_own_patience = True
        request.registerProducer(self, True)
        missed = None
        if last_heard is not None and watch.with_ids and watch.query is None:
            missed = watch.database.resume(watch.path, self, last_heard, self._permit)
        if missed is None:
            self.refill()
            self._backlog.resume()
        else:
            self._backlog.send(frame.print_frames(missed, with_ids=True))

    def notify(self, notice: Notice) -> None:
        """Hear what was written."""
        try:
            if self._is_over or not self._may_go_on() or self._backlog.is_stale:
                return
            frames = self._render(notice)
            if frames:
                self._backlog.send(frames)
                self._streams.went_stale += self._backlog.is_stale
        except Exception:
            self.fail()

    def keep_alive(self) -> None:
        """Send a keep-alive, unless something waits to be sent anyway."""
        try:
            if self._may_go_on() and self._backlog.is_idle:
                self._backlog.send(frame.KEEP_ALIVE)
        except Exception:
            self.fail()

    def end(self, last_words: bytes = b"") -> None:
        """End in good order, saying why, behind the frame that is on its way."""
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        self._hear_no_more()
        self._backlog.finish(lambda: self._finish(last_words))

    def abort(self) -> None:
        """Drop the connection."""
        if not self._is_over:
            self._leave(None)
            abort(self._request)

    def fail(self) -> None:
        """End after an error of ours, so that the reader begins anew."""
        self._log.failure("A stream broke.")
        self.abort()

    def pauseProducing(self) -> None:
        """Write no more until the reader has taken what is on its way."""
        self._backlog.is_paused = True
        self._streams.pause(self)

    def resumeProducing(self) -> None:
        """Write what waits, or the present value where too much came to wait."""
        self._backlog.is_paused = False
        self._streams.resume(self)
        self._backlog.resume()

    def stopProducing(self) -> None:
        """Write no more at all: the connection is gone."""
        self._leave(None)

    # The end.

    def _finish(self, last_words: bytes) -> None:
        self._leave(None)
        self._request.unregisterProducer()
        if last_words:
            self._request.write(last_words)
        self._request.finish()

    def _leave(self, _: object) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._hear_no_more()
        self._streams.remove(self)
        self._backlog.close()
        if self._file is not None:
            self._file.close()

    def _hear_no_more(self) -> None:
        self._watch.database.unwatch(self._watch.path, self)
        self._permit.close()
        if self._drawing is not None:
            self._drawing.cancel()

    def _may_go_on(self) -> bool:
        """Tell whether the caller may still hear anything; if not, end."""
        if self._streams.has_expired(self._watch.identity):
            self.end(frame.AUTH_REVOKED)
            return False
        return not self._permit.is_timed or self._permit.recheck()

    def _deny(self) -> None:
        self.end(frame.CANCEL)

    # The first value.

    def refill(self) -> None:
        """Watch, and let one `put` of the present value be what is sent next."""
        watch = self._watch
        try:
            body, sequence = watch.database.watch(watch.path, self, self._draw)
        except PermissionDenied:
            self._deny()
            return
        if body is None:
            self._begin_long()
        else:
            before, after = frame.FIRST_PUT
            put = before + body + after + self._end_of_first(sequence)
            self._backlog.put_first(cut((put,)))

    def _begin_long(self) -> None:
        self._backlog.is_held = True
        held = self._watch.database.watch_held(self._watch.path, self)
        drawing = draw_in_slices(held, self._pieces, self._clock, None)
        self._drawing = Deferred.fromCoroutine(drawing)
        self._drawing.addCallback(self._drawn, held.sequence).addErrback(self._not_drawn)

    def _drawn(self, file: IO[bytes], sequence: int) -> None:
        self._drawing = None
        self._file = file
        self._backlog.is_held = False
        self._backlog.put_first(self._file_pieces(file, sequence))
        self._backlog.resume()

    def _not_drawn(self, failure: Failure) -> None:
        self._drawing = None
        if self._is_ending or self._is_over:
            return
        error = failure.value
        if isinstance(error, PermissionDenied):
            self._deny()
        elif isinstance(error, Full | Failed) and not self._request.startedWriting:
            self._leave(None)
            self._request.unregisterProducer()
            self._refuse(self._request, error)
        else:
            self._log.failure("A stream broke.", failure)
            self.abort()

    def _file_pieces(self, file: IO[bytes], sequence: int) -> Iterator[bytes]:
        before, after = frame.FIRST_PUT
        yield before
        while piece := file.read(PIECE_BYTES):
            yield piece
        file.close()
        self._file = None
        yield after + self._end_of_first(sequence)

    def _end_of_first(self, sequence: int) -> bytes:
        watch = self._watch
        return frame.end(watch.database.position(sequence) if watch.with_ids else None)

    def _pieces(self, nodes: Nodes) -> Iterator[bytes]:
        self._permit.judge(nodes)
        return pieces_of(PLAIN, Place(self._watch.path))(nodes)

    def _draw(self, nodes: Nodes) -> bytes | None:
        self._permit.judge(nodes)
        return self._watched.draw(nodes)

    def _render(self, notice: Notice) -> bytes:
        with_ids = self._watch.with_ids
        events = self._watched.events(notice)
        self._streams.events_sent += len(events)
        key = (self._watched.window, with_ids)
        frames: bytes | None = notice.shared.get(key)
        if frames is None:
            frames = notice.shared[key] = frame.print_frames(events, with_ids=with_ids)
        return frames
