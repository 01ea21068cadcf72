"""Windows of watched queries: what a write means to each query, found once for all its streams.

Theory of operation. All queries of the children of one path are a `WatchedCollection`. Of each
write it determines which children were written to, and their state before and after it
(`WrittenChildren`), from a replay of the state that the write made (`resume.Replay`): the present
rows are newer if other writes were committed with it. Each query is a `SharedWindow`, however many
streams show it; what a write does to it is at most one event, so that after each event a stream
shows the query as it was after that write:

- One child that stays was written to: the event that a watcher of the path receives, which needs no
  reading. One child that enters or leaves: a `put` of it, null if it leaves.
- Several children, also because one enters as another leaves: one `patch` of `/` with all of them,
  whole, null for those that leave.
- The write set the path itself or a node above it: one `put` of `/` with the whole set.

Without a limit a query needs no memory for that. With one it has a window, which is *drawn* from
the rows with the first value of its first stream. A large window is drawn in slices, and so is a
search for more children when the reserve has run out and no index leads to them. Writers do not
wait for either: the window is *behind*, its writes wait with the replay that they go on from
(`Backlog`), and are followed one by one afterwards. Only if too many wait, or if what a large write
has set is not known, streams have to read their value again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import attrs
from twisted.logger import Logger

from treedbd.counting import HeldAccount, HeldBytesRefused
from treedbd.database.requests import Unavailable
from treedbd.database.slices import Steps
from treedbd.database.watchers import Audience, Notification, Watcher
from treedbd.limits import KIB, MIB
from treedbd.loop import SORTED_AT_ONCE, sort_in_steps
from treedbd.store.nodes import Nodes
from treedbd.store.select import draw, find_index, iterate_selected
from treedbd.tree.event import (
    EVENT_BYTES,
    Commit,
    CommittedChange,
    Event,
    complete,
    members_of,
    patch_event,
    put_event,
)
from treedbd.tree.overlay import StateUnknown
from treedbd.tree.path import rank_key
from treedbd.tree.query import Query, TooManyChildren, name_query, selection_to_json
from treedbd.tree.types import Container, Json, Path, QueryTooLarge, Value, View
from treedbd.tree.value import as_json, members, plain, print_members, value_at, with_priority
from treedbd.tree.window import (
    Facts,
    Field,
    Moved,
    Placed,
    Window,
    bytes_of,
    fields_of,
    position_of,
    position_of_value,
    range_of,
    read_facts,
)

if TYPE_CHECKING:
    from treedbd.database.resume import Replay
    from treedbd.database.watchers import Watching


T = TypeVar("T")

READ_AT_ONCE: Final = 16
"""Children that are looked at in one step, or facts that are read."""
MOST_FACTS: Final = 262_144
MOST_TEXT: Final = 32 * MIB
"""Facts of one write, and bytes of long strings in them, that are kept until it is followed.

