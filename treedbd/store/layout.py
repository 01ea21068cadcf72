"""Where rows lie: the geometry of row keys. Nothing here reads or writes a row.

Every row of the tree has a key that is empty or begins with one of the tags of `tree.order`, so
the whole tree is the range from `FIRST` to `END`. Row keys are at most `KEY_BYTES` long; `nodes`
tells what becomes of longer ones.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.tree.order import (
    BEYOND,
    INT_TAG,
    TEXT_END,
    TEXT_TAG,
    decode_path,
    encode_key,
    rank_key,
)
from treedbd.tree.path import Path

KEY_BYTES: Final = 480
"""No row's key is longer: what every engine that was considered can index."""
SPREAD_BYTES: Final = 470
"""A container whose own key is longer is never spread: too little would tell its children apart."""

FIRST: Final = b""
END: Final = BEYOND
_LOWEST_TAG: Final = bytes((INT_TAG,))
_TEXT: Final = bytes((TEXT_TAG,))
_INT_BYTES: Final = 5


@attrs.frozen
class Span:
    """Which children of a container to read, and from which end.

    Reading begins beyond the key `after`, or at the key `at`, in the direction of reading; with
    neither at the first child, or at the last one with `reverse`.
    """

    after: str | None = None
    at: str | None = None
    reverse: bool = False

    def __attrs_post_init__(self) -> None:
        if self.after is not None and self.at is not None:
            raise ValueError("A span begins after a key or at one, not both.")

    def holds(self, key: str) -> bool:
        """Tell whether a child called `key` is in the span."""
        edge = self.at if self.after is None else self.after
        if edge is None:
            return True
        here, there = rank_key(key), rank_key(edge)
        if here == there:
            return self.after is None
        return (here < there) is self.reverse

    def bounds(self, container: bytes) -> tuple[bytes, bytes]:
        """Return the range of row keys of the span's children of `container`, an encoded path.

        Where the edge falls into a bucket, the range takes all of it: sort out by `holds`.
        """
        low, high = below(container)
        edge = self.at if self.after is None else self.after
        if edge is None:
            return low, high
        key, has_nul = _edge_key(container, edge)
        takes_edge = self.reverse if has_nul else self.after is None
        if len(key) > KEY_BYTES:
            key, takes_edge = key[:KEY_BYTES], True
        if self.reverse:
            return low, key + BEYOND if takes_edge else key
        return key if takes_edge else key + BEYOND, high


ALL: Final = Span()


def below(container: bytes) -> tuple[bytes, bytes]:
    """Return the range of the row keys strictly below an encoded path."""
    return container + _LOWEST_TAG, container + BEYOND


def end_of_key(encoded: bytes, at: int) -> int:
    """Return where the encoded key that begins at `at` ends, 0 where it is cut off."""
    if encoded[at] == INT_TAG:
        end = at + _INT_BYTES
        return end if end <= len(encoded) else 0
    return encoded.find(TEXT_END, at) + 1


def name_of(segment: bytes) -> str:
    """Return the key that one encoded key stands for."""
    return decode_path(segment)[0][0]


def shared_keys(path: Path, key: bytes) -> int:
    """Return how many keys of `path`, from the root, the row key `key` begins with."""
    end = 0
    for count, name in enumerate(path):
        segment = encode_key(name)
        if not key.startswith(segment, end):
            return count
        end += len(segment)
    return len(path)


def _edge_key(container: bytes, edge: str) -> tuple[bytes, bool]:
    """Return the key of the child `edge`, uncut, and whether a NUL followed.

    An edge may be any string; one with a NUL in it sorts directly behind its beginning, taken as
    text, since no child's key has so low a character.
    """
    head, has_nul, _ = edge.partition("\x00")
    segment = _TEXT + head.encode() + TEXT_END if has_nul else encode_key(edge)
    return container + segment, bool(has_nul)
