"""Rules, databases, hints, the read index and the status, over one server."""

from __future__ import annotations

import pathlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import PROJECT, DaemonSide
from tests.system import wait_until
from treedbd.limits import RULES_VERSIONS
from treedbd.names import DatabaseName
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import (
    FIRST_EPOCH,
    OLD,
    PART,
    StoredRules,
    TooManyDatabases,
    clock_offset,
    forget_daemon,
    read_status,
    send_heartbeat,
)
from treedbd.store.rules_versions import UNKNOWN, Origin, RulesVersion


@pytest.fixture
def project(one: DaemonSide) -> str:
    """A project that nobody has used."""
    return f"project-of-{one.name}"


def test_rules_have_an_epoch_that_grows(one: DaemonSide, project: str) -> None:
    projects = one.cluster.projects
    assert projects.read_rules(project) == StoredRules(None, FIRST_EPOCH)
    first = projects.create_database(project, "first")
    assert first.epoch == FIRST_EPOCH
    assert projects.put_rules(project, b"{}") == FIRST_EPOCH + 1
    assert projects.read_rules(project) == StoredRules(b"{}", FIRST_EPOCH + 1)
    second = projects.create_database(project, "second")
    assert second.epoch == FIRST_EPOCH + 1
    assert projects.put_rules(project, b"{ }") == FIRST_EPOCH + 2
    states = one.ask(first.db, second.db)
    assert {state.epoch for state in states.values()} == {FIRST_EPOCH + 2}
    assert projects.read_rules("another") == StoredRules(None, FIRST_EPOCH)


def test_rules_may_come_before_the_first_database(one: DaemonSide, project: str) -> None:
    assert one.cluster.projects.put_rules(project, b"{}") == FIRST_EPOCH + 1
    assert one.cluster.projects.create_database(project, "first").epoch == FIRST_EPOCH + 1


def test_each_daemon_sees_the_versions_of_rules_that_any_has_put(
    one: DaemonSide, other: DaemonSide, project: str
) -> None:
    here, there = one.cluster.projects, other.cluster.projects
    assert here.list_rules_versions(project) == []
    here.put_rules(project, b"first", Origin(1000, "ada", is_admin=True))
    there.put_rules(project, b"second", Origin(2000, None, is_admin=True))
    there.put_rules(project, b"second", Origin(3000, "eve", is_admin=True))
    assert here.list_rules_versions(project) == [
        RulesVersion(2, Origin(2000, None, is_admin=True), 6, is_current=True),
        RulesVersion(1, Origin(1000, "ada", is_admin=True), 5),
    ]
    assert [here.read_rules_version(project, each) for each in (1, 2, 3)] == [
        b"first",
        b"second",
        None,
    ]
    here.put_rules(project, b"first")
    assert [(each.number, each.is_current) for each in there.list_rules_versions(project)] == [
        (3, True),
        (2, False),
        (1, False),
    ]


def test_rules_that_were_there_before_versions_are_the_first(
    one: DaemonSide, project: str, lone_server: PostgresqlServers
) -> None:
    projects = one.cluster.projects
    projects.put_rules(project, b"old")
    lone_server.primary.query("DELETE FROM treedb.rules_versions")
    assert projects.list_rules_versions(project) == [RulesVersion(1, UNKNOWN, 3, is_current=True)]
    assert projects.read_rules_version(project, 1) == b"old"
    assert projects.read_rules_version(project, 2) is None
    projects.put_rules(project, b"new", Origin(1000))
    assert projects.list_rules_versions(project) == [
        RulesVersion(2, Origin(1000), 3, is_current=True),
        RulesVersion(1, UNKNOWN, 3),
    ]
    assert projects.read_rules_version(project, 1) == b"old"


def test_the_last_versions_of_rules_are_kept(one: DaemonSide, project: str) -> None:
    projects = one.cluster.projects
    for number in range(RULES_VERSIONS + 3):
        projects.put_rules(project, b"%d" % number)
    numbers = [each.number for each in projects.list_rules_versions(project)]
    assert numbers == list(range(RULES_VERSIONS + 3, 3, -1))
    assert projects.read_rules_version(project, 3) is None


def test_a_database_is_created_once(one: DaemonSide, other: DaemonSide, project: str) -> None:
    with ThreadPoolExecutor() as threads:
        creating = [
            threads.submit(side.cluster.projects.create_database, project, "first")
            for side in (one, other) * 4
        ]
        assert len({each.result() for each in creating}) == 1
    found = one.cluster.projects.find_database(project, "first")
    assert found == creating[0].result()
    assert one.cluster.projects.find_database(project, "second") is None


