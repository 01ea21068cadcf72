"""The order of keys, the order of values, and a byte encoding that keeps both.

Keys: 32-bit integers in canonical form first, by number, then all other keys by their UTF-8 bytes.
Values: nothing, false, true, numbers, strings, containers; containers are all equal.
Encodings compare byte by byte as the keys or values compare. The encoding of a path begins with the
encoding of each of its ancestors, so a subtree is one contiguous range.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

from treedbd.tree.types import Path

KeyRank: TypeAlias = tuple[int, int, str]
ValueRank: TypeAlias = tuple[int, Any]

INT_TAG = 0x02
TEXT_TAG = 0x03
TEXT_END = b"\x00"
BEYOND = b"\x04"
"""Appended to an encoded path, it makes an upper bound of all descendants."""

_INT_TAG = bytes((INT_TAG,))
_TEXT_TAG = bytes((TEXT_TAG,))
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,9}")
_LOW, _HIGH = -(2**31), 2**31 - 1


def as_integer(key: str) -> int | None:
    """Return the number that a key sorts by, or None for a key that sorts as text."""
    if key[-1:] > "9" or not _INTEGER.fullmatch(key):
        return None
    number = int(key)
    return number if _LOW <= number <= _HIGH else None


def rank_key(key: str) -> KeyRank:
    """Return a tuple that sorts as the key sorts."""
    number = as_integer(key)
    return (1, 0, key) if number is None else (0, number, "")


def sort_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys in order."""
    numbers, texts = {}, []
    for key in keys:
        number = as_integer(key)
        if number is None:
            texts.append(key)
        else:
            numbers[key] = number
    texts.sort()
    return [*sorted(numbers, key=numbers.__getitem__), *texts]


def rank_value(value: object) -> ValueRank:
    """Return a tuple that sorts as the value sorts; `value` has no priority of its own."""
    if value is None:
        return (0, 0)
    if value is False:
        return (1, 0)
    if value is True:
        return (2, 0)
    if isinstance(value, int | float):
        return (3, value)
    if isinstance(value, str):
        return (4, value)
    return (5, 0)


def encode_key(key: str) -> bytes:
    """Encode one key; no encoding is a prefix of another."""
    number = as_integer(key)
    if number is None:
        return _TEXT_TAG + key.encode() + TEXT_END
    return _INT_TAG + struct.pack(">I", number - _LOW)


def encode_path(path: Path) -> bytes:
    """Encode a path: the encodings of its keys, joined; that of the root is empty."""
    return b"".join([encode_key(key) for key in path])


def decode_path(encoded: bytes) -> tuple[Path, bytes]:
    """Decode an encoded path, or a prefix of one.

    Returns the keys that are whole, and the bytes of a key that was cut off (empty if none was).
    """
    keys = []
    at, end = 0, len(encoded)
    while at < end:
        if encoded[at] == INT_TAG:
            stop = at + 5
            if stop > end:
                break
            keys.append(str(struct.unpack_from(">I", encoded, at + 1)[0] + _LOW))
        else:
            stop = encoded.find(TEXT_END, at) + 1
            if not stop:
                break
            keys.append(encoded[at + 1 : stop - 1].decode())
        at = stop
    return tuple(keys), encoded[at:]


def encode_value(value: object) -> bytes:
    """Encode a value for an index; a caller that needs a shorter key truncates a string.

    A number is its nearest double, whose bits are changed so that they compare as the numbers do,
    then the distance of an integer from that double, since several integers may share a double.
    """
    rank, content = rank_value(value)
    tag = bytes((0x10 + rank,))
    if rank == 3:
        return tag + _encode_number(content)
    if isinstance(content, str):
        return tag + content.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    return tag


def _encode_number(number: int | float) -> bytes:
    double = float(number) + 0.0
    (bits,) = struct.unpack(">Q", struct.pack(">d", double))
    # Inverts the sign, and all other bits of a negative number.
    ordered = bits ^ (0xFFFFFFFFFFFFFFFF if bits >> 63 else 0x8000000000000000)
    distance = number - int(double) if isinstance(number, int) else 0
    return struct.pack(">QH", ordered, distance + 0x8000)
