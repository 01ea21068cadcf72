"""The header fields of a request, and what a server reads in them.

Fields are one plain dictionary (`Headers`). Two of them need more than a look-up: `Accept`, from
which the media type of a response is chosen (RFC 9110, section 12.5.1), and `Content-Encoding`,
the coding of a request body (section 8.4), which is decoded here too.

Decoding is incremental and stops at the limit, so a small body that would decode to gigabytes costs
what a body of that limit costs. A body is one gzip member or one zstd frame: of several, a body of
empty ones could hold a million.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from treedbd.caches import short_cache
from treedbd.errors import in_one_line
from treedbd.tree.types import InvalidData

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Header: TypeAlias = tuple[bytes, bytes]
"""Name and value of a field of a response."""

Headers: TypeAlias = Mapping[bytes, Sequence[bytes]]
"""The values of each field, by its name in lower case, in the order in which they came.

They are never changed: requests with the same head share them."""


def first(headers: Headers, name: bytes) -> str | None:
    """Return the first value of a field as text, None if the field is absent."""
    values = headers.get(name)
    return values[0].decode("latin-1") if values else None


def joined(headers: Headers, name: bytes) -> str | None:
    """Return all values of a list field, joined by commas; None if the field is absent."""
    values = headers.get(name)
    return b", ".join(values).decode("latin-1") if values else None


def is_true(headers: Headers, name: bytes) -> bool:
    """Return whether the first value of a field is `true`, in either case."""
    values = headers.get(name)
    return values is not None and values[0].lower() == b"true"


MAX_ACCEPT_CHARACTERS: Final = 1024
"""A longer field is not parsed: browsers send less than 200."""

EVENTS: Final = b"text/event-stream"

_NO_WEIGHT: Final = re.compile(rb"q=0(\.0*)?")
_HTML: Final = ("text/html", "text/html;charset=utf-8")


def prefers_html(headers: Headers, other: str) -> bool:
    """Return whether a client prefers HTML to the media type `other`; False for a tie."""
    accepted = joined(headers, b"accept")
    if accepted is None or len(accepted) > MAX_ACCEPT_CHARACTERS:
        return False
    return _prefers_html(accepted, other)


@short_cache(128)
def _prefers_html(accepted: str, other: str) -> bool:
    ranges = parse_accept_header(accepted, MIMEAccept)
    return max(map(ranges.quality, _HTML)) > ranges.quality(other)


def accepts_events(headers: Headers) -> bool:
    """Return whether `Accept` requests a stream by its media type.

    A weight of zero refuses the type; other weights make no difference.
    """
    accepted = b",".join(headers.get(b"accept", ())).lower()
    if EVENTS not in accepted:
        return False
    for media in accepted.split(b","):
        name, *parameters = (part.strip() for part in media.split(b";"))
        if name == EVENTS and not any(map(_NO_WEIGHT.fullmatch, parameters)):
            return True
    return False


Coding: TypeAlias = Literal["gzip", "zstd"]

ACCEPTED: Final[Header] = (b"Accept-Encoding", b"gzip, zstd")
"""What a response to a body in another coding says (RFC 9110, section 15.5.16)."""
ZSTD_WINDOW_LOG: Final = 23
"""The largest window of the coding zstd is 8 MiB (RFC 9659, section 3)."""

_CODINGS: Final[dict[str, Coding]] = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}
_NO_CODING: Final = frozenset({"", "identity"})
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_MAX_SHOWN_CHARACTERS: Final = 64


class UnsupportedEncoding(Exception):
    """A body in a content coding that is not decoded here, or in more than one."""

    def __init__(self, codings: str) -> None:
        """`codings` are those of the request, as it lists them."""
        shown = in_one_line(codings[:_MAX_SHOWN_CHARACTERS])
        super().__init__(f"The Content-Encoding {shown} is not supported: send gzip, zstd or none.")


class _Decoder(Protocol):
    """What the decompressors of both libraries have in common: those of zlib and of zstd."""

    @property
    def eof(self) -> bool:
        """Whether the end of the member or frame has been reached."""

    @property
    def unused_data(self) -> bytes:
        """What follows that end."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return the decoded bytes, `max_length` at most."""


def parse_coding(headers: Headers) -> Coding | None:
    """Return the content coding of a request, None for none; raise `UnsupportedEncoding`."""
    field = joined(headers, b"content-encoding")
    if field is None:
        return None
    names = [name for part in field.split(",") if (name := part.strip().lower()) not in _NO_CODING]
    if not names:
        return None
    coding = _CODINGS.get(names[0])
    if coding is None or len(names) > 1:
        raise UnsupportedEncoding(", ".join(names))
    return coding


def decode_body(body: bytes, coding: Coding, limit: int) -> bytes | None:
    """Return a body decoded, None if it has more than `limit` bytes then.

    Raises `InvalidData` for one that is not exactly one whole member or frame.
    """
    decoder = _make_decoder(coding)
    try:
        decoded = decoder.decompress(body, limit + 1)
    except (zlib.error, zstd.ZstdError):
        raise InvalidData(f"The body is not valid {coding}.") from None
    if len(decoded) > limit:
        return None
    if not decoder.eof:
        raise InvalidData(f"The body is not valid {coding}: its end is missing.")
    if decoder.unused_data:
        raise InvalidData(f"The body is not valid {coding}: something follows its end.")
    return decoded


def decode_pieces(sent: Iterator[bytes], coding: Coding, size: int) -> Iterator[bytes]:
    """Yield a body decoded, in pieces of at most `size` bytes; raise `InvalidData` as above."""
    decoder = _make_decoder(coding)
    while not decoder.eof:
        # Of what it was given zlib shows here what it had no room for; zstd keeps that, and says
        # whether it needs more.
        data: bytes = getattr(decoder, "unconsumed_tail", b"")
        if not data and getattr(decoder, "needs_input", True):
            data = next(sent, b"")
            if not data:
                raise InvalidData(f"The body is not valid {coding}: its end is missing.")
        try:
            piece = decoder.decompress(data, size)
        except (zlib.error, zstd.ZstdError):
            raise InvalidData(f"The body is not valid {coding}.") from None
        if piece:
            yield piece
    if decoder.unused_data or next(sent, b""):
        raise InvalidData(f"The body is not valid {coding}: something follows its end.")


def _make_decoder(coding: Coding) -> _Decoder:
    if coding == "gzip":
        return zlib.decompressobj(_GZIP_BITS)
    return zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
    )
