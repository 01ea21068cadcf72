"""The tree on the shelf: subtree rows, and how nodes are read from them.

Theory of operation
-------------------
A row holds a whole subtree, as long as its bytes (see `row`) are at most `row_bytes`. A larger
container is *spread*: it has no row, its children have rows of their own, each by the same rule,
and so on down. A leaf is a row of any size. The root is no exception: a small database is one row
with the empty key. A container that is spread and has a priority has one row more, its *crown*,
which holds the priority and nothing else.

The key of a row is the encoded path of its node (`tree.order`), so the rows below a path are one
range, in key order. Nothing lies below a row that is not a crown. Therefore the row that covers a
node, if there is one, is the row with the greatest key that is at most the node's, and its key is
a beginning of the node's key; one look (`floor`) finds it or tells that there is none. In that
case the rows below the node's key, if any, are the node; if there are none, nothing is there.

Row keys have at most `KEY_BYTES` (480) bytes. A child of a spread container whose key would be
longer lies in a *bucket*: a row whose key is the first 480 bytes and whose value is an object of
all the container's children that begin so, in key order. A bucket's key ends inside a child's key,
so it is never the key of a node, and since it is a beginning of the keys that it covers, `floor`
finds it too. A container whose own key has more than `SPREAD_BYTES` (470) bytes is not spread,
however large: its children would have too few bytes to tell them apart. It stays whole in its
row or bucket, so rows of any size exist there; integers as keys (5 bytes) never lie in a bucket.

What holds at all times (`verification` checks it):

- no row lies below another that is not a crown; a crown has rows below it;
- rows are printed in one way only: `encode_row(load_row(raw)) == raw`;
- which containers are spread is history as well: a container that shrank may stay spread
  (`node_writer` says when it is gathered again). Readers must not conclude anything from it.

Reading needs one moment of the mapping (`Rows`): what is returned lazily must be consumed while
that moment lasts. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from treedbd.store.children import Source, Spread, child_names, child_sources
from treedbd.store.layout import ALL, Span, below
from treedbd.store.mapping import Rows
from treedbd.store.row import (
    export_row,
    is_container,
    is_crown,
    is_marked,
    load_crown,
    load_part,
    load_row,
    print_part,
    print_row,
)
from treedbd.store.shelf import Shelf
from treedbd.store.splice import Splice
from treedbd.tree.order import ValueRank, encode_key, rank_value
from treedbd.tree.path import Path
from treedbd.tree.printing import NULL, compact
from treedbd.tree.query import Query
from treedbd.tree.value import (
    CONTAINER,
    Container,
    Leaf,
    Priority,
    Value,
    leaf_of,
    members,
    plain,
    priority_of,
    with_priority,
)

_encode_known = lru_cache(maxsize=4096)(encode_key)
"""For the keys of paths that are asked for: most of them are asked for again."""


class Cover(NamedTuple):
    """The row that a node lies in, and the path from that row's node down to it.

    For a bucket the path begins at the container that the bucket's members are children of.
    """

    key: bytes
    raw: bytes
    inside: Path
    is_bucket: bool


class Nodes:
    """The tree at one moment; a `View`. Paths that hold nothing read as null, never as an error."""

    def __init__(self, rows: Rows) -> None:
        self.shelf = Shelf(rows)

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        encoded, cover = self._find(path)
        if cover is not None:
            return load_part(cover.raw, cover.inside)
        return self._assemble(encoded)

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` where it has children, None where nothing is."""
        encoded, cover = self._find(path)
        if cover is None:
            return CONTAINER if self._is_spread(encoded) else None
        if not cover.inside and not is_marked(cover.raw) and is_container(cover.raw):
            return CONTAINER
        return leaf_of(load_part(cover.raw, cover.inside))

    def priority(self, path: Path) -> Priority | None:
        """Return the priority of the node at `path`."""
        encoded, cover = self._find(path)
        if cover is None:
            return self._crown(encoded)
        return priority_of(load_part(cover.raw, cover.inside)) if is_marked(cover.raw) else None

    def size(self, path: Path, most: int) -> int:
        """Return how many bytes the rows of `path` have; counted no further than beyond `most`."""
        encoded, cover = self._find(path)
        if cover is not None:
            return len(cover.raw)
        total = 0
        for key, raw in self.shelf.raw_scan(*below(encoded)):
            total += len(key) + len(raw)
            if total > most:
                break
        return total

    def is_spread(self, path: Path) -> bool:
        """Tell whether the node at `path` is so large that it lies in rows of its own below it."""
        encoded, cover = self._find(path)
        return cover is None and self._is_spread(encoded)

    def keys(self, path: Path, span: Span = ALL) -> Iterator[str]:
        """Iterate over the keys of the children of `path`; costs no more than what is read."""
        encoded, cover = self._find(path)
        if cover is None:
            return child_names(self.shelf, encoded, span)
        return (name for name, _ in _members(cover, span))

    def print(self, path: Path) -> bytes:
        """Return what a plain GET of `path` prints."""
        encoded, cover = self._find(path)
        if cover is None:
            return b"".join(self._print_spread(encoded))
        return print_part(cover.raw, cover.inside) if cover.inside else print_row(cover.raw)

    def pieces(self, path: Path, *, export: bool = False) -> Iterator[bytes]:
        """Print `path` piece by piece, reading rows as it is driven.

        A piece has at most 64 KiB, unless one row holds all of the node. Together they are
        `print(path)`, or what `format=export` prints: with priorities, without arrays.
        """
        encoded, cover = self._find(path)
        if cover is None:
            yield from self._print_spread(encoded, export)
        elif not export:
            yield print_part(cover.raw, cover.inside) if cover.inside else print_row(cover.raw)
        elif cover.inside:
            yield compact(load_part(cover.raw, cover.inside))
        else:
            yield export_row(cover.raw)

    def children(self, path: Path, span: Span = ALL) -> Iterator[Child]:
        """Iterate over the children of `path`. Only what is taken is read. A leaf has none."""
        encoded, cover = self._find(path)
        found: Iterable[tuple[str, Source]]
        found = child_sources(self.shelf, encoded, span) if cover is None else _members(cover, span)
        for key, source in found:
            yield Child(self, path, key, source)

    def _find(self, path: Path) -> tuple[bytes, Cover | None]:
        """Return the encoded path, and the row that covers it; a spread node has none."""
        segments = [_encode_known(key) for key in path]
        encoded = b"".join(segments)
        row = self.shelf.raw_floor(encoded)
        if row is None or not encoded.startswith(row[0]) or is_crown(row[1]):
            return encoded, None
        key, raw = row
        left = len(encoded) - len(key)
        depth = len(path)
        while left > 0:
            depth -= 1
            left -= len(segments[depth])
        return encoded, Cover(key, raw, path[depth:], left < 0)

    def _is_spread(self, encoded: bytes) -> bool:
        return next(self.shelf.raw_keys(*below(encoded)), None) is not None

    def _crown(self, encoded: bytes) -> Priority | None:
        """Return the priority of a spread container."""
        raw = self.shelf.raw_get(encoded)
        return load_crown(raw) if raw is not None and is_crown(raw) else None

    def _print_spread(self, encoded: bytes, export: bool = False) -> Iterator[bytes]:
        """Print a node that no row covers."""
        if not self._is_spread(encoded):
            return iter((NULL,))
        return Splice(self.shelf, export).pieces(encoded, self._crown(encoded) if export else None)

    def _assemble(self, encoded: bytes) -> Value:
        """Build the value of a node that no row covers."""
        children = {
            name: self._value(source, encoded, name)
            for name, source in child_sources(self.shelf, encoded)
        }
        return with_priority(children, self._crown(encoded)) if children else None

    def _value(self, source: Source, container: bytes, name: str) -> Value:
        if isinstance(source, Spread):
            return self._assemble(container + encode_key(name))
        return load_row(source) if isinstance(source, bytes) else source


