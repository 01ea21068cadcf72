"""Work that can be interrupted: generators that yield whenever a short piece of it is done.

A rules document may hold a mebibyte, and the reactor must not wait for all of it. What goes through
documents and expressions is therefore written as a generator which yields after some tens of
microseconds to a millisecond of work, and returns its result. Its caller decides how many steps
make a slice: `finish` runs all of them at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")

Steps: TypeAlias = Generator[None, None, Result]


def finish(steps: Steps[Result]) -> Result:
    """Run all steps that are left, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
