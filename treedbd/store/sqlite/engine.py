"""The embedded engine: one SQLite file, `<database>.shelf`.

It has three kinds of connections: one that writes and checkpoints (`writer`), one for reads of the
present moment, each of which ends before anything else can run, and one for each snapshot. Beside
the file are its write-ahead log, the index of the log (both SQLite's) and the reserve (`reserve`).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import Final

import apsw

from treedbd.files import FULL_ERRNOS, create_directory, write_atomically
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.sqlite.file import (
    SQLITE_ERRORS,
    beside,
    check_file,
    connect_reader,
    empty_file,
)
from treedbd.store.sqlite.reader import SqliteReader, SqliteSnapshot
from treedbd.store.sqlite.reserve import Reserve
from treedbd.store.sqlite.writer import SqliteWriter

RESERVE_BYTES: Final = 1024 * 1024

_RESERVE: Final = "-reserve"
_LOG: Final = "-wal"
_SUFFIXES: Final = ("", _LOG, "-shm", _RESERVE)
_SPARE_CONNECTIONS: Final = 4


class SqliteEngine:
    """An `Engine` over one file, which no other process writes.

    Attributes:
        read: runs work on the present moment (`SqliteReader.read`).
        begin: opens the one transaction (`SqliteWriter.begin`).

    """

    @classmethod
    def create(cls, path: pathlib.Path, *, reserve_bytes: int = RESERVE_BYTES) -> SqliteEngine:
        """Create the file and its directory, and open it.

        A process that is killed meanwhile leaves either no file or a good one. Raises `DiskFull`,
        or `CannotOpenStore` if the file or its log exists already or it cannot be created.
        """
        for existing in (path, beside(path, _LOG)):
            if os.path.lexists(existing):
                raise CannotOpenStore(
                    existing, "exists already", "move it out of the data directory"
                )
        try:
            create_directory(path.parent)
            write_atomically(path, empty_file())
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise DiskFull from error
            raise CannotOpenStore(
                path,
                f"cannot be created ({error.strerror})",
                "let the user that runs treedb write to its directory",
            ) from error
        try:
            return cls._open(path, reserve_bytes)
        except BaseException:
            for suffix in _SUFFIXES:
                beside(path, suffix).unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, path: pathlib.Path, *, reserve_bytes: int = RESERVE_BYTES) -> SqliteEngine:
        """Open the file; raise FileNotFoundError, or `CannotOpenStore`."""
        check_file(path)
        try:
            return cls._open(path, reserve_bytes)
        except DiskFull as error:
            raise CannotOpenStore(
                path, "cannot be opened because the disk is full", "make room"
            ) from error

    @classmethod
    def _open(cls, path: pathlib.Path, reserve_bytes: int) -> SqliteEngine:
        reserve = Reserve(beside(path, _RESERVE), reserve_bytes)
        try:
            writer = SqliteWriter(path)
        except DiskFull:
            reserve.release()  # opening needs room for the index of the log
            writer = SqliteWriter(path)
        try:
            return cls(path, writer, reserve)
        except BaseException:
            writer.close()
            raise

    def __init__(self, path: pathlib.Path, writer: SqliteWriter, reserve: Reserve) -> None:
        """Not to be called directly: `create` and `open` return engines."""
        self._path = path
        self._writer = writer
        self.begin: Final = writer.begin
        self._reserve = reserve
        self._connection = connect_reader(path)
        self.read: Final = SqliteReader(self._connection).read
        self._spare: list[apsw.Connection] = []
        self._snapshots: set[SqliteSnapshot] = set()
        self.restore_reserve()

    def snapshot(self) -> SqliteSnapshot:
        """Hold the present moment open; raise `StoreFailed`.

        Until it is closed the log cannot be restarted, and grows.
        """
        connection = self._spare.pop() if self._spare else connect_reader(self._path)
        snapshot = SqliteSnapshot(connection, self._snapshot_closed)
        self._snapshots.add(snapshot)
        return snapshot

    def recover(self) -> None:
        """Bring the file back from disk and verify it; raise `StoreFailed`."""
        self._writer.recover()

    def release_reserve(self) -> None:
        """Release the reserve and checkpoint, so that the space of the log can be used again."""
        with contextlib.suppress(OSError):
            self._reserve.release()
        self._writer.checkpoint()

    def restore_reserve(self) -> bool:
        """Allocate the reserve if there is room for it twice, if need be by truncating the log."""
        try:
            if self._reserve.restore():
                return True
            self._writer.truncate_log()
            return self._reserve.restore()
        except OSError:
            return False

    def find_damage(self) -> str | None:
        """Check the structure of the whole file; return the first thing that is wrong with it."""
        try:
            found = str(self._connection.execute("PRAGMA quick_check(1)").get)
        except SQLITE_ERRORS as error:
            return str(error)
        return None if found == "ok" else "; ".join(_messages(found))

    def verify(self) -> list[str]:
        """Read the whole file; return what is damaged, one sentence each."""
        try:
            with contextlib.closing(connect_reader(self._path)) as connection:
                connection.execute("BEGIN")
                return [*_damage(connection), *_gaps(connection)]
        except (StoreFailed, *SQLITE_ERRORS) as error:
            return [f"The file cannot be read: {error}."]

    def size(self) -> int:
        """Return the bytes of the file and of those beside it, the reserve included."""
        total = 0
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                total += beside(self._path, suffix).stat().st_size
        return total

    def close(self) -> None:
        """Close cleanly: snapshots, readers, and last the writer, which checkpoints."""
        for snapshot in list(self._snapshots):
            snapshot.close()
        for connection in (*self._spare, self._connection):
            connection.close()
        self._spare.clear()
        self._writer.close()

    def _snapshot_closed(self, snapshot: SqliteSnapshot, connection: apsw.Connection) -> None:
        self._snapshots.discard(snapshot)
        if len(self._spare) < _SPARE_CONNECTIONS:
            self._spare.append(connection)
        else:
            connection.close()


def _damage(connection: apsw.Connection) -> list[str]:
    rows = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    if rows == ["ok"]:
        return []
    return [f"The file is damaged: {line}." for row in rows for line in _messages(row)]


def _messages(found: str) -> list[str]:
    """Return the lines of what a check of the engine found, without its headings."""
    return [line for line in found.splitlines() if not line.startswith("***")]


def _gaps(connection: apsw.Connection) -> list[str]:
    last = connection.execute("SELECT seq FROM dbs WHERE db = 1").get
    count, low, high = connection.execute("SELECT count(*), min(seq), max(seq) FROM log").get
    if count and (high - low + 1 != count or high != last):
        return [f"The change log has {count} entries from {low} to {high}, not up to {last}."]
    return []
