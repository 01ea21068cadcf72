"""How far readers of change logs are, and the problem of one that lost its place."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

from twisted.internet.defer import Deferred

from tests.cursors import CREATED_MS, begin_reader
from tests.database.catalogs import (
    ANONYMOUS,
    PROJECT,
    close,
    find,
    make_catalog,
    problems,
    put,
    use,
)
from tests.database.world import Disk, TurnClock, run_at_once
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.log_reader import remove_cursor
from treedbd.database.open_databases import SWEEP_S, UNUSED_S
from treedbd.database.reader_lags import CLOSED_S, LOOK_S, SHARE
from treedbd.database.requests import Write
from treedbd.store.cursors import CURSOR_FIRST, Lag
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

LOST = (
    "The reader archive of the change log has lost its place at 2023-11-14T22:13:20Z: it has to "
    "begin again with all data. If it is not used any more, remove its cursor (treedb cursors "
    "--remove archive)."
)


def reader_in(
    catalog: Catalog, clock: TurnClock, name: str, *, dropped_ms: int | None = None
) -> Database:
    """Return a database with one write and a reader, which has read it."""
    database = find(catalog, name)
    put(database, clock, 1)
    begin_reader(database, dropped_ms=dropped_ms)
    clock.run()
    return database


def lags_of(catalog: Catalog, clock: TurnClock) -> dict[str, Lag]:
    """Look, later than the last time, and return the largest lags."""
    clock.advance(LOOK_S)
    problems(catalog)
    return dict(catalog.statistics.reader_lags)


def reasons(catalog: Catalog, clock: TurnClock) -> list[tuple[str | None, str, bool]]:
    clock.advance(LOOK_S)
    return [(each.database, each.reason, each.refuses_writes) for each in problems(catalog)]


def close_unused(clock: TurnClock, database: Database) -> None:
    """Let the time pass after which a database is closed that is not used."""
    for _ in range(int(UNUSED_S / SWEEP_S) + 2):
        clock.advance(SWEEP_S)
    assert not database.is_open


def test_the_largest_lag_of_each_reader_is_shown(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    one, other = (reader_in(catalog, clock, name) for name in ("a", "b"))
    begin_reader(other, "copy")
    clock.run()
    assert lags_of(catalog, clock) == {name: Lag(0, 0, 0.0) for name in ("archive", "copy")}
    for _ in range(3):
        put(one, clock, "x" * 100)
    put(other, clock, 2)
    lags = lags_of(catalog, clock)
    assert (lags["archive"].entries, lags["copy"].entries) == (3, 1)
    assert lags["archive"].bytes > 300
    assert lags["archive"].seconds > 0
    close(catalog)


def test_the_first_entry_that_is_not_read_is_read_once_for_its_time(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = reader_in(catalog, clock, "a")
    put(database, clock, 2)  # in 1970
    now = time.time_ns() // 1_000_000
    database.write(Write(make_put(Place(("a",)), 3), now, ANONYMOUS))
    clock.run()
    (first,) = catalog.readers.look(database)
    assert first.lag.seconds >= now / 1000
    engine = database._engine
    transaction = engine.begin()
    transaction.trim(2)
    transaction.commit()
    engine.advance()
    assert catalog.readers.look(database)[0].lag.seconds >= now / 1000
    begin_reader(database, sequence=2)
    clock.run()
    assert catalog.readers.look(database)[0].lag.seconds < now / 2000  # it has moved
    close(catalog)


def test_databases_are_not_looked_at_all_the_time(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = reader_in(catalog, clock, "a")
    assert lags_of(catalog, clock)["archive"].entries == 0
    put(database, clock, 2)
    problems(catalog)
    assert catalog.statistics.reader_lags["archive"].entries == 0
    assert lags_of(catalog, clock)["archive"].entries == 1
    clock.lag = LOOK_S / 4  # a look that takes so long is not repeated soon
    clock.advance(LOOK_S)
    catalog.find_problems()
    clock.run()
    clock.lag = 0.0
    put(database, clock, 3)
    assert lags_of(catalog, clock)["archive"].entries == 1
    clock.advance(SHARE * LOOK_S)
    assert lags_of(catalog, clock)["archive"].entries == 2
    close(catalog)


def test_a_reader_that_lost_its_place_is_a_problem_until_it_begins_again(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = reader_in(catalog, clock, "a", dropped_ms=CREATED_MS)
    assert reasons(catalog, clock) == [("a", LOST, False)]
    assert catalog.statistics.reader_lags == {}
    begin_reader(database)
    clock.run()
    assert reasons(catalog, clock) == []
    assert list(catalog.statistics.reader_lags) == ["archive"]
    close(catalog)


def test_it_is_a_problem_too_after_a_restart_and_while_its_database_is_closed(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    reader_in(catalog, clock, "a", dropped_ms=CREATED_MS)
    close(catalog)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    close_unused(clock, find(catalog, "a"))  # which was opened to be checked for damage
    assert reasons(catalog, clock) == []  # it was not used since the start
    database = find(catalog, "a")
    assert use(catalog, database) is None
    assert reasons(catalog, clock) == [("a", LOST, False)]
    close_unused(clock, database)
    assert reasons(catalog, clock) == [("a", LOST, False)]
    close(catalog)


def test_closed_databases_are_looked_at_again_one_after_the_other(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    databases = [reader_in(catalog, clock, name, dropped_ms=CREATED_MS) for name in ("a", "b")]
    assert len(reasons(catalog, clock)) == 2
    for each in databases:
        removing = remove_cursor(each, "archive", 0, clock.seconds() + 30)
        removed = Deferred.fromCoroutine(removing)
        clock.run()
        assert removed.called
    for each in databases:
        close_unused(clock, each)
    for left in (1, 1, 0):  # the second time too early
        assert len(problems(catalog)) == left
        clock.advance(CLOSED_S - 1 if left else 0)
    close(catalog)


def test_one_that_cannot_be_opened_does_not_keep_the_others_from_that(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    lost, other = (reader_in(catalog, clock, name, dropped_ms=CREATED_MS) for name in ("a", "b"))
    assert len(reasons(catalog, clock)) == 2
    for each in (lost, other):
        close_unused(clock, each)
    (tmp_path / "p" / "a.shelf").rename(tmp_path / "away")
    problems(catalog)
    assert not other.is_open
    clock.advance(CLOSED_S)
    problems(catalog)
    assert other.is_open
    (tmp_path / "away").rename(tmp_path / "p" / "a.shelf")
    close(catalog)


def test_a_database_that_is_being_closed_is_not_opened_for_a_look(tmp_path: pathlib.Path) -> None:
    disk = Disk()
    waits = False

    def run(work: Callable[[], None]) -> Deferred[None]:
        return disk.run(work) if waits else run_at_once(work)

    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=run)
    database = reader_in(catalog, clock, "a")
    waits = True
    close_unused(clock, database)
    problems(catalog)
    assert not database.is_open
    disk.finish_all()
    waits = False
    close(catalog)


def test_what_another_process_has_written_or_deleted_is_not_reported_here(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    databases = [reader_in(catalog, clock, name, dropped_ms=CREATED_MS) for name in ("a", "b")]
    assert len(reasons(catalog, clock)) == 2
    catalog.hinted(databases[0].name)
    assert len(problems(catalog)) == 2  # it is open here
    for each in databases:
        close_unused(clock, each)
    catalog.hinted(databases[0].name)
    assert [each.database for each in problems(catalog)] == ["b"]
    catalog.delete(databases[1].name)
    clock.run()
    assert problems(catalog) == []
    close(catalog)


def test_cursors_that_cannot_be_read_hide_nothing_else(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    broken = reader_in(catalog, clock, "a")
    reader_in(catalog, clock, "b", dropped_ms=CREATED_MS)
    engine = broken._engine
    transaction = engine.begin()
    transaction.put(CURSOR_FIRST + b"archive", b"no cursor")
    transaction.commit()
    engine.advance()
    assert reasons(catalog, clock) == [("b", LOST, False)]
    close(catalog)
