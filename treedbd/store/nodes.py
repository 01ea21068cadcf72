"""The tree in the store: in which rows a node is stored, and how it is read and printed from them.

Theory of operation
-------------------
A row holds a whole subtree, as long as its bytes (see `rows`) are at most `row_bytes`. A larger
container is *spread*: it has no row, its children have rows of their own, each by the same rule,
and so on down. A leaf is a row of any size. The root is the same: a small database is one row
with the empty key. A spread container with a priority has one more row, its *priority row*, which
holds the priority and nothing else.

The key of a row is the encoded path of its node (`tree.path`), so the rows below a path are one
range, in key order. No row is below another one, unless that is a priority row. So the row that
covers a node, if there is one, is the row with the greatest key that is at most the node's, and its
key is a prefix of the node's key; one lookup (`floor`) finds it or shows that there is none. If
there is none, the rows below the node's key are the node; without such rows, nothing is there.

Row keys have at most `ROW_KEY_BYTES` (480) bytes. A child of a spread container whose key would be
longer is in a *bucket*: a row whose key is the first 480 bytes and whose value is an object of all
children of the container that begin so, in key order. A bucket's key ends inside a child's key, so
it is never the key of a node, and since it is a prefix of the keys that it covers, `floor` finds it
too. A container whose own key has more than `SPREAD_BYTES` (470) bytes is not spread, however
large: too few bytes would be left to distinguish its children. It stays whole in its row or bucket,
so rows of any size exist there; integer keys (6 bytes) are never in a bucket.

How rows are stored, several short ones of siblings in one page, and each with a check sum, is
another matter (`rows`): here and in `node_writer` a row is a row.

Invariants (`verify` checks them):

- only a priority row has rows below it, and it has at least one;
- a row is printed in one way only: `encode_row(load_row(raw)) == raw`;
- which containers are spread depends on history too: a container that shrank may stay spread
  (`node_writer` says when it is merged again). Readers must not conclude anything from it.

`Nodes` reads one moment of the engine (a `ReadView`): what is returned lazily must be consumed
during that moment. Nothing here writes. After it come its parts, which can be read one by one:

- `Child`, and the iterations over the children of a spread container;
- `Serialiser`, which prints a spread container from the bytes of its rows;
- the canonical form of a node and its entity tag (`etag_in_steps`), and its hash (`hash_at`), in
  steps, whatever its size;
- the spelling of numbers beyond 64 bits (`spell_chunks`) for clients that know 64 bits.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from heapq import merge
from itertools import chain, islice
from typing import Final, TypeAlias, TypeVar

import attrs

from treedbd.caches import short_cache
from treedbd.limits import MAX_SHOWN_BYTES, MIB
from treedbd.loop import free_beside, pause, paused
from treedbd.store.engine import DamagedRow, EngineSnapshot, PresentView, ReadView
from treedbd.store.rows import (
    ALL,
    CHUNK_BYTES,
    CONTAINERS,
    MARK,
    Cover,
    Page,
    PagedRows,
    Span,
    below,
    cut_into_chunks,
    decode_key,
    encode_row,
    end_of_key,
    export_row,
    is_page,
    is_priority_row,
    is_string,
    load_part,
    load_priority_row,
    load_row,
    parse_stored,
    peek_part,
    print_key,
    print_part,
    print_row,
    priority_of_part,
    type_of_part,
)
from treedbd.tree.fragments import find_end
from treedbd.tree.hashes import HashedChild, canonicalise, data_hash, hash_container, hash_leaf
from treedbd.tree.path import (
    BEYOND,
    INT_BYTES,
    INT_TAG,
    SAME_RANK,
    ValueRank,
    are_indices,
    decode_value,
    encode_key,
    encode_path,
)
from treedbd.tree.types import (
    CONTAINER,
    PRIORITY,
    Charge,
    Container,
    Leaf,
    Path,
    Place,
    Priority,
    Value,
    free,
)
from treedbd.tree.value import (
    INT64_HIGH,
    INT64_LOW,
    NULL,
    compact,
    members,
    plain,
    priority_of,
    with_priority,
)


class Spread:
    """The type of `SPREAD`: a child that is spread over the rows of its children."""


SPREAD: Final = Spread()
_KEYS_AT_ONCE: Final = 64

T = TypeVar("T")

ChildSource: TypeAlias = "bytes | Spread | Value"
"""What is known of a child: the bytes of its row, `SPREAD`, or its value in a bucket."""


_encode_known = short_cache(4096)(encode_key)
"""For the keys of paths in requests, most of which are repeated."""


class Nodes:
    """The tree at one moment, read from its rows; a `View`."""

    def __init__(self, rows: ReadView | PagedRows) -> None:
        """Read the rows of an engine's view, or those of `PagedRows` that exist already."""
        self.rows = rows if isinstance(rows, PagedRows) else PagedRows(rows)

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

    def is_short(self, path: Path, rows: int, size: int) -> bool:
        """Return whether `path` is stored in a few rows and pages, or in one of `size` bytes."""
        encoded, cover = self._find(path)
        if cover is not None:
            return len(cover.raw) <= size
        stored = self.rows.stored.scan_keys(*below(encoded))
        return sum(1 for _ in islice(stored, rows + 1)) <= rows

    def keys(self, path: Path, span: Span = ALL) -> Iterator[str]:
        """Iterate over the keys of the children of `path`, reading only what is consumed."""
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
        """Print `path` chunk by chunk; the rows below it are read as the chunks are consumed.

        A chunk has at most 64 KiB. Together they are `print(path)`, or with `export` what
        `format=export` prints: priorities, no arrays.
        """
        encoded, cover = self._find(path)
        if cover is None:
            return self._print_spread(encoded, export)
        if not export:
            return _print_covered(cover)
        inside = cover.inside
        return cut_into_chunks(
            compact(load_part(cover.raw, inside)) if inside else export_row(cover.raw)
        )

    def chunks_unless_spread(self, path: Path) -> Iterator[bytes] | None:
        """Print `path` as `chunks` does, unless it is spread over the rows of its children."""
        encoded, cover = self._find(path)
        if cover is None:
            return None if self._is_spread(encoded) else iter((NULL,))
        return _print_covered(cover)

    def children(self, path: Path, span: Span = ALL) -> Iterator[Child]:
        """Iterate over the children of `path`, reading only what is consumed."""
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
        segments = list(map(_encode_known, path))
        encoded = b"".join(segments)
        row = self.rows.find(encoded)
        if row is None:
            return encoded, None
        key, raw = row
        if raw.startswith(MARK) and is_priority_row(raw):  # few rows are marked
            return encoded, None
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
    """The tree at the present moment; `view` is its view of the engine."""

    def __init__(self, view: PresentView, rows: PagedRows | None = None) -> None:
        """Read the rows of `view`, or `rows` that are made of them."""
        super().__init__(view if rows is None else rows)
        self.view: Final = view

    def hold(self) -> HeldNodes | None:
        """Hold this moment, so that reading it goes on in later turns.

        None if it cannot be held now.
        """
        snapshot = self.view.hold()
        return None if snapshot is None else HeldNodes(snapshot)


