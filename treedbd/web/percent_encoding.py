"""Percent-encoding of paths and query strings (RFC 3986, section 2.1), decoded strictly."""

from __future__ import annotations

import re

_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class BadEncoding(ValueError):
    """Bytes that do not decode to text; `problem` says why, from the verb on."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def decode(raw: bytes) -> str:
    """Return the text of percent-encoded UTF-8; raise `BadEncoding`."""
    if b"%" in raw:
        if _BROKEN.search(raw):
            raise BadEncoding("holds a % without two hexadecimal digits")
        raw = decode_leniently(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadEncoding("is not UTF-8") from None


def decode_leniently(raw: bytes) -> bytes:
    """Return the bytes of percent-encoded ones; a broken escape stays as it is."""
    return _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw)
