"""The span of rules that are evaluated for a request that is sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from treedbd.traces import Trace, now_ns

T = TypeVar("T")

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
