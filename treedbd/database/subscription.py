"""What a stream shows of a path: the whole node, or the children that a query selects.

The latter is in `shared_window`. Both register a stream together with the state that it begins
with, and render its first value from the nodes of that state, in chunks, so that a large value can
be rendered in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from treedbd.database.watchers import Watcher
from treedbd.store.nodes import Nodes
from treedbd.tree.types import Path

if TYPE_CHECKING:
    from treedbd.database.shared_window import SharedWindow
    from treedbd.database.watching import Watching

T = TypeVar("T")


class Subscription(Protocol):
    """What one stream shows."""

    @property
    def behind(self) -> SharedWindow | None:
        """The window of a query that still has to catch up with what others were notified of."""
        ...

    def watch(self, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Notify the stream from now on; return what `work` made of the present state, its number.

        Another call begins again.
        """
        ...

    def watch_from(self, state: int) -> None:
        """Notify the stream of what comes after a state that was read or held in this turn."""
        ...

    def unwatch(self) -> None:
        """Stop notifying the stream; no error if it is not notified."""
        ...

    def end(self) -> None:
        """Do as `unwatch` for good, and forget the stream, so that nothing keeps it."""
        ...

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the first value from the state that the stream began with."""
        ...


class NodeSubscription:
    """All of a node."""

    behind = None

    __slots__ = ("_group", "_path", "_stream", "_watching")

    def __init__(
        self, watching: Watching, path: Path, stream: Watcher, group: object | None
    ) -> None:
        """Notify the streams of a `group` in the order of the writes."""
        self._group = group
        self._watching = watching
        self._path = path
        self._stream = stream

    def watch(self, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Notify the stream from now on; return what `work` made of the present state."""
        return self._watching.watch(self._path, self._stream, work, self._group)

    def watch_from(self, state: int) -> None:
        """Notify the stream of what comes after a state."""
        self._watching.watchers.add(self._path, self._stream, state, self._group)

    def unwatch(self) -> None:
        """Stop notifying the stream."""
        self._watching.watchers.remove(self._path, self._stream)

    def end(self) -> None:
        """Stop notifying the stream, and forget it."""
        self.unwatch()
        del self._stream

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the value at the path."""
        return nodes.chunks(self._path)
