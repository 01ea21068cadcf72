"""Cursors: where each reader of the change log is, as rows beside the tree.

Theory of operation. A reader of the log (`database.log_reader`) has a name and one row in each
database that it reads: a cursor, up to which it has read. The log is not trimmed below a cursor
(`changelog.append`), and while one of them asks for whole entries, the bodies above it are not cut.
So that no reader that is away can fill the disk, the lag of a cursor is bounded by
`limits.ReaderLimits`; beyond them it is *dropped* in the transaction of the write that exceeds
them. A dropped cursor holds nothing; its row is kept as an alarm until the reader begins again, or
an operator removes it.

    CURSOR_FIRST          two bytes: the row of the count
    CURSOR_FIRST + name   a cursor

The lag of a cursor in bytes is the difference of two numbers, so that nothing is added up over
a long log: the count has the bytes of all entries that were appended since there are cursors, up to
some entry near the end, and a cursor that of the entries up to itself. A reader counts those that
it reads. Where entries were cut before it came to them, it counts less: its lag seems
longer than it is, until it reaches the end of the log.

These rows are not data: they are not served or indexed. A backup or a copy does not need them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs
import orjson

from treedbd.limits import ReaderLimits
from treedbd.store.engine import DamagedRow, ReadView, Row, Transaction
from treedbd.store.rows import seal, unseal

CURSOR_FIRST: Final = b"\x06c"
CURSOR_END: Final = b"\x06d"
"""All cursors are in this range, above the rows of indexes and below those of sessions."""
CURSORS_FIRST: Final = CURSOR_FIRST + b"\0"
"""All cursors are from here on, without the count."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
"""The names that cursors may have."""


@attrs.frozen
class Cursor:
    """Where a reader of the log is.

    Attributes:
        name: that of the reader.
        sequence: the reader has all entries up to this one.
        op_id: the id of that entry, by which another history is recognised; empty for entry 0.
        is_whole: whether the reader needs entries with their bodies, however long.
        bytes_read: bytes of the entries up to it, as `Count` counts them.
        created_ms, moved_ms: when it was created, and moved last, in milliseconds since 1970.
        dropped_ms: when it was dropped; None for one that holds the log.

    """

    name: str
    sequence: int
    op_id: bytes
    is_whole: bool
    bytes_read: int
    created_ms: int
    moved_ms: int
    dropped_ms: int | None = None

    @property
    def is_dropped(self) -> bool:
        """Whether it has been dropped because its lag was too long."""
        return self.dropped_ms is not None


@attrs.frozen
class Count:
    """The bytes of all entries up to `sequence` that were appended since there are cursors."""

    sequence: int
    bytes: int


@attrs.frozen
class Lag:
    """The lag of a cursor: entries, their bytes, and the age of the oldest of them."""

    entries: int
    bytes: int
    seconds: float


@attrs.frozen
class Held:
    """Up to which number the log may be trimmed, and bodies may be cut, for the sake of cursors."""

    through: int
    whole_through: int

    @property
    def is_whole(self) -> bool:
        """Whether any cursor needs whole entries."""
        return self.whole_through != _EVERY


_EVERY: Final = 2**63 - 1
NOTHING_HELD: Final = Held(_EVERY, _EVERY)


def read_cursors(view: ReadView, prefix: str = "") -> list[Cursor]:
    """Return all cursors in the order of their names, or those whose names begin with `prefix`.

    Raises `DamagedRow`.
    """
    if not prefix:
        return decode_cursors(view.scan(CURSORS_FIRST, CURSOR_END))
    low = _key(prefix)
    return decode_cursors(view.scan(low, low + b"\x7f"))


def decode_cursors(rows: Iterable[Row]) -> list[Cursor]:
    """Return the cursors that are stored in the rows from `CURSORS_FIRST` to `CURSOR_END`.

    Raises `DamagedRow`.
    """
    return [_decode_cursor(key, stored) for key, stored in rows]


