"""Push ids: keys that sort in the order in which they were made.

Twenty characters, eight of milliseconds since 1970 and twelve of chance, in an alphabet that ASCII
orders as it counts. So an id is one number of 120 bits, and the next one is either a later time
with new chance, or the last number plus one: within one millisecond, and while the clock stands
back. When the chance part overflows, the carry moves the id into the next millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_CHANCE_BYTES = 9
_CHANCE_BITS = 8 * _CHANCE_BYTES


class PushIds:
    """Makes strictly increasing ids; `entropy` returns as many random bytes as it is asked for."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._last = -1

    def next(self, now_ms: int) -> str:
        """Return an id greater than all before; `now_ms` is milliseconds since 1970."""
        if now_ms > self._last >> _CHANCE_BITS:
            chance = int.from_bytes(self._entropy(_CHANCE_BYTES), "big")
            self._last = now_ms << _CHANCE_BITS | chance
        else:
            self._last += 1
        return _write(self._last)


def _write(number: int) -> str:
    return "".join([ALPHABET[number >> shift & 63] for shift in range(114, -1, -6)])
