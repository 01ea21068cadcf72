"""What daemons share in PostgreSQL: projects, the read index, hints, leases, and their state.

`PostgresqlCluster` is all that a daemon has of it: the connections, and what uses them. Each role
has connections of its own, so that none waits for another: some for commits, some for fetches and
projects, one for the read index, one for the tail and one for hints. All are made when they are
needed, and again after an error. All methods block and may be called in any thread.

- `ProjectStore`: the rules of projects and the databases in them.
- `ReadIndex`: how far databases have come, which a read must have reached to be current.
- `Tail` and `Notifier`: what other daemons have committed, as hints that are fast and polls that
  are sure.
- `VolatileChannel`: what is volatile, to all daemons in one order.
- `Leases`: which daemons live whose sessions have left writes for their end.
- `ReaderLeases`: which daemon reads the change logs for a purpose.

A daemon checks the server before it serves (`check_cluster`), records that it runs
(`send_heartbeat`), and drops old records (`trim`); `read_status` returns what all daemons have
recorded, for operators.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import pathlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import attrs
import orjson
import psycopg
from psycopg.pq.abc import PGresult

from treedbd.limits import RULES_VERSIONS
from treedbd.names import DatabaseName
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotOpenStore, StoreUnreachable
from treedbd.store.hooks import HOOK_FIRST
from treedbd.store.indexes import DISCONNECT_END, DISCONNECT_FIRST
from treedbd.store.postgresql.commits import CommitCounts, CommitSender
from treedbd.store.postgresql.connection import (
    PostgresqlSettings,
    Session,
    SessionPool,
    TimedConnection,
    begin_query,
    check_confirmed,
    commit_confirmed,
    confirm,
    connect,
    find_answer,
    int4_array,
    prepare,
    rows_of,
    unreachable,
)
from treedbd.store.postgresql.engine import DatabaseIdentity, PostgresqlEngine, open_copy
from treedbd.store.postgresql.fetching import Fetcher, read_held
from treedbd.store.postgresql.schema import MOVED, TABLES, prepare_schema
from treedbd.store.rules_versions import UNKNOWN, Origin, RulesReplaced, RulesVersion, mark_current
from treedbd.store.sqlite.engine import RESERVE_BYTES

T = TypeVar("T")

_READ_RULES: Final = "SELECT rules, epoch FROM projects WHERE project = %s"
_READ_EPOCH: Final = "SELECT epoch FROM projects WHERE project = %s"
PUT_RULES: Final = (
    "INSERT INTO projects (project, rules, epoch) VALUES (%s, %b, 2)"
    " ON CONFLICT (project) DO UPDATE SET rules = excluded.rules, epoch = projects.epoch + 1"
    " RETURNING epoch"
)
_LOCK_RULES: Final = "SELECT rules, epoch FROM projects WHERE project = %s FOR UPDATE"
_KEEP_UNVERSIONED: Final = (
    "INSERT INTO rules_versions (project, version, rules)"
    " SELECT project, 1 + coalesce((SELECT max(version) FROM rules_versions AS r"
    " WHERE r.project = p.project), 0), rules FROM projects AS p"
    " WHERE project = %s AND rules IS NOT NULL AND NOT EXISTS"
    " (SELECT FROM rules_versions AS r WHERE r.project = p.project AND r.rules = p.rules)"
)
"""Makes a version of the rules in force if they are none: they are older, or were moved here."""
_ADD_VERSION: Final = (
    "INSERT INTO rules_versions (project, version, rules, at_ms, uid, is_admin)"
    " SELECT %s, 1 + coalesce(max(version), 0), %b, %s, %s, %s"
    " FROM rules_versions WHERE project = %s"
)
_TRIM_VERSIONS: Final = (
    "DELETE FROM rules_versions WHERE project = %s AND version <="
    " (SELECT max(version) FROM rules_versions WHERE project = %s) - %s"
)
_LIST_VERSIONS: Final = (
    "SELECT version, at_ms, uid, is_admin, length(r.rules),"
    " r.rules IS NOT DISTINCT FROM p.rules FROM rules_versions AS r"
    " LEFT JOIN projects AS p ON p.project = r.project WHERE r.project = %s ORDER BY version"
)
_READ_VERSION: Final = "SELECT rules FROM rules_versions WHERE project = %s AND version = %s"
SET_EPOCHS: Final = "UPDATE dbs SET epoch = %s WHERE project = %s AND epoch >= 0"
GET_META: Final = "SELECT value FROM meta WHERE name = %s"
ADD_PROJECT: Final = "INSERT INTO projects (project) VALUES (%s) ON CONFLICT DO NOTHING"
LOCK_PROJECT: Final = "SELECT epoch FROM projects WHERE project = %s FOR UPDATE"
_ALL: Final = "SELECT db, project, name, seq, rev, epoch FROM dbs ORDER BY project, name"
_SELECT: Final = "SELECT db, project, name, seq, rev, epoch FROM dbs WHERE project = %s"
_FIND: Final = _SELECT + " AND name = %s"
_LIST_NAMES: Final = _SELECT + ' ORDER BY name COLLATE "C"'
_COUNT: Final = "SELECT count(*) FROM dbs WHERE project = %s"
_HEADS: Final = "SELECT project, name, seq FROM dbs"
_HOOKED: Final = (
    "SELECT project, name FROM dbs WHERE EXISTS (SELECT FROM kv WHERE kv.db = dbs.db AND kv.k = %s)"
)
_CREATE: Final = (
    "INSERT INTO dbs (project, name, epoch) VALUES (%s, %s, %s)"
    " RETURNING db, project, name, seq, rev, epoch"
)
FIRST_EPOCH: Final = 1
"""The epoch of a project whose rules have never been written."""

PART: Final = ".part"
"""What the project of a database has at the end whose copy is not complete (`moving`)."""
OLD: Final = ".old"
"""What the project of a database has at the end that was replaced, and is being removed."""


class StoredDatabase(NamedTuple):
    """A database as its row in PostgreSQL describes it."""

    db: int
    project: str
    name: str
    seq: int
    rev: int
    epoch: int

    @property
    def is_served(self) -> bool:
        """Whether it is a database of a project, not one that only a move knows."""
        return not self.project.endswith((PART, OLD))


def list_all(connection: TimedConnection) -> list[StoredDatabase]:
    """Return all databases, also those that are incomplete or were replaced."""
    return [StoredDatabase(*row) for row in rows_of(connection, _ALL)]


class LookedUp(NamedTuple):
    """The epoch of the rules of a project, and one of its databases; None if there is none."""

    epoch: int
    database: StoredDatabase | None


class StoredRules(NamedTuple):
    """The text of the rules of a project, None if none were ever written, and their epoch."""

    text: bytes | None
    epoch: int


class TooManyDatabases(Exception):
    """A project has as many databases as it may have; `limit` is their number."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


