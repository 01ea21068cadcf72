"""What the attacks of `attackers.py` share: how they are named and found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
from attacked import Scene

Act: TypeAlias = Callable[[Scene], str | None]


def nothing(_: Scene) -> None:
    """Do nothing."""


@attrs.frozen
class Attack:
    """What one caller does.

    Attributes:
        name: in the table.
        run: does it, in a process of its own; returns a note for the table.
        prepare: what an admin does before, and is not measured.
        in_workers: whether it is among those that a daemon with workers is attacked with.

    """

    name: str
    run: Act
    prepare: Act = nothing
    in_workers: bool = False


ATTACKS: Final[list[Attack]] = []
"""All of them, in the order of the modules that define them."""


def attack(name: str, prepare: Act = nothing, *, in_workers: bool = False) -> Callable[[Act], Act]:
    """Name an attack."""

    def register(run: Act) -> Act:
        ATTACKS.append(Attack(name, run, prepare, in_workers))
        return run

    return register


def statuses(found: list[int]) -> str:
    """Return a note of which statuses came how often."""
    counts = {status: found.count(status) for status in sorted(set(found))}
    return ", ".join(f"{count} x {status}" for status, count in counts.items())
