from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.conformance import MappingContract, append_all, put_all
from treedbd.store.memory import MemoryMapping


class TestMemoryMapping(MappingContract):
    @pytest.fixture
    def mapping(self) -> Iterator[MemoryMapping]:
        mapping = MemoryMapping()
        yield mapping
        mapping.close()

    def test_size_counts_what_is_there(self, mapping: MemoryMapping) -> None:
        put_all(mapping, [(b"key", b"value"), (b"other", b"")])
        put_all(mapping, [(b"key", b"v")])
        append_all(mapping, b"entry")
        assert mapping.size() == len(b"keyvotheropentry")
        transaction = mapping.begin()
        transaction.delete_range(b"", b"z")
        transaction.trim(1)
        transaction.commit()
        assert mapping.size() == 0
