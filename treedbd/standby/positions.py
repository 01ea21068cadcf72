"""Where standbys are in the change logs of the first: their cursors, as tasks of writes.

A standby has one cursor in each database that it follows (`store.cursors`). It says itself where it
is: up to which entry everything is durable there. So a cursor is placed where the standby is, if
the log has all that follows; only then entries are sent from there.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from treedbd.database.apply import WriteApplier
from treedbd.database.log_reader import LogPosition, end_of
from treedbd.database.requests import Outcome, TooManyCursors, Write
from treedbd.limits import MAX_CURSORS, MIB
from treedbd.store.cursors import Cursor, put_cursor, read_count, read_cursor, read_cursors
from treedbd.store.engine import DamagedRow, ReadView, Transaction

NAME_DIGITS: Final = 8
STEP_ENTRIES: Final = 1024
STEP_BYTES: Final = MIB
"""Over how many entries, and how many of their bytes, a cursor moves in one write at most."""


def cursor_name(standby: str) -> str:
    """Return the name of the cursors of a standby, whose id has hexadecimal digits."""
    return f"standby-{standby[:NAME_DIGITS]}"


def continues_at(view: ReadView, position: LogPosition) -> bool:
    """Return whether a log has this position, and all entries that follow it."""
    sequence = position.sequence
    if not sequence:
        first = next(view.entries(0), None)
        return view.sequence() == 0 if first is None else first.sequence == 1
    at = next(view.entries(sequence - 1), None)
    return at is not None and at[:2] == (sequence, position.op_id)


def is_placed(view: ReadView, name: str, position: LogPosition) -> bool:
    """Return whether a log continues at a position, and a cursor holds what follows."""
    cursor = find_cursor(view, name)
    return (
        cursor is not None
        and cursor.is_whole
        and not cursor.is_dropped
        and cursor.sequence <= position.sequence
        and continues_at(view, position)
    )


def find_cursor(view: ReadView, name: str) -> Cursor | None:
    """Return a cursor, None if there is none, or a damaged one."""
    try:
        return read_cursor(view, name)
    except DamagedRow:
        return None


@attrs.define
class PlaceCursor:
    """Place the cursor of a standby where it is, or at the end of the log.

    Attributes:
        name: the name of the cursor.
        now_ms: the time, in milliseconds since 1970.
        position: where the standby is; None for the end.
        cursor: what was stored; None if the log does not continue at the position.

    """

    name: str
    now_ms: int
    position: LogPosition | None = None
    cursor: Cursor | None = None
    is_local: ClassVar[bool] = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; raise `TooManyCursors`."""
        self.cursor = None
        position = self.position or end_of(transaction)
        if not continues_at(transaction, position):
            return Outcome(write.edit, None, None, None)
        present = find_cursor(transaction, self.name)
        if present is None and len(read_cursors(transaction)) >= MAX_CURSORS:
            raise TooManyCursors
        count = read_count(transaction)
        self.cursor = Cursor(
            name=self.name,
            sequence=position.sequence,
            op_id=position.op_id,
            is_whole=True,
            # What is retained above it is little, and does not count for its lag.
            bytes_read=0 if count is None else count.bytes,
            created_ms=self.now_ms if present is None else present.created_ms,
            moved_ms=_moved_ms(self.now_ms, present),
        )
        put_cursor(transaction, self.cursor)
        return Outcome(write.edit, None, None, None, has_changed_rows=True)


@attrs.define
class MoveCursor:
    """Move the cursor of a standby towards where it is, never back, over some entries at once.

    A cursor that was removed, or dropped, stays so: the standby is sent what it needs to begin
    again. If the standby is where the cursor is, that is recorded as a move.

    Attributes:
        name: the name of the cursor.
        now_ms: the time, in milliseconds since 1970.
        position: where the standby is.
        is_done: whether nothing is left to do.

    """

    name: str
    now_ms: int
    position: LogPosition
    is_done: bool = False
    is_local: ClassVar[bool] = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        self.is_done = True
        unchanged = Outcome(write.edit, None, None, None)
        present = find_cursor(transaction, self.name)
        if present is None or present.is_dropped:
            return unchanged
        target = self.position
        if present.sequence > target.sequence or not continues_at(transaction, target):
            return unchanged
        at, size = LogPosition(present.sequence, present.op_id), 0
        if at.sequence < target.sequence:
            at, size = _step(transaction, at, target)
        self.is_done = at.sequence >= target.sequence
        moved = attrs.evolve(
            present,
            sequence=at.sequence,
            op_id=at.op_id,
            bytes_read=present.bytes_read + size,
            moved_ms=_moved_ms(self.now_ms, present),
        )
        put_cursor(transaction, moved)
        return attrs.evolve(unchanged, has_changed_rows=True)


def _moved_ms(now_ms: int, present: Cursor | None) -> int:
    """Return when a cursor moves; a later time than before, by which a move is recognised."""
    return now_ms if present is None else max(now_ms, present.moved_ms + 1)


def _step(view: ReadView, at: LogPosition, target: LogPosition) -> tuple[LogPosition, int]:
    """Return the next position on the way to a target, and the bytes of the entries up to it."""
    size = 0
    for count, entry in enumerate(view.entries(at.sequence), 1):
        size += len(entry.content)
        at = LogPosition(entry.sequence, entry.op_id)
        if at.sequence >= target.sequence or count == STEP_ENTRIES or size >= STEP_BYTES:
            break
    return at, size
