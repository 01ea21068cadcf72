"""The events that wait for a program which watches, within bounds; each is text until it is taken.

All watches of a path share the text of an event, and each program gets values of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Literal, NamedTuple

import attrs

from treedbd.database.resume import MissedNotification
from treedbd.database.watchers import Notification
from treedbd.http1.content import ContentReader, WaitingBytes
from treedbd.tree.event import Event, Position
from treedbd.tree.value import parse
from treedbd.web.streams.frames import print_id
from treedbd.web.streams.stream import hold_missed

EVENT_BYTES: Final = 200
"""What an event that waits takes in memory beside its text."""
_FIRST: Final = b'{"path":"/","data":%b}'


@attrs.frozen
class WatchEvent:
    """At `path`, relative to the watched path, `data` was set (`put`) or merged (`patch`).

    Attributes:
        kind: `put`: `data` is the value now. `patch`: `data` has the members that were written.
        path: `/` for the watched path itself, else `/a/b`.
        data: plain Python, as a GET shows it; None if there is nothing.
        id: for `resume_after`.

    """

    kind: Literal["put", "patch"]
    path: str
    data: Any
    id: str


class _Printed(NamedTuple):
    """An event as text."""

    kind: Literal["put", "patch"]
    text: bytes
    id: str

    @property
    def size(self) -> int:
        """The bytes that it takes while it waits."""
        return len(self.text) + EVENT_BYTES


class WaitingEvents:
    """The events that wait for one program, in their order."""

    def __init__(self, memory: WaitingBytes, limit: int) -> None:
        """Let `limit` bytes wait, but for one batch, and of all programs what `memory` allows."""
        self._memory = memory
        self._limit = limit
        self._missed: deque[tuple[Position, Event]] = deque()
        self._held: ContentReader | None = None
        self._events: deque[_Printed] = deque()
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._missed or self._events)

    def add(self, notification: Notification) -> bool:
        """Let the events of a batch wait; return False if there is no room for them."""
        printed: tuple[_Printed, ...] | None = notification.shared.get(_Printed)
        if printed is None:
            printed = tuple([_print(*numbered) for numbered in notification.events])
            notification.shared[_Printed] = printed
        size = sum(each.size for each in printed)
        if self._events and self._size + size > self._limit:
            return False
        if not self._memory.has_room("", size):
            return False
        self._events.extend(printed)
        self._count(size)
        return True

    def add_missed(self, missed: MissedNotification) -> None:
        """Let what was missed come first; it is printed one by one.

        Raises `WaitingBytesRefused` if there is no room for it.
        """
        self._held = hold_missed(missed, self._memory, "")
        self._missed.extend(missed.events)

    def add_first(self, text: bytes, position: Position) -> None:
        """Let a `put` of a value, as text, come first."""
        first = _Printed("put", _FIRST % text, print_id(position))
        self._events.appendleft(first)
        self._count(first.size)

    def take(self) -> WatchEvent:
        """Return the next event."""
        if self._missed:
            printed = _print(*self._missed.popleft())
            self._release_missed()
            return _parse(printed)
        printed = self._events.popleft()
        self._count(-printed.size)
        return _parse(printed)

    def drop(self) -> None:
        """Drop all."""
        self._missed.clear()
        self._release_missed()
        self._events.clear()
        self._count(-self._size)

    def _release_missed(self) -> None:
        """Count what was missed no longer when all of it has been taken."""
        if not self._missed and self._held is not None:
            self._held.close()
            self._held = None

    def _count(self, size: int) -> None:
        self._size += size
        self._memory.add(size)


def _print(position: Position, event: Event) -> _Printed:
    return _Printed(event.kind, event.print(), print_id(position))


def _parse(printed: _Printed) -> WatchEvent:
    shown: Any = parse(printed.text)
    return WatchEvent(printed.kind, shown["path"], shown["data"], printed.id)
