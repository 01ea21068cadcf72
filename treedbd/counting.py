"""What has a limit is counted: connections and streams, requests in a second, bytes that are held.

Connections and streams are counted by key (`Counts`), and what callers do in a second by the levels
of token buckets (`Levels`). Both are of one process; where several serve the same clients, others
count for all of them (`workers.protocol`). A `Histogram` counts observations, such as how long
something took.

`HeldBytes` bounds what connections make the server hold between requests. A `HeldAccount` belongs
to one connection, stream or session. It is charged for what is kept for that: long heads, queries
of listens and streams, their windows. What would exceed a bound is refused before it is kept.
Closing the account frees all that was charged, so nothing stays counted after the end of a
connection.

Small objects are not charged: the number of connections, streams and listens bounds them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

from twisted.logger import Logger

from treedbd.limits import KIB, Limits
from treedbd.loop import BUCKETS_S

SMALL_HELD_BYTES: Final = 4 * KIB
"""Heads up to this size are not charged."""
LOGGED_EVERY_S: Final = 60.0
"""Refusals by one bound are logged at most this often."""
KEPT_LEVELS: Final = 32_768
"""Levels of one generation in `Levels`: at most twice as many are kept."""


class Counting(Protocol):
    """Counts by key: of one process (`Counts`), or of all workers (`workers.protocol.Board`)."""

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
    """The levels of token buckets by key: of one process (`Levels`), or of all workers.

    Those of all are `SharedLevels` in `workers/protocol`. A level is a time: when the bucket will
    be full again if nothing more is taken from it.
    """

    def get(self, key: str) -> float:
        """Return a level; in the past for a bucket that is full, or that was never used."""
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


class HeldBytesRefused(Exception):
    """A connection, an address or all clients together use as much memory as they may.

    Attributes:
        limit: the setting of the bound.

    """

    def __init__(self, limit: str) -> None:
        super().__init__("The server holds too much for its clients at present; try again later.")
        self.limit: Final = limit


class ByteCount:
    """Bytes of one kind, in all and for each client address; an empty address is not known.

    Attributes:
        total: all of them.

    """

    def __init__(self) -> None:
        self.total = 0
        self._per_address: Counter[str] = Counter()

    def count_of(self, address: str) -> int:
        """Return those of an address."""
        return self._per_address.get(address, 0)

    def add(self, size: int) -> None:
        """Count more bytes; fewer if `size` is negative."""
        self.total += size

    def add_for(self, address: str, size: int) -> None:
        """Count more bytes for an address; fewer if `size` is negative."""
        if address:
            self._per_address[address] += size
            if not self._per_address[address]:
                del self._per_address[address]


class HeldBytes(ByteCount):
    """The accounts of a service.

    Attributes:
        bodies: bytes of bodies and messages that arrive in pieces, which have a bound of their own.
        refused: how often more was refused, by the setting of the bound.

    """

    _log = Logger()

    def __init__(self, limits: Limits, seconds: Callable[[], float]) -> None:
        """Hold as much as `limits` say; `seconds` returns the time, for the log."""
        super().__init__()
        self.bodies: Final = ByteCount()
        self.refused: Final[Counter[str]] = Counter()
        self._limits = limits
        self._seconds = seconds
        self._logged_at: dict[str, float] = {}

    def account(self, address: str) -> HeldAccount:
        """Return the account of a connection from an address, which is empty if not known."""
        return HeldAccount(self, address)

    def check(self, address: str, own: int, size: int) -> None:
        """Raise `HeldBytesRefused` unless an account that has `own` bytes may have `size` more."""
        limits = self._limits
        if own + size > limits.held_bytes_per_connection:
            self._refuse("held_bytes_per_connection")
        if address and self.count_of(address) + size > limits.held_bytes_per_address:
            self._refuse("held_bytes_per_address")
        if self.total + size > limits.held_bytes:
            self._refuse("held_bytes")

    def _refuse(self, limit: str) -> None:
        self.refused[limit] += 1
        now = self._seconds()
        if now - self._logged_at.get(limit, -inf) >= LOGGED_EVERY_S:
            self._logged_at[limit] = now
            self._log.warn(
                "Refused: the server holds too much for a client ({limit} is {most} bytes); "
                "{count} times since the start.",
                limit=limit,
                most=getattr(self._limits, limit),
                count=self.refused[limit],
            )
        raise HeldBytesRefused(limit)


class HeldAccount:
    """The memory that one connection uses.

    Attributes:
        bytes: how much that is.

    """

    __slots__ = ("_address", "_held", "_is_closed", "bytes")

    def __init__(self, held: HeldBytes, address: str) -> None:
        """Count it in `held`, for an address."""
        self.bytes = 0
        self._address = address
        self._held = held
        self._is_closed = False

    def charge(self, size: int) -> None:
        """Hold more; raise `HeldBytesRefused`, and hold nothing more, if that is too much."""
        if not self._is_closed:
            self._held.check(self._address, self.bytes, size)
            self.add(size)

    def add(self, size: int) -> None:
        """Hold more without a check, or less; nothing if the account is closed."""
        if not self._is_closed:
            self.bytes += size
            self._held.add(size)
            self._held.add_for(self._address, size)

    def set(self, size: int) -> None:
        """Set the bytes in all; raises as `charge` if they are more than before."""
        if size > self.bytes:
            self.charge(size - self.bytes)
        elif size < self.bytes:
            self.add(size - self.bytes)

    def close(self) -> None:
        """Free all that was charged; later charges do not count."""
        self.add(-self.bytes)
        self._is_closed = True


SECONDS: Final = (*BUCKETS_S, 2.5, 5.0, 10.0)
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
