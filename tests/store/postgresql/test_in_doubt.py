"""Commits whose answer is lost: each is settled as what it was, once."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import DaemonSide
from tests.store.postgresql.wire import Break, CommitBreaker
from tests.system import wait_until
from treedbd.store.engine import Conflict, InDoubt, StoreFailed, StoreUnreachable

WITHHELD = (
    "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'ClientRead'"
    " AND query LIKE '%INSERT INTO changes%'"
)
"""Transactions that have done everything but COMMIT."""


@pytest.fixture
def breaker(lone_server: PostgresqlServers) -> Iterator[CommitBreaker]:
    with CommitBreaker(lone_server.primary.port) as breaker:
        yield breaker


@pytest.fixture
def doubtful(
    one: DaemonSide, breaker: CommitBreaker, tmp_path: pathlib.Path
) -> Iterator[DaemonSide]:
    """A daemon behind the proxy, with the database of `one`."""
    with one.beside(tmp_path / "doubtful", dsn=breaker.dsn, patience_s=1.0) as side:
        yield side


def put_in_doubt(
    side: DaemonSide, breaker: CommitBreaker, kind: Break, op: bytes | None = b"doubt"
) -> None:
    breaker.arm(kind)
    with pytest.raises(InDoubt):
        side.put((b"a", b"doubt"), op=op)
    breaker.await_break()
    assert side.engine._in_doubt is not None
    assert side.rows() == {}
    with pytest.raises(StoreFailed, match="not known yet"):
        side.engine.begin()


@pytest.mark.parametrize("op", [b"doubt", None])
@pytest.mark.parametrize("kind", [Break.ANSWER, Break.SILENCE])
def test_what_was_applied_is_settled_as_applied(
    one: DaemonSide, doubtful: DaemonSide, breaker: CommitBreaker, kind: Break, op: bytes | None
) -> None:
    put_in_doubt(doubtful, breaker, kind, op)
    wait_until(lambda: one.cluster.tail.poll([one.db])[one.db].rev == 1)
    assert doubtful.engine.find_outcome() is True
    assert doubtful.engine._in_doubt is None
    assert not doubtful.engine.catch_up().is_whole
    assert doubtful.rows() == {b"a": b"doubt"}
    doubtful.put((b"b", b"1"), op=b"next")
    one.engine.catch_up()
    assert one.rows() == {b"a": b"doubt", b"b": b"1"}
    assert [entry.op_id for entry in one.log()] == [each for each in (op, b"next") if each]


@pytest.mark.parametrize("op", [b"doubt", None])
def test_what_never_arrived_is_settled_as_not_applied(
    one: DaemonSide, doubtful: DaemonSide, breaker: CommitBreaker, op: bytes | None
) -> None:
    put_in_doubt(doubtful, breaker, Break.BEFORE, op)
    assert doubtful.engine.find_outcome() is False
    doubtful.engine.catch_up()
    assert doubtful.rows() == {}
    doubtful.put((b"b", b"1"), op=b"next")
    one.engine.catch_up()
    assert one.rows() == {b"b": b"1"}
    assert [entry[:2] for entry in one.log()] == [(1, b"next")]


def test_while_the_commit_may_still_come_nothing_is_settled(
    one: DaemonSide,
    doubtful: DaemonSide,
    breaker: CommitBreaker,
    lone_server: PostgresqlServers,
) -> None:
    put_in_doubt(doubtful, breaker, Break.WITHHELD)
    wait_until(lambda: len(lone_server.primary.query(WITHHELD)) == 1)
    with pytest.raises(StoreUnreachable):
        doubtful.engine.find_outcome()
    assert doubtful.engine._in_doubt is not None
    breaker.send_withheld()
    wait_until(lambda: one.cluster.tail.poll([one.db])[one.db].rev == 1)
    assert doubtful.engine.find_outcome() is True
    doubtful.engine.catch_up()
    assert doubtful.rows() == {b"a": b"doubt"}


def test_once_it_is_settled_as_not_applied_it_can_never_come(
    one: DaemonSide,
    doubtful: DaemonSide,
    breaker: CommitBreaker,
    lone_server: PostgresqlServers,
) -> None:
    put_in_doubt(doubtful, breaker, Break.WITHHELD)
    wait_until(lambda: len(lone_server.primary.query(WITHHELD)) == 1)
    breaker.cut_withheld()
    assert doubtful.engine.find_outcome() is False
    doubtful.engine.catch_up()
    assert doubtful.rows() == {}
    one.engine.catch_up()
    assert one.rows() == {}
    assert one.engine.position.rev == 1  # the empty commit in its place


@pytest.mark.parametrize("kind", [Break.ANSWER, Break.BEFORE])
def test_it_is_settled_after_others_have_committed(
    one: DaemonSide, doubtful: DaemonSide, breaker: CommitBreaker, kind: Break
) -> None:
    put_in_doubt(doubtful, breaker, kind)
    if kind is Break.ANSWER:
        wait_until(lambda: one.cluster.tail.poll([one.db])[one.db].rev == 1)
    one.engine.catch_up()
    one.put((b"b", b"1"), op=b"other")
    assert doubtful.engine.find_outcome() is (kind is Break.ANSWER)
    doubtful.engine.catch_up()
    assert doubtful.rows() == one.rows()


@pytest.mark.parametrize(("op", "answer"), [(b"doubt", True), (None, None)])
def test_it_may_be_too_late_to_settle(
    one: DaemonSide,
    doubtful: DaemonSide,
    breaker: CommitBreaker,
    lone_server: PostgresqlServers,
    op: bytes | None,
    answer: bool | None,
) -> None:
    """The record of the commit was trimmed; the log may still hold its entry."""
    put_in_doubt(doubtful, breaker, Break.ANSWER, op)
    wait_until(lambda: one.cluster.tail.poll([one.db])[one.db].rev == 1)
    one.engine.catch_up()
    one.put((b"b", b"1"), op=None)
    lone_server.primary.query("DELETE FROM treedb.changes WHERE db = %s AND rev = 1", (one.db,))
    assert doubtful.engine.find_outcome() is answer


def test_a_copy_that_fails_after_the_commit_leaves_it_in_doubt(
    one: DaemonSide, other: DaemonSide
) -> None:
    transaction = one.engine.begin()
    transaction.put(b"a", b"1")
    one.engine.path.rename(one.engine.path.with_name("elsewhere"))
    with pytest.raises(InDoubt):
        transaction.commit()
    assert one.engine.find_outcome() is True
    other.engine.catch_up()
    assert other.rows() == {b"a": b"1"}
    one.engine.path.with_name("elsewhere").rename(one.engine.path)
    one.engine.recover()
    one.engine.catch_up()
    assert one.rows() == {b"a": b"1"}


def test_a_connection_that_ended_while_idle_is_made_again(
    one: DaemonSide, lone_server: PostgresqlServers
) -> None:
    one.put((b"a", b"1"))
    lone_server.primary.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'treedb'"
    )
    one.put((b"a", b"2"))
    assert one.cluster.tail.poll([one.db])[one.db].rev == 2


def test_a_lost_commit_on_a_connection_leaves_it_usable(
    one: DaemonSide, other: DaemonSide, lone_server: PostgresqlServers
) -> None:
    one.put((b"a", b"1"))
    for _ in range(10):  # also with prepared statements
        with pytest.raises(Conflict):
            other.put((b"a", b"2"))
    other.engine.catch_up()
    other.put((b"a", b"2"))
