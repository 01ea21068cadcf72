"""The window of a watched query: which children it shows, and what changes in it.

A window keeps, for each child it shows, a digest of the value that was shown. After a commit `move`
reads the children that were written and yields the events by which a client updates its copy: `put`
for a child that entered or changed, `put` null for a child that left.

A window with a limit also keeps the positions of its children in the order of the query. While it
is full, all children that it does not show come after its last one: a write there changes nothing,
and a child that enters removes the last one. Only when a child leaves a full window, or moves after
the last one, the child that replaces it is not known; then the query is evaluated again.

Streams of the same query may share a window: the first one that is notified of a commit moves it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final, TypeAlias

from treedbd.tree import printing
from treedbd.tree.event import Event
from treedbd.tree.order import KeyRank, ValueRank, rank_key
from treedbd.tree.query import Query, Selection
from treedbd.tree.types import PRIORITY, Json, Path, Value
from treedbd.tree.value import plain
from treedbd.tree.view import View

Select: TypeAlias = Callable[[], Selection]
"""Evaluates the query again: the children it shows now, in order."""

_Position: TypeAlias = tuple[ValueRank, KeyRank]

_DIGEST_BYTES: Final = 16


class Window:
    """The children that one watched query shows."""

    def __init__(self, query: Query, selected: Selection) -> None:
        """Start with the children that the query selects now."""
        self._query = query
        self._limit = query.limit_to_first or query.limit_to_last
        self._far = 0 if query.limit_to_last is not None else -1
        self._shown = {key: _digest(plain(child)) for key, child in selected}
        self._positions: dict[str, _Position] = {}
        self._in_order: list[tuple[_Position, str]] = []
        self._place_all(selected)

    def shows_same_as(self, other: Window) -> bool:
        """Return whether another window of the same query shows the same."""
        return self._shown == other._shown and self._in_order == other._in_order

    def move(
        self, written: Iterable[str] | None, path: Path, view: View, select: Select
    ) -> Iterator[Event]:
        """Yield the events of what changed, and show it from now on.

        `written` are the keys of the children that were written, None if all may have been;
        `view` is the tree now, `path` the watched node in it.
        """
        if written is None:
            yield from self._replace(select())
            return
        changed: dict[str, Json] = {}
        for key in dict.fromkeys(written):
            child = view.get((*path, key))
            position = self._position(key, child)
            leaving = self._place(key, position)
            if leaving is None:
                yield from self._replace(select())
                return
            changed[key] = None if position is None else plain(child)
            changed.update(dict.fromkeys(leaving))
        for key, shown in changed.items():
            yield from self._show(key, shown)

    def _position(self, key: str, child: Value) -> _Position | None:
        """Return the position of a child in the order of the query, None if it has none."""
        if child is None:
            return None
        rank = self._query.sort_value(child)
        return (rank, rank_key(key)) if self._query.admits(rank, key) else None

    def _place(self, key: str, position: _Position | None) -> list[str] | None:
        """Put a child that was written in its position, if the window has a limit.

        Returns the keys that are not shown any more, None if the child that enters is not known.
        """
        if self._limit is None:
            return []
        is_full = len(self._in_order) == self._limit
        edge = self._in_order[self._far] if is_full else None
        was_shown = self._remove(key)
        if position is None or (edge is not None and self._is_beyond((position, key), edge)):
            return None if is_full and was_shown else [key]
        pushed_out = edge[1] if edge is not None and not was_shown else None
        if pushed_out is not None:
            self._remove(pushed_out)
        self._insert(key, position)
        return [] if pushed_out is None else [pushed_out]

    def _is_beyond(self, place: tuple[_Position, str], edge: tuple[_Position, str]) -> bool:
        return place < edge if self._query.limit_to_last is not None else place > edge

    def _insert(self, key: str, position: _Position) -> None:
        self._positions[key] = position
        insort(self._in_order, (position, key))

    def _remove(self, key: str) -> bool:
        position = self._positions.pop(key, None)
        if position is None:
            return False
        del self._in_order[bisect_left(self._in_order, (position, key))]
        return True

    def _place_all(self, selected: Selection) -> None:
        self._positions.clear()
        self._in_order.clear()
        if self._limit is not None:
            for key, child in selected:
                self._insert(key, (self._query.sort_value(child), rank_key(key)))

    def _replace(self, selected: Selection) -> Iterator[Event]:
        self._place_all(selected)
        present = dict(selected)
        for key in [key for key in self._shown if key not in present]:
            yield from self._show(key, None)
        for key, child in selected:
            yield from self._show(key, plain(child))

    def _show(self, key: str, child: Json) -> Iterator[Event]:
        if child is None:
            if self._shown.pop(key, None) is not None:
                yield Event("put", (key,), None)
            return
        digest = _digest(child)
        if self._shown.get(key) != digest:
            self._shown[key] = digest
            yield Event("put", (key,), child)


def written_children(events: Iterable[Event]) -> list[str] | None:
    """Return the keys of the children that events at a node wrote, None if all may have been."""
    keys: list[str] = []
    for event in events:
        if event.path:
            keys.append(event.path[0])
        elif event.kind == "patch":
            members = event.data if isinstance(event.data, dict) else {}
            keys.extend(key.partition("/")[0] for key in members if key != PRIORITY)
        else:
            return None
    return keys


def _digest(json: Json) -> bytes:
    return blake2b(printing.compact(json), digest_size=_DIGEST_BYTES).digest()
