"""Indexes in the store: their entries follow every write, and are right after every step."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.examples import examples
from tests.store.index_checks import check_entries, expected_entries
from treedbd.loop import in_steps
from treedbd.store import indexes
from treedbd.store.engine import DamagedRow, Row, Transaction
from treedbd.store.indexes import (
    INDEX_END,
    INDEX_FIRST,
    BuildPosition,
    ChildIndex,
    IndexBuild,
    IndexState,
    IndexStates,
    drop_some,
    find_collections,
    make_writer,
    order_named,
    read_states,
    write_states,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.rows import seal
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.verify import verify, verify_indexes
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.types import Change, Json, Path, Place

INDEXES = [
    ChildIndex(("u",), order_named("age")),
    ChildIndex(("u",), order_named(".value")),
    ChildIndex(("u",), order_named("$priority")),
    ChildIndex(("g", None, "m"), order_named("n/d")),
    ChildIndex((None,), order_named("age")),
    ChildIndex((), order_named("age")),
    ChildIndex((None, None), order_named(".value")),
]
KEYS = st.sampled_from(["a", "b", "c", "1", "2", "10", "m", "u", "g", "k" * 130])
SHORT = st.sampled_from(["a", "b", "c", "1", "2"])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, "", "a", "long" * 30, "long" * 30 + "er", "é", "nul\x00"]),
)
CHILDREN = st.fixed_dictionaries(
    {},
    optional={
        "age": LEAVES,
        "n": st.fixed_dictionaries({}, optional={"d": LEAVES}),
        "text": st.sampled_from(["x" * 40]),
        ".priority": st.one_of(st.integers(0, 2), st.sampled_from(["p"])),
    },
)
VALUES = st.recursive(
    st.one_of(LEAVES, CHILDREN), lambda inner: st.dictionaries(KEYS, inner, max_size=5)
)
PATHS = st.one_of(
    st.lists(KEYS, max_size=4).map(tuple),
    st.tuples(st.just("u"), SHORT),
    st.tuples(st.just("u"), SHORT, st.just("age")),
    st.tuples(st.just("g"), SHORT, st.just("m"), SHORT),
    st.tuples(st.just("g"), SHORT, st.just("m"), SHORT, st.just("n"), st.just("d")),
    st.sampled_from([("u",), ("g",), (), ("g", "a"), ("g", "b", "m")]),
)


class IndexMachine(RuleBasedStateMachine):
    """Writes, builds and drops at random, and opens again; compares with the tree each time."""

    def __init__(self) -> None:
        super().__init__()
        self.builds: dict[ChildIndex, IndexBuild] = {}
        self.writes = 0
        self._patch = pytest.MonkeyPatch()

    @initialize(built=st.sets(st.sampled_from(INDEXES)), run=st.integers(1, 12))
    def begin(self, built: set[ChildIndex], run: int) -> None:
        self._patch.setattr(indexes, "RUN_ENTRIES", run)
        self.engine = MemoryEngine()
        self.transaction: Transaction = self.engine.begin()
        states = IndexStates(tuple(IndexState(index, "built") for index in built))
        write_states(self.transaction, states)

    def states(self) -> IndexStates:
        return read_states(self.transaction)

    def apply(self, changes: Any) -> None:
        writer = make_writer(self.transaction, self.states().kept, 80, 200)
        writer.apply(changes)
        self.writes += 1

    @rule(path=PATHS, value=VALUES)
    def put(self, path: tuple[str, ...], value: Any) -> None:
        self.apply(make_put(Place(path), value).changes)

    @rule(path=PATHS)
    def remove(self, path: tuple[str, ...]) -> None:
        self.apply([Change(Place(path), None)])

    @rule(path=PATHS, priority=st.sampled_from([None, 1, "x"]))
    def set_priority(self, path: tuple[str, ...], priority: Any) -> None:
        self.apply([Change(Place(path, True), priority)])

    @rule(
        path=st.sampled_from([(), ("u",), ("g",)]),
        members=st.dictionaries(
            st.one_of(
                SHORT, SHORT.map(lambda key: f"{key}/age"), SHORT.map(lambda key: f"{key}/m")
            ),
            VALUES,
            min_size=1,
        ),
    )
    def patch(self, path: tuple[str, ...], members: dict[str, Any]) -> None:
        keys = list(members)
        for key in keys:
            if any(other != key and other.startswith(f"{key}/") for other in keys):
                members.pop(key)
        self.apply(make_patch(path, members).changes)

    @rule(
        path=st.sampled_from([("u",), ("g", "a", "m"), ()]), members=st.dictionaries(SHORT, VALUES)
    )
    def add_children(self, path: tuple[str, ...], members: dict[str, Any]) -> None:
        value: Any = make_put(Place(path), members).changes[0].value
        if isinstance(value, dict):
            make_writer(self.transaction, self.states().kept, 80, 200).add_children(path, value)
            self.writes += 1

    @rule(index=st.sampled_from(INDEXES))
    def declare(self, index: ChildIndex) -> None:
        states = self.states()
        if index not in [each.index for each in states.states]:
            state = IndexState(index, "building", since=self.writes)
            write_states(self.transaction, states.with_state(state))

    @rule(budget=st.integers(1, 5))
    def build(self, budget: int) -> None:
        for state in self.states().states:
            if state.stage == "building":
                build = self.builds.get(state.index)
                if build is None or not build.continues(state):
                    build = self.builds[state.index] = IndexBuild(state)
                advanced = build.do_step(self.transaction, budget)
                write_states(self.transaction, self.states().with_state(advanced))

    @rule()
    def crash(self) -> None:
        self.builds.clear()

    @rule(index=st.sampled_from(INDEXES))
    def undeclare(self, index: ChildIndex) -> None:
        if index in self.states().kept:
            write_states(self.transaction, self.states().with_state(IndexState(index, "dropping")))

    @rule(budget=st.integers(1, 5))
    def drop(self, budget: int) -> None:
        for state in self.states().states:
            if state.stage == "dropping" and drop_some(self.transaction, state.index, budget):
                write_states(self.transaction, self.states().without(state.index))

    @rule()
    def commit(self) -> None:
        self.transaction.commit()
        self.transaction = self.engine.begin()

    @rule()
    def roll_back(self) -> None:
        self.transaction.rollback()
        self.transaction = self.engine.begin()

    @invariant()
    def entries_are_right(self) -> None:
        states = self.states()
        rows = {key for key, _ in self.transaction.scan(INDEX_FIRST, INDEX_END)}
        for state in states.states:
            low, high = state.index.range
            found = {key for key in rows if low <= key < high}
            expected = {key for key, _ in expected_entries(self.transaction, [state.index])}
            if state.stage == "built":
                assert found == expected
            elif state.stage == "building":
                assert found <= expected
            rows -= found
        assert not rows

    def teardown(self) -> None:
        self._patch.undo()
        if hasattr(self, "transaction"):
            self.transaction.commit()
            assert self.engine.read(verify) == []


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None
)


class CountingTransaction:
    """A transaction that counts the rows that are scanned in it."""

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self.scanned = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        for row in self._inner.scan(low, high, reverse=reverse):
            self.scanned += 1
            yield row


def users(count: int) -> dict[str, Any]:
    return {f"k{at:04}": {"age": at % 7, "name": "x" * 60} for at in range(count)}


@pytest.mark.parametrize(
    ("path", "is_noted"),
    [
        *[((), True), (("g",), True), (("g", "a"), True), (("g", "a", "m"), True)],
        *[(("g", "a", "m", "c"), True), (("g", "a", "m", "c", "n", "d"), True)],
        *[(("u", "b"), True), (("u", "b", "age"), True), (("u", "b", "age", "x"), True)],
        *[(("x",), False), (("x", "u", "b", "age"), False), (("g", "a", "x", "c"), False)],
    ],
)
def test_only_a_write_near_a_collection_is_noted(path: Path, is_noted: bool) -> None:
    transaction = MemoryEngine().begin()
    indexes = (INDEXES[0], INDEXES[3])
    changes = [Change(Place((f"x{at}", "a", "b", "c")), 1) for at in range(200)]
    for order in ([Change(Place(path), 1), *changes], [*changes, Change(Place(path), 1)]):
        writer = make_writer(transaction, indexes).indexes
        assert writer is not None
        writer.note(order)
        assert bool(writer._noted or writer._replaced) is is_noted


def test_entries_are_kept_in_a_file_through_reopening(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.shelf"
    engine = SqliteEngine.create(path)
    transaction = engine.begin()
    write_states(transaction, IndexStates((IndexState(INDEXES[0], "built"),)))
    transaction.commit()
    for body in (users(200), users(150)):
        transaction = engine.begin()
        kept = read_states(transaction).kept
        make_writer(transaction, kept).apply(make_put(Place(("u",)), body).changes)
        transaction.commit()
        engine.close()
        engine = SqliteEngine.open(path)
        engine.read(lambda view: check_entries(view, [INDEXES[0]]))
    assert engine.verify() == []
    engine.close()


def test_building_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "RUN_ENTRIES", 64)
    engine = MemoryEngine()
    transaction = engine.begin()
    NodeWriter(transaction).apply(make_put(Place(("u",)), users(300)).changes)
    state = IndexState(INDEXES[0], "building")
    steps = 0
    while state.stage == "building":
        state = IndexBuild(state).do_step(transaction, 64)  # nothing but the state is kept
        steps += 1
        write_states(transaction, IndexStates((state,)))
        assert read_states(transaction).states == (state,)
    assert steps > 3
    check_entries(transaction, [INDEXES[0]])


def test_children_are_entered_in_the_order_of_the_index_as_they_are_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexes, "RUN_ENTRIES", 200)
    transaction = MemoryEngine().begin()
    people: Any = {f"k{at:04}": {"age": at * 7 % 300, "name": "x" * 60} for at in range(300)}
    NodeWriter(transaction).apply(make_put(Place(("u",)), people).changes)
    build = IndexBuild(IndexState(INDEXES[0], "building"))
    while not (state := build.do_step(transaction, 50)).entered:
        pass
    assert state.entered == 50
    entered = list(transaction.scan_keys(*INDEXES[0].range))
    first = sorted(people, key=lambda key: (people[key]["age"], key))
    assert [key[-6:-1].decode() for key in entered] == [key for key in first if key < "k0256"][:50]
    make_writer(transaction, [INDEXES[0]]).apply(
        make_patch(
            ("u",), {"k0199/age": -1, "k0198": None, "k0001/age": 500, "new": {"age": 1}}
        ).changes
    )
    while state.stage == "building":
        assert build.continues(state)
        state = build.do_step(transaction, 50)
    check_entries(transaction, [INDEXES[0]])


def test_a_step_of_building_that_was_not_committed_is_done_again() -> None:
    engine = MemoryEngine()
    transaction = engine.begin()
    NodeWriter(transaction).apply(make_put(Place(("u",)), users(300)).changes)
    transaction.commit()
    before = IndexState(INDEXES[0], "building")
    build = IndexBuild(before)
    transaction = engine.begin()
    while (after := build.do_step(transaction, 100)) == before:
        pass
    assert build.continues(after)
    transaction.rollback()
    assert not build.continues(before)


def test_a_run_that_was_gathered_before_the_index_was_declared_again_is_not_used() -> None:
    build = IndexBuild(IndexState(INDEXES[0], "building", since=1))
    assert build.continues(IndexState(INDEXES[0], "building", since=1))
    assert not build.continues(IndexState(INDEXES[0], "building", since=2))


def test_a_small_collection_has_no_entries() -> None:
    transaction = MemoryEngine().begin()
    writer = make_writer(transaction, INDEXES)
    writer.apply(make_put(Place(("u",)), {"a": {"age": 1}}).changes)
    assert list(transaction.scan(INDEX_FIRST, INDEX_END)) == []


def test_a_collection_that_its_priority_makes_too_long_for_one_row_gets_entries() -> None:
    transaction = MemoryEngine().begin()
    index = ChildIndex(("u",), order_named("age"))
    write_states(transaction, IndexStates((IndexState(index, "built"),)))
    children: Any = {f"k{number:03}": {"age": number} for number in range(216)}
    make_writer(transaction, [index]).apply(make_put(Place(("u",)), children).changes)
    assert not Nodes(transaction).is_spread(("u",))
    priority = make_put(Place(("u",), True), "p" * 900)
    make_writer(transaction, [index]).apply(priority.changes)
    assert Nodes(transaction).is_spread(("u",))
    assert not list(verify_indexes(transaction))


def test_the_cost_of_a_change_is_that_of_its_child() -> None:
    engine = MemoryEngine()
    transaction = engine.begin()
    indexes = [INDEXES[0]]
    make_writer(transaction, indexes).apply(make_put(Place(("u",)), users(2000)).changes)
    counting: Any = CountingTransaction(transaction)
    make_writer(counting, indexes).apply(make_put(Place(("u", "k0100", "age")), 99).changes)
    assert counting.scanned < 5
    check_entries(transaction, indexes)


def test_a_child_whose_row_is_damaged_can_be_replaced() -> None:
    engine = MemoryEngine()
    transaction = engine.begin()
    indexes = [INDEXES[0]]
    body = {**users(50), "k0010": {"age": 5, "name": "x" * 2000}}
    make_writer(transaction, indexes).apply(make_put(Place(("u",)), body).changes)
    key = next(key for key, raw in transaction.scan(b"", b"\x04") if len(raw) > 2000)
    transaction.put(key, b"damaged" * 300)
    change = make_put(Place(("u", "k0010")), {"age": 6, "name": "y"}).changes
    make_writer(transaction, indexes).apply(change)
    check_entries(transaction, indexes)


def test_states_are_read_as_they_were_written() -> None:
    transaction = MemoryEngine().begin()
    states = IndexStates(
        (
            IndexState(INDEXES[3], "building", BuildPosition(("g", "a", "m"), "x")),
            IndexState(INDEXES[0], "dropping"),
            IndexState(INDEXES[4], "building", BuildPosition(("z",))),
        )
    )
    write_states(transaction, states)
    assert read_states(transaction) == states
    write_states(transaction, IndexStates())
    assert read_states(transaction) == IndexStates()


def test_a_damaged_row_of_states_is_an_error() -> None:
    transaction = MemoryEngine().begin()
    write_states(transaction, IndexStates((IndexState(INDEXES[0], "built"),)))
    for content in (b"[1]", b"{"):
        transaction.put(b"\x06", seal(b"\x06", content))
        with pytest.raises(DamagedRow):
            read_states(transaction)


def test_an_index_is_found_by_path_and_order_once_it_is_built() -> None:
    states = IndexStates((IndexState(INDEXES[0], "built"), IndexState(INDEXES[3], "building")))
    assert states.find(("u",), order_named("age")) == INDEXES[0]
    assert states.find(("u",), order_named("name")) is None
    assert states.find(("x",), order_named("age")) is None
    assert states.find(("g", "a", "m"), order_named("n/d")) is None


@pytest.mark.parametrize("left", [0, 3])
def test_children_that_are_gone_when_they_would_be_entered_are_left_out(left: int) -> None:
    transaction = MemoryEngine().begin()
    NodeWriter(transaction).apply(make_put(Place(("u",)), users(300)).changes)
    state = IndexState(INDEXES[0], "building")
    build = IndexBuild(state)
    while not state.entered:
        state = build.do_step(transaction, 10)
    writer = make_writer(transaction, [INDEXES[0]])
    writer.apply(make_put(Place(("u",)), users(left) or None).changes)  # in one row, or nothing
    while state.stage == "building":
        state = build.do_step(transaction, 100)
    assert not list(transaction.scan_keys(*INDEXES[0].range))


def test_an_index_that_goes_on_keeps_its_place_among_the_others() -> None:
    first, second = (IndexState(index, "building") for index in INDEXES[:2])
    states = IndexStates((first, second))
    further = IndexState(first.index, "building", entered=10)
    assert states.with_state(further).states == (further, second)
    third = IndexState(INDEXES[2], "building")
    assert states.with_state(third).states == (first, second, third)


def write_groups(groups: int) -> Transaction:
    """Return a transaction with many groups, of which the last one has members of its own rows."""
    transaction = MemoryEngine().begin()
    small: Json = {f"k{at:05}": {"m": {"x": 1}, "text": "x" * 40} for at in range(groups)}
    NodeWriter(transaction).apply(make_put(Place(("g",)), small).changes)
    changes = make_put(Place(("g", "z", "m")), {f"a{at}": {"n": {"d": at}} for at in range(200)})
    NodeWriter(transaction).apply(changes.changes)
    return transaction


def count_steps(work: Callable[[], object]) -> int:
    return sum(1 for _ in in_steps(work))


def test_the_search_for_collections_pauses_where_there_are_none() -> None:
    nodes = Nodes(write_groups(2000))
    found: list[Path] = []
    pattern = ("g", None, "m")
    assert count_steps(lambda: found.extend(find_collections(nodes, pattern, ()))) >= 2000 // 256
    assert found == [("g", "z", "m")]


def test_a_step_of_building_visits_no_more_than_its_budget() -> None:
    transaction = write_groups(2000)
    state, steps = IndexState(INDEXES[3], "building"), 0
    build = IndexBuild(state)
    while state.stage == "building":
        state = build.do_step(transaction, 100)
        steps += 1
    assert steps >= 2000 // 100
    check_entries(transaction, [INDEXES[3]])


def test_removing_entries_pauses() -> None:
    transaction = MemoryEngine().begin()
    make_writer(transaction, INDEXES[:1]).apply(make_put(Place(("u",)), users(2000)).changes)
    assert count_steps(lambda: drop_some(transaction, INDEXES[0], 2000)) >= 2000 // 256
    assert not list(transaction.scan_keys(*INDEXES[0].range))
