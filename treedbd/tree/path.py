"""Paths and keys: their syntax, their order, that order as bytes, and push ids.

Syntax. A path is checked once, when it is parsed. Code that receives a `Path` made here may rely on
it: every key is legal, and there are at most `MAX_DEPTH` of them.

Order. Keys: first those that read as a 32-bit integer, by number, then all others by their UTF-8
bytes. An integer is an optional `-` and decimal digits, leading zeros allowed, at most 11
characters in all; equal numbers sort by length, then by bytes: `0`, `-0`, `00`, `1`, `01`, `001`.
Values: nothing, false, true, numbers, strings, containers; containers are all equal. A *rank* is a
tuple that compares as the key or value does.

Bytes. Encodings compare byte by byte as the keys or values compare. The encoding of a path begins
with the encoding of each of its ancestors, so a subtree is one contiguous range.

Push ids: keys that sort in the order in which they were made. Twenty characters, eight of
milliseconds since 1970 and twelve of random bits, in an alphabet whose ASCII order is that of its
digits. So an id is one number of 120 bits, and the next one is either a later time with new random
bits, or the last number plus one: within one millisecond, and while the clock is slow. When the
random part overflows, the carry moves the id into the next millisecond. After a restart the ids go
on after the latest millisecond that earlier ones may have.
"""

from __future__ import annotations

import re
import struct
from binascii import b2a_base64
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, Final, TypeAlias

from treedbd.limits import MAX_DEPTH, MAX_KEY_BYTES
from treedbd.loop import PAUSE_AFTER, paused
from treedbd.tree.types import PRIORITY, InvalidKey, InvalidPath, Path, Place

MAX_CHARACTER_BYTES: Final = 4
"""Bytes of UTF-8."""
_SURELY_SHORT = MAX_KEY_BYTES // MAX_CHARACTER_BYTES
_NOT_IN_A_PATH = re.compile(r"[.#$\[\]\x00-\x1f\x7f]")
_ILLEGAL = re.compile(r"[/.#$\[\]\x00-\x1f\x7f]")


