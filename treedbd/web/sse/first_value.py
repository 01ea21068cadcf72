"""The value that a stream begins with, or begins again with: one rendering for all that want it.

A value that is little work is rendered in the turn in which the stream begins; a large one in
slices, together with all streams and reads that wait for the same. Each stream sends it from the
shared copy, at the speed of its reader.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final

from twisted.internet.defer import CancelledError, Deferred

from treedbd.database.shared_window import QuerySubscription
from treedbd.database.watchers import Subscription
from treedbd.http1.content import Content, ContentReader
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.tree.event import Position
from treedbd.tree.query import Query, name_query
from treedbd.tree.types import Path, Place
from treedbd.web.large_reads import RenderingSource, Waiter
from treedbd.web.rendering import Rendering
from treedbd.web.representation import ReadSource
from treedbd.web.request import EXPORT, PLAIN
from treedbd.web.shared_reads import SharedReads, TooMuchWork
from treedbd.web.sse import frames


class QuerySource:
    """The first value of streams of a query, which fills the window that they are attached to."""

    def __init__(
        self,
        database: object,
        path: Path,
        query: Query | None,
        subscription: QuerySubscription,
        *,
        is_export: bool = False,
    ) -> None:
        self._subscription = subscription
        self.key: Final[Hashable] = ("window", database, path, name_query(query), is_export)

    def shares(self, other: object) -> bool:
        """Return whether a stream can begin with what the other has rendered."""
        return isinstance(other, QuerySource) and self._subscription.shares(other._subscription)

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render what the query selects, in its order."""
        return self._subscription.chunks(nodes)


def first_source(
    database: object,
    path: Path,
    query: Query | None,
    subscription: Subscription,
    *,
    is_export: bool = False,
) -> RenderingSource:
    """Return what renders the first value: of a node the same as an ordinary read of it."""
    if isinstance(subscription, QuerySubscription):
        return QuerySource(database, path, query, subscription, is_export=is_export)
    return ReadSource(database, Place(path), EXPORT if is_export else PLAIN)


class FirstValue:
    """The first value of one stream."""

    __slots__ = ("_address", "_judge", "_reads", "_source", "_waiting")

    def __init__(
        self,
        source: RenderingSource,
        judge: Callable[[Nodes], None],
        reads: SharedReads,
        address: str,
    ) -> None:
        """Render `source` for a client; `judge` raises unless it may read a large value still."""
        self._source: Final = source
        self._judge = judge
        self._reads: Final = reads
        self._address: Final = address
        self._waiting: Deferred[Rendering] | None = None

    def render(self, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Return the present value; the read rules allowed this state."""
        return self._reads.render(self._source, nodes)

    def render_large(
        self, hold: Callable[[], HeldNodes], judged: int, subscription: Subscription
    ) -> Deferred[Rendering]:
        """Render a large value; `subscription` then watches from the state that it shows.

        It does not watch until that is known. The read rules already allowed the state `judged`.
        As `SharedReads.render_large`.
        """
        states: list[int] = []

        def begun(state: int) -> None:
            states.append(state)
            subscription.watch_from(state)

        waiter = Waiter(self._source, self._judge, judged, begun)
        self._waiting = self._reads.render_large(hold, waiter, self._address)
        if not states:  # what has begun already fills the window that is watched
            subscription.unwatch()
        return self._waiting

    def open(self, rendered: bytes | Rendering, position: Position | None) -> list[ContentReader]:
        """Return readers of a `put` of a value, one after the other; `position` is its identifier.

        Raises `WaitingBytesRefused`.
        """
        if isinstance(rendered, bytes):
            short = self.print(rendered, position)
            return [short.open(self._address, may_refuse=False)]
        before, after = _around(position)
        value = rendered.open(self._address)
        return [self._open(before), value, self._open(after)]

    def print(self, rendered: bytes, position: Position | None) -> Content:
        """Return a `put` of a short value; `position` is its identifier."""
        before, after = _around(position)
        return Content(self._reads.memory, before + rendered + after)

    def cancel(self) -> None:
        """Wait no longer for a large value, and render none any more."""
        self._judge = _judge_nothing
        if self._waiting is not None:
            self._waiting.cancel()

    def _open(self, short: bytes) -> ContentReader:
        return Content(self._reads.memory, short).open(self._address, may_refuse=False)


def _around(position: Position | None) -> tuple[bytes, bytes]:
    """Return what a `put` of the whole value has before and after it."""
    before, after = frames.FIRST_PUT
    return before, after + frames.frame_end(position)


def _judge_nothing(_: Nodes) -> None:
    raise CancelledError
