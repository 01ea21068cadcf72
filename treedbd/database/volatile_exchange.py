"""Volatile nodes of the processes that serve one database: each sends the others what it writes.

Theory of operation. A change is applied at once where it is written, and sent to one place that
passes all changes on in one order, the parent of the workers. The others apply them in that order.
A change of another process that arrives before the own ones have been passed on is older than
these, so those that meet it are applied once more after it. So all processes come to the same
state, that of the changes in the one order, and what was written last remains.

A process that begins to keep a database wants the state of the others (`fetch`). Changes that it
receives meanwhile are applied once more after each part of that.

What is sent are changes as JSON, in parts that one message has room for. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from treedbd.names import DatabaseName
from treedbd.store.rows import parse_stored
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import Change, Path, Place, Value
from treedbd.tree.value import compact, members

if TYPE_CHECKING:
    from treedbd.database.volatile import VolatileData

PART_BYTES: Final = 40_000
"""Bytes of a message; a single change may have some more, but less than a message may have."""
SHORT_BYTES: Final = 16_000
"""A longer value is sent child by child."""


@attrs.frozen
class VolatileLink:
    """Passes what is volatile on to the other processes that serve a database.

    `share` sends them changes; it fires when these have their place in the order of all. `want`
    makes them send their state, and fires when all have.
    """

    share: Callable[[DatabaseName, bytes], Deferred[object]]
    want: Callable[[DatabaseName], Deferred[object]]


class VolatileExchange:
    """The changes of one database, from and to other processes."""

    def __init__(
        self, data: VolatileData, name: DatabaseName, link: VolatileLink, clock: IReactorTime
    ) -> None:
        """Send by `link` what is written in `data`, once in a turn of the reactor."""
        self._data = data
        self._name = name
        self._link = link
        self._clock = clock
        self._own: list[list[Change]] = []  # not in the order of all yet; the last is not sent
        self._is_due = False
        self._fetches = 0
        self._missed: list[Change] | None = None  # received while the state is fetched

    def fetch(self) -> None:
        """Begin to receive the state of the others."""
        self._fetches += 1
        if self._missed is None:
            self._missed = []

        def end(_: object) -> None:
            self._fetches -= 1
            if not self._fetches:
                self._missed = None

        self._link.want(self._name).addBoth(end)

    def note(self, changes: Sequence[Change]) -> None:
        """Send changes that were made here."""
        if not self._is_due:
            self._is_due = True
            self._own.append([])
            self._clock.callLater(0, self._send)
        self._own[-1] += changes

    def receive(self, content: bytes, *, is_state: bool) -> None:
        """Apply changes of another process, or a part of its state."""
        received = decode_changes(content)
        self._data.apply_received(received)
        if is_state:
            again = self._missed or []
        else:
            again = []
            if self._missed is not None:
                self._missed += received
        later = [*again, *(change for some in self._own for change in some)]
        meeting: list[Change] = []
        paths = [change.place.path for change in received]
        for change in later:
            path = change.place.path
            if _meets(path, paths):  # then those after it that meet it are applied again, too
                meeting.append(change)
                paths.append(path)
        if meeting:
            self._data.apply_received(meeting)

    def _send(self) -> None:
        self._is_due = False
        own = self._own[-1]
        ordered = [self._link.share(self._name, part) for part in encode_changes(own)]

        def end(_: object) -> None:
            self._own.remove(own)

        for each in ordered[:-1]:
            each.addErrback(_ignore)
        if ordered:
            ordered[-1].addBoth(end)
        else:
            end(None)


def _ignore(_: object) -> None:
    """Ignore that what passes changes on has ended: so will this process, or it fetches again."""


def encode_changes(changes: Sequence[Change]) -> Iterator[bytes]:
    """Encode changes in parts that one message has room for."""
    part: list[bytes] = []
    size = 0
    for change in changes:
        for path, is_priority, value in _divide(change):
            entry: Any = [list(path), is_priority, value]
            text = compact(entry)
            if part and size + len(text) > PART_BYTES:
                yield b"[" + b",".join(part) + b"]"
                part, size = [], 0
            part.append(text)
            size += len(text)
    if part:
        yield b"[" + b",".join(part) + b"]"


def decode_changes(content: bytes) -> list[Change]:
    """Return the changes of one part."""
    decoded: Any = parse_stored(content)
    return [Change(Place(tuple(path), is_priority), value) for path, is_priority, value in decoded]


def _divide(change: Change) -> Iterator[tuple[Path, bool, Value]]:
    """Yield a change, or one that removes and others that set the children, if it is long."""
    (path, is_priority), value = change.place, change.value
    children = () if is_priority or len(compact(value)) <= SHORT_BYTES else tuple(members(value))
    if not children:
        yield path, is_priority, value
        return
    yield path, False, None
    for key, child in children:
        yield from _divide(Change(Place((*path, key)), child))


def _meets(path: Path, paths: Sequence[Path]) -> bool:
    return any(is_at_or_above(each, path) or is_at_or_above(path, each) for each in paths)
