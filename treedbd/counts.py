"""How much there is of what has a limit: connections and streams, and what callers do in a second.

`Counts` and `Levels` are of one process; where several serve the same clients, others count for all
of them (`workers.board`). What is counted by the address of a client is so by `network_of` it.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final, Protocol

KEPT_LEVELS: Final = 32_768
"""Levels of one generation in `Levels`: at most twice as many are kept."""
_NETWORK: Final = ((1 << 64) - 1) << 64


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


class Levelling(Protocol):
    """The levels of token buckets by key.

    A level is a time: when the bucket will be full again if nothing more is taken from it.
    """

    def get(self, key: str) -> float:
        """Return a level; in the past for a bucket that is full, or that nobody has used."""
        ...

    def set(self, key: str, level: float) -> None:
        """Set a level."""
        ...


class Levels:
    """The levels of one process alone, in bounded memory.

    They are kept in two generations. When the younger one is full, the older one is forgotten: what
    was set longest ago. A bucket that was forgotten is full.
    """

    def __init__(self, kept: int = KEPT_LEVELS) -> None:
        """Keep at least the `kept` levels that were set last, and at most twice as many."""
        self._kept = kept
        self._young: dict[str, float] = {}
        self._old: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: str) -> float:
        """Return a level."""
        level = self._young.get(key)
        return self._old.get(key, 0.0) if level is None else level

    def set(self, key: str, level: float) -> None:
        """Set a level."""
        self._young[key] = level
        if len(self._young) > self._kept:
            self._old, self._young = self._young, {}


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return whose an address is: of IPv6, which a client has many of, the first 64 bits.

    An IPv4 address that is mapped into IPv6 is itself.
    """
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) & _NETWORK)}/64"
