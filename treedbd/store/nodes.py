"""The tree in the store: subtree rows, and how nodes are read from them.

Theory of operation
-------------------
A row holds a whole subtree, as long as its bytes (see `row_codec`) are at most `row_bytes`. A
larger container is *spread*: it has no row, its children have rows of their own, each by the same
rule, and so on down. A leaf is a row of any size. The root is no exception: a small database is one
row with the empty key. A spread container with a priority has one more row, its *priority row*,
which holds the priority and nothing else.

The key of a row is the encoded path of its node (`tree.path`), so the rows below a path are one
range, in key order. There are no rows below a row, except below a priority row. So the row that
covers a node, if there is one, is the row with the greatest key that is at most the node's, and its
key is a prefix of the node's key; one lookup (`floor`) finds it or shows that there is none. If
there is none, the rows below the node's key are the node; if there are no such rows either, nothing
is there.

Row keys have at most `ROW_KEY_BYTES` (480) bytes. A child of a spread container whose key would be
longer is in a *bucket*: a row whose key is the first 480 bytes and whose value is an object of all
children of the container that begin so, in key order. A bucket's key ends inside a child's key, so
it is never the key of a node, and since it is a prefix of the keys that it covers, `floor` finds it
too. A container whose own key has more than `SPREAD_BYTES` (470) bytes is not spread, however
large: too few bytes would be left to distinguish its children. It stays whole in its row or bucket,
so rows of any size exist there; integer keys (6 bytes) are never in a bucket.

How rows are stored, several short ones of siblings in one page, and each with a check sum, is
another matter (`paged_rows`): here and in `node_writer` a row is a row.

Invariants (`verify` checks them):

- there are no rows below a row that is not a priority row; below a priority row there are some;
- a row is printed in one way only: `encode_row(load_row(raw)) == raw`;
- which containers are spread depends on history too: a container that shrank may stay spread
  (`node_writer` says when it is merged again). Readers must not conclude anything from it.

Reading needs one moment of the engine (a `ReadView`): what is returned lazily must be consumed
during that moment. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treedbd.caches import short_cache
from treedbd.loop import paused
from treedbd.store.child import Child
from treedbd.store.children import SPREAD, ChildSource, Spread, child_keys, child_sources
from treedbd.store.engine import EngineSnapshot, PresentView, ReadView
from treedbd.store.rows import (
    ALL,
    Cover,
    PagedRows,
    Span,
    below,
    cut_into_chunks,
    export_row,
    is_priority_row,
    is_string,
    load_part,
    load_priority_row,
    load_row,
    peek_part,
    print_part,
    print_row,
    priority_of_part,
    type_of_part,
)
from treedbd.store.serialise import Serialiser
from treedbd.tree.path import encode_key
from treedbd.tree.types import CONTAINER, Charge, Container, Leaf, Path, Priority, Value, free
from treedbd.tree.value import NULL, compact, members, with_priority

_encode_known = short_cache(4096)(encode_key)
"""For the keys of paths in requests, most of which are repeated."""


class Nodes:
    """The tree at one moment; a `View`."""

    def __init__(self, rows: ReadView) -> None:
        self.rows = PagedRows(rows)

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        encoded, cover = self._find(path)
        if cover is not None:
            return load_part(cover.raw, cover.inside)
        return self._assemble(encoded)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        encoded, cover = self._find(path)
        if cover is None:
            return CONTAINER if self._is_spread(encoded) else None
        return peek_part(cover.raw, cover.inside, charge)

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns; a large leaf is not parsed for it."""
        encoded, cover = self._find(path)
        if cover is None:
            return Container if self._is_spread(encoded) else None
        return type_of_part(cover.raw, cover.inside, charge)

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        encoded, cover = self._find(path)
        if cover is None:
            return self._priority(encoded)
        return priority_of_part(cover.raw, cover.inside, charge)

    def size(self, path: Path, limit: int) -> int:
        """Return the bytes of the rows of `path`; counting pauses, and stops beyond `limit`."""
        encoded, cover = self._find(path)
        if cover is not None:
            return len(cover.raw)
        total = 0
        for key, raw in paused(self.rows.scan(*below(encoded))):
            total += len(key) + len(raw)
            if total > limit:
                break
        return total

    def is_spread(self, path: Path) -> bool:
        """Return whether the node at `path` is spread over the rows of its children."""
        encoded, cover = self._find(path)
        return cover is None and self._is_spread(encoded)

    def keys(self, path: Path, span: Span = ALL) -> Iterator[str]:
        """Iterate over the keys of the children of `path`, reading no more than is consumed."""
        encoded, cover = self._find(path)
        if cover is None:
            return child_keys(self.rows, encoded, span)
        return (name for name, _ in _members(cover, span))

    def print(self, path: Path) -> bytes:
        """Return the JSON of a plain GET of `path`."""
        encoded, cover = self._find(path)
        if cover is None:
            return b"".join(self._print_spread(encoded))
        return print_part(cover.raw, cover.inside) if cover.inside else print_row(cover.raw)

    def chunks(self, path: Path, *, export: bool = False) -> Iterator[bytes]:
        """Print `path` chunk by chunk, reading rows as the chunks are consumed.

        A chunk has at most 64 KiB. Together they are `print(path)`, or with `export` what
        `format=export` prints: priorities, no arrays.
        """
        encoded, cover = self._find(path)
        if cover is None:
            yield from self._print_spread(encoded, export)
        elif export:
            inside = cover.inside
            yield from cut_into_chunks(
                compact(load_part(cover.raw, inside)) if inside else export_row(cover.raw)
            )
        else:
            yield from _print_covered(cover)

    def chunks_unless_spread(self, path: Path) -> Iterator[bytes] | None:
        """Print `path` as `chunks` does, unless it is spread over the rows of its children."""
        encoded, cover = self._find(path)
        if cover is None:
            return None if self._is_spread(encoded) else iter((NULL,))
        return _print_covered(cover)

    def children(self, path: Path, span: Span = ALL) -> Iterator[Child]:
        """Iterate over the children of `path`, reading no more than is consumed."""
        for key, source in self.sources(path, span):
            yield Child(self, path, key, source)

    def sources(self, path: Path, span: Span = ALL) -> Iterator[tuple[str, ChildSource]]:
        """Iterate over the keys of those children, each with what is known of the child."""
        encoded, cover = self._find(path)
        return child_sources(self.rows, encoded, span) if cover is None else _members(cover, span)

    def source(self, path: Path) -> ChildSource | None:
        """Return what is known of a node when its row has been found, None if nothing is there."""
        encoded, cover = self._find(path)
        if cover is None:
            return SPREAD if self._is_spread(encoded) else None
        return load_part(cover.raw, cover.inside) if cover.inside else cover.raw

    def _find(self, path: Path) -> tuple[bytes, Cover | None]:
        """Return the encoded path, and the row that covers it; a spread node has no such row."""
        segments = [_encode_known(key) for key in path]
        encoded = b"".join(segments)
        row = self.rows.find(encoded)
        if row is None or is_priority_row(row[1]):
            return encoded, None
        key, raw = row
        remaining = len(encoded) - len(key)
        depth = len(path)
        while remaining > 0:
            depth -= 1
            remaining -= len(segments[depth])
        # The key of a bucket ends inside the key of a child.
        return encoded, Cover(key, raw, path[depth:], is_bucket=remaining < 0)

    def _is_spread(self, encoded: bytes) -> bool:
        return next(self.rows.scan_keys(*below(encoded)), None) is not None

    def _priority(self, encoded: bytes) -> Priority | None:
        """Return the priority of a spread container."""
        raw = self.rows.get(encoded)
        return load_priority_row(raw) if raw is not None and is_priority_row(raw) else None

    def _print_spread(self, encoded: bytes, export: bool = False) -> Iterator[bytes]:
        """Print a node that no row covers."""
        if not self._is_spread(encoded):
            return iter((NULL,))
        return Serialiser(self.rows, export).chunks(
            encoded, self._priority(encoded) if export else None
        )

    def _assemble(self, encoded: bytes) -> Value:
        """Build the value of a node that no row covers."""
        children = {
            name: self._value(source, encoded, name)
            for name, source in child_sources(self.rows, encoded)
        }
        return with_priority(children, self._priority(encoded)) if children else None

    def _value(self, source: ChildSource, container: bytes, name: str) -> Value:
        if isinstance(source, Spread):
            return self._assemble(container + encode_key(name))
        return load_row(source) if isinstance(source, bytes) else source


