from __future__ import annotations

from twisted.internet.task import Clock

from treedbd.errors import LineBudget


def test_lines_beyond_the_budget_are_counted_and_said_with_the_next() -> None:
    clock = Clock()
    budget = LineBudget(clock.seconds, lines=2, per_s=60.0)
    assert budget.take() == ""
    assert budget.take() == " Further such lines are left out, and counted, for 60 s."
    assert [budget.take() for _ in range(3)] == [None] * 3
    clock.advance(59.9)
    assert budget.take() is None
    clock.advance(0.1)
    assert budget.take() == " … 4 more such lines were left out before."


def test_the_last_line_says_for_how_long_none_follows() -> None:
    clock = Clock()
    budget = LineBudget(clock.seconds, lines=1, per_s=60.0)
    clock.advance(20)
    assert budget.take() == " Further such lines are left out, and counted, for 40 s."


def test_no_rate_of_lines_makes_more_than_the_budget() -> None:
    clock = Clock()
    budget = LineBudget(clock.seconds, lines=3, per_s=60.0)
    written = 0
    for _ in range(6000):
        written += budget.take() is not None
        clock.advance(0.05)
    assert written == 3 * 5
