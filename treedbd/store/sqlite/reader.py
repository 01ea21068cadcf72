"""The reading connections of a shelf file, and its rows at one moment.

A moment is one transaction of a connection. To begin and to end one, SQLite locks files, which is
half of what a small read costs: so the transaction of `PresentReader` stays open over many reads,
until there is something new to be seen. No statement outlives a read: an iterator, or the view,
that is used later raises RuntimeError. `writer.SqliteTransaction` changes rows.
"""

from __future__ import annotations

import contextlib
import operator
import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias, TypeVar

import apsw

from treedbd.limits import KIB
from treedbd.store.engine import (
    LONG_BYTES,
    Damage,
    DamagedPage,
    DiskFull,
    EngineSnapshot,
    LogEntry,
    ReadView,
    Row,
    StoreDamaged,
    StoreFailed,
)
from treedbd.store.sqlite.file import (
    SLEEP_US,
    SQLITE_ERRORS,
    classify_error,
    connect_reader,
    set_cache_size,
    this_thread,
)

if TYPE_CHECKING:
    from treedbd.store.sqlite.writer import SqliteWriter

_SPARE_CONNECTIONS: Final = 1
_AT_ONCE_BYTES: Final = 64 * KIB
"""What is in a smaller file is read at once, and no moment of it held."""
_SNAPSHOT_CACHE_BYTES: Final = 1024 * 1024
"""Enough for the inner pages of the tree: a reader of a moment mostly reads each page once."""

Execute: TypeAlias = Callable[..., apsw.Cursor]
T = TypeVar("T")

GET: Final = "SELECT v FROM kv WHERE db = 1 AND k = ?"
# A long value is read only if it may be looked for: to copy 10 MB takes milliseconds.
_FLOOR = (
    "SELECT k, CASE WHEN length(v) <= ?2 OR substr(?1, 1, length(k)) = k THEN v ELSE x'' END "
    "FROM kv WHERE db = 1 AND k <= ?1 ORDER BY k DESC LIMIT 1"
)
# The inner statement finds where the rows are; one that holds several keys is read once.
_FLOORS = (
    "SELECT k, CASE WHEN length(v) <= ?2 THEN v ELSE x'' END FROM kv WHERE rowid IN (SELECT "
    "(SELECT rowid FROM kv WHERE db = 1 AND k <= given.value ORDER BY k DESC LIMIT 1) "
    "FROM carray(?1) given)"
)
_RANGE = "FROM kv WHERE db = 1 AND k >= ? AND k < ? ORDER BY k"
_SCANS = (f"SELECT k, v {_RANGE}", f"SELECT k, v {_RANGE} DESC")
_KEY_SCANS = (f"SELECT k {_RANGE}", f"SELECT k {_RANGE} DESC")
_SEQUENCE = "SELECT seq FROM dbs WHERE db = 1"
_ENTRIES = "SELECT seq, op_id, entry FROM log WHERE seq > ? ORDER BY seq"

_first: Callable[[tuple[Any, ...]], bytes] = operator.itemgetter(0)


