"""Several daemons with one database: who commits, what copies hold, and what is refused."""

from __future__ import annotations

import pathlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import PROJECT, DaemonSide
from tests.system import wait_until
from treedbd.store.engine import Conflict, StoreUnreachable
from treedbd.store.postgresql.commits import Touched
from treedbd.store.postgresql.engine import LOSSES_BEFORE_LOCK
from treedbd.store.postgresql.fetching import DatabaseMissing


def test_the_loser_gets_a_conflict_catches_up_and_wins(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"a", b"1"), op=b"first")
    with pytest.raises(Conflict):
        other.put((b"a", b"2"), (b"b", b"2"), op=b"second")
    assert other.rows() == {}
    assert other.log() == []
    assert not other.engine.catch_up().is_whole
    assert other.rows() == {b"a": b"1"}
    other.put((b"a", b"2"), (b"b", b"2"), op=b"second")
    one.engine.catch_up()
    assert one.rows() == other.rows() == {b"a": b"2", b"b": b"2"}
    assert [entry[:2] for entry in one.log()] == [(1, b"first"), (2, b"second")]
    assert one.log() == other.log()


def test_commits_and_lost_ones_are_counted(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"a", b"1"))
    one.put((b"a", b"2"))
    for _ in range(3):
        with pytest.raises(Conflict):
            other.put((b"a", b"3"))
    other.engine.catch_up()
    other.put((b"a", b"3"))
    assert one.cluster.counts == (2, 0)
    assert other.cluster.counts == (1, 3)


def test_a_commit_without_an_entry_counts_too(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"\x05index", b"1"), op=None)
    with pytest.raises(Conflict):
        other.put((b"a", b"2"))
    other.engine.catch_up()
    assert other.rows() == {b"\x05index": b"1"}
    assert (other.engine.position.rev, other.log()) == (1, [])
    other.put((b"a", b"2"))
    assert [entry.sequence for entry in other.log()] == [1]


def test_a_transaction_that_changes_nothing_is_not_sent(one: DaemonSide, other: DaemonSide) -> None:
    one.engine.begin().commit()
    transaction = one.engine.begin()
    transaction.trim(5)
    transaction.commit()
    other.put((b"a", b"1"))
    assert other.cluster.tail.poll([other.db])[other.db].rev == 1


def test_a_follower_is_byte_for_byte_what_postgresql_holds(
    one: DaemonSide, other: DaemonSide, lone_server: PostgresqlServers
) -> None:
    chance = random.Random(5)
    for number in range(40):
        transaction = one.engine.begin()
        for _ in range(chance.randrange(6)):
            key = b"%03d" % chance.randrange(300)
            if chance.random() < 0.2:
                transaction.delete(key)
            else:
                transaction.put(key, chance.randbytes(chance.randrange(200)))
        if number % 5 == 1:
            transaction.put_all((b"%03d" % each, b"many") for each in range(100, 260))
        if number % 5 == 3:
            low = chance.randrange(300)
            transaction.delete_range(b"%03d" % low, b"%03d" % (low + 150))
            transaction.put(b"%03d" % (low + 1), b"after the range")
        transaction.append(b"op%d" % number, b"entry")
        transaction.commit()
        if chance.random() < 0.4:
            assert not other.engine.catch_up().is_whole
            assert other.rows() == one.rows() == one.stored_rows(lone_server.primary)
    other.engine.catch_up()
    assert other.rows() == one.rows() == one.stored_rows(lone_server.primary)
    assert other.log() == one.log()
    assert other.engine.position == one.engine.position


def test_an_empty_range_is_not_recorded(one: DaemonSide, lone_server: PostgresqlServers) -> None:
    transaction = one.engine.begin()
    transaction.put(b"k", b"v")
    transaction.delete_range(b"a", b"b")
    transaction.commit()
    ((touched,),) = lone_server.primary.query(
        "SELECT touched FROM treedb.changes WHERE db = %s", (one.db,)
    )
    assert Touched.decode(touched) == Touched((b"k",))


def test_new_rules_make_a_daemon_with_old_ones_lose(one: DaemonSide, other: DaemonSide) -> None:
    epoch = one.cluster.projects.put_rules(PROJECT, b"{}")
    with pytest.raises(Conflict):
        other.put((b"a", b"1"))
    fetched = other.engine.fetch()
    assert fetched.epoch == epoch
    assert other.engine.apply_fetched(fetched)
    with pytest.raises(Conflict):  # the rows are the newest, the rules are not
        other.put((b"a", b"1"))
    other.engine.epoch = epoch
    other.put((b"a", b"1"))
    assert other.rows() == {b"a": b"1"}


