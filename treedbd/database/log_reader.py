"""A reader of the change log of one database, which continues where it was after any stop.

Theory of operation. The log is numbered without gaps and written in the transaction of each write,
so who has read it up to a number knows everything up to there. A `LogReader` has a name, and a
cursor of that name in the database (`store.cursors`), below which the log is kept. Its owner calls
`read` for the next entries, does with them what it is for, and says `reached` when that is safe.
The cursor is stored some time later, together with other writes if there are any. So a process that
is killed reads again what it has read since: each entry is read at least once, in order, and one
that comes again has the same number and the same id. `read` returns as much as its owner asks for,
when it asks: a slow owner lags, and nothing is collected in memory.

One reader of a name works at a time (`election`). If two do for a moment, because one does not know
yet that it was replaced, both read the same; a cursor never moves back.

The log does not continue at the cursor (`CursorLost`) if its lag was too long, or if the file of
the database was replaced: then the reader has to begin again, with all data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.requests import Caller, Outcome, TooManyCursors, Write
from treedbd.limits import DEFAULT_TIMEOUT_S, MAX_CURSORS
from treedbd.loop import paused
from treedbd.store.changelog import READ_AT_ONCE, is_whole, read_some
from treedbd.store.cursors import Cursor, put_cursor, read_count, read_cursor, read_cursors
from treedbd.store.cursors import remove_cursor as remove_row
from treedbd.store.engine import DamagedRow, LogEntry, ReadView, Transaction
from treedbd.tree.edit import make_remove
from treedbd.tree.types import ROOT, Place

if TYPE_CHECKING:
    from treedbd.database.apply import WriteApplier
    from treedbd.database.database import Database
    from treedbd.database.runtime import Runtime

T = TypeVar("T")

EARLY_ENTRIES: Final = 1001
"""How many entries a reader reads that begins early: as many as a restored log has."""
STORED_AFTER_S: Final = 1.0
"""Seconds until the cursor is stored that a reader has reached."""
_NOTHING: Final = make_remove(Place(ROOT))
_ANONYMOUS: Final = Caller(None)


class CursorLost(Exception):
    """The log does not continue where a reader was; `str()` says why."""


@attrs.frozen
class LogPosition:
    """A place in a log: the entries up to `sequence`, whose last has the id `op_id`."""

    sequence: int = 0
    op_id: bytes = b""


class LogReader:
    """Reads the change log of one database under a name; belongs to the reactor's thread.

    Attributes:
        position: up to where it has read.

    """

    _log = Logger()

    def __init__(
        self,
        database: Database,
        runtime: Runtime,
        name: str,
        *,
        is_whole: bool = False,
        keeps_positions: bool = False,
    ) -> None:
        """Read nothing yet. A reader that `is_whole` gets entries with their bodies.

        One that `keeps_positions` may say of each entry that it is reached, and keeps what that
        needs of those that it has read since the last one.
        """
        self.position = LogPosition()
        self._kept: deque[tuple[LogPosition, int]] | None = deque() if keeps_positions else None
        self._database, self._runtime = database, runtime
        self._name, self._is_whole = name, is_whole
        self._bytes_read = 0
        self._reached: Cursor | None = None
        self._due: IDelayedCall | None = None

    @property
    def sequence(self) -> int:
        """The number of the last entry that was read."""
        return self.position.sequence

    async def open(self) -> bool:
        """Continue at the cursor; return False, without effect, if `begin` has to be called.

        That is if there is no cursor, or if the log does not continue there.
        """
        cursor = self._read(self._find)
        if cursor is None:
            return False
        self.position = LogPosition(cursor.sequence, cursor.op_id)
        self._bytes_read = cursor.bytes_read
        return True

    async def begin(self, *, is_early: bool = False) -> None:
        """Begin at the end of the log; the cursor is durable when this returns.

        If it `is_early`, begin before the newest `EARLY_ENTRIES`, or those of them that are there,
        and whole if the reader is: so a new database is read from its first entry. Raises
        `TooManyCursors`, and what `Database.write` errbacks with.
        """
        task = _Begin(self._name, self._is_whole, self._runtime.now_ms(), is_early=is_early)
        self._forget_reached()
        await self._write(task)
        cursor = self._read(self._find)
        if cursor is None:
            raise CursorLost("the cursor was removed meanwhile")
        self.position = LogPosition(cursor.sequence, cursor.op_id)
        self._bytes_read = cursor.bytes_read

    def read(self) -> list[LogEntry]:
        """Return the next entries, none at the end of the log; raise `CursorLost`."""
        after = self.sequence
        last, entries = self._read(lambda view: (view.sequence(), read_some(view, after)))
        if last < after or (last > after and (not entries or entries[0].sequence != after + 1)):
            raise CursorLost("the log does not continue where the reader was")
        if entries:
            self._keep(entries)
            self.position = LogPosition(entries[-1].sequence, entries[-1].op_id)
            self._bytes_read += sum(len(each.content) for each in entries)
        return entries

    def _keep(self, entries: Sequence[LogEntry]) -> None:
        if self._kept is not None:
            bytes_read = self._bytes_read
            for each in entries:
                bytes_read += len(each.content)
                self._kept.append((LogPosition(each.sequence, each.op_id), bytes_read))

    def count_unread(self) -> int:
        """Return how many entries have not been read."""
        return max(0, self._read(lambda view: view.sequence()) - self.sequence)

    def reached(self, through: int | None = None) -> None:
        """Record that all that was read until now is safe; the cursor is stored soon.

        `through` is the number of an entry, read and not reached before, up to which it is; only a
        reader that keeps positions knows such.
        """
        position, bytes_read = self._find_kept(self.sequence if through is None else through)
        now = self._runtime.now_ms()
        self._reached = Cursor(
            name=self._name,
            sequence=position.sequence,
            op_id=position.op_id,
            is_whole=self._is_whole,
            bytes_read=bytes_read,
            created_ms=now,
            moved_ms=now,
        )
        if self._due is None:
            self._due = self._runtime.clock.callLater(STORED_AFTER_S, self._store_later)

    def _find_kept(self, through: int) -> tuple[LogPosition, int]:
        """Return the position of an entry, and the bytes up to it; forget those before it."""
        found = self.position, self._bytes_read
        while self._kept and self._kept[0][0].sequence <= through:
            found = self._kept.popleft()
        if found[0].sequence != through:
            raise ValueError(f"The entry {through} was not read, or was reached before.")
        return found

    async def save(self) -> None:
        """Store the cursor that was reached; raise what `Database.write` errbacks with."""
        reached, self._reached = self._reached, None
        self._cancel()
        if reached is not None:
            try:
                await self._write(_Move(reached))
            except BaseException:
                self._reached = self._reached or reached
                raise

    async def remove(self) -> None:
        """Remove the cursor: nothing is kept for the reader any more."""
        self._forget_reached()
        await self._write(RemoveCursor(self._name))

    def stop(self) -> None:
        """Store nothing more; what was reached and is not stored is read again."""
        self._forget_reached()

    def _read(self, work: Callable[[ReadView], T]) -> T:
        return self._database.read(lambda nodes: work(nodes.rows.stored))

    def _find(self, view: ReadView) -> Cursor | None:
        """Return the cursor if the log continues there."""
        try:
            cursor = read_cursor(view, self._name)
        except DamagedRow:
            return None
        if cursor is None or cursor.is_dropped or cursor.is_whole != self._is_whole:
            return None
        if cursor.sequence == 0:
            return cursor if _continues(view, 0) else None
        at = next(view.entries(cursor.sequence - 1), None)
        is_same = at is not None and at[:2] == (cursor.sequence, cursor.op_id)
        return cursor if is_same else None

    def _store_later(self) -> None:
        self._due = None
        Deferred.fromCoroutine(self._store())

    async def _store(self) -> None:
        try:
            await self.save()
        except Exception as error:
            # It is stored with what is reached next; until then more is read again.
            self._log.debug("A cursor is not stored: {error}", error=error)
            if self._due is None:
                self._due = self._runtime.clock.callLater(STORED_AFTER_S, self._store_later)

    def _forget_reached(self) -> None:
        self._reached = None
        self._cancel()

    def _cancel(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    async def _write(self, task: Callable[[WriteApplier, Transaction, Write], Outcome]) -> None:
        await write_rows(self._database, self._runtime, task)


async def write_rows(
    database: Database,
    runtime: Runtime,
    task: Callable[[WriteApplier, Transaction, Write], Outcome],
) -> None:
    """Change rows beside the tree of a database; raise what `Database.write` errbacks with."""
    deadline = runtime.clock.seconds() + DEFAULT_TIMEOUT_S
    await database.write(make_task_write(task, runtime.now_ms(), deadline))


async def remove_cursor(database: Database, name: str, now_ms: int, deadline: float) -> None:
    """Remove a cursor, as an operator does whose reader is not used any more.

    Raises what `Database.write` errbacks with.
    """
    await database.write(make_task_write(RemoveCursor(name), now_ms, deadline))


def make_task_write(
    task: Callable[[WriteApplier, Transaction, Write], Outcome], now_ms: int, deadline: float
) -> Write:
    """Return the write that does a task of the service itself."""
    return Write(_NOTHING, now_ms, _ANONYMOUS, deadline=deadline, wants_echo=False, task=task)


@attrs.frozen
class _Begin:
    """Put a cursor at the end of the log, or before its newest entries."""

    name: str
    is_whole: bool
    now_ms: int
    is_early: bool
    is_local = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        present = read_cursors(transaction)
        if len(present) >= MAX_CURSORS and self.name not in [each.name for each in present]:
            raise TooManyCursors
        last = transaction.sequence()
        at = end_of(transaction)
        if self.is_early:
            at = _earliest(transaction, last, is_whole_needed=self.is_whole)
        cursor = Cursor(
            name=self.name,
            sequence=at.sequence,
            op_id=at.op_id,
            is_whole=self.is_whole,
            bytes_read=_bytes_up_to(transaction, at.sequence),
            created_ms=self.now_ms,
            moved_ms=self.now_ms,
        )
        put_cursor(transaction, cursor)
        return _changed(write)


@attrs.frozen
class _Move:
    """Move a cursor ahead, never back. One that was removed meanwhile is not made again."""

    reached: Cursor
    is_local = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        present = read_cursor(transaction, self.reached.name)
        if present is None or present.sequence > self.reached.sequence:
            return Outcome(write.edit, None, None, None)
        put_cursor(transaction, attrs.evolve(self.reached, created_ms=present.created_ms))
        return _changed(write)


@attrs.frozen
class RemoveCursor:
    """Remove a cursor, as an operator does whose reader is not used any more."""

    name: str
    is_local = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Remove it, if it is there."""
        if not remove_row(transaction, self.name):
            return Outcome(write.edit, None, None, None)
        return _changed(write)


