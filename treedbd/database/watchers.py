"""The registry of watchers by path: who watches what, found from what was written.

Theory of operation. Watchers are kept in a tree of nodes, one for each watched path and its
ancestors. A write is followed from the root down to its own path: the nodes on the way watch the
path or an ancestor of it. Then the nodes below the path are visited, which watch a descendant.
Unrelated nodes are never visited, so the cost of a write grows with the watchers that it concerns.

The writes of one batch are delivered together. What they mean at a node is computed once, as a
`Notification`, however many watch there; each watcher is called once for a batch. A watcher is
notified only of writes newer than the state it started from; one that raises is removed and
disturbs no other.

What several watchers of one client receive has one order, that of the writes, if they were added
with that client as their `group`: when a write concerns another of them than the writes before it
in the batch, these are delivered to all groups first. So a watcher of a group may be called several
times for a batch.

Notifying is done in steps, between which watchers may come, go and start again. Those that came or
started again did so from a state with all of the batch, so they are not notified of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.database.slices import Steps
from treedbd.tree.event import Commit, CommittedChange, Event, Position
from treedbd.tree.types import Path

PAUSE_AFTER: Final = 64
"""Keys of a PATCH that are followed in one step."""


@attrs.frozen
class Notification:
    """What one batch means at one watched path: events, each with its position.

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


@attrs.define(eq=False)
class _Node:
    """A watched path, or one above a watched path."""

    children: dict[str, _Node] = attrs.field(factory=dict)
    watchers: dict[Watcher, int] = attrs.field(factory=dict)
    groups: dict[Watcher, object] | None = None

    def drop(self, watcher: Watcher) -> bool:
        """Remove a watcher; return whether it was there."""
        if self.groups is not None and self.groups.pop(watcher, None) is not None:
            self.groups = self.groups or None
        return self.watchers.pop(watcher, None) is not None


_Concerned: TypeAlias = tuple[_Node, Iterator[Event]]
"""A watched node, and what one write means there."""


class _Round:
    """What is delivered together to groups: what some writes mean at the nodes that they watch."""

    def __init__(self) -> None:
        self.found: dict[_Node, list[tuple[Position, Event]]] = {}
        self._node_of_group: dict[object, _Node] = {}
        self._is_shared = False

    def must_precede(self, concerned: Sequence[_Concerned]) -> bool:
        """Return whether a group would receive the next write before one of this round."""
        return bool(self.found) and any(self._is_elsewhere(node) for node, _ in concerned)

    def add(self, node: _Node, numbered: Sequence[tuple[Position, Event]]) -> None:
        """Add what a write means at a node that groups watch."""
        if node not in self.found:
            self.found[node] = []
            for group in (node.groups or {}).values():
                if self._node_of_group.setdefault(group, node) is not node:
                    self._is_shared = True
        self.found[node] += numbered

    def _is_elsewhere(self, node: _Node) -> bool:
        if node.groups is None:
            return False
        if self._is_shared:
            return True
        seen = self._node_of_group
        return node not in self.found and any(group in seen for group in node.groups.values())


