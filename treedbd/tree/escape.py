"""Percent-encoding of addresses and query strings (RFC 3986, section 2.1), decoded strictly."""

from __future__ import annotations

import re

_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class BadEscape(ValueError):
    """Bytes that decode to no text; the message goes on where a sentence names what holds them."""


def decode_escaped(raw: bytes) -> str:
    """Return the text that percent-encoded UTF-8 stands for; raise `BadEscape`."""
    if b"%" in raw:
        if _BROKEN.search(raw):
            raise BadEscape("holds a % without two hexadecimal digits.")
        raw = unescape(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadEscape("is not UTF-8.") from None


def unescape(raw: bytes) -> bytes:
    """Return the bytes that percent-encoded ones stand for; a broken escape stays as it is."""
    return _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw)