def test_databases_are_listed_by_name_and_bounded(one: DaemonSide, project: str) -> None:
    projects = one.cluster.projects
    for name in ("b", "a", "B"):
        projects.create_database(project, name, limit=3)
    with pytest.raises(TooManyDatabases):
        projects.create_database(project, "c", limit=3)
    assert projects.create_database(project, "a", limit=3).name == "a"
    assert [each.name for each in projects.list_databases(project)] == ["B", "a", "b"]


def test_the_read_index_answers_for_many_databases(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"a", b"1"))
    one.put((b"a", b"2"), op=None)
    state = other.ask(one.db, one.db, 2_000_000_000)
    assert set(state) == {one.db}
    assert (state[one.db].seq, state[one.db].rev) == (1, 2)
    assert other.ask() == {}
    assert other.cluster.tail.poll([one.db]) == state


def test_a_hint_arrives_and_none_is_none(one: DaemonSide, other: DaemonSide) -> None:
    assert other.cluster.tail.wait(0) == set()  # it listens from now on
    one.cluster.notifier.notify(one.db)
    assert other.cluster.tail.wait(30) == {one.db}
    assert other.cluster.tail.wait(0.01) == set()


def test_hints_that_come_together_are_sent_together(one: DaemonSide, other: DaemonSide) -> None:
    assert other.cluster.tail.wait(0) == set()
    numbers = set(range(1, 40))
    with ThreadPoolExecutor() as threads:
        list(threads.map(one.cluster.notifier.notify, numbers))
    found: set[int] = set()
    while found != numbers:
        found |= other.cluster.tail.wait(30)


def test_after_a_lost_connection_the_tail_listens_again(
    one: DaemonSide, other: DaemonSide, lone_server: PostgresqlServers
) -> None:
    assert other.cluster.tail.wait(0) == set()
    lone_server.primary.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'treedb'"
    )
    with pytest.raises(StoreUnreachable):
        other.cluster.tail.wait(30)
    assert other.cluster.tail.wait(0) == set()
    one.cluster.notifier.notify(one.db)
    assert other.cluster.tail.wait(30) == {one.db}


def test_hints_do_not_fail_a_daemon_without_a_server(one: DaemonSide) -> None:
    one.cluster.close()
    one.cluster.notifier.notify(one.db)
    with pytest.raises(StoreUnreachable):
        one.cluster.tail.wait(0)


def test_the_clock_of_the_server_is_compared(
    one: DaemonSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert abs(clock_offset(one.cluster.pool)) < 5
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 90)
    assert 85 < clock_offset(one.cluster.pool) < 95


def test_the_status_says_which_daemon_lacks_what(one: DaemonSide, other: DaemonSide) -> None:
    one.put((b"a", b"1"))
    for name, side in (("one", one), ("other", other)):
        revs = {side.db: side.engine.position.rev, 2_000_000_000: 1}
        send_heartbeat(side.cluster.pool, name, "1.0", revs, side.cluster.counts)
    status = read_status(one.cluster.pool)
    daemons = {each.daemon: each for each in status.daemons}
    assert status.lags(daemons["one"]) == {one.db: 0}
    assert status.lags(daemons["other"]) == {one.db: 1}
    assert daemons["one"].address == "127.0.0.1"
    assert daemons["one"].version == "1.0"
    assert daemons["one"].counts == (1, 0)
    assert daemons["other"].counts == (0, 0)
    assert daemons["one"].seen_s < 60
    assert one.name in {each.name for each in status.databases}
    for name in ("one", "other"):
        forget_daemon(one.cluster.pool, name)
    assert {"one", "other"}.isdisjoint(
        each.daemon for each in read_status(one.cluster.pool).daemons
    )


def test_many_reads_share_nothing_with_commits(one: DaemonSide, tmp_path: pathlib.Path) -> None:
    """A commit that waits for a lock leaves the read index and fetches free."""
    with ThreadPoolExecutor() as threads, one.beside(tmp_path / "beside") as other:
        turn = other.engine._commits.take_lock(one.db)
        assert turn is not None
        waiting = threads.submit(one.put, (b"a", b"1"))
        wait_until(lambda: not waiting.done())
        assert one.ask(one.db)[one.db].rev == 0
        other.engine._commits.release_lock(turn)
        waiting.result()
    assert one.rows() == {b"a": b"1"}


def test_the_heads_of_all_served_databases_are_found_also_those_that_are_not_open(
    one: DaemonSide, other: DaemonSide, project: str
) -> None:
    one.put((b"a", b"1"))
    one.put((b"a", b"2"))
    one.cluster.projects.create_database(project, "eu")
    for unserved in (PART, OLD):
        one.cluster.projects.create_database(f"{project}{unserved}", "eu")
    heads = other.cluster.projects.heads()
    assert heads[DatabaseName(PROJECT, one.name)] == 2
    own = {name: seq for name, seq in heads.items() if name.project.startswith(project)}
    assert own == {DatabaseName(project, "eu"): 0}
