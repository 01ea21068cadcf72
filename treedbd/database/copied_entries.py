"""Entries of another daemon's change log, applied to a database of this one.

A standby does with each entry what the first has done: the same change of the tree, and the same
entry under its own number and id. So the histories are the same, a client of one can continue at
the other, and watchers are notified as of any write. Rules are not evaluated and quotas not judged:
the first has done that. An entry is applied only directly after the one before it.

The tasks here are of writes that wait in the queue of the database as all others do. The state of a
database is its last entry, so what was applied before a crash is known by its number and id.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
from twisted.internet.defer import Deferred

from treedbd.database.log_reader import LogPosition, cursor_at, end_of, find_position
from treedbd.database.requests import Caller, EntryRefused, Outcome, Task, Write
from treedbd.limits import MAX_CURSORS
from treedbd.loop import pause
from treedbd.store import changelog
from treedbd.store.bulk import BulkPatch, BulkWriter
from treedbd.store.cursors import put_cursor, read_cursors, remove_cursor, time_of
from treedbd.store.disconnect_rows import DisconnectRow, list_owners
from treedbd.store.engine import DamagedRow, LogEntry, Row, Transaction
from treedbd.store.hooks import CURSOR_PREFIX, HOOK_NAME, replace_hook_rows
from treedbd.store.indexes import DISCONNECT_END, DISCONNECT_FIRST
from treedbd.store.node_writer import NodeWriter
from treedbd.tree.edit import ANY_LENGTH, Edit, Resolver, make_remove
from treedbd.tree.event import EVENT_BYTES, Commit
from treedbd.tree.fragments import Splitter
from treedbd.tree.types import ROOT, STORED, Change, InvalidData, InvalidPath, Place

if TYPE_CHECKING:
    from treedbd.database.apply import WriteApplier
    from treedbd.database.database import Database

LONG_BYTES: Final = 256 * 1024
"""A longer entry is applied fragment by fragment, with pauses."""
_PIECE_BYTES: Final = 65_536
_HOOK_CURSOR: Final = re.compile(re.escape(CURSOR_PREFIX) + HOOK_NAME.pattern)
_NOTHING: Final = make_remove(Place(ROOT))
_ANONYMOUS: Final = Caller(None)
_UNREADABLE: Final = (InvalidData, InvalidPath, ValueError, LookupError, TypeError)


def read_end(database: Database) -> LogPosition:
    """Return the position of the last entry that is durable in a database."""
    return database.read(lambda nodes: end_of(nodes.rows.stored))


def read_owners(database: Database) -> list[str]:
    """Return the owners of the writes that a database keeps for the ends of sessions."""
    return database.read(lambda nodes: list(list_owners(nodes.rows.stored)))


def replay(database: Database, task: Task) -> Deferred[Outcome]:
    """Do a task of this module; fires when it is durable.

    Errbacks with `EntryRefused`, `Unavailable`, or what the task raises.
    """
    return database.write(Write(_NOTHING, 0, _ANONYMOUS, wants_echo=False, task=task))


@attrs.frozen(eq=False)
class ApplyEntry:
    """Apply the entry that follows the last one of the database."""

    entry: LogEntry
    is_local = True

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; raise `EntryRefused` if it is another one, or cannot be applied."""
        sequence = transaction.sequence()
        if sequence + 1 != self.entry.sequence:
            raise EntryRefused(self.entry.sequence, f"does not follow the entry {sequence}")
        return Outcome(write.edit, _apply(applier, transaction, self.entry), None, None)


@attrs.frozen(eq=False)
class ReplaceDisconnectRows:
    """Replace all rows of writes that wait for the ends of sessions."""

    rows: Sequence[DisconnectRow]
    is_local = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; raise `EntryRefused` if a row is not one of these."""
        for row in self.rows:
            if not DISCONNECT_FIRST < row.key < DISCONNECT_END:
                raise EntryRefused(transaction.sequence(), "comes with a row of another kind")
        transaction.delete_range(DISCONNECT_FIRST, DISCONNECT_END)
        for row in self.rows:
            transaction.put(row.key, row.stored)
        return Outcome(write.edit, None, None, None, has_changed_rows=True)


@attrs.frozen(eq=False)
class ReplaceHooks:
    """Replace the hooks by those of the first, and their cursors by `reached`.

    So a standby that is promoted sends what the first had not: `reached` has, by the names of
    cursors, up to which entry all events are done.
    """

    rows: Sequence[Row]
    reached: Mapping[str, int]
    now_ms: int
    is_local = True

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; raise `EntryRefused` for what is not one of hooks."""
        if not all(map(_HOOK_CURSOR.fullmatch, self.reached)) or len(self.reached) > MAX_CURSORS:
            raise EntryRefused(transaction.sequence(), "comes with a cursor that is not of a hook")
        try:
            replace_hook_rows(transaction, self.rows)
        except DamagedRow:
            raise EntryRefused(
                transaction.sequence(), "comes with hooks that are damaged"
            ) from None
        applier.events.changed()
        present = {each.name: each for each in read_cursors(transaction)}
        for name in present.keys() - self.reached.keys():
            if _HOOK_CURSOR.fullmatch(name):
                remove_cursor(transaction, name)
        for name, sequence in self.reached.items():
            if name not in present or present[name].sequence != sequence:
                at = find_position(transaction, sequence)
                put_cursor(transaction, cursor_at(transaction, name, at, self.now_ms))
        return Outcome(write.edit, None, None, None, has_changed_rows=True)


