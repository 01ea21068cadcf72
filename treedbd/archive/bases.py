"""Bases: objects with all rows of one database at one moment, while a daemon writes it.

A base is named `bases/<project>/<database>/<16-digit sequence>-<YYYYMMDDTHHMMSSZ>.rows.zst`, with
`.sealed` if it is. It begins with a header, a line of JSON:

    {"treedb-base":1,"db":"app/default","seq":12,"op":"…","time":1796000000000,"rows_format":5,
     "segment":7,"entry":"{…}"}

`seq` and `op` are those of the last write, `entry` its entry of the log without the body; `segment`
is the number of the next segment when the base began: what follows it is in that one or a later
one. Then come the rows in the order of their keys: the lengths of key and value (u32, big-endian),
the key and the value. After the last row come the marker ff ff ff ff and the footer, a line of JSON
with the number of the rows, the bytes before the marker and their SHA-256.

The rows are those of the tree, of the indexes and how far they are built, of the usage, and of the
writes that wait for the end of a session. Cursors of readers of the log are not in it, nor is what
a copy of a database in PostgreSQL keeps about itself.

`dump` reads in one transaction: no writer waits for it, but the write-ahead log of the file grows
until it ends. `load` writes a file beside the target, checks it, and renames it last.
"""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import os
import pathlib
import re
import time
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Final

import apsw
import attrs
import orjson

from treedbd.archive.packing import pack, suffix, unpack
from treedbd.archive.sealing import Damaged, Key
from treedbd.files import create_directory, create_private, sync_directory
from treedbd.names import NAME_PATTERN
from treedbd.store.changelog import without_body
from treedbd.store.cursors import CURSOR_END, CURSOR_FIRST
from treedbd.store.engine import DamagedRow, LogEntry, Row, StoreFailed
from treedbd.store.hooks import HOOK_END, HOOK_FIRST
from treedbd.store.rows import unseal
from treedbd.store.sqlite.copy import verify_copy
from treedbd.store.sqlite.file import (
    FORMAT as ROWS_FORMAT,
)
from treedbd.store.sqlite.file import (
    LOG,
    SQLITE_ERRORS,
    beside,
    classify_error,
    connect,
    connect_reader,
    empty_file,
    set_cache_size,
)
from treedbd.store.sqlite.history import MARK, Mark, MarkFile
from treedbd.store.sqlite.reader import SqliteReader

FOLDER: Final = "bases/"
FORMAT: Final = 1
LAST: Final = b"\xff"
"""What a copy of a database in PostgreSQL keeps about itself has a key from here on."""
UNFINISHED: Final = ".loading"

_LENGTHS: Final = Struct(">II")
_END: Final = b"\xff\xff\xff\xff"
_MAX_KEY_BYTES: Final = 65_536
_MAX_VALUE_BYTES: Final = 1024 * 1024 * 1024
_DECODED_BYTES: Final = 1024 * 1024
_MAX_HEADER_BYTES: Final = 1024 * 1024
_WRITTEN_AT_ONCE: Final = 256 * 1024
_CACHE_BYTES: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(
    rf"bases/(?P<db>{NAME_PATTERN}/{NAME_PATTERN})/(?P<sequence>\d{{16}})-"
    r"(?P<time>\d{8}T\d{6}Z)\.rows\.zst(?P<sealed>\.sealed)?"
)
_TIME: Final = "%Y%m%dT%H%M%SZ"
_INSERT: Final = "INSERT INTO kv(db, k, v) VALUES(1, ?, ?)"


@attrs.frozen
class BaseHeader:
    """A base: the database, `project/name`, its moment, and the next segment at that time.

    `sequence` and `op_id` are those of the last write, `last_entry` its entry without the body;
    `time_ms` is when the base was made, by the clock of the machine.
    """

    db: str
    sequence: int
    op_id: bytes
    time_ms: int
    rows_format: int
    segment: int
    last_entry: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class BaseName:
    """What the name of a base says; `time_ms` is in whole seconds."""

    name: str
    db: str
    sequence: int
    time_ms: int


def name_base(header: BaseHeader, key: Key | None = None) -> str:
    """Return the name of a base."""
    when = time.strftime(_TIME, time.gmtime(header.time_ms / 1000))
    return f"{FOLDER}{header.db}/{header.sequence:016}-{when}.rows.zst{suffix(key)}"


