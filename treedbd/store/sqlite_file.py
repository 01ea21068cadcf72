"""A shelf file: how it is made, recognised and connected to, and what its troubles mean.

One SQLite file holds one database (so `db` is always 1; the column is there because the tables are
the same in every engine that has tables). In the three tables rows are small and hot, or large and
rare:

- `kv` is an ordinary table with an index over the keys. A WITHOUT ROWID table keeps whole values
  in the inner pages of its tree: with rows of up to 4 KiB that made random inserts 3 to 10 times
  slower. What it is better at, a scan of rows that came in random order, costs 1 µs a row here
  instead of 0.2.
- `log` is keyed by its number alone, which SQLite appends to fastest.
- `dbs` keeps the number of the last entry, which outlives the entries.

Pages are 4 KiB: with 8 and 16 KiB a commit of one row wrote 2 and 4 times as much to the
write-ahead log and took 25 and 35 per cent longer, and reads gained nothing.

The write-ahead log is begun anew by the writing connection alone. SQLite makes the entry of its
file in the directory durable by itself, before the first commit in it.
"""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Mapping

import apsw

from treedbd.store.files import FULL_ERRNOS
from treedbd.store.mapping import Failed, Full, Refused

APPLICATION_ID = 0x74726462
FORMAT = 1
PAGE_BYTES = 4096
BUSY_MS = 1000
"""How long others that have a lock on the file are waited for."""

_OLDEST_SQLITE = (3, 51, 3)

_TABLES = {
    "dbs": "CREATE TABLE dbs(db INTEGER PRIMARY KEY, seq INTEGER NOT NULL) STRICT",
    "kv": (
        "CREATE TABLE kv(db INTEGER NOT NULL, k BLOB NOT NULL, v BLOB NOT NULL, "
        "UNIQUE(db, k)) STRICT"
    ),
    "log": (
        "CREATE TABLE log(db INTEGER NOT NULL, seq INTEGER PRIMARY KEY, "
        "op_id BLOB NOT NULL, entry BLOB NOT NULL) STRICT"
    ),
}

_WRITING: dict[str, int | str] = {
    "journal_mode": "wal",
    "synchronous": 2,
    "fullfsync": 1,
    "checkpoint_fullfsync": 1,
    "wal_autocheckpoint": 0,  # the mapping does it, and looks at the outcome
    "journal_size_limit": 16 * 1024 * 1024,
    "cache_spill": 0,  # nothing is written before the commit, which may wait in a thread
    "cache_size": -8192,
}
_READING: dict[str, int | str] = {"query_only": 1, "wal_autocheckpoint": 0, "cache_size": -8192}
_ALWAYS: dict[str, int | str] = {
    "mmap_size": 0,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "temp_store": 2,
}

TROUBLE = (
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
"""What can go wrong with a sound program; any other error of the engine is a mistake of ours."""

LOCKED = (apsw.BusyError, apsw.LockedError)
"""Those of them that pass by themselves, when another program has done its work."""


def beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    """Return the path of a file that belongs to the shelf at `path`."""
    return path.with_name(path.name + suffix)


def empty_file() -> bytes:
    """Return the content of the file of a database that nothing has been written to."""
    connection = apsw.Connection(":memory:")
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", FORMAT)
    for statement in _TABLES.values():
        connection.execute(statement)
    connection.execute("INSERT INTO dbs VALUES(1, 0)")
    content = bytearray(connection.serialize("main"))
    connection.close()
    content[18:20] = b"\x02\x02"  # "write-ahead log", https://www.sqlite.org/fileformat.html#vnums
    return bytes(content)


def check_file(path: pathlib.Path) -> None:
    """Raise `Refused`, or FileNotFoundError, for what is not a file with something in it."""
    try:
        status = path.stat()
    except PermissionError as error:
        raise _unusable(path, os.strerror(error.errno or 0)) from None
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{path} is not a file: move it out of the data directory.")
    if status.st_size == 0:
        raise Refused(
            f"{path} is empty, which no database is: remove it, with the -wal and the -shm "
            "beside it, and restore it from a backup or begin a new database."
        )
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _unusable(path, "Permission denied")


def connect_writer(path: pathlib.Path) -> apsw.Connection:
    """Connect for writing and recognise the file; raise `Refused`, or `Full` for lack of space."""
    _check_library()
    try:
        connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE)
    except TROUBLE as error:
        raise refusal(path, error) from error
    try:
        _recognise(path, connection)
        _set(path, connection, _WRITING)
    except TROUBLE as error:
        failure = trouble(connection, error)
        connection.close()
        if isinstance(failure, Full) or _code(error) == apsw.SQLITE_IOERR_SHMSIZE:
            raise Full("The disk is full.") from error
        raise refusal(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: pathlib.Path) -> apsw.Connection:
    """Connect for reading to a file that a writing connection is open on; raise `Failed`."""
    try:
        connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        _set(path, connection, _READING)
    except TROUBLE as error:
        raise Failed(describe(error)) from error
    return connection


