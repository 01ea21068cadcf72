"""Files of older formats: brought to the present one, or checked for whether they can be.

Theory of operation
-------------------
The format is the `user_version` of the file. Each format knows how its rows become those of the
next one (`OLDER`); a file of an older format is converted step by step when it is opened for
writing. A step is made whole or not at all, whenever the process or the machine stops:

- That no acknowledged change is missing is checked first, and the mark of the file says durably
  that the file is being changed (`history`).
- If no row changes, nor what a page holds, the format is raised in place, by an ordinary commit.
- Otherwise the structure of the old file is checked, and a new one is written beside it. That is
  synced, read back from the disk and checked, and only then renamed to the name of the old file. A
  new file that was left unfinished means nothing, and is removed at the next attempt.

Before the rename the old file leaves the mode of the write-ahead log: SQLite allows that only if no
other connection is open, then puts all of the log into the file and removes the log. The directory
is synced after that, because a log or a journal that came back later would be applied to the new
file. The old file stays locked until the end.

The new file has the same sequence number and the same change log. The caller holds the lock of the
data directory.

What each step does to the rows:

**1 to 2.** In format 1 only an integer in canonical form was an integer among the keys; `01` was
text. Its encoding was a tag and four bytes. So in format 2 a row has another key if there is an
integer in its path, in either sense, and other content if such a key is inside the row: members are
in key order.

Row keys become longer or shorter by that, and where a row is stored depends on their length
(`store/nodes`). Most rows stay rows of the same node. But a container whose key is now longer than
`SPREAD_BYTES` can no longer be spread, and a key that is now longer than `ROW_KEY_BYTES` belongs
into a bucket. What several rows held becomes one row then, a *group*. In format 1 the rows of a
group begin with a prefix that hardly any other row begins with, so only a group whose prefix the
present row has must be kept in memory.

A row may stay longer than `row_bytes` where it could be split now; the first change of it does so.
The encoding of format 1 that is defined here must never change.

**2 to 3.** In format 2 every row was stored by itself, under its own key and without a check sum.
In format 3 rows begin with one, and short rows of siblings share pages (`store/pages`).

**3 to 4.** The rows are the same. In format 4 a file may have indexes (`store/indexes`), which
every write must keep. A program that does not know them must not write to such a file, so the
format was raised.

**4 to 5.** The rows are the same. In format 5 the pages of SQLite have check sums (`file`).
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import pathlib
import re
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import apsw
import attrs

from treedbd.files import FULL_ERRNOS, open_private, sync_directory
from treedbd.limits import MIB
from treedbd.store.engine import CannotOpenStore, DiskFull, ReadView, Row, StoreFailed
from treedbd.store.pages import PAGE_BYTES, pack, place_rows
from treedbd.store.rows import (
    END,
    FIRST,
    ROW_KEY_BYTES,
    SPREAD_BYTES,
    encode_row,
    is_priority_row,
    load_priority_row,
    load_row,
    seal_row,
)
from treedbd.store.sqlite.check import check_all
from treedbd.store.sqlite.file import (
    FORMAT,
    SQLITE_ERRORS,
    beside,
    cannot_open,
    classify_error,
    connect,
    connect_reader,
    connect_writer,
    damaged,
    describe,
    empty_file,
)
from treedbd.store.sqlite.history import History
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.store.verify import MAX_FINDINGS, check_row, check_stored_rows, verify
from treedbd.tree.edit import Draft
from treedbd.tree.path import encode_key, encode_path
from treedbd.tree.types import VALUE, Path, Priority, Value
from treedbd.tree.value import members, sort_members

Report: TypeAlias = Callable[[str], None]
"""Receives a sentence about the progress, for an operator."""

CONVERTED: Final = "-converted"
"""What the name of a new file has after that of the old one, until it is complete."""
REPORT_BYTES: Final = 64 * MIB
"""The progress is reported each time that as many bytes of rows have been read."""

_BESIDE: Final = ("-wal", "-shm", "-journal")
_FILLING: Final[dict[str, int | str]] = {
    "journal_mode": "off",  # a new file that fails is removed
    "synchronous": 0,  # it is synced once, when it is complete
    "locking_mode": "exclusive",
    "cache_size": -32 * 1024,
}


_LogRow: TypeAlias = tuple[int, int, bytes, bytes]
"""A row of the change log, as it is stored."""


def convert(path: pathlib.Path, found: int, report: Report, *, accept_loss: bool = False) -> None:
    """Bring a file of the format `found` to the present one, which may take minutes.

    Raises `CannotOpenStore`; then the file is as it was, or of a format in between. A file from
    which changes are missing is converted with `accept_loss` only.
    """
    for version in range(found, FORMAT):
        report(f"{path} has format {version} and is converted to format {version + 1}.")
        try:
            # Not the link, if it is one.
            _convert_once(path.resolve(), version, report, accept_loss=accept_loss)
        except DiskFull as error:
            raise _full(path, version) from error
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise _full(path, version) from error
            raise _not_converted(
                path,
                version,
                os.strerror(error.errno or 0),
                "let the user that runs treedb write to its directory, and check the disk",
            ) from error
        report(f"{path} has been converted to format {version + 1}.")


def check_older(path: pathlib.Path, found: int) -> list[str]:
    """Return what would keep a file of the format `found` from being converted.

    Nothing is changed.
    """

    def check(rows: ReadView) -> list[str]:
        findings = OLDER[found].check(rows)
        return list(itertools.islice(findings, MAX_FINDINGS))

    try:
        with contextlib.closing(connect_reader(path, is_known=False, version=found)) as connection:
            return [*check_all(connection), *SqliteReader(connection).read(check)]
    except CannotOpenStore as error:
        return [str(error)]
    except (StoreFailed, *SQLITE_ERRORS) as error:
        return [f"The file cannot be read: {describe(error)}."]
    except ValueError as error:
        return [f"{error}."]


class Room(NamedTuple):
    """The bytes that a conversion needs beside the file, and those that are free there."""

    needed: int
    free: int


def find_room(path: pathlib.Path) -> Room:
    """Return what a conversion of a file needs and has; raise OSError."""
    return Room(path.stat().st_size, shutil.disk_usage(path.parent).free)


def _convert_once(path: pathlib.Path, version: int, report: Report, *, accept_loss: bool) -> None:
    """Bring a file to the next format; raise `CannotOpenStore`, `DiskFull` or OSError."""
    history = History(path)
    with (
        contextlib.closing(connect_writer(path, version)) as old,
        contextlib.ExitStack() as closing,
    ):
        closing.callback(history.close, is_clean=False)
        try:
            history.check(old, accept_loss=accept_loss)
            if history.warning is not None:
                report(history.warning)
            history.begin()
            older = OLDER[version]
            if not older.has_other_pages and all(map(older.is_same, _rows(old))):
                old.execute(f"BEGIN IMMEDIATE; PRAGMA user_version = {version + 1}; COMMIT")
                return
            if findings := check_all(old):  # rows that its index lacks would be lost
                raise damaged(path, findings[0].rstrip("."))
            _lock(path, old)
            _replace(path, old, version, report)
        except SQLITE_ERRORS as error:
            if isinstance(failure := classify_error(old, error), DiskFull):
                raise failure from error
            raise cannot_open(path, error, old) from error
        except ValueError as error:
            raise damaged(path, str(error)) from error


def _lock(path: pathlib.Path, connection: apsw.Connection) -> None:
    """Put all of the log into the file, remove the log, and keep all other connections out."""
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.pragma("journal_mode", "delete")
    connection.execute("BEGIN EXCLUSIVE")
    sync_directory(path.parent)


def _replace(path: pathlib.Path, old: apsw.Connection, version: int, report: Report) -> None:
    """Write the new file, and put it in place of the old one."""
    new = beside(path, CONVERTED)
    try:
        _remove(new)
        room = find_room(path)
        if room.free < room.needed:
            raise DiskFull  # before the disk is full for all others
        _create(new, version + 1, path.stat())
        with contextlib.closing(connect(new)) as connection:
            try:
                _fill(connection, old, version, _reported(_rows(old), path, report))
            except SQLITE_ERRORS as error:
                if isinstance(failure := classify_error(connection, error), DiskFull):
                    raise failure from error
                raise
        _sync(new)
        report(f"{path} is converted: the new file is checked.")
        _check(path, new, version, old)
        _remove(new, _BESIDE)  # they would stay after the rename
        new.rename(path)
    except StoreFailed as error:
        raise _not_converted(path, version, str(error), "check the disk") from error
    finally:
        _remove(new)
    sync_directory(path.parent)


def _create(new: pathlib.Path, version: int, like: os.stat_result) -> None:
    """Create a file of a format without rows, with the owner and the mode of the old one.

    If it cannot have the same group, its own group has no access to it.
    """
    with open(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(empty_file(version))
    mode = stat.S_IMODE(like.st_mode)
    created = new.stat()
    if (created.st_uid, created.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.chown(new, like.st_uid, like.st_gid)
        except PermissionError:  # this user is not a member of that group
            mode &= ~stat.S_IRWXG
    new.chmod(mode)


def _fill(
    connection: apsw.Connection, old: apsw.Connection, version: int, rows: Iterator[Row]
) -> None:
    """Write what is in the old file, in the next format, to a file without rows."""
    for name, value in _FILLING.items():
        connection.pragma(name, value)
    connection.execute("BEGIN")
    try:
        connection.executemany("INSERT INTO kv VALUES(1, ?, ?)", OLDER[version].convert(rows))
    except apsw.ConstraintError:
        raise ValueError("Two rows have the same key") from None
    connection.executemany("INSERT INTO log VALUES(?, ?, ?, ?)", _entries(old))
    sequence = old.execute("SELECT seq FROM dbs WHERE db = 1").get
    connection.execute("UPDATE dbs SET seq = ? WHERE db = 1", (sequence,))
    connection.execute("COMMIT")
    connection.pragma("journal_mode", "wal")


def _sync(new: pathlib.Path) -> None:
    """Make the new file durable, and drop it from the cache of the system."""
    with new.open("r+b") as file:
        os.fsync(file.fileno())
        if sys.platform == "linux":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _check(path: pathlib.Path, new: pathlib.Path, version: int, old: apsw.Connection) -> None:
    """Raise `CannotOpenStore` unless the new file is sound, and has what the old one has.

    If no row changes, they are compared, and a row that was damaged before keeps nothing else from
    being served.
    """
    next_one = version + 1
    with contextlib.closing(connect_reader(new, is_known=False, version=next_one)) as connection:
        findings = check_all(connection) or _check_content(connection, version, old)
    if findings:
        raise damaged(path, findings[0].rstrip("."))


def _check_content(new: apsw.Connection, version: int, old: apsw.Connection) -> list[str]:
    """Return the first thing that is wrong with the rows of a new file."""
    if not OLDER[version].has_other_pages:
        return SqliteReader(new).read(
            lambda rows: list(itertools.islice(OLDER[version + 1].check(rows), 1))
        )
    if all(_are_same(read, old, new) for read in (_rows, _entries)):
        return []
    return ["its rows are not those that were written"]


def _are_same(
    read: Callable[[apsw.Connection], Iterator[object]], old: apsw.Connection, new: apsw.Connection
) -> bool:
    return all(itertools.starmap(operator.eq, itertools.zip_longest(read(old), read(new))))


def _rows(connection: apsw.Connection) -> Iterator[Row]:
    return connection.execute("SELECT k, v FROM kv WHERE db = 1 ORDER BY k")


def _entries(connection: apsw.Connection) -> Iterator[_LogRow]:
    return connection.execute("SELECT db, seq, op_id, entry FROM log ORDER BY seq")


def _reported(rows: Iterable[Row], path: pathlib.Path, report: Report) -> Iterator[Row]:
    """Return the rows; report from time to time how many of their bytes have been returned."""
    total = path.stat().st_size // MIB
    done, next_report = 0, REPORT_BYTES
    for key, raw in rows:
        yield key, raw
        done += len(key) + len(raw)
        if done >= next_report:
            report(f"{path} is converted: {done // MIB} MiB of about {total} have been read.")
            next_report += REPORT_BYTES


def _remove(new: pathlib.Path, suffixes: Iterable[str] = ("", *_BESIDE)) -> None:
    for suffix in suffixes:
        beside(new, suffix).unlink(missing_ok=True)


def _full(path: pathlib.Path, version: int) -> CannotOpenStore:
    return _not_converted(
        path, version, "the disk is full", "make room for another file of its size"
    )


def _not_converted(path: pathlib.Path, version: int, reason: str, remedy: str) -> CannotOpenStore:
    problem = f"has format {version} and cannot be converted to format {version + 1} ({reason})"
    return CannotOpenStore(path, problem, remedy)


_INT_TAG: Final = 0x02
_TEXT_TAG: Final = 0x03
_TEXT_END: Final = b"\x00"
_INT_BYTES: Final = 5
_LOW, _HIGH = -(2**31), 2**31 - 1
_CANONICAL: Final = re.compile(r"0|-?[1-9][0-9]{0,9}")

_MAYBE_CHANGED_KEY: Final = re.compile(rb"\x02|\x03(?:-0|0[0-9])[0-9]*\x00")
_MAYBE_CHANGED_NAME: Final = re.compile(rb'"(?:-0|0[0-9])[0-9]*":')
"""Occurs in printed JSON only as the name of a member: in a string its quotes are escaped."""


@attrs.define
class _MergedRow:
    """A row of format 2 that is put together from several of format 1."""

    key: bytes
    prefix: bytes
    draft: Draft = attrs.field(factory=lambda: Draft(None))
    priorities: list[tuple[Path, Priority]] = attrs.field(factory=list)

    def add(self, inside: Path, raw: bytes) -> None:
        """Add the row of the node at `inside` below the row's own."""
        if is_priority_row(raw):
            self.priorities.append((inside, load_priority_row(raw)))  # the node comes after it
        else:
            self.draft.set(inside, load_row(raw))

    def finish(self) -> Row:
        """Return the row."""
        for inside, priority in self.priorities:
            self.draft.set_priority(inside, priority)
        return self.key, encode_row(self.draft.finish())


