"""Which rows a commit touched, as bytes: single keys, and ranges of keys.

The encoding begins with its version and the number of single keys; then come all keys in order, and
after them the two ends of each range. Of a key follow, each as a variable-length number, how many
bytes it shares with the key before it and how many differ, and then these. Who applies a commit
reads the present rows of all that it touched, so to name more rows than were touched costs time
and is no error: very many keys become one range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import attrs

Range: TypeAlias = tuple[bytes, bytes]
"""The keys from the first one, without the second one."""

MAX_KEYS: Final = 20_000
"""More single keys than this are recorded as one range from the first to the last."""
_VERSION: Final = 1


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges in order, those that overlap or meet as one, and without empty ones."""
    merged: list[Range] = []
    for low, high in sorted(each for each in ranges if each[0] < each[1]):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


@attrs.frozen
class Touched:
    """Single keys in order, and ranges that do not overlap; no key is in a range."""

    keys: tuple[bytes, ...] = ()
    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[bytes], ranges: Iterable[Range]) -> Touched:
        """Return what any keys and ranges touch together."""
        merged = _merged(ranges)
        single = tuple(_outside(sorted(set(keys)), merged))
        if len(single) > MAX_KEYS:
            return cls.of((), (*merged, (single[0], single[-1] + b"\0")))
        return cls(single, merged)

    @classmethod
    def union(cls, parts: Iterable[Touched]) -> Touched:
        """Return what several commits touched together."""
        every = list(parts)
        return cls.of(
            (key for each in every for key in each.keys),
            (span for each in every for span in each.ranges),
        )

    def encode(self) -> bytes:
        """Return the bytes; `decode` is the inverse."""
        encoded = bytearray((_VERSION,))
        _put_number(encoded, len(self.keys))
        before = b""
        for key in (*self.keys, *(end for each in self.ranges for end in each)):
            shared = _shared(before, key)
            _put_number(encoded, shared)
            _put_number(encoded, len(key) - shared)
            encoded += key[shared:]
            before = key
        return bytes(encoded)

    @classmethod
    def decode(cls, encoded: bytes) -> Touched:
        """Return what was encoded; raise ValueError for other bytes."""
        try:
            if encoded[0] != _VERSION:
                raise ValueError(f"Touched rows of an unknown version {encoded[0]}.")
            count, at = _number(encoded, 1)
            every = list(_keys(encoded, at))
        except IndexError:
            raise ValueError("The record of touched rows is cut off.") from None
        ends = every[count:]
        if len(every) < count or len(ends) % 2:
            raise ValueError("The record of touched rows is cut off.")
        return cls(tuple(every[:count]), tuple(zip(ends[::2], ends[1::2], strict=True)))


def _outside(keys: Iterable[bytes], ranges: tuple[Range, ...]) -> Iterator[bytes]:
    """Yield the keys that are in no range; both are in order."""
    number = 0
    for key in keys:
        while number < len(ranges) and ranges[number][1] <= key:
            number += 1
        if number == len(ranges) or key < ranges[number][0]:
            yield key


def _keys(encoded: bytes, at: int) -> Iterator[bytes]:
    key = b""
    while at < len(encoded):
        shared, at = _number(encoded, at)
        length, at = _number(encoded, at)
        rest = encoded[at : at + length]
        if shared > len(key) or len(rest) < length:
            raise IndexError
        key = key[:shared] + rest
        yield key
        at += length


def _shared(one: bytes, other: bytes) -> int:
    """Return how many bytes two keys begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _put_number(encoded: bytearray, number: int) -> None:
    """Append a number, seven bits in each byte, the lowest first."""
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)


def _number(encoded: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends."""
    number = shift = 0
    while encoded[at] > 0x7F:
        number |= (encoded[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | encoded[at] << shift, at + 1
