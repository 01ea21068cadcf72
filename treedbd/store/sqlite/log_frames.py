"""The frames of a write-ahead log, read without SQLite, which would apply them.

The format is https://www.sqlite.org/fileformat.html#the_write_ahead_log: a header, then frames.
Each is a page with its number, the salts of the header and a check sum over all before it. The
first frame that does not fit ends the log. A frame that ends a commit says how many pages the file
has. What a page reserves at its end means nothing in a frame (`page_sums`).
"""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from treedbd.store.sqlite.file import PAGE_BYTES, RESERVED_AT

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The order of bytes in check sums, by the first number of the header."""
_WORD: Final = 0xFFFFFFFF
_PAGE_COUNT: Final = struct.Struct(">I")
_PAGE_COUNT_AT: Final = 28
"""Where the file says how many pages it has."""

_Sums: TypeAlias = tuple[int, int]


class _Frame(NamedTuple):
    page: int
    page_count: int
    """The pages of the file after the commit that this frame ends; 0 if it ends none."""
    content: bytes


def is_applied(log: pathlib.Path, file: pathlib.Path) -> bool:
    """Return whether to apply a log to a file would not change it; raise OSError.

    So it is with one whose commits were all copied into the file, or that has no commit.
    """
    pages: dict[int, bytes] = {}
    page_count, later = None, {}
    with log.open("rb") as opened:
        for frame in _frames(opened):
            later[frame.page] = frame.content
            if frame.page_count:
                page_count = frame.page_count
                pages |= later
                later = {}
    if page_count is None:
        return True
    with file.open("rb") as opened:
        header = _page(opened, 1)
        if len(header) < PAGE_BYTES:
            return False
        end = PAGE_BYTES - header[RESERVED_AT]
        return _PAGE_COUNT.unpack_from(header, _PAGE_COUNT_AT)[0] == page_count and all(
            _page(opened, page)[:end] == content[:end]
            for page, content in pages.items()
            if page <= page_count
        )


def _frames(log: BinaryIO) -> Iterator[_Frame]:
    """Iterate over the frames up to the first that does not fit."""
    raw = log.read(_HEADER.size)
    if len(raw) < _HEADER.size:
        return
    magic, _, page_bytes, _, *salts_and_sums = _HEADER.unpack(raw)
    salts, sums = tuple(salts_and_sums[:2]), tuple(salts_and_sums[2:])
    order = _ORDERS.get(magic)
    if order is None or page_bytes != PAGE_BYTES or _add(raw[:24], (0, 0), order) != sums:
        return
    found: _Sums = (sums[0], sums[1])
    while len(raw := log.read(_FRAME.size + PAGE_BYTES)) == _FRAME.size + PAGE_BYTES:
        page, page_count, *rest = _FRAME.unpack_from(raw)
        content = raw[_FRAME.size :]
        found = _add(content, _add(raw[:8], found, order), order)
        if (*salts, *found) != tuple(rest):
            return
        yield _Frame(page, page_count, content)


def _add(content: bytes, sums: _Sums, order: str) -> _Sums:
    """Return the check sums over what had `sums` and then `content`."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for word, other in zip(words, words, strict=True):
        first = (first + word + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second


def _page(file: BinaryIO, number: int) -> bytes:
    file.seek((number - 1) * PAGE_BYTES)
    return file.read(PAGE_BYTES)
