"""Events: what somebody who watches a path hears of a write.

Theory of operation. A write sets places: one for a PUT, POST or DELETE, several for a PATCH. Seen
from a watched path W, a place lies

- at W or under it: the watcher hears of it under its relative path. The places of a PATCH whose
  own path is at or under W are told together, as one `patch` with the keys that were sent;
- above W: the write brought a whole new value to W, which is told as `put` `/`, also where W was
  and stays empty;
- beside W: nothing is told.

A PATCH sent to a path above W is told as one `put` for each of its keys that reaches W, since its
own keys are relative to a path that the watcher cannot see.

Events show values as a plain GET does: no priorities, arrays where the keys are indices. A write
to a priority is told as a `put` of the node that has it.

One write may be several events. Each therefore has a `Position` of its own, so that who is cut off
between two of them can go on with the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import attrs

from treedbd.tree import printing
from treedbd.tree.edit import Edit, Method
from treedbd.tree.path import PRIORITY, Path, format_path, is_ancestor
from treedbd.tree.value import Json, Value, plain
from treedbd.tree.view import View

Kind: TypeAlias = Literal["put", "patch"]


@attrs.frozen
class Event:
    """One thing heard: at `path`, relative to the watched one, `data` was set or merged."""

    kind: Kind
    path: Path
    data: Json

    def print(self) -> bytes:
        """Print the event as its readers get it: compact, `path` before `data`."""
        path = printing.compact(format_path(self.path))
        return b'{"path":%s,"data":%s}' % (path, printing.compact(self.data))


class Position(NamedTuple):
    """How far somebody has heard: every write up to `sequence`, of that one maybe `events` only.

    `op_id`, or how it begins, is that of the write with this number: it tells the history that is
    meant from another one, which has the same numbers. `events` is None for all of them.
    """

    sequence: int
    op_id: bytes = b""
    events: int | None = None


@attrs.frozen
class Part:
    """One place that a write set, with the value it got, in normal form.

    For a write to a priority the place is the node, and the value what the node holds.
    """

    path: Path
    value: Value
    is_priority: bool = False


@attrs.frozen
class Telling:
    """A committed write, as far as watchers are concerned; made once for all of them.

    `position` is that of one who has heard all of it; `path` is where a PATCH was sent, or the
    place of any other write.
    """

    position: Position
    method: Method
    path: Path
    parts: tuple[Part, ...]

    def at_or_under(self, watched: Path) -> Iterator[Event]:
        """Yield what is heard at `watched`, which is `path` or an ancestor of it."""
        relative = self.path[len(watched) :]
        if self.method == "put":
            (part,) = self.parts
            yield Event("put", relative, plain(part.value))
            return
        data = {
            "/".join(part.path[len(self.path) :]): plain(part.value)
            for part in self.parts
            if not part.is_priority
        }
        if data:
            yield Event("patch", relative, data)
        for part in self.parts:
            if part.is_priority:
                yield Event("put", part.path[len(watched) :], plain(part.value))

    def above(self, watched: Path) -> Iterator[Event]:
        """Yield what is heard at `watched`, which lies below `path`."""
        for part in self.parts:
            if is_ancestor(watched, part.path):
                yield Event("put", part.path[len(watched) :], plain(part.value))
            elif is_ancestor(part.path, watched) and not part.is_priority:
                yield Event("put", (), plain(_within(part.value, watched[len(part.path) :])))

    def heard_at(self, watched: Path) -> Iterator[Event]:
        """Yield what is heard at any path."""
        if is_ancestor(watched, self.path):
            return self.at_or_under(watched)
        if is_ancestor(self.path, watched):
            return self.above(watched)
        return iter(())

    def numbered(self, events: Iterable[Event]) -> Iterator[tuple[Position, Event]]:
        """Give each of the events that are heard at one path its position."""
        all_of_them = list(events)
        for number, event in enumerate(all_of_them, 1):
            is_last = number == len(all_of_them)
            yield self.position if is_last else self.position._replace(events=number), event


def tell(sequence: int, edit: Edit, after: View, op_id: bytes = b"") -> Telling:
    """Return what watchers are told of a resolved edit; `after` is the tree it left behind."""
    parts = tuple(
        Part(change.place.path, after.get(change.place.path), True)
        if change.place.of_priority
        else Part(change.place.path, change.value)
        for change in edit.changes
    )
    return Telling(Position(sequence, op_id), edit.method, edit.place.path, parts)


def _within(value: Value, path: Path) -> Value:
    for key in path:
        if not isinstance(value, dict) or key == PRIORITY:
            return None
        value = value.get(key)
    return value
