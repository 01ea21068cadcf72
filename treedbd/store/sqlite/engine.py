"""The engine of one SQLite file, `<database>.shelf`: its connections, and its reserve on the disk.

It has three kinds of connections: one that writes and checkpoints (`writer`), one for reads of the
present moment, each of which ends before anything else can run, and one for each snapshot (both in
`reader`). Beside the file are its write-ahead log, the index of the log (both
SQLite's), its mark (`history`) and the reserve (`Reserve`).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from treedbd.files import (
    FULL_ERRNOS,
    allocate,
    create_directory,
    open_private,
    sync_directory,
    write_atomically,
)
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotOpenStore, Damage, DiskFull, StoreInaccessible
from treedbd.store.sqlite.check import check_file_content, find_damage
from treedbd.store.sqlite.convert import Report, convert
from treedbd.store.sqlite.file import (
    FORMAT,
    LOG,
    SQLITE_ERRORS,
    OlderFormat,
    beside,
    check_file,
    empty_file,
    read_format,
)
from treedbd.store.sqlite.history import MARK
from treedbd.store.sqlite.reader import PresentReader, Readers, ignore_damage
from treedbd.store.sqlite.writer import SqliteWriter, apply_log

if TYPE_CHECKING:
    from treedbd.store.sqlite.shared import SharedShelf

T = TypeVar("T")

RESERVE_BYTES: Final = 1024 * 1024

_RESERVE: Final = "-reserve"
FILE_SUFFIXES: Final = ("", LOG, "-shm", _RESERVE, MARK)
DESCRIPTORS_PER_FILE: Final = 9
"""Descriptors of one open engine: two of each of three connections (writer, reader, a spare one for
snapshots), one that holds the locks of the file, the index of the log, and the mark."""


class Reserve:
    """Disk space kept in reserve, so that removals still work when the disk is full.

    It is a file of `size` bytes of real blocks beside the database. When the disk is full it is
    deleted; its space is enough to checkpoint the log of the engine and restart it, and for
    removals. It is allocated again only when there is room for it twice: space that was released a
    moment ago is not space to spare.
    """

    def __init__(self, path: pathlib.Path, size: int) -> None:
        """Nothing is read or written before the first call of a method."""
        self._path = path
        self._size = size

    def release(self) -> None:
        """Release the space, if it is held."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def restore(self) -> bool:
        """Allocate the space; return False, and hold nothing, if there is not room for it twice.

        Raises OSError for any other error of the disk.
        """
        if self._is_held():
            return True
        descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            allocate(descriptor, 0, 2 * self._size)
            os.ftruncate(descriptor, self._size)
            os.fsync(descriptor)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            if error.errno in FULL_ERRNOS:
                return False
            raise
        finally:
            os.close(descriptor)
        sync_directory(self._path.parent)
        return True

    def _is_held(self) -> bool:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        return status.st_size == self._size and status.st_blocks * 512 >= self._size


