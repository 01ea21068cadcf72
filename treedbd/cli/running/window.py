"""The events that are not done: their order, which of them may be started, and what is done.

Theory of operation. Events come in the order of the log, in entries, each of which is one write. Of
each path one event is under way at a time, and the next one only after it is done or given up; so
the order of a path is kept, while other paths go on. The *position* is after the last entry up to
which all events are done. What is done above it is remembered apart (`done`), so that a run that
begins again at the position repeats nothing that is known to be done.

Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import attrs

MOST_EVENTS: Final = 1000
"""Events that wait or are under way; beyond it no others are read."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The same, in bytes of JSON."""
MOST_DONE: Final = 10_000
"""Events that are done above the position; beyond it no others are read."""

EventNumber: TypeAlias = tuple[int, int]
"""The number of the write, and of the event among those of the write."""


@attrs.define(eq=False)
class Event:
    """One event: its JSON as the command gets it, and how often it has failed."""

    id: str
    number: EventNumber
    path: str
    kind: str
    captures: dict[str, str]
    json: bytes
    entry: Entry
    failures: int = 0


@attrs.define(eq=False)
class Entry:
    """A write: the position after it, and how many of its events are not done."""

    at: str
    left: int = 0
    numbers: list[EventNumber] = attrs.field(factory=list)


class Window:
    """The events that are not done, and what is done.

    Attributes:
        at: the position up to which all is done.
        done: what is done above it.

    """

    def __init__(self, at: str, done: Iterable[EventNumber] = ()) -> None:
        """Begin after a position; what is in `done` is passed over."""
        self.at = at
        self.done: Final = set(done)
        self._entries: deque[Entry] = deque()
        self._paths: dict[str, deque[Event]] = {}
        self._ready: deque[str] = deque()
        self._delayed: list[tuple[float, int, str]] = []
        self._delays = 0
        self._events = 0
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether no event waits or is under way."""
        return not self._paths

    @property
    def room(self) -> int:
        """How many events there is room for."""
        if self._bytes >= MOST_BYTES or len(self.done) >= MOST_DONE:
            return 0
        return max(0, MOST_EVENTS - self._events)

    def add_entry(self, at: str, events: Iterable[dict[str, Any]], dump: Any) -> None:
        """Add the events of the next entry; `dump` prints one as JSON.

        Raises LookupError, TypeError or ValueError for what is not one.
        """
        entry = Entry(at)
        self._entries.append(entry)
        for json in events:
            number = parse_number(json["id"])
            entry.numbers.append(number)
            if number not in self.done:
                captures = {str(key): str(text) for key, text in json["captures"].items()}
                self._add(
                    Event(
                        id=str(json["id"]),
                        number=number,
                        path=str(json["path"]),
                        kind=str(json["kind"]),
                        captures=captures,
                        json=dump(json),
                        entry=entry,
                    )
                )
        self._advance()

    def pass_over(self, at: str) -> None:
        """Note that there are no other events up to a position."""
        self._entries.append(Entry(at))
        self._advance()

    def take(self) -> Event | None:
        """Return an event that is to be started now, None if there is none."""
        if not self._ready:
            return None
        return self._paths[self._ready.popleft()][0]

    def finish(self, event: Event) -> None:
        """Note that an event is done, or given up."""
        waiting = self._paths[event.path]
        waiting.popleft()
        if waiting:
            self._ready.append(event.path)
        else:
            del self._paths[event.path]
        self._events -= 1
        self._bytes -= len(event.json)
        self.done.add(event.number)
        event.entry.left -= 1
        self._advance()

    def delay(self, event: Event, until: float) -> None:
        """Start an event that has failed again at a time; its path waits until then."""
        event.failures += 1
        self._delays += 1
        heapq.heappush(self._delayed, (until, self._delays, event.path))

    def wake(self, now: float) -> None:
        """Make those ready whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heapq.heappop(self._delayed)[2])

    def next_due(self) -> float | None:
        """Return when the next one may be started that has failed; None if none waits."""
        return self._delayed[0][0] if self._delayed else None

    def _add(self, event: Event) -> None:
        waiting = self._paths.get(event.path)
        if waiting is None:
            self._paths[event.path] = deque((event,))
            self._ready.append(event.path)
        else:
            waiting.append(event)
        event.entry.left += 1
        self._events += 1
        self._bytes += len(event.json)

    def _advance(self) -> None:
        while self._entries and not self._entries[0].left:
            entry = self._entries.popleft()
            self.at = entry.at
            self.done.difference_update(entry.numbers)


def parse_number(event_id: str) -> EventNumber:
    """Return the numbers at the end of the id of an event; raise ValueError."""
    _, sequence, number = event_id.rsplit("/", 2)
    return int(sequence), int(number.partition("-")[0])