class ProjectStore:
    """Reads and writes projects: their rules, and the databases in them.

    The epoch of a project grows with every replacement of its rules, there and in the row of each
    of its databases, in one transaction: so a daemon that judges by older rules loses its next
    commit. Nothing is answered from memory, and what was read counts when it is confirmed as the
    settings require.

    All raise `StoreUnreachable`. A write that raises it may have been applied all the same: it is
    right to do it again.
    """

    def __init__(self, pool: SessionPool, *, is_strict: bool) -> None:
        """Borrow connections of `pool`."""
        self._pool = pool
        self._is_strict = is_strict

    def read_rules(self, project: str) -> StoredRules:
        """Return the rules of a project."""

        def read(connection: TimedConnection) -> StoredRules:
            found = rows_of(connection, _READ_RULES, (project,))
            return StoredRules(*found[0]) if found else StoredRules(None, FIRST_EPOCH)

        return self._read(read)

    def put_rules(
        self, project: str, text: bytes, origin: Origin = UNKNOWN, known: int | None = None
    ) -> int:
        """Replace the rules of a project; return their epoch.

        Other rules than those before are a version of `origin`. Raises `RulesReplaced` unless the
        epoch of those before is `known`, or that is None.
        """

        def put(connection: TimedConnection) -> int:
            connection.execute("BEGIN")
            connection.execute(ADD_PROJECT, (project,))
            ((before, present),) = rows_of(connection, _LOCK_RULES, (project,))
            refuse_moved(connection)
            if known not in {None, int(present)}:
                raise RulesReplaced
            if before is None or bytes(before) != text:
                by = (origin.time, origin.uid, origin.is_admin)
                connection.execute(_KEEP_UNVERSIONED, (project,))
                connection.execute(_ADD_VERSION, (project, text, *by, project))
                connection.execute(_TRIM_VERSIONS, (project, project, RULES_VERSIONS))
            ((epoch,),) = rows_of(connection, PUT_RULES, (project, text))
            connection.execute(SET_EPOCHS, (epoch, project))
            commit_confirmed(connection)
            return int(epoch)

        return self._pool.run(put)

    def list_rules_versions(self, project: str) -> list[RulesVersion]:
        """Return the versions of the rules that are kept, the newest first."""
        return self._read(lambda connection: _list_versions(connection, project)[0])

    def read_rules_version(self, project: str, number: int) -> bytes | None:
        """Return the text of a version; None if it is not kept."""

        def read(connection: TimedConnection) -> bytes | None:
            found = rows_of(connection, _READ_VERSION, (project, number))
            if found:
                return bytes(found[0][0])
            versions, stored = _list_versions(connection, project)
            return stored if [each.number for each in versions[:1]] == [number] else None

        return self._read(read)

    def look_up(self, project: str, name: str) -> LookedUp:
        """Return a database, and the epoch of the rules of its project."""

        def look(connection: TimedConnection) -> LookedUp:
            epochs = rows_of(connection, _READ_EPOCH, (project,))
            found = rows_of(connection, _FIND, (project, name))
            epoch = epochs[0][0] if epochs else FIRST_EPOCH
            return LookedUp(epoch, StoredDatabase(*found[0]) if found else None)

        return self._read(look)

    def find_database(self, project: str, name: str) -> StoredDatabase | None:
        """Return a database, None if there is none."""
        found = self._read(lambda connection: rows_of(connection, _FIND, (project, name)))
        return StoredDatabase(*found[0]) if found else None

    def create_database(self, project: str, name: str, limit: int | None = None) -> StoredDatabase:
        """Return a database, which is created if there is none.

        Raises `TooManyDatabases` if the project has `limit` of them.
        """

        def create(connection: TimedConnection) -> StoredDatabase:
            connection.execute("BEGIN")
            connection.execute(ADD_PROJECT, (project,))
            # A replacement of the rules waits until the new row has the epoch, or comes first.
            ((epoch,),) = rows_of(connection, LOCK_PROJECT, (project,))
            found = rows_of(connection, _FIND, (project, name))
            if not found:
                refuse_moved(connection)
            if not found and limit is not None:
                ((count,),) = rows_of(connection, _COUNT, (project,))
                if count >= limit:
                    raise TooManyDatabases(limit)
            found = found or rows_of(connection, _CREATE, (project, name, epoch))
            commit_confirmed(connection)
            confirm(connection)
            return StoredDatabase(*found[0])

        return self._pool.run(create)

    def list_databases(self, project: str) -> list[StoredDatabase]:
        """Return the databases of a project, by their names."""
        found = self._read(lambda connection: rows_of(connection, _LIST_NAMES, (project,)))
        return [StoredDatabase(*row) for row in found]

    def heads(self) -> dict[DatabaseName, int]:
        """Return the number of the last log entry of each database that is served, in one query.

        What no standby has confirmed counts too: it says where to look for entries, not which.
        """
        found = self._pool.run(lambda connection: rows_of(connection, _HEADS))
        return {
            DatabaseName(project, name): seq
            for project, name, seq in found
            if not project.endswith((PART, OLD))
        }

    def hooked(self) -> set[DatabaseName]:
        """Return the databases that have hooks of their own."""
        found = self._pool.run(lambda connection: rows_of(connection, _HOOKED, (HOOK_FIRST,)))
        return {DatabaseName(project, name) for project, name in found}

    def _read(self, read: Callable[[TimedConnection], T]) -> T:
        def read_and_confirm(connection: TimedConnection) -> T:
            result = read(connection)
            if self._is_strict:
                confirm(connection)
            return result

        return self._pool.run(read_and_confirm)


