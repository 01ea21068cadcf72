"""What a page of a large collection, and an append to it, read and write in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from treedbd.store.engine import Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Place
from treedbd.web.reading import chunks_of
from treedbd.web.request import Parameters, parse_read_options

RECORDS = 10_000
PLACE = Place(("all",))
MAX_READS = 30
"""For a hundred records of a hundred bytes: some pages, and the way to the first."""


class Counted:
    """A transaction that counts what is read and written."""

    def __init__(self, transaction: Transaction) -> None:
        self.counts: Counter[str] = Counter()
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._transaction, name)

        def scan(*bounds: Any, **options: Any) -> Iterator[Any]:
            for row in method(*bounds, **options):
                self.counts["read"] += 1
                yield row

        def call(*arguments: Any) -> Any:
            self.counts["read" if name in ("get", "floor") else name] += 1
            return method(*arguments)

        found: Callable[..., Any] = scan if name.startswith("scan") else call
        return found


@pytest.fixture(scope="module")
def transaction() -> Transaction:
    transaction = MemoryEngine().begin()
    records: dict[str, Json] = {f"-N{at:06}": {"name": "x" * 80, "at": at} for at in range(RECORDS)}
    NodeWriter(transaction).apply(make_put(PLACE, records).changes)
    return transaction


@pytest.mark.parametrize(
    "parameters",
    [
        {"shallow": "true", "startAfter": "-N005000", "limitToFirst": "100"},
        {"shallow": "true", "v": "2", "startAfter": "-N005000", "limitToFirst": "100"},
        {"orderBy": '"$key"', "startAfter": '"-N005000"', "limitToFirst": "100"},
        {"orderBy": '"$key"', "startAfter": '"-N009899"', "format": "export"},
        {"orderBy": '"$key"', "limitToLast": "100"},
    ],
)
def test_a_page_costs_its_own_rows(transaction: Transaction, parameters: Parameters) -> None:
    counted = Counted(transaction)
    nodes = Nodes(cast(Transaction, counted))
    shown = b"".join(chunks_of(parse_read_options(parameters), PLACE, nodes))
    assert shown.count(b'"-N') == 100
    assert counted.counts["read"] < MAX_READS


def test_an_append_writes_one_row(transaction: Transaction) -> None:
    counted = Counted(transaction)
    writer = NodeWriter(cast(Transaction, counted))
    writer.apply(make_put(Place(("all", "-N999999")), {"name": "y" * 80}).changes)
    assert counted.counts.pop("read") <= 4
    assert counted.counts == {"put": 1}
