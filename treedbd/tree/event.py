"""Events: what the watchers of a path receive of a write.

Theory of operation. A write sets places: one for a PUT, POST or DELETE, several for a PATCH. Seen
from a watched path W, a place is

- at W or under it: watchers receive it under its relative path. The places of a PATCH that was sent
  to W or below it are one event, a `patch` with the keys that were sent;
- above W: the write replaced the whole value at W, which is a `put` of `/`, even if W was empty
  and stays empty;
- beside W: watchers receive nothing.

A PATCH sent to a path above W is one `put` for each of its keys that reaches W, since its own keys
are relative to a path that the watcher cannot see.

A `put` shows a value as a plain GET does: no priorities, arrays where the keys are indices. A
`patch` has the members as they were sent; only server values are resolved, and what is empty is
null. A write to a priority is a `put` of the node that has it. The same in export form, with
priorities and without arrays, is for clients of the real-time protocol.

One write may be several events. Each therefore has a `Position` of its own, so a client that is cut
off between two of them can resume with the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import attrs

from treedbd.tree import printing
from treedbd.tree.edit import Edit, Method, changes_as_sent
from treedbd.tree.path import format_path, is_at_or_above
from treedbd.tree.types import PRIORITY, Json, Path, Value
from treedbd.tree.value import as_json, plain, value_at
from treedbd.tree.view import View

MAX_LARGE_CHANGES: Final = 10_000


@attrs.frozen
class Event:
    """At `path`, relative to the watched path, `data` was set or merged.

    `exported` is the same in export form.
    Of a large write there is only what its data prints as, in `printed`; or it `is_missed`: then
    what was written is too large for an event, and a watcher has to read its value again.
    """

    kind: Method
    path: Path
    data: Json
    printed: bytes | None = None
    is_missed: bool = False
    exported: Json = attrs.field(
        default=attrs.Factory(lambda self: self.data, takes_self=True), eq=False, repr=False
    )

    @property
    def is_large(self) -> bool:
        """Whether its data is not there, or only printed."""
        return self.is_missed or self.printed is not None

    def print(self) -> bytes:
        """Print the event as clients receive it: compact, `path` before `data`."""
        path = printing.compact(format_path(self.path))
        data = printing.compact(self.data) if self.printed is None else self.printed
        return b'{"path":%s,"data":%s}' % (path, data)


class Position(NamedTuple):
    """What a client has received: every write up to `sequence`, of the last maybe not all events.

    `events` is how many events of the last write it has received, None if it has received all.
    `op_id`, or its first bytes, identifies that write, since another history of the database has
    the same numbers.
    """

    sequence: int
    op_id: bytes = b""
    events: int | None = None


@attrs.frozen
class CommittedChange:
    """One place that a write set, with its new value in normal form.

    For a write to a priority, `path` is the node and `value` the value of the node, if it has been
    read. `sent` is the member of a PATCH, server values resolved.
    """

    path: Path
    value: Value
    is_priority: bool = False
    sent: Json = None


@attrs.frozen
class Commit:
    """A committed write as its watchers need it; made once for all of them.

    `position` is that of a client which has received all of it; `path` is the path that a PATCH was
    sent to, or the place of any other write. Unless the commit `is_complete`, the values of nodes
    whose priority was set are missing. Of a commit that `is_large` all values are missing;
    `printed` is what it set or merged at `path` as JSON, None if that is too large for an event.
    """

    position: Position
    method: Method
    path: Path
    changes: tuple[CommittedChange, ...]
    is_complete: bool = True
    is_large: bool = False
    printed: bytes | None = None

    def events_at_or_above(self, watched: Path) -> Iterator[Event]:
        """Yield the events at `watched`, which is `path` or an ancestor of it."""
        relative = self.path[len(watched) :]
        if self.is_large:
            yield Event(self.method, relative, None, self.printed, self.printed is None)
            return
        if self.method == "put":
            (change,) = self.changes
            yield _put(relative, change.value)
            return
        exported: Json = {
            self._name(each): each.sent if each.is_priority else as_json(each.value)
            for each in self.changes
        }
        members: Json = dict(map(self._member, self.changes))
        yield Event("patch", relative, members, exported=exported)

    def events_below(self, watched: Path) -> Iterator[Event]:
        """Yield the events at `watched`, which is below `path`."""
        if self.is_large:
            yield Event("put", (), None, is_missed=True)
            return
        for change in self.changes:
            if is_at_or_above(watched, change.path):
                yield _put(change.path[len(watched) :], change.value)
            elif is_at_or_above(change.path, watched) and not change.is_priority:
                yield _put((), value_at(change.value, watched[len(change.path) :]))

    def events_at(self, watched: Path) -> Iterator[Event]:
        """Yield the events at any path."""
        if is_at_or_above(watched, self.path):
            return self.events_at_or_above(watched)
        if is_at_or_above(self.path, watched):
            return self.events_below(watched)
        return iter(())

    def numbered(self, events: Iterable[Event]) -> Iterator[tuple[Position, Event]]:
        """Yield each of the events of one path with its position."""
        all_of_them = list(events)
        for number, event in enumerate(all_of_them, 1):
            is_last = number == len(all_of_them)
            yield self.position if is_last else self.position._replace(events=number), event

    def _member(self, change: CommittedChange) -> tuple[str, Json]:
        """Return a change of a PATCH as the member that was sent."""
        return self._name(change), None if change.sent in ({}, []) else change.sent

    def _name(self, change: CommittedChange) -> str:
        below = change.path[len(self.path) :]
        return "/".join((*below, PRIORITY) if change.is_priority else below)


def _put(path: Path, value: Value) -> Event:
    """Return the event that the value of a node was set."""
    return Event("put", path, plain(value), exported=as_json(value))


def describe(sequence: int, edit: Edit, op_id: bytes = b"") -> Commit:
    """Return a resolved edit as the commit that its watchers are notified of."""
    changes = []
    is_complete = True
    for change, sent in changes_as_sent(edit):
        path, is_priority = change.place
        value = None if is_priority else change.value
        changes.append(CommittedChange(path, value, is_priority, sent))
        is_complete = is_complete and not is_priority
    position = Position(sequence, op_id)
    return Commit(position, edit.method, edit.place.path, tuple(changes), is_complete)


def describe_large(
    sequence: int, edit: Edit, op_id: bytes = b"", printed: bytes | None = None
) -> Commit:
    """Return a large edit, whose values are in the store only, as a commit.

    Of very many changes, all that is below its place counts as written.
    """
    places = [change.place for change in edit.changes[: MAX_LARGE_CHANGES + 1]]
    if len(places) > MAX_LARGE_CHANGES:
        places = [edit.place]
    changes = tuple([CommittedChange(path, None, is_priority) for path, is_priority in places])
    return Commit(
        Position(sequence, op_id),
        edit.method,
        edit.place.path,
        changes,
        is_large=True,
        printed=printed,
    )


def complete(commit: Commit, after: View) -> Commit:
    """Return the commit with the values, read from `after`, of nodes whose priority was set."""
    if commit.is_complete:
        return commit
    changes = tuple(
        attrs.evolve(change, value=after.get(change.path)) if change.is_priority else change
        for change in commit.changes
    )
    return attrs.evolve(commit, changes=changes, is_complete=True)
