"""What a stream shows of a path: the whole node, or the window of a query.

Both draw the first value from the nodes of one moment, and say which events a notice comes to. Only
a window remembers what it showed; streams of the same query share one as long as they show the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from twisted.internet.interfaces import IReactorTime

from treedbd.database.database import Database
from treedbd.database.watchers import Notice
from treedbd.store.nodes import Nodes
from treedbd.store.selection import select
from treedbd.tree import printing
from treedbd.tree.event import Event, Position
from treedbd.tree.path import Path, Place
from treedbd.tree.query import Query, Selection, print_selection
from treedbd.tree.window import Window, written_children
from treedbd.web.read import PLAIN, pieces_of
from treedbd.web.streams import Streams
from treedbd.web.transfer import draw_at_once

Numbered: TypeAlias = Sequence[tuple[Position, Event]]


class Watched(Protocol):
    """What one stream shows; `window` is None for a whole node."""

    @property
    def window(self) -> Window | None:
        """What it showed last, shared with all who are told the same."""
        ...

    def draw(self, nodes: Nodes) -> bytes | None:
        """Return what is there, as JSON; None where that is a long read."""
        ...

    def events(self, notice: Notice) -> Numbered:
        """Return what its reader is told of a notice."""
        ...


class WatchedNode:
    """All of a node."""

    __slots__ = ("_clock", "_path")
    window = None

    def __init__(self, path: Path, clock: IReactorTime) -> None:
        self._path = path
        self._clock = clock

    def draw(self, nodes: Nodes) -> bytes | None:
        """Return the value at the path."""
        return draw_at_once(nodes, pieces_of(PLAIN, Place(self._path)), self._clock)

    def events(self, notice: Notice) -> Numbered:
        """Return what was written, as it was."""
        return notice.events


class WatchedQuery:
    """What a query shows of the children of a node."""

    __slots__ = ("_database", "_path", "_query", "_streams", "window")

    def __init__(self, database: Database, path: Path, query: Query, streams: Streams) -> None:
        self.window: Window | None = None
        self._database = database
        self._path = path
        self._query = query
        self._streams = streams

    def draw(self, nodes: Nodes) -> bytes:
        """Return what the query shows, and remember it."""
        selected = self._select(nodes)
        key = (self._database, self._path, self._query)
        self.window = self._streams.share(key, Window(self._query, selected))
        return printing.compact(print_selection(selected))

    def events(self, notice: Notice) -> Numbered:
        """Move the window, unless another stream has done so; return what is told of that."""
        window = self.window
        moved: Numbered | None = notice.shared.get(window, [])
        if window is not None and window not in notice.shared:
            notice.shared[window] = None  # what stays if it breaks half way
            moved = notice.shared[window] = self._move(window, notice)
        if moved is None:
            raise RuntimeError("The window of this query broke.")
        return moved

    def _move(self, window: Window, notice: Notice) -> Numbered:
        written = written_children(event for _, event in notice.events)
        events = self._database.read(
            lambda nodes: list(window.move(written, self._path, nodes, lambda: self._select(nodes)))
        )
        last, _ = notice.events[-1]
        return [(last, event) for event in events]

    def _select(self, nodes: Nodes) -> Selection:
        return select(nodes, self._path, self._query)