class HeldNodes(Nodes):
    """The tree at one moment that is held until `close`; `sequence` is its number."""

    def __init__(self, snapshot: EngineSnapshot, rows: PagedRows | None = None) -> None:
        """Read the rows of `snapshot`, or `rows` that are made of them."""
        super().__init__(snapshot if rows is None else rows)
        self._snapshot = snapshot
        self.sequence: Final = self.rows.sequence()

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


class ChildRows:
    """The rows of some children of a spread container: read together when the first is taken."""

    __slots__ = ("_container", "_found", "_rows", "_segments")

    def __init__(self, rows: PagedRows, container: bytes, segments: Sequence[bytes]) -> None:
        """Read from `rows` the children of an encoded path that have these encoded keys."""
        self._rows = rows
        self._container = container
        self._segments = segments
        self._found: dict[bytes, bytes] | None = None

    def take(self, segment: bytes) -> bytes | None:
        """Return the row of a child, once; None if it has to be looked up by itself."""
        if self._found is None:
            self._found = self._rows.find_children(self._container, self._segments)
        return self._found.pop(segment, None)


@attrs.define(eq=False, repr=False)
class Child:
    """One child of a node; its value is read when it is needed, unless its row was found already.

    `source` is what was found of it in the rows, None if that is not kept; then its row may be
    among `_rows`, by its encoded key. If `_encoded` is not empty, it is what the child is ordered
    by. It can be used as long as its `Nodes`.
    """

    _nodes: Nodes
    _parent: Path
    key: str
    source: ChildSource | None
    _rank: ValueRank = SAME_RANK
    _rows: ChildRows | None = None
    _segment: bytes = b""
    _encoded: bytes = b""

    @property
    def rank(self) -> ValueRank:
        """Its rank, before its key, in the query that selected it."""
        return decode_value(self._encoded)[0] if self._encoded else self._rank

    @property
    def row_bytes(self) -> int:
        """The bytes of its row, if it keeps that."""
        return len(self.source) if isinstance(self.source, bytes) else 0

    def with_row(self) -> Child:
        """Return the same child, which keeps its row if that is among those read together."""
        if self.source is not None or self._rows is None:
            return self
        row = self._rows.take(self._segment)
        return Child(self._nodes, self._parent, self.key, row, self.rank)

    def without_row(self) -> Child:
        """Return the same child, which keeps no row: it is read again if it is needed."""
        if not isinstance(self.source, bytes):
            return self
        return Child(self._nodes, self._parent, self.key, None, self.rank)

    def value(self) -> Value:
        """Return the whole subtree with its priorities."""
        source = self.source
        if isinstance(source, bytes):
            return load_row(source)
        if source is None or isinstance(source, Spread):
            return self._nodes.get((*self._parent, self.key))
        return source

    @property
    def is_spread(self) -> bool:
        """Whether it may be spread over rows of its own children."""
        return self.source is None or isinstance(self.source, Spread)

    def chunks(self, *, export: bool = False) -> Iterator[bytes]:
        """Print it as `Nodes.chunks` does."""
        source = self.source
        if source is None and self._rows is not None:
            source = self._rows.take(self._segment)
        if source is None or isinstance(source, Spread):
            return self._nodes.chunks((*self._parent, self.key), export=export)
        return cut_into_chunks(print_source(source, export=export))


