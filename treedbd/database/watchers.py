"""Watchers of one database by path: their rights, and what they are notified of, and when.

Theory of operation. `Watching` is what everything that watches uses. After each commit of a batch,
of this process or another, comes a round (`group_commit.Rounds`). The writes of the batch are
followed one by one, in the order of their numbers: first the grants are checked whose rules have
read what was written (`ReadGrants`), then what it means to the watchers and to the watched queries
that it concerns is computed (`watched_queries`). What all that needs to know of the state that a
write has made comes from a replay of it (`resume.Moments`). What was found is delivered together,
in order (`Delivery`).

Each write is at most one event to an *audience*: those who watch a path, or a query of it. What a
write means to an audience is computed once, however many watchers it has. A watcher is notified
only of writes newer than the state it started from; one that raises is removed and disturbs no
other. Those who watch the *changes* of a path, without values, are another audience of it
(`Event` of the kind `changed`): nothing is read or printed of what was written for them.

A watcher is called once for a batch, with an event for each write that concerns it. What several
watchers of one client receive has one order, that of the writes, if they were added with that
client as their `group`: when a write concerns another of them than the writes before it in the
batch, these are delivered to all groups first. So a watcher of a group may be called several times
for a batch. Notifying is done in steps, between which watchers may come, go and start again. Those
that came or started again did so from a state with all of the batch, so they are not notified of
it.

A `Subscription` is what one stream shows of a path: the whole node, or the children that a query
selects (`watched_queries.QuerySubscription`). Both register a stream together with the state that
it begins with, and render its first value from the nodes of that state, in chunks, so that a large
value can be rendered in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import attrs
from twisted.logger import Logger

from treedbd.database.requests import PermissionDenied
from treedbd.database.rights import ReadRequest
from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.limits import KIB
from treedbd.rules.context import Dependencies, WrittenPaths
from treedbd.rules.ruleset import RuleSet
from treedbd.store.engine import Engine, PresentView
from treedbd.store.nodes import Nodes, PresentNodes, spell_chunks
from treedbd.store.rows import may_be_shown_otherwise
from treedbd.tree.event import EVENT_BYTES, Commit, CommittedChange, Event, Position, complete
from treedbd.tree.overlay import StateUnknown
from treedbd.tree.types import PRIORITY, Chunks, Path, View
from treedbd.tree.value import compact, print_members
from treedbd.tree.window import Facts

if TYPE_CHECKING:
    from treedbd.database.database import Database
    from treedbd.database.group_commit import Rounds
    from treedbd.database.resume import FlushMoments, Moments, Replay
    from treedbd.database.watched_queries import SharedWindow, WatchedCollection


T = TypeVar("T")

_NOTHING: Final = Dependencies(frozenset(), reads_time=False)
_WRITTEN: Final = Event("put", (), None)
"""That something was written is all that a grant is notified of."""
_SEARCHED_AT_ONCE: Final = 64 * KIB
_LONGEST_SIGN_BYTES: Final = 16
"""Bytes by which what is searched overlaps: more than what is searched for has."""
PAUSE_AFTER: Final = 64
"""Keys of a PATCH that are followed in one step."""
NOTIFIED_AT_ONCE: Final = 8
"""Watchers that are notified in one step, if each only sends bytes."""
_NO_GROUPS: Final[dict[Watcher, object]] = {}
"""The groups of an audience without any."""

_Calls: TypeAlias = "dict[object, tuple[Callable[[], None], Callable[[], SharedWindow | None]]]"
"""By their callers: calls, each with what finds a window that still has to catch up."""
_Found: TypeAlias = "dict[Audience, list[tuple[Position, Event]]]"


@attrs.frozen
class Notification:
    """What the writes of one batch mean to an audience: an event for each, with its position.

    `shared` is for the watchers: what one of them computes from the events, the next can use. With
    `is_missed` an event is too large to be sent, so a watcher has to read its value again.
    """

    events: tuple[tuple[Position, Event], ...]
    shared: dict[object, Any] = attrs.field(factory=dict, eq=False)
    is_missed: bool = attrs.field(init=False, eq=False)

    @is_missed.default
    def _(self) -> bool:
        return any(event.is_missed for _, event in self.events)


class Watcher(Protocol):
    """Receives what is written at a path."""

    def notify(self, notification: Notification) -> bool | None:
        """Receive what was written.

        Returns True if that took microseconds, as sending bytes does: others may be notified in the
        same step. No value is read then, and no rule evaluated.
        """
        ...


class Watching:
    """The watchers of one database, and the states that they begin with.

    Attributes:
        watchers: by path.
        rounds: what is run between two batches.
        background: long work for watchers that writers do not wait for; one after the other.
        most_fields: by how many fields the queries of one path may order and select.
        followed_through: the number of the last write that was followed, 0 if there was none since
            the start; the watchers that it concerns may still have to be notified.

    """

    def __init__(
        self,
        engine: Engine,
        moments: Moments,
        nodes_of: Callable[[PresentView], PresentNodes],
        shown_nodes_of: Callable[[PresentView], PresentNodes],
        grants: ReadGrants,
        rounds: Rounds,
        slices: Slices,
        most_fields: int,
    ) -> None:
        """Read the durable state from `engine`, by `nodes_of`; watchers have `grants`.

        Queries begin with the moment that `shown_nodes_of` shows.
        """
        self.watchers: Final = Watchers()
        self.rounds: Final = rounds
        self.background: Final = StepQueue(slices)
        self.most_fields: Final = most_fields
        self.followed_through = 0
        self._engine = engine
        self._moments = moments
        self._nodes_of = nodes_of
        self._shown_nodes_of = shown_nodes_of
        self._grants = grants
        self._calls: _Calls = {}
        self._calling = _call_each(self._calls)

    def read(self, work: Callable[[PresentNodes], T]) -> T:
        """Run `work` on the last durable state and return its result."""
        return self._engine.read(lambda view: work(self._nodes_of(view)))

    def read_shown(self, work: Callable[[PresentNodes], T]) -> T:
        """Run `work` on the same, with the volatile nodes that watchers know of by now."""
        return self._engine.read(lambda view: work(self._shown_nodes_of(view)))

    def watch(
        self,
        path: Path,
        watcher: Watcher,
        work: Callable[[PresentNodes], T],
        group: object | None = None,
        *,
        of_changes: bool = False,
    ) -> tuple[T, int]:
        """Notify `watcher` of what concerns `path` from now on, as one of a `group`.

        Of changes it is notified without their values. Returns what `work` made of the present
        state, and its sequence number: the watcher is notified of every later write and no earlier
        one. A second call replaces the first.
        """

        def read(view: PresentView) -> tuple[T, int]:
            nodes = self._nodes_of(view)
            return work(nodes), nodes.rows.sequence()

        result, sequence = self._engine.read(read)
        self.watchers.add(path, watcher, sequence, group, of_changes=of_changes)
        return result, sequence

    def notify(self, commits: Sequence[Commit], of_flush: FlushMoments | None = None) -> Steps:
        """Notify of the writes of one batch, in their order; no other may be notified of yet.

        Or of a flush of volatile nodes, with the moments that it has.
        """
        delivery, moments = Delivery(), self._moments if of_flush is None else of_flush
        try:
            for commit in commits:
                yield from self._follow(commit, delivery, moments, is_last=commit is commits[-1])
            yield from delivery.finish()
        finally:
            moments.release_unneeded()

    def call_when_notified(
        self,
        caller: object,
        call: Callable[[], None],
        find_behind: Callable[[], SharedWindow | None],
    ) -> None:
        """Call this when the watchers have been notified of all that is durable by now.

        Called by a writer who is answered, it is called in the same round; of what one `caller`
        wants called there, only the last is. `find_behind` returns a watched query of the caller
        that still has to catch up; that is waited for, too.
        """
        if not self.rounds.ends_with(self._calling):
            self._calls = {}
            self._calling = _call_each(self._calls)
            self.rounds.add(self._calling)
        self._calls[caller] = call, find_behind
        self.rounds.start()

    def position(self, sequence: int) -> Position:
        """Return the position of a client that has received everything up to a number."""
        sequence = int(sequence)  # of a moment, that of the write before
        entry = self._engine.read(lambda view: next(view.entries(sequence - 1), None))
        is_known = entry is not None and entry.sequence == sequence
        return Position(sequence, entry.op_id if entry is not None and is_known else b"")

    def _follow(
        self, commit: Commit, delivery: Delivery, moments: Moments | FlushMoments, *, is_last: bool
    ) -> Steps:
        """Find what one write means to the watchers that it concerns."""
        sequence = commit.position.sequence
        replay = moments.replay_to(sequence - 1)
        concerned, events = yield from self._concerned(commit)
        before: list[dict[str, Facts] | None] = []
        for each in concerned:
            collection = each.node.collection
            before.append(
                None if collection is None else (yield from collection.look(each.commit, replay))
            )
        replay = moments.add(commit)
        yield from self._grants.follow(commit, replay, delivery.finish, is_last=is_last)
        completed = yield from self._completed(commit, replay)
        for number, (each, facts) in enumerate(zip(concerned, before, strict=True), 1):
            node, part = each.node, each.commit
            part = completed if part is commit else (yield from self._completed(part, replay))
            event = part.event_at(each.path) if node.audience.watchers else None
            if event is not None:
                events.append((node.audience, event))
            if node.collection is not None:
                events += yield from node.collection.follow(part, replay, facts)
            if number % PAUSE_AFTER == 0:
                yield
        yield from delivery.add(commit.position, events)
        self.followed_through = sequence

    def _concerned(
        self, commit: Commit
    ) -> Generator[None, None, tuple[list[Concerned], list[tuple[Audience, Event]]]]:
        """Return where values are watched, and what the write means to those without values."""
        found: list[Concerned] = []
        changed: list[tuple[Audience, Event]] = []
        for each in self.watchers.concerned(commit):
            if each is not None:
                audience = each.node.changes
                event = None if audience is None else each.commit.changed_at(each.path)
                if audience is not None and event is not None:
                    changed.append((audience, event))
                if audience is None or each.node.shows_values:
                    found.append(each)
            yield
        return found, changed

    def _completed(self, commit: Commit, replay: Replay | None) -> Generator[None, None, Commit]:
        """Return a write with what watchers receive of it that only the rows hold."""
        is_watched = self.watchers.shows_at_or_above
        if commit.is_large:
            if not is_watched(commit.path):
                return commit
            nodes = None if replay is None or replay.has_writes else replay.nodes
            return (yield from print_large(commit, nodes))
        priorities = [] if commit.is_complete else commit.changes
        if any(change.is_priority and is_watched(change.path) for change in priorities):
            if replay is not None:
                return complete(commit, replay.view)
            return self.read(lambda nodes: complete(commit, nodes))
        return commit


def _call_each(calls: _Calls) -> Steps:
    """Make the calls of a round, and keep none of them."""
    while calls:
        call, find_behind = calls.pop(next(iter(calls)))
        _call_when_caught_up(call, find_behind)
        yield


def _call_when_caught_up(
    call: Callable[[], None], find_behind: Callable[[], SharedWindow | None]
) -> None:
    window = find_behind()
    if window is None:
        call()
    else:
        window.call_when_caught_up(lambda: _call_when_caught_up(call, find_behind))


class Subscription(Protocol):
    """What one stream shows."""

    @property
    def behind(self) -> SharedWindow | None:
        """The window of a query, while it has to catch up with what others were notified of."""
        ...

    def watch(self, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Notify the stream from now on; return what `work` made of the present state, its number.

        Another call begins again.
        """
        ...

    def watch_from(self, state: int) -> None:
        """Notify the stream of what follows a state that was read or held in this turn."""
        ...

    def unwatch(self) -> None:
        """Stop notifying the stream; no error if it is not notified."""
        ...

    def end(self) -> None:
        """Stop notifying the stream for good, and forget it, so that nothing keeps it."""
        ...

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the first value from the state that the stream began with."""
        ...


@attrs.define(eq=False, repr=False)
class NodeSubscription:
    """All of a node; the streams of a `group` are notified in the order of the writes.

    One of changes is notified without their values.
    """

    _watching: Watching
    _path: Path
    _stream: Watcher
    _group: object | None = None
    _of_changes: bool = False

    behind = None

    def watch(self, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Notify the stream from now on; return what `work` made of the present state."""
        return self._watching.watch(
            self._path, self._stream, work, self._group, of_changes=self._of_changes
        )

    def watch_from(self, state: int) -> None:
        """Notify the stream of what comes after a state."""
        self._watching.watchers.add(
            self._path, self._stream, state, self._group, of_changes=self._of_changes
        )

    def unwatch(self) -> None:
        """Stop notifying the stream."""
        self._watching.watchers.remove(self._path, self._stream, of_changes=self._of_changes)

    def end(self) -> None:
        """Stop notifying the stream, and forget it."""
        self.unwatch()
        del self._stream

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the value at the path."""
        return nodes.chunks(self._path)


class Watchers:
    """The watchers of one database, and its watched queries; `count` is how many there are.

    `collections` is how many paths have watched queries.

    They are kept in a tree of nodes, one for each watched path and its ancestors. A write is
    followed from the root down to its own path: the nodes on the way watch the path or an ancestor
    of it. Then the nodes below the path are visited, which watch a descendant. Unrelated nodes are
    never visited, so the cost of a write grows with the watchers that it concerns.
    """

    def __init__(self) -> None:
        self.count = self.collections = 0
        self._dropped = self._count_down
        self._root = _Node(self._dropped)

    def add(
        self,
        path: Path,
        watcher: Watcher,
        since: int,
        group: object | None = None,
        *,
        of_changes: bool = False,
    ) -> None:
        """Notify `watcher` of writes that concern `path` and are newer than the number `since`.

        All watchers of a `group` are notified in the order of the writes. Of changes it is notified
        without their values.
        """
        node = self._make_node(path)
        audience = node.audience
        if of_changes:
            audience = node.changes = node.changes or Audience(self._dropped)
        self.count += watcher not in audience.watchers
        audience.add(watcher, since, group)

    def remove(self, path: Path, watcher: Watcher, *, of_changes: bool = False) -> None:
        """Stop notifying `watcher` of `path`, or of its changes; no error if it is not there."""
        trail = self._trail(path)
        if len(trail) > len(path):
            node = trail[-1]
            audience = node.changes if of_changes else node.audience
            if audience is not None:
                audience.drop(watcher)
            if of_changes and not (audience and audience.watchers):
                node.changes = None
            _prune(trail, path)

    def collection(self, path: Path) -> WatchedCollection | None:
        """Return the watched queries of the children of `path`."""
        trail = self._trail(path)
        return trail[-1].collection if len(trail) > len(path) else None

    def set_collection(self, path: Path, collection: WatchedCollection | None) -> None:
        """Set the watched queries of the children of `path`; None removes them."""
        node = self._make_node(path)
        added = (collection is not None) - (node.collection is not None)
        self.count += added
        self.collections += added
        node.collection = collection
        _prune(self._trail(path), path)

    def shows_at_or_above(self, path: Path) -> bool:
        """Return whether the value at `path` or above it is watched."""
        return any(node.shows_values for node in self._trail(path))

    def are_at(self, path: Path) -> bool:
        """Return whether anything at, above or below a path is watched."""
        trail = self._trail(path)
        return len(trail) > len(path) or any(node.is_watched for node in trail)

    def concerned(self, commit: Commit) -> Iterator[Concerned | None]:
        """Yield the watched nodes on the way to a write and below it; None at a pause."""
        node = self._root
        for depth, key in enumerate(commit.path):
            if node.is_watched:
                yield Concerned(node, commit.path[:depth], commit)
            below = node.children.get(key)
            if below is None:
                return
            node = below
        if node.is_watched:
            yield Concerned(node, commit.path, commit)
        if commit.method == "put":
            for below, path in _watched_below(node, commit.path):
                yield Concerned(below, path, commit)
        else:
            yield from self._reached(node, commit)

    def _count_down(self) -> None:
        self.count -= 1

    def _make_node(self, path: Path) -> _Node:
        node = self._root
        for key in path:
            below = node.children.get(key)
            if below is None:
                below = node.children[key] = _Node(self._dropped)
            node = below
        return node

    def _trail(self, path: Path) -> list[_Node]:
        """Return the nodes from the root on, as far towards `path` as there are any."""
        trail = [self._root]
        for key in path:
            node = trail[-1].children.get(key)
            if node is None:
                break
            trail.append(node)
        return trail

    def _reached(self, node: _Node, commit: Commit) -> Iterator[Concerned | None]:
        """Yield the nodes below a PATCH that any of its keys reaches, each once."""
        reached: dict[_Node, tuple[Path, list[CommittedChange]]] = {}
        for number, change in enumerate(commit.changes, 1):
            if number % PAUSE_AFTER == 0:
                yield None
            at, path = node, commit.path
            for key in change.path[len(commit.path) :]:
                below = at.children.get(key)
                if below is None:
                    break
                at, path = below, (*path, key)
                if at.is_watched:
                    reached.setdefault(at, (path, []))[1].append(change)
            else:
                for lower, lower_path in _watched_below(at, path):
                    reached.setdefault(lower, (lower_path, []))[1].append(change)
        # Of a PATCH of many keys each node reads only those that reach it.
        for at, (path, changes) in reached.items():
            yield Concerned(at, path, attrs.evolve(commit, changes=tuple(changes)))


@attrs.frozen
class Concerned:
    """What a write means at one watched path; `commit` has those of its changes that reach it."""

    node: _Node
    path: Path
    commit: Commit


class _Node:
    """A watched path, or one above a watched path; `changes` are watched without values."""

    __slots__ = ("audience", "changes", "children", "collection")

    def __init__(self, dropped: Callable[[], None]) -> None:
        self.children: dict[str, _Node] = {}
        self.audience = Audience(dropped)
        self.changes: Audience | None = None
        self.collection: WatchedCollection | None = None

    @property
    def is_watched(self) -> bool:
        is_shown = bool(self.audience.watchers) or self.collection is not None
        return is_shown or self.changes is not None

    @property
    def shows_values(self) -> bool:
        return bool(self.audience.watchers) or self.collection is not None


def _prune(trail: list[_Node], path: Path) -> None:
    """Remove the nodes at the end of a trail that are not needed."""
    for at in range(len(path), 0, -1):
        if trail[at].is_watched or trail[at].children:
            return
        del trail[at - 1].children[path[at - 1]]


def _after(since: int, notification: Notification) -> Notification:
    """Return the events newer than a state within the batch, which other processes can leave."""
    return Notification(tuple(each for each in notification.events if each[0].sequence > since))


def _watched_below(node: _Node, path: Path) -> Iterator[tuple[_Node, Path]]:
    """Yield the watched nodes strictly below one at `path`, with their paths."""
    for key, child in list(node.children.items()):  # which may change between two steps
        below = (*path, key)
        if child.is_watched:
            yield child, below
        yield from _watched_below(child, below)


def do_nothing() -> None:
    """Replace what a watcher or a grant calls, once that has ended."""


class Audience:
    """The watchers that are notified of the same events.

    Attributes:
        watchers: each with the number of the state that it started from.
        groups: those that belong to a client with other watchers, each with that client.

    """

    __slots__ = ("_dropped", "groups", "watchers")
    _log = Logger()

    def __init__(self, dropped: Callable[[], None]) -> None:
        """Call `dropped` after a watcher was removed."""
        self.watchers: dict[Watcher, int] = {}
        self.groups: dict[Watcher, object] = _NO_GROUPS
        self._dropped = dropped

    def add(self, watcher: Watcher, since: int, group: object | None) -> None:
        """Notify a watcher of writes that are newer than the number `since`."""
        self.watchers[watcher] = since
        if group is not None:
            if not self.groups:
                self.groups = {}
            self.groups[watcher] = group

    def drop(self, watcher: Watcher) -> None:
        """Remove a watcher; no error if it is not there."""
        if self.watchers.pop(watcher, None) is not None:
            self.groups.pop(watcher, None)
            self._dropped()

    def end(self) -> None:
        """Stop calling `dropped`, and keep nothing that it belongs to."""
        self._dropped = do_nothing

    def notify_all(self, notification: Notification) -> Steps:
        """Notify all watchers."""
        return self.notify(list(self.watchers), notification)

    def notify(self, watchers: Sequence[Watcher], notification: Notification) -> Steps:
        """Notify some watchers of what they have not seen."""
        first, last = (notification.events[at][0].sequence for at in (0, -1))
        started_from, notified = self.watchers, 0
        for watcher in watchers:
            since = started_from.get(watcher)
            if since is None or since >= last:
                continue
            is_short: bool | None = False
            try:
                is_short = watcher.notify(
                    notification if since < first else _after(since, notification)
                )
            except Exception:
                self._log.failure("A watcher failed and is removed.")
                self.drop(watcher)
            notified += 1
            if not is_short or notified >= NOTIFIED_AT_ONCE:
                notified = 0
                yield


class Delivery:
    """The events of one batch, on their way to the audiences that they concern."""

    def __init__(self) -> None:
        self._alone: _Found = {}
        self._in_groups: _Found = {}
        self._audience_of_group: dict[object, Audience] = {}
        # Those in `_in_groups` whose groups are not noted: of one audience that is not needed.
        self._not_noted: list[Audience] = []
        self._is_shared = False
        self._notifications: dict[tuple[tuple[int, int], ...], Notification] = {}

    def add(self, position: Position, events: Sequence[tuple[Audience, Event]]) -> Steps:
        """Add what the next write means to each audience that it concerns."""
        if self._in_groups and any(self._is_elsewhere(audience) for audience, _ in events):
            yield from self._deliver_to_groups()
        for at, (audience, event) in enumerate(events, 1):
            if audience.groups:
                self._add_to_groups(audience, (position, event))
            if len(audience.groups) < len(audience.watchers):
                self._alone.setdefault(audience, []).append((position, event))
            if at % PAUSE_AFTER == 0:
                yield

    def finish(self) -> Steps:
        """Deliver what was added so far."""
        yield from self._deliver_to_groups()
        alone, self._alone = self._alone, {}
        for audience, events in alone.items():
            groups = audience.groups
            watchers = [each for each in audience.watchers if each not in groups]
            yield from audience.notify(watchers, self._make(events))

    def _add_to_groups(self, audience: Audience, event: tuple[Position, Event]) -> None:
        if audience not in self._in_groups:
            self._in_groups[audience] = []
            self._not_noted.append(audience)
            if len(self._in_groups) > 1:
                self._note_groups()
        self._in_groups[audience].append(event)

    def _note_groups(self) -> None:
        noted, self._not_noted = self._not_noted, []
        for audience in noted:
            for group in audience.groups.values():
                if self._audience_of_group.setdefault(group, audience) is not audience:
                    self._is_shared = True

    def _is_elsewhere(self, audience: Audience) -> bool:
        """Return whether a group of this audience must receive events of another one first."""
        if not audience.groups:
            return False
        if self._is_shared:
            return True
        if not self._in_groups or audience in self._in_groups:
            return False
        self._note_groups()
        seen = self._audience_of_group
        return any(group in seen for group in audience.groups.values())

    def _deliver_to_groups(self) -> Steps:
        found, self._in_groups = self._in_groups, {}
        self._audience_of_group, self._not_noted, self._is_shared = {}, [], False
        for audience, events in found.items():
            yield from audience.notify(list(audience.groups), self._make(events))

    def _make(self, events: list[tuple[Position, Event]]) -> Notification:
        """Return one notification for all audiences that receive the same events."""
        key = tuple([(position.sequence, id(event)) for position, event in events])
        made = self._notifications.get(key)
        if made is None:
            made = self._notifications[key] = Notification(tuple(events))
        return made


@attrs.define(eq=False, repr=False)
class ReadGrant:
    """The right to one read; held from the first `check` that does not raise until it is closed.

    A grant records what the rules read when they allowed it. It is registered at those paths like
    any watcher, and is checked again when a commit touches one of them, before watchers are
    notified of that commit; a rule that reads nothing but `auth` costs nothing for a commit. Rules
    that read the time are checked again whenever something is about to be sent (`is_timed`).

    Each write of a batch is followed by itself: a grant that depends on it is checked against the
    state that it made, whatever the next ones do. If that state is not known, it is uncertain
    whether the grant held there. A grant that cannot be checked is revoked.

    Many checks are done in slices. The database is in a round meanwhile, so what was just committed
    is not sent before the checks are over. When the rules change, that order is not kept: a grant
    `must_be_checked` before anything is sent, unless it has been checked by then.

    `revoked` is called when the right is lost later, `uncertain` if a write changed what the rules
    read and the state that it made is not known: what was written in that moment must not be sent.
    """

    _grants: ReadGrants
    _request: ReadRequest
    _revoked: Callable[[], None]
    _uncertain: Callable[[], None]
    checked_under: RuleSet | None = attrs.field(default=None, init=False)
    """While these rules are in force, only a write can revoke the grant; None if time can."""
    _depends_on: Dependencies = attrs.field(default=_NOTHING, init=False)
    _rules: RuleSet | None = attrs.field(default=None, init=False)

    _log = Logger()

    @property
    def is_timed(self) -> bool:
        """Whether time alone can revoke the grant."""
        return self._depends_on.reads_time

    @property
    def is_outdated(self) -> bool:
        """Whether the grant is held under rules that are no longer in force."""
        return self._rules is not self._grants.rules.current and self in self._grants.held

    @property
    def must_be_checked(self) -> bool:
        """Whether time or other rules may have revoked the grant since it was checked."""
        return self.is_timed or self.is_outdated

    def held_through(
        self, checked: int, nodes: Nodes, written: WrittenPaths, rules: Iterable[str]
    ) -> bool:
        """Return whether the grant holds at a state, and held when these paths were written before.

        `checked` is the number of the state for which it was checked last; for another it is
        checked again. `rules` are the fingerprints of the rules that were in force when the paths
        were written. False if anything is uncertain.
        """
        if self._request.caller.is_admin:
            return True
        if self not in self._grants.held:
            return False
        if nodes.rows.sequence() != checked or self.is_outdated:
            try:
                self.check(nodes)
            except PermissionDenied:
                return False
        fingerprint = self._grants.rules.current.fingerprint
        if any(former != fingerprint for former in rules):
            return False
        return not self.is_timed and not self._depends_on.touched_by(written)

    def check(self, view: View) -> None:
        """Evaluate the rules against `view`; raise `PermissionDenied`."""
        request = self._request
        if request.caller.is_admin:
            return
        grants = self._grants
        auth, path, query, now = request.caller.auth, request.path, request.query, request.now()
        depends_on = _NOTHING
        rules = self._rules = grants.rules.current
        allowed: bool | None = rules.allows_all_reads or rules.find_read(path, auth, query)
        if allowed is None:
            context = grants.database.rights.context(auth, now, view, query)
            verdict = rules.may_read(path, context, record=True)
            allowed, depends_on = verdict.allowed, verdict.dependencies or _NOTHING
        if not allowed:
            self.close()
            raise PermissionDenied("this read")
        grants.held.add(self)
        self._depend_on(depends_on)
        self.checked_under = None if depends_on.reads_time else rules

    def check_again(self, view: View) -> None:
        """Evaluate the rules against an older state, then the present one; see `check`."""
        self.check(view)
        self.recheck()  # what it depends on may have changed since

    def notify(self, _: Notification) -> None:
        """Check again: a path that the rules read was written."""
        grants = self._grants
        if self in grants.held:
            if not self._is_allowed():
                grants.lost.append(self._revoked)
            elif grants.is_uncertain:
                grants.lost.append(self._uncertain)

    def recheck(self) -> bool:
        """Check again; return whether the grant still holds."""
        if self not in self._grants.held:
            return self._request.caller.is_admin
        if not self._is_allowed():
            self._revoked()
            return False
        return True

    def _is_allowed(self) -> bool:
        """Check again; close the grant if the rules deny."""
        try:
            self._grants.read_state(self.check)
        except Exception as error:
            if not isinstance(error, PermissionDenied):
                self._log.failure("The read rules of a stream cannot be evaluated.")
            self.close()
            return False
        return True

    def close(self) -> None:
        """Release the grant."""
        self.checked_under = None
        self._grants.held.discard(self)
        self._depend_on(_NOTHING)

    def end(self) -> None:
        """Release the grant for good, and forget its callables, so that it keeps no watcher."""
        self.close()
        self._revoked = self._uncertain = do_nothing

    def _depend_on(self, found: Dependencies) -> None:
        watchers = self._grants.watchers
        for path in self._depends_on.paths - found.paths:
            watchers.remove(path, self)
        for path in found.paths - self._depends_on.paths:
            # A grant that is checked after the beginning of a round has seen all of it.
            watchers.add(path, self, since=self._grants.state)
        self._depends_on = found


class ReadGrants:
    """The grants of all watchers of one database."""

    def __init__(self, database: Database) -> None:
        """Evaluate the rules of `database` for its present state."""
        self.database: Final = database
        self.rules: Final = database.rules
        self.watchers: Final = Watchers()
        self.held: Final[set[ReadGrant]] = set()
        self.lost: list[Callable[[], None]] = []
        self.is_uncertain = False
        self.last_round = 0
        self._replay: Replay | None = None

    @property
    def state(self) -> int:
        """The number of the state that grants are checked against."""
        return self.last_round if self._replay is None else self._replay.through

    def follow(
        self, commit: Commit, replay: Replay | None, deliver: Callable[[], Steps], *, is_last: bool
    ) -> Steps:
        """Check the grants that depend on what a write has changed.

        `replay` shows the state after it; if it `is_last`, reads do as well. Before a watcher whose
        right is lost is notified of that, `deliver` notifies of the writes before this one.
        """
        if not self.held:
            return
        sequence = commit.position.sequence
        is_present = is_last and not self.database.is_behind(sequence)
        notification = Notification(((commit.position, _WRITTEN),))
        for each in self.watchers.concerned(commit):
            audience = None if each is None else each.node.audience
            for grant in [] if audience is None else list(audience.watchers):
                if audience is not None and audience.watchers.get(grant, sequence) < sequence:
                    self._replay = None if is_present else replay
                    self.is_uncertain = not is_present and replay is None
                    grant.notify(notification)
                    self._replay = None
                    if self.lost:
                        lost, self.lost = self.lost, []
                        yield from deliver()
                        for call in lost:
                            call()
                yield
            yield

    def read_state(self, work: Callable[[View], None]) -> None:
        """Run work on the state that grants are checked against."""
        if self._replay is None:
            self.database.read(work)
            return
        try:
            work(self._replay.view)
        except StateUnknown:
            self._replay, self.is_uncertain = None, True
            self.database.read(work)

    def recheck(self) -> Steps:
        """Check all grants, because the rules have changed."""
        for grant in list(self.held):
            if grant.is_outdated:
                grant.recheck()
                yield


def print_large(commit: Commit, nodes: Nodes | None) -> Generator[None, None, Commit]:
    """Return a large commit with what it set or merged; without it, if it is too long.

    That is read from `nodes`, the state after it, unless the commit has it; it is missing if it
    would have to be read and there are none. It is printed once, in steps, in chunks that are never
    joined. In most values the plain form and the export form are the same text; then it is printed
    once for both.
    """
    printed, is_of_tree = commit.printed, False
    exported = printed
    if printed is None:
        if nodes is None or not _knows_members(commit):
            return commit
        is_of_tree = True
        printed = exported = yield from _collect(_chunks(commit, nodes, is_export=True))
        if exported is not None and (yield from _may_differ(exported)):
            printed = yield from _collect(_chunks(commit, nodes, is_export=False))
    if exported is not None:
        exported = yield from _collect(spell_chunks(exported, is_of_tree=is_of_tree))
    return attrs.evolve(commit, printed=printed, exported=exported)


def _knows_members(commit: Commit) -> bool:
    """Return whether it is known which members a large write has merged."""
    return commit.method == "put" or all(
        change.is_priority or change.path != commit.path for change in commit.changes
    )


def _chunks(commit: Commit, nodes: Nodes, *, is_export: bool) -> Iterator[bytes]:
    """Print what a large commit set at its path, or the members that it merged there."""
    if commit.method == "put":
        return nodes.chunks(commit.path, export=is_export)
    return print_members(_members(commit, nodes, is_export=is_export))


def _members(
    commit: Commit, nodes: Nodes, *, is_export: bool
) -> Iterator[tuple[str, Iterator[bytes]]]:
    for change in commit.changes:
        below = change.path[len(commit.path) :]
        if change.is_priority:
            text = compact(nodes.priority(change.path))
            yield "/".join((*below, PRIORITY)), iter((text,))
        else:
            yield "/".join(below), nodes.chunks(change.path, export=is_export)


def _collect(chunks: Iterable[bytes]) -> Generator[None, None, Chunks | None]:
    """Return chunks in steps, None if they are too long for an event."""
    collected, size = [], 0
    for chunk in chunks:
        if chunk:
            collected.append(chunk)
            size += len(chunk)
        if size > EVENT_BYTES:
            return None
        yield
    return tuple(collected)


def _may_differ(exported: Chunks) -> Generator[None, None, bool]:
    """Return in steps whether a value in export form may be another text than the plain form."""
    before = b""
    for chunk in exported:
        for at in range(0, len(chunk), _SEARCHED_AT_ONCE):
            text = before + chunk[at : at + _SEARCHED_AT_ONCE]
            if may_be_shown_otherwise(text):
                return True
            before = text[-_LONGEST_SIGN_BYTES:]
            yield
    return False
