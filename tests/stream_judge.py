"""A judge of the events that a follower received, by the history of the writes that led to them.

Each acknowledged write has one event, one of unknown outcome at most one, and nothing else has any.
The numbers of writes ascend, and agree with the times of the writes and with what swaps and
additions found. Where the follower had to start again, the whole value stands for what it missed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import attrs

from tests.history import BadHistory, History, Operation, Outcome, check_gapless
from tests.stream_follower import Event

Key: TypeAlias = tuple[str, Any]
"""A path and the value that was put there."""

SHOWN: Final = 3


@attrs.frozen
class Verdict:
    """What a stream did: events of writes, starts over, and writes whose events these replaced."""

    events: int
    restarts: int
    replaced: int


class _Expected:
    """The writes of a history by the events that they lead to."""

    def __init__(self, history: History) -> None:
        self.certain: dict[Key, Operation] = {}
        self.possible: dict[Key, Operation] = {}
        self.additions: Counter[str] = Counter()
        for operation in history:
            if operation.kind == "read":
                continue
            register, value = operation.register, operation.argument
            if operation.outcome is Outcome.OK:
                if operation.kind == "push":
                    register = f"{register}/{operation.result}"
                result = operation.result if operation.kind == "add" else value
                self.certain[register, result] = operation
            elif operation.outcome is Outcome.UNKNOWN and operation.kind == "add":
                self.additions[register] += 1
            elif operation.outcome is Outcome.UNKNOWN:
                self.possible[register, value] = operation

    def take(self, path: str, value: Any) -> Operation | None:
        """Return the write of an event, None for an addition of unknown outcome.

        Raises `BadHistory` if no write leads to this event, or one that had its event before.
        """
        parent = path.rpartition("/")[0]
        for key in ((path, value), (parent, value)):
            found = self.certain.pop(key, None) or self.possible.pop(key, None)
            if found is not None and (key[0] == path or found.kind == "push"):
                return found
        if not self.additions[path]:
            raise BadHistory(f"{path} became {value!r}: nobody did that, or it came twice.")
        self.additions[path] -= 1
        return None


def check_events(
    events: Sequence[Event],
    history: History,
    root: str,
    *,
    restarts: int = 0,
    is_alone: bool = True,
) -> Verdict:
    """Judge the events of a stream of the path `root`, below which all writes of a history are.

    `restarts` is how often it may start over. `is_alone` says that the database has no other
    writes, so that there are no gaps in their numbers.
    """
    replaced = _check_order(events, restarts, is_alone)
    expected = _Expected(history)
    notified: list[tuple[Event, Operation]] = []
    before: dict[str, Any] = {}
    for number, event in enumerate(events):
        if event.is_whole:
            before = _children(root, event.value, number)
            continue
        for path, value in _changes(event, root):
            operation = expected.take(path, value)
            if operation is not None:
                _check_found(operation, before.get(path), event)
                notified.append((event, operation))
            before[path] = value
    lost = list(expected.certain.values())
    if len(lost) > replaced:
        raise BadHistory(f"{len(lost)} events are lost, such as of:\n{_some(lost)}")
    _check_times(notified)
    whole = sum(event.is_whole for event in events)
    return Verdict(len(events) - whole, whole - 1, len(lost))


def _check_order(events: Sequence[Event], restarts: int, is_alone: bool) -> int:
    """Check the numbers of the events; return how many writes have none because of restarts."""
    if not events or not events[0].is_whole:
        raise BadHistory("A stream begins with the whole value.")
    replaced, runs = 0, [[events[0]]]
    ids = {events[0].id}
    for last, event in itertools.pairwise(events):
        if event.is_whole:
            if len(runs) > restarts:
                raise BadHistory(f"The stream started over at {event.id} after {last.id}.")
            if event.sequence < last.sequence:
                raise BadHistory(f"The stream went back from {last.id} to {event.id}.")
            replaced += event.sequence - last.sequence
            runs.append([])
        elif event.id in ids:
            raise BadHistory(f"{event.id} came twice.")
        elif _place(event) <= _place(last):
            raise BadHistory(f"{event.id} came after {last.id}.")
        ids.add(event.id)
        runs[-1].append(event)
    if is_alone:
        for run in runs:
            # Several events of one write have one number.
            check_gapless(dict.fromkeys(event.sequence for event in run))
    return replaced


def _place(event: Event) -> tuple[int, float]:
    return event.sequence, math.inf if event.part is None else event.part


def _changes(event: Event, root: str) -> list[Key]:
    """Return the absolute paths that an event sets, with their values."""
    path = root.rstrip("/") + event.path.rstrip("/")
    if event.kind == "put":
        return [(path, event.value)]
    return [(f"{path}/{key}", value) for key, value in event.value.items()]


def _children(root: str, value: Any, number: int) -> dict[str, Any]:
    """Return the absolute paths of the children of a watched value, with their values.

    `number` is that of the event; the first stands before all writes.
    """
    if number == 0 and value is not None:
        raise BadHistory(f"There was something before the first write: {value!r}")
    return {f"{root}/{key}": child for key, child in (value or {}).items()}


def _check_found(operation: Operation, before: Any, event: Event) -> None:
    """Check that a swap or an addition changed what was there in the order of the events."""
    if operation.kind == "swap" and before != operation.expected:
        raise BadHistory(f"{event.id} replaced {before!r}:\n{operation}")
    if operation.kind == "add" and isinstance(operation.result, int):
        base = before if isinstance(before, int) else 0
        if base + int(operation.argument or 0) != operation.result:
            raise BadHistory(f"{event.id} was added to {before!r}:\n{operation}")


def _check_times(notified: list[tuple[Event, Operation]]) -> None:
    """Check that a write which ended before another began has the smaller number."""
    by_end = sorted(notified, key=lambda pair: pair[1].completed)
    at, last = 0, None
    for event, operation in sorted(notified, key=lambda pair: pair[1].invoked):
        while by_end[at][1].completed < operation.invoked:
            if last is None or by_end[at][0].sequence > last[0].sequence:
                last = by_end[at]
            at += 1
        if last is not None and event.sequence <= last[0].sequence:
            raise BadHistory(
                f"Number {last[0].sequence} ended before {event.sequence} began:\n"
                f"{last[1]}\n{operation}"
            )


def _some(operations: list[Operation]) -> str:
    return "\n".join(map(str, operations[:SHOWN]))
