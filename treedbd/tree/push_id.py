"""Push ids: keys that sort in the order in which they were made.

Twenty characters, eight of milliseconds since 1970 and twelve of random bits, in an alphabet whose
ASCII order is that of its digits. So an id is one number of 120 bits, and the next one is either a
later time with new random bits, or the last number plus one: within one millisecond, and while the
clock is behind. When the random part overflows, the carry moves the id into the next millisecond.
After a restart the ids go on after the latest millisecond that earlier ones may have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_RANDOM_BYTES = 9
_RANDOM_BITS = 8 * _RANDOM_BYTES


class PushIds:
    """Makes strictly increasing ids."""

    def __init__(self, entropy: Callable[[int], bytes], used_through: Callable[[], int]) -> None:
        """Make ids later than the millisecond that `used_through` returns, negative for none.

        It is called once, when the first id is needed. `entropy` returns the given number of random
        bytes.
        """
        self._entropy = entropy
        self._used_through = used_through
        self._last: int | None = None
        self._is_own = False  # whether `_last` is an id that was made here

    @property
    def latest_ms(self) -> int:
        """A millisecond since 1970 that no id so far is later than; negative before the first."""
        return self._newest() >> _RANDOM_BITS

    def pass_over(self, used_ms: int) -> None:
        """Make ids later than a millisecond which others may have made ids in."""
        if self._last is not None and used_ms > self.latest_ms:
            self._last = (used_ms + 1 << _RANDOM_BITS) - 1
            self._is_own = False

    def next(self, now_ms: int) -> str:
        """Return an id greater than all before; `now_ms` is in milliseconds since 1970."""
        latest_ms = self.latest_ms
        if now_ms > latest_ms or not self._is_own:
            # After those of others it is random, too: they may all make the next one.
            random = int.from_bytes(self._entropy(_RANDOM_BYTES), "big")
            self._last = max(now_ms, latest_ms + 1) << _RANDOM_BITS | random
            self._is_own = True
        else:
            self._last = self._newest() + 1
        return _encode(self._last)

    def _newest(self) -> int:
        if self._last is None:
            self._last = (self._used_through() + 1 << _RANDOM_BITS) - 1
        return self._last


def is_later(push_id: str, used_ms: int) -> bool:
    """Return whether an id is later than every id that can have been made in a millisecond."""
    return push_id >= _encode(used_ms + 1 << _RANDOM_BITS)


def _encode(number: int) -> str:
    return "".join([ALPHABET[number >> shift & 63] for shift in range(114, -1, -6)])
