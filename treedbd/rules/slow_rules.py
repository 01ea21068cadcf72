"""What is reported of rules that take long, and what measures them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from treedbd.rules.document import TextPosition


@attrs.frozen
class SlowRules:
    """The rules of one request that took long.

    Attributes:
        seconds: how long all of them took.
        location, position: the one that took longest in all: where it is in the document.
        slowest_s: how long that one took.
        count: how often that one was evaluated.

    """

    seconds: float
    location: str
    position: TextPosition
    slowest_s: float
    count: int


@attrs.frozen
class SlowRulesReport:
    """What `report` is called with: rules that took at least `least_s` seconds for one request."""

    least_s: float
    report: Callable[[SlowRules], None]


MakeEvaluation: TypeAlias = Callable[..., Any]
"""Makes an `Evaluation` that measures its rules, with the arguments of one."""
