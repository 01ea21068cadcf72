"""Readers of the change log: each entry at least once, in order, after any stop."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.database.world import World, make_database
from treedbd.database.log_reader import (
    EARLY_ENTRIES,
    STORED_AFTER_S,
    CursorLost,
    LogReader,
    RemoveCursor,
    write_rows,
)
from treedbd.database.requests import TooManyCursors
from treedbd.limits import MAX_CURSORS, MIB
from treedbd.store.changelog import TRIM_EVERY, decode, is_whole
from treedbd.store.cursors import read_cursors
from treedbd.store.engine import LogEntry
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.types import Place


def reader_of(world: World, name: str = "reader", *, is_whole: bool = False) -> LogReader:
    return LogReader(world.database, world.runtime, name, is_whole=is_whole)


def do(world: World, coroutine: Any) -> Any:
    return world.wait(Deferred.fromCoroutine(coroutine))


def put(world: World, value: Any, *path: str) -> None:
    world.write(make_put(Place(path), value))


def read_all(reader: LogReader) -> list[LogEntry]:
    found: list[LogEntry] = []
    while entries := reader.read():
        found += entries
    return found


def began(world: World, name: str = "reader", **options: bool) -> LogReader:
    reader = reader_of(world, name, **options)
    assert do(world, reader.open()) is False
    assert do(world, reader.begin()) is None
    return reader


def test_a_reader_reads_each_entry_in_order_and_waits_at_the_end() -> None:
    world = World(retain_events=1)
    put(world, 0, "before")
    reader = began(world)
    assert reader.read() == []
    for number in range(500):
        put(world, number, "n")
    assert reader.count_unread() == 500
    entries = read_all(reader)
    assert [each.sequence for each in entries] == list(range(2, 502))
    assert [decode(each.content).sent for each in entries] == list(range(500))  # type: ignore[union-attr]
    assert reader.read() == []


def test_a_reader_that_keeps_positions_has_reached_any_entry() -> None:
    world = World(retain_events=1)
    began(world)
    for number in range(2 * TRIM_EVERY):
        put(world, number, "n")
    reader = LogReader(world.database, world.runtime, "reader", keeps_positions=True)
    assert do(world, reader.open()) is True
    entries = read_all(reader)
    for through in (2, 5):
        reader.reached(entries[through].sequence)
    with pytest.raises(ValueError, match="was not read, or was reached before"):
        reader.reached(entries[4].sequence)
    assert do(world, reader.save()) is None
    (cursor,) = world.database.read(lambda nodes: read_cursors(nodes.rows.stored))
    assert (cursor.sequence, cursor.op_id) == entries[5][:2]
    assert cursor.bytes_read == sum(len(each.content) for each in entries[:6])
    again = reader_of(world)
    assert do(world, again.open()) is True
    assert read_all(again) == entries[6:]
    reader.reached()
    assert do(world, reader.save()) is None
    assert do(world, again.open()) is True
    assert read_all(again) == []


def test_a_reader_continues_where_it_was_stored_and_not_where_it_had_read() -> None:
    world = World(retain_events=1)
    reader = began(world)
    put(world, 1, "a")
    read_all(reader)
    reader.reached()
    world.clock.advance(STORED_AFTER_S)
    world.clock.run()
    put(world, 2, "a")
    read_all(reader)
    reader.reached()  # and the process ends before it is stored
    reader.stop()
    again = reader_of(world)
    assert do(world, again.open()) is True
    assert [each.sequence for each in again.read()] == [2]
    again.reached()
    assert do(world, again.save()) is None
    third = reader_of(world)
    assert do(world, third.open()) is True
    assert third.read() == []


def test_a_cursor_never_moves_back_and_is_not_made_again_after_its_removal() -> None:
    world = World()
    slow, fast = began(world), reader_of(world)
    do(world, fast.open())
    put(world, 1)
    slow.read()
    slow.reached()
    put(world, 2)
    read_all(fast)
    fast.reached()
    do(world, fast.save())
    do(world, slow.save())
    (cursor,) = world.engine.read(read_cursors)
    assert cursor.sequence == 2
    do(world, write_rows(world.database, world.runtime, RemoveCursor("reader")))
    fast.reached()
    do(world, fast.save())
    assert world.engine.read(read_cursors) == []


def test_a_reader_whose_place_is_gone_has_to_begin_again() -> None:
    world = World(retain_events=1)
    reader = began(world)
    do(world, write_rows(world.database, world.runtime, RemoveCursor("reader")))
    for number in range(3 * TRIM_EVERY):
        put(world, number)
    with pytest.raises(CursorLost):
        reader.read()
    assert do(world, reader_of(world).open()) is False
    assert do(world, reader.begin()) is None
    assert reader.read() == []


def test_a_cursor_of_another_history_is_not_continued() -> None:
    world = World()
    reader = began(world)
    put(world, 1)
    reader.read()
    reader.reached()
    do(world, reader.save())
    transaction = world.engine.begin()
    entry = next(transaction.entries(0))
    transaction.trim(1)
    transaction.append(b"another", entry.content)
    transaction.commit()
    world.engine.advance()
    other = World(world.engine)
    assert do(other, reader_of(other).open()) is False


def test_long_bodies_are_in_the_log_while_a_reader_needs_them() -> None:
    world = World()
    text = "x" * MIB
    put(world, text, "before")
    reader = began(world, is_whole=True)
    put(world, text, "a")
    world.write(make_patch((), {"b": text}))
    entries = read_all(reader)
    assert [is_whole(each.content) for each in entries] == [True, True]
    assert [each.sequence for each in entries] == [2, 3]
    do(world, reader.remove())
    put(world, text, "c")
    contents = world.engine.read(lambda view: [each.content for each in view.entries(0)])
    assert [is_whole(each) for each in contents] == [False, True, True, False]


def test_a_database_has_a_bounded_number_of_readers() -> None:
    world = World()
    for number in range(MAX_CURSORS):
        began(world, f"reader-{number}")
    assert isinstance(do(world, reader_of(world).begin()), TooManyCursors)
    assert do(world, reader_of(world, "reader-1").begin()) is None
    put(world, 1)
    assert world.get() == 1


def test_who_listens_is_told_of_each_database_that_was_written() -> None:
    world = World()
    news: list[str] = []

    def note(name: Any) -> None:
        news.append(name.label)

    world.runtime.news.append(note)
    put(world, 1)
    assert news == [world.database.name.label]
    world.runtime.news.remove(note)
    put(world, 2)
    assert len(news) == 1


def test_a_reader_continues_in_the_next_process() -> None:
    world = World()
    reader = began(world)
    put(world, 1)
    later = World(world.engine)
    later.database = make_database(world.engine, later.runtime)
    again = reader_of(later)
    assert do(later, again.open()) is True
    assert [each.sequence for each in again.read()] == [1]
    assert reader.sequence == 0


@pytest.mark.parametrize("writes", [3, EARLY_ENTRIES + 100])
def test_a_reader_may_begin_before_the_newest_entries(writes: int) -> None:
    world = World(retain_events=EARLY_ENTRIES + 2 * TRIM_EVERY)
    for number in range(writes):
        put(world, number, "n")
    reader = reader_of(world, is_whole=True)
    do(world, reader.begin(is_early=True))
    first = max(1, writes - EARLY_ENTRIES + 2)  # after the first of them, which shows the history
    assert [each.sequence for each in read_all(reader)] == list(range(first, writes + 1))


def test_it_begins_after_entries_that_are_not_there_or_have_no_body() -> None:
    short = World(retain_events=1)
    for number in range(TRIM_EVERY + 2):
        put(short, number, "n")
    bodiless = World(retain_events=1000)
    for value in (1, "x" * MIB, 2):
        put(bodiless, value, "n")
    for world, first in ((short, TRIM_EVERY), (bodiless, 3)):
        reader = reader_of(world, is_whole=True)
        do(world, reader.begin(is_early=True))
        last = world.engine.read(lambda view: view.sequence())
        assert [each.sequence for each in read_all(reader)] == list(range(first, last + 1))