def trouble(connection: apsw.Connection, error: apsw.Error) -> Failed | Full:
    """Tell what an error, one of `TROUBLE`, means for whoever was writing.

    No space for a write is `Full`: the mark that ends a transaction in the log was not written. No
    space for a sync, or for the index of the log, is found out when the mark is there: `Failed`.
    """
    is_write = _code(error) == apsw.SQLITE_IOERR_WRITE
    if isinstance(error, apsw.FullError) or (is_write and connection.system_errno in FULL_ERRNOS):
        return Full("The disk is full.")
    return Failed(describe(error))


def describe(error: apsw.Error) -> str:
    """Say what the engine said, and its own name for it."""
    code = _code(error)
    return f"{error} ({apsw.mapping_extended_result_codes.get(code, code)})"


def _code(error: apsw.Error) -> int:
    code: int = getattr(error, "extendedresult", apsw.SQLITE_ERROR)
    return code


def _check_library() -> None:
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:3]) < _OLDEST_SQLITE:
        raise Refused(
            f"The SQLite library {version} can damage files of databases that are in use: "
            f"install an apsw that carries {'.'.join(map(str, _OLDEST_SQLITE))} or newer."
        )


def _recognise(path: pathlib.Path, connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MS)
    if connection.pragma("application_id") != APPLICATION_ID:
        raise _foreign(path)
    version = connection.pragma("user_version")
    if version != FORMAT:
        raise Refused(
            f"{path} has format {version} and this version of treedb knows format {FORMAT}: "
            "use the version that wrote it."
        )
    found = dict(
        connection.execute("SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    )
    if not _TABLES.items() <= found.items():
        raise _damaged(path, "its tables are not those of a database of treedb")
    if connection.execute("SELECT count(*), max(db) FROM dbs").get != (1, 1):
        raise _damaged(path, "its sequence number is missing")


def _set(path: pathlib.Path, connection: apsw.Connection, pragmas: Mapping[str, int | str]) -> None:
    """Set what is to be set, and look whether it is; a wrong pragma is otherwise passed over."""
    connection.set_busy_timeout(BUSY_MS)
    for name, value in {**_ALWAYS, **pragmas}.items():
        connection.pragma(name, value)
        if (found := connection.pragma(name)) != value:
            raise Refused(
                f"{path} cannot be served from where it lies, {name} stays {found}: "
                "put it on a local file system."
            )


def refusal(path: pathlib.Path, error: apsw.Error) -> Refused:
    """Return, for an error of `TROUBLE` met in opening a file, the sentence that refuses it."""
    if isinstance(error, apsw.NotADBError):
        return _foreign(path)
    if isinstance(error, (*LOCKED, apsw.ProtocolError)):
        return Refused(f"{path} is locked by another program: end that one first.")
    if isinstance(error, apsw.CorruptError):
        return _damaged(path, str(error))
    return _unusable(path, describe(error))


def _foreign(path: pathlib.Path) -> Refused:
    return Refused(
        f"{path} is not a database of treedb: move it out of the data directory, "
        "or restore the database from a backup."
    )


def _damaged(path: pathlib.Path, reason: str) -> Refused:
    return Refused(
        f"{path} is damaged ({reason}): restore it from a backup, after the -wal and the -shm "
        "beside it have been removed."
    )


def _unusable(path: pathlib.Path, reason: str) -> Refused:
    return Refused(
        f"{path} cannot be opened ({reason}): let the user that runs treedb read and write it "
        "and its directory, and see whether the medium is sound."
    )
