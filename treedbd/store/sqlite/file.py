"""The file of a shelf: created, recognised and connected to; and what errors of SQLite mean.

One SQLite file holds one database (so `db` is always 1; the column exists because the tables are
the same in every engine that has tables). There are three tables:

- `kv` holds the rows: an ordinary table with an index over the keys. A WITHOUT ROWID table keeps
  whole values in the inner pages of its tree: with rows of up to 4 KiB that made random inserts 3
  to 10 times slower. What it does better, a scan of rows that were inserted in random order, costs
  1 µs a row here instead of 0.2.
- `log` is keyed by the sequence number alone, to which SQLite appends fastest.
- `dbs` keeps the last sequence number, which outlives the entries of the log.

Pages are 4 KiB: with 8 and 16 KiB a commit of one row wrote 2 and 4 times as much to the
write-ahead log and took 25 and 35 per cent longer, and reads gained nothing.

Only the writing connection restarts the write-ahead log. SQLite makes the entry of the log file in
the directory durable by itself, before the first commit in it.

**Errors.** `classify_error` says what an error means for a transaction, `cannot_open` what it means
for an opening. A disk that could not be read is not a file that is damaged (`find_failed_read`).

**Check sums of pages** notice a bit that has changed on the disk. Each page ends with eight
reserved bytes that hold a sum of the others. SQLite's own extension computes it when a page is
written to the file, which a checkpoint does, and compares it when a page is read from there:
https://www.sqlite.org/cksumvfs.html. The wheels of apsw include that extension. It is a layer over
the files of the system (a VFS), and leaves files alone that reserve no such bytes.

In the write-ahead log the reserved bytes mean nothing: each frame has a check sum of SQLite, which
is compared when the log is first read, and what follows one that is wrong does not count. A page
that a checkpoint has written in part is not damage: until the file is synced, the log has that
page, and reads find it there.

**Sleeps.** How long SQLite sleeps in the reactor's thread is bounded (`allow_bounds`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import pathlib
import stat
import struct
import threading
import time
from collections.abc import Mapping
from typing import Final

import apsw
from apsw import sqlite_extra

from treedbd.files import FULL_ERRNOS
from treedbd.store.engine import (
    CannotOpenStore,
    DamagedPage,
    DiskFull,
    StoreDamaged,
    StoreFailed,
    StoreInaccessible,
)

APPLICATION_ID = 0x74726462
FORMAT = 5
"""The format of the rows, `user_version` of the file; `convert` knows the older ones."""
_OLDEST_FORMAT = 1
PAGE_BYTES = 4096
_SUMS_SINCE = 5
"""The first format whose pages have check sums."""
_NO_SUMS = "its header does not say that its pages have check sums"
_HEADER_BYTES = 100
"""The header of a file, https://www.sqlite.org/fileformat.html#the_database_header"""
_MAGIC = b"SQLite format 3\0"
BUSY_MS = 1000
"""Milliseconds to wait for another process that has locked the file."""
TURN_BUSY_MS = 5
"""The same in the reactor's thread, where everything else waits."""
_AWAITED_BUSY_MS = 10
"""The same between two checks of the time, while the end of a transaction is awaited."""

LOG = "-wal"
"""What the name of the write-ahead log has after that of the file."""

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
    "wal_autocheckpoint": 0,  # `writer` checkpoints, and checks the result
    "journal_size_limit": 16 * 1024 * 1024,
    "cache_spill": 0,  # nothing is written before the commit, which waits in a thread
    "cache_size": -8192,
}
_CACHING: dict[str, int | str] = {"synchronous": 1}
_READING: dict[str, int | str] = {"query_only": 1, "wal_autocheckpoint": 0, "cache_size": -8192}
_ALWAYS: dict[str, int | str] = {
    "mmap_size": 0,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "temp_store": 2,
}


class OlderFormat(CannotOpenStore):
    """A file of an older format, `version`, which is converted when it is opened for writing."""

    def __init__(self, path: pathlib.Path, version: int) -> None:
        super().__init__(
            path,
            f"has format {version}, which is converted to format {FORMAT} before it is served",
            "start the daemon once, or open the file for writing",
        )
        self.version = version


def beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    """Return the path of a file that belongs to the shelf at `path`."""
    return path.with_name(path.name + suffix)


def log_of(path: pathlib.Path) -> pathlib.Path:
    """Return the path of the write-ahead log: SQLite follows a link to the file before it."""
    return beside(path.resolve(), LOG)


