"""The state of the cluster for operators: a check of the server, heartbeats, and what is trimmed.

A daemon checks the server before it serves (`check_cluster`), records that it runs
(`send_heartbeat`), and drops old records (`trim`); `read_status` returns what all daemons have
recorded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Final

import attrs
import orjson

from treedbd.store.engine import CannotOpenStore
from treedbd.store.postgresql.cluster import StoredDatabase, list_all
from treedbd.store.postgresql.commits import CommitCounts
from treedbd.store.postgresql.connection import (
    PostgresqlSettings,
    Session,
    SessionPool,
    TimedConnection,
    rows_of,
)
from treedbd.store.postgresql.schema import TABLES

_SETTINGS: Final = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
_NAMES: Final = [
    "fsync",
    "full_page_writes",
    "server_version",
    "synchronous_standby_names",
]
_STANDBYS: Final = "SELECT count(*) FROM pg_stat_replication"
_MISSING: Final = (
    "SELECT name || ': ' || privilege FROM unnest(%s::text[]) AS every (name),"
    " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed (privilege)"
    " WHERE NOT has_table_privilege('treedb.' || name, privilege) ORDER BY 1"
)
_IS_SUPERUSER: Final = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_BEAT: Final = (
    "INSERT INTO daemons VALUES (%s, coalesce(host(inet_client_addr()), 'local'), %s, now(),"
    " %s::text::jsonb, %s, %s, true) ON CONFLICT (daemon) DO UPDATE SET address = excluded.address,"
    " version = excluded.version, seen = excluded.seen, revs = excluded.revs,"
    " commits = excluded.commits, conflicts = excluded.conflicts"
)
_FORGET: Final = "DELETE FROM daemons WHERE seen < now() - interval '1 day' OR daemon = %s"
_DAEMONS: Final = (
    "SELECT daemon, address, version, extract(epoch FROM now() - seen)::float8, revs::text,"
    " commits, conflicts FROM daemons ORDER BY daemon"
)


@attrs.frozen
class ClusterReport:
    """What a check has found.

    Attributes:
        server_version: as PostgreSQL prints it.
        standby_names: the setting `synchronous_standby_names`.
        standbys: how many servers follow at present.
        missing_rights: privileges that the role lacks, as `table: PRIVILEGE`.
        warnings: what is unsafe, or more than is needed, one sentence each.

    """

    server_version: str
    standby_names: str
    standbys: int
    missing_rights: tuple[str, ...]
    warnings: tuple[str, ...]


@attrs.frozen
class DaemonStatus:
    """One daemon: where it runs, when it was last seen, and which commit it has of each database.

    Attributes:
        seen_s: seconds since its last heartbeat.
        counts: its commits and conflicts since its start.

    """

    daemon: str
    address: str
    version: str
    seen_s: float
    revs: Mapping[int, int]
    counts: CommitCounts


@attrs.frozen
class ClusterStatus:
    """All daemons that were seen during the last day, and all databases.

    Attributes:
        unserved: databases that are being copied into PostgreSQL, or were replaced.

    """

    daemons: tuple[DaemonStatus, ...]
    databases: tuple[StoredDatabase, ...]
    unserved: tuple[StoredDatabase, ...] = ()

    def lags(self, daemon: DaemonStatus) -> dict[int, int]:
        """Return how many commits a daemon lacks of each database that it serves."""
        revs = {each.db: each.rev for each in self.databases}
        return {db: max(0, revs[db] - rev) for db, rev in daemon.revs.items() if db in revs}


def check_cluster(settings: PostgresqlSettings) -> ClusterReport:
    """Examine the server; the tables must exist.

    Raises `StoreUnreachable`, or `CannotOpenStore` for a declared cluster without synchronous
    standbys, and for a role that lacks rights.
    """
    report = examine(settings)
    if settings.is_cluster and not report.standby_names:
        raise CannotOpenStore(
            settings.subject,
            "is declared a cluster, and its synchronous_standby_names is empty: an acknowledged "
            "write could be lost",
            "set synchronous_standby_names = 'ANY 1 (…)' with the names of the standbys, or do "
            "not declare a cluster",
        )
    if report.missing_rights:
        raise CannotOpenStore(
            settings.subject,
            f"does not give this role all rights ({', '.join(report.missing_rights)})",
            "grant SELECT, INSERT, UPDATE and DELETE on all tables of the schema treedb",
        )
    return report


def examine(settings: PostgresqlSettings) -> ClusterReport:
    """Examine the server and judge nothing; the tables must exist. Raises `StoreUnreachable`."""
    session = Session(settings)
    try:
        return session.run(_examine)
    finally:
        session.close()


def clock_offset(pool: SessionPool) -> float:
    """Return by how many seconds the clock of this process is ahead of PostgreSQL's.

    Exact to half a round trip. Raises `StoreUnreachable`.
    """

    def ask(connection: TimedConnection) -> float:
        before = time.time()
        ((theirs,),) = rows_of(connection, _CLOCK)
        return (before + time.time()) / 2 - float(theirs)

    return pool.run(ask)


def send_heartbeat(
    pool: SessionPool, daemon: str, version: str, revs: Mapping[int, int], counts: CommitCounts
) -> None:
    """Record that a daemon runs, how far its copies are and what became of its commits.

    Raises `StoreUnreachable`.
    """
    printed = orjson.dumps({str(db): rev for db, rev in revs.items()}).decode()

    def send(connection: TimedConnection) -> None:
        connection.execute("BEGIN")
        connection.execute("SET LOCAL synchronous_commit = off")  # to lose it does not matter
        connection.execute(_BEAT, (daemon, version, printed, *counts))
        connection.execute("COMMIT")

    pool.run(send)


def forget_daemon(pool: SessionPool, daemon: str) -> None:
    """Remove a daemon that stops, and those not seen for a day; raise `StoreUnreachable`."""
    pool.run(lambda connection: connection.execute(_FORGET, (daemon,)))


def read_status(pool: SessionPool) -> ClusterStatus:
    """Return daemons and databases; raise `StoreUnreachable`."""

    def read(connection: TimedConnection) -> ClusterStatus:
        daemons = tuple(
            DaemonStatus(
                row[0],
                row[1],
                row[2],
                row[3],
                {int(db): rev for db, rev in orjson.loads(row[4]).items()},
                CommitCounts(*row[5:]),
            )
            for row in rows_of(connection, _DAEMONS)
        )
        every = list_all(connection)
        return ClusterStatus(
            daemons,
            tuple(each for each in every if each.is_served),
            tuple(each for each in every if not each.is_served),
        )

    return pool.run(read)


def _examine(connection: TimedConnection) -> ClusterReport:
    found: dict[str, str] = dict(connection.execute(_SETTINGS, (_NAMES,)).fetchall())
    ((standbys,),) = rows_of(connection, _STANDBYS)
    missing = tuple(row[0] for row in rows_of(connection, _MISSING, (list(TABLES),)))
    warnings = [
        f"The server runs with {name} = off: it can lose or damage data."
        for name in ("fsync", "full_page_writes")
        if found[name] == "off"
    ]
    if rows_of(connection, _IS_SUPERUSER) == [(True,)]:
        warnings.append("The role is a superuser, which treedb does not need.")
    return ClusterReport(
        found["server_version"],
        found["synchronous_standby_names"],
        standbys,
        missing,
        tuple(warnings),
    )


_AT_ONCE: Final = 500
_OLD: Final = (
    "DELETE FROM {table} WHERE db = %s AND {number} IN ("
    "SELECT {number} FROM {table} WHERE db = %s"
    " AND {number} < (SELECT {number} FROM dbs WHERE db = %s) - %s"
    " AND at < now() - make_interval(secs => %s)"
    " ORDER BY {number} LIMIT %s)"
)
_STATEMENTS: Final = tuple(
    _OLD.format(table=table, number=number)
    for table, number in (("log", "seq"), ("changes", "rev"))
)


def trim(pool: SessionPool, db: int, *, retain: int, age_s: float) -> int:
    """Drop what is older than `age_s` but for the newest `retain`; return how many records.

    Any daemon may do that at any time, in statements so small that no commit waits for them. The
    newest entries of the log and the newest commits stay, and so does all that is young; the last
    commit is never dropped, because copies are compared with it.

    Blocks, in any thread. Raises `StoreUnreachable`.
    """
    dropped = 0
    for statement in _STATEMENTS:
        parameters = (db, db, db, max(0, retain), age_s, _AT_ONCE)
        while True:
            count = pool.run(partial(_delete, statement, parameters))
            dropped += count
            if count < _AT_ONCE:
                break
    return dropped


def _delete(statement: str, parameters: tuple[float, ...], connection: TimedConnection) -> int:
    return connection.execute(statement.encode(), parameters).rowcount
