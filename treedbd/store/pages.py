"""Rows put together to pages, and changed in them; `rows` has the format of a page.

Theory of operation
-------------------
Which rows share a page is decided by `Member`s, rows as they are in a body: `encode_page` makes a
page of them, `split_members` and `pack` divide many among several. `set_member` and `remove_member`
change one member in the bytes of a page without reading the others; what comes out is what
`encode_page` makes of the changed members.

`PageWriter` applies changes of single rows. The first change of a page is made in its bytes, if it
neither becomes too long nor too short by it: most writes change one row. Any other change of a row
that is, or becomes, a member of a page is made in a `Run`: the members of that page in memory. The
run stays open for the changes that follow, and is stored by `flush`, or as soon as something else
is read or changed. So many changes of siblings write each page once or twice.

A new member joins the page or the short row before it, else the one after it. A run that has become
too long is divided: into full pages if it grew at its end, as children with ascending keys make it,
else into two of the same length. A run that has become shorter than half a page takes in its
neighbours if they fit. Only the pages that have changed are written.

No row may be between two members of a page. So a page is divided where another row is to be stored
among its members: one that is too long, or those below a child that is spread.

Only `PageWriter` reads and writes the engine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from operator import sub
from struct import pack as pack_numbers
from typing import Final, TypeAlias

import attrs

from treedbd.loop import pause, paused
from treedbd.store.engine import Row, Transaction
from treedbd.store.rows import (
    END,
    ENTRY,
    FIRST,
    HEAD,
    MARK,
    PAGE_END,
    Member,
    Page,
    PagedRows,
    end_of_key,
    is_page,
    is_priority_row,
    print_key,
    seal,
    seal_row,
    unseal,
    unseal_near,
)
from treedbd.tree.path import BEYOND, INT_TAG, TEXT_END, TEXT_TAG

_MARK: Final = MARK[0]
_AFTER: Final = b"\0"
_TEXT: Final = bytes((TEXT_TAG,))
_MAYBE_MARKED: Final = b'":' + MARK
PAGE_BYTES: Final = 4040
"""Bytes of the key and the content of a page. With its check sum it is stored in one page of
SQLite, without overflow: https://www.sqlite.org/fileformat.html#b_tree_pages"""
MEMBER_SHARE: Final = 4
"""A member takes at most this part of a page."""
_MEMBER_BYTES: Final = ENTRY.size + len(",")