@functools.cache
def empty_file(version: int = FORMAT) -> bytes:
    """Return the content of the file of an empty database, of a format."""
    has_sums = version >= _SUMS_SINCE
    connection = apsw.Connection(":memory:")
    connection.pragma("page_size", PAGE_BYTES)
    if has_sums:
        reserve_sums(connection)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", version)
    for statement in _TABLES.values():
        connection.execute(statement)
    connection.execute("INSERT INTO dbs VALUES(1, 0)")
    content = bytearray(connection.serialize("main"))
    connection.close()
    content[18:20] = b"\x02\x02"  # "write-ahead log", https://www.sqlite.org/fileformat.html#vnums
    if has_sums:
        write_sums(content, PAGE_BYTES)
    return bytes(content)


def connect(path: pathlib.Path, flags: int = apsw.SQLITE_OPEN_READWRITE) -> apsw.Connection:
    """Connect to a file, so that the check sums of its pages are compared and kept, if it has any.

    What writes to a file in another way leaves pages that count as damaged. Raises one of
    `SQLITE_ERRORS`, or `CannotOpenStore`.
    """
    check_library()
    return apsw.Connection(os.fspath(path), flags=flags, vfs=VFS)


def check_file(path: pathlib.Path, access: int = os.R_OK | os.W_OK) -> None:
    """Raise `CannotOpenStore`, or FileNotFoundError, unless `path` is a file with data.

    `access` is what this process must be allowed, as in `os.access`.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise inaccessible(path, os.strerror(error.errno or 0)) from None
    if not stat.S_ISREG(status.st_mode):
        raise CannotOpenStore(path, "is not a file", "move it out of the data directory")
    if status.st_size == 0:
        raise CannotOpenStore(
            path,
            "is empty, which no database is",
            "remove it, with the -wal and the -shm beside it, and restore it from a backup or "
            "start with a new database",
        )
    if not os.access(path, access, effective_ids=os.access in os.supports_effective_ids):
        raise inaccessible(path, "Permission denied")


def read_format(path: pathlib.Path) -> int:
    """Return the format of a file, by its first bytes.

    Raises FileNotFoundError, or `CannotOpenStore` if it is foreign or newer. That is cheap: nothing
    is locked, and the file is not opened as a database.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise inaccessible(path, os.strerror(error.errno or 0)) from None
    if not header.startswith(_MAGIC) or _number(header, 68) != APPLICATION_ID:
        raise foreign(path)
    version = _number(header, 60)
    if version > FORMAT:
        raise _newer(path, version)
    return version


def connect_writer(
    path: pathlib.Path, version: int = FORMAT, *, is_cache: bool = False
) -> apsw.Connection:
    """Connect for writing and check that the format is `version`.

    The commits of a file that `is_cache` are not synced: a power failure may undo the last ones,
    and damages nothing. Raises `DiskFull` or `CannotOpenStore`, for an older format `OlderFormat`.
    """
    try:
        connection = connect(path)
    except SQLITE_ERRORS as error:
        raise cannot_open(path, error) from error
    try:
        _check_format(path, connection, version)
        _set_pragmas(path, connection, {**_WRITING, **_CACHING} if is_cache else _WRITING)
    except SQLITE_ERRORS as error:
        failure = classify_error(connection, error)
        reason = cannot_open(path, error, connection)
        connection.close()
        if isinstance(failure, DiskFull) or result_code(error) == apsw.SQLITE_IOERR_SHMSIZE:
            raise DiskFull from error
        raise reason from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(
    path: pathlib.Path, *, is_known: bool = True, version: int = FORMAT
) -> apsw.Connection:
    """Connect for reading.

    With `is_known` this process has the file open for writing, and any error is `StoreFailed`.
    Otherwise it is checked that the format is `version`, and any error is `CannotOpenStore`, for an
    older format `OlderFormat`.
    """
    try:
        connection = connect(path, apsw.SQLITE_OPEN_READONLY)
    except SQLITE_ERRORS as error:
        raise StoreFailed(describe(error)) if is_known else cannot_open(path, error) from error
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if not is_known:
            _check_format(path, connection, version)
        elif not compares_sums(connection):
            raise StoreDamaged(_NO_SUMS)
        if is_known:
            allow_bounds(connection)
            this_thread.sleep_us = SLEEP_US
            _set_pragmas(path, connection, _READING)
            connection.set_busy_timeout(TURN_BUSY_MS)
        else:
            _set_pragmas(path, connection, _READING)
    except SQLITE_ERRORS as error:
        failure = StoreFailed(describe(error)) if is_known else cannot_open(path, error, connection)
        connection.close()
        raise failure from error
    except BaseException:
        connection.close()
        raise
    finally:
        this_thread.sleep_us = None
    return connection