class Watchers:
    """The watchers of one database; `count` is their number."""

    _log = Logger()

    def __init__(self) -> None:
        self._root = _Node()
        self.count = 0

    def add(self, path: Path, watcher: Watcher, since: int, group: object | None = None) -> None:
        """Notify `watcher` of writes that concern `path` and are newer than the number `since`.

        All watchers of a `group` are notified in the order of the writes.
        """
        node = self._root
        for key in path:
            node = node.children.setdefault(key, _Node())
        self.count += watcher not in node.watchers
        node.watchers[watcher] = since
        if group is not None:
            if node.groups is None:
                node.groups = {}
            node.groups[watcher] = group

    def remove(self, path: Path, watcher: Watcher) -> None:
        """Stop notifying `watcher` of `path`; no error if it is not there."""
        trail = [self._root]
        for key in path:
            node = trail[-1].children.get(key)
            if node is None:
                return
            trail.append(node)
        self.count -= trail[-1].drop(watcher)
        for at in range(len(path), 0, -1):
            if trail[at].watchers or trail[at].children:
                return
            del trail[at - 1].children[path[at - 1]]

    def has_at_or_above(self, path: Path) -> bool:
        """Return whether `path` or a node above it is watched."""
        node = self._root
        for key in path:
            below = node.children.get(key)
            if node.watchers or below is None:
                return bool(node.watchers)
            node = below
        return bool(node.watchers)

    def notify(self, commits: Sequence[Commit]) -> Steps:
        """Notify every watcher that the writes of one batch concern."""
        found: dict[_Node, list[tuple[Position, Event]]] = {}
        together = _Round()
        for commit in commits:
            concerned = []
            for each in self._concerned(commit):
                if each is not None:
                    concerned.append(each)
                yield
            if together.must_precede(concerned):
                yield from self._notify_nodes(together.found, in_groups=True)
                together = _Round()
            for at, (node, events) in enumerate(concerned, 1):
                numbered = list(commit.numbered(events))
                if node.groups is not None:
                    together.add(node, numbered)
                if node.groups is None or len(node.groups) < len(node.watchers):
                    found.setdefault(node, []).extend(numbered)
                if at % PAUSE_AFTER == 0:
                    yield
        yield from self._notify_nodes(together.found, in_groups=True)
        yield from self._notify_nodes(found, in_groups=False)

    def _notify_nodes(
        self, found: dict[_Node, list[tuple[Position, Event]]], *, in_groups: bool
    ) -> Steps:
        for node, numbered in found.items():
            if not numbered:
                continue
            groups = node.groups or {}
            watchers = [each for each in node.watchers if (each in groups) is in_groups]
            yield from self._notify_node(node, watchers, Notification(tuple(numbered)))

    def _notify_node(
        self, node: _Node, watchers: Sequence[Watcher], notification: Notification
    ) -> Steps:
        first, last = (notification.events[at][0].sequence for at in (0, -1))
        for watcher in watchers:
            since = node.watchers.get(watcher)
            if since is None or since >= last:
                continue
            try:
                watcher.notify(notification if since < first else _after(since, notification))
            except Exception:
                self._log.failure("A watcher failed and is removed.")
                self.count -= node.drop(watcher)
            yield

    def _concerned(self, commit: Commit) -> Iterator[_Concerned | None]:
        """Yield the watched nodes on the way to a write and below it; None at a pause."""
        node = self._root
        for depth, key in enumerate(commit.path):
            if node.watchers:
                yield node, commit.events_at_or_above(commit.path[:depth])
            below = node.children.get(key)
            if below is None:
                return
            node = below
        if node.watchers:
            yield node, commit.events_at_or_above(commit.path)
        if commit.method == "put":
            for below, path in _watched_below(node, commit.path):
                yield below, commit.events_below(path)
        else:
            yield from self._reached(node, commit)

    def _reached(self, node: _Node, commit: Commit) -> Iterator[_Concerned | None]:
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
                if at.watchers:
                    reached.setdefault(at, (path, []))[1].append(change)
            else:
                for lower, lower_path in _watched_below(at, path):
                    reached.setdefault(lower, (lower_path, []))[1].append(change)
        # Of a PATCH of many keys each node reads only those that reach it.
        for at, (path, changes) in reached.items():
            yield at, attrs.evolve(commit, changes=tuple(changes)).events_below(path)


def _after(since: int, notification: Notification) -> Notification:
    """Return the events newer than a state within the batch, which other processes can leave."""
    return Notification(tuple(each for each in notification.events if each[0].sequence > since))


def _watched_below(node: _Node, path: Path) -> Iterator[tuple[_Node, Path]]:
    """Yield the watched nodes strictly below one at `path`, with their paths."""
    for key, child in list(node.children.items()):  # which may change between two steps
        below = (*path, key)
        if child.watchers:
            yield child, below
        yield from _watched_below(child, below)
