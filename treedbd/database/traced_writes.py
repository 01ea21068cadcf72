"""The spans of writes that are sampled: their rules, the commit of their batch, its notifications.

A batch has one commit and one round, so each of its writes has a span of both, with the same times
and the number of writes in the batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from treedbd.database.requests import QueuedWrite
from treedbd.traces import Trace, now_ns

if TYPE_CHECKING:  # rules are judged without Twisted, too (`rules_trial`)
    from treedbd.database.slices import Steps

T = TypeVar("T")

WRITES: Final = "treedb.batch.writes"
IS_ALLOWED: Final = "treedb.rules.allowed"


def trace_rules(trace: Trace, evaluate: Callable[[], T]) -> T:
    """Evaluate rules, and record a span of it; an exception means that they deny."""
    began = now_ns()
    is_allowed = False
    try:
        result = evaluate()
        is_allowed = True
        return result
    finally:
        trace.record("rules", began, {IS_ALLOWED: is_allowed})


async def trace_commit(batch: Sequence[QueuedWrite], committing: Awaitable[None]) -> None:
    """Await the commit of a batch, and record a span of it for each write that is sampled."""
    traces = _traces_of(batch)
    if not traces:
        await committing
        return
    began, failed = now_ns(), True
    try:
        await committing
        failed = False
    finally:
        for trace in traces:
            trace.record("commit", began, {WRITES: len(batch)}, failed=failed)


def trace_notify(batch: Sequence[QueuedWrite], notify: Steps) -> Steps:
    """Return steps that notify of a batch, and record a span for each write that is sampled."""
    traces = _traces_of(batch)
    return _recorded(traces, notify, len(batch)) if traces else notify


def _recorded(traces: Sequence[Trace], notify: Steps, writes: int) -> Steps:
    began = now_ns()
    yield from notify
    for trace in traces:
        trace.record("notify", began, {WRITES: writes})


def _traces_of(batch: Sequence[QueuedWrite]) -> list[Trace]:
    return [trace for queued in batch if (trace := queued.write.trace) is not None]
