"""What clients missed at one path, added up write by write from the entries of the change log.

An entry holds what was written, not what was there. So the events of some writes cannot be computed
again: of one whose body was not retained, and of one that set a priority.

Each position has events of its own, so `MissedNotification` says how much memory they take.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from treedbd.database.watchers import Notification
from treedbd.limits import MAX_RESUMED_BYTES, MAX_RESUMED_PATHS
from treedbd.rules.context import WrittenPaths
from treedbd.store import changelog
from treedbd.store.engine import LogEntry
from treedbd.tree.event import Commit, Event, Position, describe
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import Path

EVENT_BYTES: Final = 500
NODE_BYTES: Final = 100
"""Memory of an event, and of a member or item of what was written."""
_WORK_BYTES: Final = 32
"""Bytes of an entry that are as much work as a member: a path may be long."""


@attrs.frozen
class MissedNotification(Notification):
    """What a client missed: `memory_bytes` are the memory that it takes, rather more than less."""

    memory_bytes: int = attrs.field(default=0, eq=False)


@attrs.frozen
class LoggedWrite:
    """A decoded entry of the change log, whose body has about so many `nodes`.

    `place` is the path that the write was sent to, `written` the paths that it set; `rules` is the
    fingerprint of the rules that were in force. `commit` is None if its events are not known.
    """

    sequence: int
    op_id: bytes
    size: int
    rules: str
    place: Path
    written: tuple[Path, ...]
    commit: Commit | None
    nodes: int

    @property
    def memory_bytes(self) -> int:
        """The memory that its event takes, and is printed in, rather more than less."""
        return EVENT_BYTES + 2 * self.size + NODE_BYTES * self.nodes

    @property
    def work(self) -> int:
        """How much it is to decode and to add it, in members and items."""
        return self.nodes + self.size // _WORK_BYTES


def decode_entry(entry: LogEntry) -> LoggedWrite:
    """Decode an entry of the change log; raise ValueError for bytes that are none."""
    edit = changelog.decode(entry.content)
    written: tuple[Path, ...] = (edit.place.path,)
    commit = None
    if not isinstance(edit, changelog.NotRetained):
        written = tuple(change.place.path for change in edit.changes)
        if not any(change.place.is_priority for change in edit.changes):
            commit = describe(entry.sequence, edit, entry.op_id)
    return LoggedWrite(
        entry.sequence,
        entry.op_id,
        len(entry.content),
        changelog.rules_of(entry.content),
        edit.place.path,
        written,
        commit,
        changelog.count_nodes(entry.content),
    )


class MissedEvents:
    """The events at a path after a position.

    Attributes:
        is_known: whether they are known so far; if not, clients have to start again.
        next: the number of the write to be added next.
        written: the paths that were written meanwhile, wherever they are.
        rules: the fingerprints of the rules that were in force meanwhile.

    """

    def __init__(self, path: Path, after: Position) -> None:
        """Begin with the write that `after` names, if any: it shows that the history is the same.

        Before the first write there was nothing, so a position there names none.
        """
        self.is_known = bool(after.op_id) == bool(after.sequence)
        self.next = after.sequence or 1
        self.written: Final = WrittenPaths()
        self.rules: set[str] = set()
        self._path = path
        self._after = after
        self._events: list[tuple[Position, Event]] = []
        self._size = self._memory_bytes = 0
        self._shared: dict[object, Any] = {}

    def add(self, write: LoggedWrite) -> None:
        """Add the next write."""
        self._size += write.size
        if write.sequence != self.next or self._size > MAX_RESUMED_BYTES:
            self.is_known = False
        elif write.sequence > self._after.sequence:
            self._add_event(write)
        elif not write.op_id.startswith(self._after.op_id):
            self.is_known = False
        self.next += 1

    def notification(self) -> MissedNotification:
        """Return all of them; what clients share of it stays shared when more are added."""
        return MissedNotification(tuple(self._events), self._shared, self._memory_bytes)

    def _add_event(self, write: LoggedWrite) -> None:
        """Add the event of a write, if it reaches the path."""
        for path in write.written:
            self.written.add(path)
        if len(self.written.prefixes) > MAX_RESUMED_PATHS:
            self.is_known = False
            return
        self.rules.add(write.rules)
        if is_at_or_above(self._path, write.place) or is_at_or_above(write.place, self._path):
            if write.commit is None:
                self.is_known = False
                return
            event = write.commit.event_at(self._path)
            if event is not None:
                self._events.append((write.commit.position, event))
                self._memory_bytes += write.memory_bytes
