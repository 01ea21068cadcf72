from __future__ import annotations

import pytest

from treedbd.store.engine import DamagedRow
from treedbd.store.memory import MemoryEngine
from treedbd.store.pages import PAGE_BYTES, pack, place_rows
from treedbd.store.rows import PagedRows, below, is_page, seal, seal_row, unseal
from treedbd.tree.path import encode_path


def test_what_was_stored_is_read() -> None:
    assert unseal(b"key", seal(b"key", b"content")) == b"content"
    assert seal_row((b"", b"")) == (b"", seal(b"", b""))
    assert unseal(b"", seal(b"", b"")) == b""


def test_a_changed_bit_is_found() -> None:
    stored = seal(b"key", b'{"a":1}')
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 4
        with pytest.raises(DamagedRow):
            unseal(b"key", bytes(changed))


@pytest.mark.parametrize("stored", [b"", b"1", b"123", seal(b"key", b"content")])
def test_a_row_under_another_key_or_without_a_check_sum_is_found(stored: bytes) -> None:
    with pytest.raises(DamagedRow):
        unseal(b"other", stored)


def test_the_first_key_is_found_without_reading_a_page() -> None:
    transaction = MemoryEngine().begin()
    rows = [(encode_path(("a", f"k{number}")), b"1") for number in range(9)]
    for key, stored in map(seal_row, pack(place_rows(rows), PAGE_BYTES)):
        transaction.put(key, b"damaged" if is_page(key) else stored)
    keys = PagedRows(transaction).scan_keys(*below(encode_path(("a",))))
    assert next(keys) == rows[0][0]
    with pytest.raises(DamagedRow):
        next(keys)


def test_keys_of_a_page_that_is_removed_meanwhile_are_not_returned() -> None:
    transaction = MemoryEngine().begin()
    rows = [(encode_path(("a", f"k{number}")), b"1") for number in range(9)]
    (page,) = map(seal_row, pack(place_rows(rows), PAGE_BYTES))
    transaction.put(*page)
    keys = PagedRows(transaction).scan_keys(*below(encode_path(("a",))))
    assert next(keys) == rows[0][0]
    transaction.delete(page[0])
    assert list(keys) == []


def test_a_long_row_is_looked_at_only_for_what_it_holds() -> None:
    """A damaged one is not even noticed by those who look for what would follow it."""
    transaction = MemoryEngine().begin()
    long, after = encode_path(("big",)), encode_path(("events", "new"))
    transaction.put(long, bytes(100_000))
    rows = PagedRows(transaction)
    assert rows.find(after) is None
    assert rows.floor(after) == (long, b"")
    for key in (long, encode_path(("big", "below"))):
        with pytest.raises(DamagedRow):
            rows.find(key)
