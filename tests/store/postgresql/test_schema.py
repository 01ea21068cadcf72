"""The tables: created once by whoever comes first, refused if they are newer."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import DaemonSide
from treedbd.store.engine import CannotOpenStore, StoreUnreachable
from treedbd.store.postgresql import schema
from treedbd.store.postgresql.cluster import PostgresqlCluster, check_cluster
from treedbd.store.postgresql.connection import PostgresqlSettings, SessionPool, TimedConnection
from treedbd.store.postgresql.schema import TABLES, VERSION, prepare_schema

ROLE = "limited"


@pytest.fixture
def limited(clean_server: PostgresqlServers) -> Iterator[str]:
    """The connection string of a role without any rights."""
    query = clean_server.primary.query
    query(f"CREATE ROLE {ROLE} LOGIN")
    yield clean_server.primary.dsn(user=ROLE)
    query("DROP SCHEMA IF EXISTS treedb CASCADE")
    query(f"DROP OWNED BY {ROLE}")
    query(f"DROP ROLE {ROLE}")


def grant(server: PostgresqlServers, rights: str) -> None:
    server.primary.query(f"GRANT USAGE ON SCHEMA treedb TO {ROLE}")
    server.primary.query(f"GRANT {rights} ON ALL TABLES IN SCHEMA treedb TO {ROLE}")


def test_several_daemons_create_the_tables_at_once(clean_server: PostgresqlServers) -> None:
    settings = PostgresqlSettings(clean_server.dsn)
    with ThreadPoolExecutor(6) as threads:
        clusters = set(threads.map(prepare_schema, [settings] * 6))
    assert len(clusters) == 1
    assert [len(cluster) for cluster in clusters] == [16]
    found = clean_server.primary.query("SELECT tablename FROM pg_tables WHERE schemaname='treedb'")
    assert {row[0] for row in found} == set(TABLES)


def test_older_tables_are_migrated_step_by_step(
    clean_server: PostgresqlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PostgresqlSettings(clean_server.dsn)
    cluster = prepare_schema(settings)
    monkeypatch.setattr(schema, "VERSION", VERSION + 2)
    steps = {
        VERSION + 1: "ALTER TABLE treedb.dbs ADD COLUMN first integer DEFAULT 1",
        VERSION + 2: "ALTER TABLE treedb.dbs RENAME COLUMN first TO second",
    }
    monkeypatch.setattr(schema, "_MIGRATIONS", steps)
    assert prepare_schema(settings) == cluster
    assert prepare_schema(settings) == cluster
    query = clean_server.primary.query
    assert query("SELECT count(second) FROM treedb.dbs") == [(0,)]
    monkeypatch.undo()
    with pytest.raises(CannotOpenStore, match=f"version {VERSION + 2}, and this version"):
        prepare_schema(settings)


def test_a_migration_that_fails_changes_nothing(
    clean_server: PostgresqlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PostgresqlSettings(clean_server.dsn)
    prepare_schema(settings)
    monkeypatch.setattr(schema, "VERSION", VERSION + 1)
    steps = {VERSION + 1: "CREATE TABLE treedb.more (); SELECT 1 / 0"}
    monkeypatch.setattr(schema, "_MIGRATIONS", steps)
    with pytest.raises(StoreUnreachable, match="division by zero"):
        prepare_schema(settings)
    monkeypatch.undo()
    prepare_schema(settings)
    query = clean_server.primary.query
    assert query("SELECT to_regclass('treedb.more')") == [(None,)]


def test_a_role_that_may_not_create_is_refused_with_the_remedy(limited: str) -> None:
    with pytest.raises(CannotOpenStore, match="start once with a role that may create"):
        prepare_schema(PostgresqlSettings(limited))


def test_a_role_that_may_not_read_is_refused_with_the_remedy(
    limited: str, clean_server: PostgresqlServers
) -> None:
    prepare_schema(PostgresqlSettings(clean_server.dsn))
    with pytest.raises(CannotOpenStore, match="grant it USAGE on the schema treedb"):
        prepare_schema(PostgresqlSettings(limited))


def test_a_role_needs_four_rights_and_no_more(
    limited: str, clean_server: PostgresqlServers, tmp_path: pathlib.Path
) -> None:
    prepare_schema(PostgresqlSettings(clean_server.dsn))
    grant(clean_server, "SELECT, INSERT, UPDATE")
    settings = PostgresqlSettings(limited)
    with pytest.raises(CannotOpenStore, match=r"\(changes: DELETE, daemons: DELETE"):
        check_cluster(settings)
    grant(clean_server, "DELETE")
    assert check_cluster(settings).missing_rights == ()
    with (
        DaemonSide(limited, tmp_path / "one") as one,
        one.beside(tmp_path / "other") as other,
    ):
        one.put((b"a", b"1"))
        one.cluster.projects.put_rules("demo", b"{}")
        other.engine.catch_up()
        assert other.rows() == {b"a": b"1"}
        one.cluster.notifier.notify(one.db)


def test_no_cluster_may_be_declared_without_standbys(clean_server: PostgresqlServers) -> None:
    prepare_schema(PostgresqlSettings(clean_server.dsn))
    with pytest.raises(CannotOpenStore, match="synchronous_standby_names is empty"):
        check_cluster(PostgresqlSettings(clean_server.dsn, is_cluster=True))
    report = check_cluster(PostgresqlSettings(clean_server.dsn))
    assert (report.standbys, report.standby_names) == (0, "")
    assert report.server_version.split(".")[0].isdecimal()
    assert "The server runs with fsync = off: it can lose or damage data." in report.warnings
    assert "The role is a superuser, which treedb does not need." in report.warnings


def test_a_server_that_is_not_there_is_unreachable() -> None:
    settings = PostgresqlSettings("postgresql://treedb@127.0.0.1:1/treedb")
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        PostgresqlCluster(settings, retain=10)


def test_a_pool_lends_no_more_than_it_has(clean_server: PostgresqlServers) -> None:
    pool = SessionPool(PostgresqlSettings(clean_server.dsn, patience_s=0.05), 1)
    with pool.lend(), pytest.raises(StoreUnreachable, match="in use"):
        pool.run(lambda connection: connection)
    pool.close()
    with pytest.raises(StoreUnreachable, match="closed"):
        pool.run(lambda connection: connection)


def test_what_takes_too_long_ends(clean_server: PostgresqlServers) -> None:
    pool = SessionPool(PostgresqlSettings(clean_server.dsn, patience_s=0.2), 1)

    def wait(connection: TimedConnection) -> None:
        connection.execute("SET statement_timeout = 0")
        try:
            connection.execute("SELECT pg_sleep(60)")
        finally:
            assert connection.is_lost

    with pytest.raises(StoreUnreachable):
        pool.run(wait)
    assert pool.run(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    pool.close()


def test_a_role_with_another_default_waits_for_the_standbys(
    limited: str, clean_server: PostgresqlServers
) -> None:
    clean_server.primary.query(f"ALTER ROLE {ROLE} SET synchronous_commit = off")
    pool = SessionPool(PostgresqlSettings(limited), 1)
    shown = pool.run(lambda connection: connection.execute("SHOW synchronous_commit").fetchone())
    assert shown == ("on",)
    pool.close()
