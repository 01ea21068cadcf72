"""Whether the history of a shelf has gone back: whether changes are missing that it once held.

Theory of operation
-------------------
SQLite reads a write-ahead log up to the first frame that does not fit: a log that was cut, altered
or removed is an older state, and looks sound. So is a shelf that was replaced by an older copy. The
*mark* beside the shelf (`MarkFile`) says which change was the newest:

- Before the first commit after an opening, the mark says durably that the database is open.
- After each commit, when that is durable, the mark receives its number and id, without a sync. A
  process that is killed leaves a mark that is exact, or that lacks one commit.
- After each checkpoint the mark is synced: the shelf alone, without its log, never lacks a change
  of the mark that a power failure leaves.
- At a close that leaves no log, the mark says durably that the database is closed, when it is
  durable that the log is gone: there are file systems on which the sync of one file does not carry
  the removal of another, and a power failure then brings the log back. So a log beside a closed
  shelf is refused only if it would change the shelf (`is_applied`).

At the next opening a shelf that ends before its mark has lost changes, and one that has another
change under the number of the mark has another history. Either is refused, and no file is changed:
what is missing may still be found and put back. `accept_loss` goes on, with a new mark.

A missing mark alone is not a loss, because a copy of the shelf alone is a backup; but then nothing
can be noticed, which is a warning.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple, TypeAlias

import apsw
import attrs

from treedbd.files import open_private, write_atomically
from treedbd.store.engine import CannotOpenStore, StoreInaccessible
from treedbd.store.sqlite.file import PAGE_BYTES, RESERVED_AT, beside, log_of

MARK: Final = "-mark"
"""What the name of the mark has after that of the shelf."""


_MAGIC: Final = b"treedb\x00\x01"
_ID_BYTES: Final = 16
_RECORD: Final = struct.Struct(f">8sQQ{_ID_BYTES}s?")
_CHECK_SUM: Final = struct.Struct(">I")
_SLOT_BYTES: Final = 4096
_NEWEST: Final = "SELECT d.seq, l.op_id FROM dbs d LEFT JOIN log l ON l.seq = d.seq WHERE d.db = 1"

_REMEDY: Final = (
    "put back what is missing, or restore a backup with its -mark, or start once with "
    "--accept-loss to go on without these changes"
)
_CHECK_DISK: Final = "let the user that runs treedb read and write it, and check the disk"


def _shorten(op_id: bytes) -> bytes:
    return op_id[:_ID_BYTES].ljust(_ID_BYTES, b"\0")


@attrs.frozen
class Mark:
    """How far a history has come: what the mark of a shelf says.

    `sequence` is the number of the newest change, 0 before the first. `op_id` are the first 16
    bytes of its id, which distinguish histories that have diverged. `is_closed` says that the
    database was closed after that change, and that everything in its file was sound.
    """

    sequence: int
    op_id: bytes = attrs.field(converter=_shorten)
    is_closed: bool = False


class MarkFile:
    """The file of a mark, beside the shelf; it is opened at the first write.

    It is written when a change is durable, never before: so a sound shelf has every change of
    its mark, and one that lacks any has lost changes.

    A write is synced only with `sync`: it survives the end of the process, not that of
    the machine, and takes some microseconds. Two slots, each in a page of its own, are written
    alternately, each with a counter and a check sum: a write that is torn leaves the other slot.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Use the file at `path`, which may be missing."""
        self._path = path
        self._descriptor: int | None = None
        self._is_readable = False
        self._count = 0

    def read(self) -> Mark | None:
        """Return the last mark that was written whole; None if there is none. Raises OSError."""
        try:
            with self._path.open("rb") as file:
                content = file.read(2 * _SLOT_BYTES)
        except FileNotFoundError:
            return None
        return self._take_last(content)

    def follow(self) -> Mark | None:
        """Return the last mark, after which the next one is written; raise OSError."""
        if self._descriptor is None:
            return self.read()
        return self._take_last(os.pread(self._descriptor, 2 * _SLOT_BYTES, 0))

    def write(self, mark: Mark, *, sync: bool = False) -> None:
        """Write a mark, and with `sync` wait until it is on the disk; raise OSError."""
        self._count += 1
        content = _encode(self._count, mark)
        if self._descriptor is None:
            self._descriptor = self._open(content)
        os.pwrite(self._descriptor, content, self._count % 2 * _SLOT_BYTES)
        if sync:
            self.sync()

    def sync(self) -> None:
        """Wait until the last mark is on the disk; raise OSError."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take_last(self, content: bytes) -> Mark | None:
        whole = _whole_slots(content)
        if not whole:
            return None
        self._is_readable = True
        self._count, mark = max(whole, key=lambda slot: slot[0])
        return mark

    def _open(self, content: bytes) -> int:
        """Open the file; create it with `content` if no mark can be read from it."""
        if self._is_readable:
            with contextlib.suppress(FileNotFoundError):
                return open_private(self._path, os.O_RDWR)
        slot = content.ljust(_SLOT_BYTES, b"\0")
        write_atomically(self._path, slot + slot)  # both, so that later writes need no new space
        return open_private(self._path, os.O_RDWR)