@attrs.frozen(eq=False)
class CreateDatabase:
    """Create a database without data."""

    is_local = True

    def __call__(self, _: WriteApplier, __: Transaction, write: Write) -> Outcome:
        """Commit without a change, which creates the file."""
        return Outcome(write.edit, None, None, None, has_changed_rows=True)


def _apply(applier: WriteApplier, transaction: Transaction, entry: LogEntry) -> Commit:
    content, size = entry.content, len(entry.content)
    most = changelog.MAX_DECODED_NODES
    try:
        if size > LONG_BYTES or (size > most and changelog.count_nodes(content) > most):
            head, body = changelog.split_body(content)
            if body is not None and not head.place.is_priority:
                return _apply_long(applier, transaction, entry, head, body)
        edit = changelog.decode(content, sys.maxsize)
    except _UNREADABLE:
        raise EntryRefused(entry.sequence, "cannot be read") from None
    if isinstance(edit, changelog.NotRetained):
        raise EntryRefused(entry.sequence, "was kept without its body")
    database = applier.database
    counted = None if database.quotas is None else database.quotas.begin(transaction)
    nodes = applier.make_writer(transaction if counted is None else counted.rows)
    database.kept_reads.note_changes(transaction, edit.changes)
    (nodes.change if counted is None else nodes.apply)(edit.changes)
    sequence = applier.append(transaction, entry.op_id, content)
    if counted is not None:
        counted.record(sequence)
    _note_expiry(database, transaction, nodes, edit, content)
    return changelog.commit_of(sequence, edit, entry.op_id, size)


def _apply_long(
    applier: WriteApplier,
    transaction: Transaction,
    entry: LogEntry,
    head: changelog.NotRetained,
    body: bytes,
) -> Commit:
    """Apply an entry fragment by fragment; its commit has no values, as that of a large write."""
    database = applier.database
    quotas = database.quotas
    counted = None if quotas is None else quotas.begin(transaction, is_large=True)
    nodes = applier.make_writer(transaction if counted is None else counted.rows)
    nodes.flush()  # what the entries before it have changed
    path, resolver = head.place.path, Resolver(0, None)  # an entry has no server values
    if head.method == "put":
        put = BulkWriter(nodes, path, resolver, ANY_LENGTH)
        _add_all(put, body)
        edit = Edit("put", head.place, None, (Change(head.place, STORED),))
        printed = put.printed
    else:
        patch = BulkPatch(
            writer=nodes,
            path=path,
            resolver=resolver,
            max_string_bytes=ANY_LENGTH,
            shown_bytes=EVENT_BYTES,
        )
        _add_all(patch, body)
        edit, printed = Edit("patch", head.place, None, patch.changes), patch.event
    database.kept_reads.note_changes(transaction, edit.changes)
    sequence = applier.append(transaction, entry.op_id, entry.content)
    if counted is not None:
        counted.record(sequence)
    _note_expiry(database, transaction, nodes, edit, entry.content)
    size = len(entry.content)
    return changelog.large_commit_of(sequence, edit, entry.op_id, printed, size)


def _note_expiry(
    database: Database, transaction: Transaction, nodes: NodeWriter, edit: Edit, content: bytes
) -> None:
    """Enter when the nodes go that were written, so that they do after a promotion."""
    if database.has_expiry:
        now = time_of(content, database.expiry.now_ms())
        database.expiry.note(transaction, nodes, edit.changes, now)


def _add_all(target: BulkWriter | BulkPatch, body: bytes) -> None:
    splitter = Splitter()
    for at in range(0, len(body), _PIECE_BYTES):
        for fragment in splitter.feed(body[at : at + _PIECE_BYTES]):
            target.add(fragment)
        pause()
    for fragment in splitter.finish():
        target.add(fragment)
    target.finish()