def end_of(view: ReadView) -> LogPosition:
    """Return the position of the last entry of a log."""
    last = view.sequence()
    entry = next(view.entries(last - 1), None) if last else None
    return LogPosition(last, b"" if entry is None else entry.op_id)


def find_position(view: ReadView, sequence: int) -> LogPosition:
    """Return the position at an entry, or the first one after it that the log has."""
    entry = next(view.entries(max(0, sequence - 1)), None)
    if entry is None:
        return end_of(view)
    if sequence == 0 and entry.sequence == 1:
        return LogPosition()
    return LogPosition(entry.sequence, entry.op_id)


def cursor_at(view: ReadView, name: str, at: LogPosition, now_ms: int) -> Cursor:
    """Return a cursor that begins at a position, and does not need whole entries."""
    return Cursor(
        name=name,
        sequence=at.sequence,
        op_id=at.op_id,
        is_whole=False,
        bytes_read=_bytes_up_to(view, at.sequence),
        created_ms=now_ms,
        moved_ms=now_ms,
    )


def _bytes_up_to(view: ReadView, sequence: int) -> int:
    """Return the bytes of entries up to a number, as `cursors.Count` counts them."""
    count = read_count(view)
    if count is None:
        return 0
    entries = takewhile(lambda entry: entry.sequence <= count.sequence, view.entries(sequence))
    return count.bytes - sum(len(entry.content) for entry in entries)


def _earliest(view: ReadView, last: int, *, is_whole_needed: bool) -> LogPosition:
    """Return a position after which all entries are there, and whole if that is needed.

    They are a bounded number.
    """
    at: LogPosition | None = None
    for entry in paused(view.entries(max(0, last - EARLY_ENTRIES)), READ_AT_ONCE):
        is_enough = not is_whole_needed or is_whole(entry.content)
        if at is None and entry.sequence == 1 and is_enough:
            at = LogPosition()
        elif at is None or not is_enough:
            at = LogPosition(entry.sequence, entry.op_id)
    return at or LogPosition(last)


def _changed(write: Write) -> Outcome:
    return Outcome(write.edit, None, None, None, has_changed_rows=True)


def _continues(view: ReadView, after: int) -> bool:
    """Return whether the log has all entries above a number."""
    first = next(view.entries(after), None)
    return view.sequence() == after if first is None else first.sequence == after + 1