def _whole_slots(content: bytes) -> list[tuple[int, Mark]]:
    """Return the counters and marks of the slots that were written whole."""
    slots = (_decode(content[at:]) for at in (0, _SLOT_BYTES))
    return [slot for slot in slots if slot is not None]


def _encode(count: int, mark: Mark) -> bytes:
    record = _RECORD.pack(_MAGIC, count, mark.sequence, mark.op_id, mark.is_closed)
    return record + _CHECK_SUM.pack(zlib.crc32(record))


def _decode(slot: bytes) -> tuple[int, Mark] | None:
    """Return the counter and the mark of a slot, None if it was not written whole."""
    record = slot[: _RECORD.size]
    if slot[_RECORD.size :][: _CHECK_SUM.size] != _CHECK_SUM.pack(zlib.crc32(record)):
        return None
    if not record.startswith(_MAGIC):
        return None
    _, count, sequence, op_id, is_closed = _RECORD.unpack(record)
    return count, Mark(sequence, op_id, is_closed)


class History:
    """The history of one shelf, from its opening to its close.

    Attributes:
        was_closed_cleanly: whether the shelf was sound when it was closed, and nothing has happened
            to it since that could be noticed.
        warning: what an operator should know about the opening, in one sentence; None if nothing.

    """

    def __init__(self, path: pathlib.Path) -> None:
        """Read the mark of the shelf at `path`, before SQLite opens that.

        Raises `CannotOpenStore` if the mark cannot be read, or if there is a log that cannot belong
        to the shelf: SQLite would apply it all the same.
        """
        self.was_closed_cleanly = False
        self.warning: str | None = None
        self._path = path
        self._newest = (0, b"")
        self._is_begun = False
        self._has_accepted_loss = False
        self._file = MarkFile(beside(path.resolve(), MARK))
        self._mark = self._read()
        log = log_of(path)
        if self._says_closed() and self._is_foreign(log):
            # Unless another process has opened it since then: before it writes to a log, the mark
            # says so.
            self._mark = self._read()
            if self._says_closed():
                raise CannotOpenStore(
                    log,
                    f"is not the log of {path.name}, which was closed without one",
                    "remove it, or restore the database from a backup",
                )

    def check(self, connection: apsw.Connection, *, accept_loss: bool) -> None:
        """Compare the shelf with its mark; raise `CannotOpenStore` if changes are missing.

        With `accept_loss` that is a warning, and the shelf receives a new mark.
        """
        self._newest = _newest(connection)
        sequence = self._newest[0]
        if self._mark is None:
            if sequence:
                self.warning = (
                    f"{self._path} has no readable mark ({self._path.name}{MARK}): whether its "
                    "newest changes are missing cannot be noticed."
                )
            return
        loss = _find_loss(connection, self._mark, sequence)
        if loss is None:
            self.was_closed_cleanly = self._mark == Mark(*self._newest, is_closed=True)
        elif accept_loss:
            self._has_accepted_loss = True
            self.warning = f"{self._path} {loss}. It is served, because of --accept-loss."
        else:
            raise CannotOpenStore(self._path, loss, _REMEDY)

    def replace_mark(self) -> None:
        """Record durably where a history goes on whose loss was accepted.

        Raises `CannotOpenStore`.
        """
        if self._has_accepted_loss:
            try:
                self.begin()
            except OSError as error:
                raise self._inaccessible(error) from None

    def begin(self) -> None:
        """Record durably that the shelf is about to be changed; raise OSError."""
        if not self._is_begun:
            self._file.write(Mark(*self._newest), sync=True)
            self._is_begun = True

    def advance(self, sequence: int, op_id: bytes) -> None:
        """Record the newest change, which is durable; raise OSError."""
        self._newest = (sequence, op_id)
        self._file.write(Mark(sequence, op_id))

    def read_newest(self, connection: apsw.Connection) -> int:
        """Go on from the newest change, which others have made; return its number."""
        self._newest = _newest(connection)
        return self._newest[0]

    def follow_mark(self) -> None:
        """Go on from the mark, which others have written; raise OSError."""
        mark = self._file.follow()
        self._is_begun = mark is not None and not mark.is_closed

    def renew(self, connection: apsw.Connection) -> None:
        """Record durably how far a shelf has come that was recovered; raise OSError."""
        self._file.close()
        self._newest = _newest(connection)
        self._is_begun = False
        self.begin()

    def sync(self) -> None:
        """Make what was recorded durable; raise OSError."""
        self._file.sync()

    def close(self, *, is_clean: bool) -> None:
        """Close the mark; with `is_clean` it says durably that the shelf was closed and is sound.

        Raises nothing: a mark that cannot be written says that the shelf was not closed.
        """
        with contextlib.suppress(OSError):
            if not is_clean:
                self._file.sync()
            elif self._is_begun or not self.was_closed_cleanly:
                self._file.write(Mark(*self._newest, is_closed=True), sync=True)
        self._file.close()

    def _read(self) -> Mark | None:
        try:
            return self._file.read()
        except OSError as error:
            raise self._inaccessible(error) from None

    def _says_closed(self) -> bool:
        return self._mark is not None and self._mark.is_closed

    def _is_foreign(self, log: pathlib.Path) -> bool:
        """Return whether there is a log that would change the shelf, which was closed without."""
        try:
            return has_content(log) and not is_applied(log, self._path)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise StoreInaccessible(log, f"cannot be read ({reason})", _CHECK_DISK) from None

    def _inaccessible(self, error: OSError) -> CannotOpenStore:
        return StoreInaccessible(
            beside(self._path, MARK),
            f"cannot be read or written ({os.strerror(error.errno or 0)})",
            _CHECK_DISK,
        )


