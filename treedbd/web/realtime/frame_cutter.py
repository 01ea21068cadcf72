"""Long frames of a client, cut into short ones before they are parsed.

A frame (RFC 6455, section 5.2) is parsed when all of it has come, and all of it is unmasked and
checked in one step. So a long data frame is handed on as the fragments into which the client might
have cut it (section 5.4): they have the same bytes, the same mask, and together the same meaning.
Everything else is handed on as it is, also what is not valid: it is refused where it is parsed.
"""

from __future__ import annotations

import struct
from typing import Final

from treedbd.limits import KIB

FRAGMENT_BYTES: Final = 16 * KIB
"""The longest payload that is handed on: a multiple of a mask, so that the mask still fits."""

_FIN: Final = 0x80
_RESERVED_OR_CONTROL: Final = 0x78
_MASKED: Final = 0x80
_MASK_BYTES: Final = 4
_ENDLESS: Final = 2**64
_LENGTHS: Final = {126: struct.Struct(">H"), 127: struct.Struct(">Q")}
"""How a length is printed that does not fit into the second byte, by what is there."""


class FrameCutter:
    """Cuts the frames of one client.

    Attributes:
        payload: bytes of the frame that has begun which have not come yet.

    """

    __slots__ = ("_fin", "_first", "_head", "_left", "_longest", "_mask", "payload")

    def __init__(self, longest: int) -> None:
        """Leave frames of more than `longest` bytes as they are: they are refused."""
        self.payload = 0
        self._longest = longest
        self._head = b""  # the beginning of the head of a frame
        self._left = 0  # bytes of the frame that was handed on last which have not come yet
        self._first = self._fin = 0  # of the next fragment, and of the last one
        self._mask = b""

    @property
    def held_bytes(self) -> int:
        """How many bytes are held of the head of a frame."""
        return len(self._head)

    def cut(self, data: bytes) -> bytes:
        """Return what is to be parsed of bytes that the client has sent."""
        parts: list[bytes] = []
        while data:
            if not self.payload:
                data = self._begin(self._head + data, parts)
                continue
            if not self._left:
                parts.append(self._begin_fragment())
            piece, data = data[: self._left], data[self._left :]
            parts.append(piece)
            self._left -= len(piece)
            self.payload -= len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _begin(self, data: bytes, parts: list[bytes]) -> bytes:
        """Read the head of a frame, or wait for the rest of it; return what follows it."""
        size, length = _read_head(data)
        self._head = b""
        if size and FRAGMENT_BYTES < length <= self._longest:
            size += _MASK_BYTES
            if len(data) >= size:
                self.payload = length
                self._first, self._fin = data[0] & ~_FIN, data[0] & _FIN
                self._mask = data[size - _MASK_BYTES : size]
                return data[size:]
            size = 0
        if not size:
            self._head = data
            return b""
        parts.append(data[:size])
        self.payload = self._left = length + (_MASK_BYTES if data[1] & _MASKED else 0)
        return data[size:]

    def _begin_fragment(self) -> bytes:
        """Return the head of the next fragment of a long frame."""
        size = self._left = min(self.payload, FRAGMENT_BYTES)
        first = self._first | (self._fin if size == self.payload else 0)
        self._first = 0  # the others are continuations
        if size < min(_LENGTHS):
            return bytes((first, _MASKED | size)) + self._mask
        return bytes((first, _MASKED | 126)) + _LENGTHS[126].pack(size) + self._mask


def _read_head(data: bytes) -> tuple[int, int]:
    """Return the bytes of a head without its mask, and the length of the payload.

    They are 0 if too little has come. What is not a data frame, or is not valid, has no length that
    counts: it is handed on as it comes.
    """
    if len(data) < 2:
        return 0, 0
    length = data[1] & ~_MASKED
    longer = _LENGTHS.get(length)
    if longer is None:
        return 2, length
    if data[0] & _RESERVED_OR_CONTROL or not data[1] & _MASKED:
        return 2, _ENDLESS
    size = 2 + longer.size
    return (size, longer.unpack_from(data, 2)[0]) if len(data) >= size else (0, 0)
