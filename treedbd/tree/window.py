"""The window of a query that is watched: which children it shows, and what changes in it.

A window remembers, for each child it shows, a digest of what was shown. After a commit `move` looks
at the children that were written, and tells the events that bring a reader from the old window to
the new one: `put` for a child that came in or changed, `put` null for one that left. Without a
limit only the written children are looked at; with one, the query is asked again as soon as a
written child lies in the window or would come into it, since another may have to move up.

Those who watch the same query may share a window: whoever hears of a commit first moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final, TypeAlias

from treedbd.tree import printing
from treedbd.tree.event import Event
from treedbd.tree.path import PRIORITY, Path
from treedbd.tree.query import Query, Selection
from treedbd.tree.value import Json, plain
from treedbd.tree.view import View

Select: TypeAlias = Callable[[], Selection]
"""Asks the query anew: the children it shows now, in order."""

_DIGEST_BYTES: Final = 16


class Window:
    """What one watched query shows."""

    def __init__(self, query: Query, selected: Selection) -> None:
        """Begin with what the query selects now."""
        self._query = query
        self._is_limited = query.limit_to_first is not None or query.limit_to_last is not None
        self._shown = {key: _digest(plain(child)) for key, child in selected}

    def shows_same_as(self, other: Window) -> bool:
        """Tell whether another window of the same query shows the same."""
        return self._shown == other._shown

    def move(
        self, written: Iterable[str] | None, path: Path, view: View, select: Select
    ) -> Iterator[Event]:
        """Yield what changed, and show it from now on.

        `written` are the keys of the children that were written, None where all may have been;
        `view` is the tree now, `path` the watched node in it.
        """
        if written is None:
            yield from self._replace(select())
            return
        changed = []
        for key in dict.fromkeys(written):
            child = view.get((*path, key))
            is_admitted = child is not None and self._query.admits(
                self._query.sort_value(child), key
            )
            if self._is_limited and (is_admitted or key in self._shown):
                yield from self._replace(select())
                return
            changed.append((key, plain(child) if is_admitted else None))
        for key, child in changed:
            yield from self._show(key, child)

    def _replace(self, selected: Selection) -> Iterator[Event]:
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
    """Return the keys of the children that events at a node wrote, None where all may have been."""
    keys: list[str] = []
    for event in events:
        if event.path:
            keys.append(event.path[0])
        elif event.kind == "patch":
            keys.extend(key.partition("/")[0] for key in event.data if key != PRIORITY)
        else:
            return None
    return keys


def _digest(json: Json) -> bytes:
    return blake2b(printing.compact(json), digest_size=_DIGEST_BYTES).digest()
