"""The children of a collection in the order of an index, read along its entries.

Only the entries between the bounds of a query are read, from the end where its limit begins, and
nothing of the children but those that are shown. The key of an entry is as long as a row key may
be, so of a long string or key only the beginning is in it: entries that are equal up to there are
put in order by what their children hold (`ranks.Ranking`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from treedbd.store.child import Child, ReadsNodes
from treedbd.store.index_keys import CHILD_BYTES, VALUE_BYTES, ChildIndex, Entry, decode_entry
from treedbd.store.ranks import Ranking, look_up_rank
from treedbd.store.rows import unseal
from treedbd.tree.path import encode_key, encode_value, rank_key
from treedbd.tree.query import Bound, Query
from treedbd.tree.types import Path

YIELD_AFTER: Final = 16
"""Entries that are read between two pauses."""
_ABOVE_ALL: Final = b"\xff"


def by_index(
    nodes: ReadsNodes, path: Path, query: Query, index: ChildIndex
) -> Iterator[Child | None]:
    """Iterate over the children within bounds from the end where the limit begins.

    The limit itself is ignored. At a pause None is yielded.
    """
    tied: list[Entry] = []
    tie = b""
    for number, (key, entry) in enumerate(_entries(nodes, path, query, index)):
        if tied and not (entry.is_cut and key.startswith(tie)):
            yield from _in_order(nodes, path, query, tied)
            tied = []
        if entry.is_cut:
            tied.append(entry)
            tie = key[: entry.tie]
        elif entry.rank is not None and query.admits(entry.rank, entry.child):
            yield Child(nodes, path, entry.child, None, entry.rank)
        if number % YIELD_AFTER == 0:
            yield None
    yield from _in_order(nodes, path, query, tied)


def _entries(
    nodes: ReadsNodes, path: Path, query: Query, index: ChildIndex
) -> Iterator[tuple[bytes, Entry]]:
    """Iterate over the entries that may be within the bounds."""
    collection = index.collection(path) or b""
    low = collection if query.low is None else collection + _edge(query.low, is_low=True)
    high = collection + (_ABOVE_ALL if query.high is None else _edge(query.high, is_low=False))
    reverse = query.limit_to_last is not None
    for key, stored in nodes.rows.stored.scan(low, high, reverse=reverse):
        yield key, decode_entry(collection, key, unseal(key, stored))


def _edge(bound: Bound, *, is_low: bool) -> bytes:
    """Return where the entries begin or end that a bound admits, or a few more."""
    value = encode_value(bound.value)
    has_others = len(value) > VALUE_BYTES or bound.key is not None
    if len(value) > VALUE_BYTES:
        value = value[:VALUE_BYTES]
    elif bound.key is not None:
        value += encode_key(bound.key)[:CHILD_BYTES]
    # With an exclusive bound of a value alone, all entries at it are left out.
    is_beyond = is_low != (bound.is_inclusive or has_others)
    return value + _ABOVE_ALL if is_beyond else value


def _in_order(
    nodes: ReadsNodes, path: Path, query: Query, tied: list[Entry]
) -> Iterator[Child | None]:
    """Iterate over children whose entries say no order, in the order of what they hold."""
    ranking = Ranking(
        # Of those that pass a `where`, nobody knows yet how many come before.
        query
        if query.where is None
        else attrs.evolve(query, limit_to_first=None, limit_to_last=None),
        is_last=query.limit_to_last is not None,
    )
    try:
        while tied:
            some = tied[-YIELD_AFTER:]
            del tied[-YIELD_AFTER:]
            ranks = []
            for entry in some:
                rank, is_long = entry.rank, False
                if rank is None:
                    rank, is_long = look_up_rank(nodes, (*path, entry.child), query.order)
                ranks.append(rank)
                if is_long:
                    yield None
            places = [rank_key(entry.child) for entry in some]
            ranking.add([(entry.child, None) for entry in some], ranks, places)
            yield None
        for number, (tag, content, _, key, _) in enumerate(ranking.in_order()):
            yield Child(nodes, path, key, None, (tag, content))
            if number % YIELD_AFTER == 0:
                yield None
        yield from ranking.forget()
    finally:
        ranking.free_beside()