def _may_change(key: bytes, raw: bytes) -> bool:
    # The first condition is many times faster than the search, and most rows do not meet it.
    has_name = (b'"0' in raw or b'"-0' in raw) and _MAYBE_CHANGED_NAME.search(raw) is not None
    return has_name or _MAYBE_CHANGED_KEY.search(key) is not None


def _nodes_of(key: bytes, raw: bytes) -> Iterator[tuple[Path, bytes]]:
    """Return the nodes that a row holds, with the content of a row of format 2 for each.

    It is one node, or for a bucket each of its children.
    """
    path, cut = _decode_path(key)
    if _encode_path(path) + cut != key:
        raise ValueError("A row has a key that no path encodes to")
    if is_priority_row(raw):
        yield path, raw
        return
    if _MAYBE_CHANGED_NAME.search(raw):
        raw = encode_row(_sort(load_row(raw)))
    if not cut:
        yield path, raw
        return
    children = list(members(load_row(raw)))
    belong = all(_encode_key(name).startswith(cut) for name, _ in children)
    if len(key) != ROW_KEY_BYTES or not children or not belong:
        raise ValueError("A row holds children that do not belong there")
    for name, child in children:
        yield (*path, name), encode_row(child)


def _locate(path: Path) -> tuple[bytes, int]:
    """Return the key of the row that holds a node, and how many keys lead to that row's own node.

    For a bucket they lead to the container.
    """
    key = b""
    for depth, name in enumerate(path):
        if len(key) > SPREAD_BYTES:
            return key, depth
        key += encode_key(name)
        if len(key) > ROW_KEY_BYTES:
            return key[:ROW_KEY_BYTES], depth
    return key, len(path)