def check_key(key: str) -> str:
    """Return `key` if a child can have it, else raise `InvalidPath`."""
    if not key:
        raise InvalidPath("A key must not be empty.")
    if _ILLEGAL.search(key):
        raise InvalidKey(
            key, "is not allowed: keys must not contain . # $ [ ] / or control characters"
        )
    if len(key) > _SURELY_SHORT and len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidKey(key, f"is longer than {MAX_KEY_BYTES} bytes of UTF-8")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raise `InvalidPath` for the first of some keys that no child can have."""
    # One search over all keys is several times faster than one search for each.
    text = "".join(keys)
    are_short = len(text) <= _SURELY_SHORT or max(map(len, keys)) <= _SURELY_SHORT
    if not (are_short and all(keys)) or _ILLEGAL.search(text):
        for key in keys:
            check_key(key)


def check_depth(path: Path) -> Path:
    """Return `path` if it has at most `MAX_DEPTH` keys, else raise `InvalidPath`."""
    if len(path) > MAX_DEPTH:
        raise InvalidPath(f"The path is deeper than {MAX_DEPTH} keys.")
    return path


def make_place(keys: Sequence[str]) -> Place:
    """Return the place that keys from the root name; a last key `.priority` names a priority.

    Raises `InvalidPath`.
    """
    is_priority = bool(keys) and keys[-1] == PRIORITY
    if is_priority:
        keys = keys[:-1]
    check_keys(keys)
    path = tuple(keys)
    return Place(path if len(path) <= MAX_DEPTH else check_depth(path), is_priority)


def parse_relative(text: str, above: Path = ()) -> Place:
    """Parse a slash path as PATCH keys carry it, with or without a leading slash.

    Returns the place that it names below the path `above`. Raises `InvalidPath`.
    """
    keys = [segment for segment in text.split("/") if segment]
    if keys and len(text) <= _SURELY_SHORT and not _NOT_IN_A_PATH.search(text):
        return Place(check_depth((*above, *keys)))
    place = make_place(keys)  # which finds what is wrong, or a priority
    if not place.path and not place.is_priority:
        raise InvalidPath("A key must not be empty.")
    return Place(check_depth(above + place.path), place.is_priority)


def parse_child(text: str) -> Path:
    """Parse a slash path that names a node below another, such as `a/b`; raise `InvalidPath`.

    It is not empty and names no priority.
    """
    place = parse_relative(text)
    if place.is_priority:
        raise InvalidPath(f"{PRIORITY} is not a child.")
    return place.path


def is_at_or_above(upper: Path, lower: Path) -> bool:
    """Return whether `upper` is `lower` or is above it."""
    return lower[: len(upper)] == upper


def format_path(path: Path) -> str:
    """Return a path as events show it: `/` for the root, else `/a/b`."""
    return "/" + "/".join(path)


KeyRank: TypeAlias = tuple[int, int, str]
ValueRank: TypeAlias = tuple[int, Any]

BELOW_ALL: ValueRank = (-1, 0)
ABOVE_ALL: ValueRank = (6, 0)
"""Ranks before and after those of all values."""
SAME_RANK: ValueRank = (0, 0)
"""The rank of every child in a query by key: that of nothing."""

INT_TAG = 0x02
TEXT_TAG = 0x03
TEXT_END = b"\x00"
BEYOND = b"\x04"
"""Appended to an encoded path, it makes an upper bound of all descendants."""
INT_BYTES = 6
"""Bytes of every encoded integer: the tag, four of its number, one of how it is written."""

_INT_TAG = bytes((INT_TAG,))
_TEXT_TAG = bytes((TEXT_TAG,))
_INTEGER = re.compile(r"-?[0-9]{1,10}|0[0-9]{10}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_LOW, _HIGH = -(2**31), 2**31 - 1
_FIELDS = struct.Struct(">xIB")
_SPELLINGS = 256
_NUMBERS = {int, float}
_STRINGS = {str}
_LOWEST_RANK = _LOW * _SPELLINGS


def as_index(key: str) -> int | None:
    """Return the position in an array that a key names: an integer from 0 in canonical form."""
    if key[-1:] > "9" or not _INDEX.fullmatch(key):
        return None
    number = int(key)
    return number if number <= _HIGH else None


def are_indices(encoded: Sequence[bytes]) -> bool:
    """Return whether encoded integers, in order, are all ones that `as_index` accepts."""
    if len(set(b"".join(encoded)[INT_BYTES - 1 :: INT_BYTES])) == 1:
        # Of one length, like the first and the last, so none of them has a leading zero.
        encoded = (encoded[0], encoded[-1])
    return all(as_index(_decode_integer(each)) is not None for each in encoded)


def rank_key(key: str) -> KeyRank:
    """Return a tuple that sorts as the key sorts."""
    rank = _rank_integer(key)
    return (1, 0, key) if rank is None else (0, rank, "")


def sort_keys(keys: Collection[str]) -> list[str]:
    """Return the keys in order; many are sorted with pauses."""
    integers, texts = {}, []
    for key in keys if len(keys) <= PAUSE_AFTER else paused(keys):
        rank = _rank_integer(key)
        if rank is None:
            texts.append(key)
        else:
            integers[key] = rank
    texts.sort()
    return [*sorted(integers, key=integers.__getitem__), *texts]


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


def rank_values(values: Sequence[object]) -> list[ValueRank]:
    """Return the rank of each value; fastest if all are numbers, or all are strings."""
    kinds = set(map(type, values))
    if kinds <= _NUMBERS:
        return [(3, value) for value in values]
    if kinds == _STRINGS:
        return [(4, value) for value in values]
    return [rank_value(value) for value in values]


def encode_key(key: str) -> bytes:
    """Encode one key; no encoding is a prefix of another."""
    rank = _rank_integer(key)
    if rank is None:
        return _TEXT_TAG + key.encode() + TEXT_END
    return _INT_TAG + (rank - _LOWEST_RANK).to_bytes(INT_BYTES - 1, "big")


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
            stop = at + INT_BYTES
            if stop > end:
                break
            keys.append(_decode_integer(encoded, at))
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


_VALUE_TAG: Final = 0x10
_NUMBER: Final = struct.Struct(">QH")
_DOUBLE: Final = struct.Struct(">d")
_BITS: Final = struct.Struct(">Q")
_SIGN: Final = 1 << 63
_STRING_END: Final = b"\x00\x00"


def decode_value(encoded: bytes, at: int = 0) -> tuple[ValueRank, int]:
    """Return the rank of a value that `encode_value` encoded, and where it ends."""
    rank = encoded[at] - _VALUE_TAG
    start = at + 1
    if rank == 3:
        return (3, _decode_number(encoded, start)), start + _NUMBER.size
    if rank == 4:
        end = encoded.index(_STRING_END, start)
        return (4, encoded[start:end].replace(b"\x00\xff", b"\x00").decode()), end + 2
    return (rank, 0), start


def ends_of_values(encoded: Sequence[bytes], at: int, most: int) -> list[int]:
    """Return where values that begin at a place end; 0 for one that has more than `most` bytes.

    They are in order. There is at least one.
    """
    first, last = encoded[0][at] - _VALUE_TAG, encoded[-1][at] - _VALUE_TAG
    if first == last != 4:  # all between have the same rank, so they are as long
        return [at + 1 + (_NUMBER.size if first == 3 else 0)] * len(encoded)
    return [_end_of_value(each, at, most) for each in encoded]


def _end_of_value(encoded: bytes, at: int, most: int) -> int:
    rank = encoded[at] - _VALUE_TAG
    if rank == 4:
        end = encoded.find(_STRING_END, at + 1, at + most)
        return end + len(_STRING_END) if end >= 0 else 0
    return at + 1 + (_NUMBER.size if rank == 3 else 0)


def _decode_number(encoded: bytes, at: int) -> int | float:
    ordered, distance = _NUMBER.unpack_from(encoded, at)
    bits = ordered ^ (_SIGN if ordered & _SIGN else 0xFFFFFFFFFFFFFFFF)
    double: float = _DOUBLE.unpack(_BITS.pack(bits))[0]
    return int(double) + distance - 0x8000 if double.is_integer() else double


def _rank_integer(key: str) -> int | None:
    """Return the rank of a key that reads as a 32-bit integer, None for text.

    It is the number times `_SPELLINGS`, plus a number for the spelling: twice the length, and one
    more without a sign. Equal numbers of equal length differ at most in the sign of a zero, and `-`
    sorts before a digit.
    """
    if key[-1:] > "9" or not _INTEGER.fullmatch(key):
        return None
    number = int(key)
    if not _LOW <= number <= _HIGH:
        return None
    return number * _SPELLINGS + 2 * len(key) + (key[0] != "-")


def _decode_integer(encoded: bytes, at: int = 0) -> str:
    distance, spelling = _FIELDS.unpack_from(encoded, at)
    number = distance + _LOW
    canonical = str(number)
    if spelling == 2 * len(canonical) + (number >= 0):
        return canonical
    length, is_unsigned = divmod(spelling, 2)
    digits = str(abs(number))
    return digits.zfill(length) if is_unsigned else "-" + digits.zfill(length - 1)


ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_RANDOM_BYTES = 9
_RANDOM_BITS = 8 * _RANDOM_BYTES
_ID_BYTES = 15
"""Each character has six of the bits, as those of base64 have (RFC 4648, section 4)."""
_ID_MASK = (1 << 8 * _ID_BYTES) - 1
_FROM_BASE64: Final = bytes.maketrans(
    (ascii_uppercase + ascii_lowercase + digits + "+/").encode(), ALPHABET.encode()
)


class PushIds:
    """Makes strictly increasing ids."""

    def __init__(self, entropy: Callable[[int], bytes], used_through: Callable[[], int]) -> None:
        """Make ids later than the millisecond that `used_through` returns, negative for none.

        It is called once, when the first id is needed. `entropy` returns the given number of random
        bytes.
        """
        self._entropy = entropy
        self._used_through = used_through
        self._last: int | None = None  # the latest id, if it was made here and none is later

    @cached_property  # each write stores it
    def latest_ms(self) -> int:
        """A millisecond since 1970 that no id so far is later than; negative before the first."""
        return self._used_through()

    def pass_over(self, used_ms: int) -> None:
        """Make ids later than a millisecond which others may have made ids in."""
        # Unless it is still to be read, which then finds what others have used.
        if "latest_ms" in vars(self) and used_ms >= self.latest_ms:
            self.latest_ms = used_ms
            self._last = None

    def next(self, now_ms: int) -> str:
        """Return an id greater than all before; `now_ms` is in milliseconds since 1970."""
        latest_ms, last = self.latest_ms, self._last
        if last is None or now_ms > latest_ms:
            # After those of others it is random, too: they may all make the next one.
            random = int.from_bytes(self._entropy(_RANDOM_BYTES), "big")
            last = max(now_ms, latest_ms + 1) << _RANDOM_BITS | random
        else:
            last += 1
        self._last, self.latest_ms = last, last >> _RANDOM_BITS
        return _encode_push_id(last)


def is_later(push_id: str, used_ms: int) -> bool:
    """Return whether an id is later than every id that can have been made in a millisecond."""
    return push_id >= _encode_push_id(used_ms + 1 << _RANDOM_BITS)


def _encode_push_id(number: int) -> str:
    text = b2a_base64((number & _ID_MASK).to_bytes(_ID_BYTES, "big"), newline=False)
    return text.translate(_FROM_BASE64).decode("ascii")
