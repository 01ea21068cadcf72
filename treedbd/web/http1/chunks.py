"""Where a chunked body ends: its chunks and trailer are measured, not parsed (RFC 9112, 7.1)."""

from __future__ import annotations

import re
from typing import Final

from treedbd.limits import Limits
from treedbd.web.http1.errors import BODY_TOO_LARGE, HEADERS_TOO_LONG, ProtocolError, malformed

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\r\n]*)?\r\n")
_CHUNK_LINE_BYTES: Final = 1024


class ChunkFollower:
    """Follows one chunked body through the pieces in which it arrives.

    Attributes:
        has_ended: whether the empty line after the trailer was found.

    """

    def __init__(self, limits: Limits) -> None:
        """Begin before the first chunk; content and trailer are bounded by `limits`."""
        self.has_ended = False
        self._limits = limits
        self._remaining = 0
        self._content_bytes = 0
        self._trailer_bytes = 0
        self._in_trailer = False

    def follow(self, data: bytes, at: int) -> int:
        """Return how far the body reaches in `data`, from `at` on; raise `ProtocolError`.

        A line that is not whole is not followed; it begins `data` the next time.
        """
        while at < len(data) and not self.has_ended:
            if self._remaining:
                step = min(self._remaining, len(data) - at)
                self._remaining -= step
            elif not self._in_trailer:
                step = self._measure_chunk_line(data, at)
            else:
                step = self._measure_trailer(data, at)
                self.has_ended = step == 2
            if not step:
                break
            at += step
        return at

    def _measure_chunk_line(self, data: bytes, at: int) -> int:
        """Return the length of the line at `at` that begins a chunk, 0 if it is not whole."""
        line = _CHUNK_LINE.match(data, at)
        if line is None:
            if len(data) - at > _CHUNK_LINE_BYTES or data.find(b"\n", at) >= 0:
                raise malformed("A chunk does not begin with its size on a line that ends in CRLF.")
            return 0
        size = int(line[1], 16)
        self._content_bytes += size
        if self._content_bytes > self._limits.write_body_bytes:
            raise ProtocolError(BODY_TOO_LARGE)
        if size:
            self._remaining = size + 2
        else:
            self._in_trailer = True
        return line.end() - at

    def _measure_trailer(self, data: bytes, at: int) -> int:
        """Return the length of the trailer line at `at`, 0 if it is not whole."""
        end = data.find(b"\n", at) + 1
        if end and not data.endswith(b"\r\n", at, end):
            raise malformed("The trailer contains a line end without CR.")
        step = end - at if end else 0
        if self._trailer_bytes + (step or len(data) - at) > self._limits.header_bytes:
            raise ProtocolError(HEADERS_TOO_LONG)
        self._trailer_bytes += step
        return step