def print_source(source: ChildSource, *, export: bool) -> bytes:
    """Print a child that is not spread as `Nodes.chunks` does, by what is known of it."""
    if isinstance(source, Spread):
        raise TypeError("The rows of a spread child are not known.")
    if isinstance(source, bytes):
        return export_row(source) if export else print_row(source)
    return compact(source if export else plain(source))


def child_sources(
    rows: PagedRows, container: bytes, span: Span = ALL
) -> Iterator[tuple[str, ChildSource]]:
    """Iterate over the children of a node that no row covers; `container` is its encoded path."""
    start = len(container)
    low, high = span.bounds(container)
    while True:
        for key, raw in rows.scan(low, high, reverse=span.reverse):
            end = end_of_key(key, start)
            if not end:
                yield from _bucket_members(raw, span)
            elif end == len(key) and not is_priority_row(raw):
                yield decode_key(key[start:]), raw
            else:
                yield decode_key(key[start:end]), SPREAD
                low, high = (low, key[:end]) if span.reverse else (_after(key, end), high)
                break
        else:
            return


def child_keys(rows: PagedRows, container: bytes, span: Span = ALL) -> Iterator[str]:
    """Iterate over the keys of those children, reading no rows but buckets."""
    start = len(container)
    for key, end in _child_keys(rows, container, span):
        if end:
            yield decode_key(key[start:end])
        else:
            for name, _ in _bucket_members(rows.get(key) or b"{}", span):
                yield name


