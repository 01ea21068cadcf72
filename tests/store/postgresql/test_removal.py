"""The deletion of a database in PostgreSQL: at once for all daemons, its rows afterwards."""

from __future__ import annotations

import pytest

from tests.store.postgresql.daemons import PROJECT, DaemonSide
from treedbd.names import DatabaseName
from treedbd.store.engine import Conflict
from treedbd.store.postgresql.connection import TimedConnection, rows_of
from treedbd.store.postgresql.fetching import DatabaseMissing
from treedbd.store.postgresql.removal import delete_database, remove_left_rows

TABLES = ("kv", "log", "changes")


def count_rows(side: DaemonSide, db: int) -> list[int]:
    """Return how many rows each table has of a database."""

    def count(connection: TimedConnection) -> list[int]:
        statements = [f"SELECT count(*) FROM {table} WHERE db = %s" for table in TABLES]
        return [rows_of(connection, statement, (db,))[0][0] for statement in statements]

    return side.cluster.pool.run(count)


def test_a_deleted_database_is_found_by_no_daemon(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"k1", b"v"))
    other.engine.catch_up()
    delete_database(one.cluster.pool, DatabaseName(PROJECT, one.name))
    assert other.cluster.projects.find_database(PROJECT, one.name) is None
    assert one.db not in other.ask(one.db)
    with pytest.raises(DatabaseMissing):
        other.engine.catch_up()


def test_a_commit_after_it_is_lost(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"k1", b"v"))
    other.engine.catch_up()
    delete_database(one.cluster.pool, DatabaseName(PROJECT, one.name))
    with pytest.raises((Conflict, DatabaseMissing)):
        other.put((b"k2", b"v"))


def test_its_rows_are_removed_whichever_daemon_goes_on(one: DaemonSide, other: DaemonSide) -> None:
    for number in range(30):
        one.put((b"k%03d" % number, b"v"))
    before = count_rows(one, one.db)
    assert min(before) >= 30
    delete_database(one.cluster.pool, DatabaseName(PROJECT, one.name))
    assert count_rows(one, one.db) == before  # a process that dies here leaves them
    remove_left_rows(other.cluster.pool)
    assert count_rows(one, one.db) == [0, 0, 0]
    remove_left_rows(one.cluster.pool)


def test_the_next_one_of_the_name_is_another(one: DaemonSide) -> None:
    one.put((b"k1", b"v"))
    name = DatabaseName(PROJECT, one.name)
    delete_database(one.cluster.pool, name)
    again = one.cluster.projects.create_database(PROJECT, one.name)
    assert (again.db != one.db, again.seq, again.rev) == (True, 0, 0)
    remove_left_rows(one.cluster.pool)
    assert one.cluster.projects.find_database(PROJECT, one.name) == again


def test_one_that_does_not_exist_is_deleted_without_effect(one: DaemonSide) -> None:
    delete_database(one.cluster.pool, DatabaseName(PROJECT, "never-there"))
    assert one.cluster.projects.find_database(PROJECT, one.name) is not None