class PresentNodes(Nodes):
    """The tree at the present moment."""

    def __init__(self, view: PresentView) -> None:
        super().__init__(view)
        self._view = view

    def hold(self) -> HeldNodes | None:
        """Hold this very moment, so that reading it goes on in later turns.

        None if it cannot be held now.
        """
        snapshot = self._view.hold()
        return None if snapshot is None else HeldNodes(snapshot)


class HeldNodes(Nodes):
    """The tree at one moment that is held until `close`; `sequence` is its number."""

    def __init__(self, snapshot: EngineSnapshot) -> None:
        super().__init__(snapshot)
        self._snapshot = snapshot
        self.sequence: Final = snapshot.sequence()

    def close(self) -> None:
        """Release the moment."""
        self._snapshot.close()


def _print_covered(cover: Cover) -> Iterator[bytes]:
    inside = cover.inside
    return cut_into_chunks(print_part(cover.raw, inside) if inside else print_row(cover.raw))


def _members(cover: Cover, span: Span) -> Iterator[tuple[str, Value]]:
    """Iterate over the children of a node that a row covers."""
    if is_string(cover.raw):
        return iter(())
    found = [
        member
        for member in members(load_part(cover.raw, cover.inside))
        if span is ALL or span.holds(member[0])
    ]
    return reversed(found) if span.reverse else iter(found)