def find_array(rows: PagedRows, container: bytes) -> Generator[None, None, bool]:
    """Return in steps whether a spread container is printed as an array (`tree.value.as_array`).

    Reads the first key, which is text in most objects, and in them all others are too; then the
    last one; only if that is an index, the other keys.
    """
    start = len(container)
    end = start + INT_BYTES
    low, high = below(container)
    first = next(rows.scan_keys(low, high), None)
    if first is None or first[start] != INT_TAG:
        return False
    last = next(rows.scan_keys(low, high, reverse=True), None)
    if last is None or last[start] != INT_TAG:
        return False
    count = 0
    scan = rows.scan_keys(low, high)
    previous = b""
    while keys := list(islice(scan, _KEYS_AT_ONCE)):
        if min(map(len, keys)) < end:
            raise DamagedRow("The key of a row is incomplete.")
        indices = list(dict.fromkeys([key[start:end] for key in keys]))
        if not are_indices(indices):
            return False
        count += len(indices) - (indices[0] == previous)
        previous = indices[-1]
        if len(keys[-1]) > end:  # of a spread child, whose other rows are not read
            scan = rows.scan_keys(_after(keys[-1], end), high)
        yield
    return int(decode_key(last[start:end])) < 2 * count


def empty_chunks(steps: Generator[None, None, T]) -> Generator[bytes, None, T]:
    """Run steps while printing: each yields an empty chunk. Return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield b""


def _child_keys(rows: PagedRows, container: bytes, span: Span) -> Iterator[tuple[bytes, int]]:
    """Iterate over one row key for each child or bucket, with the end of the child's key in it.

    The end is 0 for a bucket.
    """
    start = len(container)
    low, high = span.bounds(container)
    seen = b""
    while True:
        for key in rows.scan_keys(low, high, reverse=span.reverse):
            end = end_of_key(key, start)
            # The priority row of a spread child comes directly before the rows below it.
            if key[:end] != seen or not end:
                yield key, end
            if end < len(key) and end:
                low, high = (low, key[:end]) if span.reverse else (_after(key, end), high)
                break
            seen = key
        else:
            return


def _after(key: bytes, end: int) -> bytes:
    """Return the least key after those below the child that `key[:end]` is of, and after `key`.

    A key that no path has may be beyond the child: such a row is damaged, and must not be found
    again and again.
    """
    return max(key[:end] + BEYOND, key + b"\0")


def _bucket_members(raw: bytes, span: Span) -> list[tuple[str, Value]]:
    found = [member for member in members(load_row(raw)) if span.holds(member[0])]
    return found[::-1] if span.reverse else found


_EmptyChunks: TypeAlias = Generator[bytes, None, None]


@attrs.define
class _Open:
    """A container whose members are being printed."""

    key: bytes
    is_array: bool
    next_index: int = 0


class Serialiser:
    """Prints one spread container, once: plain, or in export form, from the bytes of its rows.

    Rows come in key order, and key order is the order of the output. So one scan over all rows
    below a container is enough: a stack holds the containers that are open; for each row, those
    that it is not in are closed, those in between are opened, and the row becomes a member of the
    innermost. A page is printed at once, since its body is the members as they are printed; plain
    rows are copied as they are; only marked rows and buckets are parsed. Only a container whose
    first key is an index needs a lookup: whether it is an array (`find_array`). The steps of that
    are empty chunks.
    """

    def __init__(self, rows: PagedRows, export: bool = False) -> None:
        self._rows = rows
        self._export = export
        self._render = export_row if export else print_row
        self._open: list[_Open] = []
        self._parts: list[bytes] = []
        self._separator = b""

    def chunks(self, container: bytes, priority: Priority | None) -> Iterator[bytes]:
        """Print what is below an encoded path, in chunks of at most twice `CHUNK_BYTES`.

        If nothing is there, that is null. `priority` is the container's own. Reads rows as it is
        consumed.
        """
        rows = self._rows.scan_stored(*below(container))
        first = next(rows, None)
        if first is None:
            yield NULL
            return
        yield from self._begin(container, priority, first[0][len(container)])
        parts = self._parts
        size = 0
        for key, content in chain((first,), rows):
            if is_page(key):
                yield from self._add_page(key, Page(key, content))
            else:
                yield from self._add(key, content)
            size += len(key) + len(content)
            if size > CHUNK_BYTES:
                yield from cut_into_chunks(b"".join(parts))
                parts.clear()
                size = 0
        while self._open:
            self._end()
        yield from cut_into_chunks(b"".join(parts))

    def _add_page(self, key: bytes, page: Page) -> _EmptyChunks:
        start, stop = self._close(key), len(page.container)
        while start < stop:
            end = end_of_key(key, start)
            yield from self._descend(key, start, end)
            start = end
        container = self._open[-1]
        if page.is_marked or (self._export and b"[" in page.body):
            for segment, raw in zip(page.member_keys(), page.raws(), strict=True):
                self._name_child(segment)
                self._put(self._render(raw))
            yield b""  # each was parsed and printed
        elif container.is_array:
            self._add_items(container, page)
        else:
            self._put(self._separator + page.body)

    def _add_items(self, array: _Open, page: Page) -> None:
        """Print the items of a page of an array; nulls are where any are missing."""
        keys, raws = page.member_keys(), page.raws()
        first, last = int(decode_key(keys[0])), int(decode_key(keys[-1]))
        if first == array.next_index and last - first == len(keys) - 1:
            self._put(self._separator + b",".join(raws))
            array.next_index = last + 1
            return
        for key, raw in zip(keys, raws, strict=True):
            self._name_child(key)
            self._put(raw)

    def _add(self, key: bytes, raw: bytes) -> _EmptyChunks:
        start = self._close(key)
        end = end_of_key(key, start)
        while 0 < end < len(key):
            yield from self._descend(key, start, end)
            start, end = end, end_of_key(key, end)
        if not end:
            for name, child in members(load_row(raw)):
                self._name(name)
                self._put(self._render(encode_row(child)))
            return
        self._name_child(key[start:])
        if is_priority_row(raw):
            yield from self._begin(key, load_priority_row(raw))
        else:
            self._put(self._render(raw))

    def _close(self, key: bytes) -> int:
        """Close the containers that a row is not in; return the length of the innermost's key."""
        while not key.startswith(self._open[-1].key):
            self._end()
        return len(self._open[-1].key)

    def _descend(self, key: bytes, start: int, end: int) -> _EmptyChunks:
        """Open the container at `key[:end]`, a child of the open one, for a row below it."""
        self._name_child(key[start:end])
        yield from self._begin(key[:end], None, key[end])

    def _begin(
        self, key: bytes, priority: Priority | None, first_tag: int = INT_TAG
    ) -> _EmptyChunks:
        """Open a container; `first_tag` is that of its first child, if it is known."""
        array = False
        if first_tag == INT_TAG and not self._export:
            array = yield from empty_chunks(find_array(self._rows, key))
        self._open.append(_Open(key, array))
        self._parts.append(b"[" if array else b"{")
        self._separator = b""
        if self._export and priority is not None:
            self._name(PRIORITY)
            self._put(compact(priority))

    def _end(self) -> None:
        self._put(b"]" if self._open.pop().is_array else b"}")

    def _name(self, name: str) -> None:
        """Print what comes before a member: a comma and its name, or nulls for a gap."""
        container = self._open[-1]
        if container.is_array:
            index = int(name)
            self._parts.append(self._separator + b"null," * (index - container.next_index))
            container.next_index = index + 1
        else:
            self._parts.append(self._separator + compact(name) + b":")

    def _name_child(self, segment: bytes) -> None:
        """Print what comes before a member with an encoded key."""
        if self._open[-1].is_array:
            self._name(decode_key(segment))
        else:
            self._parts.append(b"%b%b:" % (self._separator, print_key(segment)))

    def _put(self, text: bytes) -> None:
        self._parts.append(text)
        self._separator = b","


