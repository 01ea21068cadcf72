"""Leases of owners: which daemons live whose sessions have left writes for their end.

Theory of operation. A daemon is the *owner* of its sessions (`database.session_owner`). It has a
row in `owners` from its first such write on, and renews it: until `ends`, by PostgreSQL's clock, it
lives. That alone ends nothing. An owner is dead when another daemon has marked it so (`is_over`),
which it may do only after `ends`; an owner that comes late, and first, goes on. So the row decides,
as between commits, and no two daemons can differ about it. An owner that is dead stays dead. One
without a row is dead too: its row was removed when all was done, or its data was moved here. Only
daemons of versions before leases have none; as long as one of these runs, it may be theirs.

`owner_dbs` lists the databases in which an owner has ever kept such a write: a row is there before
the first write is. A dead owner is forgotten when no write of it is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import attrs

from treedbd.names import DatabaseName
from treedbd.store.indexes import DISCONNECT_END, DISCONNECT_FIRST
from treedbd.store.postgresql.connection import (
    PostgresqlSettings,
    Session,
    TimedConnection,
    commit_confirmed,
    confirm,
    rows_of,
)

LEASE_S: Final = 15.0
"""Seconds for which an owner lives after it was last renewed."""
_OLDER_S: Final = 30.0
"""Seconds for which a daemon of a version without leases counts as running after its heartbeat."""

_TAKE: Final = (
    "INSERT INTO owners (owner, ends) VALUES (%s, clock_timestamp() + make_interval(secs => %s))"
    " ON CONFLICT (owner) DO NOTHING"
)
_LIST: Final = (
    "INSERT INTO owner_dbs (owner, project, name) SELECT owner, %s, %s FROM owners"
    " WHERE owner = %s AND NOT is_over ON CONFLICT DO NOTHING"
)
_RENEW: Final = (
    "UPDATE owners SET ends = clock_timestamp() + make_interval(secs => %s)"
    " WHERE owner = %s AND NOT is_over RETURNING owner"
)
_END: Final = "UPDATE owners SET is_over = true WHERE owner = %s"
_HAS_ENDED: Final = (
    "SELECT EXISTS (SELECT FROM owners WHERE (is_over OR ends < clock_timestamp()) AND owner <> %s)"
)
_JUDGE: Final = (
    "UPDATE owners SET is_over = true"
    " WHERE NOT is_over AND ends < clock_timestamp() AND owner <> %s"
)
_DEAD: Final = (
    "SELECT o.owner, d.project, d.name FROM owners o LEFT JOIN owner_dbs d ON d.owner = o.owner"
    " WHERE o.is_over ORDER BY 1, 2, 3"
)
_HAS_OLDER: Final = (
    "SELECT EXISTS (SELECT FROM daemons WHERE NOT has_leases"
    " AND seen > now() - make_interval(secs => %s))"
)
_WHICH_DEAD: Final = (
    "SELECT u.owner FROM unnest(%s::text[]) AS u (owner)"
    " LEFT JOIN owners o ON o.owner = u.owner"
    " WHERE o.is_over OR (o.owner IS NULL AND NOT %s)"
)
# An owner is a name of one form, so that its rows need not all be read. Not a join: with that a
# large table might be read as a whole.
_OWNERLESS: Final = (
    "SELECT d.project, d.name FROM dbs d WHERE d.epoch >= 0 AND EXISTS (SELECT FROM"
    " (SELECT DISTINCT substring(k FROM 3 FOR position('/'::bytea IN substring(k FROM 3)) - 1)"
    " AS owner FROM kv WHERE kv.db = d.db AND kv.k >= %b AND kv.k < %b OFFSET 0) AS found"
    " WHERE NOT EXISTS (SELECT FROM owners o WHERE o.owner = convert_from(found.owner, 'LATIN1')))"
)
_FORGET_DATABASES: Final = (
    "DELETE FROM owner_dbs o WHERE o.owner = %s AND NOT EXISTS (SELECT FROM dbs d JOIN kv"
    " ON kv.db = d.db WHERE d.project = o.project AND d.name = o.name"
    " AND kv.k >= %b AND kv.k < %b)"
)
_FORGET_OWNER: Final = (
    "DELETE FROM owners o WHERE o.owner = %s AND o.is_over"
    " AND NOT EXISTS (SELECT FROM owner_dbs d WHERE d.owner = o.owner)"
)


class LeaseOver(Exception):
    """Others have found that an owner is dead: it must be another one from now on."""


@attrs.frozen
class DeadLease:
    """An owner whose lease has ended, and the databases that it lists."""

    owner: str
    names: Sequence[DatabaseName]


class Leases:
    """The owners in PostgreSQL; all methods block, in any thread, and raise `StoreUnreachable`."""

    def __init__(self, settings: PostgresqlSettings) -> None:
        """Use connections of its own: a renewal waits for no commit."""
        self._renewing = Session(settings)
        self._asking = Session(settings)

    def list_database(self, owner: str, name: DatabaseName, *, begins: bool) -> None:
        """Record durably that an owner keeps writes in a database, and renew or begin its lease.

        Raises `LeaseOver`.
        """

        def add(connection: TimedConnection) -> None:
            connection.execute("BEGIN")
            if begins:
                connection.execute(_TAKE, (owner, LEASE_S))
            connection.execute(_LIST, (name.project, name.database, owner))
            renewed = rows_of(connection, _RENEW, (LEASE_S, owner))
            commit_confirmed(connection)
            if not renewed:
                raise LeaseOver

        self._asking.run(add)

    def renew(self, owner: str) -> None:
        """Let an owner live on; raise `LeaseOver`."""

        def extend(connection: TimedConnection) -> None:
            connection.execute("BEGIN")
            renewed = rows_of(connection, _RENEW, (LEASE_S, owner))
            commit_confirmed(connection)
            if not renewed:
                raise LeaseOver

        self._renewing.run(extend)

    def end(self, owner: str) -> None:
        """End a lease before its time, and forget the owner if it has left nothing."""

        def end(connection: TimedConnection) -> None:
            connection.execute("BEGIN")
            connection.execute(_END, (owner,))
            _forget(connection, owner)
            commit_confirmed(connection)

        self._asking.run(end)

    def find_dead(self, own: str, *, may_judge: bool) -> list[DeadLease]:
        """Return the owners that are dead; with `may_judge` those are whose lease has ended."""

        def find(connection: TimedConnection) -> list[DeadLease]:
            if rows_of(connection, _HAS_ENDED, (own,)) == [(False,)]:
                return []
            connection.execute("BEGIN")
            if may_judge:
                connection.execute(_JUDGE, (own,))
            found: dict[str, list[DatabaseName]] = {}
            for owner, project, name in rows_of(connection, _DEAD):
                names = found.setdefault(owner, [])
                if project is not None:
                    names.append(DatabaseName(project, name))
            connection.execute("COMMIT")
            confirm(connection)
            return [DeadLease(owner, names) for owner, names in found.items()]

        return self._asking.run(find)

    def which_are_dead(self, owners: Collection[str]) -> set[str]:
        """Return those of some owners that are dead."""

        def ask(connection: TimedConnection) -> set[str]:
            has_older = _has_older(connection)
            found = rows_of(connection, _WHICH_DEAD, (list(owners), has_older))
            confirm(connection)
            return {row[0] for row in found}

        return self._asking.run(ask)

    def find_ownerless(self) -> list[DatabaseName] | None:
        """Return databases that have writes of owners without a row.

        None if these may be of daemons that have no leases.
        """

        def find(connection: TimedConnection) -> list[DatabaseName] | None:
            if _has_older(connection):
                return None
            bounds: tuple[Any, ...] = (DISCONNECT_FIRST, DISCONNECT_END)
            return [DatabaseName(*row) for row in rows_of(connection, _OWNERLESS, bounds)]

        return self._asking.run(find)

    def forget(self, owner: str) -> None:
        """Forget databases in which a dead owner has nothing left, and it if there is no other."""

        def remove(connection: TimedConnection) -> None:
            connection.execute("BEGIN")
            _forget(connection, owner)
            connection.execute("COMMIT")

        self._asking.run(remove)

    def close(self) -> None:
        """Close the connections, when the uses under way have ended."""
        self._renewing.close()
        self._asking.close()


def _has_older(connection: TimedConnection) -> bool:
    """Return whether a daemon of a version without leases runs."""
    return rows_of(connection, _HAS_OLDER, (_OLDER_S,)) == [(True,)]


def _forget(connection: TimedConnection, owner: str) -> None:
    low = DISCONNECT_FIRST + owner.encode("ascii") + b"/"
    connection.execute(_FORGET_DATABASES, (owner, low, low[:-1] + b"0"))
    connection.execute(_FORGET_OWNER, (owner,))
