"""The check of indexes finds what is wrong with them, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treedbd.store.engine import Transaction
from treedbd.store.indexes import (
    ChildIndex,
    IndexState,
    IndexStates,
    encode_entry,
    make_writer,
    order_named,
    write_states,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.rows import seal
from treedbd.store.verify import verify_indexes
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

INDEX = ChildIndex(("c", None), order_named("v"))
OTHER = ChildIndex(("c",), order_named("v"))
COLLECTION = INDEX.collection(("c", "x")) or b""


def put_entry(transaction: Transaction, value: object, child: str) -> None:
    key, content = encode_entry(COLLECTION, value, child)
    transaction.put(key, seal(key, content))


def store() -> Transaction:
    transaction = MemoryEngine().begin()
    write_states(transaction, IndexStates((IndexState(INDEX, "built"),)))
    body: Any = {
        "x": {f"k{at:03}": {"v": at, "name": "n" * 50} for at in range(100)},
        "y": {"a": 1},
    }
    make_writer(transaction, [INDEX]).apply(make_put(Place(("c",)), body).changes)
    return transaction


def test_indexes_that_are_right_have_no_findings() -> None:
    assert list(verify_indexes(store())) == []


def test_an_index_under_way_may_lack_entries() -> None:
    transaction = store()
    transaction.delete(encode_entry(COLLECTION, 5, "k005")[0])
    write_states(transaction, IndexStates((IndexState(INDEX, "building"),)))
    assert list(verify_indexes(transaction)) == []


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (
            lambda rows: rows.delete(encode_entry(COLLECTION, 5, "k005")[0]),
            "The index v of /c/x lacks the entries of 1 children.",
        ),
        (
            lambda rows: put_entry(rows, 6, "k005"),
            "The index v of /c/x has a wrong entry of 'k005'.",
        ),
        (
            lambda rows: put_entry(rows, 6, "gone"),
            "The index v of /c/x has a wrong entry of 'gone'.",
        ),
        (
            lambda rows: rows.put(encode_entry(COLLECTION, 5, "k005")[0], b"damaged"),
            "The index v of /c/x has an entry that cannot be read.",
        ),
        (
            lambda rows: rows.put((INDEX.collection(("c", "z")) or b"") + b"\x10\x03a\x00", b""),
            "The index v has entries that belong to no child.",
        ),
        (
            lambda rows: rows.put((OTHER.collection(("c",)) or b"") + b"\x10\x03a\x00", b""),
            "There are entries of an index that does not exist.",
        ),
        (lambda rows: rows.put(b"\x07", b""), "There are rows that belong to nothing."),
        (
            lambda rows: rows.put(b"\x06", b"damaged"),
            "The indexes cannot be checked: A row does not match its check sum.",
        ),
    ],
)
def test_what_is_wrong_is_found(spoil: Callable[[Transaction], None], finding: str) -> None:
    transaction = store()
    spoil(transaction)
    assert finding in list(verify_indexes(transaction))
