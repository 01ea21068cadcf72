"""What is done to the writes that are kept for the end of a session, each in one transaction.

They are the tasks of writes (`requests.Task`) and belong to batches like any write. A task may be
done several times before one transaction of it is committed, so it begins with what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from treedbd.database.requests import (
    Applier,
    Outcome,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
    TooManyDisconnectWrites,
    TooMuchKept,
    UnknownDatabase,
    Write,
)
from treedbd.limits import MAX_DISCONNECT_BYTES, MAX_DISCONNECT_NODES
from treedbd.names import DatabaseName
from treedbd.store.disconnect_rows import (
    DisconnectEntry,
    DisconnectRow,
    add_entry,
    cancel_entries,
    list_owners,
    list_rows,
)
from treedbd.store.engine import ReadView, Transaction
from treedbd.tree.edit import has_more_nodes
from treedbd.tree.types import InvalidData, Json, Place

_REFUSALS: Final = (PermissionDenied, InvalidData, TooLarge, QuotaExceeded, UnknownDatabase)
"""Why a write is not done, now or later. What only delays it is not among them."""


class KeptBytes:
    """The bytes that the sessions of this process keep in one database, as they are stored.

    They are data only when they are written, so a database that is full can keep them. But they
    have the room that all data may have, and no more; that of one session at least.
    """

    def __init__(self, name: DatabaseName, quota: int) -> None:
        """Keep `quota` bytes (`database_bytes`), any number with 0."""
        self._name = name
        self._most = quota and max(quota, MAX_DISCONNECT_BYTES)
        self._of: dict[str, int] = {}
        self._total = 0

    def check(self, session: str, entries: Sequence[DisconnectEntry]) -> None:
        """Raise `QuotaExceeded` if a session may not keep these, unless they only remove."""
        if not self._most:
            return
        others, size = self._total - self._of.get(session, 0), _stored_bytes(entries)
        brings = any(change.value is not None for each in entries for change in each.edit.changes)
        if brings and others + size > self._most:
            raise TooMuchKept(self._name, self._most)

    def count(self, session: str, entries: Sequence[DisconnectEntry]) -> None:
        """Count what a session keeps now, and nothing else."""
        if self._most:
            size = _stored_bytes(entries)
            self._total += size - self._of.get(session, 0)
            self._of[session] = size

    def forget(self, session: str) -> None:
        """Count nothing any more of a session that has ended."""
        self._total -= self._of.pop(session, 0)


def _stored_bytes(entries: Sequence[DisconnectEntry]) -> int:
    return sum(len(each.encode()) for each in entries)


@attrs.frozen
class SetEntry:
    """Judge a write, and keep it for the end of a session, which may have `limit` places."""

    owner: str
    session: str
    limit: int
    kept: KeptBytes

    def __call__(self, applier: Applier, transaction: Transaction, write: Write) -> Outcome:
        """Raise what refuses the write at present, or what the session may not have."""
        applier.judge(transaction, write)
        entry = DisconnectEntry(write.caller.auth, write.caller.is_admin, write.edit)
        is_stored = add_entry(transaction, self.owner, self.session, entry, self._check)
        return Outcome(write.edit, None, None, None, has_changed_rows=is_stored)

    def _check(self, entries: Sequence[DisconnectEntry]) -> None:
        check_bounds(self.limit, entries)
        self.kept.check(self.session, entries)
        self.kept.count(self.session, entries)


@attrs.frozen
class JudgeEntry:
    """Judge a write as `SetEntry` does for a session that has none, and keep nothing."""

    limit: int

    def __call__(self, applier: Applier, transaction: Transaction, write: Write) -> Outcome:
        """Raise what refuses it."""
        applier.judge(transaction, write)
        entry = DisconnectEntry(write.caller.auth, write.caller.is_admin, write.edit)
        check_bounds(self.limit, [entry])
        return Outcome(write.edit, None, None, None)


@attrs.frozen
class CancelEntries:
    """Remove what a session has kept for a place, and for all below it."""

    owner: str
    session: str
    place: Place
    kept: KeptBytes

    def __call__(self, _: Applier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        has_changed = cancel_entries(transaction, self.owner, self.session, self.place)
        if has_changed:
            rows = list_rows(transaction, self.owner, self.session)
            self.kept.count(self.session, [row.entry() for row in rows])
        return Outcome(write.edit, None, None, None, has_changed_rows=has_changed)


@attrs.define
class ListEntries:
    """Find the rows of a session, after all that was set before in the queue of writes.

    Attributes:
        find: returns them.
        found: what it returned.

    """

    find: Callable[[ReadView], list[DisconnectRow]]
    found: list[DisconnectRow] = attrs.field(factory=list)

    def __call__(self, _: Applier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; nothing is changed."""
        self.found = self.find(transaction)
        return Outcome(write.edit, None, None, None)


@attrs.define
class RunEntry:
    """Do a write that was kept, and forget it, both or neither.

    Attributes:
        row: what is stored; if that has changed, it is run already or is not to be run.
        refusal: why the write was not done, though it is forgotten; None if it was done.
        is_early: whether another one of its session has to be run first; nothing is changed then.
        is_forgotten: whether this has removed the row.

    """

    row: DisconnectRow
    refusal: Exception | None = None
    is_early: bool = False
    is_forgotten: bool = False

    def __call__(self, applier: Applier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        self.refusal = None
        self.is_early = self.is_forgotten = False
        outcome = Outcome(write.edit, None, None, None)
        if transaction.get(self.row.key) != self.row.stored:
            return outcome
        # On a full disk removals are done, and what was set before them may have to wait.
        if self.row.has_earlier(transaction):
            self.is_early = True
            return outcome
        try:
            outcome = applier.apply_edit(transaction, write)
        except _REFUSALS as error:
            self.refusal = error
        transaction.delete(self.row.key)
        self.is_forgotten = True
        return attrs.evolve(outcome, has_changed_rows=True)


@attrs.frozen
class DropEntry:
    """Forget a write that cannot be done."""

    row: DisconnectRow

    def __call__(self, _: Applier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        is_there = transaction.get(self.row.key) == self.row.stored
        if is_there:
            transaction.delete(self.row.key)
        return Outcome(write.edit, None, None, None, has_changed_rows=is_there)


def list_session(view: ReadView, session: str) -> list[DisconnectRow]:
    """Return the entries of a session of any owner."""
    return [row for owner in list_owners(view) for row in list_rows(view, owner, session)]


def check_nodes(json: Json) -> None:
    """Raise `TooLarge` for a write with more members and items than one may have that is kept."""
    if has_more_nodes(json, MAX_DISCONNECT_NODES):
        raise TooLarge(
            "What is written when a connection ends may have at most "
            f"{MAX_DISCONNECT_NODES} members and array items at a time."
        )


def check_bounds(limit: int, entries: Sequence[DisconnectEntry]) -> None:
    """Raise what refuses the places and bytes that one session keeps."""
    if sum(len(each.edit.changes) for each in entries) > limit:
        raise TooManyDisconnectWrites(limit)
    if sum(each.size for each in entries) > MAX_DISCONNECT_BYTES:
        raise TooLarge(
            f"What is written when a connection ends may have at most {MAX_DISCONNECT_BYTES} "
            "bytes in all."
        )
