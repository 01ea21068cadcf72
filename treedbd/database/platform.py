"""What the databases are given from outside: time, chance, and somewhere to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

RunCommit: TypeAlias = Callable[[Callable[[], None]], "Deferred[None]"]
"""Runs what blocks, elsewhere; fires on the reactor's thread when it is done."""


@attrs.frozen
class Platform:
    """`clock` schedules and counts seconds; `entropy` gives that many random bytes."""

    clock: IReactorTime
    entropy: Callable[[int], bytes]
    run_commit: RunCommit
