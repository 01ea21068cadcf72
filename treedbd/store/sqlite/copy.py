"""A copy of the file of a database as it is at one moment, while another process may write it.

A read transaction holds the moment from the time when it is opened, and the pages are copied in it,
some at a time. It only reads: the writer is never made to wait, but its write-ahead log grows until
the copy is complete. The copy is a file of its own without a log, which `verify_copy` reads back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable
from itertools import islice
from typing import Final

import attrs

from treedbd.files import open_private
from treedbd.store.engine import DamagedRow, ReadView, StoreFailed
from treedbd.store.sqlite.check import check_all
from treedbd.store.sqlite.convert import check_older
from treedbd.store.sqlite.file import (
    LOG,
    SQLITE_ERRORS,
    OlderFormat,
    beside,
    classify_error,
    connect,
    connect_reader,
    describe,
    empty_file,
)
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.store.verify import verify, verify_indexes

PAGES_AT_ONCE: Final = 256
HASHED_AT_ONCE: Final = 1024 * 1024

Progress = Callable[[int], None]
"""Is called with the bytes that have been copied since the last call."""


@attrs.frozen
class CopiedPosition:
    """How far a database was: the number of its last write, and that write's id."""

    sequence: int
    op_id: bytes


class Moment:
    """One moment of a file, held until `close`.

    Attributes:
        position: how far the database was.
        size: the bytes of a copy.

    """

    def __init__(self, path: pathlib.Path) -> None:
        """Hold the present moment; raise `CannotOpenStore` or `StoreFailed`."""
        self._connection = connect_reader(path, is_known=False)
        try:
            self._connection.execute("BEGIN")
            sequence: int = self._connection.execute("SELECT seq FROM dbs WHERE db = 1").get
            newest = self._connection.execute(
                "SELECT op_id FROM log WHERE db = 1 AND seq = ?", (sequence,)
            ).get
            self.position: Final = CopiedPosition(sequence, newest or b"")
            page_size: int = self._connection.pragma("page_size")
            pages: int = self._connection.pragma("page_count")
            self.size: Final = page_size * pages
        except SQLITE_ERRORS as error:
            self._connection.close()
            raise StoreFailed(describe(error)) from error

    def copy(self, target: pathlib.Path, progress: Progress) -> None:
        """Write a copy that is durable; raise `DiskFull`, `StoreFailed` or OSError."""
        with open(open_private(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as header:
            header.write(empty_file())  # whose header says that pages have sums, before the first
        with contextlib.closing(connect(target)) as new:
            try:
                new.pragma("journal_mode", "off")
                new.pragma("synchronous", 0)  # it is synced once, when it is complete
                with new.backup("main", self._connection, "main") as copying:
                    while not copying.done:
                        before = copying.remaining
                        copying.step(PAGES_AT_ONCE)
                        page = self.size // max(1, copying.page_count)
                        progress(page * max(0, before - copying.remaining))
            except SQLITE_ERRORS as error:
                raise classify_error(new, error) from error
        with target.open("rb+") as file:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Release the moment."""
        self._connection.close()


def verify_copy(path: pathlib.Path) -> str | None:
    """Read a whole copy back; return a sentence about the first thing that is wrong.

    A copy of an older format, which an older version has made, is read and not converted.
    """
    try:
        with contextlib.closing(connect_reader(path, is_known=False)) as connection:
            findings = check_all(connection) or SqliteReader(connection).read(_check)
    except OlderFormat as error:
        findings = check_older(path, error.version)
    except (StoreFailed, DamagedRow, *SQLITE_ERRORS) as error:
        return f"The copy cannot be read: {error}."
    finally:
        # SQLite makes an empty log and its index even for a reader.
        for suffix in (LOG, "-shm"):
            beside(path, suffix).unlink(missing_ok=True)
    return findings[0] if findings else None


def hash_file(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file in lower-case hexadecimal; raise OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASHED_AT_ONCE):
            digest.update(piece)
    return digest.hexdigest()


def _check(view: ReadView) -> list[str]:
    return verify(view, limit=1) or list(islice(verify_indexes(view), 1))
