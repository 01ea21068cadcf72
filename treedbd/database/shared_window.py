"""A watched query: one window for all streams of the same query, moved once for each commit.

Theory of operation. A shared window is itself the watcher of its path. In each round that concerns
it, it reads the children that were written, moves, and notifies its streams, all in the slices of
the round. So the next commit finds it, and its streams, where the last one left them.

When it cannot move, because a commit may have changed all children or its reserve has run out, it
is *drawn* again, in slices, from a moment that is held open; writers do not wait for that. Commits
in between only add to what it has to catch up with. When the drawing is done it shows that moment,
and after it the present state, as if the commits in between were one. It is also drawn for the
first value of its first stream, by that stream.

A stream attaches with the number of the state that it begins with, which must be the state that
the window shows then; otherwise it begins another window, which later streams attach to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

import attrs
from twisted.logger import Logger

from treedbd.database.slices import Steps
from treedbd.database.watchers import Notification
from treedbd.database.watching import Watching
from treedbd.store.nodes import Nodes
from treedbd.store.select import draw, redraw
from treedbd.tree.event import Event, Position
from treedbd.tree.printing import print_members
from treedbd.tree.query import Query
from treedbd.tree.types import Path, Value
from treedbd.tree.where import TooManyChildren
from treedbd.tree.window import Window, written_children

T = TypeVar("T")

MOVED_AT_ONCE: Final = 256
"""Children that a window reads to move; beyond, it is drawn again."""
EVENTS_AT_ONCE: Final = 64
"""Events that a stream is notified of in one step."""


class QueryStream(Protocol):
    """A stream that shows a query."""

    def notify(self, notification: Notification) -> None:
        """Send the events of the query."""
        ...

    def fail(self) -> None:
        """End after the exception that is being handled."""
        ...

    def revoke(self) -> None:
        """End: what it shows can no longer be read."""
        ...


@attrs.frozen
class ShownQuery:
    """A query of the children of a path, shown as a GET does or in export form."""

    path: Path
    query: Query
    is_export: bool = False

    @property
    def key(self) -> tuple[Path, str, bool]:
        """Equal for what shows the same."""
        # As text: 1 and True are equal, but are different bounds of a query.
        return self.path, repr(self.query), self.is_export


class SharedWindow:
    """The window of a query of a path, and the streams that show it."""

    _log = Logger()

    def __init__(
        self, watching: Watching, shown: ShownQuery, since: int, closed: Callable[[], None]
    ) -> None:
        """Begin with the state `since`; call `closed` when the last stream has left."""
        self._watching = watching
        self._path = shown.path
        self._query = shown.query
        self._is_export = shown.is_export
        self._closed = closed
        self._streams: dict[QueryStream, int] = {}
        self._window: Window | None = None
        self._state = since
        self._is_drawing = True
        self._is_moving = False
        self._written: set[str] | None = set()
        watching.watchers.add(shown.path, self, since)

    @property
    def is_behind(self) -> bool:
        """Whether its streams were not notified yet of all that the watchers were notified of."""
        return self._window is not None and (self._is_drawing or self._is_moving)

    def shows(self, state: int) -> bool:
        """Return whether it shows a state, or is being drawn from it for the first time."""
        if self._window is None:
            return state == self._state
        is_present = state in (self._state, self._watching.notified_through)
        return is_present and not (self._is_drawing or self._is_moving)

    def attach(self, stream: QueryStream, state: int) -> None:
        """Notify a stream of all changes after a state, which the window shows now."""
        self._streams[stream] = state

    def detach(self, stream: QueryStream) -> None:
        """Stop notifying a stream; without any, the window is closed."""
        if self._streams.pop(stream, None) is not None and not self._streams:
            self._watching.watchers.remove(self._path, self)
            self._closed()

    def keys(self) -> list[str] | None:
        """Return the keys that are shown; None if they have to be drawn."""
        return None if self._window is None else self._window.keys()

    def draw(self, nodes: Nodes) -> Iterator[tuple[str, Iterator[bytes]] | None]:
        """Yield the children that the query selects, as `select.draw` does.

        `nodes` is the state that the streams attached with. If the window is being drawn for the
        first time, it shows these children when all have been yielded.
        """
        window = self._make_window()
        yield from draw(nodes, self._path, self._query, window)
        if self._window is None:
            self._window = window
            if self._written == set():
                self._is_drawing = False
            else:
                self._watching.rounds.run_later(self._guarded(self._catch_up()))

    def _make_window(self) -> Window:
        return Window(self._query, is_export=self._is_export)

    def notify(self, notification: Notification) -> None:
        """Move in the round under way, or later if it is being drawn."""
        written = written_children(event for _, event in notification.events)
        if self._is_drawing:
            self._remember(written)
        else:
            self._is_moving = True
            position, _ = notification.events[-1]
            self._watching.rounds.add(self._guarded(self._move(written, position)))

    def _guarded(self, steps: Steps) -> Steps:
        """Run the steps while there are streams; an exception ends the streams."""
        try:
            while self._streams:
                next(steps)
                yield
        except StopIteration:
            return
        except TooManyChildren:
            for stream in list(self._streams):
                stream.revoke()
        except Exception:
            self._log.failure("The window of a query failed.")
            for stream in list(self._streams):
                stream.fail()
        finally:
            steps.close()

    def _remember(self, written: Sequence[str] | None) -> None:
        if written is None or self._written is None:
            self._written = None
            return
        self._written.update(written)
        if len(self._written) > MOVED_AT_ONCE:
            self._written = None

    def _move(self, written: Sequence[str] | None, position: Position) -> Steps:
        """Show the present state, in which these children have been written; None for all."""
        window = self._window
        events: list[Event] | None = None
        if window is not None and written is not None and len(written) <= MOVED_AT_ONCE:
            events = yield from window.move(written, self._read_children)
        self._is_moving = False
        if events is None:
            self._is_drawing = True
            self._written = set()
            self._watching.background.add(self._guarded(self._draw_again()))
            return
        self._is_drawing = False
        self._state = position.sequence
        yield from self._send(events, position)

    def _draw_again(self) -> Steps:
        """Draw a new window from a moment that is held; it replaces this one in time."""
        former = self._window
        if former is None:
            return
        window, events = self._make_window(), list[Event]()
        held = self._watching.hold()
        self._written = set()
        try:
            yield from redraw(held, self._path, self._query, window, former, events)
        finally:
            held.close()
        self._watching.rounds.run_later(self._guarded(self._replace(window, events, held.sequence)))

    def _replace(self, window: Window, events: list[Event], state: int) -> Steps:
        self._window = window
        self._state = state
        yield from self._send(events, self._watching.position(state))
        yield from self._catch_up()

    def _catch_up(self) -> Steps:
        """Show the present state, after commits during the drawing."""
        written, self._written = self._written, set()
        position = self._watching.position(self._watching.notified_through)
        yield from self._move(None if written is None else list(written), position)

    def _send(self, events: list[Event], position: Position) -> Steps:
        """Notify the streams that began before a position."""
        for at in range(0, len(events), EVENTS_AT_ONCE):
            some = events[at : at + EVENTS_AT_ONCE]
            notification = Notification(tuple((position, event) for event in some))
            for stream in list(self._streams):
                if self._streams.get(stream, position.sequence) < position.sequence:
                    stream.notify(notification)
                    yield

    def _read_children(self, keys: Iterable[str]) -> list[Value]:
        return self._watching.read(lambda nodes: [nodes.get((*self._path, key)) for key in keys])


class SharedWindows:
    """The shared windows of one database."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._newest: dict[tuple[Path, str, bool], SharedWindow] = {}

    def find(self, shown: ShownQuery, state: int) -> SharedWindow:
        """Return a window that shows a state, which was just read; a new one if there is none."""
        key = shown.key
        found = self._newest.get(key)
        if found is None or not found.shows(state):

            def closed() -> None:
                if self._newest.get(key) is found:
                    del self._newest[key]

            found = self._newest[key] = SharedWindow(self._watching, shown, state, closed)
        return found