def parse_name(name: str) -> BaseName | None:
    """Return what the name of an object says, None if it is not that of a base."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    try:
        when = time.strptime(found["time"], _TIME)
    except ValueError:
        return None
    return BaseName(name, found["db"], int(found["sequence"]), _ms_of(when))


def _ms_of(when: time.struct_time) -> int:
    return 1000 * calendar.timegm(when)


class Dump:
    """One moment of the file of a database, held until `close`, as a base.

    Attributes:
        header: the header of the base.
        rows: how many rows have been read.

    """

    def __init__(self, file: pathlib.Path, *, db: str, time_ms: int, segment: int) -> None:
        """Hold the present moment; raise `CannotOpenStore` or `StoreFailed`."""
        self._connection = connect_reader(file, is_known=False)
        self._reader = SqliteReader(self._connection)
        self.rows = 0
        try:
            set_cache_size(self._connection, _CACHE_BYTES)
            self._reader.begin()
            sequence = self._reader.sequence()
            last = next(self._reader.entries(sequence - 1), LogEntry(sequence, b"", b""))
        except BaseException:
            self._connection.close()
            raise
        self.header: Final = BaseHeader(
            db=db,
            sequence=sequence,
            op_id=last.op_id,
            time_ms=time_ms,
            rows_format=ROWS_FORMAT,
            segment=segment,
            last_entry=without_body(last.content),
        )

    def chunks(self, key: Key | None = None) -> Iterator[bytes]:
        """Yield the object of the base; raise `StoreFailed`, also if a row is damaged."""
        return pack(self._content(), key)

    def close(self) -> None:
        """Release the moment."""
        self._connection.close()

    def _content(self) -> Iterator[bytes]:
        first = _print_header(self.header)
        digest = hashlib.sha256(first)
        size = len(first)
        yield first
        buffer: list[bytes] = []
        buffered = 0
        for key, value in self._read():
            buffer += (_LENGTHS.pack(len(key), len(value)), key, value)
            buffered += _LENGTHS.size + len(key) + len(value)
            self.rows += 1
            if buffered >= _WRITTEN_AT_ONCE:
                piece = b"".join(buffer)
                digest.update(piece)
                yield piece
                size += buffered
                buffer.clear()
                buffered = 0
        piece = b"".join(buffer)
        digest.update(piece)
        size += buffered
        yield piece + _END + _print_footer(self.rows, size, digest.hexdigest())

    def _read(self) -> Iterator[Row]:
        """Yield the rows, each of which matches its check sum."""
        for low, high in _KEPT:
            for row in self._reader.scan(low, high):
                try:
                    unseal(*row)
                except DamagedRow as error:
                    raise StoreFailed(str(error)) from None
                yield row


_KEPT: Final = ((b"", CURSOR_FIRST), (CURSOR_END, HOOK_FIRST), (HOOK_END, LAST))
"""What a base has: cursors and hooks belong to the database that was archived."""


def dump(
    file: pathlib.Path, *, db: str, time_ms: int, segment: int, key: Key | None = None
) -> tuple[BaseHeader, Iterator[bytes]]:
    """Return the header of a base, and its object for `Place.put`.

    `db` is `project/name`, `segment` the number of the next segment. The iterator holds the moment
    until it ends or is closed. Raises `CannotOpenStore` or `StoreFailed`, as the iterator does.
    """
    moment = Dump(file, db=db, time_ms=time_ms, segment=segment)
    return moment.header, _closing(moment, key)


def _closing(moment: Dump, key: Key | None) -> Iterator[bytes]:
    try:
        yield from moment.chunks(key)
    finally:
        moment.close()


def read_header(chunks: Iterable[bytes], key: Key | None = None, *, name: str = "") -> BaseHeader:
    """Return the header of a base, of which only the beginning is read."""
    return BaseReader(chunks, key, name=name).header


class BaseReader:
    """Reads a base; raises `Damaged` or `WrongKey`.

    Attributes:
        header: its header.

    """

    def __init__(self, chunks: Iterable[bytes], key: Key | None = None, *, name: str = "") -> None:
        """Read the header of the object `name`, with which it is compared."""
        self._chunks = unpack(chunks, key, name=name)
        self._pending = bytearray()
        while b"\n" not in self._pending and len(self._pending) < _MAX_HEADER_BYTES:
            self._pending += self._next()
        line = bytes(self._pending[: self._pending.find(b"\n") + 1])
        del self._pending[: len(line)]
        self.header: Final = _parse_header(line, name)
        self._digest = hashlib.sha256(line)
        self._size = len(line)

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of their keys. They are right only if the iteration ends."""
        count = 0
        previous: bytes | None = None
        while True:
            piece, start = bytes(self._pending), 0
            while (end := _row_end(piece, start)) is not None:
                key, value = _row(piece, start, end)
                if previous is not None and key <= previous:
                    raise Damaged("Its rows are out of order.")
                yield key, value
                count += 1
                previous, start = key, end
            self._digest.update(memoryview(piece)[:start])
            self._size += start
            del self._pending[:start]
            if self._pending.startswith(_END):
                self._check_footer(count)
                return
            self._fill(_needed(self._pending))

    def _fill(self, size: int) -> None:
        """Read until at least `size` bytes are pending, and one piece more than there are."""
        self._pending += self._next()
        while len(self._pending) < size:
            self._pending += self._next()

    def _next(self) -> bytes:
        piece = next(self._chunks, None)
        if piece is None:
            raise Damaged("Its end is missing.")
        return piece

    def _check_footer(self, count: int) -> None:
        for piece in self._chunks:
            self._pending += piece
            if len(self._pending) > 2 * _DECODED_BYTES:
                raise Damaged("It has more than it should have.")
        footer = bytes(self._pending[len(_END) :])
        if footer != _print_footer(count, self._size, self._digest.hexdigest()):
            raise Damaged("Its check sum is wrong.")


