"""Where the pages of a file are, so that a test can damage one."""

from __future__ import annotations

from typing import Final

from treedbd.store.sqlite.file import PAGE_BYTES

# The first byte of a page: https://www.sqlite.org/fileformat.html#b_tree_pages
INDEX_INNER: Final = 2
TABLE_INNER: Final = 5
INDEX_LEAF: Final = 10
TABLE_LEAF: Final = 13


def pages_of(content: bytes | bytearray, *kinds: int) -> list[int]:
    """Return where the pages of some kinds begin in the content of a file, but for the first."""
    return [at for at in range(0, len(content), PAGE_BYTES) if content[at] in kinds]


def table_leaf_with(content: bytes | bytearray, text: bytes) -> int:
    """Return where the only leaf of a table that has a text begins."""
    (at,) = (at for at in pages_of(content, TABLE_LEAF) if text in content[at : at + PAGE_BYTES])
    return at
