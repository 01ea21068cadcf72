"""The ranks of children in a query that is not by key, of many children at once, and their order.

Of each child only what it is ordered by is looked at. The rows of a batch are parsed by one call,
which takes a fraction of the time of one call for each. They are not brought into normal form: in a
plain row an array is an array, and an index in the path of the order finds its item.

A `Ranking` sorts children in runs. A string that they are ordered by may have megabytes: no step
reads more than one of these, a run ends earlier with them, and a query keeps `TEXT_BYTES` of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import merge
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from treedbd.limits import MIB
from treedbd.loop import free_beside, run_paused
from treedbd.store.engine import DamagedRow
from treedbd.store.nodes import ChildSource, Spread
from treedbd.store.rows import (
    CONTAINERS,
    LARGE_ROW_BYTES,
    has_priorities,
    parse_stored,
    part_at,
    peek_part,
    priority_of_part,
)
from treedbd.tree.path import ABOVE_ALL, BELOW_ALL, ValueRank, rank_value, rank_values
from treedbd.tree.query import Order, OrderKind, Query, TooMuchText
from treedbd.tree.types import CONTAINER, Json, Path, free
from treedbd.tree.value import NULL, leaf_of, priority_of

if TYPE_CHECKING:
    from treedbd.store.nodes import ReadsNodes

BATCH_CHILDREN: Final = 64
"""Children whose ranks are found in one step."""
BATCH_BYTES: Final = 65_536
"""Bytes of rows beyond which no other child joins a batch."""
_SPREAD_BYTES: Final = 4096
"""Bytes whose parsing costs less than the lookup that a spread child needs."""
RUN_CHILDREN: Final = 1024
"""Children that are sorted at a time."""
KEPT_BYTES: Final = 4 * MIB
"""Bytes of children that are kept in memory while they are sorted."""
RUN_TEXT: Final = 2 * MIB
"""Characters of long strings that are sorted at a time, so that they are compared in some ms."""
TEXT_BYTES: Final = 32 * MIB
"""Characters of long strings by which the children are ordered that one query may keep."""
LONG_TEXT: Final = 1024
"""Characters of a string that is long."""

_CONTAINER_RANK: Final = rank_value(CONTAINER)

Member: TypeAlias = tuple[str, ChildSource]
_Ranked: TypeAlias = "tuple[int, Any, Any, str, ChildSource | None]"
"""A child: its rank, its place among those of the same rank, its key, and its row unless it was
released. No two have the same place, so tuples compare by rank, then by place."""


def batched(members: Iterable[Member]) -> Iterator[list[Member]]:
    """Yield the children, some at a time."""
    batch: list[Member] = []
    size = 0
    for member in members:
        batch.append(member)
        source = member[1]
        if isinstance(source, bytes):
            size += len(source)
        elif isinstance(source, Spread):
            size += _SPREAD_BYTES
        if len(batch) >= BATCH_CHILDREN or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def ranks_of(
    nodes: ReadsNodes, path: Path, query: Query, batch: Sequence[Member]
) -> list[ValueRank]:
    """Return the rank of each child of `path` in a batch, with pauses; raise `DamagedRow`."""
    return run_paused(ranks_in_steps(nodes, path, query, batch))


def ranks_in_steps(
    nodes: ReadsNodes, path: Path, query: Query, batch: Sequence[Member]
) -> Generator[None, None, list[ValueRank]]:
    """Return the same; a step ends with each long string that was looked up."""
    sources: list[Any] = [source for _, source in batch]
    raws = [source for source in sources if type(source) is bytes and len(source) <= BATCH_BYTES]
    if len(raws) == len(sources):
        return _ranks(_parse(raws, query.order.kind), query.order)
    parsed = iter(_parse(raws, query.order.kind))
    children = [
        source
        if type(source) is not bytes
        else next(parsed)
        if len(source) <= BATCH_BYTES
        else None
        for source in sources
    ]
    ranks = _ranks(children, query.order)
    for at, (key, source) in enumerate(batch):
        is_long = False
        if isinstance(source, Spread):
            ranks[at], is_long = _rank_spread(nodes, (*path, key), query.order)
        elif type(source) is bytes and len(source) > BATCH_BYTES:
            ranks[at], is_long = rank_of_row(source, query.order)
        if is_long:
            yield
    return ranks


def _parse(raws: Sequence[bytes], kind: OrderKind) -> list[Json]:
    """Parse rows; what a query of this kind need not look at is replaced by something shorter."""
    if kind == "priority":
        raws = [raw if has_priorities(raw) else NULL for raw in raws]
    elif kind == "value":
        raws = [b"{}" if raw[0] in CONTAINERS else raw for raw in raws]
    try:
        rows = parse_stored(b"[%b]" % b",".join(raws))
    except DamagedRow:
        rows = None
    if isinstance(rows, list) and len(rows) == len(raws):
        return rows
    return [parse_stored(raw) for raw in raws]


def _ranks(children: Sequence[Any], order: Order) -> list[ValueRank]:
    """Return the ranks of children, each in normal form or as in a plain row."""
    path = order.path
    if order.kind == "priority":
        return rank_values([priority_of(child) for child in children])
    parts: list[Any]
    if len(path) == 1:
        key = path[0]
        parts = [
            child.get(key) if type(child) is dict else part_at(child, path) for child in children
        ]
    else:
        parts = [part_at(child, path) for child in children]
    return rank_values([leaf_of(part) if type(part) is dict else part for part in parts])


def _rank_spread(nodes: ReadsNodes, child: Path, order: Order) -> tuple[ValueRank, bool]:
    return (_CONTAINER_RANK, False) if order.kind == "value" else look_up_rank(nodes, child, order)


def look_up_rank(nodes: ReadsNodes, child: Path, order: Order) -> tuple[ValueRank, bool]:
    """Return the rank of a child by what the rows hold, and whether much was read for it."""
    read: list[int] = []
    if order.kind == "priority":
        rank = rank_value(nodes.priority(child, read.append))
    else:
        rank = rank_value(nodes.peek((*child, *order.path), read.append))
    return rank, sum(read) > LARGE_ROW_BYTES


def rank_of_row(raw: bytes, order: Order) -> tuple[ValueRank, bool]:
    """Return the same of a child whose row it is, a long string as it is parsed fastest."""
    is_long = len(raw) > LARGE_ROW_BYTES
    if order.kind == "priority":
        return rank_value(priority_of_part(raw, (), free)), is_long
    return rank_value(peek_part(raw, order.path, free)), is_long


class Ranking:
    """The children that a query may select, of those that were added.

    They are sorted in runs. With a short limit there is one run, and as soon as it is as long as
    the limit, its last child narrows the range of the ranks that need be looked at.
    """

    def __init__(self, query: Query, *, is_last: bool = False) -> None:
        """Sort from the end where the limit begins, or from the last one on with `is_last`."""
        self._query = query
        self._limit = query.limit_to_first or query.limit_to_last
        self._is_last = is_last or query.limit_to_last is not None
        self._is_short = self._limit is not None and self._limit <= RUN_CHILDREN
        self._lowest = BELOW_ALL if query.low is None else query.low.rank
        self._highest = ABOVE_ALL if query.high is None else query.high.rank
        self._numbers = count()
        self._run: list[_Ranked] = []
        # Tuples, since those of mere texts and numbers cost the garbage collector nothing.
        self._runs: list[tuple[_Ranked, ...]] = []
        self._kept_bytes = 0
        self._text = 0  # of long strings, in all runs
        self._run_text = 0
        self._most_run_text = RUN_TEXT

    def add(
        self,
        batch: Sequence[tuple[str, ChildSource | None]],
        ranks: Sequence[ValueRank],
        places: Iterable[Any] | None = None,
    ) -> None:
        """Add children; those of one rank are in the order of `places`, or in that of adding.

        Raises `TooMuchText` if they are ordered by more than may be kept.
        """
        lowest, highest, admits = self._lowest, self._highest, self._query.admits
        placed = zip(ranks, places or self._numbers, batch, strict=False)
        found: list[_Ranked] = [
            (*rank, place, key, source)
            for rank, place, (key, source) in placed
            if lowest < rank < highest or (lowest <= rank <= highest and admits(rank, key))
        ]
        self._kept_bytes += _row_bytes(found)
        if self._kept_bytes > KEPT_BYTES:
            found = [_release(child) for child in found]
        self._run += found
        text = _text_of(found)
        self._text += text
        self._run_text += text
        if (
            len(self._run) >= (2 * (self._limit or 0) if self._is_short else RUN_CHILDREN)
            or self._run_text > self._most_run_text
        ):
            self._end_run()
        if self._text > TEXT_BYTES:
            raise TooMuchText(TEXT_BYTES)

    def in_order(self) -> Iterator[_Ranked]:
        """Return the selected children from the end where the limit begins."""
        self._end_run()
        return islice(merge(*self._runs, reverse=self._is_last), self._limit)

    def forget(self) -> Iterator[None]:
        """Forget the children, some of them in each step."""
        while self._runs:
            self._runs.pop()
            yield None

    def free_beside(self) -> None:
        """Forget the children that are left: who asked for them has gone."""
        free_beside(self._runs)

    def _end_run(self) -> None:
        run = self._run
        run.sort(reverse=self._is_last)
        if not self._is_short:
            self._runs.append(tuple(run))
            self._run, self._run_text = [], 0
            return
        del run[self._limit :]
        self._runs = [tuple(run)]
        self._kept_bytes = _row_bytes(run)
        self._text = self._run_text = _text_of(run)
        # So what stays is compared again only when as much has been added.
        self._most_run_text = max(RUN_TEXT, 2 * self._text)
        if len(run) == self._limit:
            last = run[-1][:2]
            if self._is_last:
                self._lowest = last
            else:
                self._highest = last


def _row_bytes(found: Iterable[_Ranked]) -> int:
    return sum([len(child[4]) for child in found if type(child[4]) is bytes])


def _text_of(found: Iterable[_Ranked]) -> int:
    """Return the characters of the long strings that children are ordered by."""
    texts = [child[1] for child in found if type(child[1]) is str]
    return sum([len(text) for text in texts if len(text) > LONG_TEXT])


def _release(child: _Ranked) -> _Ranked:
    """Release the row of a child; it is read again if it is needed."""
    return (*child[:4], None) if isinstance(child[4], bytes) else child
