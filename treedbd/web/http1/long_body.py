"""A long body in memory, in segments.

A single buffer that grows to hundreds of megabytes is moved each time that it grows, and while the
system does that nobody is answered.
"""

from __future__ import annotations

from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedIOBase
from typing import Final

from treedbd.limits import KIB

SEGMENT_BYTES: Final = 256 * KIB


class LongBody(BufferedIOBase):
    """A binary file in memory, to which is only appended, whatever position it is read at."""

    def __init__(self) -> None:
        """Begin without content."""
        self._segments: list[bytearray] = []
        self._size = 0
        self._at = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]  # of bytes only
        """Append to the end, which becomes the position."""
        rest = memoryview(data)
        while rest:
            if self._size % SEGMENT_BYTES == 0:
                self._segments.append(bytearray())
            part = rest[: SEGMENT_BYTES - self._size % SEGMENT_BYTES]
            self._segments[-1] += part
            self._size += len(part)
            rest = rest[len(part) :]
        self._at = self._size
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, all that are left without a size."""
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < end:
            number, begin = divmod(self._at, SEGMENT_BYTES)
            part = self._segments[number][begin : begin + end - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Set the position, and return it."""
        self._at = max(0, offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True
