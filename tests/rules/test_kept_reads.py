"""Expensive reads are kept between requests, and never outlive what they have read."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.rules.evaluating import NOW, normal, place, rules
from treedbd.rules import context as kept_reads
from treedbd.rules.context import MAX_CHANGES, Budget, Context, KeptReads, MeteredView, ReadPool
from treedbd.store.engine import Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.tree.types import Change, Charge, Container, Leaf, Path, View, free

LARGE = "x" * 10_000
EQUAL = rules({".read": "data.child('big').val() == auth"})


class Counting(Nodes):
    """Nodes that count how often a leaf is read."""

    count = 0

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        type(self).count += 1
        return super().peek(path, charge)


@pytest.fixture(autouse=True)
def _count() -> None:
    Counting.count = 0


def change(path: str, value: Any) -> Change:
    return Change(place(path), normal(value))


def is_big(text: str, view: View, kept: KeptReads) -> bool:
    """Return whether the rules see `text` at `big`."""
    return EQUAL.may_read((), Context(text, NOW, view, kept=kept)).allowed


def committed(engine: MemoryEngine, kept: KeptReads, *changes: Change) -> None:
    transaction = engine.begin()
    apply(transaction, kept, *changes)
    transaction.commit()
    kept.end_transaction()


def apply(transaction: Transaction, kept: KeptReads, *changes: Change) -> None:
    kept.note_changes(transaction, changes)
    NodeWriter(transaction).apply(changes)


def read(engine: MemoryEngine, text: str, kept: KeptReads) -> bool:
    return engine.read(lambda rows: is_big(text, Counting(rows), kept))


def test_three_hundred_requests_read_a_large_leaf_once() -> None:
    engine, kept = MemoryEngine(), KeptReads(ReadPool())
    committed(engine, kept, change("big", LARGE))
    for at in range(300):
        assert read(engine, LARGE, kept)
        committed(engine, kept, change(f"posts/{at}", "text"))
    assert Counting.count == 1


@pytest.mark.parametrize("where", ["", "big", "big/below"])
def test_a_change_at_above_or_below_is_seen_at_once_and_after_the_commit(where: str) -> None:
    engine, kept = MemoryEngine(), KeptReads(ReadPool())
    committed(engine, kept, change("big", LARGE))
    assert read(engine, LARGE, kept)
    transaction = engine.begin()
    new = {"": {"big": LARGE + "1"}, "big": LARGE + "1", "big/below": 1}[where]
    apply(transaction, kept, change(where, new))
    sees_change = where != "big/below"
    assert is_big(LARGE + "1", Nodes(transaction), kept) is sees_change
    assert not is_big(LARGE, Nodes(transaction), kept)
    assert read(engine, LARGE, kept)
    assert not read(engine, LARGE + "1", kept)
    transaction.commit()
    kept.end_transaction()
    assert read(engine, LARGE + "1", kept) is sees_change
    assert not read(engine, LARGE, kept)


def test_what_a_transaction_has_read_of_its_own_changes_ends_with_it() -> None:
    engine, kept = MemoryEngine(), KeptReads(ReadPool())
    committed(engine, kept, change("big", LARGE))
    transaction = engine.begin()
    apply(transaction, kept, change("big", LARGE + "1"))
    assert is_big(LARGE + "1", Nodes(transaction), kept)
    transaction.rollback()
    assert read(engine, LARGE, kept)
    second = engine.begin()
    apply(second, kept, change("other", 1))
    assert is_big(LARGE, Nodes(second), kept)
    second.rollback()


def test_the_cost_is_the_same_whether_a_leaf_is_kept_or_not() -> None:
    engine, kept = MemoryEngine(), KeptReads(ReadPool())
    committed(engine, kept, change("big", LARGE))
    left = []
    for _ in range(2):
        context = engine.read(lambda rows: Context(LARGE, NOW, Nodes(rows), kept=kept))

        def work(rows: Any, context: Context = context) -> None:
            context.view = Nodes(rows)
            EQUAL.may_read((), context)

        engine.read(work)
        assert context.reader is not None
        left.append(context.reader[1].characters)
    assert len(kept) == 1
    assert left[0] == left[1]


def test_a_transaction_of_many_changes_keeps_nothing_until_it_has_ended() -> None:
    engine, kept = MemoryEngine(), KeptReads(ReadPool())
    committed(engine, kept, change("big", LARGE))
    assert read(engine, LARGE, kept)
    transaction = engine.begin()
    many = [change(f"k{at:05}", 1) for at in range(MAX_CHANGES + 1)]
    apply(transaction, kept, *many, change("z", 1))
    assert not len(kept)
    assert read(engine, LARGE, kept)
    assert not len(kept)
    transaction.commit()
    kept.end_transaction()
    assert read(engine, LARGE, kept)
    assert len(kept) == 1


def test_one_pool_bounds_what_all_databases_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reads, "POOL_BYTES", 3 * len(LARGE))
    pool = ReadPool()
    worlds = [(MemoryEngine(), KeptReads(pool)) for _ in range(3)]
    for engine, kept in worlds:
        committed(engine, kept, change("big", LARGE))
        assert read(engine, LARGE, kept)
    assert [len(kept) for _, kept in worlds] == [0, 1, 1]
    assert read(*_with(worlds[1], LARGE))
    assert read(*_with(worlds[0], LARGE))
    assert [len(kept) for _, kept in worlds] == [1, 1, 0]
    worlds[0][1].clear()
    worlds[1][1].clear()
    assert read(*_with(worlds[2], LARGE))
    assert [len(kept) for _, kept in worlds] == [0, 0, 1]


def _with(world: tuple[MemoryEngine, KeptReads], text: str) -> tuple[MemoryEngine, str, KeptReads]:
    return world[0], text, world[1]


def test_the_number_of_kept_reads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reads, "POOL_READS", 2)
    kept = KeptReads(ReadPool())
    for at in range(5):
        kept.keep(("peek", (f"k{at}",)), "text", 1)
    assert len(kept) == 2
    assert kept.find(("peek", ("k4",))) is not None


def test_a_leaf_that_is_larger_than_the_pool_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reads, "POOL_BYTES", 100)
    kept = KeptReads(ReadPool())
    kept.keep(("peek", ("a",)), LARGE, 1)
    assert not len(kept)


@pytest.mark.parametrize("seed", range(20))
def test_random_writes_never_leave_an_old_value(seed: int) -> None:
    chance = random.Random(seed)
    engine, kept = MemoryEngine(), KeptReads(ReadPool())
    paths = ["", "a", "a/b", "a/b/c", "d"]

    def value() -> Any:
        leaf = f"{chance.random():.9f}" * 1000
        return chance.choice([leaf, {"b": leaf}, {"b": {"c": leaf}}, None, leaf])

    def check(view: Nodes) -> None:
        for path in (("a",), ("a", "b"), ("a", "b", "c"), ("d",)):
            metered = MeteredView(view, Budget(), kept)
            assert metered.type_at(path) is (
                None if view.peek(path) is None else type(view.peek(path))
            )
            assert metered.peek(path) == view.peek(path)

    for _ in range(30):
        transaction = engine.begin()
        for _ in range(chance.randrange(3)):
            check(NodeWriter(transaction))
            apply(transaction, kept, change(chance.choice(paths), value()))
            check(NodeWriter(transaction))
            engine.read(lambda rows: check(Nodes(rows)))
        if chance.random() < 0.3:
            transaction.rollback()
        else:
            transaction.commit()
            if chance.random() < 0.5:
                kept.end_transaction()
        engine.read(lambda rows: check(Nodes(rows)))
