"""Messages of clients, joined from pieces.

A client that sends a long message cuts it, after one frame that holds the number of the pieces in
digits. The frame `0` is its keep-alive. Of a message that is too long only the ends are kept, by
which the request that it holds can be answered.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

_COUNT: Final = re.compile(rb"[0-9]{1,6}")
END_BYTES: Final = 512
"""Bytes that are kept of each end of a message that is too long."""


class TooManyPieces(Exception):
    """A client announces more pieces than a message may have."""


@attrs.frozen
class OversizedMessage:
    """A message that is longer than allowed: its first and its last bytes."""

    first: bytes
    last: bytes


class PieceJoiner:
    """Joins the messages of one connection.

    Attributes:
        held_bytes: what is kept of the message that is not complete.

    """

    __slots__ = ("_is_oversized", "_max_bytes", "_max_pieces", "_missing", "_parts", "held_bytes")

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        """Join messages of at most so many bytes and pieces."""
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces
        self._missing = 0
        self._parts: list[bytes] | None = None
        self._is_oversized = False

    @property
    def is_joining(self) -> bool:
        """Whether pieces are still to come."""
        return self._missing > 0

    def add(self, text: bytes) -> bytes | OversizedMessage | None:
        """Add the text of a frame; return the message that it completes, if it does.

        Raises `TooManyPieces`.
        """
        if not self._missing:
            if _COUNT.fullmatch(text):
                self._begin(int(text))
                return None
            if len(text) > self._max_bytes:
                return OversizedMessage(text[:END_BYTES], text[-END_BYTES:])
            return text
        self._missing -= 1
        self._keep(text)
        return None if self._missing else self._join()

    def _begin(self, count: int) -> None:
        if count > self._max_pieces:
            raise TooManyPieces
        self._missing = count

    def _keep(self, text: bytes) -> None:
        parts = self._parts = [] if self._parts is None else self._parts
        if not text:
            return
        parts.append(text)
        self.held_bytes += len(text)
        if self.held_bytes > self._max_bytes or self._is_oversized:
            self._is_oversized = True
            joined = b"".join(parts)
            if len(joined) > 2 * END_BYTES:
                joined = joined[:END_BYTES] + joined[-END_BYTES:]
            self._parts = [joined]
            self.held_bytes = len(joined)

    def _join(self) -> bytes | OversizedMessage:
        joined, self._parts = b"".join(self._parts or ()), None
        is_oversized, self._is_oversized = self._is_oversized, False
        self.held_bytes = 0
        if is_oversized:
            return OversizedMessage(joined[:END_BYTES], joined[-END_BYTES:])
        return joined
