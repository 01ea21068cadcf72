"""The rows of the tree as they are stored: with a check sum, single or several in a page.

Theory of operation
-------------------
The rows that `nodes` describes are stored as they are, or several of them in one *page*: rows that
follow each other, with no other row between them, whose nodes are children of the same container.
A row can be a member of a page if it is short and is neither a bucket nor a priority row. The keys
of a page's members are either all integers or all text.

A page is stored at the key of its first member with `PAGE_END` appended. No other row's key ends
so, and none sorts between the two, so a scan of keys alone tells pages from rows, and the stored
row with the greatest key up to `key + PAGE_END` is the row `key` or the only page that may hold it.

The content of a page, numbers with the most significant byte first:

    1 byte    1 if a member has a priority somewhere, else 0
    2 bytes   length of the container's encoded path, with which the page's key begins
    2 bytes   number of members
    2 bytes   length of the next part
    …         the encoded keys of the members within the container, joined
    4 bytes   for each member: where its row begins and ends in the last part
    …         the body: the members as in a JSON object, `"a":1,"b":[2,3]`

So a row is found with one search in the encoded keys, and is a slice of the body; and the body is
what a GET of the container prints, unparsed.

Every stored row and page begins with a check sum: the CRC-32 of its key and its content, four
bytes, the most significant first. So one that was stored under another key is found, too.
`PagedRows` verifies it whenever anything is read, and shows the rows of an engine's view one by
one, as `nodes` describes them. `pages` makes pages, `page_writer` changes them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import sub
from struct import Struct, unpack_from
from typing import Final, TypeAlias
from zlib import crc32

from treedbd.store.engine import LONG_BYTES, DamagedRow, LogEntry, ReadView, Row
from treedbd.store.row_keys import FIRST, LOWEST_TAG, ROW_KEY_BYTES, end_of_key
from treedbd.tree.path import INT_BYTES, INT_TAG, TEXT_END

PAGE_END: Final = b"\x01"
"""Appended to the key of a page's first member, it makes the key of the page."""
_END: Final = PAGE_END[0]
HEAD: Final = Struct(">BHHH")
"""The numbers that a page begins with."""
ENTRY: Final = Struct(">HH")
"""Where the row of one member begins and ends in the body."""
SUM_BYTES: Final = 4
_from_bytes: Final = int.from_bytes


Member: TypeAlias = tuple[bytes, bytes, int]
"""A row that is a member of a page, or may become one: its encoded key within the container, what
the body has of it, and how many bytes of that are the row, at the end. Not a class, since changing
a page means making one for each of its members."""


def seal(key: bytes, content: bytes) -> bytes:
    """Return what is stored under `key`: the check sum, then the content."""
    return crc32(content, crc32(key)).to_bytes(SUM_BYTES, "big") + content


def seal_row(row: Row) -> Row:
    """Return a row with its check sum."""
    return row[0], seal(*row)


def unseal(key: bytes, stored: bytes) -> bytes:
    """Return the content of what is stored under `key`; raise `DamagedRow`."""
    content = stored[SUM_BYTES:]
    if crc32(content, crc32(key)) != _from_bytes(stored[:SUM_BYTES], "big"):
        raise DamagedRow("A row does not match its check sum.")
    return content


def unseal_near(key: bytes, stored: Row) -> Row:
    """Return a row that was found by `floor` without its check sum; raise `DamagedRow`.

    A long one that does not hold what is at `key` is not looked at, and comes empty. No page is
    long: one that is empty is damaged.
    """
    at, value = stored
    if 0 < len(value) <= LONG_BYTES or is_page(at) or key.startswith(at):
        return at, unseal(at, value)
    return at, b""


def is_page(key: bytes) -> bool:
    """Return whether a page is stored at `key`, not a row."""
    return key[-1:] == PAGE_END


class Page:
    """The content of one page, which is read from it when it is needed.

    Attributes:
        content: all of it.
        is_marked: whether a member has a priority somewhere.
        container: the encoded path of the container.
        count: how many members it has.
        entries_at, body_at: where these parts of the content begin.

    """

    __slots__ = ("_keys", "body_at", "container", "content", "count", "entries_at", "is_marked")

    def __init__(self, key: bytes, content: bytes) -> None:
        """Read the head of the page at `key`."""
        is_marked, start, self.count, keys = HEAD.unpack_from(content)
        self.is_marked = bool(is_marked)
        self.container = key[:start]
        self._keys = HEAD.size
        self.entries_at = HEAD.size + keys
        self.body_at = self.entries_at + ENTRY.size * self.count
        self.content = content

    @property
    def body(self) -> bytes:
        """The members as in a JSON object."""
        return self.content[self.body_at :]

    @property
    def keys(self) -> bytes:
        """The encoded keys of the members within the container, joined."""
        return self.content[self._keys : self.entries_at]

    def find(self, segment: bytes) -> bytes | None:
        """Return the row of the member with an encoded key; None if there is none."""
        number = self.number_of(segment)
        return self.raw(number) if number >= 0 else None

    def number_of(self, segment: bytes) -> int:
        """Return the place of the member with an encoded key, from 0 on; -1 if there is none."""
        content, start, end = self.content, self._keys, self.entries_at
        at = content.find(segment, start, end)
        if content[start] == INT_TAG:
            while at >= 0 and (at - start) % INT_BYTES:
                at = content.find(segment, at + 1, end)
            return (at - start) // INT_BYTES if at >= 0 else -1
        # No text has a tag or an end in it, so this is a whole key.
        return content.count(TEXT_END, start, at) if at >= 0 else -1

    def entry(self, number: int) -> tuple[int, int]:
        """Return where the row of a member begins and ends in the body."""
        start, end = ENTRY.unpack_from(self.content, self.entries_at + ENTRY.size * number)
        return start, end

    def raw(self, number: int) -> bytes:
        """Return the row of a member."""
        start, end = ENTRY.unpack_from(self.content, self.entries_at + ENTRY.size * number)
        return self.content[self.body_at + start : self.body_at + end]

    def raws(self) -> list[bytes]:
        """Return the rows of all members."""
        content, body = self.content, self.body_at
        at = unpack_from(f">{2 * self.count}H", content, self.entries_at)
        return [
            content[body + start : body + end] for start, end in zip(at[::2], at[1::2], strict=True)
        ]

    def member_keys(self) -> list[bytes]:
        """Return the encoded keys of all members within the container."""
        keys = self.keys
        if keys[0] == INT_TAG:
            return [keys[at : at + INT_BYTES] for at in range(0, len(keys), INT_BYTES)]
        return [text + TEXT_END for text in keys[:-1].split(TEXT_END)]

    def rows(self) -> list[Row]:
        """Return the members as rows of their own."""
        container = self.container
        return [
            (container + key, raw) for key, raw in zip(self.member_keys(), self.raws(), strict=True)
        ]

    @property
    def size(self) -> int:
        """The bytes of its members, as `size_of` counts them."""
        return len(self.content) - HEAD.size + 1

    def members(self) -> list[Member]:
        """Return the members."""
        at = unpack_from(f">{2 * self.count}H", self.content, self.entries_at)
        ends, body = at[1::2], self.body
        starts = [0, *[end + 1 for end in ends[:-1]]]
        texts = [body[start:end] for start, end in zip(starts, ends, strict=True)]
        return list(zip(self.member_keys(), texts, map(sub, ends, at[::2]), strict=True))


