"""The hash of a node from its rows is that of its value."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from treedbd.limits import MAX_SHOWN_BYTES
from treedbd.loop import in_steps
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes, hash_at
from treedbd.tree import hashes as data_hash_module
from treedbd.tree.edit import normalise
from treedbd.tree.hashes import data_hash
from treedbd.tree.types import Change, Json, Place

RECORDS: Json = {
    f"user{number}": {"name": "x" * 200, ".priority": -number, "tags": ["a", "b"]}
    for number in range(200)
}


def engine_with(json: Json) -> MemoryEngine:
    """Return an engine that holds a value."""
    engine = MemoryEngine()
    transaction = engine.begin()
    value: Any = normalise(json, 0).value
    NodeWriter(transaction).apply([Change(Place(()), value)])
    transaction.commit()
    return engine


@pytest.mark.parametrize(
    "path", [(), ("deep",), ("deep", "user7"), ("deep", "user7", "tags"), ("no",)]
)
def test_it_is_that_of_the_value_however_it_is_stored(path: tuple[str, ...]) -> None:
    engine = engine_with({"deep": RECORDS, ".priority": "p"})
    hashed = engine.read(lambda view: hash_at(Nodes(view), Place(path)))
    assert hashed == engine.read(lambda view: data_hash(Nodes(view).get(path)))
    assert engine.read(lambda view: Nodes(view).is_spread(("deep",)))


def test_a_priority_has_a_hash_of_its_own() -> None:
    engine = engine_with({"a": {".value": 1, ".priority": "p"}, "b": 2})
    found = [
        engine.read(lambda view, path=path: hash_at(Nodes(view), Place(path, True)))  # type: ignore[misc]
        for path in (("a",), ("b",))
    ]
    assert found == [data_hash("p"), ""]


def test_a_large_node_is_hashed_in_steps() -> None:
    engine = engine_with(RECORDS)
    view = engine.snapshot()
    clock = count()
    steps = list(in_steps(lambda: hash_at(Nodes(view), Place(())), lambda: float(next(clock))))
    view.close()
    assert len(steps) > 10


@pytest.mark.parametrize(
    "json",
    [{f"k{at}": at for at in range(5000)}, "long é" * 100_000],
    ids=["many children", "a long string"],
)
def test_what_is_large_is_hashed_and_sorted_in_steps(json: Json) -> None:
    engine = engine_with({"a": json})
    view = engine.snapshot()
    nodes = Nodes(view)
    clock = count()
    value = nodes.get(("a",))
    steps = list(in_steps(lambda: data_hash(value), lambda: float(next(clock))))
    assert len(steps) >= 10
    assert hash_at(nodes, Place(("a",))) == data_hash(value)
    view.close()


def test_children_are_hashed_in_the_order_of_utf_16_however_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [("\U0001f600" if at % 3 else "\uff21") + str(at) for at in range(500)]
    engine = engine_with(
        {key: {".value": key * 20, ".priority": at % 2} for at, key in enumerate(keys)}
    )
    at_once = engine.read(lambda view: hash_at(Nodes(view), Place(())))
    monkeypatch.setattr(data_hash_module, "SORTED_AT_ONCE", 16)
    assert engine.read(lambda view: hash_at(Nodes(view), Place(()))) == at_once


def test_a_node_that_is_too_large_has_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with(RECORDS)
    assert engine.read(lambda view: hash_at(Nodes(view), Place(()))) is not None
    monkeypatch.setattr("treedbd.store.nodes.MAX_SHOWN_BYTES", 1000)
    assert engine.read(lambda view: hash_at(Nodes(view), Place(()))) is None
    assert MAX_SHOWN_BYTES > 1000