def test_rules_that_come_while_a_batch_is_judged_are_not_those_of_the_batch(
    one: DaemonSide,
) -> None:
    transaction = one.engine.begin()
    transaction.put(b"a", b"1")
    one.engine.epoch = one.cluster.projects.put_rules(PROJECT, b"{}")
    with pytest.raises(Conflict):
        transaction.commit()


def test_what_was_fetched_is_not_applied_over_a_later_commit(
    one: DaemonSide, other: DaemonSide
) -> None:
    one.put((b"a", b"1"))
    early = other.engine.fetch()
    other.engine.catch_up()
    other.put((b"a", b"2"))
    assert other.engine.apply_fetched(early) is False
    assert other.rows() == {b"a": b"2"}


def test_after_some_losses_the_others_wait(
    one: DaemonSide, other: DaemonSide, lone_server: PostgresqlServers
) -> None:
    for number in range(LOSSES_BEFORE_LOCK):
        one.put((b"a", b"%d" % number))
        with pytest.raises(Conflict):
            other.put((b"b", b"late"))
        if number < LOSSES_BEFORE_LOCK - 1:
            other.engine.catch_up()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(one.put, (b"a", b"meanwhile"))
        statement = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: lone_server.primary.query(statement) == [(1,)])
        other.engine.catch_up()
        other.put((b"b", b"at last"))
        assert isinstance(waiting.exception(), Conflict)
    one.engine.catch_up()
    assert one.rows() == {b"a": b"2", b"b": b"at last"}
    one.put((b"a", b"3"))


def test_a_turn_that_is_not_used_ends_with_the_transaction(
    one: DaemonSide, other: DaemonSide
) -> None:
    for _ in range(LOSSES_BEFORE_LOCK):
        one.put((b"a", b"1"))
        with pytest.raises(Conflict):
            other.put((b"b", b"late"))
    other.engine.begin().rollback()
    one.put((b"a", b"2"))


def test_many_daemons_lose_no_increment(one: DaemonSide, other: DaemonSide) -> None:
    def count(side: DaemonSide) -> None:
        done = 0
        while done < 25:
            transaction = side.engine.begin()
            number = int(transaction.get(b"count") or b"0")
            transaction.put(b"count", b"%d" % (number + 1))
            transaction.append(b"op", b"%d" % number)
            try:
                transaction.commit()
                done += 1
            except Conflict:
                side.engine.catch_up()

    threads = [threading.Thread(target=count, args=(side,)) for side in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.engine.catch_up()
    assert one.rows() == {b"count": b"50"}
    assert [entry.content for entry in one.log()] == [b"%d" % number for number in range(50)]


def test_a_large_commit_is_sent_in_parts(one: DaemonSide, other: DaemonSide) -> None:
    transaction = one.engine.begin()
    transaction.put_all((b"%06d" % number, b"x" * 500) for number in range(30_000))
    transaction.append(b"op", b"y" * 5_000_000)
    transaction.commit()
    other.engine.catch_up()
    assert other.rows() == one.rows()
    assert other.log() == one.log()


def test_without_a_server_nothing_was_applied(
    lone_server: PostgresqlServers, one: DaemonSide
) -> None:
    one.put((b"a", b"1"))
    transaction = one.engine.begin()
    transaction.put(b"a", b"2")
    one.cluster.close()
    with pytest.raises(StoreUnreachable):
        transaction.commit()
    assert one.rows() == {b"a": b"1"}
    one.engine.begin().rollback()


def test_a_copy_goes_on_where_it_was_closed(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"a", b"1"))
    position = one.engine.position
    one.reopen()
    assert one.engine.position == position
    other.engine.catch_up()
    other.put((b"b", b"2"))
    assert not one.engine.catch_up().is_whole
    assert one.rows() == {b"a": b"1", b"b": b"2"}


def test_a_database_that_is_gone_is_missing(
    one: DaemonSide, lone_server: PostgresqlServers
) -> None:
    lone_server.primary.query("DELETE FROM treedb.dbs WHERE db = %s", (one.db,))
    with pytest.raises(DatabaseMissing):
        one.engine.fetch()
    with pytest.raises(Conflict):
        one.put((b"a", b"1"))


def test_a_copy_that_cannot_be_read_is_made_again(one: DaemonSide, tmp_path: pathlib.Path) -> None:
    one.put((b"a", b"1"))
    one.engine.close()
    path = one.engine.path
    path.write_bytes(b"not a database at all")
    one.engine = one.cluster.open_engine(path, one.db, epoch=one.engine.epoch, reserve_bytes=4096)
    assert one.engine.catch_up().is_whole
    assert one.rows() == {b"a": b"1"}
