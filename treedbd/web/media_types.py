"""Which media type a client prefers (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from treedbd.web.headers import Headers, joined

MAX_ACCEPT_CHARACTERS: Final = 1024
"""A longer field is not parsed: browsers send less than 200."""

_HTML: Final = ("text/html", "text/html;charset=utf-8")


def prefers_html(headers: Headers, other: str) -> bool:
    """Return whether a client prefers HTML to the media type `other`; a tie is no preference."""
    accepted = joined(headers, b"accept")
    if accepted is None or len(accepted) > MAX_ACCEPT_CHARACTERS:
        return False
    return _prefers_html(accepted, other)


@lru_cache(128)
def _prefers_html(accepted: str, other: str) -> bool:
    ranges = parse_accept_header(accepted, MIMEAccept)
    return max(map(ranges.quality, _HTML)) > ranges.quality(other)
