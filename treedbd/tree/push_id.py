"""Push ids: keys that sort in the order in which they were made.

Twenty characters, eight of milliseconds since 1970 and twelve of random bits, in an alphabet whose
ASCII order is that of its digits. So an id is one number of 120 bits, and the next one is either a
later time with new random bits, or the last number plus one: within one millisecond, and while the
clock is behind. When the random part overflows, the carry moves the id into the next millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_RANDOM_BYTES = 9
_RANDOM_BITS = 8 * _RANDOM_BYTES


class PushIds:
    """Makes strictly increasing ids; `entropy` returns the given number of random bytes."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._last = -1

    def next(self, now_ms: int) -> str:
        """Return an id greater than all before; `now_ms` is in milliseconds since 1970."""
        if now_ms > self._last >> _RANDOM_BITS:
            random = int.from_bytes(self._entropy(_RANDOM_BYTES), "big")
            self._last = now_ms << _RANDOM_BITS | random
        else:
            self._last += 1
        return _encode(self._last)


def _encode(number: int) -> str:
    return "".join([ALPHABET[number >> shift & 63] for shift in range(114, -1, -6)])
