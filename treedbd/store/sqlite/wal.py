"""What is done to the write-ahead log of a shelf as a whole: at its opening and in recovery."""

from __future__ import annotations

import apsw

from treedbd.store.engine import DiskFull
from treedbd.store.sqlite.errors import LOCK_ERRORS, SQLITE_ERRORS, classify_error
from treedbd.store.sqlite.file import FORMAT


def last_sequence(connection: apsw.Connection) -> int:
    """Return the number of the last entry of the change log."""
    number: int = connection.execute("SELECT seq FROM dbs WHERE db = 1").get
    return number


def commit_nothing(connection: apsw.Connection) -> None:
    """Commit one page with the content that it has already."""
    try:
        connection.execute(f"BEGIN IMMEDIATE; PRAGMA user_version = {FORMAT}; COMMIT")
    except SQLITE_ERRORS:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def checkpoint_all(connection: apsw.Connection) -> None:
    """Checkpoint the whole log and empty it, unless older readers or a full disk prevent it."""
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except LOCK_ERRORS:
        pass
    except SQLITE_ERRORS as error:
        if not isinstance(classify_error(connection, error), DiskFull):
            raise
