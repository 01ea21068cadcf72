"""Rows of format 2, and how they become rows of format 3.

In format 2 every row was stored by itself, under its own key and without a check sum. In format 3
rows begin with one, and short rows of siblings share pages (`pages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treedbd.store.engine import Row
from treedbd.store.pages import PAGE_BYTES, pack
from treedbd.store.rows import seal_row


def is_same(_: Row) -> bool:
    """Return False: every row is stored in another way."""
    return False


def convert_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Convert the rows of a tree, in their order, with one page in memory at most."""
    return map(seal_row, pack(rows, PAGE_BYTES))
