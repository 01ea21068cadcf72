"""How rows are put together to pages (`paged_rows`). Nothing here reads or writes the engine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from struct import pack as pack_numbers
from typing import Final

import attrs

from treedbd.loop import paused
from treedbd.store.engine import Row
from treedbd.store.rows import (
    ENTRY,
    HEAD,
    MARK,
    PAGE_END,
    Member,
    Page,
    end_of_key,
    is_page,
    is_priority_row,
    print_key,
)

_MARK: Final = MARK[0]
_MAYBE_MARKED: Final = b'":' + MARK
PAGE_BYTES: Final = 4040
"""Bytes of the key and the content of a page. With its check sum it is stored in one page of
SQLite, without overflow: https://www.sqlite.org/fileformat.html#b_tree_pages"""
MEMBER_SHARE: Final = 4
"""A member takes at most this part of a page."""
_MEMBER_BYTES: Final = ENTRY.size + len(",")


def size_of(member: Member) -> int:
    """Return the bytes that a member adds to a page."""
    return len(member[0]) + len(member[1]) + _MEMBER_BYTES


def raw_of(member: Member) -> bytes:
    """Return the row of a member."""
    return member[1][-member[2] :]


def container_of_row(key: bytes) -> bytes | None:
    """Return the encoded path of the container of a row's node; None for the root or a bucket."""
    start, end, length = 0, 0, len(key)
    while end < length:
        start, end = end, end_of_key(key, end)
        if not end:
            return None
    return key[:start] if length else None


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
        # A page's key has its first member's key once more.
        if at > start and (size + added + len(members[start][0]) > room or size >= share):
            pages.append(members[start:at])
            start, size = at, 0
        size += added
    pages.append(members[start:])
    return pages


def pack(rows: Iterable[Row], page_bytes: int) -> Iterator[Row]:
    """Convert rows in their order to rows and full pages; at most one page is kept in memory."""
    container = b""
    run: list[Member] = []
    size = 0
    for key, raw in rows:
        own = container if run and is_child(container, key) else container_of_row(key)
        member = None if own is None else as_member(key, len(own), raw, page_bytes)
        joins = run and member is not None and own == container
        if joins and member is not None and member[0][0] == run[0][0][0]:
            longer = size + size_of(member)
            if longer + len(run[0][0]) <= room_for(container, page_bytes):
                run.append(member)
                size = longer
                continue
        if run:
            yield encode_page(container, run)
            run = []
        if member is None or own is None:
            yield key, raw
        else:
            container, run, size = own, [member], size_of(member)
    if run:
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


@attrs.define
class Run:
    """Members that follow each other, and what they are stored in, which `flush` replaces.

    `bound` is the key of what is stored next after them, None until it is needed.
    """

    container: bytes
    keys: list[bytes] = attrs.field(factory=list)
    members: dict[bytes, Member] = attrs.field(factory=dict)
    stored: dict[bytes, bytes] = attrs.field(factory=dict)
    size: int = 0
    is_appended: bool = False
    bound: bytes | None = None

    def load(self, key: bytes, content: bytes, members: list[Member], size: int) -> None:
        """Take in the members that are stored at `key`, before or after those that it has.

        `size` are the bytes of all of them.
        """
        self.stored[key] = content
        keys = [member[0] for member in members]
        at = bisect_left(self.keys, keys[0])
        self.keys[at:at] = keys
        self.members.update(zip(keys, members, strict=True))
        self.size += size

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
    """Return the members that are stored at a key as a run; of a row that is none, an empty one."""
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
