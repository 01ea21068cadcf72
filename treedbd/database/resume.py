"""What somebody missed who watched a path and comes back, told from the change log.

The log retains what was written, not what was there. So only the events of a whole node can be told
again, as they would have been told at the time, and only to one whose right to hear them held all
the while; where anything is in doubt the answer is None, and the reader begins anew.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from treedbd.database.permit import Permit
from treedbd.store import changelog
from treedbd.store.mapping import Entry, Rows
from treedbd.tree.edit import Edit
from treedbd.tree.event import Event, Position, tell
from treedbd.tree.path import Path, is_ancestor

MOST_RESUMED: Final = 10_000
MOST_RESUMED_BYTES: Final = 16 * 1_048_576
"""Who missed more entries than this, or longer ones, starts anew; that is cheaper for everybody."""


class Missed(NamedTuple):
    """The events that somebody missed, and the sequence number up to which they tell."""

    events: list[tuple[Position, Event]]
    sequence: int


def find_missed(
    rows: Rows, path: Path, after: Position, permit: Permit, retained: int
) -> Missed | None:
    """Return what was to be heard at `path` after a position, None where that cannot be told.

    `permit` is granted by what is there now; it may not have held all the time. Of the log only the
    `retained` newest entries count, though it may hold some more.
    """
    entries = _entries_since(rows, after, min(retained, MOST_RESUMED))
    if entries is None:
        return None
    missed: list[tuple[Position, Event]] = []
    for entry in entries:
        is_heard = entry.sequence == after.sequence
        if is_heard and after.events is None:
            continue
        done = changelog.decode(entry.content)
        if not permit.held_through(_written(done), changelog.rules_of(entry.content)):
            return None
        if not (is_ancestor(path, done.place.path) or is_ancestor(done.place.path, path)):
            if is_heard:
                return None
            continue
        if isinstance(done, changelog.NotRetained) or _sets_priority(done):
            return None
        telling = tell(entry.sequence, done, entry.op_id)
        events = list(telling.numbered(telling.heard_at(path)))
        if is_heard and after.events not in range(len(events)):
            return None
        missed += events[after.events if is_heard else 0 :]
    return Missed(missed, entries[-1].sequence if entries else after.sequence)


def _entries_since(rows: Rows, after: Position, most: int) -> list[Entry] | None:
    """Return the log entries after a position, headed by the one that it names.

    Returns None where some are not there any more, or where the one named is not the one meant.
    Nothing was written before the first entry, so that nothing has to be there for that position.
    """
    missed = rows.sequence() - after.sequence
    if not 0 <= missed <= most:
        return None
    entries: list[Entry] = []
    size = 0
    for entry in rows.entries(max(0, after.sequence - 1)):
        size += len(entry.content)
        if size > MOST_RESUMED_BYTES:
            return None
        entries.append(entry)
    if after.sequence == 0:
        is_known = not after.op_id and len(entries) == missed
    else:
        is_known = bool(after.op_id and entries) and entries[0].op_id.startswith(after.op_id)
    return entries if is_known else None


def _written(done: Edit | changelog.NotRetained) -> list[Path]:
    if isinstance(done, changelog.NotRetained):
        return [done.place.path]
    return [change.place.path for change in done.changes]


def _sets_priority(done: Edit) -> bool:
    return any(change.place.of_priority for change in done.changes)
