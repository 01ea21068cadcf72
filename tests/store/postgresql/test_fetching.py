"""When a copy follows the commits, and when it is replaced as a whole."""

from __future__ import annotations

import pathlib

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import DaemonSide
from treedbd.store.cursors import CURSOR_FIRST, Cursor, put_cursor
from treedbd.store.postgresql import fetching
from treedbd.store.postgresql.cluster import trim


def test_a_new_copy_has_all_rows(one: DaemonSide, tmp_path: pathlib.Path) -> None:
    one.put(*((b"%03d" % number, b"x" * number) for number in range(300)), op=b"first")
    one.put((b"a", b"1"), op=b"second")
    with one.beside(tmp_path / "new") as new:
        assert new.rows() == one.rows()
        assert new.log() == one.log()
        assert new.engine.position == one.engine.position
        new.put((b"a", b"2"))
        assert new.log()[-1].sequence == 3


def test_a_sleeping_daemon_below_the_trimmed_commits_takes_all_rows(
    one: DaemonSide, other: DaemonSide
) -> None:
    other.put((b"old", b"1"), (b"same", b"1"), op=b"op0")
    one.engine.catch_up()
    transaction = one.engine.begin()
    transaction.delete(b"old")
    transaction.append(b"op1", b"entry")
    transaction.commit()
    for number in range(2, 12):
        one.put((b"%03d" % number, b"new"), op=b"op%d" % number)
    assert trim(one.cluster.pool, one.db, retain=3, age_s=0) > 0
    assert other.engine.catch_up().is_whole
    assert other.rows() == one.rows()
    assert [entry.op_id for entry in other.log()] == [b"op8", b"op9", b"op10", b"op11"]
    other.put((b"a", b"1"))
    assert other.log()[-1].sequence == 13
    assert not one.engine.catch_up().is_whole