class SqliteEngine:
    """An `Engine` over one file, which no other process writes at the same time.

    Attributes:
        path: the file.
        writer: writes to it.
        readers: read from it.
        begin, needs_checkpoint, checkpoint, compact, recover, find_misplaced: those of `writer`.
        read, pin, advance, follow_moments: those of `readers`.
        was_closed_cleanly: whether all of the file was sound when it was closed, and nothing has
            changed since then: it need not be checked again.
        warning: what an operator should know about the opening, in one sentence; None if nothing.
        shared: the shelf, if other processes have the file open too; it closes the file.

    """

    @classmethod
    def create(
        cls,
        path: pathlib.Path,
        *,
        lock: DirectoryLock | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        is_cache: bool = False,
    ) -> SqliteEngine:
        """Create the file and its directory, and open it; `lock` and `is_cache` as in `open`.

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
                raise DiskFull(file=path, needed=len(empty_file())) from error
            raise CannotOpenStore(
                path,
                f"cannot be created ({error.strerror})",
                "let the user that runs treedb write to its directory",
            ) from error
        try:
            make = partial(SqliteWriter, path, lock, is_cache=is_cache)
            engine = cls._open(path, reserve_bytes, make)
        except BaseException:
            remove_files(path)
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
        is_alone: bool = True,
        is_cache: bool = False,
    ) -> SqliteEngine:
        """Open the file; raise FileNotFoundError, or `CannotOpenStore`.

        `lock` is that of the data directory; while it is not in its place, nothing is committed.
        With `accept_loss` a file from which changes are missing is opened, with a warning. With
        `report` a file of an older format is converted first, which may take minutes; without it
        that is `OlderFormat`. Unless this process `is_alone`, others have the file open: then its
        log is left as it is. With `is_cache` a commit is not synced: after a power failure the last
        ones may be missing, which is accepted, since their origin is elsewhere.
        """
        check_file(path)
        accept_loss = accept_loss or is_cache
        make = partial(
            SqliteWriter, path, lock, accept_loss=accept_loss, is_alone=is_alone, is_cache=is_cache
        )
        open_file = partial(cls._open, path, reserve_bytes, make)

        def open_full() -> SqliteEngine:
            try:
                return open_file()
            except DiskFull:
                # Not even the index of the log has room: what the log takes is enough for it.
                if not (is_alone and _try_apply_log(path, accept_loss=accept_loss)):
                    raise
                return open_file()

        try:
            try:
                return open_full()
            except OlderFormat as error:
                if report is None:
                    raise
                convert(path, error.version, report, accept_loss=accept_loss)
                return open_file()
        except DiskFull as error:
            problem = "cannot be opened because the disk is full"
            raise StoreInaccessible(path, problem, "make room") from error

    @classmethod
    def _open(
        cls, path: pathlib.Path, reserve_bytes: int, make_writer: Callable[[], SqliteWriter]
    ) -> SqliteEngine:
        reserve = Reserve(beside(path, _RESERVE), reserve_bytes)
        try:
            writer = make_writer()
        except DiskFull:
            reserve.release()  # opening needs room for the index of the log
            writer = make_writer()
        try:
            return cls(path, writer, reserve)
        except BaseException:
            writer.close()
            raise

    def __init__(self, path: pathlib.Path, writer: SqliteWriter, reserve: Reserve) -> None:
        """Not to be called directly: `create` and `open` return engines."""
        self.path: Final = path
        self.writer: Final = writer
        self.begin: Final = writer.begin
        self.needs_checkpoint: Final = writer.log_length.is_due
        self.checkpoint: Final = writer.checkpoint
        self.compact: Final = writer.compact
        self.recover: Final = writer.recover
        self.find_misplaced: Final = writer.find_misplaced
        self.was_closed_cleanly: Final[bool] = writer.history.was_closed_cleanly
        self.warning: Final = writer.history.warning
        self._reserve = reserve
        self.readers: Final = Readers(path, writer)
        self.read: Final = self.readers.read
        self.pin: Final = self.readers.pin
        self.advance: Final = self.readers.advance
        self.follow_moments: Final = self.readers.follow
        self.shared: SharedShelf | None = None
        writer.release_reads = self.readers.release_moment
        self.report_damage(ignore_damage)
        self.restore_reserve()

    def snapshot(self) -> PresentReader:
        """Hold the present moment open; raise `StoreFailed`.

        Until it is closed the log cannot be restarted, and grows.
        """
        return self.readers.hold()

    @property
    def has_snapshots(self) -> bool:
        """Whether a moment is held open."""
        return bool(self.readers.snapshots)

    def refuse_snapshots(self, refusal: Callable[[], Exception]) -> None:
        """Close every moment that is held open; its reader receives what `refusal` returns."""
        self.readers.refuse_held(refusal)

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of pages in memory at most, half for writing; not in a commit."""
        self.writer.limit_cache(size // 2)
        self.readers.limit_cache(size // 2)

    def release_reserve(self) -> None:
        """Release the reserve and checkpoint, so that the space of the log can be used again."""
        with contextlib.suppress(OSError):
            self._reserve.release()
        self.writer.checkpoint()

    def restore_reserve(self) -> bool:
        """Allocate the reserve if there is room for it twice, if need be by truncating the log."""
        try:
            if self._reserve.restore():
                return True
            self.writer.truncate_log()
            return self._reserve.restore()
        except OSError:
            return False

    @property
    def is_sound(self) -> bool:
        """Whether all of the file is known to be sound."""
        return self.writer.is_sound

    def confirm_sound(self) -> None:
        """Record that all of the file has been checked and is sound.

        Only then, or if it was closed cleanly before, can it be closed cleanly.
        """
        self.writer.is_sound = True

    def report_damage(self, found: Callable[[Damage], None]) -> None:
        """Call `found` when a read or a write finds the file damaged, in the thread of reads.

        The file is not closed cleanly after that, and so is checked after the next opening.
        """

        def report(damage: Damage) -> None:
            self.record_damage()
            found(damage)

        self.writer.report_damage = self.readers.report_damage = report

    def record_damage(self) -> None:
        """Record that the file is damaged: it is not closed cleanly."""
        self.writer.is_sound = False

    def find_damage(self, pause: Callable[[], bool]) -> Damage | None:
        """Check the structure of the whole file, and that its rows can be read; in any thread.

        Returns the first thing that is wrong, a clause, None if nothing is. Every few
        milliseconds `pause` is called; if it returns True the check ends, and `CheckStopped` is
        raised. Raises `StoreFailed` if the file cannot be read.
        """
        self.writer.check_in_place()
        return find_damage(self.path, pause)

    def verify(self) -> list[str]:
        """Read the whole file; return what is damaged, one sentence each."""
        return check_file_content(self.path)

    def size(self) -> int:
        """Return the bytes of the file and of those beside it, the reserve included."""
        return sum(map(_size_of, (beside(self.path, suffix) for suffix in FILE_SUFFIXES)))

    def close(self) -> None:
        """Close cleanly: snapshots, readers, and last the writer, which checkpoints."""
        if self.shared is None:
            self.close_file(may_write=True, is_last=True)
        else:
            self.shared.leave(self)

    def close_file(self, *, may_write: bool, is_last: bool) -> None:
        """Close the file.

        Unless it `may_write`, it stays as it is. Unless it `is_last`, other processes have it open.
        """
        self.readers.close()
        self.writer.close(may_write=may_write, is_last=is_last)


def _size_of(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _try_apply_log(path: pathlib.Path, *, accept_loss: bool) -> bool:
    """Put the log into the file and remove it; return whether that was possible."""
    if read_format(path) != FORMAT:
        return False
    try:
        apply_log(path, accept_loss=accept_loss)
    except SQLITE_ERRORS:
        return False
    return True


def remove_files(path: pathlib.Path) -> None:
    """Remove the file of a database that is not open anywhere, and the files beside it.

    The file is last, when the others are durably gone: a log or a mark without it is refused, and
    one beside the next file of its name would be applied to that.
    """
    files = [beside(path, suffix) for suffix in FILE_SUFFIXES]
    for group in (files[1:], files[:1]):
        if existing := [file for file in group if os.path.lexists(file)]:
            for file in existing:
                file.unlink(missing_ok=True)
            sync_directory(path.parent)