def read_cursor(view: ReadView, name: str) -> Cursor | None:
    """Return the cursor of a reader, None if there is none; raise `DamagedRow`."""
    key = _key(name)
    stored = view.get(key)
    return None if stored is None else _decode_cursor(key, stored)


def has_cursor(view: ReadView, name: str) -> bool:
    """Return whether a reader has a cursor, damaged or not."""
    return view.get(_key(name)) is not None


def count_cursors(view: ReadView) -> int:
    """Return how many cursors there are."""
    return sum(1 for _ in view.scan_keys(CURSORS_FIRST, CURSOR_END))


def put_cursor(transaction: Transaction, cursor: Cursor) -> None:
    """Store a cursor. It is counted from the count at its entry, if it is at the end of the log."""
    count = read_count(transaction)
    if count is None:
        count = Count(transaction.sequence(), cursor.bytes_read)
        _put_count(transaction, count)
    if cursor.sequence >= count.sequence:
        cursor = attrs.evolve(cursor, bytes_read=count.bytes)
    json = attrs.asdict(cursor)
    json["op_id"] = cursor.op_id.hex()
    key = _key(cursor.name)
    transaction.put(key, seal(key, orjson.dumps(json)))


def remove_cursor(transaction: Transaction, name: str) -> bool:
    """Remove a cursor, and the count with the last one; return whether there was one."""
    key = _key(name)
    if transaction.get(key) is None:
        return False
    transaction.delete(key)
    if next(transaction.scan_keys(CURSORS_FIRST, CURSOR_END), None) is None:
        transaction.delete(CURSOR_FIRST)
    return True


def read_count(view: ReadView) -> Count | None:
    """Return the count of a database, None if it has no cursors; raise `DamagedRow`."""
    stored = view.get(CURSOR_FIRST)
    if stored is None:
        return None
    try:
        json = orjson.loads(unseal(CURSOR_FIRST, stored))
        return Count(int(json["sequence"]), int(json["bytes"]))
    except (ValueError, LookupError, TypeError):
        raise DamagedRow("The count of the cursors cannot be read.") from None


def count_entries(transaction: Transaction, sequence: int) -> None:
    """Count the entries up to the last one, if there are cursors.

    It is called so often that few entries are read, and none of them but the last is long.
    """
    count = read_count(transaction)
    if count is None:
        return
    more = sum(len(entry.content) for entry in transaction.entries(count.sequence))
    _put_count(transaction, Count(sequence, count.bytes + more))


def held(view: ReadView) -> Held:
    """Return what cursors hold of the log. Damaged rows hold nothing."""
    return held_by_rows(view.scan(CURSORS_FIRST, CURSOR_END))


def held_by_rows(rows: Iterable[Row]) -> Held:
    """Return the same, from the rows from `CURSORS_FIRST` to `CURSOR_END`."""
    try:
        return held_by(decode_cursors(rows))
    except DamagedRow:
        return NOTHING_HELD


def held_by(cursors: list[Cursor]) -> Held:
    """Return what cursors hold of the log.

    The entry at a cursor is held too: it shows that the cursor belongs to this history.
    """
    holding = [each for each in cursors if not each.is_dropped]
    return Held(
        through=min((each.sequence - 1 for each in holding), default=_EVERY),
        whole_through=min((each.sequence for each in holding if each.is_whole), default=_EVERY),
    )


def measure(view: ReadView, cursor: Cursor, now_ms: int, since_ms: int | None = None) -> Lag:
    """Return the lag of a cursor; raise `DamagedRow`.

    `since_ms` is the time of the first entry above it, if that is known: the entry may be long.
    """
    last, count = view.sequence(), read_count(view)
    entries = max(0, last - cursor.sequence)
    if not entries or count is None:
        return Lag(0, 0, 0.0)
    late = sum(len(entry.content) for entry in view.entries(max(count.sequence, cursor.sequence)))
    bytes_ = max(0, count.bytes - cursor.bytes_read) + late
    if since_ms is None:
        first = next(view.entries(cursor.sequence), None)
        since_ms = cursor.moved_ms if first is None else time_of(first.content, cursor.moved_ms)
    return Lag(entries, bytes_, max(0.0, (now_ms - since_ms) / 1000))