class PagedRows:
    """A `ReadView` of single rows over one of stored rows."""

    __slots__ = ("_stored",)

    def __init__(self, stored: ReadView) -> None:
        self._stored = stored

    @property
    def stored(self) -> ReadView:
        """The stored rows, which have a check sum."""
        return self._stored

    def find(self, key: bytes) -> Row | None:
        """Return the row whose key is `key` or begins it; None if there is none."""
        found = self._look_up(key)
        if found is None:
            return None
        at, content = found
        if not at or at[-1] != _END:
            return (at, content) if key.startswith(at) else None
        return _find_member(Page(at, content), key)

    def get(self, key: bytes) -> bytes | None:
        """Return the row at `key`."""
        row = self.find(key)
        return row[1] if row is not None and row[0] == key else None

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        found = self._look_up(key)
        if found is None or not is_page(found[0]):
            return found
        page = Page(*found)
        keys, start = page.member_keys(), len(page.container)
        number = len(keys)
        if key.startswith(page.container):
            number = bisect_right(keys, key[start:])
        return page.container + keys[number - 1], page.raw(number - 1)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with `low <= key < high` in key order, or backwards."""
        before = self._page_around(low)
        if before is not None and not reverse:
            yield from [row for row in before if low <= row[0] < high]
        for key, stored in self._stored.scan(low, high, reverse=reverse):
            if is_page(key):
                rows = Page(key, unseal(key, stored)).rows()
                if rows[-1][0] >= high:
                    rows = [row for row in rows if row[0] < high]
                yield from reversed(rows) if reverse else rows
            else:
                yield key, unseal(key, stored)
        if before is not None and reverse:
            yield from [row for row in reversed(before) if low <= row[0] < high]

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over the keys alone, as `scan` does; only pages are read."""
        before = [row[0] for row in self._page_around(low) or () if low <= row[0] < high]
        if not reverse:
            yield from before
        for key in self._stored.scan_keys(low, high, reverse=reverse):
            if is_page(key):
                if not reverse:
                    yield key.removesuffix(PAGE_END)  # who wants the first key only reads no page
                stored = self._stored.get(key)
                if stored is None:
                    continue  # it was removed after its first key was returned
                page = Page(key, unseal(key, stored))
                keys = [page.container + each for each in page.member_keys()]
                if keys[-1] >= high:
                    keys = [each for each in keys if each < high]
                yield from reversed(keys) if reverse else keys[1:]
            else:
                yield key
        if reverse:
            yield from reversed(before)

    def scan_stored(self, low: bytes, high: bytes) -> Iterator[Row]:
        """Iterate over the stored rows and pages of a range, without their check sums."""
        for key, stored in self._stored.scan(low, high):
            yield key, unseal(key, stored)

    def sequence(self) -> int:
        """Return the number of the last entry that was ever appended, 0 before the first."""
        return self._stored.sequence()

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Iterate over the retained entries with numbers above `after`."""
        return self._stored.entries(after)

    def _look_up(self, key: bytes) -> Row | None:
        """Return what holds the row `key` or the last one before it, without its check sum."""
        found = self._stored.floor(key + PAGE_END)
        return None if found is None else unseal_near(key, found)

    def _page_around(self, low: bytes) -> list[Row] | None:
        """Return the rows of the page that begins before `low` if it ends at or after that."""
        if low == FIRST or (low[-1:] == LOWEST_TAG and len(low) < ROW_KEY_BYTES):
            return None  # what is below a container begins with a row or a page
        found = self._stored.floor(low)
        if found is None or not is_page(found[0]):
            return None
        rows = Page(found[0], unseal(*found)).rows()
        return rows if rows[-1][0] >= low else None


def _find_member(page: Page, key: bytes) -> Row | None:
    container = page.container
    start = len(container)
    if len(key) <= start or not key.startswith(container):
        return None
    end = end_of_key(key, start)
    raw = page.find(key[start:end]) if end else None
    return None if raw is None else (key[:end], raw)
