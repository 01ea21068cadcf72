"""The per-path registry of observers: who watches what, found from what was written.

Theory of operation. Observers hang on a tree of *spots*, one for each watched path. A write is
carried down from the root to its own path: every spot it passes has it at or under itself. Spots
below the path have it above. Spots beside it are never visited, so the cost of a write grows with
the observers it concerns.

The writes of one batch are carried through together. What they mean at a spot is worked out once,
as a `Notice`, whoever and however many watch there; each observer is called once a batch. An
observer hears only of writes newer than the state it started from; one that raises is dropped and
disturbs nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import attrs
from twisted.logger import Logger

from treedbd.tree.event import Event, Part, Position, Telling
from treedbd.tree.path import Path


@attrs.frozen
class Notice:
    """What one batch means at one watched path: events, each with its position.

    `shared` is for those who hear it: what one observer made of it, the next can use.
    """

    events: tuple[tuple[Position, Event], ...]
    shared: dict[object, Any] = attrs.field(factory=dict, eq=False)


class Watcher(Protocol):
    """Somebody who watches a path."""

    def notify(self, notice: Notice) -> None:
        """Hear what was written."""
        ...


@attrs.define(eq=False)
class _Spot:
    """A watched path, or one above a watched path."""

    children: dict[str, _Spot] = attrs.field(factory=dict)
    watchers: dict[Watcher, int] = attrs.field(factory=dict)


class Watchers:
    """The observers of one database."""

    _log = Logger()

    def __init__(self) -> None:
        self._root = _Spot()
        self.count = 0

    def add(self, path: Path, watcher: Watcher, since: int) -> None:
        """Let `watcher` hear what is written after sequence number `since` and concerns `path`."""
        spot = self._root
        for key in path:
            spot = spot.children.setdefault(key, _Spot())
        self.count += watcher not in spot.watchers
        spot.watchers[watcher] = since

    def remove(self, path: Path, watcher: Watcher) -> None:
        """Let `watcher` hear no more of `path`; one that is not there is no error."""
        trail = [self._root]
        for key in path:
            spot = trail[-1].children.get(key)
            if spot is None:
                return
            trail.append(spot)
        if trail[-1].watchers.pop(watcher, None) is not None:
            self.count -= 1
        for at in range(len(path), 0, -1):
            if trail[at].watchers or trail[at].children:
                return
            del trail[at - 1].children[path[at - 1]]

    def has_at_or_above(self, path: Path) -> bool:
        """Tell whether anybody watches `path` or a node above it."""
        spot = self._root
        for key in path:
            below = spot.children.get(key)
            if spot.watchers or below is None:
                return bool(spot.watchers)
            spot = below
        return bool(spot.watchers)

    def tell(self, tellings: Sequence[Telling]) -> None:
        """Notify everyone whom the writes of one batch concern."""
        if not self.count:
            return
        heard: dict[_Spot, list[tuple[Position, Event]]] = {}
        for telling in tellings:
            for spot, events in self._concerned(telling):
                heard.setdefault(spot, []).extend(telling.numbered(events))
        for spot, numbered in heard.items():
            if numbered:
                self._notify(spot, Notice(tuple(numbered)))

    def _notify(self, spot: _Spot, notice: Notice) -> None:
        first = notice.events[0][0].sequence
        for watcher, since in list(spot.watchers.items()):
            if since >= first:
                continue
            try:
                watcher.notify(notice)
            except Exception:
                self._log.failure("A watcher broke and is dropped.")
                self.count -= spot.watchers.pop(watcher, None) is not None

    def _concerned(self, telling: Telling) -> Iterator[tuple[_Spot, Iterator[Event]]]:
        """Yield the watched spots on the way to a write and below it, with what they hear."""
        spot = self._root
        for depth, key in enumerate(telling.path):
            if spot.watchers:
                yield spot, telling.at_or_under(telling.path[:depth])
            below = spot.children.get(key)
            if below is None:
                return
            spot = below
        if spot.watchers:
            yield spot, telling.at_or_under(telling.path)
        if telling.method == "put":
            for below, path in _watched_below(spot, telling.path):
                yield below, telling.above(path)
        else:
            yield from self._reached(spot, telling)

    def _reached(self, spot: _Spot, telling: Telling) -> Iterator[tuple[_Spot, Iterator[Event]]]:
        """Yield the spots below a PATCH that any of its keys reaches, each once."""
        reached: dict[_Spot, tuple[Path, list[Part]]] = {}
        for part in telling.parts:
            at, path = spot, telling.path
            for key in part.path[len(telling.path) :]:
                below = at.children.get(key)
                if below is None:
                    break
                at, path = below, (*path, key)
                if at.watchers:
                    reached.setdefault(at, (path, []))[1].append(part)
            else:
                for lower, lower_path in _watched_below(at, path):
                    reached.setdefault(lower, (lower_path, []))[1].append(part)
        # Of a PATCH of many keys each spot looks only at those that reach it.
        for at, (path, parts) in reached.items():
            yield at, attrs.evolve(telling, parts=tuple(parts)).above(path)


def _watched_below(spot: _Spot, path: Path) -> Iterator[tuple[_Spot, Path]]:
    """Yield the watched spots strictly below one at `path`, with their paths."""
    for key, child in spot.children.items():
        below = (*path, key)
        if child.watchers:
            yield child, below
        yield from _watched_below(child, below)
