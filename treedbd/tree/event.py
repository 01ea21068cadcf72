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

A `put` shows a value as a plain GET does: no priorities, arrays where the keys are indices. A
`patch` has the members that were sent, as they were sent; only server values are resolved, and what
is empty is null. A write to a priority is told as a `put` of the node that has it.

One write may be several events. Each therefore has a `Position` of its own, so that who is cut off
between two of them can go on with the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from treedbd.tree import printing
from treedbd.tree.edit import Edit, Method, as_sent
from treedbd.tree.path import PRIORITY, Path, format_path, is_ancestor
from treedbd.tree.value import Json, Value, plain
from treedbd.tree.view import View


@attrs.frozen
class Event:
    """One thing heard: at `path`, relative to the watched one, `data` was set or merged."""

    kind: Method
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

    For a write to a priority `path` is the node, and `value` what the node holds, if that has been
    looked up. `sent` is the member of a PATCH, server values resolved.
    """

    path: Path
    value: Value
    is_priority: bool = False
    sent: Json = None


@attrs.frozen
class Telling:
    """A committed write, as far as watchers are concerned; made once for all of them.

    `position` is that of one who has heard all of it; `path` is where a PATCH was sent, or the
    place of any other write. Unless it `is_looked_up`, the values of nodes whose priority was set
    are missing.
    """

    position: Position
    method: Method
    path: Path
    parts: tuple[Part, ...]
    is_looked_up: bool = True

    def at_or_under(self, watched: Path) -> Iterator[Event]:
        """Yield what is heard at `watched`, which is `path` or an ancestor of it."""
        relative = self.path[len(watched) :]
        if self.method == "put":
            (part,) = self.parts
            yield Event("put", relative, plain(part.value))
            return
        yield Event("patch", relative, dict(map(self._member, self.parts)))

    def above(self, watched: Path) -> Iterator[Event]:
        """Yield what is heard at `watched`, which lies below `path`."""
        for part in self.parts:
            if is_ancestor(watched, part.path):
                yield Event("put", part.path[len(watched) :], plain(part.value))
            elif is_ancestor(part.path, watched) and not part.is_priority:
                yield Event("put", (), plain(_within(part.value, watched[len(part.path) :])))

    def _member(self, part: Part) -> tuple[str, Json]:
        """Return a part of a PATCH as the member that was sent."""
        below = part.path[len(self.path) :]
        name = "/".join((*below, PRIORITY) if part.is_priority else below)
        return name, None if part.sent in ({}, []) else part.sent

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


def tell(sequence: int, edit: Edit, op_id: bytes = b"") -> Telling:
    """Return what watchers are told of a resolved edit; its parts stand as they were sent."""
    parts = tuple(
        Part(
            change.place.path,
            None if change.place.of_priority else change.value,
            change.place.of_priority,
            sent,
        )
        for change, sent in as_sent(edit)
    )
    is_looked_up = not any(part.is_priority for part in parts)
    return Telling(Position(sequence, op_id), edit.method, edit.place.path, parts, is_looked_up)


def look_up(telling: Telling, after: View) -> Telling:
    """Return a telling with the values of the nodes whose priority was set, as they are `after`."""
    if telling.is_looked_up:
        return telling
    parts = tuple(
        attrs.evolve(part, value=after.get(part.path)) if part.is_priority else part
        for part in telling.parts
    )
    return attrs.evolve(telling, parts=parts, is_looked_up=True)


def _within(value: Value, path: Path) -> Value:
    for key in path:
        if not isinstance(value, dict) or key == PRIORITY:
            return None
        value = value.get(key)
    return value
