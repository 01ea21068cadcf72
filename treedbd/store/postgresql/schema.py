"""The tables in PostgreSQL, how they are created, and how older ones are migrated.

- `meta` says which version the tables have, and which cluster they belong to: a random id by which
  a local copy is recognised as one of another cluster; and whether all was moved away (`moving`).
- `projects` holds the rules of each project and their epoch, which grows with each replacement;
  `rules_versions` what they were replaced by last, each with its time and who put it.
- `dbs` has one row for each database, which decides between commits: `rev` counts them, `seq` is
  the number of the last entry of the log, `epoch` repeats that of the project; a database whose
  epoch is negative takes no commits.
- `kv` holds the rows, byte for byte those of every copy, and `log` the entries of the change log.
- `changes` says which rows a commit touched (`commits.Touched`), and identifies it by a random
  `token`.
- `daemons` says which daemons there are, how far each has come with each database, and how many
  commits it has made and lost to others since its start.
- `owners` and `owner_dbs` say which daemons live that have writes for the end of their sessions,
  and in which databases (`cluster.Leases`).
- `readers` says which daemon reads the change logs for a purpose (`cluster.ReaderLeases`).

A daemon needs the right to create only when it creates or migrates the tables; later SELECT,
INSERT, UPDATE and DELETE are enough.
"""

from __future__ import annotations

from typing import Final

import psycopg

from treedbd.store.engine import CannotOpenStore
from treedbd.store.postgresql.connection import PostgresqlSettings, Session, TimedConnection

VERSION: Final = 4
"""The version of the tables that this version of treedb makes and knows."""
LOCK_CLASS: Final = 0x74726462
"""The first key of all advisory locks.

The second is the number of a database, 0 for the tables, -1 for `treedb move`.
"""
MOVED: Final = "moved"
"""The name in `meta` that says that all databases were moved away, and where to."""
TABLES: Final = (
    *("meta", "projects", "dbs", "kv", "log", "changes", "daemons"),
    *("owners", "owner_dbs", "rules_versions", "readers"),
)

# Not `to_regclass`: it may not see what was committed while this transaction waited for a lock.
_HAS_TABLES: Final = (
    "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'treedb' AND tablename = 'meta')"
)
_VERSION: Final = "SELECT value FROM treedb.meta WHERE name = 'version'"
_CLUSTER: Final = "SELECT value FROM meta WHERE name = 'cluster'"
_SET_VERSION: Final = "UPDATE treedb.meta SET value = %s WHERE name = 'version'"
_LOCK: Final = f"SELECT pg_advisory_xact_lock({LOCK_CLASS}, 0)"

_CREATE: Final = """
CREATE SCHEMA IF NOT EXISTS treedb;
CREATE TABLE treedb.meta (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE treedb.projects (
    project text PRIMARY KEY, rules bytea, epoch bigint NOT NULL DEFAULT 1
);
CREATE TABLE treedb.dbs (
    db integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project text NOT NULL, name text NOT NULL,
    seq bigint NOT NULL DEFAULT 0, rev bigint NOT NULL DEFAULT 0, epoch bigint NOT NULL,
    UNIQUE (project, name)
) WITH (fillfactor = 50);
CREATE TABLE treedb.kv (
    db integer NOT NULL, k bytea NOT NULL, v bytea NOT NULL, PRIMARY KEY (db, k)
);
CREATE TABLE treedb.log (
    db integer NOT NULL, seq bigint NOT NULL, op bytea NOT NULL, entry bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (db, seq)
);
CREATE TABLE treedb.changes (
    db integer NOT NULL, rev bigint NOT NULL, seq bigint NOT NULL, token bytea NOT NULL,
    touched bytea NOT NULL, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (db, rev)
);
CREATE TABLE treedb.daemons (
    daemon text PRIMARY KEY, address text NOT NULL, version text NOT NULL,
    seen timestamptz NOT NULL, revs jsonb NOT NULL,
    commits bigint NOT NULL DEFAULT 0, conflicts bigint NOT NULL DEFAULT 0
);
INSERT INTO treedb.meta VALUES ('version', '1'), ('cluster', gen_random_uuid()::text);
"""