def _list_versions(
    connection: TimedConnection, project: str
) -> tuple[list[RulesVersion], bytes | None]:
    """Return the versions of the rules, the newest first, and the text of the rules."""
    found = rows_of(connection, _READ_RULES, (project,))
    stored = found[0][0] if found else None
    versions, current = [], None
    for number, time_ms, uid, is_admin, size, is_equal in rows_of(
        connection, _LIST_VERSIONS, (project,)
    ):
        versions.append(RulesVersion(number, Origin(time_ms, uid, is_admin), size))
        current = number if is_equal else current
    stored = None if stored is None else bytes(stored)
    return mark_current(versions, current, stored, UNKNOWN), stored


def refuse_moved(connection: TimedConnection) -> None:
    """Raise `StoreUnreachable` if all was moved away.

    A statement that writes to `projects` must precede it: that waits for a move that is under way.
    """
    if rows_of(connection, GET_META, (MOVED,)):
        raise StoreUnreachable("The data was moved away from this PostgreSQL.")


_STATEMENTS: Final = {
    # The message makes it a transaction that writes. The databases are joined to it, so that it is
    # there whatever there is of them, and it is in the answer: else it would be optimised away.
    "ask (integer[])": (
        "SELECT d.db, d.seq, d.rev, d.epoch, written.at FROM"
        " (SELECT pg_logical_emit_message(true, 'treedb', '') AS at) AS written"
        " LEFT JOIN dbs AS d ON d.db = ANY($1)"
    )
}
STATES: Final = "SELECT db, seq, rev, epoch FROM dbs WHERE db = ANY(%b::integer[])"


