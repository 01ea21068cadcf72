"""What databases are given from outside: time, random bytes, and a thread to wait in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from treedbd.database.answer_pool import AnswerPool
from treedbd.database.session_owner import MemoryOwner, SessionOwner
from treedbd.database.slices import Slices
from treedbd.database.statistics import Statistics
from treedbd.errors import LineBudget
from treedbd.limits import Limits, StreamLimits
from treedbd.names import DatabaseName
from treedbd.rules.context import MakeEvaluation, ReadPool

RunInThread: TypeAlias = Callable[[Callable[[], None]], "Deferred[None]"]
"""Runs what blocks in another thread; fires in the reactor's thread when it is done."""

MeasureRules: TypeAlias = Callable[[DatabaseName], MakeEvaluation]
"""Returns what evaluates the rules of a database, and measures them."""


def _read_clock() -> int:
    return time.time_ns() // 1_000_000


def _tell_nobody(_: DatabaseName) -> None:
    pass


@attrs.frozen
class Runtime:
    """`clock` schedules calls and counts seconds; `entropy` returns that many random bytes.

    `slices` runs the long work of all databases; `read_pool` bounds what the rules of all databases
    keep of what they have read, `answer_pool` the answers that all of them keep. An entry of a
    change log has at most `entry_bytes`; a longer one is kept without its body, or with it for a
    while, up to `followed_bytes`, for other processes to follow. The watched queries of one path
    order and select by at most `watched_fields` fields. `send_hint` tells
    the other processes that share a database that this one has written to it. By
    `measure_rules` slow rules are found, if they are to be logged. `statistics` count what all
    databases do. `now_ms` returns the milliseconds since 1970. `owner` is what the sessions of
    this process belong to. `creation_lines` bounds what is logged of databases that may not be
    created, since their names are those of clients.
    """

    clock: IReactorTime
    entropy: Callable[[int], bytes]
    run_in_thread: RunInThread
    answer_pool: AnswerPool = attrs.field(factory=lambda: AnswerPool(Limits().kept_answer_bytes))
    read_pool: ReadPool = attrs.field(factory=ReadPool)
    entry_bytes: int = StreamLimits().retain_entry_bytes
    followed_bytes: int = 0
    watched_fields: int = Limits().watched_fields_per_path
    send_hint: Callable[[DatabaseName], None] = _tell_nobody
    measure_rules: MeasureRules | None = None
    statistics: Statistics = attrs.field(factory=Statistics)
    now_ms: Callable[[], int] = _read_clock
    owner: SessionOwner = attrs.field(factory=MemoryOwner)
    slices: Slices = attrs.field(init=False)
    creation_lines: LineBudget = attrs.field(init=False)

    @creation_lines.default
    def _(self) -> LineBudget:
        return LineBudget(self.clock.seconds)

    @slices.default
    def _(self) -> Slices:
        return Slices(self.clock)
