"""Work in slices: little work is done at once, much work leaves turns to others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorFromThreads
from zope.interface import alsoProvides

from tests.database.world import TurnClock, logged_failures
from treedbd.database.slices import FIRST_SECONDS, SLICE_SECONDS, Slices, StepQueue, Steps


def steps(log: list[str], name: str, count: int, after: Callable[[], None] | None = None) -> Steps:
    for number in range(count):
        log.append(f"{name}{number}")
        yield
    if after is not None:
        after()


def names(log: Iterable[str]) -> str:
    return "".join(each[0] for each in log)


def test_little_work_is_done_in_the_turn_in_which_it_is_started() -> None:
    clock, log = TurnClock(), list[str]()
    Slices(clock).start(steps(log, "a", 1000))
    assert len(log) == 1000
    assert clock.getDelayedCalls() == []


def test_much_work_takes_one_slice_of_each_turn() -> None:
    clock, log = TurnClock(SLICE_SECONDS / 8), list[str]()
    Slices(clock).start(steps(log, "a", 100))
    done = [len(log)]
    while clock.take_turn():
        done.append(len(log))
    assert done[-1] == 100
    assert max(later - earlier for earlier, later in zip([0, *done], done, strict=False)) <= 8


def test_a_turn_has_one_slice_however_much_work_there_is() -> None:
    clock, log = TurnClock(SLICE_SECONDS / 4), list[str]()
    slices = Slices(clock)
    for name in "abcdef":
        slices.start(steps(log, name, 40))
    sizes = []
    while len(log) < 6 * 40:
        before = len(log)
        clock.take_turn()
        sizes.append(len(log) - before)
    assert max(sizes) <= 4
    # Each gets its turn: none is finished before another has begun to go on.
    assert [names(log[-240:]).rindex(name) for name in "abcdef"] > [200] * 6


def test_work_of_one_step_that_lasts_ends_the_slice_too() -> None:
    clock, log = TurnClock(), list[str]()
    slices = Slices(clock)

    def last(name: str, seconds: float) -> Steps:
        log.append(name)
        clock.rightNow += seconds
        yield from ()

    slices.start(last("a", FIRST_SECONDS))
    for name in "bcdef":
        slices.start(last(name, SLICE_SECONDS))
    done = [len(log)]
    while clock.take_turn():
        done.append(len(log))
    assert done == [1, 2, 3, 4, 5, 6]


def test_short_work_in_a_queue_ends_the_slice_too() -> None:
    clock, log = TurnClock(), list[str]()
    queue = StepQueue(Slices(clock))

    def last(name: str) -> Steps:
        log.append(name)
        clock.rightNow += SLICE_SECONDS
        yield from ()

    def first() -> Steps:
        for name in "abcdef":
            queue.add(last(name))
        yield

    queue.add(first())
    done = [len(log)]
    while clock.take_turn():
        done.append(len(log))
    assert "".join(log) == "abcdef"
    assert max(later - earlier for earlier, later in pairwise(done)) == 1


def test_what_is_started_at_once_shares_one_first_slice() -> None:
    clock, log = TurnClock(FIRST_SECONDS / 4), list[str]()
    slices = Slices(clock)
    for name in "abcdef":
        slices.start(steps(log, name, 40))
    assert 0 < len(log) <= 4
    clock.run()
    assert sorted(names(log)) == sorted("abcdef" * 40)


def test_work_that_could_not_begin_at_once_begins_before_more_of_other_work_is_done() -> None:
    clock, log = TurnClock(FIRST_SECONDS / 4), list[str]()
    slices = Slices(clock)
    for name, count in (("a", 40), ("b", 40), ("c", 1)):
        slices.start(steps(log, name, count))
    begun = len(log)
    clock.take_turn()
    assert log[begun] == "c0"
    clock.run()
    assert len(log) == 81


def test_little_work_is_done_at_once_again_after_a_while() -> None:
    clock, log = TurnClock(FIRST_SECONDS / 4), list[str]()
    slices = Slices(clock)
    slices.start(steps(log, "a", 40))
    slices.start(steps(log, "b", 1))
    assert "b0" not in log
    clock.advance(SLICE_SECONDS)
    slices.start(steps(log, "c", 1))
    assert "c0" in log
    clock.run()
    assert len(log) == 42


def test_the_turn_that_starts_work_and_its_next_slice_take_little_more_than_a_slice() -> None:
    # The reactor runs what threads have done, then in the same turn what is scheduled.
    clock, log = TurnClock(FIRST_SECONDS / 4), list[str]()
    slices = Slices(clock)
    slices.start(steps(log, "a", 400))
    clock.take_turn()
    assert len(log) * clock.lag <= FIRST_SECONDS + SLICE_SECONDS
    clock.run()
    assert len(log) == 400


def test_work_that_fails_is_logged_and_disturbs_no_other() -> None:
    def fail() -> None:
        raise OSError("work of a test")

    clock, log = TurnClock(SLICE_SECONDS / 2), list[str]()
    slices = Slices(clock)
    with logged_failures() as failures:
        slices.start(steps(log, "a", 5, fail))
        slices.start(steps(log, "b", 9))
        clock.run()
    assert names(log).count("b") == 9
    assert failures == [OSError]


def test_work_in_a_queue_is_done_in_its_order() -> None:
    clock, log = TurnClock(SLICE_SECONDS / 2), list[str]()
    queue = StepQueue(Slices(clock))
    for name in "abc":
        queue.add(steps(log, name, 5))
    clock.run()
    queue.add(steps(log, "d", 5))
    clock.run()
    assert names(log) == "aaaaabbbbbcccccddddd"


def test_work_may_be_added_by_work_and_a_failure_ends_only_what_failed() -> None:
    def add_and_fail() -> None:
        queue.add(steps(log, "c", 2))
        raise OSError("work of a test")

    clock, log = TurnClock(), list[str]()
    queue = StepQueue(Slices(clock))
    with logged_failures() as failures:
        queue.add(steps(log, "a", 2, add_and_fail))
        queue.add(steps(log, "b", 2))
    assert names(log) == "aaccbb"
    assert failures == [OSError]


class ThreadedClock(TurnClock):
    """A clock that other threads can call, as a reactor."""

    def __init__(self) -> None:
        super().__init__()
        alsoProvides(self, IReactorFromThreads)

    def callFromThread(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call it in a turn."""
        self.callLater(0, call, *args, **kwargs)


