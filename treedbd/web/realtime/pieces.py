"""Messages of clients, joined from pieces.

A client that sends a long message cuts it, after one frame that holds the number of the pieces in
digits. The frame `0` is its keep-alive. A frame may come in fragments, too. What is long is not
joined: it is kept in parts. Of a message that is too long only the ends are kept, by which the
request that it holds can be answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

import attrs

from treedbd.limits import KIB

_COUNT: Final = re.compile(rb"[0-9]{1,6}")
END_BYTES: Final = 512
"""Bytes that are kept of each end of a message that is too long."""
WHOLE_BYTES: Final = 320 * KIB
"""A longer message is kept in parts.

That is room for all disconnect writes that a session may have, and for the hashes with which
clients that keep much data on disk listen.
"""
PART_BYTES: Final = 64 * KIB
"""Short pieces are joined until they are so long together, so that a message has few parts."""
_LEAST_PART: Final = 4 * KIB


class TooManyPieces(Exception):
    """A client announces more pieces than a message may have."""


@attrs.frozen
class OversizedMessage:
    """A message that is longer than allowed: its first and its last bytes."""

    first: bytes
    last: bytes


@attrs.frozen
class LongMessage:
    """A message of `size` bytes in parts."""

    parts: tuple[bytes, ...] = attrs.field(repr=False)
    size: int

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes between two positions."""
        at = 0
        for part in self.parts:
            end = at + len(part)
            if at >= start and end <= stop:
                yield part
            elif at < stop and end > start:
                yield part[max(0, start - at) : stop - at]
            at = end

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions."""
        return b"".join(self.pieces(start, stop))


Message: TypeAlias = bytes | LongMessage | OversizedMessage


class PieceJoiner:
    """Joins the messages of one connection.

    Attributes:
        held_bytes: what is kept of the message that is not complete.

    """

    __slots__ = (
        "_is_in_frame",
        "_is_oversized",
        "_max_bytes",
        "_max_pieces",
        "_missing",
        "_parts",
        "_tail",
        "held_bytes",
    )

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        """Join messages of at most so many bytes and pieces."""
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces
        self._missing = 0
        self._is_in_frame = False
        self._parts: list[bytes] | None = None
        self._tail: bytearray | None = None  # what follows the parts
        self._is_oversized = False

    @property
    def is_joining(self) -> bool:
        """Whether pieces or fragments are still to come."""
        return self._missing > 0 or self._is_in_frame

    def add(self, text: bytes, *, is_end: bool = True) -> Message | None:
        """Add the text of a frame, or a part of it; return the message that it completes, if any.

        Raises `TooManyPieces`.
        """
        if not is_end:
            self._is_in_frame = True
            self._keep(text)
            return None
        if not self._missing:
            message: Message | None = text
            if self._is_in_frame or len(text) > self._max_bytes:
                self._is_in_frame = False
                self._keep(text)
                message = self._join()
            if isinstance(message, bytes) and _COUNT.fullmatch(message):
                self._begin(int(message))
                return None
            return message
        self._is_in_frame = False
        self._missing -= 1
        self._keep(text)
        return None if self._missing else self._join()

    def _begin(self, count: int) -> None:
        if count > self._max_pieces:
            raise TooManyPieces
        self._missing = count

    def _keep(self, text: bytes) -> None:
        parts = self._parts = [] if self._parts is None else self._parts
        tail = self._tail = bytearray() if self._tail is None else self._tail
        self.held_bytes += len(text)
        if len(text) >= _LEAST_PART and not tail:
            parts.append(text)
        else:
            tail += text
            if len(tail) >= PART_BYTES:
                parts.append(bytes(tail))
                tail.clear()
        if self.held_bytes > self._max_bytes or self._is_oversized:
            self._is_oversized = True
            self._keep_ends(parts, tail)

    def _keep_ends(self, parts: list[bytes], tail: bytearray) -> None:
        """Forget the middle of what is kept."""
        if self.held_bytes <= 2 * END_BYTES:
            return
        first = b"".join((*parts[:1], tail[:END_BYTES]))[:END_BYTES]
        last = b"".join((*parts[-1:], tail))[-END_BYTES:]
        self._parts, self._tail = [], bytearray(first + last)
        self.held_bytes = 2 * END_BYTES

    def _join(self) -> Message:
        parts, tail = self._parts or [], self._tail or bytearray()
        size, is_oversized = self.held_bytes, self._is_oversized
        self._parts = self._tail = None
        self._is_oversized = False
        self.held_bytes = 0
        if size > WHOLE_BYTES and not is_oversized:
            return LongMessage((*parts, bytes(tail)), size)
        joined = b"".join((*parts, tail))
        if is_oversized:
            return OversizedMessage(joined[:END_BYTES], joined[-END_BYTES:])
        return joined
