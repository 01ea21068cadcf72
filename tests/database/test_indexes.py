"""The life of indexes: built when rules declare them, dropped when they do not."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from twisted.internet.defer import Deferred

from tests.database.world import Disk, World
from tests.examples import examples
from tests.store.index_checks import check_entries
from treedbd.database import apply as indexes
from treedbd.database.database import Database
from treedbd.database.group_commit import SPACE_CHECK_S
from treedbd.database.requests import Outcome
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.store import indexes as store_indexes
from treedbd.store.engine import DiskFull, ReadView
from treedbd.store.indexes import ChildIndex, order_named, read_states
from treedbd.store.memory import MemoryEngine
from treedbd.store.select import iterate_selected
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.query import Bound, Query
from treedbd.tree.types import Place
from treedbd.tree.value import members

AGE, NAME = order_named("age"), order_named("name")


def rules_with(*names: str, path: str = "users") -> RuleSet:
    """Return rules that declare indexes of a path."""
    return parse_rules(json.dumps({"rules": {path: {".indexOn": list(names)}}}))


def users(count: int, start: int = 0) -> Any:
    return {
        f"u{at:05}": {"age": at % 50, "name": f"n{at % 9}" + "x" * 40}
        for at in range(start, start + count)
    }


class IndexedWorld(World):
    """Its rules declare indexes."""

    def declare(self, rules: RuleSet) -> None:
        """Put rules in force."""
        self.rules.current = rules
        self.database.recheck_grants()

    def kept(self) -> tuple[ChildIndex, ...]:
        return self.engine.read(read_states).kept

    def check(self) -> None:
        """Assert that all indexes are built, and right."""

        def check(view: ReadView) -> None:
            states = read_states(view)
            assert all(each.stage == "built" for each in states.states)
            check_entries(view, states.kept)

        self.engine.read(check)


def test_an_index_is_built_when_rules_declare_it_and_dropped_when_they_do_not() -> None:
    world = IndexedWorld()
    world.write(make_put(Place(("users",)), users(300)))
    world.declare(rules_with("age", "name"))
    world.clock.run()
    assert set(world.kept()) == {ChildIndex(("users",), AGE), ChildIndex(("users",), NAME)}
    world.check()
    world.declare(rules_with("name"))
    world.clock.run()
    assert world.kept() == (ChildIndex(("users",), NAME),)
    world.check()
    world.declare(rules_with())
    world.clock.run()
    assert world.kept() == ()
    world.check()


def test_an_index_declared_before_the_first_write_is_kept_from_then_on() -> None:
    world = IndexedWorld()
    world.declare(rules_with("age"))
    world.clock.run()
    assert world.kept() == ()
    world.write(make_put(Place(("users",)), users(100)))
    assert world.kept() == (ChildIndex(("users",), AGE),)
    world.check()


def test_the_indexes_of_an_empty_database_are_complete_with_its_first_write() -> None:
    world = IndexedWorld(disk=Disk())
    world.declare(rules_with("age", "name"))
    world.begin(make_put(Place(("users",)), users(100)))
    world.clock.run()
    world.disk.finish()  # the first commit
    assert set(world.kept()) == {ChildIndex(("users",), AGE), ChildIndex(("users",), NAME)}
    world.check()
    world.clock.run()
    assert not world.disk.waiting
    assert not world.database.indexes.is_changing


def test_nothing_is_written_for_rules_without_indexes() -> None:
    world = IndexedWorld()
    world.write(make_put(Place(("users",)), users(100)))
    assert world.engine.read(lambda view: view.get(b"\x06")) is None


def test_writes_go_on_while_an_index_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "STEP_CHILDREN", 10)
    world = IndexedWorld(disk=Disk())
    done: list[Any] = []

    def write(edit: Edit) -> Deferred[Outcome]:
        return world.begin(edit).addBoth(done.append)

    write(make_put(Place(("users",)), users(200)))
    world.clock.run()
    world.disk.finish()
    world.declare(rules_with("age"))
    for at in range(30):
        write(make_patch(("users",), users(3, start=at * 9 + 150)))
        world.clock.run()
        world.disk.finish()
        world.clock.run()
        if world.disk.waiting:
            world.disk.finish()
    while world.disk.waiting or world.database.is_writing:
        world.clock.run()
        if world.disk.waiting:
            world.disk.finish()
    assert len(done) == 31
    world.check()
    assert world.kept() == (ChildIndex(("users",), AGE),)


def test_an_index_that_is_declared_again_while_it_is_dropped_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexes, "STEP_CHILDREN", 10)
    world = IndexedWorld()
    world.write(make_put(Place(("users",)), users(200)))
    world.declare(rules_with("age"))
    world.clock.run()
    world.declare(rules_with())
    for _ in range(4):
        world.clock.take_turn()
    assert world.engine.read(read_states).states[0].stage == "dropping"
    world.declare(rules_with("age"))
    world.clock.run()
    world.check()
    assert world.kept() == (ChildIndex(("users",), AGE),)


def test_building_goes_on_after_a_crash(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "STEP_CHILDREN", 10)
    file = tmp_path / "x.shelf"
    world = IndexedWorld(SqliteEngine.create(file))
    world.write(make_put(Place(("users",)), users(200)))
    world.declare(rules_with("age"))

    def is_under_way() -> bool:
        states = world.engine.read(read_states).states
        return bool(states) and states[0].entered > 0

    world.clock.run_until(is_under_way)
    world.database.close_at_once()
    world = IndexedWorld(SqliteEngine.open(file))
    world.rules.current = rules_with("age")
    world.database.indexes.check()
    world.clock.run()
    world.check()
    assert world.kept() == (ChildIndex(("users",), AGE),)
    world.database.close_at_once()


def test_an_index_that_cannot_be_built_is_given_up_and_writes_go_on() -> None:
    engine = MemoryEngine()
    world = IndexedWorld(engine)
    world.write(make_put(Place(("users",)), users(100)))
    transaction = engine.begin()
    key = next(transaction.scan_keys(b"\x03users", b"\x04"))
    transaction.put(key, b"damaged")
    transaction.commit()
    world.declare(rules_with("age"))
    world.clock.run()
    assert engine.read(read_states).states[0].stage == "building"
    world.write(make_put(Place(("other",)), 1))


def test_a_step_that_fails_leaves_no_child_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = IndexedWorld()
    world.write(make_put(Place(("users",)), users(1000)))
    left, enter = [3], store_indexes.enter

    def fill_disk(*entries: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise DiskFull("the test says so")
        enter(*entries)

    monkeypatch.setattr(store_indexes, "enter", fill_disk)
    monkeypatch.setattr(indexes, "STEP_CHILDREN", 300)
    world.declare(rules_with("age"))
    world.clock.run()
    assert left == [0]
    for _ in range(10):
        world.clock.advance(SPACE_CHECK_S)
        world.clock.run()
    world.check()


@pytest.mark.parametrize("name", ["a$b", "", "a//", "a" * 2000])
def test_a_declared_name_that_is_no_path_is_left_out(name: str) -> None:
    world = IndexedWorld()
    world.declare(rules_with(name, "age"))
    world.write(make_put(Place(("users",)), users(10)))
    assert ChildIndex(("users",), AGE) in world.kept()
    assert len(world.kept()) <= 2


class IndexLife(RuleBasedStateMachine):
    """Writes, changes of rules, turns and crashes; every query equals brute force."""

    @initialize()
    def begin(self) -> None:
        self.world = IndexedWorld()
        self.declared = rules_with()

    @rule(at=st.integers(0, 60), count=st.integers(1, 30), age=st.integers(0, 3))
    def patch(self, at: int, count: int, age: int) -> None:
        body: Any = {
            f"u{key:03}": {"age": age + key % 3, "text": "x" * 90} for key in range(at, at + count)
        }
        self.world.begin(make_patch(("users",), body)).addErrback(print)

    @rule(at=st.integers(0, 90), age=st.one_of(st.none(), st.integers(0, 3), st.text(max_size=2)))
    def set_age(self, at: int, age: Any) -> None:
        edit = make_put(Place(("users", f"u{at:03}", "age")), age)
        self.world.begin(edit).addErrback(print)

    @rule(body=st.sampled_from([None, users(5), users(120), 7]))
    def replace(self, body: Any) -> None:
        edit = make_put(Place(("users",)), body)
        self.world.begin(edit).addErrback(print)

    @rule(names=st.sets(st.sampled_from(["age", "name", ".value"])))
    def declare(self, names: set[str]) -> None:
        self.declared = rules_with(*names)
        self.world.declare(self.declared)

    @rule(turns=st.integers(1, 6))
    def take_turns(self, turns: int) -> None:
        for _ in range(turns):
            self.world.clock.take_turn()

    @rule()
    def restart(self) -> None:
        self.world = IndexedWorld(self.world.engine)
        self.world.rules.current = self.declared
        self.world.engine.read(lambda view: None)

    @invariant()
    def queries_are_right(self) -> None:
        def check(nodes: Any) -> None:
            children = list(members(nodes.get(("users",))))
            for query in (
                Query(AGE, limit_to_last=5),
                Query(AGE, Bound(1, None, True), Bound(2, "u050", True)),
                Query(NAME, limit_to_first=4),
            ):
                found = iterate_selected(nodes, ("users",), query)
                keys = [child.key for child in found if child is not None]
                assert keys == [key for key, _ in query.select(children)]

        self.world.database.read(check)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.database.indexes.rules_changed()
            self.world.database.indexes.check()
            self.world.clock.run()
            self.world.check()


TestIndexLife = IndexLife.TestCase
TestIndexLife.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)


def test_a_database_knows_the_stage_of_an_index() -> None:
    world = IndexedWorld()
    world.write(make_put(Place(("users",)), users(100)))
    database: Database = world.database
    assert database.indexes.stage_of(("users",), AGE) == "none"
    world.declare(rules_with("age"))
    world.clock.run()
    assert database.indexes.stage_of(("users",), AGE) == "built"
    assert not database.indexes.is_changing


class BuildingWorld(IndexedWorld):
    """An index of a large collection is being built, as far as the disk lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(indexes, "STEP_CHILDREN", 100)
        monkeypatch.setattr(indexes, "SHORT_ROWS", 8)
        super().__init__(disk=Disk())
        for path, count in (("users", 1000), ("few", 50)):
            self.begin(make_put(Place((path,)), users(count)))
            self.clock.run()
            self.disk.finish_all()
        self.clock.run()
        rules = {path: {".indexOn": ["age"]} for path in ("users", "few")}
        self.declare(parse_rules(json.dumps({"rules": rules})))
        self.clock.run()

    @property
    def is_built(self) -> bool:
        return self.database.indexes.stage_of(("users",), AGE) == "built"

    def advance(self, seconds: float) -> None:
        """Let time pass without the disk."""
        for _ in range(round(seconds / indexes.LOOK_S)):
            self.clock.advance(indexes.LOOK_S)

    def build_some(self) -> None:
        """Let the disk finish one step."""
        self.disk.finish()
        self.clock.run()
        self.advance(indexes.LOOK_S)