class QuerySubscription:
    """The children of a node that a query selects.

    Attributes:
        window: the window that the stream was attached to last. Rendering the first value fills it,
            unless it shows that already.

    """

    __slots__ = (
        "_is_attached",
        "_keys",
        "_shown",
        "_stream",
        "_watching",
        "_windows",
        "window",
    )

    def __init__(
        self,
        watching: Watching,
        windows: SharedWindows,
        shown: ShownQuery,
        stream: QueryStream,
    ) -> None:
        """Find the window in `windows`, which the streams of a database share."""
        self._watching = watching
        self._windows = windows
        self._shown = shown
        self._stream = stream
        self.window: SharedWindow | None = None
        self._is_attached = False
        self._keys: list[str] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the stream was not notified yet of all that the watchers were notified of."""
        return self._is_attached and self.window is not None and self.window.is_behind

    def watch(self, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Notify the stream from now on; return what `work` made of the present state."""

        def read(nodes: Nodes) -> tuple[T, int]:
            state = nodes.rows.sequence()
            self.watch_from(state)
            return work(nodes), state

        try:
            return self._watching.read(read)
        except BaseException:
            self.unwatch()
            raise

    def watch_from(self, state: int) -> None:
        """Notify the stream of what comes after a state."""
        window = self._windows.find(self._shown, state)
        window.attach(self._stream, state)
        if self.window is not window:
            self.unwatch()
            self.window = window
        self._is_attached = True
        # They are read from the state that they are the keys of, though the window may move on.
        self._keys = window.keys()

    def unwatch(self) -> None:
        """Stop notifying the stream; others may still wait for what it renders."""
        if self._is_attached and self.window is not None:
            self.window.detach(self._stream)
        self._is_attached = False

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render what the query selects, in its order."""
        if self.window is None:
            raise RuntimeError("This stream does not watch.")
        if self._keys is not None:
            path, is_export = self._shown.path, self._shown.is_export
            return print_members(
                (key, nodes.chunks((*path, key), export=is_export)) for key in self._keys
            )
        return print_members(self.window.draw(nodes))
