"""The embedded engine: a mapping over one SQLite file, `<database>.shelf`.

Three kinds of connections: one that writes and folds the log (`sqlite_writer`), one for reads of
the present moment, which are over before anything else can happen, and one for each snapshot.
Beside the file lie its log, the index of that (both SQLite's) and the reserve (`reserve`).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import TypeVar

import apsw

from treedbd.store.files import FULL_ERRNOS, make_directory, write_new
from treedbd.store.mapping import Failed, Full, Refused, Rows
from treedbd.store.reserve import Reserve
from treedbd.store.sqlite_file import (
    TROUBLE,
    beside,
    check_file,
    connect_reader,
    empty_file,
)
from treedbd.store.sqlite_rows import SqliteRows, SqliteSnapshot
from treedbd.store.sqlite_transaction import SqliteTransaction
from treedbd.store.sqlite_writer import SqliteWriter

T = TypeVar("T")

RESERVE_BYTES = 1024 * 1024

_RESERVE = "-reserve"
_LOG = "-wal"
_BESIDE = ("", _LOG, "-shm", _RESERVE)
_SPARE_CONNECTIONS = 4


class SqliteMapping:
    """A `Mapping` over one file, which is this process's alone to write."""

    @classmethod
    def create(cls, path: pathlib.Path, *, reserve_bytes: int = RESERVE_BYTES) -> SqliteMapping:
        """Make the file and its directory, and open it.

        Killed at any moment it leaves either no file or a good one. Raises `Full`, or `Refused` if
        there is something in its place already or it cannot be made.
        """
        for taken in (path, beside(path, _LOG)):
            if os.path.lexists(taken):
                raise Refused(f"{taken} is there already: move it out of the data directory.")
        try:
            make_directory(path.parent)
            write_new(path, empty_file())
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise Full("The disk is full.") from error
            raise Refused(f"{path} cannot be made ({error.strerror}).") from error
        try:
            return cls._open(path, reserve_bytes)
        except BaseException:
            for suffix in _BESIDE:
                beside(path, suffix).unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, path: pathlib.Path, *, reserve_bytes: int = RESERVE_BYTES) -> SqliteMapping:
        """Open the file; raise FileNotFoundError, or `Refused`."""
        check_file(path)
        try:
            return cls._open(path, reserve_bytes)
        except Full as error:
            raise Refused(f"{path} cannot be opened, the disk is full: make room.") from error

    @classmethod
    def _open(cls, path: pathlib.Path, reserve_bytes: int) -> SqliteMapping:
        reserve = Reserve(beside(path, _RESERVE), reserve_bytes)
        try:
            writer = SqliteWriter(path)
        except Full:
            reserve.release()  # the index of the log wants room even where nobody writes
            writer = SqliteWriter(path)
        try:
            return cls(path, writer, reserve)
        except BaseException:
            writer.close()
            raise

    def __init__(self, path: pathlib.Path, writer: SqliteWriter, reserve: Reserve) -> None:
        """Not for others: `create` and `open` make mappings."""
        self._path = path
        self._writer = writer
        self._reserve = reserve
        self._reader = connect_reader(path)
        self._rows = SqliteRows(self._reader)
        self._spare: list[apsw.Connection] = []
        self._snapshots: set[SqliteSnapshot] = set()
        self.restore_reserve()

    def read(self, work: Callable[[Rows], T]) -> T:
        """Run `work` on the present moment; raise `Failed` if the medium cannot be read."""
        rows = self._rows
        rows.begin()
        try:
            return work(rows)
        finally:
            rows.end()

    def snapshot(self) -> SqliteSnapshot:
        """Hold the present moment open; raise `Failed`.

        Until it is closed the log cannot be begun anew, and grows.
        """
        connection = self._spare.pop() if self._spare else connect_reader(self._path)
        snapshot = SqliteSnapshot(connection, self._take_back)
        self._snapshots.add(snapshot)
        return snapshot

    def begin(self) -> SqliteTransaction:
        """Open the one transaction; raise `Failed`, also if another program is writing."""
        return self._writer.begin()

    def recover(self) -> None:
        """Bring the file back from disk and verify it; raise `Failed`."""
        self._writer.recover()

    def release_reserve(self) -> None:
        """Give the reserve up, and use it to fold the log, so that its room can be used again."""
        with contextlib.suppress(OSError):
            self._reserve.release()
        self._writer.fold()

    def restore_reserve(self) -> bool:
        """Take the reserve back if there is room for it twice, be it by giving up the log's."""
        try:
            if self._reserve.restore():
                return True
            self._writer.empty_log()
            return self._reserve.restore()
        except OSError:
            return False

    def find_damage(self) -> str | None:
        """Look at the structure of the whole file; return the first thing that is wrong with it."""
        try:
            found = str(self._reader.execute("PRAGMA quick_check(1)").get)
        except TROUBLE as error:
            return str(error)
        return None if found == "ok" else "; ".join(_sayings(found))

    def verify(self) -> list[str]:
        """Read the whole file; return what is damaged, a sentence each."""
        try:
            with contextlib.closing(connect_reader(self._path)) as connection:
                connection.execute("BEGIN")
                return [*_damage(connection), *_gaps(connection)]
        except (Failed, *TROUBLE) as error:
            return [f"The file cannot be read: {error}."]

    def size(self) -> int:
        """Return the bytes of the file and of those beside it, the reserve among them."""
        total = 0
        for suffix in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                total += beside(self._path, suffix).stat().st_size
        return total

    def close(self) -> None:
        """Close in good order: snapshots, readers, and the writer last, which folds the log."""
        for snapshot in list(self._snapshots):
            snapshot.close()
        for connection in (*self._spare, self._reader):
            connection.close()
        self._spare.clear()
        self._writer.close()

    def _take_back(self, snapshot: SqliteSnapshot, connection: apsw.Connection) -> None:
        self._snapshots.discard(snapshot)
        if len(self._spare) < _SPARE_CONNECTIONS:
            self._spare.append(connection)
        else:
            connection.close()


def _damage(connection: apsw.Connection) -> list[str]:
    rows = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    if rows == ["ok"]:
        return []
    return [f"The file is damaged: {line}." for row in rows for line in _sayings(row)]


def _sayings(found: str) -> list[str]:
    """Return the lines of what a check of the engine found, but for its headings."""
    return [line for line in found.splitlines() if not line.startswith("***")]


def _gaps(connection: apsw.Connection) -> list[str]:
    last = connection.execute("SELECT seq FROM dbs WHERE db = 1").get
    count, low, high = connection.execute("SELECT count(*), min(seq), max(seq) FROM log").get
    if count and (high - low + 1 != count or high != last):
        return [f"The log has {count} entries from {low} to {high}, and the last number is {last}."]
    return []
