"""Indexes: what they are called, and the keys of their rows.

An *index* is declared by rules: for all collections whose path matches a pattern, the children are
to be kept in one order. Each child of such a collection has one *entry* in the index, also one in
which nothing is at the path of the order. Only spread collections have entries (see `nodes`).

The key of an entry, all parts in the encodings of `tree.path`:

    INDEX_FIRST   one byte, above every row of the tree
    8 bytes       the identifier of the index
    …             the path of the collection, at most `COLLECTION_BYTES`
    PATH_END      one byte
    …             what the child is ordered by
    …             the key of the child

So the entries of a collection are one range, in the order of a query by that index, and so are the
entries below a path. A value or key that is too long for a row key is cut: a cut value keeps its
first `VALUE_BYTES` bytes, a cut key its first `CHILD_BYTES` bytes and a digest. Then entries that
are equal up to there are in no certain order, and the content of the entry holds the whole key.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import orjson

from treedbd.store.rows import decode_key, end_of_key
from treedbd.tree.path import BEYOND, ValueRank, encode_key, encode_path, encode_value
from treedbd.tree.query import BY_PRIORITY, BY_VALUE, Order
from treedbd.tree.types import Path
from treedbd.tree.value import compact

INDEX_FIRST: Final = b"\x05"
INDEX_END: Final = b"\x06"
"""All entries of all indexes are in the range from the one to the other."""
STATE_KEY: Final = INDEX_END
"""The key of the one row that says which indexes there are (`index_states`)."""
USAGE_KEY: Final = b"\x06u"
"""The key of the one row that says how much the database holds (`usage`)."""
DISCONNECT_FIRST: Final = b"\x06d"
DISCONNECT_END: Final = b"\x06e"
"""All writes that are kept for the end of a session are in this range (`disconnect_rows`)."""
COLLECTION_BYTES: Final = 240
"""A collection whose encoded path is longer has no entries; queries there read all children."""
VALUE_BYTES: Final = 100
CHILD_BYTES: Final = 100
PATH_END: Final = b"\x01"
_ID_BYTES: Final = 8
_DIGEST_BYTES: Final = 16
_VALUE_TAG: Final = 0x10
_NUMBER: Final = struct.Struct(">QH")
_STRING_END: Final = b"\x00\x00"
_SIGN: Final = 1 << 63

Pattern: TypeAlias = tuple[str | None, ...]
"""The path of collections; None stands for any key."""


@attrs.frozen
class ChildIndex:
    """An index: the order in which the children of all collections of a pattern are kept."""

    pattern: Pattern
    order: Order
    identifier: bytes = attrs.field(init=False, eq=False, repr=False)

    @identifier.default
    def _(self) -> bytes:
        identity: Any = [*self.pattern, self.name]
        return blake2b(compact([identity]), digest_size=_ID_BYTES).digest()

    @property
    def name(self) -> str:
        """What `.indexOn` calls it."""
        if self.order == BY_VALUE:
            return ".value"
        return "$priority" if self.order == BY_PRIORITY else "/".join(self.order.path)

    @property
    def range(self) -> tuple[bytes, bytes]:
        """The range of all its entries."""
        return INDEX_FIRST + self.identifier, INDEX_FIRST + self.identifier + BEYOND

    def matches(self, path: Path) -> bool:
        """Return whether a path is that of a collection of this index."""
        return len(path) == len(self.pattern) and all(
            wanted is None or wanted == key for wanted, key in zip(self.pattern, path, strict=True)
        )

    def below(self, path: Path) -> tuple[bytes, bytes]:
        """Return the range of the entries of all collections at or below a path."""
        low = INDEX_FIRST + self.identifier + encode_path(path)
        return low, low + BEYOND

    def collection(self, path: Path) -> bytes | None:
        """Return what the keys of all entries of a collection begin with, None if it has none."""
        encoded = encode_path(path)
        if len(encoded) > COLLECTION_BYTES:
            return None
        return INDEX_FIRST + self.identifier + encoded + PATH_END


class Entry(NamedTuple):
    """One entry: the child, and what it is ordered by.

    `rank` is None if the value was cut. With `is_cut`, entries that begin with the same bytes up to
    `tie` of their keys are in no certain order.
    """

    child: str
    rank: ValueRank | None
    is_cut: bool
    tie: int


def encode_entry(collection: bytes, value: object, child: str) -> tuple[bytes, bytes]:
    """Return the key and the content of an entry.

    `collection` is what `ChildIndex.collection` returns; `value` is a leaf, `CONTAINER` or None.
    """
    encoded, key = encode_value(value), encode_key(child)
    is_value_cut, is_key_cut = len(encoded) > VALUE_BYTES, len(key) > CHILD_BYTES
    if not is_value_cut and not is_key_cut:
        return collection + encoded + key, b""
    if is_value_cut:
        encoded = encoded[:VALUE_BYTES]
    if is_key_cut:
        digest = blake2b(key, digest_size=_DIGEST_BYTES).hexdigest().encode()
        key = key[:CHILD_BYTES] + digest + b"\x00"
    return collection + encoded + key, compact([child, is_value_cut])


def decode_entry(collection: bytes, key: bytes, content: bytes) -> Entry:
    """Return the entry with a key and content that `encode_entry` made."""
    at = len(collection)
    if content:
        child, is_value_cut = orjson.loads(content)
        if is_value_cut:
            return Entry(child, None, True, at + VALUE_BYTES)
        rank, end = _decode_value(key, at)
        is_cut = len(encode_key(child)) > CHILD_BYTES
        return Entry(child, rank, is_cut, end + CHILD_BYTES if is_cut else len(key))
    rank, end = _decode_value(key, at)
    return Entry(decode_key(key[end : end_of_key(key, end)]), rank, False, len(key))


def _decode_value(encoded: bytes, at: int) -> tuple[ValueRank, int]:
    """Return the rank of an encoded value that was not cut, and where it ends."""
    rank = encoded[at] - _VALUE_TAG
    start = at + 1
    if rank == 3:
        return (3, _decode_number(encoded, start)), start + _NUMBER.size
    if rank == 4:
        end = encoded.index(_STRING_END, start)
        return (4, encoded[start:end].replace(b"\x00\xff", b"\x00").decode()), end + 2
    return (rank, 0), start


def _decode_number(encoded: bytes, at: int) -> int | float:
    ordered, distance = _NUMBER.unpack_from(encoded, at)
    bits = ordered ^ (_SIGN if ordered & _SIGN else 0xFFFFFFFFFFFFFFFF)
    double: float = struct.unpack(">d", struct.pack(">Q", bits))[0]
    return int(double) + distance - 0x8000 if double.is_integer() else double