def set_cache_size(connection: apsw.Connection, size: int) -> None:
    """Keep about `size` bytes of pages in the memory of a connection at most."""
    connection.pragma("cache_size", -(size // 1024))  # in KiB, if negative


def _number(header: bytes, at: int) -> int:
    return int.from_bytes(header[at : at + 4], "big")


def check_library() -> None:
    """Raise `CannotOpenStore` if files cannot be used with the SQLite that is installed."""
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:3]) < _OLDEST_SQLITE:
        raise CannotOpenStore(
            f"The SQLite library {version}",
            "can damage databases that are in use",
            f"install an apsw with SQLite {'.'.join(map(str, _OLDEST_SQLITE))} or newer",
        )
    if not load_sums():
        raise CannotOpenStore(
            f"The SQLite library {version}",
            "cannot compare the check sums of pages",
            "install an apsw that includes SQLite's extension cksumvfs, as its wheels do",
        )
    if "ENABLE_CARRAY" not in apsw.compile_options:  # `reader` looks many keys up at once
        raise CannotOpenStore(
            f"The SQLite library {version}",
            "cannot look up a list of keys",
            "install an apsw that includes SQLite's extension carray, as its wheels do",
        )


def _check_format(path: pathlib.Path, connection: apsw.Connection, version: int) -> None:
    connection.set_busy_timeout(BUSY_MS)
    try:
        _check_header(path, connection, version)
        _check_tables(path, connection)
    except (apsw.SQLError, UnicodeDecodeError):  # of a file without check sums
        raise damaged(path, "its schema cannot be read") from None


def _check_header(path: pathlib.Path, connection: apsw.Connection, version: int) -> None:
    if connection.pragma("application_id") != APPLICATION_ID:
        raise foreign(path)
    present = connection.pragma("user_version")
    if present != version and _OLDEST_FORMAT <= present < FORMAT:
        raise OlderFormat(path, present)
    if present != version:
        raise _newer(path, present)
    if version >= _SUMS_SINCE and not compares_sums(connection):
        raise damaged(path, _NO_SUMS)


def _check_tables(path: pathlib.Path, connection: apsw.Connection) -> None:
    found = dict(
        connection.execute("SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    )
    if not _TABLES.items() <= found.items():
        raise damaged(path, "its tables are not those of a database of treedb")
    if connection.execute("SELECT count(*), max(db) FROM dbs").get != (1, 1):
        raise damaged(path, "its sequence number is missing")


def _set_pragmas(
    path: pathlib.Path, connection: apsw.Connection, pragmas: Mapping[str, int | str]
) -> None:
    """Set pragmas and read them back: SQLite ignores one that it cannot set."""
    connection.set_busy_timeout(BUSY_MS)
    for name, value in {**_ALWAYS, **pragmas}.items():
        connection.pragma(name, value)
        if (found := connection.pragma(name)) != value:
            raise CannotOpenStore(
                path,
                f"cannot be served from its file system, {name} stays {found}",
                "put it on a local file system",
            )


def _newer(path: pathlib.Path, version: int) -> CannotOpenStore:
    return CannotOpenStore(
        path,
        f"has format {version} and this version of treedb knows formats up to {FORMAT}",
        "use the version that wrote it",
    )


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
"""Errors that occur in correct programs too; any other error of the engine is a bug here."""

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
    """Return what to raise for a file that is not a shelf."""
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


VFS: Final = "cksmvfs"
SUM_BYTES: Final = 8
RESERVED_AT: Final = 20
"""Where the header of a file says how many bytes a page reserves."""
_WORDS: Final = 0xFFFFFFFF


@functools.cache
def load_sums() -> bool:
    """Load the extension for connections that name `VFS`; return whether apsw includes it."""
    default = apsw.vfs_names()[0]
    try:
        with apsw.Connection(":memory:") as connection:
            sqlite_extra.load(connection, "cksumvfs")
        connection.close()
    except (LookupError, sqlite_extra.NotAvailable, apsw.Error):
        return False
    apsw.set_default_vfs(default)
    return VFS in apsw.vfs_names()


def compares_sums(connection: apsw.Connection) -> bool:
    """Return whether the check sums of the pages that a connection reads are compared.

    They are not if the header of the file says that pages have none.
    """
    return bool(connection.pragma("checksum_verification") == "1")


def reserve_sums(connection: apsw.Connection) -> None:
    """Reserve the bytes of a sum in the pages of a database without tables."""
    reserved = ctypes.c_int(SUM_BYTES)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))


def write_sums(content: bytearray, page_bytes: int) -> None:
    """Set the sums of all pages in the content of a file."""
    for at in range(0, len(content), page_bytes):
        end = at + page_bytes - SUM_BYTES
        content[end : end + SUM_BYTES] = _sum(bytes(content[at:end]))


def _sum(page: bytes) -> bytes:
    first = second = 0
    for even, odd in struct.iter_unpack("<II", page):
        first = (first + even + second) & _WORDS
        second = (second + odd + first) & _WORDS
    return struct.pack("<II", first, second)


