"""Hooks as rows: stored in the order of their names, checked, and known by a stamp."""

from __future__ import annotations

import pytest

from treedbd.store.engine import DamagedRow
from treedbd.store.hooks import (
    HOOK_END,
    HOOK_FIRST,
    Hook,
    check_hooks,
    read_hooks,
    read_stamp,
    write_hooks,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.rows import seal
from treedbd.store.verify import verify_indexes
from treedbd.tree.pattern import parse_pattern

PLAIN = Hook("b", parse_pattern("/orders/$id"), frozenset({"created"}))
FULL = Hook(
    name="a",
    on=parse_pattern("/é/$x/$y"),
    kinds=frozenset({"created", "updated", "deleted"}),
    url="https://a.example.com/",
    form="functions-2",
    secrets=("one", "two"),
    trigger="f",
    created_ms=77,
)


def test_hooks_are_read_as_they_were_written() -> None:
    transaction = MemoryEngine().begin()
    assert (read_hooks(transaction), read_stamp(transaction)) == ([], None)
    write_hooks(transaction, [PLAIN, FULL], b"1")
    assert read_hooks(transaction) == [FULL, PLAIN]
    assert FULL.cursor == "hook-a"
    first = read_stamp(transaction)
    write_hooks(transaction, [], b"2")
    assert read_hooks(transaction) == []
    assert None not in (first, read_stamp(transaction))
    assert first != read_stamp(transaction)


def test_secrets_are_not_in_what_is_printed() -> None:
    assert "two" not in repr(FULL)


@pytest.mark.parametrize(
    "content",
    [b'{"a":1}', b"[{}]", b"1", b'[{"name":"a"}]', b"nonsense"],
)
def test_a_damaged_row_is_found(content: bytes) -> None:
    transaction = MemoryEngine().begin()
    write_hooks(transaction, [FULL], b"1")
    assert list(verify_indexes(transaction)) == []
    key = HOOK_FIRST + b"d"
    assert HOOK_FIRST < key < HOOK_END
    transaction.put(key, seal(key, content))
    with pytest.raises(DamagedRow):
        read_hooks(transaction)
    assert list(check_hooks(transaction)) == list(verify_indexes(transaction))
    assert len(list(check_hooks(transaction))) == 1


def test_a_row_with_a_wrong_check_sum_is_found() -> None:
    transaction = MemoryEngine().begin()
    write_hooks(transaction, [FULL], b"1")
    key = HOOK_FIRST + b"d"
    stored = transaction.get(key)
    assert stored is not None
    transaction.put(key, stored[:-1] + b"?")
    with pytest.raises(DamagedRow):
        read_hooks(transaction)


def test_a_wrong_stamp_is_found() -> None:
    transaction = MemoryEngine().begin()
    write_hooks(transaction, [], b"1")
    transaction.put(HOOK_FIRST, b"??????")
    assert len(list(check_hooks(transaction))) == 1
