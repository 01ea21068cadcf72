"""The order of volatile writes over several processes: what waits for the state, or for the lock.

Theory of operation. A process that begins to have volatile nodes does not have those of the others
yet (`volatile_exchange`). Until it does, reads wait, and so do writes of volatile nodes, in their
order; not longer than the link says, by which others may not have been found at all.

A write that depends on what it reads, as one with a condition or an increment does, is exact only
if nothing of another process comes between the reading and its place in the order of all. So it is
done while this process has the lock of the database: all that has a place in the order is here
then, and what others write meanwhile has its place after it. All that waits is done at once, so a
lock serves many. Other writes do not wait, but for those before them at the same places.

Who waits too long for the lock goes on without it, by what is known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from treedbd.database.requests import Outcome, Write
from treedbd.database.volatile_exchange import WAIT_S, VolatileExchange, VolatileLink
from treedbd.loop import do_nothing
from treedbd.names import DatabaseName
from treedbd.tree.edit import Increment
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import Path

FRESH_S: Final = 1.5
"""Seconds after which a lock that was given may be lost already."""
STOPPED_S: Final = 0.5
"""Seconds that a call is late in a process that was stopped."""
MAX_PATHS: Final = 64
"""Places of a write that are compared with those of others; of more, the node above them is."""
MAX_WAITING: Final = 64
"""Writes that wait whose places are compared; of more, all others wait, too."""


@attrs.define(eq=False)
class _Waiting:
    """A write that waits, the paths that it concerns, and what fires with its outcome."""

    write: Write
    paths: list[Path]
    needs_lock: bool
    done: Deferred[Outcome] = attrs.field(factory=Deferred)


class VolatileOrder:
    """The requests of one database that wait because other processes have it, too."""

    _log = Logger()

    def __init__(
        self,
        name: DatabaseName,
        exchange: VolatileExchange,
        link: VolatileLink,
        *,
        clock: IReactorTime,
        write: Callable[[Write], Deferred[Outcome]],
        is_near: Callable[[Path], bool],
    ) -> None:
        """Do writes by `write`; what is volatile `is_near` only to some paths."""
        self.is_waiting = False
        self._name = name
        self._exchange = exchange
        self._link = link
        self._clock = clock
        self._write = write
        self._is_near = is_near
        self._readers: list[Deferred[None]] = []
        self._queue: deque[_Waiting] = deque()
        self._has_turn = False
        self._timer: IDelayedCall | None = None

    def begin(self) -> None:
        """Make requests wait for the state of the others, which is being fetched."""
        if not self._exchange.is_fetching:
            return
        self._stop()
        self.is_waiting = True
        self._exchange.fetched = self._go_on
        self._timer = self._clock.callLater(self._link.wait_s, self._late)

    def wait(self) -> Deferred[None] | None:
        """Return what fires when reads are right; None if they are."""
        if not self.is_waiting:
            return None
        waiter: Deferred[None] = Deferred()
        self._readers.append(waiter)
        return waiter

    def submit(self, write: Write) -> Deferred[Outcome]:
        """Do a write as soon as it may be done; fires when what is volatile of it has its place."""
        done = self._submit(write)
        return (self._write(write) if done is None else done).addCallback(self._await_place)

    def _await_place(self, outcome: Outcome) -> Outcome | Deferred[Outcome]:
        """Return an outcome when what its client writes next, at any process, has a later place."""
        ordered = self._exchange.when_ordered() if outcome.volatile else None
        return outcome if ordered is None else ordered.addCallback(lambda _: outcome)

    def _submit(self, write: Write) -> Deferred[Outcome] | None:
        """Return what fires with the outcome of a write that has to wait; None if it has not."""
        if write.task is not None:
            return None
        needs_lock = self._needs_lock(write)
        if not (needs_lock or self.is_waiting or self._queue):
            return None
        paths = _paths_of(write)
        is_early = self.is_waiting and any(map(self._is_near, paths))
        if not (needs_lock or is_early or self._must_wait(paths)):
            return None
        waiting = _Waiting(write, paths, needs_lock)
        self._queue.append(waiting)
        self._take_turn()
        return waiting.done

    def close(self) -> None:
        """Wait no longer."""
        self._has_turn = True  # for good
        self.is_waiting = False
        self._exchange.fetched = do_nothing
        self._stop()
        self._fire_readers()
        while self._queue:
            self._do_first()

    def _needs_lock(self, write: Write) -> bool:
        if write.condition is None and not write.edit.has_placeholders:
            return False
        if write.condition is None and not any(_adds(each.value) for each in write.edit.changes):
            return False
        return self._link.lock is not None and any(map(self._is_near, _paths_of(write)))

    def _must_wait(self, paths: Iterable[Path]) -> bool:
        return len(self._queue) > MAX_WAITING or any(
            is_at_or_above(one, other) or is_at_or_above(other, one)
            for waiting in self._queue
            for one in waiting.paths
            for other in paths
        )

    def _late(self) -> None:
        if self._link.wait_s >= WAIT_S:  # else it is not known whether there are others
            self._log.warn(
                "{label} is served without the volatile nodes of other processes, which have not "
                "sent them within {seconds} s.",
                label=self._name.label,
                seconds=WAIT_S,
            )
        self._go_on()

    def _go_on(self) -> None:
        self.is_waiting = False
        self._exchange.fetched = do_nothing
        self._stop()
        self._take_turn()
        self._fire_readers()

    def _fire_readers(self) -> None:
        readers, self._readers = self._readers, []
        for each in readers:
            if not each.called:
                each.callback(None)

    def _stop(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _take_turn(self) -> None:
        """Do what waits, with the lock if anything needs it."""
        if self.is_waiting or self._has_turn or not self._queue:
            return
        self._has_turn = True
        lock = self._link.lock
        if lock is None or not any(each.needs_lock for each in self._queue):
            for _ in range(len(self._queue)):
                self._do_first()
            self._has_turn = False
            self._take_turn()
            return
        self._acquire(lock)

    def _acquire(
        self,
        lock: Callable[[DatabaseName], Deferred[Callable[[], None]]],
        *,
        may_repeat: bool = True,
    ) -> None:
        """Do what waits with the lock, or without it after `WAIT_S`.

        A process that was stopped meanwhile may have lost the lock, or not have read that it has
        it: once it asks again.
        """
        began = self._clock.seconds()

        def locked(release: Callable[[], None]) -> None:
            if not late.active():
                release()
                return
            late.cancel()
            if may_repeat and self._clock.seconds() > began + FRESH_S:
                release()
                self._acquire(lock, may_repeat=False)
            else:
                self._do_all(release)

        def failed(_: object) -> None:
            if late.active():
                late.cancel()
                self._do_all(do_nothing)

        def go_on() -> None:
            if may_repeat and self._clock.seconds() > began + WAIT_S + STOPPED_S:
                self._acquire(lock, may_repeat=False)
            else:
                self._do_without_lock()

        late = self._clock.callLater(WAIT_S, go_on)
        lock(self._name).addCallbacks(locked, failed)

    def _do_without_lock(self) -> None:
        self._log.warn(
            "Writes of {label} that depend on volatile nodes have waited for the lock for "
            "{seconds} s, and go on by what this process knows.",
            label=self._name.label,
            seconds=WAIT_S,
        )
        self._do_all(do_nothing)

    def _do_all(self, release: Callable[[], None]) -> None:
        """Do all writes that wait now, and release the lock when they are done."""
        done = DeferredList([self._do_first() for _ in range(len(self._queue))])

        def end(_: object) -> None:
            if late.active():
                late.cancel()
                self._end_turn(release)

        late = self._clock.callLater(WAIT_S, self._end_turn, release)
        done.addCallback(end)

    def _end_turn(self, release: Callable[[], None]) -> None:
        self._exchange.flush()
        release()
        self._has_turn = False
        self._take_turn()

    def _do_first(self) -> Deferred[Any]:
        waiting = self._queue.popleft()
        if waiting.done.called:  # it was cancelled
            return waiting.done.addErrback(lambda _: None)
        return self._write(waiting.write).addBoth(waiting.done.callback)


def _paths_of(write: Write) -> list[Path]:
    """Return the paths that a write concerns, and that of its condition."""
    changes = write.edit.changes
    paths = [each.place.path for each in changes[: MAX_PATHS + 1]]
    if len(paths) > MAX_PATHS:
        paths = [write.edit.place.path]
    if write.condition is not None:
        paths.append(write.condition.place.path)
    return paths


def _adds(value: Any) -> bool:
    """Return whether an unresolved value has an increment."""
    if isinstance(value, dict):
        return any(map(_adds, value.values()))
    return isinstance(value, Increment)
