from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.conformance import EngineContract, append_all, put_all
from treedbd.store.memory import MemoryEngine


class TestMemoryEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Iterator[MemoryEngine]:
        engine = MemoryEngine()
        yield engine
        engine.close()

    def test_size_counts_keys_values_and_entries(self, engine: MemoryEngine) -> None:
        put_all(engine, [(b"key", b"value"), (b"other", b"")])
        put_all(engine, [(b"key", b"v")])
        append_all(engine, b"entry")
        assert engine.size() == len(b"keyvotheropentry")
        transaction = engine.begin()
        transaction.delete_range(b"", b"z")
        transaction.trim(1)
        transaction.commit()
        assert engine.size() == 0
