"""The embedded engine: one SQLite file, `<database>.shelf`.

It has three kinds of connections: one that writes and checkpoints (`writer`), one for reads of the
present moment, each of which ends before anything else can run, and one for each snapshot. Beside
the file are its write-ahead log, the index of the log (both SQLite's) and the reserve (`reserve`).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import Final, TypeVar

import apsw

from treedbd.files import FULL_ERRNOS, create_directory, write_atomically
from treedbd.store.engine import (
    CannotOpenStore,
    DiskFull,
    PresentView,
    StoreFailed,
    StoreInaccessible,
)
from treedbd.store.lock import DirectoryLock
from treedbd.store.sqlite.convert import Report, convert
from treedbd.store.sqlite.damage import find_damage
from treedbd.store.sqlite.errors import SQLITE_ERRORS
from treedbd.store.sqlite.file import (
    LOG,
    OlderFormat,
    beside,
    check_file,
    connect_reader,
    empty_file,
    set_cache_size,
)
from treedbd.store.sqlite.history import MARK
from treedbd.store.sqlite.integrity import check_all
from treedbd.store.sqlite.reader import PresentReader
from treedbd.store.sqlite.reserve import Reserve
from treedbd.store.sqlite.writer import SqliteWriter

T = TypeVar("T")

RESERVE_BYTES: Final = 1024 * 1024

_RESERVE: Final = "-reserve"
_SUFFIXES: Final = ("", LOG, "-shm", _RESERVE, MARK)
_SPARE_CONNECTIONS: Final = 1
_SNAPSHOT_CACHE_BYTES: Final = 1024 * 1024
"""Enough for the inner pages of the tree: a reader of a moment mostly reads each page once."""
DESCRIPTORS_PER_FILE: Final = 9
"""Descriptors of one open engine: two of each of three connections (writer, reader, a spare one for
snapshots), one that holds the locks of the file, the index of the log, and the mark."""


class SqliteEngine:
    """An `Engine` over one file, which no other process writes.

    Attributes:
        begin: opens the one transaction (`SqliteWriter.begin`).
        was_closed_cleanly: whether all of the file was sound when it was closed, and nothing has
            changed since then: it need not be checked again.
        warning: what an operator should know about the opening, in one sentence; None if nothing.

    """

    @classmethod
    def create(
        cls,
        path: pathlib.Path,
        *,
        lock: DirectoryLock | None = None,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> SqliteEngine:
        """Create the file and its directory, and open it; `lock` as in `open`.

        A process that is killed meanwhile leaves either no file or a good one. Raises `DiskFull`,
        or `CannotOpenStore` if the file, its log or its mark exists already or it cannot be
        created.
        """
        for existing in (path, beside(path, LOG), beside(path, MARK)):
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
            engine = cls._open(path, reserve_bytes, lock)
        except BaseException:
            for suffix in _SUFFIXES:
                beside(path, suffix).unlink(missing_ok=True)
            raise
        engine.confirm_sound()
        return engine

    @classmethod
    def open(
        cls,
        path: pathlib.Path,
        *,
        lock: DirectoryLock | None = None,
        accept_loss: bool = False,
        reserve_bytes: int = RESERVE_BYTES,
        report: Report | None = None,
    ) -> SqliteEngine:
        """Open the file; raise FileNotFoundError, or `CannotOpenStore`.

        `lock` is that of the data directory; while it is not in its place, nothing is committed.
        With `accept_loss` a file from which changes are missing is opened, with a warning. With
        `report` a file of an older format is converted first, which may take minutes; without it
        that is `OlderFormat`.
        """
        check_file(path)
        try:
            try:
                return cls._open(path, reserve_bytes, lock, accept_loss=accept_loss)
            except OlderFormat as error:
                if report is None:
                    raise
                convert(path, error.version, report, accept_loss=accept_loss)
                return cls._open(path, reserve_bytes, lock, accept_loss=accept_loss)
        except DiskFull as error:
            raise StoreInaccessible(
                path, "cannot be opened because the disk is full", "make room"
            ) from error

    @classmethod
    def _open(
        cls,
        path: pathlib.Path,
        reserve_bytes: int,
        lock: DirectoryLock | None,
        *,
        accept_loss: bool = False,
    ) -> SqliteEngine:
        reserve = Reserve(beside(path, _RESERVE), reserve_bytes)
        try:
            writer = SqliteWriter(path, lock, accept_loss=accept_loss)
        except DiskFull:
            reserve.release()  # opening needs room for the index of the log
            writer = SqliteWriter(path, lock, accept_loss=accept_loss)
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
        self.was_closed_cleanly: Final[bool] = writer.history.was_closed_cleanly
        self.warning: Final = writer.history.warning
        self._reserve = reserve
        self._cache_size: int | None = None
        self._present = self._make_reader(connect_reader(path))
        self._spare: list[apsw.Connection] = []
        self._snapshots: set[PresentReader] = set()
        writer.let_reads_go = self._let_reads_go
        self.restore_reserve()

    def read(self, work: Callable[[PresentView], T]) -> T:
        """Run `work` on the present moment and return its result; raise `StoreFailed`."""
        return self._present.read(work)

    def pin(self) -> None:
        """Let reads show the present moment until `advance`."""
        self._present.pin()

    def advance(self) -> None:
        """Let reads show what has been committed."""
        self._present.advance()

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the log has grown long enough, and a pinned moment kept it from restarting."""
        return self._writer.needs_checkpoint

    def checkpoint(self) -> None:
        """Copy the log into the file, so that it can be restarted; raises nothing."""
        self._writer.checkpoint()

    def compact(self) -> None:
        """Write the file again without free space; raise `DiskFull` or `StoreFailed`."""
        self._writer.compact()

    def snapshot(self) -> PresentReader:
        """Hold the present moment open; raise `StoreFailed`.

        Until it is closed the log cannot be restarted, and grows.
        """
        snapshot = self._make_reader(self._take_spare()).begin_held()
        self._snapshots.add(snapshot)
        return snapshot

    @property
    def path(self) -> pathlib.Path:
        """The file."""
        return self._path

    @property
    def has_snapshots(self) -> bool:
        """Whether a moment is held open."""
        return bool(self._snapshots)

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of pages in memory at most; not during a commit.

        The writer and the reader keep half of them each; a snapshot keeps a few of its own.
        """
        self._cache_size = size // 2
        self._writer.limit_cache(size // 2)
        set_cache_size(self._present.connection, size // 2)

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

    def find_misplaced(self) -> str | None:
        """Return a sentence about a file that is not where it was opened, None if all are.

        While there is one, nothing is committed.
        """
        return self._writer.find_misplaced()

    def confirm_sound(self) -> None:
        """Record that all of the file has been checked and is sound.

        Only then, or if it was closed cleanly before, can it be closed cleanly.
        """
        self._writer.is_sound = True

    def find_damage(self, pause: Callable[[], bool]) -> str | None:
        """Check the structure of the whole file, and that its rows can be read; in any thread.

        Returns a clause about the first thing that is wrong, None if nothing is. Every few
        milliseconds `pause` is called; if it returns True the check ends, and `CheckStopped` is
        raised. Raises `StoreFailed` if the file cannot be read.
        """
        self._check_in_place()
        return find_damage(self._path, pause)

    def verify(self) -> list[str]:
        """Read the whole file; return what is damaged, one sentence each."""
        try:
            with contextlib.closing(connect_reader(self._path)) as connection:
                connection.execute("BEGIN")
                return check_all(connection)
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
        for connection in (*self._spare, self._present.connection):
            connection.close()
        self._spare.clear()
        self._writer.close()

    def _connect_snapshot(self) -> apsw.Connection:
        self._check_in_place()
        connection = connect_reader(self._path)
        set_cache_size(connection, _SNAPSHOT_CACHE_BYTES)
        return connection

    def _check_in_place(self) -> None:
        """Raise `StoreFailed` if the path may lead to another file than the one that is open."""
        problem = self.find_misplaced()
        if problem is not None:
            raise StoreFailed(problem)

    def _make_reader(self, connection: apsw.Connection) -> PresentReader:
        return PresentReader(connection, self._hold, self._release)

    def _take_spare(self) -> apsw.Connection:
        return self._spare.pop() if self._spare else self._connect_snapshot()

    def _hold(self, reader: PresentReader) -> bool:
        """Let another reader show the present moment from now on; return whether it can.

        It cannot if a commit that readers must not see yet has taken effect.
        """
        other = self._make_reader(self._take_spare())
        if reader.is_pinned:
            other.pin()
            if not other.shows_as(reader):
                other.advance()
                self._release(other)
                return False
        if self._cache_size is not None:
            set_cache_size(other.connection, self._cache_size)
        set_cache_size(reader.connection, _SNAPSHOT_CACHE_BYTES)
        self._present = other
        self._snapshots.add(reader)
        return True

    def _release(self, reader: PresentReader) -> None:
        self._snapshots.discard(reader)
        if len(self._spare) < _SPARE_CONNECTIONS:
            self._spare.append(reader.connection)
        else:
            reader.connection.close()

    def _let_reads_go(self) -> bool:
        return self._present.let_go()
