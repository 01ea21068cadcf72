"""One member of a page is set or removed in the bytes of the page, without reading the others.

What comes out is what `pages.encode_page` makes of the changed members.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left

from treedbd.store.rows import ENTRY, HEAD, Member, Page


def set_member(page: Page, member: Member) -> bytes:
    """Return the content of a page with one more member, or with another row for one.

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
    keys = page.member_keys()
    number = bisect_left(keys, segment)
    keys.insert(number, segment)
    at = page.entry(number - 1)[1]  # before the comma, if one follows
    end = at + 1 + len(text)
    new_entry = ENTRY.pack(end - length, end)
    return _join(page, b"".join(keys), number, new_entry, number, end - at, (at, b"," + text, at))


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
    numbers = array("H", entries)
    if sys.byteorder == "little":
        numbers.byteswap()
    numbers = array("H", [number + shift for number in numbers])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
