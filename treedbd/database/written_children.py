"""What one write did to the children of a watched path, and the events that tell of it.

It is found out once for all queries of the path: the facts of each child that was written to, by
which queries decide whether it enters, leaves or stays (`tree.window`), and the event of each of
these, so that its bytes are made once however many queries show it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from treedbd.database.slices import Steps
from treedbd.limits import KIB, MIB
from treedbd.loop import SORTED_AT_ONCE, sort_in_steps
from treedbd.tree.event import (
    EVENT_BYTES,
    Commit,
    CommittedChange,
    Event,
    members_of,
    patch_event,
    put_event,
)
from treedbd.tree.overlay import StateUnknown
from treedbd.tree.path import rank_key
from treedbd.tree.types import Container, Json, Path, Value, View
from treedbd.tree.value import as_json, plain, with_priority
from treedbd.tree.window import Facts, Field, Moved, read_facts

READ_AT_ONCE: Final = 16
"""Children that are looked at in one step, or facts that are read."""
MOST_FACTS: Final = 262_144
MOST_TEXT: Final = 32 * MIB
"""Facts of one write, and bytes of long strings in them, that are kept until it is followed.

Beyond them, or where more would have to be read, streams read their value again.
"""
READ_BYTES: Final = 64 * KIB
"""A larger value is read child by child."""
RESENT_BYTES: Final = 4 * KIB
"""Of a larger child that stays, an event with other children has only what was written."""

MISSED: Final = Event("put", (), None, is_missed=True)
"""Streams have to read their value again."""
Told: TypeAlias = "Generator[None, None, Event | None]"
"""Steps that end with the event of a write, None if there is none."""


class WrittenChildren:
    """What one write did to the children of a path, for all queries of them.

    Attributes:
        commit: the write.
        after: the facts about each child that it wrote to, after it.
        before: the same before it; empty if no query needs them.

    """

    def __init__(self, commit: Commit, path: Path, view: View, before: dict[str, Facts]) -> None:
        """Take what is not in the commit from `view`, the tree after it."""
        self.commit: Final = commit
        self.before: Final = before
        self.after: Final[dict[str, Facts]] = {}
        self._path = path
        self._view = view
        self._changes = commit.by_child(path)
        self._ranked: dict[tuple[Field | None, bool], tuple[list[Any], list[str]]] = {}
        self._values: dict[str, Value] = {}
        self._events: dict[tuple[str, str], Event] = {}

    def read(self, fields: Collection[Field]) -> Steps:
        """Find out the facts after the write; raise `StateUnknown`, also if they are too many."""
        self.after.update(
            (yield from read_all_facts(self._view, self._path, self._changes, fields))
        )

    def ranks(self, field: Field | None) -> set[Any]:
        """Return the ranks in a field, or of the keys, before and after the write."""
        return {rank for is_after in (False, True) for rank in self._sorted(field, is_after)[0]}

    def between(self, field: Field | None, low: Any, high: Any, *, is_after: bool) -> list[str]:
        """Return the keys of the children whose rank in a field, or own, is between two others."""
        ranks, keys = self._sorted(field, is_after)
        if not ranks or high < ranks[0] or ranks[-1] < low:
            return []
        return keys[bisect_left(ranks, low) : bisect_right(ranks, high)]

    def sort(self, field: Field | None) -> Steps:
        """Sort the children by a field, or by their keys; a step ends after some of them."""
        for is_after, children in ((False, self.before), (True, self.after)):
            if (field, is_after) not in self._ranked and len(children) > SORTED_AT_ONCE:
                pairs = yield from sort_in_steps(self._pairs(field, children))
                self._ranked[field, is_after] = _split(pairs)

    def _sorted(self, field: Field | None, is_after: bool) -> tuple[list[Any], list[str]]:
        found = self._ranked.get((field, is_after))
        if found is None:
            pairs = sorted(self._pairs(field, self.after if is_after else self.before))
            found = self._ranked[field, is_after] = _split(pairs)
        return found

    @staticmethod
    def _pairs(field: Field | None, children: Mapping[str, Facts]) -> Iterator[tuple[Any, str]]:
        for key, facts in children.items():
            # A query may order by a field since after the facts were read.
            if facts is not None and (field is None or field in facts):
                yield (rank_key(key) if field is None else facts[field]), key

    def event(self, moved: Moved) -> Told:
        """Return what a stream receives of it; raise `StateUnknown`."""
        number = sum(map(len, moved))
        if number == 0:
            return None
        if self.commit.is_large and len(self.commit.path) <= len(self._path):
            return MISSED  # it wrote to very many children
        if number > 1:
            return (yield from self._event_of_several(moved))
        for kind, keys in zip(("entered", "left", "stayed"), moved, strict=True):
            for key in keys:
                event = self._events.get((kind, key))
                if event is None:
                    event = yield from self._event_of_one(kind, key)
                    self._events[kind, key] = event
        return event

    def _event_of_one(self, kind: str, key: str) -> Generator[None, None, Event]:
        if kind == "left":
            return Event("put", (key,), None)
        if kind == "stayed":
            return self._as_written(key)
        if self._size_of(key) > EVENT_BYTES:
            return MISSED
        return put_event((key,), (yield from self._value(key)))

    def _event_of_several(self, moved: Moved) -> Told:
        data: dict[str, Json] = dict.fromkeys(moved.left)
        exported: dict[str, Json] = dict.fromkeys(moved.left)
        size = 0
        for key in moved.entered:
            size += self._size_of(key)
            if size > EVENT_BYTES:
                return MISSED
            value = yield from self._value(key)
            data[key], exported[key] = plain(value), as_json(value)
            yield
        for key in moved.stayed:
            if self._is_short(key):
                value = yield from self._value(key)
                data[key], exported[key] = plain(value), as_json(value)
            else:
                written = members_of(self._changes[key], len(self._path))
                data |= written[0]
                exported |= written[1]
            yield
        return Event("patch", (), data, exported=exported)

    def _as_written(self, key: str) -> Event:
        """Return what a watcher of the path receives, of one child."""
        if len(self.commit.path) > len(self._path):
            return self.commit.event_at_or_above(self._path)
        whole = self._written_whole(key)
        if whole is not None:
            return put_event((key,), whole.value)
        return patch_event((key,), self._changes[key], len(self._path) + 1)

    def _written_whole(self, key: str) -> CommittedChange | None:
        """Return the change that sets a child to a value that is known, if one does."""
        for change in self._changes.get(key, ()):
            is_whole = len(change.path) == len(self._path) + 1 and not change.is_priority
            if is_whole and not self.commit.is_large:
                return change
        return None

    def _value(self, key: str) -> Generator[None, None, Value]:
        whole = self._written_whole(key)
        if whole is not None:
            return whole.value
        if key not in self._values:
            self._values[key] = yield from read_in_steps(self._view, (*self._path, key))
        return self._values[key]

    def _is_short(self, key: str) -> bool:
        return self._written_whole(key) is not None or (
            self._view.size((*self._path, key), RESENT_BYTES) <= RESENT_BYTES
        )

    def _size_of(self, key: str) -> int:
        """Return the bytes that have to be read of a child; counting may stop at `EVENT_BYTES`."""
        if self._written_whole(key) is not None:
            return 0
        return self._view.size((*self._path, key), EVENT_BYTES)


def read_all_facts(
    view: View, path: Path, keys: Iterable[str], fields: Collection[Field]
) -> Generator[None, None, dict[str, Facts]]:
    """Return the facts about some children of `path`, in steps.

    Raises `StateUnknown`, also if they are more than `MOST_FACTS`, or hold too long strings.
    """
    facts: dict[str, Facts] = {}
    text: list[int] = []
    looked_at = total = 0
    for key in keys:
        looked_at += max(1, len(fields))
        total += max(1, len(fields))
        if total > MOST_FACTS or (text and sum(text) > MOST_TEXT):
            raise StateUnknown
        facts[key] = yield from read_facts(view, (*path, key), fields, text.append)
        text = [sum(text)]
        if looked_at >= READ_AT_ONCE:
            looked_at = 0
            yield
    return facts


def _split(pairs: Sequence[tuple[Any, str]]) -> tuple[list[Any], list[str]]:
    return [rank for rank, _ in pairs], [key for _, key in pairs]


def read_in_steps(view: View, path: Path) -> Generator[None, None, Value]:
    """Return the value at a path, a large one read child by child."""
    if view.size(path, READ_BYTES) <= READ_BYTES or not isinstance(view.peek(path), Container):
        return view.get(path)
    children: dict[str, Value] = {}
    for key in view.keys(path):
        children[key] = yield from read_in_steps(view, (*path, key))
        yield
    return with_priority(children, view.priority(path))
