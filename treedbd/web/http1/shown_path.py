"""The path of a request as a log may show it: without a query, and without what may be a token.

Both get into a path by mistake: a client encodes the whole target, some twice, or appends a token
to the path. So a path is also looked at as it is when everything in it has been decoded, as often
as that takes; a segment that hides something then is not shown at all.
"""

from __future__ import annotations

import re
from typing import Final

from treedbd.limits import MAX_DEPTH
from treedbd.web.percent_encoding import decode_leniently

HIDDEN: Final = "…"
MAX_DECODINGS: Final = 8
"""How often a segment is decoded; one that is encoded more often is hidden."""
MAX_SEGMENTS: Final = 2 * MAX_DEPTH
"""How many are looked at one by one; the others are shown or hidden together."""

# What begins a query, or was meant to: encoded by mistake, perhaps more than once.
_QUERY = re.compile(r"[?#;]|%(?:25)*(?:3F|23|3B)", re.IGNORECASE)
# Three or more parts of base64url, joined by dots, or a part that begins as a JSON object does in
# base64; each run of letters is read once.
_TOKEN = re.compile(
    r"(?<![\w-])(?:[\w-]{10,}+(?:\.[\w-]*+){2,}+|eyJ[\w-]{8,}+)",
    re.ASCII | re.IGNORECASE,
)
_PARAMETER = re.compile(rf"((?:auth|access_token)=)[^&/{HIDDEN}]+", re.IGNORECASE)


def shown_path(path: bytes) -> str:
    """Return the raw path of a request target for a log; what is not ASCII in it is escaped."""
    text = _QUERY.split(path.decode("ascii", "backslashreplace"), 1)[0]
    if _is_plain(text):
        return text
    shown = []
    for segment in text.split("/", MAX_SEGMENTS):
        plain = _decode_fully(segment)
        if plain is None or _QUERY.search(plain):
            shown.append(HIDDEN)
            break
        shown.append(_hide(segment) if plain == segment or _is_plain(segment) else HIDDEN)
    return "/".join(shown)


def hide_tokens(text: str) -> str:
    """Return text of a client without what may be a token in it."""
    return _hide(text)


def _is_plain(text: str) -> bool:
    """Return whether nothing has to be hidden of text, even when all of it is decoded."""
    plain = _decode_fully(text)
    return plain is not None and not _QUERY.search(plain) and _hide(plain) == plain


def _hide(text: str) -> str:
    return _PARAMETER.sub(rf"\1{HIDDEN}", _TOKEN.sub(HIDDEN, text))


def _decode_fully(text: str) -> str | None:
    """Return text without any percent-encoding, None if it is encoded too often."""
    raw = text.encode()
    for _ in range(MAX_DECODINGS):
        decoded = decode_leniently(raw)
        if decoded == raw:
            return raw.decode(errors="backslashreplace")
        raw = decoded
    return None