Beyond them, or where more would have to be read, streams read their value again.
"""
READ_BYTES: Final = 64 * KIB
"""A larger value is read child by child."""
RESENT_BYTES: Final = 4 * KIB
"""Of a larger child that stays, an event with other children has only what was written."""
MISSED: Final = Event("put", (), None, is_missed=True)
"""Streams have to read their value again."""

MAX_WAITING: Final = 4096
"""Writes that wait for a window which has to catch up; of more, streams read their value again."""
MAX_WAITING_BYTES: Final = 16 * MIB
"""The same in bytes, as the change log has them."""
CHARGED_BYTES: Final = 16 * KIB
"""Windows are charged in steps of this size."""
PASSED_AT_ONCE: Final = 64
"""Queries that a write does not concern, and that are passed in one step."""

EventSteps: TypeAlias = "Generator[None, None, Event | None]"
"""Steps that end with the event of a write, None if there is none."""


class QueryStream(Watcher, Protocol):
    """A stream that shows a query."""

    def fail(self) -> None:
        """End after the exception that is being handled."""
        ...

    def revoke(self) -> None:
        """End: what it shows can no longer be read."""
        ...


@attrs.define(eq=False, repr=False)
class QuerySubscription:
    """The children of a node that a query selects.

    It is shown to a stream of a `group`; its window is charged to an account, if there is one.

    Attributes:
        window: the window that the stream was attached to last. Rendering the first value draws it,
            unless it shows that already.

    """

    _watching: Watching
    _path: Path
    _query: Query
    _stream: QueryStream
    _is_export: bool = attrs.field(kw_only=True)
    _group: object | None = attrs.field(kw_only=True)
    _account: HeldAccount | None = attrs.field(kw_only=True)
    _keys: list[str] | None = attrs.field(default=None, init=False)
    _drawing: int | None = attrs.field(default=None, init=False)
    window: SharedWindow | None = attrs.field(default=None, init=False)

    @property
    def behind(self) -> SharedWindow | None:
        """The window, if the stream has still to be notified of writes that others know of."""
        window = self.window
        if window is None or not window.is_behind or self._stream not in window.audience.watchers:
            return None
        return window

    def shares(self, other: QuerySubscription) -> bool:
        """Return whether the stream can begin with what another one of the same query rendered.

        While its window waits to be drawn, only the rendering that draws it is shared.
        """
        window = self.window
        if window is None or other.window is not window:
            return False
        return window.drawing is None or window.drawing == other._drawing

    def watch(self, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Notify the stream from now on; return what `work` made of the present state."""

        def read(nodes: Nodes) -> tuple[T, int]:
            state = nodes.rows.sequence()
            self.watch_from(state)
            return work(nodes), state

        try:
            return self._watching.read_shown(read)
        except BaseException:
            self.unwatch()
            raise

    def watch_from(self, state: int) -> None:
        """Notify the stream of what comes after a state."""
        watching, path = self._watching, self._path
        collection = watching.watchers.collection(path) or WatchedCollection(watching, path)
        window = collection.window(self._query, state)
        window.attach(self._stream, state, self._group, self._account)
        if self.window is not window:
            self.unwatch()
            self.window = window
        self._drawing = window.drawing
        # They are read from the state that they are the keys of, though the window may move on.
        self._keys = window.keys(state)

    def unwatch(self) -> None:
        """Stop notifying the stream; others may still wait for what it renders."""
        if self.window is not None:
            self.window.detach(self._stream)

    def end(self) -> None:
        """Stop notifying the stream, and forget it; others may still wait for what it renders."""
        self.unwatch()
        del self._stream

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render what the query selects, in its order."""
        if self.window is None:
            raise RuntimeError("This stream does not watch.")
        keys, self._keys = self._keys, None  # without them, they are selected from the nodes again
        if keys is not None:
            return print_members(
                (key, nodes.chunks((*self._path, key), export=self._is_export)) for key in keys
            )
        return print_members(self.window.draw(nodes, is_export=self._is_export))


class WatchedCollection:
    """The watched queries of the children of one path.

    Attributes:
        watching: what is watched of the database.
        path: the path.

    """

    def __init__(self, watching: Watching, path: Path) -> None:
        """Add it to the watchers of the database, until no query is left."""
        self.watching: Final = watching
        self.path: Final = path
        self._windows: dict[str, SharedWindow] = {}
        self._fields: Counter[Field] = Counter()
        # Of many queries for one value each, a write looks only at those of its own values.
        self._exact: dict[tuple[Field | None, Any], dict[SharedWindow, None]] = {}
        self._ranged: dict[SharedWindow, None] = {}
        self._unready: dict[SharedWindow, None] = {}
        self._unlimited = 0
        watching.watchers.set_collection(path, self)

    def window(self, query: Query, state: int) -> SharedWindow:
        """Return the window of a query; a new one if it is not watched yet, at a state.

        Raises `Unavailable` if there are too many that differ.
        """
        name = name_query(query)
        found = self._windows.get(name)
        if found is None:
            self._check_fields(query)
            found = self._windows[name] = SharedWindow(self, query, state)
            self._fields.update(fields_of(query))
            self._unlimited += not query.is_limited
            if found.exact is None:
                self._ranged[found] = None
            else:
                self._exact.setdefault(found.exact, {})[found] = None
            self.note(found)
        return found

    def _check_fields(self, query: Query) -> None:
        """Raise `Unavailable` if a write would have to read too many fields of each child."""
        most = self.watching.most_fields
        if len(self._fields.keys() | fields_of(query)) > most:
            if not self._windows:
                self.watching.watchers.set_collection(self.path, None)
            raise Unavailable(
                f"The streams and listens of one path order and select by at most {most} fields "
                "(watched_fields_per_path)."
            )

    def note(self, window: SharedWindow) -> None:
        """Note whether a window needs to know of each write."""
        if window.is_ready:
            self._unready.pop(window, None)
        else:
            self._unready[window] = None

    def close(self, window: SharedWindow) -> None:
        """Forget a query that is no longer watched."""
        if self._windows.pop(name_query(window.query), None) is None:
            return
        self._fields.subtract(fields_of(window.query))
        self._fields = +self._fields
        self._unlimited -= not window.query.is_limited
        self._unready.pop(window, None)
        if window.exact is None:
            del self._ranged[window]
        else:
            same = self._exact[window.exact]
            del same[window]
            if not same:
                del self._exact[window.exact]
        if not self._windows:
            self.watching.watchers.set_collection(self.path, None)

    def look(
        self, commit: Commit, replay: Replay | None
    ) -> Generator[None, None, dict[str, Facts] | None]:
        """Return the facts before a write about the children that it writes to.

        None if they are not known; empty if no query needs them. `replay` shows the state before.
        """
        if commit.written_at(self.path) is not None or not (self._unlimited or self._exact):
            return {}
        if replay is None:
            return None
        keys = commit.by_child(self.path)
        try:
            # Queries may come and go meanwhile, and with them fields.
            return (yield from read_all_facts(replay.view, self.path, keys, [*self._fields]))
        except StateUnknown:
            return None

    def follow(
        self, commit: Commit, replay: Replay | None, before: dict[str, Facts] | None
    ) -> Generator[None, None, list[tuple[Audience, Event]]]:
        """Return what a write means to each query; `replay` shows the state after it.

        `before` is what `look` has returned.
        """
        written = None
        if replay is not None and before is not None:
            written = WrittenChildren(commit, self.path, replay.view, before)
            try:
                yield from written.read([*self._fields])
            except StateUnknown:
                written = None
        is_whole = commit.written_at(self.path) is not None
        windows: Iterable[SharedWindow] = self._windows.values()
        if written is not None and not is_whole:
            windows = yield from self._near(written)
        events: list[tuple[Audience, Event]] = []
        sequence = commit.position.sequence
        # A query that came later than the facts were read begins with a state that has the write.
        for number, window in enumerate([each for each in windows if each.since < sequence], 1):
            if written is not None and not is_whole:
                yield from written.sort(window.field)
            if written is None or is_whole or window.is_concerned(written):
                event = yield from window.follow(commit, replay, written)
                if event is not None:
                    events.append((window.audience, event))
                yield
            elif number % PASSED_AT_ONCE == 0:
                yield
        return events

    def _near(self, written: WrittenChildren) -> Generator[None, None, Mapping[SharedWindow, None]]:
        """Return the windows that a write may concern."""
        near = self._ranged | self._unready
        for number, field in enumerate({field for field, _ in self._exact}, 1):
            yield from written.sort(field)
            if number % READ_AT_ONCE == 0:
                yield
            for rank in written.ranks(field):
                near |= self._exact.get((field, rank), {})
        return near


class SharedWindow:
    """One watched query, and the streams that show it.

    Attributes:
        query: what it shows.
        field: what it orders by; None for the keys.
        audience: the streams.
        since: the number of the last write that its streams begin with, or that is not followed.

    """

    _log = Logger()

    def __init__(self, collection: WatchedCollection, query: Query, state: int) -> None:
        """Begin with a state."""
        self.query: Final = query
        self.audience: Final = Audience(self._close_if_unused)
        self._collection = collection
        self._watching = collection.watching
        self._path = collection.path
        self._window: Window | None = None  # without a limit there never is one
        self.since = state  # the window shows, or will show, all writes up to here
        self._begun: dict[QueryStream, int] = {}  # with these states, of which it must show one
        self._spare: tuple[int, Window] | None = None
        self._accounts: dict[QueryStream, HeldAccount] = {}
        self._payer: HeldAccount | None = None
        self._charged = 0
        self._drawing = 0
        self._backlog: Backlog | None = None
        self._when_caught_up: list[Callable[[], None]] = []
        order = query.order
        self.field: Field | None = None if order.kind == "key" else (order.kind, order.path)
        self._range = range_of(query)

    @property
    def exact(self) -> tuple[Field | None, Any] | None:
        """The one rank, or rank of a key, that it selects, and in which field; None for others."""
        low, high = self._range
        return (self.field, low) if low == high else None

    @property
    def is_ready(self) -> bool:
        """Whether it follows writes at once; else they wait for it."""
        return self._backlog is None and (self._window is not None or not self.query.is_limited)

    def is_concerned(self, written: WrittenChildren) -> bool:
        """Return whether it has to follow a write."""
        return not self.is_ready or bool(self._concerned(written))

    def _concerned(self, written: WrittenChildren) -> list[str]:
        """Return the children that it knows, or selects now, of those that were written to."""
        window, field = self._window, self.field
        low, high = self._range
        if window is None:
            others = written.between(field, low, high, is_after=False)
        else:
            others = window.known(written.after)
            low, high = window.cut(low, high)
        keys = written.between(field, low, high, is_after=True)
        return keys if not others else list(dict.fromkeys([*others, *keys]))

    @property
    def is_behind(self) -> bool:
        """Whether its streams have still to be notified of writes that others know of."""
        return self._backlog is not None

    @property
    def drawing(self) -> int | None:
        """The number of the drawing that streams which begin now wait for, None for none."""
        return self._drawing if self.query.is_limited and self._window is None else None

    def attach(
        self,
        stream: QueryStream,
        state: int,
        group: object | None,
        account: HeldAccount | None = None,
    ) -> None:
        """Notify a stream of all changes after a state, which it reads now.

        Of all streams with an account the first is charged for the window, for as long as it stays.
        """
        self.audience.add(stream, state, group)
        if account is not None:
            self._accounts[stream] = account
            if self._payer is None:
                self._payer = account
                account.add(self._charged)
        if self.query.is_limited and self._window is None:
            if not self._begun:
                self.since = state
            self._begun[stream] = state
            if self._spare is not None:  # which may have waited for an earlier drawing of `stream`
                self._use(*self._spare)

    def detach(self, stream: QueryStream) -> None:
        """Stop notifying a stream; without any, the window is closed."""
        self._begun.pop(stream, None)
        account = self._accounts.pop(stream, None)
        if account is not None and account is self._payer:
            account.add(-self._charged)
            self._payer = next(iter(self._accounts.values()), None)
            if self._payer is not None:
                self._payer.add(self._charged)
        if self._window is None and not self._begun:
            self._drop_backlog()
        elif self._spare is not None:
            self._use(*self._spare)
        self.audience.drop(stream)

    def call_when_caught_up(self, call: Callable[[], None]) -> None:
        """Call this when the window has caught up."""
        self._when_caught_up.append(call)

    def keys(self, state: int) -> list[str] | None:
        """Return the keys that are shown at a state, None if they have to be found."""
        shown = max(self.since, self._watching.followed_through)
        if self._window is None or self._backlog is not None or state != shown:
            return None
        return self._window.keys

    def draw(
        self, nodes: Nodes, *, is_export: bool
    ) -> Iterator[tuple[str, Iterator[bytes]] | None]:
        """Yield the children that the query selects in a state, as `select.draw` does.

        If the window was not drawn yet, it shows that state when all have been yielded.
        """
        if self._window is not None or not self.query.is_limited:
            for child in iterate_selected(nodes, self._path, self.query):
                yield None if child is None else (child.key, child.chunks(export=is_export))
            return
        drawing, state = self._drawing, nodes.rows.sequence()
        window, placed = Window(self.query), list[Placed]()
        wider = window.wider_query
        counted = size = 0
        for drawn in draw(nodes, self._path, self.query, wider, placed, is_export=is_export):
            size += sum(map(bytes_of, placed[counted:]))
            counted = len(placed)
            if size > self._charged:
                self._charge(size)
            yield drawn
        if self._window is None and drawing == self._drawing:
            window.fill(placed)
            self._charge(window.bytes)
            self._use(state, window)

    def follow(
        self, commit: Commit, replay: Replay | None, written: WrittenChildren | None
    ) -> EventSteps:
        """Return what a write means to the streams; `replay` shows the state after it.

        `written` is None if that state is not known.
        """
        try:
            if not self.audience.watchers or not self._can_follow(commit, replay):
                return None
            return (yield from self._find_event(commit, replay, written))
        except StateUnknown:
            return self._start_over(commit)
        except (QueryTooLarge, HeldBytesRefused):
            for stream in self._streams():
                stream.revoke()
        except Exception:
            self._fail()
        return None

    def _charge(self, size: int) -> None:
        """Charge for a window of so many bytes, in steps; raise `HeldBytesRefused`."""
        if self._charged - 4 * CHARGED_BYTES <= size <= self._charged:
            return
        due = -(-size // CHARGED_BYTES) * CHARGED_BYTES
        if self._payer is not None:
            more = due - self._charged
            (self._payer.charge if more > 0 else self._payer.add)(more)
        self._charged = due

    def _can_follow(self, commit: Commit, replay: Replay | None) -> bool:
        """Return whether a write can be followed now; else keep it, if it is not shown yet."""
        if not self.query.is_limited:
            return True
        if commit.position.sequence <= self.since:
            return False
        if self._window is None and not self._begun:
            self.since = commit.position.sequence  # it will be drawn from a later state
            return False
        if self._backlog is None and self._window is not None:
            return True
        if self._backlog is None and replay is not None:
            self._backlog = Backlog(replay.fork(without_last=True))
        if self._backlog is None or not self._backlog.add(commit):
            raise StateUnknown
        return False

    def _find_event(
        self, commit: Commit, replay: Replay | None, written: WrittenChildren | None
    ) -> EventSteps:
        """Follow a write, and return what it means to the streams."""
        whole = commit.written_at(self._path)
        if whole is not None and not commit.is_large:
            return (yield from self._show(value_at(whole.value, self._path[len(whole.path) :])))
        if whole is not None or replay is None or written is None:
            raise StateUnknown
        keys = self._concerned(written)
        window = self._window
        if window is None:
            return (yield from written.event((yield from self._compare(written, keys))))
        for number, key in enumerate(keys, 1):
            window.place(key, position_of(self.query, key, written.after[key]))
            if number % READ_AT_ONCE == 0:
                yield
        if not self.audience.watchers:
            return None  # the last stream has left meanwhile
        moved = window.move()
        if moved is None:
            if self._backlog is None and not self._is_extended_soon(replay):
                self._backlog = Backlog(replay.fork())
                self._collection.note(self)
                self._catch_up_later(self._backlog, commit)
                return None
            moved = yield from self._extend(window, replay)
        self._charge(window.bytes)
        return (yield from written.event(moved))

    def _compare(
        self, written: WrittenChildren, keys: Iterable[str]
    ) -> Generator[None, None, Moved]:
        """Return whom a write concerns, if the query has no limit."""
        moved = Moved([], [], [])
        for number, key in enumerate(keys, 1):
            was = position_of(self.query, key, written.before[key]) is not None
            is_shown = position_of(self.query, key, written.after[key]) is not None
            if was or is_shown:
                found = moved.stayed if was and is_shown else moved.left if was else moved.entered
                found.append(key)
            if number % READ_AT_ONCE == 0:
                yield
        return moved

    def _show(self, value: Value) -> Generator[None, None, Event]:
        """Show what the query selects of a new value of the path."""
        placed, children = list[Placed](), dict[str, Value]()
        for number, (key, child) in enumerate(members(value), 1):
            if self.query.where is not None and number > self.query.where.most_children:
                raise TooManyChildren(self.query.where.most_children)
            position = position_of_value(self.query, key, child)
            if position is not None:
                placed.append((position, key))
                children[key] = child
            if number % READ_AT_ONCE == 0:
                yield
        if self._window is None:
            keys = [key for _, key in sorted(placed)]
        else:
            self._window.fill(placed)
            self._charge(self._window.bytes)
            keys = self._window.keys
        shown = [(key, children[key]) for key in keys]
        exported = selection_to_json(shown, is_export=True)
        return Event("put", (), selection_to_json(shown), exported=exported)

    def _is_extended_soon(self, replay: Replay) -> bool:
        """Return whether more children are found without looking through all of them."""
        query = self.query
        if replay.edited.changed_children(self._path) is None:
            return True
        return query.where is None and (
            query.order.kind == "key" or find_index(replay.nodes, self._path, query) is not None
        )

    def _extend(self, window: Window, replay: Replay) -> Generator[None, None, Moved]:
        """Find the children beyond the horizon in the state of a replay, and show some of them."""
        view, path = replay.edited, self._path
        changed, fields = view.changed_children(path), fields_of(self.query)
        found = list[Placed]()
        farthest: Placed | None = None
        if changed is not None:
            hidden, count = set(changed), 0
            beyond = window.beyond(window.missing + len(hidden) + 1)
            for child in iterate_selected(replay.nodes, path, beyond):
                if child is not None:
                    count += 1
                    placed = (child.rank, rank_key(child.key)), child.key
                    farthest = placed if farthest is None else window.later(farthest, placed)
                    if child.key not in hidden:
                        found.append(placed)
                yield
            if count <= window.missing + len(hidden):
                farthest = None  # these are all
        for key in view.keys(path) if changed is None else changed:
            facts = yield from read_facts(view, (*path, key), fields)
            position = position_of(self.query, key, facts)
            if position is not None and (
                farthest is None or window.later(farthest, (position, key)) == farthest
            ):
                found.append((position, key))
            yield
        return window.extend(found, is_all=farthest is None)

    # What waits.

    def _use(self, state: int, window: Window) -> None:
        """Show a state that was drawn, and follow the writes since then.

        If a stream has begun with an earlier state, and has to be notified of writes up to this
        one, only when the stream has left or begins again: its own drawing is under way.
        """
        first = min(self._begun.values(), default=state)
        waiting = None if self._backlog is None else next(iter(self._backlog.commits), None)
        is_waiting = waiting is not None and waiting.position.sequence <= state
        if state > first and (is_waiting or self._watching.followed_through < state):
            if self._spare is None or state < self._spare[0]:
                self._spare = state, window
            return
        self._window, self._spare = window, None
        self.since = state
        self._begun.clear()
        self._collection.note(self)
        if self._backlog is not None:
            self._catch_up_later(self._backlog)

    def _catch_up_later(self, backlog: Backlog, commit: Commit | None = None) -> None:
        """Begin to catch up after the round: it may still have to deliver earlier events."""
        watching, steps = self._watching, self._catch_up(backlog, commit)

        def begin() -> Steps:
            watching.background.add(self._guarded(steps, backlog))
            yield

        watching.rounds.run_later(begin())

    def _catch_up(self, backlog: Backlog, commit: Commit | None) -> Steps:
        """Follow what waits; first extend the window for the write that has used its reserve up."""
        replay, window = backlog.replay, self._window
        if commit is not None and window is not None:
            moved = yield from self._extend(window, replay)
            self._charge(window.bytes)
            written = WrittenChildren(commit, self._path, replay.view, {})
            yield from self._send(commit, (yield from written.event(moved)))
        while backlog.commits and self._backlog is backlog:
            commit = backlog.take()
            replay.add(commit)
            if commit.position.sequence <= self.since:
                continue
            try:
                event = yield from self._find_event_late(commit, replay)
            except StateUnknown:
                self._watching.background.add(self._send(commit, self._start_over(commit)))
                return
            yield from self._send(commit, event)

    def _find_event_late(self, commit: Commit, replay: Replay) -> EventSteps:
        commit = complete(commit, replay.view)
        written = WrittenChildren(commit, self._path, replay.view, {})
        yield from written.read(fields_of(self.query))
        yield from written.sort(self.field)
        return (yield from self._find_event(commit, replay, written))

    def _send(self, commit: Commit, event: Event | None) -> Steps:
        if event is not None:
            yield from self.audience.notify_all(Notification(((commit.position, event),)))

    def _guarded(self, steps: Steps, backlog: Backlog) -> Steps:
        """Run the steps while there are streams; an exception ends the streams."""
        try:
            while self.audience.watchers and self._backlog is backlog:
                next(steps)
                yield
        except StopIteration:
            pass
        except (QueryTooLarge, HeldBytesRefused):
            for stream in self._streams():
                stream.revoke()
        except Exception:
            self._fail()
        finally:
            steps.close()
            if self._backlog is backlog:
                self._drop_backlog()

    def _drop_backlog(self) -> None:
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            self._collection.note(self)
            backlog.replay.close()
            waiting, self._when_caught_up = self._when_caught_up, []
            for call in waiting:
                call()

    def _start_over(self, commit: Commit) -> Event:
        """Return that the streams have to read their value again, which will draw the window."""
        self.since = commit.position.sequence
        self._window = self._spare = None
        self._charge(0)
        self._begun.clear()
        self._drawing += 1
        self._drop_backlog()
        self._collection.note(self)
        return MISSED

    # The streams.

    def _streams(self) -> list[QueryStream]:
        streams: list[Any] = list(self.audience.watchers)
        return streams

    def _fail(self) -> None:
        """End the streams after the exception that is being handled."""
        self._log.failure("The window of a query failed.")
        for stream in self._streams():
            stream.fail()

    def _close_if_unused(self) -> None:
        if not self.audience.watchers:
            self._drop_backlog()
            self._window = self._spare = None
            self.audience.end()
            self._collection.close(self)


class Backlog:
    """The writes that a window has still to follow, and a replay of the state before them."""

    def __init__(self, replay: Replay) -> None:
        """Go on from `replay`, which is closed with the backlog."""
        self.replay: Final = replay
        self.commits: Final[deque[Commit]] = deque()
        self._bytes = 0

    def add(self, commit: Commit) -> bool:
        """Keep another write; return False if there is no room for it."""
        self.commits.append(commit)
        self._bytes += commit.size
        return len(self.commits) <= MAX_WAITING and self._bytes <= MAX_WAITING_BYTES

    def take(self) -> Commit:
        """Return the next write."""
        commit = self.commits.popleft()
        self._bytes -= commit.size
        return commit


class WrittenChildren:
    """What one write did to the children of a path, computed once for all queries of the path.

    It has the facts of each child that was written to, by which queries decide whether it enters,
    leaves or stays (`tree.window`), and the event of each of these, so that its bytes are made once
    however many queries show it.

    Attributes:
        commit: the write.
        after: the facts about each child that it wrote to, after it.
        before: the same before it; empty if no query needs them.

    """

    def __init__(self, commit: Commit, path: Path, view: View, before: dict[str, Facts]) -> None:
        """Read what is not in the commit from `view`, the tree after it."""
        self.commit: Final = commit
        self.before: Final = before
        self.after: Final[dict[str, Facts]] = {}
        self._path = path
        self._view = view
        self._changes = commit.by_child(path)
        self._ranked: dict[tuple[Field | None, bool], tuple[list[Any], list[str]]] = {}
        self._values: dict[str, Value] = {}
        self._events: dict[tuple[str, str], Event] = {}

    def read(self, fields: Collection[Field]) -> Steps:
        """Read the facts after the write; raise `StateUnknown`, also if they are too many."""
        self.after.update(
            (yield from read_all_facts(self._view, self._path, self._changes, fields))
        )

    def ranks(self, field: Field | None) -> set[Any]:
        """Return the ranks in a field, or of the keys, before and after the write."""
        return {rank for is_after in (False, True) for rank in self._sorted(field, is_after)[0]}

    def between(self, field: Field | None, low: Any, high: Any, *, is_after: bool) -> list[str]:
        """Return the keys of the children whose rank in a field, or own, is between two others."""
        ranks, keys = self._sorted(field, is_after)
        if not ranks or high < ranks[0] or ranks[-1] < low:
            return []
        return keys[bisect_left(ranks, low) : bisect_right(ranks, high)]

    def sort(self, field: Field | None) -> Steps:
        """Sort the children by a field, or by their keys; a step ends after some of them."""
        for is_after, children in ((False, self.before), (True, self.after)):
            if (field, is_after) not in self._ranked and len(children) > SORTED_AT_ONCE:
                pairs = yield from sort_in_steps(self._pairs(field, children))
                self._ranked[field, is_after] = _split(pairs)

    def _sorted(self, field: Field | None, is_after: bool) -> tuple[list[Any], list[str]]:
        found = self._ranked.get((field, is_after))
        if found is None:
            pairs = sorted(self._pairs(field, self.after if is_after else self.before))
            found = self._ranked[field, is_after] = _split(pairs)
        return found

    @staticmethod
    def _pairs(field: Field | None, children: Mapping[str, Facts]) -> Iterator[tuple[Any, str]]:
        for key, facts in children.items():
            # A query may order by a field since after the facts were read.
            if facts is not None and (field is None or field in facts):
                yield (rank_key(key) if field is None else facts[field]), key

    def event(self, moved: Moved) -> EventSteps:
        """Return what a stream receives of it; raise `StateUnknown`."""
        number = sum(map(len, moved))
        if number == 0:
            return None
        if self.commit.is_large and len(self.commit.path) <= len(self._path):
            return MISSED  # it wrote to very many children
        if number > 1:
            return (yield from self._event_of_several(moved))
        for kind, keys in zip(("entered", "left", "stayed"), moved, strict=True):
            for key in keys:
                event = self._events.get((kind, key))
                if event is None:
                    event = yield from self._event_of_one(kind, key)
                    self._events[kind, key] = event
        return event

    def _event_of_one(self, kind: str, key: str) -> Generator[None, None, Event]:
        if kind == "left":
            return Event("put", (key,), None)
        if kind == "stayed":
            return self._as_written(key)
        if self._size_of(key) > EVENT_BYTES:
            return MISSED
        return put_event((key,), (yield from self._value(key)))

    def _event_of_several(self, moved: Moved) -> EventSteps:
        data: dict[str, Json] = dict.fromkeys(moved.left)
        exported: dict[str, Json] = dict.fromkeys(moved.left)
        size = 0
        for key in moved.entered:
            size += self._size_of(key)
            if size > EVENT_BYTES:
                return MISSED
            value = yield from self._value(key)
            data[key], exported[key] = plain(value), as_json(value)
            yield
        for key in moved.stayed:
            if self._is_short(key):
                value = yield from self._value(key)
                data[key], exported[key] = plain(value), as_json(value)
            else:
                written = members_of(self._changes[key], len(self._path))
                data |= written[0]
                exported |= written[1]
            yield
        return Event("patch", (), data, exported=exported)

    def _as_written(self, key: str) -> Event:
        """Return what a watcher of the path receives, of one child."""
        if len(self.commit.path) > len(self._path):
            return self.commit.event_at_or_above(self._path)
        whole = self._written_whole(key)
        if whole is not None:
            return put_event((key,), whole.value)
        return patch_event((key,), self._changes[key], len(self._path) + 1)

    def _written_whole(self, key: str) -> CommittedChange | None:
        """Return the change that sets a child to a value that is known, if one does."""
        for change in self._changes.get(key, ()):
            is_whole = len(change.path) == len(self._path) + 1 and not change.is_priority
            if is_whole and not self.commit.is_large:
                return change
        return None

    def _value(self, key: str) -> Generator[None, None, Value]:
        whole = self._written_whole(key)
        if whole is not None:
            return whole.value
        if key not in self._values:
            self._values[key] = yield from read_in_steps(self._view, (*self._path, key))
        return self._values[key]

    def _is_short(self, key: str) -> bool:
        return self._written_whole(key) is not None or (
            self._view.size((*self._path, key), RESENT_BYTES) <= RESENT_BYTES
        )

    def _size_of(self, key: str) -> int:
        """Return the bytes that have to be read of a child; counting may stop at `EVENT_BYTES`."""
        if self._written_whole(key) is not None:
            return 0
        return self._view.size((*self._path, key), EVENT_BYTES)


def read_all_facts(
    view: View, path: Path, keys: Iterable[str], fields: Collection[Field]
) -> Generator[None, None, dict[str, Facts]]:
    """Return the facts about some children of `path`, in steps.

    Raises `StateUnknown`, also if they are more than `MOST_FACTS`, or hold too long strings.
    """
    facts: dict[str, Facts] = {}
    text: list[int] = []
    looked_at = total = 0
    for key in keys:
        looked_at += max(1, len(fields))
        total += max(1, len(fields))
        if total > MOST_FACTS or (text and sum(text) > MOST_TEXT):
            raise StateUnknown
        facts[key] = yield from read_facts(view, (*path, key), fields, text.append)
        text = [sum(text)]
        if looked_at >= READ_AT_ONCE:
            looked_at = 0
            yield
    return facts


def _split(pairs: Sequence[tuple[Any, str]]) -> tuple[list[Any], list[str]]:
    return [rank for rank, _ in pairs], [key for _, key in pairs]


def read_in_steps(view: View, path: Path) -> Generator[None, None, Value]:
    """Return the value at a path, a large one read child by child."""
    if view.size(path, READ_BYTES) <= READ_BYTES or not isinstance(view.peek(path), Container):
        return view.get(path)
    children: dict[str, Value] = {}
    for key in view.keys(path):
        children[key] = yield from read_in_steps(view, (*path, key))
        yield
    return with_priority(children, view.priority(path))
