"""The request object of the server: a stock request whose parts are made when they are first read.

It works with all that renders a stock request: resources of `twisted.web`, Klein, and Werkzeug
through it. What a request for a small value never needs (header objects, arguments, cookies, an
empty body, addresses) costs nothing. A form body arrives untouched in `content`. `reply` writes the
reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from time import perf_counter
from typing import Any, AnyStr, Final
from urllib.parse import unquote_to_bytes

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.web.error import UnsupportedMethod
from twisted.web.http import parse_qs
from twisted.web.http_headers import Headers as StockHeaders
from twisted.web.resource import IResource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from treedbd.traces import Trace
from treedbd.web.headers import Header, Headers
from treedbd.web.http1.errors import INTERNAL, ErrorReply
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.http1.parser import Http1Parser
from treedbd.web.http1.reply import Reply, RequestConnection
from treedbd.web.http1.request_id import id_header, request_id_of
from treedbd.web.http1.shown_path import shown_path
from treedbd.web.http1.upgraded import UpgradedConnection


class _Lazy:
    """An attribute that is made when it is first read, and may be assigned before or after."""

    def __init__(self, make: Callable[[Any], object]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> object:
        value = instance.__dict__[self._name] = self._make(instance)
        return value


_READ_LATER: Final = frozenset(
    {
        *(b"host", b"origin", b"referer", b"user-agent", b"x-request-id", b"traceparent"),
        *(b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user"),
        *(b"content-length", b"transfer-encoding"),
    }
)
"""The fields that are read after a reply has begun: by the guard of origins, and for the log."""


def _lazily(make: Callable[[Any], object]) -> Any:
    """Return a lazy attribute; its type is Any because it overrides attributes of many types."""
    return _Lazy(make)


@implementer(IHttp1Request)
class Request(Reply):
    """One request and its reply.

    Attributes:
        headers: the header fields, from names in lower case to lists of values in order.
        head_memory: what the resource remembers for requests with this very head.
        request_id: the id by which the log and the client mean this request.
        began: when it was complete, in seconds of `perf_counter`.
        came_by_trusted_proxy: whether a trusted proxy has sent it.
        trace: that of the request, None if it is not sampled.
        is_oversized: whether its body was too large to be received.
        has_own_timeout: whether its resource closes slow readers by itself.

    """

    came_by_trusted_proxy = False
    trace: Trace | None = None
    is_oversized = False
    has_own_timeout = False

    # Attributes of the stock request, made when they are read.
    requestHeaders = _lazily(lambda request: StockHeaders(request.headers))
    responseHeaders = _lazily(lambda request: StockHeaders())
    content = _lazily(lambda request: BytesIO())
    path = _lazily(lambda request: _find_path(request.uri))
    args = _lazily(lambda request: parse_qs(request.uri.partition(b"?")[2], 1))
    prepath = _lazily(lambda request: [])
    postpath = _lazily(
        lambda request: [unquote_to_bytes(part) for part in request.path[1:].split(b"/")]
    )
    received_cookies = _lazily(lambda request: _parse_cookies(request.headers))
    cookies = _lazily(lambda request: [])
    notifications = _lazily(lambda request: [])
    client = _lazily(lambda request: request.connection.peer)
    host = _lazily(lambda request: request.connection.host)
    transport = _lazily(lambda request: request.connection.transport)
    site = _lazily(lambda request: request.connection.site)
    _adapterCache = _lazily(lambda request: {})
    request_id = _lazily(request_id_of)
    contender = _lazily(lambda request: id(request.connection))

    def __init__(self, connection: RequestConnection, parser: Http1Parser) -> None:
        """Represent the request that `parser` has just completed."""
        # The parents are not initialised: they would make the objects that are lazy here.
        self.connection = connection
        self.channel = connection
        self.method = parser.method
        self.uri = parser.target
        self.clientproto = parser.version
        self.headers: Headers = parser.headers
        self.head_memory = parser.head_memory
        self.persistent = parser.keep_alive
        self.began = perf_counter()
        if parser.body is not None:
            self.content = parser.body
            parser.body = None  # which this request alone keeps

    def __repr__(self) -> str:
        """Describe the request without its query."""
        return f"<{type(self).__name__} {self.method!r} {self.shown_path}>"

    def notifyFinish(self) -> Deferred[None]:
        """Do as a stock request; what is returned fails at once if the client is gone already."""
        waiting: Deferred[None] = super().notifyFinish()
        if self._disconnected:
            waiting.errback(ConnectionDone())
        return waiting

    @property
    def shown_path(self) -> str:  # type: ignore[override]  # read-only here
        """The path as a log may show it: without a token, even one that is there by mistake."""
        return shown_path(self.path)

    def getHeader(self, key: AnyStr) -> AnyStr | None:
        """Return the last value of a header field, None if it is absent."""
        if isinstance(key, str) or "requestHeaders" in self.__dict__:
            return super().getHeader(key)
        values = self.headers.get(key.lower())
        return values[-1] if values else None

    def keep_little(self) -> int:
        """Keep of a long head what is read of it at the end; return how many bytes that is."""
        self.uri = self.path
        self.headers = {
            name: values for name, values in self.headers.items() if name in _READ_LATER
        }
        self.head_memory.forwarded = None
        for name in ("requestHeaders", "args", "received_cookies"):
            self.__dict__.pop(name, None)
        return len(self.uri) + sum(len(each) for values in self.headers.values() for each in values)

    def upgrade(
        self, headers: Iterable[Header], receive: Callable[[bytes], None]
    ) -> UpgradedConnection | None:
        """Switch to another protocol (`IHttp1Request.upgrade`)."""
        if self.channel is None:
            return None
        self.channel.shorten_head(self)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        dates = self.connection.date_lines[self.isSecure()]
        self.code = 101
        self.startedWriting = 1
        self.persistent = False
        self.has_own_timeout = True
        self.reply_began = perf_counter()
        self.channel.writer.write(b"HTTP/1.1 101 Switching Protocols\r\n%b%b\r\n" % (dates, lines))
        unread = self.channel.switch(receive)
        connection = self.connection
        return UpgradedConnection(
            self, connection.writer, connection.sent_past, self.channel.set_reading, unread
        )

    def end_upgraded(self) -> None:
        """End the connection of a request that has switched, after what was written."""
        if self.channel is not None:
            if self.producer is not None:
                self.unregisterProducer()
            self._end()

    def isSecure(self) -> bool:
        """Return whether the request came over TLS."""
        return self.connection.secure or bool(self._forceSSL)

    def process(self) -> None:
        """Find the resource that the path names below the site's, and render it."""
        if self.path == b"*":
            if self.method == b"OPTIONS":
                self.send(200, (), b"")
            else:
                self._refuse_method([b"OPTIONS"])
            return
        resource = self.site.getResourceFor(self)
        choose_encoder = getattr(resource, "getEncoder", None)
        if choose_encoder is not None:
            self._encoder = choose_encoder(self)
        self.render(resource)

    def render(self, resrc: IResource) -> None:
        """Let a resource answer; what it returns is the body, or `NOT_DONE_YET`."""
        try:
            body: Any = resrc.render(self)
        except UnsupportedMethod as error:
            if self.method != b"HEAD" or b"GET" not in error.allowedMethods:
                self._refuse_method(error.allowedMethods)
                return
            body = self._render_get_for_head(resrc)
        if body is NOT_DONE_YET:
            return
        if not isinstance(body, bytes):
            raise TypeError(f"{resrc!r} rendered {type(body).__name__}, not bytes")
        self._finish_with(body)

    def processingFailed(self, reason: Failure) -> Failure:
        """Log an error of the resource; the response shows only that there was one."""
        self._log.failure(
            "{method} {path} could not be answered.",
            failure=reason,
            method=self.method.decode("ascii"),
            path=self.shown_path,
            treedb_fields={"request_id": self.request_id},
        )
        if self.channel is not None:
            if self.startedWriting:
                self.channel.abort()  # a reply cut short must not look complete
            else:
                self._send_error(INTERNAL, id_header(self))
        return reason

    def _render_get_for_head(self, resource: IResource) -> Any:
        """Answer HEAD by a resource that only implements GET; the body is not sent."""
        self._only_head = True
        self.method = b"GET"
        try:
            return resource.render(self)
        finally:
            self.method = b"HEAD"

    def _refuse_method(self, allowed: Iterable[bytes]) -> None:
        message = f"The method {self.method.decode('ascii')} is not allowed here."
        error = ErrorReply(405, "method_not_allowed", message)
        self._send_error(error, (b"Allow", b", ".join(allowed)))


def _find_path(target: bytes) -> bytes:
    """Return the path of a target in any of its forms (RFC 9112, section 3.2)."""
    path = target.partition(b"?")[0]
    if path.startswith(b"/") or path == b"*":
        return path
    return b"/" + path.partition(b"://")[2].partition(b"/")[2]


def _parse_cookies(headers: Headers) -> dict[bytes, bytes]:
    cookies = {}
    for line in headers.get(b"cookie", []):
        for pair in line.split(b";"):
            name, equals, value = pair.lstrip().partition(b"=")
            if equals:
                cookies[name] = value
    return cookies