class SqliteReader:
    """Runs one read transaction after another, each of which shows one moment."""

    def __init__(self, connection: apsw.Connection) -> None:
        """Use `connection`, which no other code may put into a transaction."""
        self._connection = connection
        self._run: Execute = connection.cursor().execute
        self._over: Callable[..., NoReturn] = _raise_over
        self._execute: Execute = _raise_over
        self._scans: set[apsw.Cursor] = set()

    def read(self, work: Callable[[Self], T]) -> T:
        """Run `work` on the present moment and return its result.

        Raises `StoreFailed` if the file cannot be read.
        """
        self.begin()
        try:
            return work(self)
        finally:
            self.end()

    def begin(self, statement: str = "BEGIN") -> None:
        """Begin a transaction; it shows the moment at which its first statement runs."""
        try:
            self._run(statement)
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error
        self._execute = self._guarded

    def end(self) -> None:
        """End the transaction, and every statement that belongs to it."""
        self._invalidate()
        if self._connection.in_transaction:  # SQLite has ended it after some errors
            self._run("ROLLBACK")  # as cheap as COMMIT, which reports a damaged page again

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        value: bytes | None = self._execute(GET, (key,)).get
        return value

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        row: Row | None = self._execute(_FLOOR, (key, LONG_BYTES)).get
        return row

    def floors(self, keys: Sequence[bytes], longest: int) -> list[Row]:
        """Return the rows that `floor` returns for some keys, each once, in no certain order."""
        return list(self._walk(_FLOORS, apsw.carray(tuple(keys)), longest)) if keys else []

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over rows in key order, or backwards."""
        return self._range(_SCANS[reverse], low, high, reverse)

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over keys in their order, or backwards."""
        return map(_first, self._range(_KEY_SCANS[reverse], low, high, reverse))

    def sequence(self) -> int:
        """Return the number of the last entry ever appended."""
        number: int = self._execute(_SEQUENCE).get
        return number

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Iterate over the retained entries with numbers above `after`."""
        for number, op_id, content in self._walk(_ENTRIES, after):
            if not isinstance(content, bytes):  # a page that belongs elsewhere
                raise self._on_error(apsw.CorruptError("an entry of the change log has no content"))
            yield LogEntry(number, op_id, content)

    def _is_over(self) -> bool:
        return self._execute is self._over

    def _invalidate(self) -> None:
        """End the use of the view and of all iterators over it."""
        self._execute = self._over
        if self._scans:
            for cursor in self._scans:
                cursor.close()
            self._scans.clear()

    def _range(
        self, statement: str, low: bytes, high: bytes, reverse: bool
    ) -> Iterator[tuple[Any, ...]]:
        return self._walk(statement, low, high)

    def _walk(self, statement: str, *bindings: Any) -> Iterator[tuple[Any, ...]]:
        """Run a statement on a cursor of its own, row by row, until it or the moment ends."""
        if self._is_over():
            self._over()
        cursor = self._connection.cursor()
        self._scans.add(cursor)
        try:
            yield from cursor.execute(statement, bindings)
        except apsw.CursorClosedError:
            self._over()
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error
        finally:
            self._scans.discard(cursor)
            cursor.close()

    def _guarded(self, statement: str, bindings: tuple[bytes | int, ...] = ()) -> apsw.Cursor:
        try:
            return self._run(statement, bindings)
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error

    def _on_error(self, error: apsw.Error) -> Exception:
        """Return what to raise for an error of the engine."""
        return classify_error(self._connection, error)


class CachedConnection:
    """A connection, and how many bytes of pages it keeps in memory."""

    def __init__(self, connection: apsw.Connection) -> None:
        """Leave the bytes as they are by default."""
        self.connection = connection
        self._bytes: int | None = None

    def limit(self, size: int) -> None:
        """Keep about `size` bytes at most."""
        if size != self._bytes:
            self._bytes = size
            set_cache_size(self.connection, size)


class PresentReader(SqliteReader):
    """Reads the present moment, one read after the other, until it is held as a snapshot.

    Attributes:
        cached: its connection.
        is_pinned: whether reads show this moment until `advance`.
        begun: called with each moment that it begins to show, before anything is read from it; None
            for nothing.

    """

    def __init__(self, cached: CachedConnection, readers: Readers) -> None:
        """Read over `cached`, which `readers` gets back when a moment that was held is closed."""
        super().__init__(cached.connection)
        self.cached = cached
        self.is_pinned = False
        self.begun: Callable[[ReadView], None] | None = None
        self._is_held = False
        self._is_current = False  # a transaction is open, and shows all that reads may see
        self._lock = threading.Lock()
        self._readers = readers
        self._sequence = 0

    def read(self, work: Callable[[Self], T]) -> T:
        """Run `work` on the present moment, in the open transaction, and return its result.

        Raises `StoreFailed` if the file cannot be read.
        """
        with self._lock:
            if not self._is_current:
                self._begin_current()
            self._execute = self._guarded
            try:
                return work(self)
            except (StoreFailed, DiskFull):
                self._is_current = False
                self.end()  # after an error, what the transaction shows cannot be trusted
                raise
            finally:
                if not self._is_held:
                    self._invalidate()

    def pin(self) -> None:
        """Pin the present moment, unless it cannot be read: reads show it until `advance`."""
        self.is_pinned = True
        with self._lock, contextlib.suppress(StoreFailed, DiskFull):
            if not self._is_current:
                self._begin_current()

    def advance(self) -> None:
        """Show the last commit to reads."""
        self.is_pinned = False
        self.release_moment()

    def release_moment(self) -> bool:
        """End the transaction, unless the moment is pinned; return whether none is open now.

        May be called in any thread. A read that is under way ends before.
        """
        if self.is_pinned:
            return False
        self._is_current = False
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._is_held:
                return False
            self.end()
        finally:
            self._lock.release()
        return True

    def keep_open(self) -> bool:
        """Hold the moment that is shown, which is no longer pinned, until `close`.

        Returns False if it is not open.
        """
        with self._lock:
            if not self._is_current:
                return False
            self.is_pinned = False
            self._is_held = True
            self._execute = self._guarded
        return True

    def sequence(self) -> int:
        """Return the number of the last entry ever appended."""
        if self._is_over():
            self._over()
        return self._sequence

    def shows_as(self, other: PresentReader) -> bool:
        """Return whether both show the same state."""
        return self._sequence == other._sequence

    def hold(self) -> EngineSnapshot | None:
        """Hold this moment open until `close`."""
        if not self._readers.replace(self):
            return None
        self._is_held = True
        return self

    def _on_error(self, error: apsw.Error) -> Exception:
        failure = super()._on_error(error)
        if isinstance(failure, DamagedPage | StoreDamaged):
            self._readers.report_damage(failure)
        return failure

    def begin_held(self) -> PresentReader:
        """Begin a moment that is held from the start."""
        if not self._is_current:
            self._begin_current()
        self._execute = self._guarded
        self._is_held = True
        return self

    def close(self) -> None:
        """Release a moment that was held; a second call does nothing."""
        if self._is_held:
            self._is_held = False
            self.end()
            self._readers.release(self)

    def refuse(self, refusal: Callable[[], Exception]) -> None:
        """Release a moment that was held; its reader receives what `refusal` returns."""

        def refuse(*_: object) -> NoReturn:
            raise refusal()

        self._over = refuse
        self.close()

    def _begin_current(self) -> None:
        """Begin the transaction that stays open over many reads."""
        self._is_current = True  # first: `release_moment` may be called meanwhile
        try:
            self.end()
            self.begin()
            this_thread.sleep_us = SLEEP_US
            self._sequence = super().sequence()  # the first statement decides which moment it is
        except SQLITE_ERRORS as error:
            self._is_current = False
            raise self._on_error(error) from error
        except (StoreFailed, DiskFull):
            self._is_current = False
            self.end()
            raise
        finally:
            this_thread.sleep_us = None
        if self.begun is not None:
            self._execute = self._guarded
            self.begun(self)
        self._invalidate()


class Readers:
    """The reading connections of one file: one of the present moment, and one for each held one.

    Attributes:
        present: reads the present moment; another one after it was held.
        snapshots: the moments that are held.
        report_damage: called when a read finds the file damaged.

    """

    def __init__(self, path: pathlib.Path, writer: SqliteWriter) -> None:
        """Connect; `writer` has the same file open."""
        self._path = path
        self._writer = writer
        self._cache_bytes: int | None = None
        self._begun: Callable[[ReadView], None] | None = None
        self.report_damage: Callable[[Damage], None] = ignore_damage
        self.present = PresentReader(CachedConnection(connect_reader(path)), self)
        self.snapshots: Final[set[PresentReader]] = set()
        self._spare: list[CachedConnection] = []
        if path.stat().st_size > _AT_ONCE_BYTES:  # so that it can be read when it is removed
            other = self._try_spare()
            if other is not None:
                self.release(other)

    def follow(self, begun: Callable[[ReadView], None]) -> None:
        """Call `begun` with each moment that `present` begins to show from now on."""
        self.present.release_moment()
        self._begun = self.present.begun = begun

    def read(self, work: Callable[[PresentReader], T]) -> T:
        """Run `work` on the present moment and return its result; raise `StoreFailed`."""
        return self.present.read(work)

    def pin(self) -> None:
        """Pin the present moment: reads show it until `advance`."""
        self.present.pin()

    def hold(self) -> PresentReader:
        """Hold the present moment open; raise `StoreFailed`."""
        snapshot = self._take_spare().begin_held()
        snapshot.cached.limit(_SNAPSHOT_CACHE_BYTES)
        self.snapshots.add(snapshot)
        return snapshot

    def advance(self, *, holds: bool = False) -> PresentReader | None:
        """Show the last commit to reads; with `holds` return the moment before, held.

        None if that is no longer open, or if no other connection can be opened.
        """
        reader = self.present
        other = self._try_spare() if holds else None
        if other is None or not reader.keep_open():
            reader.advance()
            if other is not None:
                self.release(other)
            return None
        self._show_by(other, reader)
        return reader

    def refuse_held(self, refusal: Callable[[], Exception]) -> None:
        """Release all moments that are held; their readers receive what `refusal` returns."""
        for snapshot in list(self.snapshots):
            snapshot.refuse(refusal)

    def renew(self) -> None:
        """Show the moment that is shown by a transaction that begins now, if nothing is newer.

        One that began before the log was checkpointed keeps it from being restarted.
        """
        reader = self.present
        if reader.is_pinned:
            return
        other = self._try_spare()
        if other is None:
            return
        other.pin()
        if other.shows_as(reader) and reader.keep_open():
            self._show_by(other, reader)
            reader.close()
        else:
            self.release(other)
        other.is_pinned = False

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of pages for the present; a snapshot keeps a few of its own."""
        self._cache_bytes = size
        self.present.cached.limit(size)

    def release_moment(self) -> bool:
        """Release the moment of `present`; may be called in any thread."""
        return self.present.release_moment()

    def close(self) -> None:
        """Close all connections, and the snapshots with them."""
        for snapshot in list(self.snapshots):
            snapshot.close()
        for cached in (*self._spare, self.present.cached):
            cached.connection.close()
        self._spare.clear()

    def _take_spare(self) -> PresentReader:
        if self._spare:
            return PresentReader(self._spare.pop(), self)
        self._writer.check_in_place()
        return PresentReader(CachedConnection(connect_reader(self._path)), self)

    def _try_spare(self) -> PresentReader | None:
        """Return a reader; None if none can be opened: perhaps no descriptor is left."""
        try:
            return self._take_spare()
        except StoreFailed:
            return None

    def replace(self, reader: PresentReader) -> bool:
        """Show the present moment by another reader from now on; return whether it can.

        It cannot if a commit has taken effect that was not shown yet, or without a connection.
        """
        other = self._try_spare()
        if other is None:
            return False
        other.pin()
        if not other.shows_as(reader):
            other.advance()
            self.release(other)
            return False
        other.is_pinned = reader.is_pinned
        self._show_by(other, reader)
        reader.cached.limit(_SNAPSHOT_CACHE_BYTES)
        return True

    def _show_by(self, other: PresentReader, held: PresentReader) -> None:
        """Show the present moment by another reader from now on: `held` keeps its own."""
        if self._cache_bytes is not None:
            other.cached.limit(self._cache_bytes)
        other.begun, held.begun = self._begun, None
        self.present = other
        self.snapshots.add(held)

    def release(self, reader: PresentReader) -> None:
        """Take back the connection of a reader that no longer shows anything."""
        self.snapshots.discard(reader)
        if len(self._spare) < _SPARE_CONNECTIONS:
            self._spare.append(reader.cached)
        else:
            reader.cached.connection.close()


def ignore_damage(_: Damage) -> None:
    """Receive damage, for which the read or the write has an error already."""


def _raise_over(*_: object) -> NoReturn:
    raise RuntimeError("The read or transaction of these rows has ended.")
