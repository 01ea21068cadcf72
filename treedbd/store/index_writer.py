"""Keeping the entries of indexes in the transaction of the write that changes them.

Theory of operation. Only spread collections have entries. Before changes are applied, what they
touch is noted: of a change below a child of a collection the child and what it is ordered by; of a
change at or above collections nothing, since all their entries are removed at once. Afterwards the
noted children are compared with what they are ordered by now, and collections that were replaced,
or are spread only now, are entered as a whole. So the cost follows the change, not the collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import attrs

from treedbd.loop import pause
from treedbd.store.engine import DamagedRow, Row, Transaction
from treedbd.store.index_entries import (
    enter,
    enter_collection,
    entries_of,
    find_collections,
    matches_above,
    value_of,
)
from treedbd.store.index_keys import ChildIndex, decode_entry, encode_entry
from treedbd.store.index_states import read_states
from treedbd.store.node_writer import ROW_BYTES, NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.pages import PAGE_BYTES
from treedbd.store.ranks import Member, batched, ranks_of
from treedbd.store.rows import unseal
from treedbd.tree.query import Query
from treedbd.tree.types import Change, Container, Leaf, Path, Value


class _NoChild:
    """The type of what is noted of a child that does not exist."""


class _Unknown:
    """The type of what is noted of a child that could not be read."""


_ABSENT: Final = _NoChild()
_UNREADABLE: Final = _Unknown()

_Noted: TypeAlias = "tuple[Leaf | Container | None, ...] | _NoChild | _Unknown"
"""What a child was ordered by in each of the indexes of its collection."""


@attrs.define
class _Collection:
    """A collection whose children change: its indexes, and what the children were ordered by.

    Of a collection that was not spread nothing is noted: it had no entries.
    """

    indexes: tuple[ChildIndex, ...]
    was_spread: bool
    children: dict[str, _Noted] = attrs.Factory(dict)


class IndexWriter:
    """Keeps the entries of some indexes while changes are made."""

    def __init__(
        self, nodes: Nodes, transaction: Transaction, indexes: Sequence[ChildIndex]
    ) -> None:
        """Read `nodes`, which show what the transaction has changed."""
        self._nodes = nodes
        self._transaction = transaction
        self._indexes = indexes
        self._depths = sorted({len(index.pattern) for index in indexes})
        self._replaced: list[tuple[ChildIndex, Path]] = []
        self._noted: dict[Path, _Collection] = {}

    def note(self, changes: Sequence[Change]) -> None:
        """Note what changes, in the order in which they will be applied, may change."""
        touched: dict[Path, dict[str, None]] = {}
        for change in changes:
            path, is_priority = change.place
            for depth in self._depths:
                if len(path) > depth:
                    touched.setdefault(path[:depth], {})[path[depth]] = None
            if not is_priority and len(path) <= self._depths[-1]:
                self._replace(path)
            pause()
        for path, keys in touched.items():
            self._note_children(path, keys)

    def _replace(self, path: Path) -> None:
        """Remove the entries of the collections at and below a path that is written as a whole."""
        for index in self._indexes:
            if matches_above(index.pattern, path):
                self._transaction.delete_range(*index.below(path))
                self._replaced.append((index, path))

    def _note_children(self, path: Path, keys: Iterable[str]) -> None:
        collection = self._noted.get(path)
        if collection is None:
            matching = tuple([index for index in self._indexes if index.matches(path)])
            if not matching:
                return
            collection = _Collection(matching, self._nodes.is_spread(path))
            self._noted[path] = collection
        if collection.was_spread:
            new = [key for key in keys if key not in collection.children]
            for children in self._look_up(path, collection.indexes, new):
                collection.children.update(children)

    def update(self) -> None:
        """Bring the entries up to date, after the changes that were noted."""
        for index, path in self._replaced:
            for collection in find_collections(self._nodes, index.pattern, path):
                enter_collection(self._transaction, self._nodes, index, collection)
        for path, noted in self._noted.items():
            is_spread = self._nodes.is_spread(path)
            if is_spread and noted.was_spread:
                self._update_children(path, noted)
                continue
            for index in noted.indexes:
                if is_spread:
                    enter_collection(self._transaction, self._nodes, index, path)
                elif noted.was_spread:
                    self._transaction.delete_range(*index.below(path))
        self._replaced.clear()
        self._noted.clear()

    def enter_added(self, path: Path, children: dict[str, Value]) -> None:
        """Enter children that were added to a spread container, in which they were not before."""
        for index in self._indexes:
            if index.matches(path):
                for batch in batched(children.items()):
                    enter(self._transaction, entries_of(self._nodes, index, path, batch))
                    pause()
            elif len(path) < len(index.pattern):
                self._enter_below(index, path, children)

    def _enter_below(self, index: ChildIndex, path: Path, keys: Iterable[str]) -> None:
        for key in keys:
            below = (*path, key)
            if matches_above(index.pattern, below):
                for collection in find_collections(self._nodes, index.pattern, below):
                    enter_collection(self._transaction, self._nodes, index, collection)

    def _look_up(
        self, path: Path, indexes: Sequence[ChildIndex], keys: Iterable[str]
    ) -> Iterator[dict[str, _Noted]]:
        """Yield what children of a collection are ordered by in each of the indexes."""
        found: dict[str, _Noted] = {}
        for batch in batched(self._members(path, keys, found)):
            try:
                ranks = [ranks_of(self._nodes, path, Query(each.order), batch) for each in indexes]
            except DamagedRow:
                found.update(self._look_up_each(path, indexes, batch))
            else:
                for (key, _), *values in zip(batch, *ranks, strict=True):
                    found[key] = tuple(map(value_of, values))
            yield found
            found.clear()
            pause()
        yield found

    def _members(
        self, path: Path, keys: Iterable[str], others: dict[str, _Noted]
    ) -> Iterator[Member]:
        """Iterate over children with their rows; those without one go to `others`."""
        for key in keys:
            try:
                source = self._nodes.source((*path, key))
            except DamagedRow:
                others[key] = _UNREADABLE
                continue
            if source is None:
                others[key] = _ABSENT
            else:
                yield key, source

    def _look_up_each(
        self, path: Path, indexes: Sequence[ChildIndex], batch: Sequence[Member]
    ) -> Iterator[tuple[str, _Noted]]:
        for member in batch:
            try:
                ranks = [
                    ranks_of(self._nodes, path, Query(each.order), [member]) for each in indexes
                ]
            except DamagedRow:
                yield member[0], _UNREADABLE
            else:
                yield member[0], tuple([value_of(rank) for (rank,) in ranks])

    def _update_children(self, path: Path, noted: _Collection) -> None:
        encoded = [index.collection(path) for index in noted.indexes]
        for present in self._look_up(path, noted.indexes, noted.children):
            added = []
            for key, after in present.items():
                before = noted.children[key]
                for at, collection in enumerate(encoded):
                    if collection is not None:
                        added += self._update_child(collection, key, before, after, at)
            enter(self._transaction, sorted(added))

    def _update_child(
        self, collection: bytes, key: str, before: _Noted, after: _Noted, at: int
    ) -> list[Row]:
        """Remove an entry that is not right any more; return that which is to be entered."""
        if isinstance(before, _Unknown):
            self._remove_unknown(collection, key)
        elif not isinstance(before, _NoChild):
            if isinstance(after, tuple) and _are_same(before[at], after[at]):
                return []
            self._transaction.delete(encode_entry(collection, before[at], key)[0])
        return [encode_entry(collection, after[at], key)] if isinstance(after, tuple) else []

    def _remove_unknown(self, collection: bytes, child: str) -> None:
        """Remove the entry of a child of which it is not known what it was ordered by."""
        end = collection[:-1] + bytes((collection[-1] + 1,))
        for key, stored in self._transaction.scan(collection, end):
            if decode_entry(collection, key, unseal(key, stored)).child == child:
                self._transaction.delete(key)
                return


def _are_same(one: Leaf | Container | None, other: Leaf | Container | None) -> bool:
    # 1, 1.0 and True are equal, but True sorts elsewhere.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def make_writer(
    transaction: Transaction,
    indexes: Sequence[ChildIndex],
    row_bytes: int = ROW_BYTES,
    page_bytes: int = PAGE_BYTES,
) -> NodeWriter:
    """Return a writer that keeps the entries of indexes."""
    writer = NodeWriter(transaction, row_bytes, page_bytes)
    if indexes:
        writer.indexes = IndexWriter(writer, transaction, indexes)
    return writer


class WriterMaker:
    """Makes the writers of a database, which keep its indexes; they are read once a transaction."""

    def __init__(self) -> None:
        """Begin without a transaction."""
        self._transaction: Transaction | None = None
        self._kept: tuple[ChildIndex, ...] = ()

    def make(self, transaction: Transaction) -> NodeWriter:
        """Return a writer into the open transaction."""
        if transaction is not self._transaction:
            self._kept = read_states(transaction).kept
            self._transaction = transaction
        return make_writer(transaction, self._kept)
