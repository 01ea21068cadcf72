"""Content codings of responses (RFC 9110, section 12.5.3): which one is accepted, and encoding.

Both codings are set to be fast: a piece of 64 KiB takes a millisecond or less, and saves most of
what JSON takes on its way. Long bodies are encoded piece by piece while they are sent.
"""

from __future__ import annotations

import re
import sys
import zlib
from typing import Final

from treedbd.caches import bounded_cache, short_cache
from treedbd.http1.headers import Coding, Header, Headers, joined
from treedbd.limits import KIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIN_BYTES: Final = KIB
"""Shorter bodies are sent as they are: their headers are as long."""

_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_GZIP_LEVEL: Final = 1
_ZSTD_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.window_log: 17,  # 128 KiB, which bounds the memory of a reply
}
_KNOWN: Final[tuple[Coding, ...]] = ("zstd", "gzip")
"""In the order of preference."""
_ACCEPTED = re.compile(
    r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?", re.IGNORECASE
)
_VARY: Final = b"Accept-Encoding"
_REMEMBERED: Final = 128


def choose_coding(headers: Headers) -> Coding | None:
    """Return the coding for a response to a request with these headers, None for none."""
    accepted = joined(headers, b"accept-encoding")
    return None if accepted is None else _choose(accepted)


@bounded_cache(_REMEMBERED)
def _choose(accepted: str) -> Coding | None:
    weights: dict[str, float] = {}
    for each in accepted.split(","):
        found = _ACCEPTED.fullmatch(each)
        if found is not None:
            weights[found[1].lower().removeprefix("x-")] = float(found[2] or 1)
    best: Coding | None = None
    least = weights.get("identity", 0.0)
    for coding in _KNOWN:
        weight = weights.get(coding, weights.get("*", 0.0))
        if weight > 0 and (weight > least or (best is None and weight == least)):
            best, least = coding, weight
    return best


@bounded_cache(_REMEMBERED)
def add_headers(headers: tuple[Header, ...], coding: Coding | None) -> tuple[Header, ...]:
    """Return headers of a response, with what a coding adds and that others may get another."""
    varies = [value for name, value in headers if name == b"Vary"]
    added: list[Header] = [(b"Vary", b", ".join([*varies, _VARY]))]
    if coding is not None:
        added.append((b"Content-Encoding", coding.encode()))
    return (*[header for header in headers if header[0] != b"Vary"], *added)


class GzipEncoder:
    """One gzip member."""

    def __init__(self) -> None:
        self._encoder = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_BITS)

    def encode(self, data: bytes) -> bytes:
        """Return what can be sent of the encoded bytes so far; it may be nothing."""
        return self._encoder.compress(data)

    def flush(self) -> bytes:
        """Return what is needed to decode all that was encoded so far."""
        return self._encoder.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        """Return the end of the encoded bytes."""
        return self._encoder.flush()


class ZstdEncoder:
    """One zstd frame."""

    def __init__(self) -> None:
        self._encoder = zstd.ZstdCompressor(options=_ZSTD_OPTIONS)

    def encode(self, data: bytes) -> bytes:
        """Return what can be sent of the encoded bytes so far; it may be nothing."""
        return self._encoder.compress(data)

    def flush(self) -> bytes:
        """Return what is needed to decode all that was encoded so far."""
        return self._encoder.flush(zstd.ZstdCompressor.FLUSH_BLOCK)

    def finish(self) -> bytes:
        """Return the end of the encoded bytes."""
        return self._encoder.flush(zstd.ZstdCompressor.FLUSH_FRAME)


def make_encoder(coding: Coding) -> GzipEncoder | ZstdEncoder:
    """Return an encoder for one body."""
    return GzipEncoder() if coding == "gzip" else ZstdEncoder()


@short_cache(_REMEMBERED)
def encode_short(body: bytes, coding: Coding) -> bytes:
    """Encode a short body; that of an answer that is sent often is encoded once."""
    encoder = make_encoder(coding)
    return encoder.encode(body) + encoder.finish()
