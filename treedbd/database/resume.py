"""The events that a client missed while it was away, computed from the change log.

The log retains what was written, not what was there. So only the events of a whole node can be
computed again, as they were sent at the time, and only for a client whose right to receive them
held all the while. If anything is uncertain the result is None, and the client starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from treedbd.limits import MAX_RESUMED_BYTES, MAX_RESUMED_WRITES
from treedbd.store import changelog
from treedbd.store.engine import LogEntry, ReadView
from treedbd.tree.edit import Edit
from treedbd.tree.event import Event, Position, describe
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import Path

HeldThrough: TypeAlias = Callable[[Iterable[Path], str], bool]
"""Returns whether the client could read while these paths were written under these rules."""


MissedEvents: TypeAlias = list[tuple[Position, Event]]
"""The events that a client missed, each with its position."""


def find_missed_events(
    view: ReadView, path: Path, after: Position, held_through: HeldThrough, retained: int
) -> MissedEvents | None:
    """Return the events at `path` after a position, None if they are not known.

    Of the log only the `retained` newest entries count, though it may hold some more.
    """
    entries = _entries_since(view, after, min(retained, MAX_RESUMED_WRITES))
    if entries is None:
        return None
    missed: MissedEvents = []
    for entry in entries:
        is_first = entry.sequence == after.sequence  # of which the client has some events, or all
        if is_first and after.events is None:
            continue
        edit = changelog.decode(entry.content)
        if not held_through(_written(edit), changelog.rules_of(entry.content)):
            return None
        if not (is_at_or_above(path, edit.place.path) or is_at_or_above(edit.place.path, path)):
            if is_first:
                return None
            continue
        if isinstance(edit, changelog.NotRetained) or _sets_priority(edit):
            return None
        commit = describe(entry.sequence, edit, entry.op_id)
        events = list(commit.numbered(commit.events_at(path)))
        if is_first and after.events not in range(len(events)):
            return None
        missed += events[after.events if is_first else 0 :]
    return missed


def _entries_since(view: ReadView, after: Position, limit: int) -> list[LogEntry] | None:
    """Return the log entries from a position on, beginning with the write that it names.

    Returns None if some are missing, or if the entry with that number is another one. Before the
    first entry nothing was written, so a position there needs no entry.
    """
    missed = view.sequence() - after.sequence
    if not 0 <= missed <= limit:
        return None
    entries: list[LogEntry] = []
    size = 0
    for entry in view.entries(max(0, after.sequence - 1)):
        size += len(entry.content)
        if size > MAX_RESUMED_BYTES:
            return None
        entries.append(entry)
    if after.sequence == 0:
        is_known = not after.op_id and len(entries) == missed
    else:
        is_known = bool(after.op_id and entries) and entries[0].op_id.startswith(after.op_id)
    return entries if is_known else None


def _written(edit: Edit | changelog.NotRetained) -> list[Path]:
    if isinstance(edit, changelog.NotRetained):
        return [edit.place.path]
    return [change.place.path for change in edit.changes]


def _sets_priority(edit: Edit) -> bool:
    return any(change.place.is_priority for change in edit.changes)
