"""Replies on their way out: the headers that every one carries, and the place that writes them."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from twisted.web.http import HTTPChannel
from twisted.web.server import Request

from treedbd.web.answer import ALLOWED, NO_CACHE, NO_SNIFF, NO_STORE, Header, Reply
from treedbd.web.head import Head, first, head_of

_EXPOSED: Final = (b"Access-Control-Expose-Headers", b"ETag")
_ANY_ORIGIN: Final = (b"Access-Control-Allow-Origin", b"*")
_VARY: Final = (b"Vary", b"Origin")
_BODILESS: Final = frozenset({204, 304})
_NOT_IN_A_FILE_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")
_NOT_QUOTABLE = re.compile(r"[^ !#$&-\[\]-~]")
"""Some clients decode a `%` in a plain file name, others do not (RFC 6266, appendix D)."""
_PREFLIGHT_S: Final = b"600"


class Sender:
    """Sends replies by the settings of one service."""

    def __init__(self, cors_origins: tuple[str, ...]) -> None:
        """Take the origins whose pages may read replies; `*` for all."""
        self._any = "*" in cors_origins
        self._origins = frozenset(origin.encode() for origin in cors_origins)
        open_to_all = (NO_SNIFF, _ANY_ORIGIN, _EXPOSED)
        self._cached = (*open_to_all, NO_CACHE)
        self._stored_never = (*open_to_all, NO_STORE)

    def send(self, request: Request, reply: Reply, *, no_store: bool = False) -> None:
        """Send a whole reply and finish the request."""
        headers = reply.headers + self.common_headers(request, no_store=no_store)
        lean_send = getattr(request, "send", None)
        if lean_send is not None:
            lean_send(reply.status, headers, reply.body)
            return
        write_head(request, reply.status, headers, len(reply.body))
        if request.method != b"HEAD" and reply.status not in _BODILESS:
            request.write(reply.body)
        request.finish()

    def prepare(self, request: Request, reply: Reply) -> bytes:
        """Set status and headers as Klein wants them set; return the body for it to write."""
        headers = reply.headers + self.common_headers(request, no_store=True)
        write_head(request, reply.status, headers, len(reply.body))
        return reply.body

    def common_headers(self, request: Request, *, no_store: bool) -> tuple[Header, ...]:
        """Return the headers that go with every reply to this request."""
        if self._any:
            return self._stored_never if no_store else self._cached
        cache = NO_STORE if no_store else NO_CACHE
        return (NO_SNIFF, _VARY, cache, *self._origin_headers(head_of(request)))

    def preflight(self, request: Request, allowed: bytes = ALLOWED) -> Reply:
        """Return the reply to OPTIONS: what a page from elsewhere may ask for.

        `allowed` are the methods of the place.
        """
        headers: list[Header] = [(b"Allow", allowed)]
        head = head_of(request)
        if b"access-control-request-method" in head:
            headers.append((b"Access-Control-Allow-Methods", allowed))
            headers.append((b"Access-Control-Max-Age", _PREFLIGHT_S))
            wanted = first(head, b"access-control-request-headers")
            if wanted:
                headers.append((b"Access-Control-Allow-Headers", wanted.encode("latin-1")))
        return Reply(204, b"", tuple(headers))

    def _origin_headers(self, head: Head) -> tuple[Header, ...]:
        origin = head.get(b"origin", [b""])[0]
        if origin not in self._origins:
            return ()
        return ((b"Access-Control-Allow-Origin", origin), _EXPOSED)


def headers_for_all(cors_origins: tuple[str, ...]) -> tuple[Header, ...]:
    """Return the headers that let pages from anywhere read a reply; none where not all may."""
    return (_ANY_ORIGIN, _EXPOSED) if "*" in cors_origins else ()


def write_head(
    request: Request, status: int, headers: tuple[Header, ...], length: int | None
) -> None:
    """Set the status and headers of a request that is written in the ordinary way.

    `length` is that of the body in bytes, None where it is not known.
    """
    request.setResponseCode(status)
    request.responseHeaders.removeHeader(b"server")
    for name, content in headers:
        request.setHeader(name, content)
    if status in _BODILESS:
        request.responseHeaders.removeHeader(b"content-type")
    elif length is not None:
        request.setHeader(b"Content-Length", b"%d" % length)


def close_behind(request: Request) -> None:
    """Let the connection end with the reply, whose head is not written yet."""
    request.setHeader(b"Connection", b"close")
    if isinstance(request.channel, HTTPChannel):  # that of a host program does not look there
        request.channel.persistent = False


def abort(request: Request) -> None:
    """Drop the connection of a request."""
    transport: Any = request.transport
    transport.abortConnection()


def disposition(file_name: str) -> Header:
    """Return the header that makes a reply a download (RFC 6266)."""
    name = _NOT_IN_A_FILE_NAME.sub("", file_name)
    if not name:
        return (b"Content-Disposition", b"attachment")
    plain = _NOT_QUOTABLE.sub("_", name)
    content = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    return (b"Content-Disposition", content.encode())
