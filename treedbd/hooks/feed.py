"""The events of a hook that a program reads, from the log of its database.

Theory of operation. The place of the program is the cursor of the hook, below which the log is
kept. The program reads batches (`Feed.read`) from its place on, or from a later position that it
knows, and moves the cursor (`ChangeFeed`) when events are done. So nothing is remembered in
this process: any process that serves the database gives the next batch, after any crash.

One program reads a hook at a time. Each has an id of its own; the one that said last that it reads
is stored beside the hooks, and compared in the transaction that moves the cursor. The older one is
refused from then on (`ReaderReplaced`), so a program that is started on another machine needs
nothing but the database.

A batch has whole entries. Entries without events of the hook are passed over: `reached` is after
them. The place is lost (`PlaceLost`) if the cursor was dropped because its lag was too long, if it
was removed, or if the log is that of another history: a database that was deleted or restored.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from treedbd.database.database import Database
from treedbd.database.event_capture import cursor_at_end
from treedbd.database.requests import Outcome, PlaceLost, ReaderReplaced, UnknownHook, Write
from treedbd.hooks.message import messages_of
from treedbd.limits import MIB
from treedbd.store.changelog import read_some
from treedbd.store.cursors import Cursor, put_cursor, read_cursor
from treedbd.store.engine import LogEntry, ReadView, Transaction
from treedbd.store.hooks import Hook, read_hook_readers, read_hooks, write_hook_readers
from treedbd.tree.event import Position

if TYPE_CHECKING:
    from treedbd.database.apply import WriteApplier

BATCH_BYTES: Final = MIB
"""Bytes of events after which a batch ends; it has one entry at least."""
PASSED_OVER: Final = 20_000
"""Entries that are read for one batch at most."""
PRINTED_AT_ONCE: Final = 16
"""Events that are printed in one step."""
_ID_BYTES: Final = 8
"""How much of an operation id a position has that a client knows."""


@attrs.frozen
class FeedEntry:
    """The events of one write, printed, and the position after it."""

    at: Position
    events: tuple[bytes, ...]


@attrs.frozen
class Batch:
    """Events in the order of the log; the entries up to `reached` have no others.

    `unread` is how many entries there are after it.
    """

    entries: tuple[FeedEntry, ...]
    reached: Position
    unread: int


@attrs.frozen
class Place:
    """A hook whose events a program reads, its cursor, and the id of the program; "" for none."""

    hook: Hook
    cursor: Cursor
    reader: str

    @property
    def at(self) -> Position:
        """The position up to which all is done."""
        return Position(self.cursor.sequence, self.cursor.op_id)


class Feed:
    """Reads the events of one hook."""

    def __init__(self, database: Database, name: str) -> None:
        """`name` is that of the hook."""
        self._database = database
        self._name = name

    def look(self, reader: str | None = None) -> Place:
        """Return where the hook is; a `reader` that is not None must be its reader.

        Raises `UnknownHook`, `PlaceLost` and `ReaderReplaced`.
        """
        return self._database.read(lambda nodes: find_place(nodes.rows.stored, self._name, reader))

    def read(
        self, after: Position | None, limit: int, reader: str | None = None
    ) -> Generator[None, None, Batch]:
        """Return the next events after a position, or after the cursor, in steps.

        An entry with which there are more than `limit` events is the last. Raises as `look`.
        """
        place = self.look(reader)
        at = self._check(place.at if after is None else after)
        found: list[FeedEntry] = []
        count = size = passed = 0
        while True:
            yield
            last, entries = self._read_some(at)
            for entry in entries:
                printed: list[bytes] = []
                for event in self._print(entry, place.hook):
                    printed.append(event)
                    if len(printed) % PRINTED_AT_ONCE == 0:
                        yield
                at = Position(entry.sequence, entry.op_id)
                if printed:
                    found.append(FeedEntry(at, tuple(printed)))
                    count, size = count + len(printed), size + sum(map(len, printed))
                    if count >= limit or size >= BATCH_BYTES:
                        break
                    yield
            passed += len(entries)
            is_full = count >= limit or size >= BATCH_BYTES or passed >= PASSED_OVER
            if not entries or is_full:
                return Batch(tuple(found), at, last - at.sequence)

    def count_bytes(self, place: Place, done: Position) -> Generator[None, None, Cursor]:
        """Return the cursor of a place after a later position, in steps; raise `PlaceLost`."""
        at, size = place.at, place.cursor.bytes_read
        done = self._check(done)
        while at.sequence < done.sequence:
            _, entries = self._read_some(at)
            for entry in entries:
                if entry.sequence <= done.sequence:
                    size += len(entry.content)
                    at = Position(entry.sequence, entry.op_id)
            yield
        return attrs.evolve(place.cursor, sequence=at.sequence, op_id=at.op_id, bytes_read=size)

    def _check(self, position: Position) -> Position:
        """Return a position with its whole id; raise `PlaceLost` if the log does not have it."""
        sequence, op_id = position
        if sequence == 0:
            return position
        entry = self._database.read(
            lambda nodes: next(nodes.rows.stored.entries(sequence - 1), None)
        )
        if entry is None or entry.sequence != sequence:
            raise PlaceLost(
                f"The events of {self._name} do not continue at the write {sequence}: the log does "
                "not have it."
            )
        if op_id and entry.op_id[:_ID_BYTES] != op_id[:_ID_BYTES]:
            raise PlaceLost(
                f"The events of {self._name} do not continue at the write {sequence}: the database "
                "was replaced by another one."
            )
        return Position(sequence, entry.op_id)

    def _read_some(self, at: Position) -> tuple[int, list[LogEntry]]:
        """Return the number of the last entry, and the next ones; raise `PlaceLost`."""
        last, entries = self._database.read(
            lambda nodes: (
                nodes.rows.stored.sequence(),
                read_some(nodes.rows.stored, at.sequence),
            )
        )
        is_gap = bool(entries) and entries[0].sequence != at.sequence + 1
        if last < at.sequence or is_gap or (last > at.sequence and not entries):
            raise PlaceLost(
                f"The events of {self._name} do not continue after the write {at.sequence}."
            )
        return last, entries

    def _print(self, entry: LogEntry, hook: Hook) -> Iterator[bytes]:
        for message in messages_of(hook, self._database.name, entry):
            yield message.body


def find_place(view: ReadView, name: str, reader: str | None = None) -> Place:
    """Return where a hook is; a `reader` that is not None must be its reader.

    Raises `UnknownHook`, `PlaceLost` and `ReaderReplaced`.
    """
    hook = find_hook(view, name)
    present = read_hook_readers(view).get(name, "")
    if reader is not None and reader != present:
        raise ReaderReplaced(name)
    cursor = read_cursor(view, hook.cursor)
    if cursor is None:
        raise PlaceLost(f"The place of {name} in the log is lost: its cursor was removed.")
    if cursor.is_dropped:
        raise PlaceLost(
            f"The place of {name} in the log is lost: its lag was too long (readers.lag_bytes, "
            "readers.lag_s)."
        )
    return Place(hook, cursor, present)


def find_hook(view: ReadView, name: str) -> Hook:
    """Return a hook whose events a program reads; raise `UnknownHook`."""
    for hook in read_hooks(view):
        if hook.name == name and hook.url is None:
            return hook
    raise UnknownHook(name)


@attrs.frozen
class ChangeFeed:
    """The task of a write that names the program that reads a hook, or moves its cursor.

    `reader` is the id of the program. If it `claims`, it is the reader from then on; else it must
    be, unless it is None. The cursor is moved to `done`, never back; or, if it begins at the
    `end`, there, wherever it was.
    """

    name: str
    reader: str | None
    now_ms: int
    claims: bool = False
    done: Cursor | None = None
    end: bool = False

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; raise `UnknownHook`, `PlaceLost` or `ReaderReplaced`."""
        hook = find_hook(transaction, self.name)
        expected = None if self.claims else self.reader
        if self.end:
            if expected is not None and read_hook_readers(transaction).get(self.name) != expected:
                raise ReaderReplaced(self.name)
            put_cursor(transaction, cursor_at_end(transaction, hook.cursor, self.now_ms))
        else:
            place = find_place(transaction, self.name, expected)
            if self.done is not None and self.done.sequence > place.cursor.sequence:
                created_ms = place.cursor.created_ms
                moved = attrs.evolve(self.done, created_ms=created_ms, moved_ms=self.now_ms)
                put_cursor(transaction, moved)
        if self.claims and self.reader is not None:
            names = {each.name for each in read_hooks(transaction)}
            others = read_hook_readers(transaction).items()
            readers = {each: reader for each, reader in others if each in names}
            write_hook_readers(transaction, {**readers, self.name: self.reader})
        return Outcome(write.edit, None, None, None, has_changed_rows=True)
