"""How much a database holds: the sums that writes keep are those of all rows."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.store.test_nodes_model import Commit, commits, page_limits, row_limits
from treedbd.loop import in_steps
from treedbd.store import usage as usage_module
from treedbd.store.engine import Engine, Row, Transaction
from treedbd.store.indexes import USAGE_KEY
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.pages import PAGE_BYTES
from treedbd.store.rows import END, FIRST, seal
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.usage import CountedRows, Usage, count_some, read_usage, weigh, write_usage
from treedbd.store.verify import verify
from treedbd.tree.types import PRIORITY, VALUE, Change, Place, Value

bounded = settings(
    max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    folder = tmp_path_factory.mktemp("shelves")
    return (folder / f"{number}.shelf" for number in range(10**9))


def leaves_of(value: Value) -> int:
    """Count the leaves of a value in normal form."""
    if value is None:
        return 0
    if not isinstance(value, dict) or VALUE in value:
        return 1
    return sum(leaves_of(child) for key, child in value.items() if key != PRIORITY)


def recount(engine: Engine) -> tuple[int, int]:
    rows = engine.read(lambda view: list(view.scan(FIRST, END)))
    weights = [weigh(*row, counts_nodes=True) for row in rows]
    return sum(size for size, _ in weights), sum(nodes for _, nodes in weights)


def rows_of(engine: Engine) -> list[Row]:
    return engine.read(lambda view: list(view.scan(FIRST, b"\xff")))


def usage_of(engine: Engine, *, counts_nodes: bool = True) -> Usage:
    return engine.read(lambda view: read_usage(view, counts_nodes=counts_nodes))


def write_counted(
    engine: Engine,
    commit: Commit,
    row_bytes: int = 4096,
    page_bytes: int = PAGE_BYTES,
    *,
    is_undone: bool = False,
) -> None:
    transaction = engine.begin()
    before = read_usage(transaction, counts_nodes=True)
    counted = CountedRows(transaction, before.position, counts_nodes=True)
    NodeWriter(counted, row_bytes, page_bytes).apply(commit)
    if is_undone:
        counted.undo()
        assert (counted.size, counted.nodes) == (0, 0)
        transaction.commit()
        return
    after = Usage(
        before.size + counted.size,
        (before.nodes or 0) + counted.nodes,
        transaction.append(b"op", b"entry"),
        before.position,
    )
    write_usage(counted, after)
    transaction.commit()


def write_uncounted(engine: Engine, *changes: Change) -> None:
    transaction = engine.begin()
    NodeWriter(transaction).apply(changes)
    transaction.append(b"op", b"entry")
    transaction.commit()


def count_all(engine: Engine, limit: int = 10_000) -> int:
    """Count in steps, each a transaction; return how many there were."""
    for steps in range(limit):
        transaction = engine.begin()
        if not count_once(transaction):
            transaction.rollback()
            return steps
        transaction.commit()
    raise AssertionError("It never ends.")


def count_once(transaction: Transaction) -> bool:
    steps = in_steps(lambda: count_some(transaction, counts_nodes=True))
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return bool(stop.value)


@bounded
@given(
    history=commits,
    row_bytes=row_limits,
    page_bytes=page_limits,
    undone=st.sets(st.integers(0, 6)),
    is_in_memory=st.booleans(),
)
def test_the_sums_are_those_of_all_rows_after_any_writes_and_what_is_undone_left_nothing(
    shelves: Iterator[pathlib.Path],
    history: list[Commit],
    row_bytes: int,
    page_bytes: int,
    undone: set[int],
    is_in_memory: bool,
) -> None:
    engine: Any = (
        MemoryEngine() if is_in_memory else SqliteEngine.create(next(shelves), reserve_bytes=0)
    )
    for number, commit in enumerate(history):
        before = rows_of(engine)
        write_counted(engine, commit, row_bytes, page_bytes, is_undone=number in undone)
        if number in undone:
            assert rows_of(engine) == before
        usage = usage_of(engine)
        assert usage.is_complete
        assert (usage.size, usage.nodes) == recount(engine)
        assert usage.nodes == leaves_of(engine.read(lambda view: Nodes(view).get(())))
    engine.close()


@bounded
@given(history=commits, data=st.data())
def test_what_is_counted_in_steps_while_writes_go_on_is_counted_once(
    history: list[Commit], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(usage_module, "_STEP_BYTES", 60)
        engine = MemoryEngine()
        begun = data.draw(st.integers(0, len(history)))
        for commit in history[:begun]:
            transaction = engine.begin()
            NodeWriter(transaction, 40, 100).apply(commit)
            transaction.append(b"op", b"entry")
            transaction.commit()
        for commit in history[begun:]:
            write_counted(engine, commit, 40, 100)
            transaction = engine.begin()
            has_counted = count_once(transaction)
            (transaction.commit if has_counted else transaction.rollback)()
        count_all(engine)
        usage = usage_of(engine)
        assert (usage.is_complete, usage.size, usage.nodes) == (True, *recount(engine))


def test_an_empty_database_is_counted_and_holds_nothing() -> None:
    assert usage_of(MemoryEngine()) == Usage(0, 0, 0)


def test_what_was_written_without_counting_is_counted_again() -> None:
    engine = MemoryEngine()
    write_counted(engine, (Change(Place(("a",)), "x" * 10),))
    assert usage_of(engine).is_complete
    write_uncounted(engine, Change(Place(("b",)), "y" * 100))
    assert usage_of(engine) == Usage(0, 0, 2, FIRST)
    count_all(engine)
    assert (usage_of(engine).size, usage_of(engine).nodes) == recount(engine)


def test_nodes_that_were_not_counted_are_counted_when_they_are_asked_for() -> None:
    engine = MemoryEngine()
    write_uncounted(engine, Change(Place(("a",)), "x"))
    transaction = engine.begin()
    while count_some(transaction, counts_nodes=False):
        pass
    transaction.commit()
    assert usage_of(engine, counts_nodes=False).is_complete
    assert not usage_of(engine).is_complete
    count_all(engine)
    assert usage_of(engine).nodes == 1


@pytest.mark.parametrize("stored", [b"", b"1234[]", seal(USAGE_KEY, b"[]"), seal(USAGE_KEY, b"{")])
def test_a_row_that_cannot_be_read_is_counted_again(stored: bytes) -> None:
    engine = MemoryEngine()
    write_uncounted(engine, Change(Place(("a",)), 1))
    transaction = engine.begin()
    transaction.put(USAGE_KEY, stored)
    transaction.commit()
    assert usage_of(engine).position == FIRST


def test_much_is_counted_in_several_steps_with_pauses_and_the_file_is_right() -> None:
    engine = MemoryEngine()
    value: Any = {f"k{number}": "x" * 5000 for number in range(500)}
    write_uncounted(engine, Change(Place(("a",)), value))
    assert count_all(engine) >= 3
    assert usage_of(engine).nodes == 500
    assert engine.read(lambda view: list(verify(view))) == []


def test_the_bytes_are_about_those_of_the_json() -> None:
    engine = MemoryEngine()
    users: Any = {
        f"u{number}": {"name": f"User {number}", "age": number % 90, "tags": {"a": True}}
        for number in range(2000)
    }
    write_counted(engine, (Change(Place(("users",)), users),))
    json = engine.read(lambda view: Nodes(view).print(()))
    assert len(json) <= usage_of(engine).size <= 1.1 * len(json)


def test_a_write_that_removes_very_much_keeps_nothing_to_undo_it_and_has_shrunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_module, "UNDO_BYTES", 10_000)
    engine = MemoryEngine()
    value: Any = {f"k{number}": "x" * 5000 for number in range(9)}
    write_uncounted(engine, Change(Place(("a",)), value))
    transaction = engine.begin()
    counted = CountedRows(transaction, counts_nodes=True)
    NodeWriter(counted).apply([Change(Place(("a",)), 1)])
    assert (counted.has_shrunk, counted.nodes) == (True, -8)
    transaction.rollback()
