"""What connections make the server hold between requests: counted, and bounded.

A `HeldAccount` belongs to one connection, stream or session. It is charged for what is kept because
of it: long heads, queries of listens and streams, the windows of these. What would exceed a bound
is refused before it is kept. Whatever was charged, closing the account frees all of it, so nothing
stays counted after the end of a connection.

What is small is not charged: the number of connections, streams and listens bounds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Final

from twisted.logger import Logger

from treedbd.limits import KIB, Limits

SMALL_HELD_BYTES: Final = 4 * KIB
"""What a connection holds of a head up to this size is not charged."""
LOGGED_EVERY_S: Final = 60.0
"""Refusals by one bound are logged at most this often."""


class HeldBytesRefused(Exception):
    """The server holds as much for a connection, an address or all clients as it may.

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
        """Count more bytes; negative for those that there are no longer."""
        self.total += size

    def add_for(self, address: str, size: int) -> None:
        """Count more bytes for an address; negative for those that there are no longer."""
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
    """What is held for one connection.

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
        """Hold so much in all; as `charge` if that is more than before."""
        if size > self.bytes:
            self.charge(size - self.bytes)
        elif size < self.bytes:
            self.add(size - self.bytes)

    def close(self) -> None:
        """Free all that is held, and hold nothing any more."""
        self.add(-self.bytes)
        self._is_closed = True
