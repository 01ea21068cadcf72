"""The window of a watched query: which children it shows, and what changes in it.

A window keeps, for each child it shows, a digest of the value that was shown. After a commit `move`
reads the children that were written and returns the events by which a client updates its copy:
`put` for a child that entered or changed, `put` null for a child that left.

A window with a limit also keeps the positions of its children in the order of the query, and of
some that follow them, the *reserve*: when a child leaves, the first of the reserve enters. All
other children come after the *horizon*, the last position that is known, so a write there changes
nothing. Only when the reserve has run out, the query has to be evaluated again: for a new window,
which is compared with this one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final, TypeAlias

import attrs

from treedbd.tree import printing
from treedbd.tree.event import Event
from treedbd.tree.order import KeyRank, ValueRank, rank_key
from treedbd.tree.query import Query
from treedbd.tree.types import PRIORITY, Json, Value
from treedbd.tree.value import as_json, plain

RESERVE: Final = 256
"""Children whose positions are kept beyond the limit, unless another number is given."""
LONGEST_KEPT: Final = 1024
"""Characters of the longest string that a child of the reserve may be ordered by."""
READ_AT_ONCE: Final = 16
"""Children that are read in one step."""

ReadChildren: TypeAlias = Callable[[Sequence[str]], list[Value]]
"""Reads the present values of children."""

_Position: TypeAlias = tuple[ValueRank, KeyRank]
_Place: TypeAlias = tuple[_Position, str]

_DIGEST_BYTES: Final = 16


class Digest:
    """The digest of a value, from its JSON in chunks."""

    def __init__(self, printed: bytes = b"") -> None:
        self._hash = blake2b(printed, digest_size=_DIGEST_BYTES)
        self.update: Final = self._hash.update

    @property
    def value(self) -> bytes:
        """The digest of all chunks."""
        return self._hash.digest()


class Window:
    """The children that one watched query shows.

    It is made empty. `show` and `keep` add the children that `wider_query` selects, in its order;
    then `finish` has to be called.

    Attributes:
        is_export: whether it shows them in export form.

    """

    def __init__(self, query: Query, reserve: int = RESERVE, *, is_export: bool = False) -> None:
        """Keep the positions of at most `reserve` children beyond the limit.

        With `is_export` children are shown in export form.
        """
        self.is_export: Final = is_export
        self._as_shown: Callable[[Value], Json] = as_json if is_export else plain
        self._query = query
        self._reserve = reserve
        self._limit = query.limit_to_first or query.limit_to_last
        self._is_last = query.limit_to_last is not None
        self._shown: dict[str, bytes] = {}
        self._positions: dict[str, _Position] = {}
        self._in_order: list[_Place] = []
        self._horizon: _Place | None = None

    @property
    def wider_query(self) -> Query:
        """The query of what the window shows and keeps in reserve."""
        if self._limit is None:
            return self._query
        wider = self._limit + self._reserve
        if self._is_last:
            return attrs.evolve(self._query, limit_to_last=wider)
        return attrs.evolve(self._query, limit_to_first=wider)

    def show(self, key: str, rank: ValueRank, digest: bytes) -> None:
        """Add a child that the query selects; `digest` is of its JSON as a GET prints it."""
        self._shown[key] = digest
        self.keep(key, rank)

    def keep(self, key: str, rank: ValueRank) -> None:
        """Add a child of the reserve."""
        if self._limit is not None:
            position = (rank, rank_key(key))
            self._positions[key] = position
            self._in_order.append((position, key))

    def finish(self) -> None:
        """Find the horizon, after all children were added."""
        if self._limit is not None and len(self._in_order) >= self._limit + self._reserve:
            self._horizon = self._nth(len(self._in_order) - 1)
        self._trim()

    def keys(self) -> list[str] | None:
        """Return the keys that are shown, in order; None if the window has no limit."""
        if self._limit is None:
            return None
        shown = self._in_order[-self._limit :] if self._is_last else self._in_order[: self._limit]
        return [key for _, key in shown]

    def shows_as(self, other: Window, key: str) -> bool:
        """Return whether a child is shown as in another window of the same query."""
        return self._shown.get(key) == other._shown.get(key)

    def keys_left_since(self, other: Window) -> list[str]:
        """Return the keys that another window of the same query shows and this one does not."""
        return [key for key in other._shown if key not in self._shown]

    def move(
        self, written: Iterable[str], read: ReadChildren
    ) -> Generator[None, None, list[Event] | None]:
        """Show what the query selects after children were written; return the resulting events.

        Yields between steps; `read` must read the same state in all of them. Returns None if the
        reserve has run out: then the window must be replaced.
        """
        values: dict[str, Json] = {}
        touched: dict[str, None] = {}
        for keys in _batched(dict.fromkeys(written)):
            for key, child in zip(keys, read(keys), strict=True):
                position = self._position(key, child)
                touched.update(dict.fromkeys((key, *self._place(key, position))))
                values[key] = None if position is None else self._as_shown(child)
            yield
        if self._horizon is not None and len(self._in_order) < (self._limit or 0):
            return None
        self._trim()
        for key in touched:
            if not self._is_within_limit(key):
                values[key] = None
        entered = [key for key in touched if key not in values and key not in self._shown]
        for keys in _batched(entered):
            shown = map(self._as_shown, read(keys))
            values.update(zip(keys, shown, strict=True))
            yield
        events: list[Event] = []
        for keys in _batched(values):
            for key in keys:
                events += self._change(key, values[key])
            yield
        return events

    def _position(self, key: str, child: Value) -> _Position | None:
        """Return the position of a child in the order of the query, None if it has none."""
        if child is None:
            return None
        rank = self._query.sort_value(child)
        if not (self._query.admits(rank, key) and self._query.passes(key, child)):
            return None
        return rank, rank_key(key)

    def _place(self, key: str, position: _Position | None) -> list[str]:
        """Put a child in its position; return the others that may enter or leave because of it."""
        if self._limit is None:
            return []
        crossing = []
        former = self._positions.pop(key, None)
        if former is not None:
            del self._in_order[bisect_left(self._in_order, (former, key))]
            crossing.append(self._nth(self._limit - 1))
        if position is not None and not self._is_beyond_horizon((position, key)):
            self._positions[key] = position
            insort(self._in_order, (position, key))
            crossing.append(self._nth(self._limit))
        return [place[1] for place in crossing if place is not None]

    def _nth(self, number: int) -> _Place | None:
        """Return the child at a number, counted from 0 at the end where the limit begins."""
        if number >= len(self._in_order):
            return None
        return self._in_order[-1 - number if self._is_last else number]

    def _is_beyond_horizon(self, place: _Place) -> bool:
        if self._horizon is None:
            return False
        return place < self._horizon if self._is_last else place > self._horizon

    def _is_within_limit(self, key: str) -> bool:
        if self._limit is None:
            return True
        position = self._positions.get(key)
        if position is None:
            return False
        at = bisect_left(self._in_order, (position, key))
        number = len(self._in_order) - 1 - at if self._is_last else at
        return number < self._limit

    def _trim(self) -> None:
        """Cut off what the reserve cannot hold: too many children, or too long a string."""
        if self._limit is None:
            return
        for number in range(self._limit, len(self._in_order)):
            place = self._nth(number)
            if number >= self._limit + self._reserve or _is_long(place):
                self._cut(number)
                return

    def _cut(self, number: int) -> None:
        """Forget the children from a number on."""
        size = len(self._in_order)
        beyond = slice(0, size - number) if self._is_last else slice(number, size)
        for _, key in self._in_order[beyond]:
            del self._positions[key]
        del self._in_order[beyond]
        self._horizon = self._nth(number - 1)

    def _change(self, key: str, child: Json) -> Iterator[Event]:
        """Show a child, or none any more."""
        if child is None:
            if self._shown.pop(key, None) is not None:
                yield Event("put", (key,), None)
            return
        digest = Digest(printing.compact(child)).value
        if self._shown.get(key) != digest:
            self._shown[key] = digest
            yield Event("put", (key,), child)


def written_children(events: Iterable[Event]) -> list[str] | None:
    """Return the keys of the children that events at a node wrote, None if all may have been."""
    keys: list[str] = []
    for event in events:
        if event.is_large:
            return None
        if event.path:
            keys.append(event.path[0])
        elif event.kind == "patch":
            members = event.data if isinstance(event.data, dict) else {}
            keys.extend(key.partition("/")[0] for key in members if key != PRIORITY)
        else:
            return None
    return keys


def _is_long(place: _Place | None) -> bool:
    """Return whether a position would take much memory."""
    if place is None:
        return False
    (_, content), _ = place[0]
    return isinstance(content, str) and len(content) > LONGEST_KEPT


def _batched(keys: Iterable[str]) -> Iterator[list[str]]:
    """Yield the keys, some at a time."""
    remaining = iter(keys)
    while batch := list(islice(remaining, READ_AT_ONCE)):
        yield batch