_READ_ERRNOS: Final = frozenset({errno.EIO, errno.ENXIO, errno.ERANGE})
"""Those that SQLite takes for damage."""


class _Methods(ctypes.Structure):
    """The methods of an open file, https://www.sqlite.org/c3ref/io_methods.html."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("others", ctypes.c_void_p * 9),
        (
            "file_control",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
        ),
    )


class _File(ctypes.Structure):
    """An open file, https://www.sqlite.org/c3ref/file.html."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


def find_failed_read(connection: apsw.Connection) -> int:
    """Return the errno of a read of the file or of its log that failed last; 0 if none did.

    SQLite reports both a disk that could not be read and a file that is damaged as a malformed
    file, because there are file systems that answer EIO for what they know to be damaged. But EIO
    may be over soon, as when a network disk is away for a moment, and a backup should not be
    restored for that. The error of the system is kept for each open file, which
    `SQLITE_FCNTL_LAST_ERRNO` reads:
    https://www.sqlite.org/c3ref/c_fcntl_begin_atomic_write.html
    """
    number = ctypes.c_int()
    connection.file_control("main", apsw.SQLITE_FCNTL_LAST_ERRNO, ctypes.addressof(number))
    if number.value not in _READ_ERRNOS:
        number.value = 0
        log = ctypes.POINTER(_File)()
        connection.file_control("main", apsw.SQLITE_FCNTL_JOURNAL_POINTER, ctypes.addressof(log))
        if log and log.contents.methods:
            log.contents.methods.contents.file_control(
                ctypes.addressof(log.contents),
                apsw.SQLITE_FCNTL_LAST_ERRNO,
                ctypes.addressof(number),
            )
    return number.value if number.value in _READ_ERRNOS else 0


SLEEP_US: Final = 5_000
"""Microseconds for which a bounded call may sleep: other processes hold these locks for less."""

_Sleep = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _FileSystem(ctypes.Structure):
    """A file system of SQLite, https://www.sqlite.org/c3ref/vfs.html."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_bytes", ctypes.c_int),
        ("others", ctypes.c_void_p * 12),
        ("sleep", _Sleep),
    )


class _Thread(threading.local):
    """One thread.

    Attributes:
        sleep_us: for how many microseconds SQLite may still sleep in it, None for as long as it
            wants.

    """

    sleep_us: int | None = None


this_thread: Final = _Thread()
"""Set `sleep_us` before a call that may sleep, and to None after it.

No context manager: each read would call two functions more.
"""
_replaced: Final[dict[int, tuple[object, object]]] = {}
"""The functions before and after, by the address of the file system: neither may be freed."""
_lock: Final = threading.Lock()


def allow_bounds(connection: apsw.Connection) -> None:
    """Let `this_thread.sleep_us` bound the sleeps of a connection and its whole file system.

    To begin to read, SQLite locks a part of the index of the log, and tries up to 100 times if that
    fails, with sleeps of ten seconds in all. Where the system refuses a lock, or its release, every
    read of that file would take so long. No setting bounds that: so the function of SQLite that
    sleeps is replaced (`xSleep`, https://www.sqlite.org/c3ref/vfs.html), and sleeps as before
    unless its thread has a bound. Without sleeps the 100 attempts take about a millisecond, and the
    read fails.
    """
    pointer = ctypes.POINTER(_FileSystem)()
    connection.file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(pointer))
    if not pointer:
        return
    address = ctypes.addressof(pointer.contents)
    with _lock:
        if address in _replaced:
            return
        system = pointer.contents
        # A copy: the field is about to change.
        sleep = _Sleep(ctypes.cast(system.sleep, ctypes.c_void_p).value or 0)

        def sleep_bounded(vfs: int, microseconds: int) -> int:
            left = this_thread.sleep_us
            if left is not None:
                microseconds = min(microseconds, left)
                this_thread.sleep_us = left - microseconds
            return int(sleep(vfs, microseconds)) if microseconds else 0

        bounded = _Sleep(sleep_bounded)
        _replaced[address] = (sleep, bounded)
        system.sleep = bounded


def await_writers(shelf: pathlib.Path, patience_s: float) -> None:
    """Wait until no transaction is open that began before the lock was taken; in any process.

    A daemon looks for its lock between the begin of a transaction and its end, so what begins later
    is not committed. Raises `StoreFailed`.
    """
    limit = time.monotonic() + patience_s
    try:
        with contextlib.closing(connect(shelf)) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.set_busy_timeout(_AWAITED_BUSY_MS)
            while not _try_write(connection):
                if time.monotonic() >= limit:
                    raise StoreFailed(f"{shelf} is being written for too long.")
    except apsw.Error as error:
        raise StoreFailed(f"{shelf} cannot be locked ({error}).") from error


def _try_write(connection: apsw.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return False
    connection.execute("ROLLBACK")
    return True