def test_a_copy_that_lacks_very_many_commits_takes_all_rows(
    one: DaemonSide, other: DaemonSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_FOLLOWED", 3)
    for number in range(3):
        one.put((b"a", b"%d" % number))
    assert not other.engine.catch_up().is_whole
    for number in range(4):
        one.put((b"b", b"%d" % number))
    assert other.engine.catch_up().is_whole
    assert other.rows() == one.rows()
    assert other.log() == one.log()


def test_a_copy_that_lacks_very_long_entries_takes_all_rows_and_the_newest_entries(
    one: DaemonSide, other: DaemonSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ENTRY_BYTES", 300)
    for number in range(5):
        one.put((b"k%d" % number, b"v"), op=b"x" * 100)
    assert other.engine.catch_up().is_whole
    assert other.rows() == one.rows()
    assert [each.sequence for each in other.log()] == [4, 5]
    one.put((b"a", b"b"))
    assert not other.engine.catch_up().is_whole


def test_trimming_keeps_what_is_young_and_the_last_commit(
    one: DaemonSide, other: DaemonSide
) -> None:
    for number in range(5):
        one.put((b"a", b"%d" % number))
    assert trim(one.cluster.pool, one.db, retain=0, age_s=3600) == 0
    assert trim(one.cluster.pool, one.db, retain=0, age_s=0) == 8
    assert trim(one.cluster.pool, one.db, retain=0, age_s=0) == 0
    assert other.engine.catch_up().is_whole
    assert not one.engine.catch_up().is_whole  # it has the last commit, which is there
    one.put((b"a", b"6"))
    assert not other.engine.catch_up().is_whole
    assert other.rows() == {b"a": b"6"}


def test_a_copy_keeps_about_as_many_entries_as_it_should(
    lone_server: PostgresqlServers, tmp_path: pathlib.Path
) -> None:
    with (
        DaemonSide(lone_server.dsn, tmp_path / "one", retain=4) as one,
        one.beside(tmp_path / "other") as other,
    ):
        for number in range(10):
            one.put((b"a", b"%d" % number))
        other.engine.catch_up()
        assert [entry.sequence for entry in other.log()] == [6, 7, 8, 9, 10]
        with one.beside(tmp_path / "new") as new:
            assert [entry.sequence for entry in new.log()] == [7, 8, 9, 10]


def put_cursor_at(side: DaemonSide, sequence: int, dropped_ms: int | None = None) -> None:
    """Let a reader of the log have come so far."""
    cursor = Cursor("archive", sequence, b"op", True, 0, 0, 0, dropped_ms)
    transaction = side.engine.begin()
    put_cursor(transaction, cursor)
    transaction.commit()


def stored_numbers(server: PostgresqlServers, side: DaemonSide) -> list[int]:
    statement = "SELECT seq FROM treedb.log WHERE db = %s ORDER BY seq"
    return [number for (number,) in server.primary.query(statement, (side.db,))]


def test_the_log_is_not_trimmed_below_a_cursor_and_a_new_copy_has_all_from_there(
    lone_server: PostgresqlServers, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ENTRY_BYTES", 100)
    monkeypatch.setattr(fetching, "_HELD_AT_ONCE", 7)
    with DaemonSide(lone_server.dsn, tmp_path / "one", retain=2) as one:
        for number in range(10):
            one.put((b"a", b"%d" % number), op=b"op%d" % number)
        put_cursor_at(one, 3)
        assert trim(one.cluster.pool, one.db, retain=2, age_s=0) > 0
        assert stored_numbers(lone_server, one) == [3, 4, 5, 6, 7, 8, 9, 10]
        with one.beside(tmp_path / "new") as new:
            assert new.log() == one.log()[-8:]
            one.put((b"a", b"x"))
            assert not new.engine.catch_up().is_whole
            assert [entry.sequence for entry in new.log()] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
            put_cursor_at(new, 8)
            trim(new.cluster.pool, new.db, retain=2, age_s=0)
            assert stored_numbers(lone_server, one) == [8, 9, 10, 11]
            assert one.engine.catch_up().touched is not None
            put_cursor_at(one, 8, dropped_ms=1)
            trim(one.cluster.pool, one.db, retain=2, age_s=0)
            assert stored_numbers(lone_server, one) == [9, 10, 11]


def test_a_cursor_that_cannot_be_read_holds_nothing(
    one: DaemonSide, lone_server: PostgresqlServers
) -> None:
    for number in range(10):
        one.put((b"a", b"%d" % number))
    put_cursor_at(one, 3)
    one.put((CURSOR_FIRST + b"archive", b"damaged"), op=None)
    trim(one.cluster.pool, one.db, retain=2, age_s=0)
    assert stored_numbers(lone_server, one) == [8, 9, 10]


@pytest.mark.parametrize(("missing", "found"), [(5, [6, 7, 8]), (8, [])])
def test_of_a_log_with_a_gap_a_new_copy_has_what_is_above_it(
    one: DaemonSide,
    lone_server: PostgresqlServers,
    tmp_path: pathlib.Path,
    missing: int,
    found: list[int],
) -> None:
    for number in range(8):
        one.put((b"a", b"%d" % number))
    put_cursor_at(one, 3)
    lone_server.primary.query(
        "DELETE FROM treedb.log WHERE db = %s AND seq = %s", (one.db, missing)
    )
    with one.beside(tmp_path / "new") as new:
        assert [entry.sequence for entry in new.log()] == found
        new.put((b"a", b"x"))
        assert new.log()[-1].sequence == 9


def take_back(server: PostgresqlServers, side: DaemonSide, rev: int) -> None:
    """Make the cluster as if it had been restored from the time after commit `rev`."""
    query = server.primary.query
    query("DELETE FROM treedb.changes WHERE db = %s AND rev > %s", (side.db, rev))
    query("DELETE FROM treedb.log WHERE db = %s AND seq > %s", (side.db, rev))
    query("UPDATE treedb.dbs SET rev = %s, seq = %s WHERE db = %s", (rev, rev, side.db))
    query("DELETE FROM treedb.kv WHERE db = %s AND k > %s", (side.db, b"%03d" % rev))


@pytest.mark.parametrize("more", [0, 2, 5])
def test_a_copy_of_another_history_is_replaced(
    one: DaemonSide,
    other: DaemonSide,
    lone_server: PostgresqlServers,
    tmp_path: pathlib.Path,
    more: int,
) -> None:
    """The restored cluster is behind the copy, or as far, or has come further."""
    for number in range(1, 5):
        one.put((b"%03d" % number, b"lost"), op=b"op%d" % number)
    take_back(lone_server, one, 2)
    with one.beside(tmp_path / "after") as after:
        for number in range(more):
            after.put((b"%03d" % (50 + number), b"new"), op=b"new%d" % number)
        assert one.engine.catch_up().is_whole
        assert one.rows() == after.rows() == one.stored_rows(lone_server.primary)
        assert one.log() == after.log()
        one.put((b"z", b"1"), op=b"z")
        assert one.log()[-1].sequence == 3 + more


def test_a_copy_of_another_cluster_is_replaced(
    one: DaemonSide, lone_server: PostgresqlServers
) -> None:
    one.put((b"a", b"1"))
    one.cluster.cluster = b"another cluster."  # type: ignore[misc]
    one.reopen()
    lone_server.primary.query("DELETE FROM treedb.kv WHERE db = %s", (one.db,))
    assert one.engine.catch_up().is_whole
    assert one.rows() == {}


def test_a_lost_end_of_the_copy_is_fetched_again(
    one: DaemonSide, other: DaemonSide, tmp_path: pathlib.Path
) -> None:
    """As after a power failure: PostgreSQL has committed, the copy has not."""
    one.put((b"a", b"1"))
    one.engine.close()
    path = one.engine.path
    kept = {each: each.read_bytes() for each in path.parent.iterdir()}
    one.open_copy()
    one.put((b"a", b"2"))
    one.put((b"b", b"2"))
    one.engine.close()
    for each in path.parent.iterdir():
        each.unlink()
    for each, content in kept.items():
        each.write_bytes(content)
    one.open_copy()
    assert one.rows() == {b"a": b"1"}
    assert not one.engine.catch_up().is_whole
    assert one.rows() == {b"a": b"2", b"b": b"2"}
    one.put((b"c", b"3"))