def _prefix(key: bytes, node: Path) -> bytes:
    """Return what the rows of a group begin with in format 1; text was encoded as it is now."""
    return _encode_path(node) + key[len(encode_path(node)) :]


def _sort(value: Value) -> Value:
    """Bring the members of all containers into key order."""
    if not isinstance(value, dict) or VALUE in value:
        return value
    return sort_members({key: _sort(child) for key, child in value.items()})


def _encode_path(path: Path) -> bytes:
    return b"".join([_encode_key(key) for key in path])


def _encode_key(key: str) -> bytes:
    if _CANONICAL.fullmatch(key) and _LOW <= int(key) <= _HIGH:
        return struct.pack(">BI", _INT_TAG, int(key) - _LOW)
    return bytes((_TEXT_TAG,)) + key.encode() + _TEXT_END


def _decode_path(encoded: bytes) -> tuple[Path, bytes]:
    """Return the keys that are whole, and the bytes of a key that was cut off."""
    keys = []
    at, end = 0, len(encoded)
    while at < end:
        if encoded[at] == _INT_TAG:
            stop = at + _INT_BYTES
            if stop > end:
                break
            keys.append(str(struct.unpack_from(">I", encoded, at + 1)[0] + _LOW))
        else:
            stop = encoded.find(_TEXT_END, at) + 1
            if not stop:
                break
            keys.append(encoded[at + 1 : stop - 1].decode())
        at = stop
    return tuple(keys), encoded[at:]