SORTED_AT_ONCE: Final = 1024
"""Keys that are sorted, or compared, in one step."""
DIGESTED_AT_ONCE: Final = MIB
"""Bytes of one long string that are digested in one step."""


def canonical_chunks(nodes: Nodes, path: Path) -> Iterator[bytes]:
    """Print the JSON of a plain GET of `path` in canonical form (RFC 8785); some chunks are empty.

    A spread container is printed from its children, each from its row. Nothing takes memory for the
    whole value. The nodes must be of one moment as long as this is consumed.
    """
    chunks = nodes.chunks_unless_spread(path)
    if chunks is not None:
        yield from _row(chunks)
        return
    steps = find_array(nodes.rows, encode_path(path))
    is_array = yield from empty_chunks(steps)
    yield from _array(nodes, path) if is_array else _object(nodes, path)


def _object(nodes: Nodes, path: Path) -> Iterator[bytes]:
    separator = b"{"
    for child in _in_canonical_order(nodes, path):
        if child is None:
            yield b""
            continue
        yield b"%b%b:" % (separator, compact(child.key))
        yield from _child(nodes, path, child)
        separator = b","
    yield b"}"


def etag_in_steps(nodes: Nodes, path: Path) -> Iterator[str | None]:
    """Compute the entity tag of a node, yielding None between steps and the tag at the end."""
    digest = sha256()
    for chunk in canonical_chunks(nodes, path):
        digest.update(chunk[:DIGESTED_AT_ONCE])
        yield None
        for at in range(DIGESTED_AT_ONCE, len(chunk), DIGESTED_AT_ONCE):
            digest.update(memoryview(chunk)[at : at + DIGESTED_AT_ONCE])
            yield None
    yield f'"{digest.hexdigest()}"'


