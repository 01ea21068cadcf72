"""One stream: a long-lived request that hears of everything written at a path.

Theory of operation. A stream begins with one `put` of the present value and registers as a watcher
in the same call, so that nothing falls between. From then on each notice becomes frames, rendered
once for all streams of a path, and is written to the request at once.

When the transport asks for a pause, frames wait, up to a bound. Past the bound they are dropped and
the stream is *stale*: when its reader reads again it gets one `put` of the value as it is then, and
goes on from there. The same happens to what is written while a long first value is on its way.

A stream of a query keeps the window that it showed last, and tells what moved in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.protocols.basic import FileSender
from twisted.python.failure import Failure
from twisted.web.server import Request
from zope.interface import implementer

from treedbd.database.database import Database
from treedbd.database.permit import Claim
from treedbd.database.question import PermissionDenied
from treedbd.database.watchers import Notice
from treedbd.store.nodes import Nodes
from treedbd.tree import printing
from treedbd.tree.path import InvalidPath, Path, Place
from treedbd.tree.query import InvalidQuery, Query, Selection, print_selection
from treedbd.tree.window import Window, written_children
from treedbd.web import frame
from treedbd.web.answer import Header
from treedbd.web.identity import Identity
from treedbd.web.parameters import Parameters, parse_choice
from treedbd.web.read import PLAIN, pieces_of
from treedbd.web.send import abort, write_head
from treedbd.web.streams import Streams
from treedbd.web.transfer import draw_at_once, draw_in_slices

STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"X-Accel-Buffering", b"no"),
)
_REFUSED: Final = ("shallow", "print", "callback", "download", "format")


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

    _log = Logger()

    def __init__(
        self, request: Request, watch: Watch, streams: Streams, clock: IReactorTime
    ) -> None:
        """Write to `request`."""
        self.last_sent = clock.seconds()
        self._request = request
        self._watch = watch
        self._streams = streams
        self._clock = clock
        self._permit = watch.database.permit(watch.claim, self._deny)
        self._window: Window | None = None
        self._drawing: Deferred[Any] | None = None
        self._is_paused = False
        self._is_over = False
        self._is_stale = False
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def start(self, headers: tuple[Header, ...], last_id: int | None) -> None:
        """Begin: with what was missed since `last_id` if that is known, else with a first `put`.

        Raises `PermissionDenied` before anything is sent.
        """
        watch, request = self._watch, self._request
        watch.database.read(self._permit.judge)
        write_head(request, 200, headers, None)
        request.notifyFinish().addBoth(self._leave)
        if request.method == b"HEAD":
            request.finish()
            return
        request.registerProducer(self, True)
        missed = None
        if last_id is not None and watch.with_ids and watch.query is None:
            missed = watch.database.resume(watch.path, self, last_id)
        if missed is None:
            self._begin()
        else:
            self._write(frame.print_frames(missed, with_ids=True))

    def notify(self, notice: Notice) -> None:
        """Hear what was written."""
        if self._is_over or not self._may_go_on() or self._is_stale:
            return
        try:
            frames = self._render(notice)
        except Exception:
            self._log.failure("A stream broke.")
            self.abort()
            return
        if not frames:
            return
        if self._is_paused or self._drawing is not None:
            self._wait(frames)
        else:
            self._write(frames)

    def keep_alive(self) -> None:
        """Send a keep-alive, unless something waits to be sent anyway."""
        if self._may_go_on() and not self._is_paused and self._drawing is None:
            self._write(frame.KEEP_ALIVE)

    def end(self, last_words: bytes = b"") -> None:
        """End in good order, saying why; a value that is on its way is cut off."""
        if self._is_over:
            return
        if self._drawing is not None:
            self.abort()
            return
        self._leave(None)
        self._request.unregisterProducer()
        if last_words:
            self._request.write(last_words)
        self._request.finish()

    def abort(self) -> None:
        """Drop the connection."""
        if not self._is_over:
            self._leave(None)
            abort(self._request)

    def pauseProducing(self) -> None:
        """Write no more until the reader has taken what is on its way."""
        self._is_paused = True
        self._streams.pause(self)

    def resumeProducing(self) -> None:
        """Write what waits, or the present value where too much came to wait."""
        self._is_paused = False
        self._streams.resume(self)
        self._catch_up()

    def stopProducing(self) -> None:
        """Write no more at all: the connection is gone."""
        self._leave(None)

    def _leave(self, _: object) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._watch.database.unwatch(self._watch.path, self)
        self._permit.close()
        self._streams.remove(self)
        self._waiting.clear()
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

    def _begin(self) -> None:
        """Send one `put` of the present value and watch from there."""
        try:
            self._begin_judged()
        except PermissionDenied:
            self._deny()

    def _pieces(self, nodes: Nodes) -> Iterator[bytes]:
        self._permit.judge(nodes)
        return pieces_of(PLAIN, Place(self._watch.path))(nodes)

    def _begin_judged(self) -> None:
        watch = self._watch
        body: bytes | None
        if watch.query is None:
            body, sequence = watch.database.watch(
                watch.path, self, lambda nodes: draw_at_once(nodes, self._pieces)
            )
            if body is None:
                self._begin_long()
                return
        else:
            selected, sequence = watch.database.watch(watch.path, self, self._select_judged)
            self._window = Window(watch.query, selected)
            body = printing.compact(print_selection(selected))
        before, after = frame.FIRST_PUT
        self._write(before + body + after + frame.end(sequence, watch.with_ids))

    def _begin_long(self) -> None:
        held = self._watch.database.watch_held(self._watch.path, self)
        drawing = draw_in_slices(held, self._pieces, self._clock, None)
        self._drawing = Deferred.fromCoroutine(drawing)
        self._drawing.addCallback(self._send_file, held.sequence)
        self._drawing.addCallbacks(self._drawn, self._drawing_failed)

    def _send_file(self, file: IO[bytes], sequence: int) -> Deferred[None]:
        """Send a first `put` whose value lies in a file, at the speed of the reader."""
        before, after = frame.FIRST_PUT
        self._request.write(before)
        self._request.unregisterProducer()

        def finish(result: object) -> object:
            file.close()
            if not isinstance(result, Failure) and not self._is_over:
                self._write(after + frame.end(sequence, self._watch.with_ids))
                self._request.registerProducer(self, True)
            return result

        sending: Deferred[Any] = FileSender().beginFileTransfer(file, self._request)
        return sending.addBoth(finish)

    def _drawn(self, _: object) -> None:
        self._drawing = None
        self._catch_up()

    def _drawing_failed(self, failure: Failure) -> None:
        if not self._is_over:
            if not failure.check(PermissionDenied):
                self._log.failure("A stream broke.", failure)
            self.abort()

    def _render(self, notice: Notice) -> bytes:
        watch = self._watch
        self._streams.events_sent += len(notice.events)
        if self._window is not None:
            written = written_children(event for _, event in notice.events)
            window = self._window
            moved = watch.database.read(
                lambda nodes: list(
                    window.move(written, watch.path, nodes, lambda: self._select(nodes))
                )
            )
            numbered = [(notice.sequence, event) for event in moved]
            return frame.print_frames(numbered, with_ids=watch.with_ids)
        key = ("frames", watch.with_ids)
        frames = notice.rendered.get(key)
        if frames is None:
            frames = frame.print_frames(notice.events, with_ids=watch.with_ids)
            notice.rendered[key] = frames
        return frames

    def _select_judged(self, nodes: Nodes) -> Selection:
        self._permit.judge(nodes)
        return self._select(nodes)

    def _select(self, nodes: Nodes) -> Selection:
        query = self._watch.query
        return [] if query is None else query.select(nodes.child_values(self._watch.path))

    def _wait(self, frames: bytes) -> None:
        self._waiting_bytes += len(frames)
        if self._waiting_bytes <= self._streams.limits.buffer_bytes:
            self._waiting.append(frames)
            return
        self._is_stale = True
        self._streams.went_stale += 1
        self._forget_waiting()

    def _catch_up(self) -> None:
        if self._is_over or self._is_paused or self._drawing is not None:
            return
        if self._is_stale:
            self._is_stale = False
            self._begin()
        elif self._waiting:
            frames = b"".join(self._waiting)
            self._forget_waiting()
            self._write(frames)

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _write(self, data: bytes) -> None:
        self.last_sent = self._clock.seconds()
        self._request.write(data)
