"""Which media types a client prefers and accepts (RFC 9110, section 12.5.1)."""

from __future__ import annotations

import re
from typing import Final

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from treedbd.caches import short_cache
from treedbd.web.headers import Headers, joined

MAX_ACCEPT_CHARACTERS: Final = 1024
"""A longer field is not parsed: browsers send less than 200."""

EVENTS: Final = b"text/event-stream"

_NO_WEIGHT: Final = re.compile(rb"q=0(\.0*)?")
_HTML: Final = ("text/html", "text/html;charset=utf-8")


def prefers_html(headers: Headers, other: str) -> bool:
    """Return whether a client prefers HTML to the media type `other`; a tie is no preference."""
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