@pytest.fixture
def building(monkeypatch: pytest.MonkeyPatch) -> BuildingWorld:
    world = BuildingWorld(monkeypatch)
    world.disk.finish()  # the step that says what is to be built
    world.clock.run()
    return world


def test_queries_of_a_large_collection_wait_until_their_index_is_built(
    building: BuildingWorld,
) -> None:
    database_indexes = building.database.indexes
    assert database_indexes.must_wait(("users",), AGE)
    assert not database_indexes.must_wait(("few",), AGE)
    assert not database_indexes.must_wait(("users",), NAME)
    assert not database_indexes.must_wait(("others",), AGE)
    done: list[None] = []
    waiting = [database_indexes.wait_for(("users",), AGE) for _ in range(3)]
    left = database_indexes.wait_for(("users",), AGE)
    for each in waiting:
        each.addCallback(done.append)
    left.addErrback(lambda _: None)
    left.cancel()
    steps = 0
    while not building.is_built:
        assert not done
        building.build_some()
        steps += 1
    building.advance(indexes.LOOK_S)
    assert done == [None] * 3
    assert steps >= 1000 / 100
    assert not database_indexes.must_wait(("users",), AGE)
    building.disk.finish_all()
    assert not building.clock.getDelayedCalls()


def test_queries_do_not_wait_for_a_build_that_does_not_go_on(building: BuildingWorld) -> None:
    done: list[None] = []
    building.advance(2 * indexes.STUCK_S)
    building.database.indexes.wait_for(("users",), AGE).addCallback(done.append)
    building.advance(indexes.STUCK_S - 1)
    building.build_some()
    building.advance(indexes.STUCK_S - 1)
    assert not done
    building.advance(2)
    assert done == [None]
    assert not building.is_built


def test_queries_do_not_wait_for_a_database_that_is_closed(building: BuildingWorld) -> None:
    done: list[None] = []
    building.database.indexes.wait_for(("users",), AGE).addCallback(done.append)
    building.database.close()
    assert done == [None]
    assert building.database.indexes._next_look is None
