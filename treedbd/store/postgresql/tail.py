"""The tail: what other daemons have committed, as hints that are fast and a poll that is sure.

A hint is a notification of PostgreSQL with the number of a database. It may be lost, above all when
another server takes over, and is never believed: who receives one, or sees a poll that is ahead of
its copy, fetches. A hint is sent after the commit, in a transaction of its own: within the commit
it would take a lock of the whole server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.connection import (
    PostgresqlSettings,
    Session,
    TimedConnection,
    rows_of,
)
from treedbd.store.postgresql.read_index import DatabaseState, states_of

_LISTEN: Final = "LISTEN treedb"
_NOTIFY: Final = "SELECT pg_notify('treedb', db::text) FROM unnest(%b::integer[]) AS new (db)"


class Tail:
    """Receives hints and polls over one connection, for one thread."""

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
        """Return how far databases have come, with one query; raise `StoreUnreachable`."""
        return self._session.run(lambda connection: states_of(connection, list(dbs)))

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
    """Sends hints over a connection of its own; those that come meanwhile are sent together."""

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
