"""A histogram: how many observations fall into each bucket, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of buckets for what takes from 50 µs to 10 s."""


class Histogram:
    """Counts observations by the upper bounds of buckets.

    Attributes:
        bounds: the upper bounds, in order, each of which belongs to its bucket.
        counts: observations in each bucket; a last one has no bound.
        total: the sum of all observations.

    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """Count by these bounds; nothing is observed yet."""
        self.bounds: Final = tuple(bounds)
        self.counts: Final = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
