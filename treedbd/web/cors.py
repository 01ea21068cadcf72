"""Cross-origin resource sharing: which pages may read responses (the Fetch standard, section 3.2).

Cookies never identify a caller, so it is safe to let every origin read.
"""

from __future__ import annotations

from typing import Final

from treedbd.http1.headers import Header, Headers, first

ANY_ORIGIN: Final = "*"

_EXPOSED: Final = (b"Access-Control-Expose-Headers", b"ETag, Retry-After")
_ANY_MAY_READ: Final = ((b"Access-Control-Allow-Origin", b"*"), _EXPOSED)
_VARY: Final = (b"Vary", b"Origin")
_PREFLIGHT_S: Final = b"600"


class Cors:
    """The headers for the configured origins.

    Attributes:
        fixed: the headers of every response if all origins may read, else None.

    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        """Let pages of `origins` read responses; `*` means all."""
        self.fixed: Final = _ANY_MAY_READ if ANY_ORIGIN in origins else None
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers_for(self, headers: Headers) -> tuple[Header, ...]:
        """Return the headers of the response to a request with these headers."""
        if self.fixed is not None:
            return self.fixed
        origin = headers.get(b"origin", [b""])[0]
        if origin not in self._origins:
            return (_VARY,)
        return (_VARY, (b"Access-Control-Allow-Origin", origin), _EXPOSED)

    def preflight_headers(self, headers: Headers, allowed: bytes) -> tuple[Header, ...]:
        """Return what the response to OPTIONS grants; `allowed` are the methods of the resource."""
        granted: list[Header] = [(b"Allow", allowed)]
        if b"access-control-request-method" in headers:
            granted.append((b"Access-Control-Allow-Methods", allowed))
            granted.append((b"Access-Control-Max-Age", _PREFLIGHT_S))
            wanted = first(headers, b"access-control-request-headers")
            if wanted:
                granted.append((b"Access-Control-Allow-Headers", wanted.encode("latin-1")))
        return tuple(granted)
