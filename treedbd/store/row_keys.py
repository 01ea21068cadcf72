"""The keys of rows, and ranges of them. Nothing here reads or writes a row.

Every row of the tree has a key that is empty or begins with one of the tags of `tree.path`, so
the whole tree is the range from `FIRST` to `END`. Row keys are at most `ROW_KEY_BYTES` long;
`nodes` says where children with longer ones are stored.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.tree.path import (
    BEYOND,
    INT_BYTES,
    INT_TAG,
    TEXT_END,
    TEXT_TAG,
    decode_path,
    encode_key,
    rank_key,
)
from treedbd.tree.types import Path
from treedbd.tree.value import compact

ROW_KEY_BYTES: Final = 480
"""No row key is longer: every engine that was considered can index keys of this length."""
SPREAD_BYTES: Final = 470
"""A container whose own key is longer is never spread: the rest could not distinguish children."""

FIRST: Final = b""
END: Final = BEYOND
LOWEST_TAG: Final = bytes((INT_TAG,))
_TEXT: Final = bytes((TEXT_TAG,))


@attrs.frozen
class Span:
    """Which children of a container to read, and from which end.

    Reading begins after the key `after`, or at the key `at`, in the direction of reading; with
    neither, at the first child, or with `reverse` at the last one.
    """

    after: str | None = None
    at: str | None = None
    reverse: bool = False

    def __attrs_post_init__(self) -> None:
        if self.after is not None and self.at is not None:
            raise ValueError("A span begins after a key or at one, not both.")

    def holds(self, key: str) -> bool:
        """Return whether a child with this key is in the span."""
        edge = self.at if self.after is None else self.after
        if edge is None:
            return True
        rank, edge_rank = rank_key(key), rank_key(edge)
        if rank == edge_rank:
            return self.after is None
        return (rank < edge_rank) is self.reverse

    def bounds(self, container: bytes) -> tuple[bytes, bytes]:
        """Return the range of row keys of the span's children of `container`, an encoded path.

        If the edge falls into a bucket, the range includes all of it; `holds` filters its members.
        """
        low, high = below(container)
        edge = self.at if self.after is None else self.after
        if edge is None:
            return low, high
        key, has_nul = _edge_key(container, edge)
        includes_edge = self.reverse if has_nul else self.after is None
        if len(key) > ROW_KEY_BYTES:
            key, includes_edge = key[:ROW_KEY_BYTES], True
        if self.reverse:
            return low, key + BEYOND if includes_edge else key
        return key if includes_edge else key + BEYOND, high


ALL: Final = Span()


def below(container: bytes) -> tuple[bytes, bytes]:
    """Return the range of the row keys strictly below an encoded path."""
    return container + LOWEST_TAG, container + BEYOND


def end_of_key(encoded: bytes, at: int) -> int:
    """Return where the encoded key that begins at `at` ends, 0 if it is cut off."""
    if encoded[at] == INT_TAG:
        end = at + INT_BYTES
        return end if end <= len(encoded) else 0
    return encoded.find(TEXT_END, at) + 1


def decode_key(segment: bytes) -> str:
    """Return the key that was encoded; `segment` is one encoded key."""
    if segment[0] == TEXT_TAG:  # most keys are
        return segment[1:-1].decode()
    return decode_path(segment)[0][0]


def print_key(segment: bytes) -> bytes:
    """Return an encoded key as JSON."""
    if segment[0] == INT_TAG or b'"' in segment or b"\\" in segment:
        return compact(decode_key(segment))
    return b'"%b"' % segment[1:-1]


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
    """Return the row key of the child `edge`, at its full length, and whether `edge` has a NUL.

    An edge may be any string. One with a NUL sorts as text, directly after the part before the NUL,
    since no child's key has so low a character; the row key is that of this part.
    """
    head, has_nul, _ = edge.partition("\x00")
    segment = _TEXT + head.encode() + TEXT_END if has_nul else encode_key(edge)
    return container + segment, bool(has_nul)
