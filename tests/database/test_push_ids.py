"""Push ids increase from one opening of a database to the next, whatever the clock does."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tests.database.world import make_active_rules, run_at_once
from treedbd.database.database import Database
from treedbd.database.requests import Caller, Outcome, ProjectSpec, Write
from treedbd.database.runtime import Runtime
from treedbd.names import DatabaseName
from treedbd.store import changelog
from treedbd.store.engine import Engine
from treedbd.store.memory import MemoryEngine
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

NOW = 1_700_000_000_000
HOUR = 3_600_000
RETAINED = [0, 10]


class Opening:
    """A database from its opening to its close."""

    def __init__(self, engine: Engine, retain_events: int = 10) -> None:
        self.clock = Clock()
        runtime = Runtime(self.clock, lambda length: b"\x7f" * length, run_at_once)
        rules = make_active_rules(run_at_once)
        project = ProjectSpec("demo")
        name = DatabaseName("demo")
        self.database = Database(name, engine, project, rules, runtime, retain_events)

    def make_key(self, now: int) -> str:
        return self.database.push_ids.next(now)

    def put(self, key: str, now: int) -> None:
        outcomes: list[Outcome] = []
        waiting = self.database.write(Write(make_put(Place((key,)), 1), now, Caller(None)))
        waiting.addCallback(outcomes.append)
        self.clock.advance(0)
        assert len(outcomes) == 1

    def push(self, now: int) -> str:
        key = self.make_key(now)
        self.put(key, now)
        return key

    def close(self) -> None:
        self.database.close()


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "data" / "demo" / "default.shelf"
    SqliteEngine.create(path, reserve_bytes=0).close()
    return path


def open_file(path: pathlib.Path, retain_events: int = 10) -> Opening:
    return Opening(SqliteEngine.open(path, reserve_bytes=0), retain_events)


@pytest.mark.parametrize("retain_events", RETAINED)
@pytest.mark.parametrize("later", [-HOUR, 0, 1])
def test_ids_increase_after_a_restart(path: pathlib.Path, retain_events: int, later: int) -> None:
    first = open_file(path, retain_events)
    before = [first.push(NOW) for _ in range(70)]
    first.close()
    second = open_file(path, retain_events)
    after = [second.push(NOW + later) for _ in range(3)]
    second.close()
    assert before + after == sorted({*before, *after})


@pytest.mark.parametrize("retain_events", RETAINED)
def test_ids_increase_if_the_last_write_is_older_than_the_last_id(
    path: pathlib.Path, retain_events: int
) -> None:
    first = open_file(path, retain_events)
    newest = first.make_key(NOW + 5)
    first.put(newest, NOW + 5)
    first.put("other", NOW)
    first.close()
    second = open_file(path, retain_events)
    assert second.push(NOW + 2) > newest
    second.close()


@pytest.mark.parametrize("retain_events", RETAINED)
def test_ids_increase_over_several_restarts_while_the_clock_is_behind(
    path: pathlib.Path, retain_events: int
) -> None:
    keys = []
    for number in range(5):
        opening = open_file(path, retain_events)
        opening.put("other", NOW - number * HOUR)
        if number % 2 == 0:
            keys.append(opening.push(NOW - number * HOUR))
        opening.close()
    assert keys == sorted(set(keys))


def test_writes_of_a_shelf_do_not_hide_a_later_id(path: pathlib.Path) -> None:
    tomorrow = 2**43  # later than the clock of this machine
    first = open_file(path)
    newest = first.push(tomorrow)
    first.close()
    for _ in range(2):
        with open_shelf(path, "w") as shelf:
            shelf["a"] = 1
            shelf["b"] = 1
    second = open_file(path)
    assert second.push(NOW) > newest
    second.close()


@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(NOW - 3, NOW + 3)), max_size=5), max_size=4
    )
)
def test_ids_increase_whatever_is_written_between_the_openings(
    openings: list[list[tuple[bool, int]]],
) -> None:
    engine = MemoryEngine()
    keys = []
    for writes in openings:
        opening = Opening(engine, 0)
        for is_push, now in writes:
            if is_push:
                keys.append(opening.push(now))
            else:
                opening.put("other", now)
    assert keys == sorted(set(keys))


def test_an_entry_says_when_the_newest_id_was_made_only_if_the_clock_is_behind(
    path: pathlib.Path,
) -> None:
    opening = open_file(path)
    opening.push(NOW)
    opening.put("other", NOW - 1)
    opening.put("other", NOW)
    opening.close()
    engine = SqliteEngine.open(path, reserve_bytes=0)
    contents = engine.read(lambda rows: [entry.content for entry in rows.entries(0)])
    engine.close()
    assert [b'"pushed":%d' % NOW in content for content in contents] == [False, True, False]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"time":"x"}', b'{"time":null}', b"\xff"])
def test_an_entry_that_is_not_valid_prevents_no_push(path: pathlib.Path, content: bytes) -> None:
    engine = SqliteEngine.open(path, reserve_bytes=0)
    transaction = engine.begin()
    transaction.append(b"op", content)
    transaction.commit()
    assert engine.read(changelog.push_time) == changelog.NOTHING_PUSHED
    engine.close()
    opening = open_file(path)
    assert len(opening.push(NOW)) == 20
    opening.close()
