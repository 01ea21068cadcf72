"""The same done with many, some of them in each turn of the reactor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from twisted.internet.interfaces import IReactorTime

T = TypeVar("T")


def in_turns(
    clock: IReactorTime, items: Sequence[T], at_once: int, act: Callable[[T], None]
) -> None:
    """Call `act` with each item, with `at_once` of them in this turn and in each that follows.

    It has to find out whether an item is still there.
    """
    for item in items[:at_once]:
        act(item)
    rest = items[at_once:]
    if rest:
        clock.callLater(0, in_turns, clock, rest, at_once, act)