def _child(nodes: Nodes, path: Path, child: Child) -> Iterator[bytes]:
    if child.is_spread:
        return canonical_chunks(nodes, (*path, child.key))
    return _row(child.chunks())


def _row(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Print what one row holds, from how it is printed; a leaf is the same in both forms."""
    text = next(chunks)
    if text[0] in CONTAINERS:
        return iter((canonicalise(parse_stored(b"".join((text, *chunks)))),))
    return chain((text,), chunks)


def _array(nodes: Nodes, path: Path) -> Iterator[bytes]:
    separator = b"["
    at = 0
    for child in nodes.children(path):
        for _ in range(at, int(child.key)):
            yield separator + NULL
            separator = b","
        yield separator
        yield from _child(nodes, path, child)
        separator = b","
        at = int(child.key) + 1
    yield b"]"


def _in_canonical_order(nodes: Nodes, path: Path) -> Iterator[Child | None]:
    """Iterate over the children in the order of the canonical form; None between steps.

    That is the order of their keys' UTF-16 code units. The rows of most objects are in that order
    too; then they are read one after the other. Else the keys are sorted, which takes memory for
    the keys, and each child is looked up.
    """
    keys = nodes.keys(path)
    previous = b""
    while batch := list(islice(keys, SORTED_AT_ONCE)):
        ranks = [previous, *map(_rank, batch)]
        if ranks != sorted(ranks):
            break
        previous = ranks[-1]
        yield None
    else:
        yield from nodes.children(path)
        return
    yield from _sorted_children(nodes, path)


def _sorted_children(nodes: Nodes, path: Path) -> Iterator[Child | None]:
    runs: list[list[str]] = []
    try:
        for key in _merged(nodes.keys(path), runs):
            yield None if key is None else Child(nodes, path, key, None)
    finally:
        free_beside(runs)


def _merged(keys: Iterator[str], runs: list[list[str]]) -> Iterator[str | None]:
    while batch := list(islice(keys, SORTED_AT_ONCE)):
        runs.append(sorted(batch, key=_rank))
        yield None
    yield from merge(*runs, key=_rank)
    while runs:
        runs.pop()
        yield None


def _rank(key: str) -> bytes:
    return key.encode("utf-16-be")


def hash_at(nodes: Nodes, place: Place) -> str | None:
    """Return the hash (`tree.hashes`) of a place, None if that is larger than `MAX_SHOWN_BYTES`.

    It pauses between the children of a container that is spread over rows.
    """
    if place.is_priority:
        priority = nodes.priority(place.path)
        return "" if priority is None else hash_leaf(priority, None)
    if nodes.size(place.path, MAX_SHOWN_BYTES) > MAX_SHOWN_BYTES:
        return None
    return _hash(nodes, place.path)


def _hash(nodes: Nodes, path: Path) -> str:
    if not nodes.is_spread(path):
        return data_hash(nodes.get(path))
    return hash_container(partial(_children, nodes, path), nodes.priority(path))


def _children(nodes: Nodes, path: Path) -> Iterator[HashedChild]:
    for child in nodes.children(path):
        below = (*path, child.key)
        if child.is_spread:
            yield HashedChild(child.key, nodes.priority(below), _hash(nodes, below))
        else:
            value = child.value()
            yield HashedChild(child.key, priority_of(value), data_hash(value))
        pause()


_AS_ZEROS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else 0 for byte in range(256))
_ENDS_OF_TREE: Final = (b"00,", b"00]", b"00}")
"""How numbers of the tree beyond 64 bits end in a container: these are doubles, with 17 digits that
are not zeros at most."""
_DIGITS: Final = rb"(-?[0-9]{19,21})(?![^,\]}])"
_FIRST: Final = re.compile(_DIGITS)
_NUMBER: Final = re.compile(rb"[:,\[]" + _DIGITS)
"""An integer of 19 digits or more, with around it what is around values; maybe inside a string."""
_IN_NUMBERS: Final = b"0123456789-+.e"
_NUMBER_BYTES: Final = 32
"""More than any number has that is printed."""
_BEFORE_STRING: Final = b":,[{"
_AFTER_STRING: Final = b",]}:"
_MAX_QUOTES: Final = 16
"""Quotes at the end of a text that are examined one by one."""


def spell_numbers(json: bytes) -> bytes:
    """Spell the numbers of JSON, or of a part that begins and ends outside strings and numbers."""
    if not _has_long_run(json, is_of_tree=False):  # as almost always
        return json
    return _spell_text(json, was_in_string=False)


def spell_chunks(chunks: Iterable[bytes], *, is_of_tree: bool = True) -> Iterator[bytes]:
    """Yield printed JSON with its numbers beyond 64 bits spelled with an exponent.

    The chunks may end anywhere; some that are yielded are empty. What `is_of_tree` has numbers as
    the tree prints them: a double of up to 1e21 as digits alone (RFC 8785). Clients in Java read
    digits alone as a 64-bit integer, and end in an exception if they do not fit. So a number below
    -2^63, or from 2^63 on, is spelled `1e19` for them: the same number, in other characters.

    Theory of operation. Printed JSON is searched for a run of 19 digits, which is rare. Digits that
    can be such a number are one unless they are inside a string. Since chunks end anywhere, what
    may be part of a number, or of an escape, waits for the next chunk, and whether a chunk ends
    inside a string is known from its last quotes: a quote opens a string if something follows it
    that cannot follow a string, and closes one if it is after something that cannot be before a
    string.
    """
    passed = rest = b""
    is_in_string = False
    for chunk in chunks:
        for piece in (chunk,) if len(chunk) <= CHUNK_BYTES else cut_into_chunks(chunk):
            is_in_string = _ends_in_string(passed, is_in_string)
            text = rest + piece
            end = _end_of_decided(text)
            passed, rest = text[:end], text[end:]
            has_run = _has_long_run(passed, is_of_tree=is_of_tree)
            yield _spell_text(passed, is_in_string) if has_run else passed
    if rest:
        is_in_string = _ends_in_string(passed, is_in_string)
        yield _spell_text(rest, is_in_string)


def _spell_text(text: bytes, was_in_string: bool) -> bytes:
    """Return a text that may begin in a string, but neither in a number nor in an escape."""
    spelled: list[bytes] = []
    is_in_string = was_in_string
    copied = passed = 0
    found = _FIRST.match(text) or _NUMBER.search(text)
    while found is not None:
        start, end = found.span(1)
        is_in_string = _ends_in_string(text[passed:start], is_in_string)
        passed = start
        if is_in_string:
            end = find_end(text, start)
        else:
            spelled += text[copied:start], _spell(found[1])
            copied = end
        found = _NUMBER.search(text, end)
    return b"".join((*spelled, text[copied:]))


def _has_long_run(text: bytes, *, is_of_tree: bool) -> bool:
    """Return whether a text has 19 digits in a row; False if no number needs another spelling."""
    # Of such a run two are among each ninth byte, and six among each third, which no time in
    # milliseconds has. That costs 0.2 and 0.5 ns for each byte, a pattern of 19 digits 13 ns.
    if len(text) < 19 or b"00" not in text[::9].translate(_AS_ZEROS):
        return False
    if b"000000" not in text[::3].translate(_AS_ZEROS):
        return False
    if is_of_tree and not any(end in text for end in _ENDS_OF_TREE):
        return False
    return b"0" * 19 in text.translate(_AS_ZEROS)


def _ends_in_string(text: bytes, was_in_string: bool) -> bool:
    """Return whether the end of a text is inside a string; `was_in_string` if its beginning is."""
    if not text:
        return was_in_string
    is_odd, at = False, len(text)  # how many quotes come after `at`
    for _ in range(_MAX_QUOTES):
        at = text.rfind(b'"', 0, at)
        if at < 0:
            return was_in_string ^ is_odd
        is_inside = _is_inside_after(text, at)
        if is_inside is not None:
            return is_inside ^ is_odd
        is_odd = not is_odd
    return was_in_string ^ is_odd ^ (_count_quotes(text[:at]) % 2 == 1)


def _is_inside_after(text: bytes, at: int) -> bool | None:
    """Return whether a string goes on after the quote at a place, None if that cannot be seen."""
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    if before == b"\\" and (at - len(text[:at].rstrip(b"\\"))) % 2:
        return True
    if after and after not in _AFTER_STRING:
        return True
    return False if before and before not in _BEFORE_STRING else None


def _end_of_decided(text: bytes) -> int:
    """Return where the end of a text begins that may be part of a number or an escape."""
    end = len(text.rstrip(_IN_NUMBERS))
    if len(text) - end > _NUMBER_BYTES:
        return len(text)
    if text[end - 1 : end] != b"\\":
        return end
    return end - (end - len(text[:end].rstrip(b"\\"))) % 2


def _count_quotes(text: bytes) -> int:
    """Return how many quotes begin or end a string, in a text that does not begin in an escape."""
    if b"\\" not in text:
        return text.count(b'"')
    text = text.replace(rb"\\", b"")
    return text.count(b'"') - text.count(rb"\"")


def _spell(digits: bytes) -> bytes:
    """Return an integer as it is if it has 64 bits, else with an exponent."""
    if INT64_LOW <= int(digits) <= INT64_HIGH:
        return digits
    sign, digits = (b"-", digits[1:]) if digits.startswith(b"-") else (b"", digits)
    first, others = digits[:1], digits[1:].rstrip(b"0")
    return b"%b%b%b%be%d" % (sign, first, b"." if others else b"", others, len(digits) - 1)