def load(
    chunks: Iterable[bytes],
    target: pathlib.Path,
    key: Key | None = None,
    *,
    name: str = "",
    verified: bool = True,
) -> BaseHeader:
    """Write the file of a database from a base, and its mark; return the header of the base.

    The file is at `target` when it is complete, checked and durable; it has no other reader before.
    Unless it is `verified`, the rows are compared with the check sum of the base only, and not each
    by itself. Raises FileExistsError, `Damaged`, `WrongKey`, `StoreFailed`, `DiskFull` or OSError;
    then there is nothing at `target`.
    """
    if target.exists():
        raise FileExistsError(target)
    create_directory(target.parent)
    unfinished = beside(target, UNFINISHED)
    try:
        reader = BaseReader(chunks, key, name=name)
        _write_rows(reader, unfinished)
        if verified and (problem := verify_copy(unfinished)) is not None:
            raise Damaged(problem)
        for suffix_of_old in (MARK, LOG, "-shm"):  # those of another file must not count for this
            beside(target, suffix_of_old).unlink(missing_ok=True)
        with contextlib.closing(MarkFile(beside(target, MARK))) as mark:
            end = Mark(reader.header.sequence, reader.header.op_id, is_closed=True)
            mark.write(end, sync=True)
        sync_directory(target.parent)
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_directory(target.parent)
    return reader.header


def _write_rows(reader: BaseReader, file: pathlib.Path) -> None:
    """Write a new file with the rows of a base, durably."""
    header = reader.header
    with open(create_private(file), "wb") as new:
        new.write(empty_file(header.rows_format))
    with contextlib.closing(connect(file)) as connection:
        try:
            connection.pragma("journal_mode", "off")
            connection.pragma("synchronous", 0)  # it is synced once, when it is complete
            connection.execute("BEGIN")
            connection.executemany(_INSERT, reader.rows())
            connection.execute("UPDATE dbs SET seq = ? WHERE db = 1", (header.sequence,))
            if header.sequence:
                last = (header.sequence, header.op_id, header.last_entry)
                connection.execute("INSERT INTO log VALUES(1, ?, ?, ?)", last)
            connection.execute("COMMIT")
            connection.pragma("journal_mode", "wal")
        except SQLITE_ERRORS as error:
            raise classify_error(connection, error) from error
        except apsw.ConstraintError:
            raise Damaged("It has a row twice.") from None
    for end in (LOG, "-shm"):
        beside(file, end).unlink(missing_ok=True)
    with file.open("rb+") as written:
        os.fsync(written.fileno())


def _print_header(header: BaseHeader) -> bytes:
    content = {
        "treedb-base": FORMAT,
        "db": header.db,
        "seq": header.sequence,
        "op": header.op_id.hex(),
        "time": header.time_ms,
        "rows_format": header.rows_format,
        "segment": header.segment,
        "entry": header.last_entry.decode("utf-8", "replace"),
    }
    return orjson.dumps(content) + b"\n"


def _print_footer(rows: int, size: int, digest: str) -> bytes:
    return orjson.dumps({"rows": rows, "bytes": size, "sha256": digest}) + b"\n"


def _parse_header(line: bytes, name: str) -> BaseHeader:
    try:
        json: Any = orjson.loads(line)
        if json["treedb-base"] != FORMAT or not 1 <= json["rows_format"] <= ROWS_FORMAT:
            raise Damaged("It is of a newer version of treedb.")
        header = BaseHeader(
            db=str(json["db"]),
            sequence=int(json["seq"]),
            op_id=bytes.fromhex(json["op"]),
            time_ms=int(json["time"]),
            rows_format=int(json["rows_format"]),
            segment=int(json["segment"]),
            last_entry=json["entry"].encode(),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Damaged("Its header is not that of a base.") from None
    expected = parse_name(name)
    if expected is not None and (header.db, header.sequence) != (expected.db, expected.sequence):
        raise Damaged(f"It is a base of {header.db}, which has another name.")
    return header


def _row_end(piece: bytes, start: int) -> int | None:
    """Return where the row at `start` ends, None if it is not all there, or there is none."""
    if len(piece) - start < _LENGTHS.size or piece.startswith(_END, start):
        return None
    key, value = _LENGTHS.unpack_from(piece, start)
    end: int = start + _LENGTHS.size + key + value
    return end if end <= len(piece) else None


def _row(piece: bytes, start: int, end: int) -> Row:
    key = start + _LENGTHS.size
    value = key + int.from_bytes(piece[start : start + 4], "big")
    return piece[key:value], piece[value:end]


def _needed(pending: bytearray) -> int:
    """Return how many bytes the row has that begins the pending ones; raise `Damaged`."""
    if len(pending) < _LENGTHS.size:
        return _LENGTHS.size
    key, value = _LENGTHS.unpack_from(pending)
    if key > _MAX_KEY_BYTES or value > _MAX_VALUE_BYTES:
        raise Damaged("It has a row that is too long.")
    return _LENGTHS.size + int(key) + int(value)
