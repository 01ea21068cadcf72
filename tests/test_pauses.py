"""Functions that pause: run in steps they let others run, called plainly they do not."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import wait

import pytest
from twisted.internet.task import Clock

from treedbd.loop import (
    FREED_AT_ONCE,
    STEP_SECONDS,
    free_beside,
    free_in_steps,
    in_steps,
    pause,
    paused,
    run_beside,
)


def counting(numbers: list[int]) -> Callable[[], str]:
    def inner(number: int) -> None:
        numbers.append(number)
        pause()

    def work() -> str:
        for number in range(3):
            inner(number)
        return "done"

    return work


def test_a_step_ends_at_each_pause_and_the_result_is_returned() -> None:
    numbers: list[int] = []
    steps = in_steps(counting(numbers))
    for expected in range(3):
        next(steps)
        assert numbers == list(range(expected + 1))
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == "done"


def test_with_a_clock_a_step_goes_on_until_it_has_lasted_enough() -> None:
    clock, numbers = Clock(), list[int]()

    def work() -> None:
        for number in range(6):
            clock.advance(STEP_SECONDS * 0.6)
            numbers.append(number)
            pause()

    steps = in_steps(work, clock.seconds)
    lengths = []
    for _ in steps:
        lengths.append(len(numbers))
        clock.advance(1)  # what others do between the steps is no part of them
    assert lengths == [2, 4, 6]


def test_a_pause_does_nothing_in_a_function_that_is_called_plainly() -> None:
    numbers: list[int] = []
    assert counting(numbers)() == "done"
    assert numbers == [0, 1, 2]


def test_an_exception_reaches_who_takes_the_steps() -> None:
    def work() -> None:
        pause()
        raise LookupError("here")

    steps = in_steps(work)
    next(steps)
    with pytest.raises(LookupError, match="here"):
        next(steps)


def test_closing_the_steps_ends_the_function_at_its_pause() -> None:
    ended: list[str] = []

    def work() -> None:
        try:
            pause()
        finally:
            ended.append("ended")

    steps = in_steps(work)
    next(steps)
    steps.close()
    assert ended == ["ended"]


def test_steps_may_be_taken_within_the_steps_of_another_function() -> None:
    numbers: list[int] = []

    def outer() -> str:
        inner = in_steps(counting(numbers))
        next(inner)
        pause()
        next(inner)
        inner.close()
        return "outer"

    steps = in_steps(outer)
    next(steps)
    assert numbers == [0]
    with pytest.raises(StopIteration):
        next(steps)
    assert numbers == [0, 1]


def test_iterating_with_pauses_yields_the_same_and_pauses_after_so_many() -> None:
    assert list(paused(range(10), 3)) == list(range(10))
    assert len(list(in_steps(lambda: list(paused(range(10), 3))))) == 3


def test_what_runs_beside_the_steps_runs_in_another_thread_and_its_result_is_returned() -> None:
    may_end = threading.Event()

    def beside() -> int:
        may_end.wait()
        return threading.get_ident()

    steps = in_steps(lambda: (run_beside(beside), threading.get_ident()))
    awaited = next(steps)
    may_end.set()
    wait((awaited,))
    with pytest.raises(StopIteration) as stop:
        next(steps)
    there, here = stop.value.value
    assert here == threading.get_ident() != there


def test_without_steps_it_runs_in_the_thread_of_its_caller() -> None:
    assert run_beside(threading.get_ident) == threading.get_ident()


def test_an_exception_beside_the_steps_is_raised_in_them() -> None:
    def fail() -> None:
        raise LookupError("there")

    steps = in_steps(lambda: run_beside(fail))
    with pytest.raises(LookupError, match="there"):
        for _ in steps:
            pass


def test_steps_that_are_closed_wait_for_what_runs_beside_them() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait()
        has_ended.set()

    steps = in_steps(lambda: run_beside(work))
    next(steps)
    threading.Timer(0.01, may_end.set).start()
    steps.close()
    assert has_ended.is_set()


def test_what_is_freed_beside_is_freed_item_by_item_in_another_thread() -> None:
    threads: list[int] = []
    is_over = threading.Event()

    class Watched:
        def __del__(self) -> None:
            threads.append(threading.get_ident())
            if len(threads) == 3:
                is_over.set()

    collected = [Watched() for _ in range(3)]
    free_beside(collected)
    assert is_over.wait(10)
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads
    assert collected == []


def test_what_is_freed_in_steps_is_freed_with_its_parts_some_in_each_step() -> None:
    freed: list[str] = []

    class Node:
        def __init__(self, name: str, parts: list[Node]) -> None:
            self.name, self.parts = name, parts

        def __del__(self) -> None:
            freed.append(self.name)

    pending = [Node("root", [Node(f"{number}", []) for number in range(2 * FREED_AT_ONCE)])]
    counts = [len(freed) for _ in free_in_steps(pending, lambda node: node.parts)]
    assert counts == [FREED_AT_ONCE, 2 * FREED_AT_ONCE]
    assert len(freed) == 1 + 2 * FREED_AT_ONCE
    assert freed[0] == "root"
    assert pending == []


class Held:
    """What is looked for after the steps."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_after_the_steps_nothing_holds_their_function_and_its_result() -> None:
    held = Held()
    freed = weakref.ref(held)

    def work(*, held: Held | None = held) -> list[Held | None]:
        pause()
        return [held]

    steps = in_steps(work)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == [held]
    del held, work, steps, stop
    assert freed() is None


@pytest.mark.usefixtures("no_collection")
def test_after_steps_that_failed_nothing_holds_their_function() -> None:
    def take(held: Held) -> weakref.ref[Held]:
        def work() -> None:
            pause()
            raise LookupError(held)

        try:
            for _ in in_steps(work):
                pass
        except LookupError:
            return weakref.ref(held)
        raise AssertionError

    freed = take(Held())
    assert freed() is None
