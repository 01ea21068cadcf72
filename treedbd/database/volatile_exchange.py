"""Volatile nodes of the processes that serve one database: each sends the others what it writes.

Theory of operation. A change is applied at once where it is written, and sent to one place that
passes all changes on in one order: the parent of the workers, or PostgreSQL (`cluster.volatile`).
The others apply them in that order. A change of another process that arrives before the own ones
have been passed on is older than these, so those that meet it are applied once more after it. So
all processes come to the same state, that of the changes in the one order, and what was written
last remains.

By a link without a lock changes are sent when those before have their place in the order. Of what
is written meanwhile at one place only the last value is sent (and the last removal, which has an
effect above the place).

A process that begins to keep a database wants the state of the others (`fetch`). Changes that have
their place in the order meanwhile are applied once more after each part of that. So it is if some
could not be sent, or may have been missed: what has no place in the order is kept, and sent with
the next fetch.

A state may be the whole one (`begin_state`, `end_state`): then what it does not have is removed. It
has all changes that its sender has received before it. Own ones that the sender has missed are not
in it; they are made again at its end, unless there are newer ones at their places.

What is sent are changes as JSON, in parts that one message has room for. Nothing is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from treedbd.loop import do_nothing
from treedbd.names import DatabaseName
from treedbd.store.rows import parse_stored
from treedbd.tree.types import Change, Path, Place, Value
from treedbd.tree.value import compact, members, priority_of

if TYPE_CHECKING:
    from treedbd.database.volatile import VolatileData

PART_BYTES: Final = 40_000
"""Bytes of a message; a single change may have some more, but less than a message may have."""
SHORT_BYTES: Final = 16_000
"""A longer value is sent child by child."""
WAIT_S: Final = 2.0
"""Seconds that requests wait for the state of others, or for the lock."""
MAX_KEPT: Final = 2_000
"""Changes that are kept until they can be sent; of more, the whole state is sent instead."""
_DROPPED_AT_ONCE: Final = 200


@attrs.frozen
class VolatileLink:
    """Passes what is volatile on to the other processes that serve a database.

    `share` sends them changes; it fires when these have their place in the order of all, and
    errbacks if they may have none: then `VolatileExchange.fetch` is called when others can be
    reached. `want` makes others send their state, and fires when they have. `lock` fires when all
    that has a place in the order is here, and nothing of others has one until what it fires with is
    called; None where that is not possible. Where there is one, writers are answered when their
    changes have their place. Requests wait for the state for `wait_s` seconds at the most.
    """

    share: Callable[[DatabaseName, bytes], Deferred[object]]
    want: Callable[[DatabaseName], Deferred[object]]
    lock: Callable[[DatabaseName], Deferred[Callable[[], None]]] | None = None
    wait_s: float = WAIT_S


@attrs.define(eq=False)
class _Message:
    """Changes that were sent, and who waits until they have their place in the order."""

    changes: list[Change]
    waiters: list[Deferred[None]] = attrs.field(factory=list)


class VolatileExchange:
    """The changes of one database, from and to other processes.

    Attributes:
        has_state: whether the state of others has been here, by whatever rules.
        fetched: is called when that of the rules in force is here.

    """

    def __init__(
        self, data: VolatileData, name: DatabaseName, link: VolatileLink, clock: IReactorTime
    ) -> None:
        """Send by `link` what is written in `data`, once in a turn of the reactor."""
        self._data = data
        self._name = name
        self._link = link
        self._clock = clock
        # Not sent yet, the oldest first: of each place the last value, and the last removal.
        self._own: dict[tuple[Place, bool], Change] = {}
        self._is_whole = False  # too many for that: the whole state is sent
        self._whole: list[Change] = []  # the whole state, while messages are made of it
        self._made: list[tuple[bytes, list[Change]]] = []
        self._parts: Iterator[tuple[bytes, list[Change]]] = iter(())
        self._sent: deque[_Message] = deque()  # those that are not in the order of all yet
        self._waiters: list[Deferred[None]] = []  # of what is not sent yet
        self._is_due = False
        self._is_cut_off = False
        self._fetches = 0
        # In the order since a fetch or a state has begun, and whether they are own ones.
        self._missed: list[tuple[Change, bool]] | None = None
        self._again: list[Change] = []  # own ones that the sender of the state may have missed
        self._seen: set[Path] | None = None  # the volatile nodes of a whole state
        self._dropping: tuple[list[Path], Callable[[], None]] | None = None
        self.has_state = False
        self.fetched: Callable[[], None] = do_nothing

    @property
    def is_fetching(self) -> bool:
        """Whether the state of others has not been received yet."""
        return self._fetches > 0

    @property
    def group(self) -> str:
        """What the rules in force call volatile: states are exchanged with who has the same."""
        return self._data.paths.digest

    def state(self) -> Iterator[Change]:
        """Iterate over the changes that make the present state, also later and in any thread."""
        return self._data.state()

    def fetch(self) -> None:
        """Begin to receive the state of others, and send what could not be sent."""
        self._fetches += 1
        if self._missed is None:
            self._missed = []

        def end(_: object) -> None:
            self._fetches -= 1
            self.has_state = True
            self._end_fetch()

        self._is_cut_off = False
        self._schedule()
        self._link.want(self._name).addBoth(end)

    def rules_changed(self) -> None:
        """Apply what has no place in the order yet by other rules, as others will."""
        self._data.apply_received(self._unordered())

    def note(self, changes: Iterable[Change]) -> None:
        """Send changes that were made here."""
        if not self._is_whole:
            self._keep(changes)
        self._schedule()

    def close(self) -> None:
        """Send what is not sent yet, and let no writer wait for its place."""
        self.flush()
        self._is_cut_off = True
        _fire(self._take_waiters())

    def when_ordered(self) -> Deferred[None] | None:
        """Return what fires when all that was noted has its place; None if none waits for that."""
        is_sent = not (self._own or self._is_whole)
        if self._link.lock is None or self._is_cut_off or (is_sent and not self._sent):
            return None
        waiter: Deferred[None] = Deferred()
        (self._sent[-1].waiters if is_sent else self._waiters).append(waiter)
        return waiter

    def receive(self, content: bytes, *, is_state: bool) -> None:
        """Apply changes of another process, or a part of its state."""
        received = decode_changes(content)
        if is_state:
            if self._seen is not None:
                self._seen.update(self._data.tops_of(received))
            self._apply_state(received)
            return
        self._apply(received, ())
        if self._missed is not None:
            self._missed += [(change, False) for change in received]

    def begin_state(self, *, has_all: bool = False) -> None:
        """Receive a whole state, as it is at this place in the order.

        It has all changes that have their place before, if it `has_all`.
        """
        self.finish_state()
        missed = [*((change, True) for change in self._again), *(self._missed or ())]
        self._again = [] if has_all else _own_without_newer(missed)
        self._seen, self._missed = set(), []

    def end_state(self, done: Callable[[], None]) -> None:
        """Remove what the state did not have, in slices; then call `done`."""
        seen, self._seen = self._seen or set(), None
        paths = [path for path in self._data.top_paths() if path not in seen]
        self._dropping = paths, done
        self._drop()

    def give_up_state(self) -> None:
        """Go on without the rest of a state, whose sender has ended, and keep what is here."""
        self._seen = None

    def finish_state(self) -> None:
        """Remove at once what is left to be removed, because the whole state is wanted now."""
        while self._dropping is not None:
            self._drop_some(*self._dropping)

    def _drop(self) -> None:
        if self._dropping is not None:
            self._drop_some(*self._dropping)
        if self._dropping is not None:
            self._clock.callLater(0, self._drop)

    def _drop_some(self, paths: list[Path], done: Callable[[], None]) -> None:
        some, rest = paths[:_DROPPED_AT_ONCE], paths[_DROPPED_AT_ONCE:]
        self._dropping = (rest, done) if rest else None
        self._apply_state([Change(Place(path), None) for path in some])
        if not rest:
            done()
            self._end_fetch()

    def _end_fetch(self) -> None:
        """Make own changes again that the sender of the state has missed."""
        if self._fetches or self._seen is not None or self._dropping is not None:
            return
        newer = [(change, False) for change in chain(self._missed_changes(), self._unordered())]
        again = _own_without_newer([*((change, True) for change in self._again), *newer])
        self._missed, self._again = None, []
        if again and self._data.would_change(again):
            again = self._effective(again)
            self._data.apply_received(again)
            self.note(again)
        self.fetched()

    def _missed_changes(self) -> Iterator[Change]:
        """Iterate over what has its place in the order since a fetch or a state has begun."""
        return (change for change, _ in self._missed or ())

    def _unordered(self) -> Iterator[Change]:
        """Iterate over the own changes that have no place in the order yet."""
        sent = chain.from_iterable(each.changes for each in self._sent)
        return chain(sent, self._whole, self._own.values())

    def _apply_state(self, changes: Sequence[Change]) -> None:
        """Apply changes to what is older than what was missed, and that once more."""
        changed = self._effective(changes)
        if changed:
            self._apply(changed, self._missed_changes())

    def _effective(self, changes: Iterable[Change]) -> list[Change]:
        """Return the changes that may have an effect, when those before them are made."""
        places, effective = _Places(), []
        for change in changes:
            path = change.place.path
            if places.meets(path) or self._data.lacks(change):
                places.add(path)
                effective.append(change)
        return effective

    def _apply(self, changes: Sequence[Change], again: Iterable[Change]) -> None:
        """Apply changes, and once more those that are newer and meet them."""
        self._data.apply_received(changes)
        places = _Places()
        for change in changes:
            places.add(change.place.path)
        meeting: list[Change] = []
        for change in chain(again, self._unordered()):
            path = change.place.path
            if places.meets(path):  # then those after it that meet it are applied again, too
                meeting.append(change)
                places.add(path)
        if meeting:
            self._data.apply_received(meeting)

    def _keep(self, changes: Iterable[Change]) -> None:
        own = self._own
        for change in changes:
            key = change.place, change.value is None
            own.pop(key, None)  # so that it is the last one
            own[key] = change
        if len(own) <= MAX_KEPT:
            return
        if self._is_cut_off:
            self._is_whole = True
            own.clear()
        else:
            self.flush()

    def _schedule(self) -> None:
        # Over workers, who have a lock, a client may have gone on at another one meanwhile.
        is_held = bool(self._whole) or (bool(self._sent) and self._link.lock is None)
        is_waiting = self._is_due or self._is_cut_off or is_held
        if (self._own or self._is_whole) and not is_waiting:
            self._is_due = True
            self._clock.callLater(0, self._send)

    def _send(self) -> None:
        self._is_due = False
        if self._is_whole and not self._is_cut_off:
            self._is_whole = False
            self._whole = [Change(Place(()), None), *self.state()]
            self._parts = _encode_parts(self._whole)
            self._make_some()
        else:
            self.flush()

    def _make_some(self) -> None:
        """Make a message of the whole state in each turn, and send all after the last."""
        if self._whole and self._make():
            self._clock.callLater(0, self._make_some)

    def _make(self) -> bool:
        """Make a message of the whole state; without more to make send all, and return False."""
        part = next(self._parts, None)
        if part is not None:
            self._made.append(part)
            return True
        made, self._made, self._whole = self._made, [], []
        self._share(made)
        self._schedule()
        return False

    def flush(self) -> None:
        """Send what was written until now, also if what was sent before is under way."""
        while self._whole and self._make():
            pass
        if self._own and not self._is_cut_off:
            own = list(self._own.values())
            self._own.clear()
            self._share(list(_encode_parts(own)))

    def _share(self, parts: Sequence[tuple[bytes, list[Change]]]) -> None:
        sent = [(part, _Message(changes)) for part, changes in parts]
        sent[-1][1].waiters, self._waiters = self._waiters, []
        self._sent += [message for _, message in sent]  # all at once: they may be cut off at once
        for part, message in sent:
            shared = self._link.share(self._name, part)
            shared.addCallbacks(self._ordered, self._cut_off, (message,), errbackArgs=(message,))

    def _ordered(self, _: object, message: _Message) -> None:
        if not (self._sent and self._sent[0] is message):
            return  # it was cut off
        self._sent.popleft()
        if self._missed is not None:
            self._missed += [(change, True) for change in message.changes]
        _fire(message.waiters)
        if not self._sent:
            self._schedule()

    def _take_waiters(self) -> list[Deferred[None]]:
        waiters = [*chain.from_iterable(each.waiters for each in self._sent), *self._waiters]
        self._waiters = []
        for each in self._sent:
            each.waiters = []
        return waiters

    def _cut_off(self, _: object, message: _Message) -> None:
        """Keep what was sent, which may have no place in the order, for the next fetch."""
        if message not in self._sent:
            return
        self._is_cut_off = True
        kept = list(self._unordered())
        waiters = self._take_waiters()
        self._sent.clear()
        self._own.clear()
        if not self._is_whole:
            self._keep(kept)
        _fire(waiters)


def _fire(waiters: Iterable[Deferred[None]]) -> None:
    for each in waiters:
        if not each.called:  # else it was cancelled
            each.callback(None)


class _Places:
    """Places, of which is found whether another one meets any: is above, at or below it."""

    def __init__(self) -> None:
        self._exact: set[Path] = set()
        self._above: set[Path] = set()

    def add(self, path: Path) -> None:
        """Add a place."""
        if path not in self._exact:
            self._exact.add(path)
            self._above.update(path[:depth] for depth in range(len(path) + 1))

    def meets(self, path: Path) -> bool:
        """Return whether any place is above, at or below a path."""
        return path in self._above or any(path[:at] in self._exact for at in range(len(path)))


def _own_without_newer(changes: Sequence[tuple[Change, bool]]) -> list[Change]:
    """Return the own ones of changes that none after them meets, but for other ones of these."""
    if not any(is_own for _, is_own in changes):
        return []
    newer, own = _Places(), []
    for change, is_own in reversed(changes):
        path = change.place.path
        if is_own and not newer.meets(path):
            own.append(change)
        else:
            newer.add(path)
    return own[::-1]


def encode_changes(changes: Iterable[Change]) -> Iterator[bytes]:
    """Encode changes in parts that one message has room for."""
    return (part for part, _ in _encode_parts(changes))


def _encode_parts(changes: Iterable[Change]) -> Iterator[tuple[bytes, list[Change]]]:
    """Encode changes in parts; yield each with the changes that it has."""
    texts: list[bytes] = []
    part: list[Change] = []
    size = 0
    for path, is_priority, value in chain.from_iterable(map(_divide, changes)):
        entry: Any = [list(path), is_priority, value]
        text = compact(entry)
        if part and size + len(text) > PART_BYTES:
            yield b"[" + b",".join(texts) + b"]", part
            texts, part, size = [], [], 0
        texts.append(text)
        part.append(Change(Place(path, is_priority), value))
        size += len(text)
    if part:
        yield b"[" + b",".join(texts) + b"]", part


def decode_changes(content: bytes) -> list[Change]:
    """Return the changes of one part."""
    decoded: Any = parse_stored(content)
    return [Change(Place(tuple(path), is_priority), value) for path, is_priority, value in decoded]


def _divide(change: Change) -> Iterator[tuple[Path, bool, Value]]:
    """Yield a change, or one that removes and others that set the children, if it is long."""
    (path, is_priority), value = change.place, change.value
    is_short = is_priority or not isinstance(value, dict) or len(compact(value)) <= SHORT_BYTES
    children = () if is_short else tuple(members(value))
    if not children:
        yield path, is_priority, value
        return
    yield path, False, None
    for key, child in children:
        yield from _divide(Change(Place((*path, key)), child))
    priority = priority_of(value)
    if priority is not None:
        yield path, True, priority
