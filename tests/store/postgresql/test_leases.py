"""Leases: an owner lives until another daemon has found, after its time, that it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgresql import PostgresqlServers
from treedbd.names import DatabaseName
from treedbd.store.indexes import DISCONNECT_FIRST
from treedbd.store.postgresql import schema
from treedbd.store.postgresql.cluster import DeadLease, LeaseOver, Leases
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.schema import prepare_schema

SHOP, EU = DatabaseName("shop"), DatabaseName("shop", "eu")
ONE, OTHER = "0a", "0b"


@pytest.fixture
def leases(clean_server: PostgresqlServers) -> Iterator[Leases]:
    settings = PostgresqlSettings(clean_server.dsn)
    prepare_schema(settings)
    found = Leases(settings)
    yield found
    found.close()


def let_end(server: PostgresqlServers, owner: str) -> None:
    """Let the time of a lease be over."""
    server.primary.query(
        "UPDATE treedb.owners SET ends = clock_timestamp() - interval '1 ms' WHERE owner = %s",
        [owner],
    )


def keep(server: PostgresqlServers, name: DatabaseName, owner: str) -> None:
    """Store what a session of an owner has left in a database."""
    query = server.primary.query
    query(
        "INSERT INTO treedb.dbs (project, name, epoch) VALUES (%s, %s, 1) ON CONFLICT DO NOTHING",
        [name.project, name.database],
    )
    key = DISCONNECT_FIRST + f"{owner}/01/00000000".encode()
    query(
        "INSERT INTO treedb.kv SELECT db, %b, '' FROM treedb.dbs WHERE project = %s AND name = %s",
        [key, name.project, name.database],
    )


def find_dead(leases: Leases, *, may_judge: bool = True) -> list[DeadLease]:
    return leases.find_dead(OTHER, may_judge=may_judge)


def test_an_owner_lives_while_its_lease_runs(leases: Leases) -> None:
    leases.list_database(ONE, SHOP, begins=True)
    leases.list_database(ONE, EU, begins=False)
    leases.renew(ONE)
    assert find_dead(leases) == []
    assert leases.which_are_dead([ONE]) == set()


def test_an_owner_whose_time_is_over_is_dead_once_another_has_found_it_so(
    leases: Leases, clean_server: PostgresqlServers
) -> None:
    leases.list_database(ONE, SHOP, begins=True)
    leases.list_database(ONE, EU, begins=False)
    let_end(clean_server, ONE)
    assert find_dead(leases, may_judge=False) == []
    assert leases.which_are_dead([ONE]) == set()
    assert find_dead(leases) == [DeadLease(ONE, [SHOP, EU])]
    assert leases.which_are_dead([ONE, OTHER]) == {ONE, OTHER}
    for renew in (
        lambda: leases.renew(ONE),
        lambda: leases.list_database(ONE, SHOP, begins=False),
        lambda: leases.list_database(ONE, SHOP, begins=True),
    ):
        with pytest.raises(LeaseOver):
            renew()


def test_an_owner_that_comes_late_and_first_goes_on(
    leases: Leases, clean_server: PostgresqlServers
) -> None:
    leases.list_database(ONE, SHOP, begins=True)
    let_end(clean_server, ONE)
    leases.renew(ONE)
    assert find_dead(leases) == []


def test_nobody_finds_itself_dead(leases: Leases, clean_server: PostgresqlServers) -> None:
    leases.list_database(OTHER, SHOP, begins=True)
    let_end(clean_server, OTHER)
    assert find_dead(leases) == []
    leases.renew(OTHER)


def test_a_dead_owner_is_forgotten_when_nothing_of_it_is_left(
    leases: Leases, clean_server: PostgresqlServers
) -> None:
    for name in (SHOP, EU):
        leases.list_database(ONE, name, begins=True)
    keep(clean_server, EU, ONE)
    leases.end(ONE)
    assert find_dead(leases, may_judge=False) == [DeadLease(ONE, [EU])]
    clean_server.primary.query("DELETE FROM treedb.kv")
    leases.forget(ONE)
    assert find_dead(leases) == []
    assert clean_server.primary.query("SELECT count(*) FROM treedb.owner_dbs") == [(0,)]


def test_the_lease_of_a_living_owner_is_not_forgotten(leases: Leases) -> None:
    leases.list_database(ONE, SHOP, begins=True)
    leases.forget(ONE)
    leases.renew(ONE)
    assert leases.which_are_dead([ONE]) == set()


def test_what_owners_without_a_lease_have_left_is_found(
    leases: Leases, clean_server: PostgresqlServers
) -> None:
    leases.list_database(ONE, SHOP, begins=True)
    keep(clean_server, SHOP, ONE)
    assert leases.find_ownerless() == []
    keep(clean_server, EU, OTHER)
    assert leases.find_ownerless() == [EU]
    assert leases.which_are_dead([ONE, OTHER]) == {OTHER}


def test_while_a_daemon_without_leases_runs_it_may_be_the_owner(
    leases: Leases, clean_server: PostgresqlServers
) -> None:
    keep(clean_server, EU, OTHER)
    query = clean_server.primary.query
    # As a version without leases sends it.
    query("INSERT INTO treedb.daemons VALUES ('old', 'local', '1', now(), '{}', 0, 0)")
    assert leases.find_ownerless() is None
    assert leases.which_are_dead([OTHER]) == set()
    query("UPDATE treedb.daemons SET seen = now() - interval '1 minute'")
    assert leases.find_ownerless() == [EU]
    assert leases.which_are_dead([OTHER]) == {OTHER}


def test_tables_without_leases_get_them_and_lose_nothing(
    clean_server: PostgresqlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PostgresqlSettings(clean_server.dsn)
    monkeypatch.setattr(schema, "VERSION", 1)
    prepare_schema(settings)
    keep(clean_server, SHOP, ONE)
    monkeypatch.undo()
    prepare_schema(settings)
    assert clean_server.primary.query("SELECT count(*) FROM treedb.kv") == [(1,)]
    leases = Leases(settings)
    assert leases.which_are_dead([ONE]) == {ONE}
    leases.close()