class Child:
    """One child of a node, found, but read only where its row came along.

    Good for as long as its nodes are.
    """

    __slots__ = ("_nodes", "_parent", "_source", "key")

    def __init__(self, nodes: Nodes, parent: Path, key: str, source: Source | None) -> None:
        self.key = key
        self._nodes = nodes
        self._parent = parent
        self._source = source

    @property
    def weight(self) -> int:
        """How many bytes it holds."""
        return len(self._source) if isinstance(self._source, bytes) else 0

    def forget(self) -> None:
        """Hold nothing; what is asked for is read again."""
        if isinstance(self._source, bytes):
            self._source = None

    def value(self) -> Value:
        """Return the whole subtree with its priorities."""
        source = self._source
        if isinstance(source, bytes):
            return load_row(source)
        if source is None or isinstance(source, Spread):
            return self._nodes.get(self._path)
        return source

    def pieces(self, *, export: bool = False) -> Iterator[bytes]:
        """Print it as `Nodes.pieces` does."""
        source = self._source
        if isinstance(source, bytes):
            return iter((export_row(source) if export else print_row(source),))
        if source is None or isinstance(source, Spread):
            return self._nodes.pieces(self._path, export=export)
        return iter((compact(source if export else plain(source)),))

    def rank(self, query: Query) -> ValueRank:
        """Return what a query that is not by key orders it by, before its key."""
        if not isinstance(self._source, Spread):
            return query.sort_value(self.value())
        kind = query.order.kind
        if kind == "priority":
            return rank_value(self._nodes.priority(self._path))
        if kind == "child":
            return rank_value(self._nodes.peek((*self._path, *query.order.path)))
        return rank_value(CONTAINER)

    @property
    def _path(self) -> Path:
        return (*self._parent, self.key)


def _members(cover: Cover, span: Span) -> Iterator[tuple[str, Value]]:
    """Iterate over the children of a node that a row covers."""
    found = [
        member
        for member in members(load_part(cover.raw, cover.inside))
        if span is ALL or span.holds(member[0])
    ]
    return reversed(found) if span.reverse else iter(found)
