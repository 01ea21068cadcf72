"""A stock request whose parts are made when they are first looked at.

What a request for a small value never asks for (header objects, arguments, cookies, an empty
body, addresses) costs nothing here. How it is answered is told in `lean`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from typing import Any, AnyStr, Protocol
from urllib.parse import unquote_to_bytes

from twisted.internet.interfaces import IAddress
from twisted.web.http import parse_qs
from twisted.web.http_headers import Headers
from twisted.web.server import Request, Site

from treedbd.web.channel.framing import RequestReader
from treedbd.web.channel.outgoing import Outlet
from treedbd.web.head import Head

# What begins a query, or is meant to: encoded by mistake, perhaps more than once.
_QUERY = re.compile("[?#;]|%(?:25)*(?:3F|23|3B)", re.IGNORECASE)
# Three or more parts of base64url, joined by dots; each run of letters is looked at once.
_LIKE_TOKEN = re.compile(
    r"(?<![\w-])[\w-]{10,}+(?:(?:\.|%2E)[\w-]*+){2,}+", re.ASCII | re.IGNORECASE
)


class Conversation(Protocol):
    """What a request knows of the connection it came over."""

    secure: bool
    peer: IAddress
    host: IAddress
    site: Site
    outlet: Outlet

    @property
    def transport(self) -> Any:
        """The transport below, for whoever insists."""

    @property
    def date_line(self) -> bytes:
        """The header line with the date."""

    def answered(self, request: LazyRequest) -> None:
        """Learn that a request has its whole reply."""

    def lose_connection(self) -> None:
        """Close once everything is sent."""

    def abort(self) -> None:
        """Drop the connection."""


class _Lazy:
    """An attribute that is made when it is first read, and may be assigned before or after."""

    def __init__(self, make: Callable[[Any], object]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> object:
        value = instance.__dict__[self._name] = self._make(instance)
        return value


def _lazily(make: Callable[[Any], object]) -> Any:
    """Return a lazy attribute; it may stand for one of any type in the stock request."""
    return _Lazy(make)


class LazyRequest(Request):
    """One request as it came.

    Attributes:
        head: the header fields by their names in lower case, values in the order they came.
        conversation: the connection it came over.
        persistent: whether the connection lives on after the reply; may be set to False.
        is_oversized: whether its body was too large to be taken.
        has_own_patience: whether its resource minds itself how long the client may read nothing.

    """

    is_oversized = False
    has_own_patience = False
    channel: Any  # the conversation, None once the reply is complete or cannot be sent

    # Attributes of the stock request, made when asked for.
    requestHeaders = _lazily(lambda request: Headers(request.head))
    responseHeaders = _lazily(lambda request: Headers())
    content = _lazily(lambda request: BytesIO())
    path = _lazily(lambda request: _find_path(request.uri))
    args = _lazily(lambda request: parse_qs(request.uri.partition(b"?")[2], 1))
    prepath = _lazily(lambda request: [])
    postpath = _lazily(
        lambda request: [unquote_to_bytes(part) for part in request.path[1:].split(b"/")]
    )
    received_cookies = _lazily(lambda request: _parse_cookies(request.head))
    cookies = _lazily(lambda request: [])
    notifications = _lazily(lambda request: [])
    client = _lazily(lambda request: request.conversation.peer)
    host = _lazily(lambda request: request.conversation.host)
    transport = _lazily(lambda request: request.conversation.transport)
    site = _lazily(lambda request: request.conversation.site)
    _adapterCache = _lazily(lambda request: {})

    def __init__(self, conversation: Conversation, reader: RequestReader) -> None:
        """Take over the request that `reader` has just completed."""
        # The initialisers above make the objects that are lazy here.
        self.conversation = conversation
        self.channel = conversation
        self.method = reader.method
        self.uri = reader.target
        self.clientproto = reader.version
        self.head: Head = reader.head
        self.persistent = reader.keep_alive
        if reader.body is not None:
            self.content = reader.body

    def __repr__(self) -> str:
        """Describe the request without its query."""
        return f"<{type(self).__name__} {self.method!r} {self.shown_path}>"

    @property
    def shown_path(self) -> str:
        """The path as a log may show it: without a token, also where that stands by mistake."""
        path: bytes = self.path
        return _LIKE_TOKEN.sub("…", _QUERY.split(path.decode("ascii", "backslashreplace"), 1)[0])

    # What is asked of a request.

    def getHeader(self, key: AnyStr) -> AnyStr | None:
        """Return the last value of a header field, None where it is absent."""
        if isinstance(key, str) or "requestHeaders" in self.__dict__:
            return super().getHeader(key)
        values = self.head.get(key.lower())
        return values[-1] if values else None

    def isSecure(self) -> bool:
        """Tell whether the request came over TLS."""
        return self.conversation.secure or bool(self._forceSSL)


def _find_path(target: bytes) -> bytes:
    """Return the path of a target in any of its forms (RFC 9112, section 3.2)."""
    path = target.partition(b"?")[0]
    if path.startswith(b"/") or path == b"*":
        return path
    return b"/" + path.partition(b"://")[2].partition(b"/")[2]


def _parse_cookies(head: Head) -> dict[bytes, bytes]:
    cookies = {}
    for line in head.get(b"cookie", []):
        for pair in line.split(b";"):
            name, equals, value = pair.lstrip().partition(b"=")
            if equals:
                cookies[name] = value
    return cookies
