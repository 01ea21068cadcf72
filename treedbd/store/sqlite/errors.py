"""What the errors of SQLite mean."""

from __future__ import annotations

import os
import pathlib

import apsw

from treedbd.files import FULL_ERRNOS
from treedbd.store.engine import (
    CannotOpenStore,
    DamagedPage,
    DiskFull,
    StoreDamaged,
    StoreFailed,
    StoreInaccessible,
)
from treedbd.store.sqlite.failed_reads import find_failed_read

SQLITE_ERRORS = (
    apsw.IOError,
    apsw.FullError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.NoMemError,
)
"""Errors that occur in correct programs, too; any other error of the engine is a bug of ours."""

WRONG_SUM = "a page does not match its check sum"

LOCK_ERRORS = (apsw.BusyError, apsw.LockedError)
"""Those of them that end by themselves, when another program releases its lock."""


def classify_error(connection: apsw.Connection, error: apsw.Error) -> StoreFailed | DiskFull:
    """Return what one of `SQLITE_ERRORS` means for the transaction in which it occurred.

    No space for a write is `DiskFull`: the commit frame was not written. No space for a sync, or
    for the index of the log, is reported when it has been written: that is `StoreFailed`.
    """
    is_write = result_code(error) == apsw.SQLITE_IOERR_WRITE
    if isinstance(error, apsw.FullError) or (is_write and connection.system_errno in FULL_ERRNOS):
        return DiskFull()
    if result_code(error) == apsw.SQLITE_IOERR_DATA:
        return DamagedPage(WRONG_SUM)
    if isinstance(error, apsw.CorruptError | apsw.NotADBError) and not find_failed_read(connection):
        return StoreDamaged(describe(error))
    return StoreFailed(describe(error))


def describe(error: Exception) -> str:
    """Return a message, that of the engine with its result code; for a damaged page what it is."""
    if not isinstance(error, apsw.Error):
        return str(error)
    code = result_code(error)
    if code == apsw.SQLITE_IOERR_DATA:
        return WRONG_SUM
    return f"{error} ({apsw.mapping_extended_result_codes.get(code, code)})"


def result_code(error: apsw.Error) -> int:
    """Return the extended result code of an error."""
    code: int = getattr(error, "extendedresult", apsw.SQLITE_ERROR)
    return code


def cannot_open(
    path: pathlib.Path, error: apsw.Error, connection: apsw.Connection | None = None
) -> CannotOpenStore:
    """Return what to raise for one of `SQLITE_ERRORS` that occurred while a file was opened.

    `connection` is the one where it occurred, if that is still open.
    """
    if isinstance(error, apsw.NotADBError):
        return foreign(path)
    if isinstance(error, (*LOCK_ERRORS, apsw.ProtocolError)):
        return StoreInaccessible(path, "is locked by another program", "stop that program first")
    failed_read = 0 if connection is None else find_failed_read(connection)
    if failed_read:
        return inaccessible(path, os.strerror(failed_read))
    if result_code(error) == apsw.SQLITE_IOERR_DATA:
        return damaged(path, WRONG_SUM)
    if isinstance(error, apsw.CorruptError):
        return damaged(path, str(error))
    return inaccessible(path, describe(error))


def foreign(path: pathlib.Path) -> CannotOpenStore:
    """Return what to raise for a file that is no shelf."""
    return CannotOpenStore(
        path,
        "is not a database of treedb",
        "move it out of the data directory, or restore the database from a backup",
    )


def damaged(path: pathlib.Path, reason: str) -> CannotOpenStore:
    """Return what to raise for a damaged file."""
    return CannotOpenStore(
        path,
        f"is damaged ({reason})",
        "restore it from a backup, after removing the -wal and the -shm beside it",
    )


def inaccessible(path: pathlib.Path, reason: str) -> StoreInaccessible:
    """Return what to raise for a file that cannot be opened at present."""
    return StoreInaccessible(
        path,
        f"cannot be opened ({reason})",
        "let the user that runs treedb read and write it and its directory, and check the disk",
    )