def test_work_that_waits_for_a_thread_goes_on_after_it_and_others_meanwhile() -> None:
    clock, log = ThreadedClock(), list[str]()
    awaited: Future[None] = Future()

    def waiting() -> Steps:
        log.append("a0")
        yield awaited
        log.append("a1")

    slices = Slices(clock)
    slices.start(waiting())
    slices.start(steps(log, "b", 3))
    clock.run()
    assert log == ["a0", "b0", "b1", "b2"]
    awaited.set_result(None)
    clock.run()
    assert log[4:] == ["a1"]


def test_with_a_clock_that_threads_cannot_call_the_thread_is_waited_for() -> None:
    log = list[str]()
    awaited: Future[None] = Future()
    awaited.set_result(None)

    def waiting() -> Steps:
        yield awaited
        log.append("after")

    Slices(TurnClock()).start(waiting())
    assert log == ["after"]


def counted(log: list[int], count: int) -> Generator[None, None, int]:
    for number in range(count):
        log.append(number)
        yield
    return count


def test_work_that_is_run_fires_with_its_result_or_with_what_it_raises() -> None:
    slices, log = Slices(TurnClock()), list[int]()

    def fail() -> Generator[None, None, int]:
        yield
        raise KeyError

    results = [slices.run(counted(log, 3)), slices.run(fail())]
    assert results[0].result == 3
    results[1].addErrback(lambda failure: failure.trap(KeyError))
    assert results[1].result is KeyError


def test_work_that_is_run_ends_when_it_is_cancelled() -> None:
    clock, log = TurnClock(SLICE_SECONDS / 4), list[int]()
    running = Slices(clock).run(counted(log, 100))
    clock.take_turn()
    begun = len(log)
    running.addErrback(lambda failure: failure.trap(CancelledError))
    running.cancel()
    while clock.take_turn():
        pass
    assert 0 < begun == len(log) < 100


def test_much_work_that_is_run_shares_one_slice_of_a_turn() -> None:
    clock, log = TurnClock(SLICE_SECONDS / 4), list[int]()
    slices = Slices(clock)
    running = [slices.run(counted(log, 20)) for _ in range(6)]
    sizes = []
    while len(log) < 6 * 20:
        before = len(log)
        clock.take_turn()
        sizes.append(len(log) - before)
    while clock.take_turn():
        pass
    assert max(sizes) <= 4
    assert [each.result for each in running] == [20] * 6
