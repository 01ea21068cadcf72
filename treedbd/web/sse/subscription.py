"""What a stream shows of a path: the whole node, or the window of a query.

Both render the first value from the nodes of one moment, and say which events a notification
becomes. Only a window remembers what it showed; streams of the same query share one as long as they
show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from twisted.internet.interfaces import IReactorTime

from treedbd.database.watchers import Notification
from treedbd.store.nodes import Nodes
from treedbd.store.select import select
from treedbd.tree import printing
from treedbd.tree.event import Event, Position
from treedbd.tree.query import Query, Selection, selection_to_json
from treedbd.tree.types import Path, Place
from treedbd.tree.window import Window, written_children
from treedbd.web.representation import PLAIN, chunks_of, render_at_once
from treedbd.web.sse.registry import StreamRegistry

Numbered: TypeAlias = Sequence[tuple[Position, Event]]
ReadNodes: TypeAlias = Callable[[Callable[[Nodes], Any]], Any]
"""Runs work on the present state of the database."""


class Subscription(Protocol):
    """What one stream shows; `window` is None for a whole node."""

    @property
    def window(self) -> Window | None:
        """What it showed last, shared with all streams that show the same."""
        ...

    def render(self, nodes: Nodes) -> bytes | None:
        """Return the present value as JSON; None if that is a large read."""
        ...

    def events(self, notification: Notification) -> Numbered:
        """Return the events for its reader."""
        ...


class NodeSubscription:
    """All of a node."""

    __slots__ = ("_clock", "_path")
    window = None

    def __init__(self, path: Path, clock: IReactorTime) -> None:
        self._path = path
        self._clock = clock

    def render(self, nodes: Nodes) -> bytes | None:
        """Return the value at the path."""
        return render_at_once(nodes, chunks_of(PLAIN, Place(self._path)), self._clock)

    def events(self, notification: Notification) -> Numbered:
        """Return what was written, as it was."""
        return notification.events


class QuerySubscription:
    """The children of a node that a query selects."""

    __slots__ = ("_path", "_query", "_read", "_registry", "_share_key", "window")

    def __init__(
        self, database: object, read: ReadNodes, path: Path, query: Query, registry: StreamRegistry
    ) -> None:
        """`read` reads `database`; streams of the same one share windows through `registry`."""
        self.window: Window | None = None
        self._read = read
        self._path = path
        self._query = query
        self._registry = registry
        self._share_key = (database, path, query)

    def render(self, nodes: Nodes) -> bytes:
        """Return what the query selects, and remember it."""
        selected = self._select(nodes)
        self.window = self._registry.share(self._share_key, Window(self._query, selected))
        return printing.compact(selection_to_json(selected))

    def events(self, notification: Notification) -> Numbered:
        """Move the window, unless another stream has done so; return the resulting events."""
        window = self.window
        moved: Numbered | None = notification.shared.get(window, [])
        if window is not None and window not in notification.shared:
            notification.shared[window] = None  # stays if moving it fails
            moved = notification.shared[window] = self._move(window, notification)
        if moved is None:
            raise RuntimeError("The window of this query failed.")
        return moved

    def _move(self, window: Window, notification: Notification) -> Numbered:
        written = written_children(event for _, event in notification.events)
        events: list[Event] = self._read(
            lambda nodes: list(window.move(written, self._path, nodes, lambda: self._select(nodes)))
        )
        last, _ = notification.events[-1]
        return [(last, event) for event in events]

    def _select(self, nodes: Nodes) -> Selection:
        return select(nodes, self._path, self._query)