class DatabaseState(NamedTuple):
    """How far a database has come: entries of the log, commits, and the epoch of its rules."""

    seq: int
    rev: int
    epoch: int


class ReadIndex:
    """Reads how far databases have come, over a connection that the caller keeps.

    One query serves all reads that were waiting when it was sent: the caller collects them. It is
    sent in a transaction that writes, and its answer is used when that has been confirmed: a
    primary that was cut off still answers queries, and no such transaction ends there
    (`connection.confirm`).

    Nothing waits for it: `connect`, in any thread, then `begin`, and `receive` whenever the
    connection has something to be read.
    """

    def __init__(self, settings: PostgresqlSettings) -> None:
        self._settings = settings

    def connect(self) -> TimedConnection:
        """Return a connection for queries; blocks. Raises `StoreUnreachable`."""
        connection = connect(self._settings)
        connection.may_cancel = True
        try:
            prepare(connection, _STATEMENTS)
        except psycopg.Error as error:
            connection.close()
            raise unreachable(error) from error
        return connection

    def begin(self, connection: TimedConnection, dbs: Collection[int]) -> None:
        """Send a query; raise `StoreUnreachable`."""
        connection.has_warned = False
        try:
            begin_query(connection, b"ask", (int4_array(dbs),))
        except psycopg.Error as error:
            raise unreachable(error) from error

    def receive(self, connection: TimedConnection) -> dict[int, DatabaseState] | None:
        """Return the confirmed states of databases, None until the answer is complete.

        A database that does not exist is missing. Raises `StoreUnreachable`.
        """
        try:
            found = find_answer(connection)
        except psycopg.Error as error:
            raise unreachable(error) from error
        if found is None:
            return None
        check_confirmed(connection)
        return dict(_decode(found, row) for row in range(found.ntuples) if found.get_value(row, 0))


def _decode(found: PGresult, row: int) -> tuple[int, DatabaseState]:
    values = [found.get_value(row, column) or b"" for column in range(4)]
    db, *state = [int.from_bytes(value, "big", signed=True) for value in values]
    return db, DatabaseState(*state)


_LISTEN: Final = "LISTEN treedb"
_NOTIFY: Final = "SELECT pg_notify('treedb', db::text) FROM unnest(%b::integer[]) AS new (db)"


