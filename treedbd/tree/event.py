"""Events: what the watchers of a path receive of a write.

Theory of operation. A write sets places: one for a PUT, POST or DELETE, several for a PATCH. To the
watchers of a path W it is at most one event:

- It was sent to W or below it: a `put` of its place, or a `patch` of its place with the keys that
  were sent, both relative to W.
- It was sent to a path above W. A place that is W or above it: the write replaced the whole value
  at W, which is a `put` of `/`, even if W was empty and stays empty. Else places below W: one
  `patch` of `/` with them, their keys relative to W.
- All its places are beside W: watchers receive nothing.

A `put` shows a value as a plain GET does: no priorities, arrays where the keys are indices. A
`patch` has the members as they were sent; only server values are resolved, and what is empty is
null. A write to a priority is a `put` of the node that has it. The same in export form, with
priorities and without arrays, is for clients of the real-time protocol.

For those who read the values themselves the same event is a `changed`: it names what was written,
and neither has nor needs a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

import attrs

from treedbd.limits import MAX_CHANGED_KEY_BYTES, MAX_CHANGED_KEYS, MIB
from treedbd.tree.edit import Method
from treedbd.tree.path import format_path, is_at_or_above
from treedbd.tree.types import PRIORITY, Chunks, Json, Path, Value, View
from treedbd.tree.value import as_json, compact, plain, value_at

EVENT_BYTES: Final = 16 * MIB
"""The longest value, or PATCH, of a large write that watchers are sent as one event."""

EventKind: TypeAlias = Literal[Method, "changed"]


@attrs.frozen
class Event:
    """At `path`, relative to the watched path, `data` was set or merged.

    `exported` is the same in export form. Of a `changed` the data are the keys that were merged
    there, None if it was set, or if they are unknown or too many.
    Of a large write there is only what its data prints as, in `printed` and, in export form, in
    `printed_export`; or it `is_missed`: then what was written is too large for an event, and a
    watcher has to read its value again.
    """

    kind: EventKind
    path: Path
    data: Json
    printed: Chunks | None = None
    is_missed: bool = False
    exported: Json = attrs.field(
        default=attrs.Factory(lambda self: self.data, takes_self=True), eq=False, repr=False
    )
    printed_export: Chunks | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def is_large(self) -> bool:
        """Whether its data is not there, or only printed."""
        return self.is_missed or self.printed is not None

    def print(self) -> bytes:
        """Print the event as clients receive it: compact, `path` before `data`."""
        return b"".join(self.chunks())

    def chunks(self) -> Chunks:
        """Print the same in chunks."""
        path = compact(format_path(self.path))
        if self.kind == "changed":
            keys = b"" if self.data is None else b',"keys":%b' % compact(self.data)
            return (b'{"path":%b%b}' % (path, keys),)
        if self.printed is None:
            return (b'{"path":%s,"data":%s}' % (path, compact(self.data)),)
        return (b'{"path":%s,"data":' % path, *self.printed, b"}")


class Moment(int):
    """The number of a state between two writes: that of the last write, and a `turn`.

    Volatile nodes change without a write that has a number. Each time they do, the turn grows. A
    moment is after the number that it has and before the next one; as an `int` it is the number.
    """

    turn: int

    def __new__(cls, sequence: int, turn: int) -> Moment:
        """Return the moment after the write `sequence` with a `turn` of at least 1."""
        made = super().__new__(cls, sequence)
        made.turn = turn
        return made

    def __lt__(self, other: int) -> bool:
        """Return whether this is the earlier state."""
        return _pair(self) < _pair(other)

    def __le__(self, other: int) -> bool:
        """Return whether this is the same state or an earlier one."""
        return _pair(self) <= _pair(other)

    def __gt__(self, other: int) -> bool:
        """Return whether this is the later state."""
        return _pair(self) > _pair(other)

    def __ge__(self, other: int) -> bool:
        """Return whether this is the same state or a later one."""
        return _pair(self) >= _pair(other)

    def __eq__(self, other: object) -> bool:
        """Return whether this is the same state."""
        return isinstance(other, int) and _pair(self) == _pair(other)

    def __ne__(self, other: object) -> bool:
        """Return whether this is another state."""
        return not self == other

    def __hash__(self) -> int:
        """Return a hash of the number and the turn."""
        return hash(_pair(self))


def _pair(sequence: int) -> tuple[int, int]:
    return int(sequence), sequence.turn if isinstance(sequence, Moment) else 0


class Position(NamedTuple):
    """What a client has received: every write up to `sequence`.

    `op_id`, or its first bytes, identifies the last one, since another history of the database has
    the same numbers. For what is not in the change log the number is a `Moment`.
    """

    sequence: int
    op_id: bytes = b""


@attrs.define  # not frozen: it is made for each member of a PATCH
class CommittedChange:
    """One place that a write set, with its new value in normal form.

    For a write to a priority, `path` is the node and `value` the value of the node, if it has been
    read. `sent` is the member of a PATCH, server values resolved.
    """

    path: Path
    value: Value
    is_priority: bool = False
    sent: Json = None


@attrs.define  # not frozen: it is made for each write
class Commit:
    """A committed write as its watchers need it; made once for all of them.

    `position` is that of a client which has received all of it; `path` is the path that a PATCH was
    sent to, or the place of any other write. Unless the commit `is_complete`, the values of nodes
    whose priority was set are missing. Of a commit that `is_large` all values are missing;
    `printed` and `exported` are what it set or merged at `path` as JSON, plain, and in export form
    as sockets send it; None if that is too large for an event, or is read only if the place is
    watched. `size` are the bytes of its entry in the change log.
    """

    position: Position
    method: Method
    path: Path
    changes: tuple[CommittedChange, ...]
    is_complete: bool = True
    is_large: bool = False
    printed: Chunks | None = None
    exported: Chunks | None = None
    size: int = 0

    def event_at(self, watched: Path) -> Event | None:
        """Return the event at any path, None if the write does not reach it."""
        if is_at_or_above(watched, self.path):
            return self.event_at_or_above(watched)
        if is_at_or_above(self.path, watched):
            return self.event_below(watched)
        return None

    def event_at_or_above(self, watched: Path) -> Event:
        """Return the event at `watched`, which is `path` or an ancestor of it."""
        relative = self.path[len(watched) :]
        if self.is_large:
            return Event(
                self.method,
                relative,
                None,
                self.printed,
                is_missed=self.printed is None,
                printed_export=self.exported,
            )
        if self.method == "put":
            return put_event(relative, self.changes[0].value)
        return patch_event(relative, self.changes, len(self.path))

    def event_below(self, watched: Path) -> Event | None:
        """Return the event at `watched`, which is below `path`; None if no change reaches it."""
        if self.is_large:
            # Nothing is below a string; to find that in the rows, it would have to be read.
            printed = self.printed if self.method == "put" else None
            is_string = printed is not None and printed[:1] == (b'"',)
            return Event("put", (), None, is_missed=not is_string)
        whole = self.written_at(watched)
        if whole is not None:
            return put_event((), value_at(whole.value, watched[len(whole.path) :]))
        below = [change for change in self.changes if is_at_or_above(watched, change.path)]
        if len(below) == 1 and below[0].path == watched:
            return put_event((), below[0].value)  # its priority was set
        return patch_event((), below, len(watched)) if below else None

    def changed_at(self, watched: Path) -> Event | None:
        """Return the `changed` at any path, None if the write does not reach it."""
        if is_at_or_above(watched, self.path):
            is_patch = self.method == "patch"
            keys = name_keys(self.changes, len(self.path)) if is_patch else None
            return Event("changed", self.path[len(watched) :], keys)
        if not is_at_or_above(self.path, watched):
            return None
        below: list[CommittedChange] = []
        for change in self.changes:
            if is_at_or_above(watched, change.path):
                below.append(change)
            elif is_at_or_above(change.path, watched) and not change.is_priority:
                return Event("changed", (), None)
            if len(below) > MAX_CHANGED_KEYS:  # of which none is named, whatever follows
                break
        return Event("changed", (), name_keys(below, len(watched))) if below else None

    def written_at(self, watched: Path) -> CommittedChange | None:
        """Return the change that sets all of `watched`, or a node above it; None if none does."""
        for change in self.changes:
            if is_at_or_above(change.path, watched) and not change.is_priority:
                return change
        return None

    def by_child(self, watched: Path) -> dict[str, list[CommittedChange]]:
        """Return the changes below `watched`, by the key of the child that they are at or below."""
        depth = len(watched)
        found: dict[str, list[CommittedChange]] = {}
        for change in self.changes:
            if len(change.path) > depth and change.path[:depth] == watched:
                found.setdefault(change.path[depth], []).append(change)
        return found


def put_event(path: Path, value: Value) -> Event:
    """Return the event that the value of a node was set."""
    return Event("put", path, plain(value), exported=as_json(value))


def patch_event(path: Path, changes: Iterable[CommittedChange], depth: int) -> Event:
    """Return the event that places were set, named by their keys from a depth on."""
    members, exported = members_of(changes, depth)
    return Event("patch", path, members, exported=exported)


def members_of(
    changes: Iterable[CommittedChange], depth: int
) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the members of such an event, and the same in export form."""
    members: dict[str, Json] = {}
    exported: dict[str, Json] = {}
    for change in changes:
        name = _name(change, depth)
        members[name] = None if change.sent in ({}, []) else change.sent
        exported[name] = change.sent if change.is_priority else as_json(change.value)
    return members, exported


def name_keys(changes: Iterable[CommittedChange], depth: int) -> Json:
    """Return the keys from a depth on of the members of a PATCH.

    None if they are more, or longer, than a `changed` names, or if they are not known.
    """
    names: list[Json] = []
    size = 0
    for change in changes:
        name = _name(change, depth)
        size += len(name)
        if not name or len(names) == MAX_CHANGED_KEYS or size > MAX_CHANGED_KEY_BYTES:
            return None
        names.append(name)
    return names if len(compact(names)) <= MAX_CHANGED_KEY_BYTES else None


def _name(change: CommittedChange, depth: int) -> str:
    below = change.path[depth:]
    return "/".join((*below, PRIORITY) if change.is_priority else below)


def complete(commit: Commit, after: View) -> Commit:
    """Return the commit with the values, read from `after`, of nodes whose priority was set."""
    if commit.is_complete:
        return commit
    changes = tuple(
        attrs.evolve(change, value=after.get(change.path)) if change.is_priority else change
        for change in commit.changes
    )
    return attrs.evolve(commit, changes=changes, is_complete=True)
