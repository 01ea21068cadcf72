"""The window of a watched query: which children it shows, and who enters and leaves.

Theory of operation. Whether a query selects a child depends on few things about it, its *facts*:
whether it is there, and the ranks of the fields that the query orders by and that its `where`
names. From the facts before and after a write follows whether the child enters, leaves or stays.

With a limit that depends on the others, too. So a `Window` keeps the positions of its children in
the order of the query, and of some that follow them, the *reserve*: when a child leaves, the first
of the reserve enters. All other children come after the *horizon*, the last position that is known,
so a write there changes nothing. When the reserve has run out, what comes after the horizon has to
be read: `beyond` is the query for that, `extend` takes what it selects.

A window knows no values. What its children hold is read when it is sent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Generator, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from treedbd.tree.overlay import StateUnknown
from treedbd.tree.path import (
    ABOVE_ALL,
    BELOW_ALL,
    SAME_RANK,
    KeyRank,
    ValueRank,
    rank_key,
    rank_value,
)
from treedbd.tree.query import Bound, FieldKind, Query
from treedbd.tree.types import CONTAINER, Charge, Path, Value, View, free
from treedbd.tree.value import leaf_of, priority_of, value_at

MOST_RESERVE: Final = 256
"""Children whose positions are kept beyond the limit, unless another number is given."""
LEAST_RESERVE: Final = 32
"""The same of a query with a short limit, of which a client may have thousands."""
LONGEST_KEPT: Final = 1024
"""Characters of the longest string that a child of the reserve may be ordered by."""

FIELDS_AT_ONCE: Final = 16
"""Fields of a child that are looked up in one step; of more, a short child is read as a whole."""
FIELDS_IN_MEMORY: Final = 256
"""Fields of a child that was read as a whole which are ranked in one step."""
SHORT_BYTES: Final = 4096
"""Bytes of a child that is short, and of strings that are read in one step."""
CHILD_BYTES: Final = 300
"""What a window keeps of a child beside its key and the text that it is ordered by."""

Field: TypeAlias = tuple[FieldKind, Path]
"""What an order or a condition reads: `value`, `priority`, or the `child` at a path."""
Facts: TypeAlias = dict[Field, ValueRank] | None
"""The ranks of the fields of a child; None if it is not there."""
Position: TypeAlias = tuple[ValueRank, KeyRank]
"""Where a child is in the order of a query."""
Placed: TypeAlias = tuple[Position, str]
"""A child in its position."""

BELOW_ALL_KEYS: Final[KeyRank] = (-1, 0, "")
ABOVE_ALL_KEYS: Final[KeyRank] = (2, 0, "")
"""Ranks before and after those of all keys."""
_VALUES_OF_RANKS: Final = (None, False, True)
"""The values that have the lowest ranks; those of numbers and strings are in the rank."""
_NUMBER: Final = rank_value(0)[0]
_STRING: Final = rank_value("")[0]


def fields_of(query: Query) -> frozenset[Field]:
    """Return the fields whose ranks decide whether a query selects a child."""
    fields: set[Field] = set()
    if query.order.kind != "key":
        fields.add((query.order.kind, query.order.path))
    if query.where is not None:
        fields |= {(each.kind, each.path) for each in query.where.conditions if each.kind != "key"}
    return frozenset(fields)


def read_facts(
    view: View, child: Path, fields: Collection[Field], charge: Charge = free
) -> Generator[None, None, Facts]:
    """Return the facts about a child in steps, as a view shows it; little is read of a large one.

    `charge` is called with the bytes that are read of long strings. Raises `StateUnknown`.
    """
    if len(fields) > FIELDS_AT_ONCE:
        with suppress(StateUnknown):  # what is not known may not be one of the fields
            if view.size(child, SHORT_BYTES) <= SHORT_BYTES:
                return (yield from _read_short(view.get(child), fields))
    facts: dict[Field, ValueRank] = {}
    is_there = False
    read: list[int] = []
    for number, field in enumerate(fields, 1):
        kind, path = field
        if kind == "priority":
            found: object = view.priority(child, read.append)
        else:
            found = view.peek((*child, *path), read.append)
        facts[field] = rank_value(found)
        is_there = is_there or found is not None
        if number % FIELDS_AT_ONCE == 0 or (read and sum(read) > SHORT_BYTES):
            charge(sum(read))
            read.clear()
            yield
    charge(sum(read))
    return facts if is_there or view.peek(child) is not None else None


def _read_short(child: Value, fields: Iterable[Field]) -> Generator[None, None, Facts]:
    """Return the facts about a child whose value is known."""
    if child is None:
        return None
    facts: dict[Field, ValueRank] = {}
    for number, field in enumerate(fields, 1):
        kind, path = field
        found = priority_of(child) if kind == "priority" else leaf_of(value_at(child, path))
        facts[field] = rank_value(found)
        if number % FIELDS_IN_MEMORY == 0:
            yield
    return facts


def position_of(query: Query, key: str, facts: Facts) -> Position | None:
    """Return where a query has a child, whatever its limit; None if it does not select it."""
    if facts is None:
        return None
    order = query.order
    rank = SAME_RANK if order.kind == "key" else facts[order.kind, order.path]
    if not query.admits(rank, key):
        return None
    if query.where is not None:
        for each in query.where.conditions:
            field = rank_value(key) if each.kind == "key" else facts[each.kind, each.path]
            if not each.is_met(field):
                return None
    return rank, rank_key(key)


def position_of_value(query: Query, key: str, child: Value) -> Position | None:
    """Return what `position_of` returns, for a child whose value is known."""
    rank = query.sort_value(child)
    if query.admits(rank, key) and query.passes(key, child):
        return rank, rank_key(key)
    return None


def range_of(query: Query) -> tuple[Any, Any]:
    """Return the least and the greatest rank, or rank of a key, that a query selects."""
    is_by_key = query.order.kind == "key"
    low, high = (BELOW_ALL_KEYS, ABOVE_ALL_KEYS) if is_by_key else (BELOW_ALL, ABOVE_ALL)
    if query.low is not None:
        low = _rank_of(query.low, is_by_key)
    if query.high is not None:
        high = _rank_of(query.high, is_by_key)
    return low, high


def _rank_of(bound: Bound, is_by_key: bool) -> Any:
    return rank_key(bound.key or "") if is_by_key else bound.rank


class Moved(NamedTuple):
    """The children that a write concerns, of those that a window shows before or after it.

    `stayed` are those that it wrote to and that are shown before and after.
    """

    entered: list[str]
    left: list[str]
    stayed: list[str]


class Window:
    """The children that one watched query with a limit shows, and its reserve.

    Attributes:
        bytes: what that takes in memory, as it is estimated.

    """

    def __init__(self, query: Query, reserve: int | None = None) -> None:
        """Begin empty; `fill` says what is there. Keep at most `reserve` beyond the limit.

        Where it is not given, it is twice the limit, within bounds.
        """
        limit = query.limit_to_first or query.limit_to_last
        if limit is None:
            raise ValueError("A query without a limit needs no window.")
        if reserve is None:
            reserve = min(max(LEAST_RESERVE, 2 * limit), MOST_RESERVE)
        self._query = query
        self.bytes = 0
        self._limit: Final = limit
        self._size: Final = limit + reserve
        self._is_last = query.limit_to_last is not None
        self._positions: dict[str, Position] = {}
        self._in_order: list[Placed] = []
        self._horizon: Placed | None = None
        self._was_shown: dict[str, bool] = {}
        self._written: list[str] = []

    @property
    def wider_query(self) -> Query:
        """The query of what the window shows and keeps in reserve, and whether there is more."""
        if self._is_last:
            return attrs.evolve(self._query, limit_to_last=self._size + 1)
        return attrs.evolve(self._query, limit_to_first=self._size + 1)

    @property
    def missing(self) -> int:
        """How many children it has room for."""
        return self._size - len(self._in_order)

    def cut(self, low: Any, high: Any) -> tuple[Any, Any]:
        """Return as much of the range of the query as there is up to the horizon."""
        if self._horizon is None:
            return low, high
        edge = self._horizon[0][self._query.order.kind == "key"]
        return (edge, high) if self._is_last else (low, edge)

    def known(self, keys: Collection[str]) -> list[str]:
        """Return those of the keys whose position it knows."""
        positions = self._positions
        if len(keys) > len(positions):
            return [key for key in positions if key in keys]
        return [key for key in keys if key in positions]

    @property
    def keys(self) -> list[str]:
        """The keys that are shown, in order."""
        shown = self._in_order[-self._limit :] if self._is_last else self._in_order[: self._limit]
        return [key for _, key in shown]

    def fill(self, children: Iterable[Placed]) -> None:
        """Show and keep the first of these children, in any order: all that the query selects.

        They may be those that `wider_query` selects.
        """
        self._in_order = sorted(children)
        self._positions = {key: position for position, key in self._in_order}
        self.bytes = sum(map(bytes_of, self._in_order))
        self._horizon = None
        self._was_shown, self._written = {}, []
        self._trim()

    def place(self, key: str, position: Position | None) -> None:
        """Put a child where a write has left it; None if the query no longer selects it."""
        self._was_shown.setdefault(key, self._is_shown(key))
        self._written.append(key)
        self._take_out(key)
        if position is not None and not self._is_beyond_horizon((position, key)):
            self._put_in(key, position)

    def move(self) -> Moved | None:
        """Return which children a write concerns, after all its children were placed.

        None if the reserve has run out: then `extend` returns it.
        """
        if self._horizon is not None and len(self._in_order) < self._limit:
            return None
        return self._moved()

    def beyond(self, count: int) -> Query:
        """Return the query of the next children after the horizon, so many of them."""
        if self._horizon is None:
            raise ValueError("Nothing is beyond the horizon.")
        (rank, _), key = self._horizon
        is_by_key = self._query.order.kind == "key"
        bound = Bound(None if is_by_key else _value_of(rank), key, is_inclusive=False)
        if self._is_last:
            return attrs.evolve(self._query, high=bound, limit_to_last=count)
        return attrs.evolve(self._query, low=bound, limit_to_first=count)

    def later(self, one: Placed, other: Placed) -> Placed:
        """Return which of two children comes later, from the end where the limit begins."""
        return min(one, other) if self._is_last else max(one, other)

    def extend(self, children: Iterable[Placed], *, is_all: bool) -> Moved:
        """Add children that follow after the horizon, in any order; return which ones that moves.

        Unless `is_all`, others follow after the last of them.
        """
        found = sorted(child for child in children if self._is_beyond_horizon(child))
        if self._is_last:
            self._in_order[:0] = found
        else:
            self._in_order += found
        self._positions |= {key: position for position, key in found}
        self.bytes += sum(map(bytes_of, found))
        self._horizon = None if is_all else self._nth(len(self._in_order) - 1)
        for _, key in found:
            if self._is_shown(key):
                self._was_shown.setdefault(key, False)
        self._trim()
        return self._moved()

    def _moved(self) -> Moved:
        was_shown, written = self._was_shown, self._written
        is_shown = {key: self._is_shown(key) for key in was_shown}
        self._was_shown, self._written = {}, []
        return Moved(
            [key for key, now in is_shown.items() if now and not was_shown[key]],
            [key for key, now in is_shown.items() if was_shown[key] and not now],
            [key for key in written if is_shown[key] and was_shown[key]],
        )

    def _take_out(self, key: str) -> None:
        """Remove a child; note who enters for it."""
        position = self._positions.pop(key, None)
        if position is None:
            return
        at = bisect_left(self._in_order, (position, key))
        is_shown = self._number(at) < self._limit
        self.bytes -= bytes_of((position, key))
        del self._in_order[at]
        entering = self._nth(self._limit - 1) if is_shown else None
        if entering is not None:
            self._was_shown.setdefault(entering[1], False)

    def _put_in(self, key: str, position: Position) -> None:
        """Add a child; note who leaves for it."""
        self._positions[key] = position
        self.bytes += bytes_of((position, key))
        insort(self._in_order, (position, key))
        number = self._number(bisect_left(self._in_order, (position, key)))
        if number < self._limit:
            number = self._limit
            leaving = self._nth(number)
            if leaving is not None:
                self._was_shown.setdefault(leaving[1], True)
        if _is_long(self._nth(number)):
            self._cut(number)
        elif len(self._in_order) > self._size:
            self._cut(self._size)

    def _number(self, at: int) -> int:
        """Return the number of a child, from 0 at the end where the limit begins."""
        return len(self._in_order) - 1 - at if self._is_last else at

    def _nth(self, number: int) -> Placed | None:
        if number >= len(self._in_order):
            return None
        return self._in_order[-1 - number if self._is_last else number]

    def _is_beyond_horizon(self, child: Placed) -> bool:
        if self._horizon is None:
            return False
        return child < self._horizon if self._is_last else child > self._horizon

    def _is_shown(self, key: str) -> bool:
        position = self._positions.get(key)
        if position is None:
            return False
        return self._number(bisect_left(self._in_order, (position, key))) < self._limit

    def _trim(self) -> None:
        """Cut off what the reserve cannot hold: too many children, or too long a string.

        Of children that are placed one by one, `_put_in` does that.
        """
        for number in range(self._limit, len(self._in_order)):
            if number >= self._size or _is_long(self._nth(number)):
                self._cut(number)
                return

    def _cut(self, number: int) -> None:
        """Forget the children from a number on."""
        size = len(self._in_order)
        beyond = slice(0, size - number) if self._is_last else slice(number, size)
        for child in self._in_order[beyond]:
            self.bytes -= bytes_of(child)
            del self._positions[child[1]]
        del self._in_order[beyond]
        self._horizon = self._nth(number - 1)


def bytes_of(child: Placed) -> int:
    """Return what a window keeps of a child, in bytes, as it is estimated."""
    ((_, content), _), key = child
    return CHILD_BYTES + len(key) + (len(content) if isinstance(content, str) else 0)


def _value_of(rank: ValueRank) -> Any:
    """Return a value that has a rank."""
    kind, content = rank
    if kind in (_NUMBER, _STRING):
        return content
    return _VALUES_OF_RANKS[kind] if kind < len(_VALUES_OF_RANKS) else CONTAINER


def _is_long(child: Placed | None) -> bool:
    """Return whether a position would take much memory."""
    if child is None:
        return False
    (_, content), _ = child[0]
    return isinstance(content, str) and len(content) > LONGEST_KEPT