class Tail:
    """Receives hints and polls over one connection, for one thread.

    A hint is a notification of PostgreSQL with the number of a database. It may be lost, above all
    when another server takes over, and proves nothing: a daemon that receives one, or sees a
    poll that is ahead of its copy, fetches.
    """

    def __init__(
        self, settings: PostgresqlSettings, is_own: Callable[[int], bool] = lambda _: False
    ) -> None:
        """Connect at the first use; hints of a server process that `is_own` are left out."""
        self._is_own = is_own
        self._session = Session(settings, listens=True)
        self._listening: TimedConnection | None = None

    def wait(self, timeout_s: float) -> set[int]:
        """Return the databases that were hinted at, as soon as there are any; blocks.

        Empty after `timeout_s`, and after a connection was made: poll then, since hints may have
        been missed before. Raises `StoreUnreachable`.
        """
        return self._session.run(lambda connection: self._wait(connection, timeout_s))

    def poll(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        """Return how far databases have come as the server shows it, confirmed or not.

        A database that does not exist is missing. Raises `StoreUnreachable`.
        """
        rows = self._session.run(lambda connection: rows_of(connection, STATES, (list(dbs),)))
        return {row[0]: DatabaseState(*row[1:]) for row in rows}

    def close(self) -> None:
        """Close the connection, after `wait` has returned."""
        self._session.close()

    def _wait(self, connection: TimedConnection, timeout_s: float) -> set[int]:
        if connection is not self._listening:
            connection.execute(_LISTEN)
            self._listening = connection
            return set()
        connection.deadline = time.monotonic() + timeout_s + 1
        found = connection.notifies(timeout=timeout_s, stop_after=1)
        others = (each.payload for each in found if not self._is_own(each.pid))
        return {int(payload) for payload in others if payload.isdecimal()}


class Notifier:
    """Sends hints over a connection of its own; those that come meanwhile are sent together.

    A hint is sent after the commit, in a transaction of its own: within the commit it would take a
    lock of the whole server.
    """

    def __init__(self, settings: PostgresqlSettings) -> None:
        """Connect at the first hint."""
        self._session = Session(settings)
        self._lock = threading.Lock()
        self._is_sending = False
        self._process = 0
        self._due: set[int] = set()

    def notify(self, db: int) -> None:
        """Send a hint, or leave it to the thread that is sending; raises nothing."""
        with self._lock:
            self._due.add(db)
            if self._is_sending:
                return
            self._is_sending = True
        while dbs := self._take_due():
            try:
                self._session.run(partial(self._send, dbs))
            except StoreUnreachable:
                continue  # the polls of the others find what was committed

    def is_own(self, process: int) -> bool:
        """Return whether hints of a server process were sent here."""
        return process == self._process

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _send(self, dbs: list[int], connection: TimedConnection) -> None:
        self._process = connection.info.backend_pid
        rows_of(connection, _NOTIFY, (dbs,))

    def _take_due(self) -> list[int]:
        with self._lock:
            dbs = list(self._due)
            self._due.clear()
            self._is_sending = bool(dbs)
        return dbs


_SEND: Final = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS new (payload)"
_CHUNK: Final = 7_900
"""Characters of a message in one notification, which has room for 7,999 in all."""
_MESSAGE_CHARACTERS: Final = 1_000_000
"""What the parts of one message have at most; a longer one was not sent by a daemon."""


_SET_CHANNEL: Final = "SELECT set_config('treedb.channel', %s, false)"
_LISTEN_TO_CHANNEL: Final = (
    "DO $$ BEGIN EXECUTE format('LISTEN %I', current_setting('treedb.channel')); END $$"
)
"""Roles that only watch the server see the text of a statement, and not what it is set to."""


class VolatileChannel:
    """Messages to all daemons, the sender included, which all receive in one order.

    They are notifications of PostgreSQL, whose payloads are short: a longer message is divided, and
    its parts follow each other, since they are sent in one transaction. The name of the channel is
    known only to those who may read the tables, for any role of the database may listen and notify.

    Two connections, one for a thread that sends and one for a thread that receives.
    """

    def __init__(self, settings: PostgresqlSettings, cluster: bytes) -> None:
        """Connect at the first use; `cluster` is the id of the cluster."""
        secret = hashlib.sha256(b"volatile" + cluster).hexdigest()
        self._name: Final = f"treedb_volatile_{secret[:32]}"
        self._sender = os.urandom(6).hex()
        self._sent = 0
        self._sending = Session(settings)
        self._receiving = Session(settings, listens=True)
        self._prepared: TimedConnection | None = None
        self._listening: TimedConnection | None = None
        self._parts: dict[str, list[str]] = {}

    def send(self, messages: Iterable[bytes]) -> None:
        """Send messages in one transaction; raise `StoreUnreachable`."""
        payloads = [part for message in messages for part in self._divide(message)]
        self._sending.run(partial(self._send, payloads))

    def listen(self) -> None:
        """Receive what is sent from now on, over a new connection; raise `StoreUnreachable`."""
        self._receiving.drop()
        self._receiving.run(self._listen)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return messages, as soon as there are any; empty after `timeout_s`.

        Raises `StoreUnreachable` if the connection has ended: then some may have been missed.
        """
        return self._receiving.run(lambda connection: self._receive(connection, timeout_s))

    def close(self) -> None:
        """Close the connections, when the uses under way have ended."""
        self._sending.close()
        self._receiving.close()

    def _divide(self, message: bytes) -> Iterator[str]:
        # Of two equal notifications in one transaction only one is sent, so each has a number.
        encoded = base64.b64encode(message).decode()
        for at in range(0, len(encoded), _CHUNK):
            self._sent += 1
            left = "+" if at + _CHUNK < len(encoded) else "."
            yield f"{self._sender} {self._sent} {left} {encoded[at : at + _CHUNK]}"

    def _send(self, payloads: list[str], connection: TimedConnection) -> None:
        if connection is not self._prepared:
            connection.execute("SET synchronous_commit = off")  # it waits for no disk, no standby
            self._prepared = connection
        rows_of(connection, _SEND, (self._name, payloads))

    def _listen(self, connection: TimedConnection) -> None:
        connection.execute(_SET_CHANNEL, (self._name,))
        connection.execute(_LISTEN_TO_CHANNEL)
        self._listening = connection
        self._parts = {}

    def _receive(self, connection: TimedConnection, timeout_s: float) -> list[bytes]:
        if connection is not self._listening:
            raise StoreUnreachable("PostgreSQL cannot be reached.")
        connection.deadline = time.monotonic() + timeout_s + 1
        found = connection.notifies(timeout=timeout_s, stop_after=1)
        return [message for each in found if (message := self._join(each.payload)) is not None]

    def _join(self, payload: str) -> bytes | None:
        """Return the message that ends with a payload; None if it has more, or is illegible."""
        sender, _, rest = payload.partition(" ")
        _, _, rest = rest.partition(" ")
        left, _, text = rest.partition(" ")
        parts = self._parts.pop(sender, [])
        parts.append(text)
        if left == "+" and len(parts) * _CHUNK < _MESSAGE_CHARACTERS:
            self._parts = {sender: parts}  # those of others are complete, or never will be
            return None
        try:
            return base64.b64decode("".join(parts), validate=True) or None
        except ValueError:
            return None


LEASE_S: Final = 15.0
"""Seconds for which an owner lives after it was last renewed."""
_OLDER_S: Final = 30.0
"""Seconds for which a daemon of a version without leases counts as running after its heartbeat."""

_TAKE: Final = (
    "INSERT INTO owners (owner, ends) VALUES (%s, clock_timestamp() + make_interval(secs => %s))"
    " ON CONFLICT (owner) DO NOTHING"
)
_LIST_LEASES: Final = (
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
    """The leases of owners: which daemons live whose sessions have left writes for their end.

    Theory of operation. A daemon is the *owner* of its sessions (`database.runtime`). It has a row
    in `owners` from its first such write on, and renews it: until `ends`, by PostgreSQL's clock, it
    lives. That alone ends nothing. An owner is dead when another daemon has marked it so
    (`is_over`), which it may do only after `ends`; an owner that comes late, and first, goes on. So
    the row decides, as between commits, and no two daemons can differ about it. An owner that is
    dead stays dead. One without a row is dead too: its row was removed when all was done, or its
    data was moved here. Only daemons of versions before leases have none; as long as one of these
    runs, it may be theirs.

    `owner_dbs` lists the databases in which an owner has ever kept such a write: a row is there
    before the first write is. A dead owner is forgotten when no write of it is left.

    All methods raise `StoreUnreachable`.
    """

    def __init__(self, settings: PostgresqlSettings) -> None:
        """Use connections of its own: a renewal waits for no commit."""
        self._renewing = Session(settings)
        self._session = Session(settings)

    def list_database(self, owner: str, name: DatabaseName, *, begins: bool) -> None:
        """Record durably that an owner keeps writes in a database, and renew or begin its lease.

        Raises `LeaseOver`.
        """

        def add(connection: TimedConnection) -> None:
            connection.execute("BEGIN")
            if begins:
                connection.execute(_TAKE, (owner, LEASE_S))
            connection.execute(_LIST_LEASES, (name.project, name.database, owner))
            renewed = rows_of(connection, _RENEW, (LEASE_S, owner))
            commit_confirmed(connection)
            if not renewed:
                raise LeaseOver

        self._session.run(add)

    def renew(self, owner: str) -> None:
        """Renew the lease of an owner; raise `LeaseOver`."""

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

        self._session.run(end)

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

        return self._session.run(find)

    def which_are_dead(self, owners: Collection[str]) -> set[str]:
        """Return those of some owners that are dead."""

        def query(connection: TimedConnection) -> set[str]:
            has_older = _has_older(connection)
            found = rows_of(connection, _WHICH_DEAD, (list(owners), has_older))
            confirm(connection)
            return {row[0] for row in found}

        return self._session.run(query)

    def find_ownerless(self) -> list[DatabaseName] | None:
        """Return databases that have writes of owners without a row.

        None if these may be of daemons that have no leases.
        """

        def find(connection: TimedConnection) -> list[DatabaseName] | None:
            if _has_older(connection):
                return None
            bounds: tuple[Any, ...] = (DISCONNECT_FIRST, DISCONNECT_END)
            return [DatabaseName(*row) for row in rows_of(connection, _OWNERLESS, bounds)]

        return self._session.run(find)

    def forget(self, owner: str) -> None:
        """Forget databases in which a dead owner has nothing left, and the owner after the last."""

        def remove(connection: TimedConnection) -> None:
            connection.execute("BEGIN")
            _forget(connection, owner)
            connection.execute("COMMIT")

        self._session.run(remove)

    def close(self) -> None:
        """Close the connections, when the uses under way have ended."""
        self._renewing.close()
        self._session.close()


def _has_older(connection: TimedConnection) -> bool:
    """Return whether a daemon of a version without leases runs."""
    return rows_of(connection, _HAS_OLDER, (_OLDER_S,)) == [(True,)]


def _forget(connection: TimedConnection, owner: str) -> None:
    low = DISCONNECT_FIRST + owner.encode("ascii") + b"/"
    connection.execute(_FORGET_DATABASES, (owner, low, low[:-1] + b"0"))
    connection.execute(_FORGET_OWNER, (owner,))


READER_LEASE_S: Final = 5.0
"""Seconds after which a reader that has not renewed its lease may lose it."""

_FIND_READER: Final = "SELECT owner, ends FROM readers WHERE name = %s"
_TAKE_READER: Final = (
    "INSERT INTO readers (name, owner, ends)"
    " VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s))"
    " ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, ends = excluded.ends"
    " WHERE readers.owner = %s AND readers.ends = %s RETURNING name"
)
_RENEW_READER: Final = (
    "UPDATE readers SET ends = clock_timestamp() + make_interval(secs => %s)"
    " WHERE name = %s AND owner = %s RETURNING name"
)
_END_READER: Final = "DELETE FROM readers WHERE name = %s AND owner = %s"


@attrs.frozen
class ReaderLease:
    """The lease of a reader at one moment: whose it is, and when it ends by PostgreSQL's clock."""

    owner: str
    ends: datetime.datetime


class ReaderLeases:
    """The leases of readers: which daemon reads the change logs for a purpose.

    A lease is one row, which its daemon renews, and which another one takes only as it has seen it:
    not if it was renewed meanwhile. When it may be taken is decided by the daemon that takes it
    (`cluster.election`): each renewal makes another `ends`, so two alike mean that there was none.

    All methods block, in any thread, and raise `StoreUnreachable`; what they write counts when it
    is confirmed as a commit.
    """

    def __init__(self, settings: PostgresqlSettings) -> None:
        """Use a connection of its own: a renewal waits for no commit."""
        self._session = Session(settings)

    def find(self, name: str) -> ReaderLease | None:
        """Return the lease of a purpose; None if no daemon has it."""
        found = self._session.run(lambda connection: rows_of(connection, _FIND_READER, (name,)))
        return ReaderLease(*found[0]) if found else None

    def take(self, name: str, owner: str, seen: ReaderLease | None) -> bool:
        """Take a lease that no daemon has, or that is still as it was `seen`; return whether."""
        former = (None, None) if seen is None else (seen.owner, seen.ends)
        return self._write(_TAKE_READER, (name, owner, READER_LEASE_S, *former))

    def renew(self, name: str, owner: str) -> bool:
        """Renew a lease; return False if the daemon does not have it any more."""
        return self._write(_RENEW_READER, (READER_LEASE_S, name, owner))

    def give_up(self, name: str, owner: str) -> None:
        """End a lease before its time, if the daemon has it."""
        self._session.run(lambda connection: connection.execute(_END_READER, (name, owner)))

    def _write(self, statement: str, parameters: tuple[Any, ...]) -> bool:
        def write(connection: TimedConnection) -> bool:
            connection.execute("BEGIN")
            is_done = bool(rows_of(connection, statement, parameters))
            commit_confirmed(connection)
            return is_done

        return self._session.run(write)

    def close(self) -> None:
        """Close the connection, when the use under way has ended."""
        self._session.close()


_OTHER_CONNECTIONS: Final = 8


class PostgresqlCluster:
    """The connections of one daemon, and what uses them.

    Attributes:
        cluster: the id of the cluster, 16 bytes.
        projects: rules and databases.
        leases: which daemons live that have writes for the end of their sessions.
        readers: which daemon reads the change logs for a purpose.
        read_index: how far databases are, for reads.
        tail: what others have committed.
        notifier: notifies others of commits.
        volatile: sends what is volatile to all daemons.
        pool: connections for `status`, and for fetches.

    """

    def __init__(self, settings: PostgresqlSettings, *, retain: int) -> None:
        """Create or migrate the tables if need be; copies get about `retain` log entries.

        Raises `StoreUnreachable` or `CannotOpenStore`.
        """
        self.cluster: Final = prepare_schema(settings)
        self.pool: Final = SessionPool(settings, _OTHER_CONNECTIONS)
        self.projects: Final = ProjectStore(self.pool, is_strict=settings.is_strict)
        self.leases: Final = Leases(settings)
        self.readers: Final = ReaderLeases(settings)
        self.read_index: Final = ReadIndex(settings)
        self.notifier: Final = Notifier(settings)
        self.tail: Final = Tail(settings, self.notifier.is_own)
        self.volatile: Final = VolatileChannel(settings, self.cluster)
        self._commits = SessionPool(settings, settings.commit_connections)
        self._sender = CommitSender(self._commits)
        self._fetcher = Fetcher(self.pool, is_strict=settings.is_strict, retain=retain)
        self._retain = retain

    def open_engine(
        self,
        path: pathlib.Path,
        db: int,
        *,
        epoch: int,
        lock: DirectoryLock | None = None,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> PostgresqlEngine:
        """Open a database with its copy at `path`, which is made if there is none.

        Nothing is fetched: before the first use, `fetch` and `apply_fetched`. `epoch` is that of
        the rules that the daemon has. Raises what `open_copy` raises.
        """
        local = open_copy(path, lock=lock, reserve_bytes=reserve_bytes)
        try:
            return PostgresqlEngine(
                local,
                DatabaseIdentity(self.cluster, db),
                self._sender,
                self._fetcher,
                epoch=epoch,
                retain=self._retain,
            )
        except BaseException:
            local.close()
            raise

    @property
    def counts(self) -> CommitCounts:
        """The commits of all databases since the start, for the heartbeat."""
        return self._sender.counts

    def close(self) -> None:
        """Close all connections; uses that are under way end first."""
        self._commits.close()
        self.pool.close()
        self.leases.close()
        self.readers.close()
        self.tail.close()
        self.notifier.close()
        self.volatile.close()


_SETTINGS: Final = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
_SETTING_NAMES: Final = ["fsync", "full_page_writes", "server_version", "synchronous_standby_names"]
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

    def query(connection: TimedConnection) -> float:
        before = time.time()
        ((theirs,),) = rows_of(connection, _CLOCK)
        return (before + time.time()) / 2 - float(theirs)

    return pool.run(query)


def send_heartbeat(
    pool: SessionPool, daemon: str, version: str, revs: Mapping[int, int], counts: CommitCounts
) -> None:
    """Record that a daemon runs, how far its copies are and what became of its commits.

    Raises `StoreUnreachable`.
    """
    printed = orjson.dumps({str(db): rev for db, rev in revs.items()}).decode()

    def send(connection: TimedConnection) -> None:
        connection.execute("BEGIN")
        connection.execute("SET LOCAL synchronous_commit = off")  # a heartbeat may be lost
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
                daemon=row[0],
                address=row[1],
                version=row[2],
                seen_s=row[3],
                revs={int(db): rev for db, rev in orjson.loads(row[4]).items()},
                counts=CommitCounts(*row[5:]),
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
    found: dict[str, str] = dict(connection.execute(_SETTINGS, (_SETTING_NAMES,)).fetchall())
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
        server_version=found["server_version"],
        standby_names=found["synchronous_standby_names"],
        standbys=standbys,
        missing_rights=missing,
        warnings=tuple(warnings),
    )


_TRIMMED_AT_ONCE: Final = 500
_LAST_NUMBER: Final = 2**63 - 1
_TRIM: Final = (
    "DELETE FROM {table} WHERE db = %s AND {number} IN ("
    "SELECT {number} FROM {table} WHERE db = %s"
    " AND {number} < (SELECT {number} FROM dbs WHERE db = %s) - %s AND {number} <= %s"
    " AND at < now() - make_interval(secs => %s)"
    " ORDER BY {number} LIMIT %s)"
)
_TRIMS: Final = tuple(
    _TRIM.format(table=table, number=number)
    for table, number in (("log", "seq"), ("changes", "rev"))
)


def trim(pool: SessionPool, db: int, *, retain: int, age_s: float) -> int:
    """Drop what is older than `age_s` but for the newest `retain`; return how many records.

    Any daemon may do that at any time, in statements so small that no commit waits for them. The
    newest entries of the log and the newest commits stay, and so does all that is young, and what
    cursors hold of the log; the last commit is never dropped, because copies are compared with it.

    Blocks, in any thread. Raises `StoreUnreachable`.
    """
    dropped = 0
    # A cursor that is made meanwhile is at the end of the log, and no cursor moves back.
    held = pool.run(lambda connection: read_held(connection, db))
    for statement, through in zip(_TRIMS, (held.through, _LAST_NUMBER), strict=True):
        parameters = (db, db, db, max(0, retain), through, age_s, _TRIMMED_AT_ONCE)
        while True:
            count = pool.run(partial(_delete, statement, parameters))
            dropped += count
            if count < _TRIMMED_AT_ONCE:
                break
    return dropped


def _delete(statement: str, parameters: tuple[float, ...], connection: TimedConnection) -> int:
    return connection.execute(statement.encode(), parameters).rowcount
