"""What is done to a shelf, or its log, as a whole: at its opening, in recovery, when compacting."""

from __future__ import annotations

from typing import Final

import apsw

from treedbd.store.engine import DiskFull
from treedbd.store.sqlite.errors import LOCK_ERRORS, SQLITE_ERRORS, classify_error
from treedbd.store.sqlite.file import FORMAT

_IN_FILES: Final = 1
_IN_MEMORY: Final = 2
"""Where SQLite puts what is temporary."""


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


def vacuum(connection: apsw.Connection) -> None:
    """Write the file again, in one transaction, without free space.

    What is temporary goes to files meanwhile: the database need not fit into memory.
    """
    connection.pragma("temp_store", _IN_FILES)
    try:
        connection.execute("VACUUM")
    finally:
        connection.pragma("temp_store", _IN_MEMORY)