class RowFormat:
    """How the rows of an older format become those of the next one; here they stay as they are.

    The methods, and the iterators that they return, raise ValueError for a row that the format does
    not have.

    Attributes:
        has_other_pages: whether a file is written again even if its rows stay as they are.

    """

    def __init__(self, *, has_other_pages: bool = False) -> None:
        self.has_other_pages: Final = has_other_pages

    def is_same(self, _: Row) -> bool:
        """Return whether a row stays as it is."""
        return True

    def convert(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Convert all rows of a tree, which come in their order."""
        return iter(rows)

    def check(self, view: ReadView) -> Iterator[str]:
        """Yield what is wrong with the rows of a view, a sentence each."""
        return iter(verify(view))


class RowFormat1(RowFormat):
    """Keys are in another order than in format 2."""

    def is_same(self, row: Row) -> bool:
        """Return whether a row stays as it is."""
        return not _may_change(*row) or list(self.convert([row])) == [row]

    def convert(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Convert all rows, to rows in any order; memory is bounded by the largest rows."""
        groups: dict[bytes, _MergedRow] = {}
        for key, raw in rows:
            for done in [each for each in groups.values() if not key.startswith(each.prefix)]:
                yield groups.pop(done.key).finish()
            if not _may_change(key, raw):
                yield key, raw
                continue
            for path, part in _nodes_of(key, raw):
                new_key, depth = _locate(path)
                is_spread = len(new_key) <= SPREAD_BYTES or not is_priority_row(part)
                if depth == len(path) and is_spread:
                    yield new_key, part
                    continue
                if new_key not in groups:
                    groups[new_key] = _MergedRow(new_key, _prefix(new_key, path[:depth]))
                groups[new_key].add(path[depth:], part)
        for group in groups.values():
            yield group.finish()

    def check(self, view: ReadView) -> Iterator[str]:
        """Yield what would keep the rows from being converted, a sentence each."""
        rows = self.convert(view.scan(FIRST, END))
        return filter(None, (check_row(*row) for row in rows))


class RowFormat2(RowFormat):
    """Each row is stored by itself, without a check sum."""

    def is_same(self, _: Row) -> bool:
        """Return False."""
        return False

    def convert(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Convert all rows, with one page in memory at most."""
        return map(seal_row, pack(place_rows(rows), PAGE_BYTES))

    def check(self, view: ReadView) -> Iterator[str]:
        """Yield what is wrong with the rows of a view, a sentence each."""
        return check_stored_rows(view.scan(FIRST, END))


OLDER: Final = {
    1: RowFormat1(),
    2: RowFormat2(),
    3: RowFormat(),
    # Its rows are those of format 5, in pages without check sums.
    4: RowFormat(has_other_pages=True),
}
"""The older formats by their numbers."""
