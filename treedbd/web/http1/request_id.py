"""The id of a request: by it the log, a proxy before the daemon, and a client mean the same one.

It is the proxy's own if a trusted one sends `X-Request-Id`, and else a random one that nobody can
guess. It is made when it is first read.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from treedbd.web.headers import Header, Headers

REQUEST_ID: Final = b"X-Request-Id"
MAX_CHARACTERS: Final = 128
_FIELD: Final = REQUEST_ID.lower()
_VALID: Final = re.compile(rb"[A-Za-z0-9._-]{1,%d}" % MAX_CHARACTERS)
_RANDOM_BYTES: Final = 8


def request_id_of(request: Any) -> str:
    """Return the id of an `IHttp1Request`, another one each time unless a proxy has given it one.

    The request itself keeps it.
    """
    return choose_request_id(request.headers, is_trusted=is_trusted_peer(request))


def choose_request_id(headers: Headers, *, is_trusted: bool) -> str:
    """Return the id that a trusted sender gives to a request, else a new one."""
    if is_trusted and _FIELD in headers:
        (given, *others) = headers[_FIELD]
        if not others and _VALID.fullmatch(given):
            return given.decode("ascii")
    return os.urandom(_RANDOM_BYTES).hex()


def is_trusted_peer(request: object) -> bool:
    """Return whether a request came by a proxy whose word counts."""
    return bool(getattr(request, "came_by_trusted_proxy", False))


def id_header(request: Any) -> Header:
    """Return the header that shows the id of a request to its client."""
    request_id: str = request.request_id
    return REQUEST_ID, request_id.encode("ascii")
