"""Slices of long work, between which the reactor serves others.

Work is an iterator that does a little at each step (`Steps`). `Slices` runs the steps of all work
of a service for `SLICE_SECONDS` of each turn of the reactor, so that much work at once does not
make the turns longer. A step that waits for another thread yields the `Future` of its end. Work
begins in the turn in which it is started, so that little work causes no delay, but only for
`FIRST_SECONDS`: the commits of many databases may be done in one turn, and the reactor may run the
first slice of later turns in the same turn.

A `StepQueue` does one work after the other. `in_slices` does the same thing with many items, some
of them in each turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from math import inf
from typing import Any, Final, TypeAlias, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorFromThreads, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.loop import Awaited

T = TypeVar("T")

SLICE_SECONDS: Final = 0.004
FIRST_SECONDS: Final = 0.001
"""Of work that is started within `SLICE_SECONDS`, only what this first part has room for is run."""

Steps: TypeAlias = Generator[Awaited, None, None]
"""Work that does a little at each step, well under a slice."""


class Slices:
    """Runs work in slices of a few milliseconds, one slice for each turn of the reactor."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        """Measure slices and schedule turns by `clock`."""
        self._clock = clock
        self._waiting: deque[Steps] = deque()
        self._next_turn: IDelayedCall | None = None
        # A turn cannot be recognised, so what is started has a share of the time instead.
        self._first_since = -inf

    def start(self, steps: Steps) -> None:
        """Run the first slice now and the others in later turns; an exception is logged.

        If too much was started just now, the first slice is run in the next turn as well.
        """
        now = self._clock.seconds()
        if now >= self._first_since + SLICE_SECONDS:
            self._first_since = now
        end = self._first_since + FIRST_SECONDS
        if now >= end:
            self._waiting.appendleft(steps)  # it may be little, so it goes before what was begun
        elif self._run(steps, end):
            self._waiting.append(steps)
        if self._waiting:
            self._schedule()

    def run(self, steps: Generator[None, None, T]) -> Deferred[T]:
        """Do work in slices, as `start` does; fires with its result, or with what it raises.

        It may be cancelled, which ends the work.
        """
        done: Deferred[T] = Deferred()
        self.start(_fire(steps, done))
        return done

    def fire(self, waiting: Iterable[Deferred[T]], result: T | Failure) -> None:
        """Fire Deferreds with one result, in their order, except those that were cancelled."""
        self.start(_fire_each(waiting, result))

    def _schedule(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._clock.callLater(0, self._take_turn)

    def _take_turn(self) -> None:
        """Run one slice, shared by what waits; what is not finished goes to the end."""
        self._next_turn = None
        end = self._clock.seconds() + SLICE_SECONDS
        for _ in range(len(self._waiting)):
            steps = self._waiting.popleft()
            if self._run(steps, end):
                self._waiting.append(steps)
                break
            if self._clock.seconds() >= end:  # also if its last step was its only one
                break
        if self._waiting:
            self._schedule()

    def _run(self, steps: Steps, end: float) -> bool:
        """Run until a time; return whether anything is left that waits for nothing else."""
        seconds = self._clock.seconds
        try:
            for awaited in steps:
                if awaited is not None and self._await(awaited, steps):
                    return False
                if seconds() >= end:
                    return True
        except Exception:
            self._log.failure("Work in slices failed.")
        return False

    def _await(self, awaited: Future[Any], steps: Steps) -> bool:
        """Go on with steps when a thread is done; return False if that is now."""
        if not IReactorFromThreads.providedBy(self._clock):
            wait((awaited,))  # a clock of a test
            return False
        call_in_turn = self._clock.callFromThread
        awaited.add_done_callback(lambda _: call_in_turn(self._resume, steps))
        return True

    def _resume(self, steps: Steps) -> None:
        self._waiting.appendleft(steps)
        self._schedule()


def _fire(steps: Generator[None, None, T], done: Deferred[T]) -> Steps:
    """Run steps and fire with their result, unless `done` was fired meanwhile."""
    while not done.called:
        try:
            next(steps)
        except StopIteration as stop:
            done.callback(stop.value)
        except Exception:
            done.errback(Failure())
        else:
            yield
    steps.close()


def _fire_each(waiting: Iterable[Deferred[T]], result: T | Failure) -> Steps:
    for each in waiting:
        if not each.called:
            each.callback(result)
        yield


class StepQueue:
    """Work that is done one after the other, in slices; a failure ends only what has failed."""

    _log = Logger()

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._queue: deque[Steps] = deque()
        self._is_running = False

    def add(self, steps: Steps) -> None:
        """Do this work after all that was added before."""
        self._queue.append(steps)
        if not self._is_running:
            self._is_running = True
            self._slices.start(self._run())

    def _run(self) -> Steps:
        while self._queue:
            try:
                yield from self._queue.popleft()
            except Exception:
                self._log.failure("Work in slices failed.")
            if self._queue:
                yield
        self._is_running = False


def in_slices(
    clock: IReactorTime, items: Sequence[T], at_once: int, act: Callable[[T], None]
) -> None:
    """Call `act` with each item: with `at_once` of them now, and in each turn that follows.

    `act` must check that its item still exists.
    """
    for item in items[:at_once]:
        act(item)
    rest = items[at_once:]
    if rest:
        clock.callLater(0, in_slices, clock, rest, at_once, act)
