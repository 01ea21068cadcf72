"""Comparing a file with what PostgreSQL holds finds every difference, and repairs it."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import DaemonSide
from treedbd.store.engine import ReadView
from treedbd.store.postgresql import moving as comparison
from treedbd.store.postgresql.commits import POSITION_KEY
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.moving import (
    LOG,
    ROWS,
    ComparedTable,
    MoveConnection,
    find_different,
    repair,
    take_buckets,
)
from treedbd.store.sqlite.engine import SqliteEngine


@pytest.fixture
def move(one: DaemonSide) -> Iterator[MoveConnection]:
    with MoveConnection(PostgresqlSettings(one.dsn)) as connection:
        yield connection


@pytest.fixture
def file(tmp_path: pathlib.Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine.create(tmp_path / "file.shelf", reserve_bytes=4096)
    yield engine
    engine.close()


@pytest.fixture(params=[1, 3, 2000])
def records_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "RECORDS", request.param)
    monkeypatch.setattr(comparison, "BUCKETS", 2)


def compare(
    move: MoveConnection, table: ComparedTable, engine: SqliteEngine, db: int, *, repairs: bool
) -> int:
    """Compare all of a table; return how many buckets, or records, differ."""

    def read(view: ReadView) -> list[comparison.Bucket]:
        low, every = table.first, []
        while low is not None:
            buckets, low = take_buckets(table, view, low)
            every += buckets
        return every

    buckets = engine.read(read)
    different = move.run(lambda connection: find_different(connection, table, db, buckets))
    if not repairs:
        return len(different)
    return move.run(
        lambda connection: sum(repair(connection, table, db, each) for each in different)
    )


@pytest.mark.usefixtures("records_at_once")
def test_rows_become_those_of_the_file(
    one: DaemonSide, move: MoveConnection, file: SqliteEngine, lone_server: PostgresqlServers
) -> None:
    chance = random.Random(7)
    for number in range(12):
        transaction = file.begin()
        transaction.put(POSITION_KEY, b"of the file alone")
        for _ in range(chance.randrange(6)):
            key = bytes([chance.randrange(20)]) * chance.randrange(1, 3)
            if chance.random() < 0.3:
                transaction.delete(key)
            else:
                transaction.put(key, chance.randbytes(chance.randrange(9)))
        transaction.commit()
        before = one.stored_rows(lone_server.primary)
        wanted = file.read(lambda view: dict(view.scan(b"", POSITION_KEY)))
        expected = len(before.items() ^ wanted.items()) - sum(
            before.get(key, value) != value for key, value in wanted.items()
        )
        assert bool(compare(move, ROWS, file, one.db, repairs=False)) == (before != wanted), number
        assert compare(move, ROWS, file, one.db, repairs=True) == expected
        assert one.stored_rows(lone_server.primary) == wanted
        assert compare(move, ROWS, file, one.db, repairs=False) == 0


@pytest.mark.usefixtures("records_at_once")
def test_entries_become_those_of_the_file(
    one: DaemonSide, move: MoveConnection, file: SqliteEngine, lone_server: PostgresqlServers
) -> None:
    for first in (1, 4):
        transaction = file.begin()
        for number in range(first, first + 3):
            transaction.append(b"op %d" % number, b"x" * number)
        transaction.trim(first - 1)
        transaction.commit()
        lone_server.primary.query("UPDATE treedb.log SET op = 'another' WHERE seq = %s", (first,))
        assert compare(move, LOG, file, one.db, repairs=True) == (3 if first == 1 else 6)
        stored = lone_server.primary.query(
            "SELECT seq, op, entry FROM treedb.log WHERE db = %s ORDER BY seq", (one.db,)
        )
        assert stored == file.read(lambda view: list(view.entries(0)))
        assert compare(move, LOG, file, one.db, repairs=False) == 0


def test_what_is_divided_otherwise_is_not_equal(
    one: DaemonSide, move: MoveConnection, file: SqliteEngine
) -> None:
    """The digest knows where a key ends and its value begins."""
    transaction = file.begin()
    transaction.put(b"ab", b"c")
    transaction.commit()
    one.put((b"a", b"bc"), op=None)
    assert compare(move, ROWS, file, one.db, repairs=False) == 1


def test_long_records_end_a_bucket(file: SqliteEngine) -> None:
    transaction = file.begin()
    for number in range(4):
        transaction.put(bytes([number]), b"x" * comparison.BUCKET_BYTES)
    transaction.commit()
    buckets, rest = file.read(lambda view: take_buckets(ROWS, view, ROWS.first))
    assert [len(each.records) for each in buckets] == [1, 1, 1, 1]
    assert [each.low for each in buckets] == [b"", b"\x01", b"\x02", b"\x03"]
    assert [each.high for each in buckets] == [b"\x01", b"\x02", b"\x03", POSITION_KEY]
    assert rest is None