_MOST_ENTRIES: Final = 8192
"""More bytes than the entries of any page have."""
_ONES: Final = int.from_bytes(b"\0\1" * (_MOST_ENTRIES // 2), "big")
PlacedRow: TypeAlias = tuple[bytes | None, bytes, bytes]
"""A row with the encoded path of its node's container, and what of its key follows that; None and
the key for a row that cannot be a member of a page. Rows that are new are made so."""
_RUN_PAGES: Final = 8
"""A run is stored when it is as long as that many pages."""
LONG_ROW_BYTES: Final = 8 * PAGE_BYTES
"""A longer row is read, parsed and stored in steps of its own; so many of short ones in one."""


def size_of(member: Member) -> int:
    """Return the bytes that a member adds to a page."""
    return len(member[0]) + len(member[1]) + _MEMBER_BYTES


def raw_of(member: Member) -> bytes:
    """Return the row of a member."""
    return member[1][-member[2] :]


def container_of_row(key: bytes) -> bytes | None:
    """Return the encoded path of the container of a row's node; None for the root or a bucket."""
    if INT_TAG not in key:  # no text has a tag or an end in it
        return key[: key.rfind(_TEXT)] if key.endswith(TEXT_END) else None
    start, end, length = 0, 0, len(key)
    while end < length:
        start, end = end, end_of_key(key, end)
        if not end:
            return None
    return key[:start]


def as_member(key: bytes, start: int, raw: bytes, page_bytes: int) -> Member | None:
    """Return a row as a member of a page; None if it cannot be one.

    `start` is the length of its container's encoded path.
    """
    if len(raw) * MEMBER_SHARE > page_bytes or is_priority_row(raw):
        return None
    segment = key[start:]
    member = segment, print_key(segment) + b":" + raw, len(raw)
    is_short = size_of(member) * MEMBER_SHARE <= page_bytes
    return member if is_short and 2 * (HEAD.size + len(key)) <= page_bytes else None


def room_for(container: bytes, page_bytes: int) -> int:
    """Return how many bytes a page has for its members and for the first one's key."""
    return page_bytes - HEAD.size - len(container) - len(PAGE_END)


def encode_page(container: bytes, members: Sequence[Member]) -> Row:
    """Return the row that stores members: a page, or for a single one its own row."""
    first = container + members[0][0]
    if len(members) == 1:
        return first, raw_of(members[0])
    parts, texts, lengths = zip(*members, strict=True)
    ends = list(accumulate([len(text) + 1 for text in texts], initial=-1))[1:]
    entries = [0] * (2 * len(members))
    entries[::2] = map(sub, ends, lengths)
    entries[1::2] = ends
    keys, body = b"".join(parts), b",".join(texts)
    # The first condition is cheap, and hardly ever true of members without priorities.
    is_marked = _MAYBE_MARKED in body and any(
        text[-length] == _MARK for text, length in zip(texts, lengths, strict=True)
    )
    head = HEAD.pack(is_marked, len(container), len(members), len(keys))
    return first + PAGE_END, b"".join(
        [head, keys, pack_numbers(f">{len(entries)}H", *entries), body]
    )


def split_members(
    members: Sequence[Member], total: int, room: int, *, is_appended: bool
) -> list[Sequence[Member]]:
    """Divide members among pages: evenly, or if they grew at their end, into full ones.

    `total` are the bytes of the members, `room` those that a page has for members (`room_for`).
    """
    if total + len(members[0][0]) <= room:
        return [members]
    share = room if is_appended or total <= room else total // (-(-total // room))
    pages, start, size = [], 0, 0
    for at, member in enumerate(members):
        added = size_of(member)
        # A page's key repeats the key of its first member.
        if at > start and (size + added + len(members[start][0]) > room or size >= share):
            pages.append(members[start:at])
            start, size = at, 0
        size += added
    pages.append(members[start:])
    return pages


def place_rows(rows: Iterable[Row]) -> Iterator[PlacedRow]:
    """Yield rows with the containers of their nodes."""
    for key, raw in rows:
        container = container_of_row(key)
        yield container, key[len(container or b"") :], raw


def pack(rows: Iterable[PlacedRow], page_bytes: int) -> Iterator[Row]:
    """Convert rows in their order to rows and full pages; at most one page is kept in memory."""
    container: bytes | None = None
    run: list[Member] = []
    left = tag = 0  # the bytes that the page of the run has left; how its keys begin
    for own, segment, raw in rows:
        member = None
        if own is not None:
            member = as_member(own + segment, len(own), raw, page_bytes)
        if member is not None:
            left -= len(segment) + len(member[1]) + _MEMBER_BYTES
            if left >= 0 and own == container and segment[0] == tag:
                run.append(member)
                continue
        if run and container is not None:
            yield encode_page(container, run)
            run = []
        if member is None or own is None:
            container = None
            yield (own or b"") + segment, raw
        else:
            container, run, tag = own, [member], segment[0]
            left = room_for(own, page_bytes) - size_of(member) - len(segment)
    if run and container is not None:
        yield encode_page(container, run)


def batches(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Yield some rows at a time, about `most` bytes of them, and a longer one alone."""
    batch: list[Row] = []
    size = 0
    for row in paused(rows, 1):
        if batch and size + len(row[1]) > most:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row[1])
    if batch:
        yield batch


def is_child(container: bytes, key: bytes) -> bool:
    """Return whether `key` is the encoded path of a child of a container."""
    start = len(container)
    return key.startswith(container) and len(key) > start and end_of_key(key, start) == len(key)


def set_member(page: Page, member: Member) -> bytes:
    """Return the content of a page with one more member, or with another row for one it has.

    Neither the page nor the member may have a priority, and the member does not become the first.
    """
    segment, text, length = member
    number = page.number_of(segment)
    if number >= 0:
        start, end = page.entry(number)
        row = text[-length:]
        new_entry = ENTRY.pack(start, start + length)
        shift = length - (end - start)
        return _join(page, page.keys, number, new_entry, number + 1, shift, (start, row, end))
    keys = page.keys
    number, before = page.find_gap(segment)
    keys = keys[:before] + segment + keys[before:]
    at = page.entry(number - 1)[1]  # before the comma, if one follows
    end = at + 1 + len(text)
    new_entry = ENTRY.pack(end - length, end)
    return _join(page, keys, number, new_entry, number, end - at, (at, b"," + text, at))


def remove_member(page: Page, number: int) -> bytes:
    """Return the content of a page without a member, which is not the first."""
    keys = page.member_keys()
    del keys[number]
    before, end = page.entry(number - 1)[1], page.entry(number)[1]
    return _join(page, b"".join(keys), number, b"", number + 1, before - end, (before, b"", end))


def _join(
    page: Page,
    keys: bytes,
    number: int,
    entry: bytes,
    later: int,
    shift: int,
    change: tuple[int, bytes, int],
) -> bytes:
    """Return a page with new keys, an entry instead of those from `number` to `later`, and a body.

    The entries after these are shifted. `change` is where the old part of the body begins, the new
    part, and where the old one ends.
    """
    content = page.content
    start, new, end = change
    count = page.count - (later - number) + bool(entry)
    first, last = page.entries_at, page.body_at
    return b"".join(
        (
            HEAD.pack(0, len(page.container), count, len(keys)),
            keys,
            content[first : first + ENTRY.size * number],
            entry,
            _shifted(content[first + ENTRY.size * later : last], shift),
            content[last : last + start],
            new,
            content[last + end :],
        )
    )


def _shifted(entries: bytes, shift: int) -> bytes:
    """Return entries with a number added to all that is in them."""
    if not shift or not entries:
        return entries
    # All of them are one long number, of digits that neither overflow nor borrow.
    length = len(entries)
    ones = _ONES >> 8 * (_MOST_ENTRIES - length)
    return (int.from_bytes(entries, "big") + shift * ones).to_bytes(length, "big")


@attrs.define
class Run:
    """Members that follow each other, and what they are stored in, which `flush` replaces.

    `bound` is the key of what is stored next after them, None until it is needed. `size` are the
    bytes of the members, `loaded` of those that were stored.
    """

    container: bytes
    keys: list[bytes] = attrs.field(factory=list)
    members: dict[bytes, Member] = attrs.field(factory=dict)
    stored: dict[bytes, bytes] = attrs.field(factory=dict)
    size: int = 0
    loaded: int = 0
    is_appended: bool = False
    bound: bytes | None = None

    def load(self, key: bytes, content: bytes, members: list[Member], size: int) -> None:
        """Add the members that are stored at `key`, before or after those that it has.

        `size` are the bytes of all of them.
        """
        self.stored[key] = content
        keys = [member[0] for member in members]
        at = bisect_left(self.keys, keys[0])
        self.keys[at:at] = keys
        self.members.update(zip(keys, members, strict=True))
        self.size += size
        self.loaded += size

    def set(self, member: Member) -> None:
        """Add or replace a member."""
        key = member[0]
        before = self.members.get(key)
        if before is None:
            self.is_appended = not self.keys or key > self.keys[-1]
            insort(self.keys, key)
        else:
            self.size -= size_of(before)
        self.members[key] = member
        self.size += size_of(member)

    def remove(self, key: bytes) -> None:
        """Remove a member if it is there."""
        member = self.members.pop(key, None)
        if member is not None:
            self.size -= size_of(member)
            del self.keys[bisect_left(self.keys, key)]

    def in_order(self) -> list[Member]:
        """Return the members in key order."""
        return [self.members[key] for key in self.keys]


def encode_run(run: Run, page_bytes: int) -> dict[bytes, bytes]:
    """Return what stores the members of a run, in pages of at most `page_bytes`."""
    if not run.keys:
        return {}
    room = room_for(run.container, page_bytes)
    parts = split_members(run.in_order(), run.size, room, is_appended=run.is_appended)
    return dict([encode_page(run.container, part) for part in parts])


def divide(run: Run, key: bytes) -> dict[bytes, bytes]:
    """Return what stores the members of a run before a key, and those after it."""
    start = len(run.container)
    parts = (
        [run.members[each] for each in run.keys if run.container + each < key],
        [run.members[each] for each in run.keys if run.container + each > key],
    )
    return dict(encode_page(key[:start], part) for part in parts if part)


def load_run(key: bytes, content: bytes, page_bytes: int) -> Run:
    """Return the members at a key as a run, which is empty for a row that is not a member."""
    if is_page(key):
        page = Page(key, content)
        run = Run(page.container)
        run.load(key, content, page.members(), page.size)
        return run
    container = container_of_row(key) or b""
    member = as_member(key, len(container), content, page_bytes)
    run = Run(container)
    if member is None:
        run.stored[key] = content
    else:
        run.load(key, content, [member], size_of(member))
    return run


class PageWriter(PagedRows):
    """A `Transaction`'s rows, in pages of at most `page_bytes`; `flush` must be the last call."""

    __slots__ = ("_found", "_page", "_page_bytes", "_run", "_spliced", "_transaction")

    def __init__(self, transaction: Transaction, page_bytes: int = PAGE_BYTES) -> None:
        super().__init__(transaction)
        self._transaction = transaction
        self._page_bytes = page_bytes
        self._run: Run | None = None
        self._found: tuple[bytes, Row | None] | None = None
        self._page: Page | None = None  # that was read last
        self._spliced = b""  # the page that was changed in its bytes last

    def find(self, key: bytes) -> Row | None:
        """Return the row whose key is `key` or begins it; None if there is none."""
        run = self._run and self._run_for_read(key)
        if run is None:
            return super().find(key)
        end = end_of_key(key, len(run.container))
        member = run.members.get(key[len(run.container) : end])
        return None if member is None else (key[:end], raw_of(member))

    def find_children(self, container: bytes, segments: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the rows of children of a spread container, by their encoded keys."""
        self.flush()
        return super().find_children(container, segments)

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        run = self._run and self._run_for_read(key)
        if run is None:
            return super().floor(key)
        found = run.keys[bisect_right(run.keys, key[len(run.container) :]) - 1]
        return run.container + found, raw_of(run.members[found])

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with `low <= key < high` in key order, or backwards."""
        self.flush()
        yield from super().scan(low, high, reverse=reverse)

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over the keys alone, as `scan` does."""
        if self._run is not None and self._is_before(self._run, high):
            yield from super().scan_keys(low, high, reverse=reverse)
            return
        run = None if reverse or self._run is None else self._run_around(low)
        if run is not None:
            for key in run.keys[bisect_left(run.keys, low[len(run.container) :]) :]:
                if run.container + key >= high:
                    return
                yield run.container + key
            low = self._bound(run).removesuffix(PAGE_END)
            if low >= high:
                return
            yield low  # if only this one is needed, the run stays open
            low += _AFTER
        self.flush()
        yield from super().scan_keys(low, high, reverse=reverse)

    def scan_stored(self, low: bytes, high: bytes) -> Iterator[Row]:
        """Iterate over the stored rows and pages of a range, without their check sums."""
        self.flush()
        yield from super().scan_stored(low, high)

    def has_open_run(self, container: bytes) -> bool:
        """Return whether members of a container are in the open run."""
        return self._run is not None and self._run.container == container

    def container_around(self, key: bytes) -> bytes | None:
        """Return the encoded path of the deepest spread container above `key`, if little shows it.

        That is so between two members of a page, since nothing else is between them, and after
        those of the open run. No member may be at `key` or above it. Then nothing is there, or
        below it; else None is returned.
        """
        run = self._run and self._run_around(key)
        if run is not None:
            container, start = run.container, len(run.container)
            is_last = key[start:] > run.keys[-1]
            is_free = not (is_last and self._bound(run).startswith(key[: end_of_key(key, start)]))
            return container if is_free else None
        found = self._look_up(key)
        if found is None or not is_page(found[0]):
            return None
        page = self._read_page(found)
        is_around = key.startswith(page.container) and key < page.container + page.last_key
        return page.container if is_around else None

    def key_before(self, key: bytes) -> bytes | None:
        """Return the key of the row before `key`, or of a member of the same page, None without."""
        run = self._run and self._run_around(key)
        if run is not None:
            return run.container + run.keys[0]
        found = self._look_up(key)
        return None if found is None else found[0]

    def put(self, key: bytes, raw: bytes) -> None:
        """Set the row at `key`."""
        run = None if self._run is None else self._run_around(key)
        container = container_of_row(key)
        member = None
        if container is not None:
            member = as_member(key, len(container), raw, self._page_bytes)
        if member is None or container is None:
            self._divide_at(key)
            self._put(key, raw)
            return
        if run is None or run.container != container or run.keys[0][0] != member[0][0]:
            self.flush()
            if self._splice(key, member):
                return
            run = self._run = self._open(container, member[0])
        run.set(member)
        if run.size > _RUN_PAGES * self._page_bytes:
            self.flush()

    def put_all(self, rows: Iterable[PlacedRow]) -> None:
        """Set many rows, in key order, where none are.

        There must be no row between the first and the last of them either.
        """
        rows = iter(rows)
        first = list(islice(rows, 2))
        if not first:
            return
        container, segment, raw = first[0]
        key = (container or b"") + segment
        if len(first) > 1:
            self._divide_at(key)
            self._found = None
            self._put_packed(pack(chain(first, rows), self._page_bytes))
        else:
            self.put(key, raw)

    def _put_packed(self, packed: Iterable[Row]) -> None:
        """Store rows and pages, with a pause after some of them."""
        for some in batches(packed, LONG_ROW_BYTES):
            put_all = self._transaction.put_all
            self._put(*some[0]) if len(some) == 1 else put_all(map(seal_row, some))
            pause()

    def delete(self, key: bytes) -> None:
        """Remove the row at `key` if it exists."""
        run = self._run and self._run_around(key)
        if run is None:
            found = self._look_up(key)
            if found is None:
                return
            if found[0] == key:
                self._found = None
                self._transaction.delete(key)
            if not is_page(found[0]):
                return
            page = self._read_page(found)
            is_sibling = is_child(page.container, key)
            number = page.number_of(key[len(page.container) :]) if is_sibling else -1
            if number < 0 or self._splice_out(found[0], page, number):
                return
            run = self._run = load_run(*found, self._page_bytes)
        if is_child(run.container, key):
            run.remove(key[len(run.container) :])
        if not run.keys:
            self.flush()

    def discard(self, key: bytes) -> bool:
        """Remove the row at `key` without reading it; return False if it has no row of its own."""
        self.flush()
        self._found = None
        is_there = self._transaction.get(key) is not None
        if is_there:
            self._transaction.delete(key)
        return is_there

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove all rows below a path; `low` and `high` are those of `rows.below`."""
        # The members of a page are all below the path, or none is.
        self.flush()
        self._found = None
        self._transaction.delete_range(low, high)

    def flush(self) -> None:
        """Store the run that is open."""
        run, self._run = self._run, None
        if run is None:
            return
        if self._may_join(run):
            self._join_neighbours(run)
        self._store(run.stored, encode_run(run, self._page_bytes))

    def flush_if_short(self) -> None:
        """Store the open run if that reads its neighbours, and forget a long row that was read."""
        if self._run is not None and (not self._run.keys or self._may_join(self._run)):
            self.flush()
        found = self._found and self._found[1]
        if found is not None and len(found[1]) > LONG_ROW_BYTES:
            self._found = None

    def _may_join(self, run: Run) -> bool:
        return bool(run.keys) and run.size < run.loaded and 2 * run.size < self._page_bytes

    def _look_up(self, key: bytes) -> Row | None:
        """Return what holds the row `key` or the last one before it, without its check sum.

        It is kept until something is changed: a change is preceded by several lookups of its key,
        and of the key of the row that covers it.
        """
        if self._found is not None:
            looked_up, found = self._found
            covers = found is not None and found[0] == key and looked_up.startswith(key)
            if looked_up == key or covers:
                return found
        found = self.stored.floor(key + PAGE_END)
        if found is not None:
            is_long = len(found[1]) > LONG_ROW_BYTES
            if is_long:
                pause()
            found = unseal_near(key, found)
            if is_long:
                pause()
        self._found = key, found
        return found

    def _read_page(self, found: Row) -> Page:
        """Return the page that `_look_up` has found, which is read once for one change."""
        page = self._page
        if page is None or page.content is not found[1]:
            page = self._page = Page(*found)
        return page

    def _run_around(self, key: bytes) -> Run | None:
        """Return the open run if no row that is not a member can be at `key` or above it.

        Else the run is stored.
        """
        run = self._run
        if run is not None and self._surrounds(run, key):
            return run
        self.flush()
        return None

    def _run_for_read(self, key: bytes) -> Run | None:
        """Do as `_run_around`, but leave the run open if what is read is before all of it."""
        if self._run is not None and self._is_before(self._run, key + PAGE_END + _AFTER):
            return None
        return self._run_around(key)

    def _is_before(self, run: Run, high: bytes) -> bool:
        """Return whether all below `high` is before the open run, so that it is as it is stored."""
        if not run.keys or high > run.container + run.keys[0]:
            return False
        return not run.stored or high <= min(run.stored)

    def _surrounds(self, run: Run, key: bytes) -> bool:
        segment = key[len(run.container) :]
        if not key.startswith(run.container) or segment < run.keys[0]:
            return False
        if segment > run.keys[-1] and not segment.startswith(run.keys[-1]):
            return key < self._bound(run).removesuffix(PAGE_END)
        return True

    def _bound(self, run: Run) -> bytes:
        """Return the key of what is stored next after a run."""
        if run.bound is None:
            last = max([run.container + run.keys[-1], *run.stored])
            low = last.removesuffix(PAGE_END) + BEYOND
            run.bound = next(self.stored.scan_keys(low, END), END)
        return run.bound

    def _open(self, container: bytes, segment: bytes) -> Run:
        """Return the run that a new or changed member belongs to."""
        key = container + segment
        found = self._look_up(key)
        if found is not None:
            run = self._load_sibling(found, container, segment)
            if run is not None:
                return run
            if is_page(found[0]):
                self._divide(found, key)
        run = Run(container)
        if found is not None and found[0] == key:
            run.stored[key] = found[1]
            return run
        after = next(self.stored.scan_keys(key, END), None)
        if after is not None and is_child(container, after.removesuffix(PAGE_END)):
            return self._load_sibling(self._read(after), container, segment) or run
        return run

    def _load_sibling(self, found: Row, container: bytes, segment: bytes) -> Run | None:
        """Return the run of what is stored at a key if a child of `container` can join it."""
        if not found[1]:
            return None  # it was left out (`ReadView.floor`), so it is too long to be a member
        key = found[0].removesuffix(PAGE_END)
        if not is_child(container, key) or key[len(container)] != segment[0]:
            return None
        run = load_run(*found, self._page_bytes)
        return run if run.keys else None

    def _read(self, key: bytes) -> Row:
        return key, unseal(key, self.stored.get(key) or b"")

    def _splice(self, key: bytes, member: Member) -> bool:
        """Set a member in the bytes of its page if that is possible; return whether it was."""
        found = self._look_up(key)
        if found is None or not is_page(found[0]) or found[0] == self._spliced:
            return False
        page = self._read_page(found)
        segment, text, length = member
        is_sibling = key == page.container + segment and segment[0] == page.keys[0]
        if not is_sibling or page.is_marked or text[-length] == _MARK:
            return False
        return self._store_spliced(found[0], page, set_member(page, member))

    def _splice_out(self, at: bytes, page: Page, number: int) -> bool:
        """Remove a member in the bytes of its page if that is possible; return whether it was."""
        if not number or page.is_marked or page.count == 2 or at == self._spliced:
            return False
        return self._store_spliced(at, page, remove_member(page, number))

    def _store_spliced(self, at: bytes, page: Page, content: bytes) -> bool:
        """Store changed bytes of a page, unless its members have to be divided or joined by now."""
        size = len(at) + len(content)
        has_shrunk = len(content) < len(page.content)
        if size > self._page_bytes or (has_shrunk and 2 * size < self._page_bytes):
            return False
        self._spliced = at
        self._put(at, content)
        return True

    def _divide_at(self, key: bytes) -> None:
        """Divide the page that has members on both sides of a row; remove the row from it."""
        if self._run is not None:
            self.flush()
        found = self._look_up(key)
        if found is not None and is_page(found[0]):
            self._divide(found, key)

    def _divide(self, found: Row, key: bytes) -> None:
        run = load_run(*found, self._page_bytes)
        if run.container + run.keys[-1] < key:
            return
        self._store(run.stored, divide(run, key))

    def _join_neighbours(self, run: Run) -> None:
        """Add what is stored next to a run that has become short, if it fits."""
        first = min([run.container + run.keys[0], *run.stored])
        after = self._bound(run)
        neighbours: list[Row] = []
        if after != END and is_child(run.container, after.removesuffix(PAGE_END)):
            neighbours.append(self._read(after))
        before = next(self.stored.scan_keys(FIRST, first, reverse=True), None)
        if before is not None and is_child(run.container, before.removesuffix(PAGE_END)):
            neighbours.append(self._read(before))
        for found in neighbours:
            other = self._load_sibling(found, run.container, run.keys[0])
            if other is not None and 4 * (run.size + other.size) <= 3 * self._page_bytes:
                ((key, content),) = other.stored.items()
                run.load(key, content, other.in_order(), other.size)

    def _store(self, before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
        """Replace what is stored, changing only what is different."""
        self._found = None
        for key in before:
            if key not in after:
                self._transaction.delete(key)
        for key, content in after.items():
            if before.get(key) != content:
                self._put(key, content)

    def _put(self, key: bytes, content: bytes) -> None:
        self._found = None
        sealed = seal(key, content)
        if len(content) > LONG_ROW_BYTES:
            pause()
        self._transaction.put(key, sealed)
