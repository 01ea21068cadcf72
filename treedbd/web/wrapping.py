"""What is around the JSON of a response: a call of a JSONP function, the headers of a download."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

from treedbd.http1.headers import Header
from treedbd.web.response import JSON_TYPE, SCRIPT_TYPE

_NOT_IN_A_FILE_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")
_NOT_QUOTABLE = re.compile(r"[^ !#$&-\[\]-~]")
"""Some clients decode a `%` in a plain file name, others do not (RFC 6266, appendix D)."""


class Wrapping(NamedTuple):
    """What precedes and follows the JSON of a response, and the headers that say so."""

    before: bytes
    after: bytes
    headers: tuple[Header, ...]


def wrap(callback: str | None, download: str | None) -> Wrapping:
    """Return how JSON is wrapped for a read with these parameters."""
    headers = () if download is None else (disposition(download),)
    if callback is None:
        return Wrapping(b"", b"", (JSON_TYPE, *headers))
    return Wrapping(b"/**/%s(" % callback.encode(), b");", (SCRIPT_TYPE, *headers))


def disposition(file_name: str) -> Header:
    """Return the header that makes a response a download (RFC 6266)."""
    name = _NOT_IN_A_FILE_NAME.sub("", file_name)
    if not name:
        return (b"Content-Disposition", b"attachment")
    plain = _NOT_QUOTABLE.sub("_", name)
    content = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    return (b"Content-Disposition", content.encode())
