from __future__ import annotations

import pytest

from treedbd.store.engine import DamagedRow
from treedbd.store.paged_rows import seal, seal_row, unseal


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
