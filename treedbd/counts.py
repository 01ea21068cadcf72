"""How many there are of what has a limit: connections and streams, by address and by database.

`Counts` is of one process; where several serve the same clients, another one counts for all of them
(`workers.board`).
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Counting(Protocol):
    """Counts by key."""

    def total(self, key: str) -> int:
        """Return how many there are, at all processes together."""
        ...

    def add(self, key: str) -> None:
        """Count one more at this process."""
        ...

    def remove(self, key: str) -> None:
        """Count one less at this process."""
        ...


class Counts:
    """Counts of one process alone."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def total(self, key: str) -> int:
        """Return how many there are."""
        return self._counts[key]

    def add(self, key: str) -> None:
        """Count one more."""
        self._counts[key] += 1

    def remove(self, key: str) -> None:
        """Count one less."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
