"""What a daemon has of one database in PostgreSQL, for tests that play several daemons."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import select
import time
from typing import Any

from tests.closing import Closing
from treedbd.store.engine import LogEntry, ReadView, StoreUnreachable
from treedbd.store.postgresql.cluster import DatabaseState, PostgresqlCluster
from treedbd.store.postgresql.commits import END_OF_ROWS
from treedbd.store.postgresql.connection import DEFAULT_PATIENCE_S, PostgresqlSettings

PROJECT = "demo"
_numbers = itertools.count()

Content = dict[bytes, bytes]


class DaemonSide(Closing):
    """The connections and the engine of one daemon.

    Attributes:
        cluster: the connections.
        db: the number of the database.
        engine: the engine.

    """

    def __init__(
        self,
        dsn: str,
        folder: pathlib.Path,
        *,
        name: str | None = None,
        retain: int = 1000,
        **settings: Any,
    ) -> None:
        """Open the database `name`, or a new one."""
        self.dsn = dsn
        self.name = name or f"database-{next(_numbers)}"
        self._retain = retain
        self._settings = settings
        self._path = folder / "default.shelf"
        self.cluster = PostgresqlCluster(PostgresqlSettings(dsn, **settings), retain=retain)
        self.db, *_, epoch = self.cluster.projects.create_database(PROJECT, self.name)
        self.engine = self.cluster.open_engine(self._path, self.db, epoch=epoch, reserve_bytes=4096)
        self.engine.catch_up()

    def beside(self, folder: pathlib.Path, **settings: Any) -> DaemonSide:
        """Return another daemon with the same database."""
        settings = {**self._settings, **settings}
        dsn = settings.pop("dsn", self.dsn)
        return DaemonSide(dsn, folder, name=self.name, retain=self._retain, **settings)

    def reopen(self) -> None:
        """Close the copy and open it again, without a fetch."""
        self.engine.close()
        self.open_copy()

    def open_copy(self) -> None:
        """Open the copy, which was closed, without a fetch."""
        epoch = self.engine.epoch
        self.engine = self.cluster.open_engine(self._path, self.db, epoch=epoch, reserve_bytes=4096)

    def put(self, *rows: tuple[bytes, bytes], op: bytes | None = b"op") -> None:
        """Commit some rows, with an entry of the log unless `op` is None."""
        transaction = self.engine.begin()
        try:
            for key, value in rows:
                transaction.put(key, value)
            if op is not None:
                transaction.append(op, b"entry " + op)
            transaction.commit()
        except BaseException:
            transaction.rollback()
            raise

    def ask(self, *dbs: int) -> dict[int, DatabaseState]:
        """Ask how far databases are, and return the confirmed answer."""
        index = self.cluster.read_index
        connection = index.connect()
        try:
            index.begin(connection, dbs)
            end = time.monotonic() + self._settings.get("patience_s", DEFAULT_PATIENCE_S)
            while (states := index.receive(connection)) is None:
                if not select.select([connection], [], [], max(0, end - time.monotonic()))[0]:
                    raise StoreUnreachable("Nobody has confirmed the answer.")
        finally:
            connection.give_up()
        return states

    def rows(self) -> Content:
        """Return all rows of the copy."""
        return self.engine.read(_everything)

    def log(self) -> list[LogEntry]:
        """Return the log of the copy."""
        return self.engine.read(lambda view: list(view.entries(0)))

    def stored_rows(self, node: Any) -> Content:
        """Return all rows that a server holds of the database."""
        return dict(node.query("SELECT k, v FROM treedb.kv WHERE db = %s", (self.db,)))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may be closed already
            self.engine.close()
        self.cluster.close()


def _everything(view: ReadView) -> Content:
    return dict(view.scan(b"", END_OF_ROWS))
