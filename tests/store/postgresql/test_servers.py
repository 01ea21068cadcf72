"""Three servers and their faults: nothing acknowledged is lost, nothing stale is believed."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import DaemonSide
from tests.system import wait_until
from treedbd.store.engine import Conflict, InDoubt, StoreUnreachable
from treedbd.store.postgresql.cluster import check_cluster
from treedbd.store.postgresql.connection import PostgresqlSettings


@pytest.fixture
def side(cluster_servers: PostgresqlServers, tmp_path: pathlib.Path) -> Iterator[DaemonSide]:
    with DaemonSide(cluster_servers.dsn, tmp_path / "side", patience_s=1.0) as side:
        yield side


def settle(side: DaemonSide) -> bool | None:
    """Settle as a daemon does: until the answer is known."""
    while True:
        try:
            return side.engine.find_outcome()
        except StoreUnreachable:
            continue


def catch_up(side: DaemonSide) -> None:
    """Catch up as a daemon does: until it finds the server that takes writes."""

    def is_done() -> bool:
        try:
            side.engine.catch_up()
        except StoreUnreachable:
            return False
        return True

    wait_until(is_done)


def test_a_declared_cluster_with_standbys_is_accepted(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    report = check_cluster(PostgresqlSettings(cluster_servers.dsn, is_cluster=True))
    assert report.standby_names.startswith("ANY 1")
    assert report.standbys == 2


def test_one_frozen_standby_changes_nothing(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    cluster_servers.standbys[0].freeze()
    side.put((b"a", b"1"))
    assert side.ask(side.db)[side.db].rev == 1


def test_a_frozen_primary_leaves_a_large_commit_in_doubt(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    """Larger than what the system keeps for a peer that does not read."""
    side.put((b"a", b"1"))
    cluster_servers.primary.freeze()
    with pytest.raises(InDoubt):
        side.put((b"b", b"x" * 50_000_000))
    with pytest.raises(StoreUnreachable):
        side.engine.find_outcome()
    cluster_servers.primary.thaw()
    assert settle(side) is False
    catch_up(side)
    assert side.rows() == {b"a": b"1"}


def test_frozen_standbys_leave_a_commit_in_doubt_that_is_settled_later(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    for standby in cluster_servers.standbys:
        standby.freeze()
    with pytest.raises(InDoubt):
        side.put((b"a", b"1"))
    assert side.rows() == {}
    with pytest.raises(StoreUnreachable):
        side.engine.find_outcome()
    for standby in cluster_servers.standbys:
        standby.thaw()
    assert settle(side) is True
    catch_up(side)
    assert side.rows() == {b"a": b"1"}
    assert [entry[:2] for entry in side.log()] == [(1, b"op")]


def test_frozen_standbys_let_no_read_be_believed(
    side: DaemonSide, cluster_servers: PostgresqlServers, tmp_path: pathlib.Path
) -> None:
    side.put((b"a", b"1"))
    with side.beside(tmp_path / "other", is_strict=False) as lenient:
        for standby in cluster_servers.standbys:
            standby.freeze()
        with pytest.raises(StoreUnreachable):
            side.ask(side.db)
        with pytest.raises(StoreUnreachable):
            side.engine.fetch()
        assert lenient.cluster.tail.poll([side.db])[side.db].rev == 1


def test_frozen_standbys_let_no_reader_renew_or_take_a_lease(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    readers = side.cluster.readers
    assert readers.take(side.name, "daemon-1", None)
    for standby in cluster_servers.standbys:
        standby.freeze()
    with pytest.raises(StoreUnreachable):
        readers.take(f"{side.name}-2", "daemon-1", None)
    with pytest.raises(StoreUnreachable):
        readers.renew(side.name, "daemon-1")
    for standby in cluster_servers.standbys:
        standby.thaw()
    assert readers.renew(side.name, "daemon-1")


def test_questions_that_nobody_confirms_leave_nothing_behind(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    for standby in cluster_servers.standbys:
        standby.freeze()
    for _ in range(2):
        with pytest.raises(StoreUnreachable):
            side.ask(side.db)
        with pytest.raises(StoreUnreachable):
            side.engine.fetch()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: cluster_servers.primary.query(waiting) == [(0,)])
    for standby in cluster_servers.standbys:
        standby.thaw()
    cluster_servers.await_standbys()
    assert side.ask(side.db)[side.db].rev == 0


def test_a_cancelled_wait_for_the_standbys_is_no_success(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    """Somebody cancels the COMMIT: it is then visible, and no standby has it."""
    for standby in cluster_servers.standbys:
        standby.kill()  # one that is frozen has received it, somewhere in its kernel
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        " AND query = 'COMMIT'"
    )
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(side.put, (b"a", b"1"))
        while not waiting.done():
            cluster_servers.primary.query(cancel)
        assert isinstance(waiting.exception(), InDoubt)
    assert cluster_servers.primary.query(
        "SELECT rev FROM treedb.dbs WHERE db = %s", (side.db,)
    ) == [(1,)]
    with pytest.raises(StoreUnreachable):
        side.engine.find_outcome()
    # The standbys never received it: the next primary does not have it.
    cluster_servers.primary.kill()
    for standby in cluster_servers.standbys:
        standby.start()
    cluster_servers.fail_over()
    assert settle(side) is False
    catch_up(side)
    assert side.rows() == {}


def test_a_primary_that_is_killed_loses_nothing_acknowledged(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    acknowledged: list[bytes] = []
    enough = threading.Event()
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set() or not number:
            number += 1
            op = b"op%d" % number
            try:
                side.put((op, b"1"), op=op)
            except InDoubt:
                if not settle(side):
                    catch_up(side)
                    continue
                catch_up(side)
            except (Conflict, StoreUnreachable):
                if is_over.is_set():
                    return
                catch_up(side)
                continue
            acknowledged.append(op)
            if len(acknowledged) >= 50:
                enough.set()

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        assert enough.wait(60)
        cluster_servers.fail_over()
        before = len(acknowledged)
        while len(acknowledged) < before + 20 and not writing.done():
            pass
        is_over.set()
        writing.result()
    catch_up(side)
    assert [entry.op_id for entry in side.log()] == acknowledged
    assert [entry.sequence for entry in side.log()] == list(range(1, len(acknowledged) + 1))
    assert set(side.rows()) == set(acknowledged)
    assert side.stored_rows(cluster_servers.primary) == side.rows()


def test_a_primary_that_was_cut_off_gives_no_stale_answer_and_takes_no_write(
    side: DaemonSide, cluster_servers: PostgresqlServers, tmp_path: pathlib.Path
) -> None:
    side.put((b"a", b"1"))
    old_dsn = cluster_servers.primary.dsn()
    with (
        side.beside(tmp_path / "behind", dsn=old_dsn) as behind,
        side.beside(tmp_path / "lenient", dsn=old_dsn, is_strict=False) as lenient,
    ):
        cluster_servers.fail_over(kill=False)
        with side.beside(tmp_path / "new", dsn=cluster_servers.primary.dsn()) as new:
            new.put((b"a", b"2"))
            assert lenient.cluster.tail.poll([side.db])[side.db].rev == 1  # it is stale
            with pytest.raises(StoreUnreachable):
                behind.ask(side.db)
            with pytest.raises(StoreUnreachable):
                behind.engine.fetch()
            with pytest.raises(InDoubt):
                behind.put((b"a", b"lost"))
            with pytest.raises(StoreUnreachable):
                behind.engine.find_outcome()
            assert behind.rows() == {b"a": b"1"}
            # A daemon that knows all servers finds the new primary, and its copy is right.
            catch_up(side)
            assert side.rows() == {b"a": b"2"}


def test_an_old_primary_that_comes_back_follows(
    side: DaemonSide, cluster_servers: PostgresqlServers
) -> None:
    side.put((b"a", b"1"))
    old = cluster_servers.fail_over()
    cluster_servers.bring_back(old)
    catch_up(side)
    side.put((b"a", b"2"))
    assert cluster_servers.primary.query("SELECT count(*) FROM pg_stat_replication", ()) == [(2,)]
    assert side.rows() == {b"a": b"2"}