class CursorKeeper:
    """Drops the cursors of one database whose lag is too long.

    The age of a cursor is measured by a clock that does not step, from when this process first sees
    it where it is: so a process that starts begins to measure, and a clock that jumps ahead drops
    nothing.
    """

    def __init__(
        self,
        bounds: ReaderLimits,
        seconds: Callable[[], float],
        now_ms: Callable[[], int],
        report: Callable[[Cursor, str], None],
    ) -> None:
        """Drop what exceeds `bounds`; `report` is called with each, and with why in a clause."""
        self._bounds = bounds
        self._seconds = seconds
        self._now_ms = now_ms
        self._report = report
        self._seen: dict[str, tuple[int, float]] = {}

    def held(self, transaction: Transaction) -> Held:
        """Drop those whose lag is too long, and return what the other cursors hold of the log.

        Damaged rows hold nothing.
        """
        try:
            cursors = read_cursors(transaction)
            if not cursors:
                return NOTHING_HELD
            return held_by(list(self._keep(transaction, cursors)))
        except DamagedRow:
            return NOTHING_HELD

    def _keep(self, transaction: Transaction, cursors: list[Cursor]) -> Iterator[Cursor]:
        count = read_count(transaction)
        for cursor in cursors:
            if cursor.is_dropped:
                continue
            lag = 0 if count is None else count.bytes - cursor.bytes_read
            reason = self._reason(cursor, lag, transaction.sequence())
            if reason is None:
                yield cursor
            else:
                self._seen.pop(cursor.name, None)
                put_cursor(transaction, attrs.evolve(cursor, dropped_ms=self._now_ms()))
                self._report(cursor, reason)

    def _reason(self, cursor: Cursor, lag: int, last: int) -> str | None:
        """Return why a cursor is dropped, None if it is not."""
        if lag > self._bounds.lag_bytes:
            return f"it lagged by more than {self._bounds.lag_bytes:,} bytes (readers.lag_bytes)"
        now = self._seconds()
        sequence, since = self._seen.get(cursor.name, (-1, now))
        if cursor.sequence != sequence or cursor.sequence == last:
            self._seen[cursor.name] = cursor.sequence, now
            return None
        if now - since > self._bounds.lag_s:
            return f"it had not moved for {self._bounds.lag_s:,.0f} seconds (readers.lag_s)"
        return None


def check_cursors(view: ReadView) -> Iterator[str]:
    """Yield a sentence if the cursors cannot be read."""
    try:
        read_cursors(view)
        read_count(view)
    except DamagedRow as error:
        yield str(error)


def _key(name: str) -> bytes:
    if not NAME.fullmatch(name):
        raise ValueError("The name of a cursor has lower-case letters, digits and hyphens.")
    return CURSOR_FIRST + name.encode()


def _put_count(transaction: Transaction, count: Count) -> None:
    content = orjson.dumps({"sequence": count.sequence, "bytes": count.bytes})
    transaction.put(CURSOR_FIRST, seal(CURSOR_FIRST, content))


def _decode_cursor(key: bytes, stored: bytes) -> Cursor:
    try:
        json: Any = orjson.loads(unseal(key, stored))
        json["op_id"] = bytes.fromhex(json["op_id"])
        return Cursor(**json)
    except DamagedRow:
        raise
    except (ValueError, LookupError, TypeError):
        raise DamagedRow("A cursor cannot be read.") from None


def time_of(content: bytes, otherwise: int) -> int:
    """Return the time of an entry, which is its first member, in milliseconds since 1970."""
    found = re.match(rb'\{"time":(\d{1,15})[,}]', content)
    return int(found[1]) if found else otherwise