def has_content(log: pathlib.Path) -> bool:
    """Return whether there is a log that is not empty."""
    try:
        return log.stat().st_size > 0
    except OSError:
        return False


def last_sequence(connection: apsw.Connection) -> int:
    """Return the number of the last entry of the change log."""
    number: int = connection.execute("SELECT seq FROM dbs WHERE db = 1").get
    return number


def _newest(connection: apsw.Connection) -> tuple[int, bytes]:
    """Return the number and the id of the newest change."""
    sequence, op_id = connection.execute(_NEWEST).get
    return sequence, op_id or b""


def _id_of(connection: apsw.Connection, sequence: int) -> bytes | None:
    """Return the id of a change, None if the change log no longer holds it."""
    op_id: bytes | None = connection.execute("SELECT op_id FROM log WHERE seq = ?", (sequence,)).get
    return op_id


def _find_loss(connection: apsw.Connection, mark: Mark, last: int) -> str | None:
    """Return what a shelf whose newest change is number `last` lacks, from the verb on."""
    if last < mark.sequence:
        return f"ends with change {last}, but change {mark.sequence} had been made durable"
    op_id = _id_of(connection, mark.sequence)
    if op_id is None or Mark(mark.sequence, op_id).op_id == mark.op_id:
        return None
    return f"has another change {mark.sequence} than the one that had been made durable"


_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The order of bytes in check sums, by the first number of the header."""
_WORD: Final = 0xFFFFFFFF
_PAGE_COUNT: Final = struct.Struct(">I")
_PAGE_COUNT_AT: Final = 28
"""Where the file says how many pages it has."""

_Sums: TypeAlias = tuple[int, int]


class _Frame(NamedTuple):
    page: int
    page_count: int
    """The pages of the file after the commit that this frame ends; 0 if it ends none."""
    content: bytes


def is_applied(log: pathlib.Path, file: pathlib.Path) -> bool:
    """Return whether to apply a log to a file would not change it; raise OSError.

    So it is with one whose commits were all copied into the file, or that has no commit. The log is
    read without SQLite, which would apply it.
    """
    pages: dict[int, bytes] = {}
    page_count, later = None, {}
    with log.open("rb") as opened:
        for frame in _frames(opened):
            later[frame.page] = frame.content
            if frame.page_count:
                page_count = frame.page_count
                pages |= later
                later = {}
    if page_count is None:
        return True
    with file.open("rb") as opened:
        header = _page(opened, 1)
        if len(header) < PAGE_BYTES:
            return False
        end = PAGE_BYTES - header[RESERVED_AT]
        return _PAGE_COUNT.unpack_from(header, _PAGE_COUNT_AT)[0] == page_count and all(
            _page(opened, page)[:end] == content[:end]
            for page, content in pages.items()
            if page <= page_count
        )


def _frames(log: BinaryIO) -> Iterator[_Frame]:
    """Iterate over the frames up to the first that does not fit.

    The format is https://www.sqlite.org/fileformat.html#the_write_ahead_log: a header, then frames.
    Each is a page with its number, the salts of the header and a check sum over all before it. A
    frame that ends a commit says how many pages the file has. What a page reserves at its end means
    nothing in a frame (`file`).
    """
    raw = log.read(_HEADER.size)
    if len(raw) < _HEADER.size:
        return
    magic, _, page_bytes, _, *salts_and_sums = _HEADER.unpack(raw)
    salts, sums = tuple(salts_and_sums[:2]), tuple(salts_and_sums[2:])
    order = _ORDERS.get(magic)
    if order is None or page_bytes != PAGE_BYTES or _add(raw[:24], (0, 0), order) != sums:
        return
    found: _Sums = (sums[0], sums[1])
    while len(raw := log.read(_FRAME.size + PAGE_BYTES)) == _FRAME.size + PAGE_BYTES:
        page, page_count, *rest = _FRAME.unpack_from(raw)
        content = raw[_FRAME.size :]
        found = _add(content, _add(raw[:8], found, order), order)
        if (*salts, *found) != tuple(rest):
            return
        yield _Frame(page, page_count, content)


def _add(content: bytes, sums: _Sums, order: str) -> _Sums:
    """Return the check sums over what had `sums` and then `content`."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for word, other in zip(words, words, strict=True):
        first = (first + word + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second


def _page(file: BinaryIO, number: int) -> bytes:
    file.seek((number - 1) * PAGE_BYTES)
    return file.read(PAGE_BYTES)
