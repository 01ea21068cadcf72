"""The registry of watchers by path: who watches what, found from what was written.

Theory of operation. Watchers are kept in a tree of nodes, one for each watched path and its
ancestors. A write is followed from the root down to its own path: the nodes on the way watch the
path or an ancestor of it. Then the nodes below the path are visited, which watch a descendant.
Unrelated nodes are never visited, so the cost of a write grows with the watchers that it concerns.

Each write is at most one event to an *audience*: those who watch a path, or a query of it. What a
write means to an audience is computed once, however many there are. A watcher is notified only of
writes newer than the state it started from; one that raises is removed and disturbs no other.

The writes of a batch are followed one by one, and then delivered together (`Delivery`): a watcher
is called once for a batch, with an event for each write that concerns it. What several watchers of
one client receive has one order, that of the writes, if they were added with that client as their
`group`: when a write concerns another of them than the writes before it in the batch, these are
delivered to all groups first. So a watcher of a group may be called several times for a batch.

Notifying is done in steps, between which watchers may come, go and start again. Those that came or
started again did so from a state with all of the batch, so they are not notified of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.database.slices import Steps
from treedbd.tree.event import Commit, CommittedChange, Event, Position
from treedbd.tree.types import Path

if TYPE_CHECKING:
    from treedbd.database.shared_window import WatchedCollection

PAUSE_AFTER: Final = 64
"""Keys of a PATCH that are followed in one step."""


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
    """Is notified of what is written at a path."""

    def notify(self, notification: Notification) -> None:
        """Receive what was written."""
        ...


_NOBODY: Final[dict[Watcher, object]] = {}
"""The groups of an audience without any."""


class Audience:
    """Those who are notified of the same events.

    Attributes:
        watchers: each with the number of the state that it started from.
        groups: those that belong to a client with other watchers, each with that client.

    """

    __slots__ = ("_dropped", "groups", "watchers")
    _log = Logger()

    def __init__(self, dropped: Callable[[], None]) -> None:
        """Call `dropped` after a watcher was removed."""
        self.watchers: dict[Watcher, int] = {}
        self.groups: dict[Watcher, object] = _NOBODY
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
        """Call `dropped` no more, and keep nothing that it belongs to."""
        self._dropped = call_nobody

    def notify_all(self, notification: Notification) -> Steps:
        """Notify all of them."""
        return self.notify(list(self.watchers), notification)

    def notify(self, watchers: Sequence[Watcher], notification: Notification) -> Steps:
        """Notify some of them of what they have not seen."""
        first, last = (notification.events[at][0].sequence for at in (0, -1))
        for watcher in watchers:
            since = self.watchers.get(watcher)
            if since is None or since >= last:
                continue
            try:
                watcher.notify(notification if since < first else _after(since, notification))
            except Exception:
                self._log.failure("A watcher failed and is removed.")
                self.drop(watcher)
            yield


_Found: TypeAlias = "dict[Audience, list[tuple[Position, Event]]]"


class Delivery:
    """The events of one batch, on their way to those whom they concern."""

    def __init__(self) -> None:
        self._alone: _Found = {}
        self._in_groups: _Found = {}
        self._audience_of_group: dict[object, Audience] = {}
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
            for group in audience.groups.values():
                if self._audience_of_group.setdefault(group, audience) is not audience:
                    self._is_shared = True
        self._in_groups[audience].append(event)

    def _is_elsewhere(self, audience: Audience) -> bool:
        """Return whether a group of this audience has to receive events of another one before."""
        if not audience.groups:
            return False
        if self._is_shared:
            return True
        seen = self._audience_of_group
        return audience not in self._in_groups and any(
            group in seen for group in audience.groups.values()
        )

    def _deliver_to_groups(self) -> Steps:
        found, self._in_groups = self._in_groups, {}
        self._audience_of_group, self._is_shared = {}, False
        for audience, events in found.items():
            yield from audience.notify(list(audience.groups), self._make(events))

    def _make(self, events: list[tuple[Position, Event]]) -> Notification:
        """Return one notification for all audiences that the same events are for."""
        key = tuple([(position.sequence, id(event)) for position, event in events])
        made = self._notifications.get(key)
        if made is None:
            made = self._notifications[key] = Notification(tuple(events))
        return made


class _Node:
    """A watched path, or one above a watched path."""

    __slots__ = ("audience", "children", "collection")

    def __init__(self, dropped: Callable[[], None]) -> None:
        self.children: dict[str, _Node] = {}
        self.audience = Audience(dropped)
        self.collection: WatchedCollection | None = None

    @property
    def is_watched(self) -> bool:
        return bool(self.audience.watchers) or self.collection is not None


@attrs.frozen
class Concerned:
    """What a write means at one watched path; `commit` has those of its changes that reach it."""

    node: _Node
    path: Path
    commit: Commit


class Watchers:
    """The watchers of one database, and its watched queries; `count` is how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self._dropped = self._count_down
        self._root = _Node(self._dropped)

    def add(self, path: Path, watcher: Watcher, since: int, group: object | None = None) -> None:
        """Notify `watcher` of writes that concern `path` and are newer than the number `since`.

        All watchers of a `group` are notified in the order of the writes.
        """
        audience = self._make_node(path).audience
        self.count += watcher not in audience.watchers
        audience.add(watcher, since, group)

    def remove(self, path: Path, watcher: Watcher) -> None:
        """Stop notifying `watcher` of `path`; no error if it is not there."""
        trail = self._trail(path)
        if len(trail) > len(path):
            trail[-1].audience.drop(watcher)
            _prune(trail, path)

    def collection(self, path: Path) -> WatchedCollection | None:
        """Return the watched queries of the children of `path`."""
        trail = self._trail(path)
        return trail[-1].collection if len(trail) > len(path) else None

    def set_collection(self, path: Path, collection: WatchedCollection | None) -> None:
        """Follow the watched queries of the children of `path`, or none any more."""
        node = self._make_node(path)
        self.count += (collection is not None) - (node.collection is not None)
        node.collection = collection
        _prune(self._trail(path), path)

    def has_at_or_above(self, path: Path) -> bool:
        """Return whether `path` or a node above it is watched."""
        return any(node.is_watched for node in self._trail(path))

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


def _prune(trail: list[_Node], path: Path) -> None:
    """Remove the nodes at the end of a trail that nobody needs."""
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


def call_nobody() -> None:
    """Do nothing: whom this was to call has ended."""
