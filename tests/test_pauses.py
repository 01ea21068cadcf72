"""Functions that pause: run in steps they let others run, called plainly they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.task import Clock

from treedbd.pauses import STEP_SECONDS, in_steps, pause


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