_LEASES: Final = """
CREATE TABLE treedb.owners (
    owner text PRIMARY KEY, ends timestamptz NOT NULL, is_over boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);
CREATE TABLE treedb.owner_dbs (
    owner text NOT NULL, project text NOT NULL, name text NOT NULL,
    PRIMARY KEY (owner, project, name)
);
ALTER TABLE treedb.daemons ADD COLUMN has_leases boolean NOT NULL DEFAULT false;
"""

_RULES_VERSIONS: Final = """
CREATE TABLE treedb.rules_versions (
    project text NOT NULL, version bigint NOT NULL, rules bytea NOT NULL,
    at_ms bigint, uid text, is_admin boolean NOT NULL DEFAULT false,
    PRIMARY KEY (project, version)
);
"""

_READERS: Final = """
CREATE TABLE treedb.readers (
    name text PRIMARY KEY, owner text NOT NULL, ends timestamptz NOT NULL
) WITH (fillfactor = 50);
"""

_MIGRATIONS: Final[dict[int, str]] = {2: _LEASES, 3: _RULES_VERSIONS, 4: _READERS}
"""Statements that make the version of the key from the one before it, all in one transaction."""


def prepare_schema(settings: PostgresqlSettings) -> bytes:
    """Create the tables, or migrate older ones; return the id of the cluster, 16 bytes.

    Several daemons may do that at once. Raises `StoreUnreachable`, or `CannotOpenStore` if the
    tables are newer or the role may not create them.
    """
    session = Session(settings)
    try:
        return session.run(lambda connection: _prepare(connection, settings.subject))
    finally:
        session.close()


def read_schema(settings: PostgresqlSettings) -> bytes | None:
    """Return the id of the cluster, 16 bytes; None without tables. Nothing is changed.

    Raises `StoreUnreachable`, or `CannotOpenStore` if the tables are older or newer.
    """
    session = Session(settings)
    try:
        return session.run(lambda connection: _read(connection, settings.subject))
    finally:
        session.close()


def _read(connection: TimedConnection, subject: str) -> bytes | None:
    version = _find_version(connection, subject)
    if version == 0:
        return None
    if version < VERSION:
        raise CannotOpenStore(
            subject, f"has tables of the older version {version}", "start a daemon with it once"
        )
    return _read_cluster(connection)


def _read_cluster(connection: TimedConnection) -> bytes:
    (cluster,) = connection.execute(_CLUSTER).fetchone() or ("",)
    return bytes.fromhex(cluster.replace("-", ""))


def _prepare(connection: TimedConnection, subject: str) -> bytes:
    if _find_version(connection, subject) != VERSION:
        connection.execute("BEGIN")
        connection.execute(_LOCK)
        version = _find_version(connection, subject)  # another daemon may have been faster
        try:
            _migrate(connection, version)
        except psycopg.errors.InsufficientPrivilege as error:
            raise CannotOpenStore(
                subject,
                f"lacks the tables of version {VERSION}, and this role cannot create them",
                "start once with a role that may create the schema treedb",
            ) from error
        connection.execute("COMMIT")
    return _read_cluster(connection)


def _find_version(connection: TimedConnection, subject: str) -> int:
    """Return the version of the tables, 0 without tables; raise `CannotOpenStore` for newer."""
    try:
        if connection.execute(_HAS_TABLES).fetchone() != (True,):
            return 0
        row = connection.execute(_VERSION).fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise CannotOpenStore(
            subject,
            "does not let this role read the tables of treedb",
            "grant it USAGE on the schema treedb, and SELECT, INSERT, UPDATE and DELETE on its "
            "tables",
        ) from error
    version = int(row[0]) if row else 0
    if version > VERSION:
        raise CannotOpenStore(
            subject,
            f"has tables of version {version}, and this version of treedb knows versions up to "
            f"{VERSION}",
            "use the version that wrote them, or a newer one",
        )
    return version


def _migrate(connection: TimedConnection, version: int) -> None:
    if version == 0:
        connection.execute(_CREATE)
        version = 1
    for target in range(version + 1, VERSION + 1):
        connection.execute(_MIGRATIONS[target].encode())
        connection.execute(_SET_VERSION, (str(target),))
