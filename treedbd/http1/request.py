"""Requests and their replies, as resources see them and as this server makes them.

A request is an ordinary request of `twisted.web` and, beyond that, an `IHttp1Request`. A resource
that is written for it is an `IHttp1Resource`; any other resource of `twisted.web` is served too. If
a resource is mounted in the `Site` of another program, the requests of that site are adapted
(`adapter`), so handlers know one interface only.

A `Request` is a stock request whose parts are made when they are first read. It works with
everything that renders a stock request: resources of `twisted.web`, Klein, and Werkzeug through it.
What a request for a small value never needs (header objects, arguments, cookies, an empty body,
addresses) costs nothing. A form body stays unparsed in `content`.

It writes its reply too. Beside the ordinary `write` and `finish` there is `send`, which puts a
whole reply into one write of the connection, and `send_content` for a long one. It differs from the
stock request where that does not fit this service: errors are JSON; no reply names the server;
writing after the client has disconnected does nothing; no log shows the query of a URI, which may
contain a token.

By its id the log, a proxy before the daemon, and a client refer to the same request: it is the
`X-Request-Id` of a trusted proxy, else a random one that cannot be guessed. It is made when it is
first read, and sent with errors of the server. If the daemon has an access log, all responses have
it (`IdentifiedRequest`); otherwise the heads of responses are equal bytes.

Logs show the path of a request without a query, and without what may be a token (`shown_path`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from io import BytesIO
from time import perf_counter
from typing import TYPE_CHECKING, Any, AnyStr, Final
from urllib.parse import unquote_to_bytes

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IConsumer
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.error import UnsupportedMethod
from twisted.web.http import NO_BODY_CODES, SWITCHING, datetimeToString, parse_qs
from twisted.web.http_headers import Headers as StockHeaders
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource
from twisted.web.server import NOT_DONE_YET
from twisted.web.server import Request as StockRequest
from zope.interface import Attribute, implementer

from treedbd.caches import bounded_cache
from treedbd.http1.content import Content, ContentReader
from treedbd.http1.parser import (
    ERROR_HEADERS,
    HTTP_1_1,
    INTERNAL,
    STATUS_LINES,
    CutOff,
    ErrorReply,
    Header,
    Headers,
    Http1Parser,
    decode_leniently,
    format_body,
)
from treedbd.http1.senders import DirectSend, UpgradedConnection
from treedbd.limits import MAX_DEPTH
from treedbd.traces import Trace

if TYPE_CHECKING:
    from treedbd.http1.connection import Http1Connection
    from treedbd.http1.registry import Connections


MOUNTED: Final = "mounted"
"""The entrance of requests of a site of another program."""


class IHttp1Request(IRequest, IConsumer):
    """A request as the handlers see it."""

    headers = Attribute("The header fields: from names in lower case to lists of values, in order.")
    head_memory = Attribute(
        "What the resource remembers for requests with this head: an object with a settable "
        "attributes `question` and `identity`, None at first; a new one for each parsed head. To "
        "its `size` is added how many bytes of memory the question takes. Its `fields_key` is a "
        "key by the header fields, None if they are not remembered."
    )
    request_id = Attribute(
        "The id by which the log and the client mean this request: a trusted proxy's, or random."
    )
    is_oversized = Attribute("Whether the body is too large; then `content` must not be read.")
    came_by_trusted_proxy = Attribute(
        "Whether a trusted proxy has sent it: then `headers`, the client's address and the scheme "
        "are those of which the proxy says so."
    )
    sentLength = Attribute(
        "Bytes of the body that were written so far, also of what was sent past the request."
    )
    entrance = Attribute(
        "By which kind of port the request has come: the name that the factory of the port gives; "
        "`MOUNTED` in the site of another program."
    )
    contender = Attribute(
        "What identifies the client among those that write at the same time: its connection."
    )
    trace = Attribute("The `Trace` of the request, None if it is not sampled.")
    has_own_timeout = Attribute(
        "Set to True by a resource that closes slow readers by itself, or while its work is of use "
        "to a connected client alone: one that ends its sending direction is disconnected then."
    )

    def send(status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole reply in one write and finish the request.

        `headers` are sent as they are; Content-Length, Date and Connection are added. A reply to
        HEAD has the length of `body` without it; 204 and 304 have neither. Does nothing if the
        request has been answered or the client is gone.
        """

    def send_content(status: int, headers: Iterable[Header], reader: ContentReader) -> None:
        """Send a whole reply with a body from `reader`, as the client reads, and finish.

        As `send`, but for a status that has a body. `reader` is closed when all of it was accepted,
        when the client disconnects, and for a reply to HEAD.
        """

    def start(
        status: int,
        headers: Iterable[Header],
        length: int | None = None,
        *,
        closes_connection: bool = False,
    ) -> None:
        """Set status and headers of a reply whose body is then written in pieces.

        `length` is that of the body in bytes, None if it is not known. With `closes_connection` the
        connection ends with the reply, and a body of unknown length is sent as it is written, not
        in chunks.
        """

    def upgrade(
        headers: Iterable[Header], receive: Callable[[bytes], None]
    ) -> UpgradedConnection | None:
        """Reply with 101, then hand the connection over to another protocol.

        `headers` are those of the reply beside the date; `receive` is called with what the client
        sends from then on. Returns the connection, None if the client has disconnected or the
        server is another. `notifyFinish` fires when it has ended, one way or the other.
        """

    def abort(reason: CutOff = "failed") -> None:
        """Drop the connection, and with it what has not been sent; the log has the reason."""

    # Of the interfaces of `twisted.web`, here with types.

    clientproto = Attribute("The version of HTTP that the client speaks.")

    startedWriting = Attribute("Whether any of the reply has been written.")

    def getClientAddress() -> IAddress:
        """Return the address of the client, or of a proxy before it that is not trusted."""

    def isSecure() -> bool:
        """Return whether the client uses TLS."""

    def notifyFinish() -> Deferred[None]:
        """Return what fires at the end of the reply, or fails if the client disconnects before."""

    def write(data: bytes) -> None:
        """Write a piece of the body."""

    def write_content(content: Content) -> None:
        """Write a short piece of the body that other replies contain too."""

    def find_free_send() -> tuple[DirectSend | None, Connections | None]:
        """Return what sends content past the request, and what counts it (`sent_past_bytes`).

        None if the body is encoded or framed, if something waits to be sent, or if the connection
        has no socket of its own. What is returned must no longer be used after anything else was
        written, or after it has sent less than all.
        """

    def continue_after(rest: bytes) -> None:
        """Send the rest of content that was sent past the request."""

    def finish() -> None:
        """End the reply."""


class IHttp1Resource(IResource):
    """A resource that expects an `IHttp1Request`.

    It also receives oversized requests and must answer them with an error, whose form it chooses.
    """


REQUEST_ID: Final = b"X-Request-Id"
MAX_REQUEST_ID_CHARACTERS: Final = 128
_REQUEST_ID_FIELD: Final = REQUEST_ID.lower()
_VALID_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,%d}" % MAX_REQUEST_ID_CHARACTERS)
_RANDOM_BYTES: Final = 8


def size_of_body(request: Any) -> int:
    """Return the bytes of the body of a request."""
    body = request.content
    if body is None:
        return 0
    size: int = body.seek(0, 2)
    body.seek(0)
    return size


def read_body(request: Any) -> bytes:
    """Return the body of a request as it was sent, in its content coding."""
    body: bytes = request.content.read() if request.content is not None else b""
    return body


def request_id_of(request: Any) -> str:
    """Return the id of an `IHttp1Request`: a new one at each call, unless a proxy has set it.

    The request itself keeps it.
    """
    return choose_request_id(request.headers, is_trusted=is_trusted_peer(request))


def choose_request_id(headers: Headers, *, is_trusted: bool) -> str:
    """Return the id that a trusted sender gives to a request, else a new one."""
    if is_trusted and _REQUEST_ID_FIELD in headers:
        (given, *others) = headers[_REQUEST_ID_FIELD]
        if not others and _VALID_REQUEST_ID.fullmatch(given):
            return given.decode("ascii")
    return os.urandom(_RANDOM_BYTES).hex()


def is_trusted_peer(request: object) -> bool:
    """Return whether a request came by a trusted proxy."""
    return bool(getattr(request, "came_by_trusted_proxy", False))


def id_header(request: Any) -> Header:
    """Return the header that shows the id of a request to its client."""
    request_id: str = request.request_id
    return REQUEST_ID, request_id.encode("ascii")


HIDDEN: Final = "…"
MAX_DECODINGS: Final = 8
"""How often a segment is decoded; one that is encoded more often is hidden."""
MAX_SEGMENTS: Final = 2 * MAX_DEPTH
"""How many are examined one by one; the rest is shown or hidden as a whole."""

# The beginning of a query, which may be encoded by mistake, even more than once.
_QUERY = re.compile(r"[?#;]|%(?:25)*(?:3F|23|3B)", re.IGNORECASE)
# Three or more parts of base64url, joined by dots, or a part that begins as a JSON object does in
# base64; each run of letters is read once.
_TOKEN = re.compile(
    r"(?<![\w-])(?:[\w-]{10,}+(?:\.[\w-]*+){2,}+|eyJ[\w-]{8,}+)",
    re.ASCII | re.IGNORECASE,
)
_PARAMETER = re.compile(rf"((?:auth|access_token)=)[^&/{HIDDEN}]+", re.IGNORECASE)


def shown_path(path: bytes) -> str:
    """Return the raw path of a request target for a log; non-ASCII characters are escaped.

    It has no query, and nothing that may be a token. Both get into a path by mistake: a client
    encodes the whole target, some twice, or appends a token to the path. So the path is also
    examined fully decoded; a segment that contains either only then is not shown at all.
    """
    text = _QUERY.split(path.decode("ascii", "backslashreplace"), 1)[0]
    if _is_plain(text):
        return text
    shown = []
    for segment in text.split("/", MAX_SEGMENTS):
        plain = _decode_fully(segment)
        if plain is None or _QUERY.search(plain):
            shown.append(HIDDEN)
            break
        shown.append(hide_tokens(segment) if plain == segment or _is_plain(segment) else HIDDEN)
    return "/".join(shown)


def _is_plain(text: str) -> bool:
    """Return whether text, also when it is fully decoded, has nothing to hide."""
    plain = _decode_fully(text)
    return plain is not None and not _QUERY.search(plain) and hide_tokens(plain) == plain


def hide_tokens(text: str) -> str:
    """Return text of a client without parts that may be tokens."""
    return _PARAMETER.sub(rf"\1{HIDDEN}", _TOKEN.sub(HIDDEN, text))


_SIGNATURE: Final = re.compile(
    r"(?<![\w-])(?=[\w-]*[a-z])(?=[\w-]*[A-Z])(?=[\w-]*[0-9])[\w-]{43,}+", re.ASCII
)
"""What may be the signature of a token, without the rest of it."""


def hide_signatures(text: str) -> str:
    """Return text without parts that may be the signatures of tokens."""
    return _SIGNATURE.sub(HIDDEN, text)


def hide_secrets(text: str) -> str:
    """Return text without parts that may be tokens, or their signatures alone."""
    return hide_signatures(hide_tokens(text))


def _decode_fully(text: str) -> str | None:
    """Return text without any percent-encoding, None if it is encoded too often."""
    raw = text.encode()
    for _ in range(MAX_DECODINGS):
        decoded = decode_leniently(raw)
        if decoded == raw:
            return raw.decode(errors="backslashreplace")
        raw = decoded
    return None


_CRLF: Final = b"\r\n"
_CLOSE: Final = b"Connection: close\r\n"
_KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_OWN_FIELDS: Final = frozenset({b"Connection", b"Date", b"Server", b"Transfer-Encoding"})
_REMEMBERED_FIELDS: Final = 128


@bounded_cache(_REMEMBERED_FIELDS)
def _format_fields(headers: tuple[Header, ...]) -> bytes:
    """Return header lines, cached; raise ValueError for a line end in one."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers):
        raise ValueError("A header holds a line end.")
    return lines


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
"""The fields that are read after a reply has begun: by the guard of origins and the log."""


def _lazily(make: Callable[[Any], object]) -> Any:
    """Return a lazy attribute; its type is Any because it overrides attributes of many types."""
    return _Lazy(make)


def _find_path(request: Request) -> bytes:
    """Return the path of a target in any of its forms (RFC 9112, section 3.2)."""
    path: bytes = request.uri.partition(b"?")[0]
    if path.startswith(b"/") or path == b"*":
        return path
    return b"/" + path.partition(b"://")[2].partition(b"/")[2]


def _parse_cookies(request: Request) -> dict[bytes, bytes]:
    cookies = {}
    for line in request.headers.get(b"cookie", []):
        for pair in line.split(b";"):
            name, equals, value = pair.lstrip().partition(b"=")
            if equals:
                cookies[name] = value
    return cookies


@implementer(IHttp1Request)
class Request(StockRequest):
    """One request and its reply.

    Attributes:
        connection: the connection that the request came over.
        channel: the same, None once the reply is complete or cannot be sent.
        persistent: whether the connection stays open after the reply; may be set to False.
        headers: the header fields, from names in lower case to lists of values in order.
        head_memory: what the resource remembers for requests with this very head.
        request_id: the id by which the log and the client mean this request.
        began: when it was complete, in seconds of `perf_counter`.
        came_by_trusted_proxy: whether a trusted proxy has sent it.
        trace: that of the request, None if it is not sampled.
        is_oversized: whether its body was too large to be received.
        has_own_timeout: whether its resource closes slow readers by itself.
        reply_began: when a reply that is not sent at once began, in seconds of `perf_counter`.
        cut_off: why the reply ended before its end, None while it did not.
        refused_as: the code of the error that it was answered with, None unless that is recorded.

    """

    _log = Logger()

    came_by_trusted_proxy = False
    trace: Trace | None = None
    is_oversized = False
    has_own_timeout = False
    reply_began: float | None = None
    cut_off: CutOff | None = None
    refused_as: str | None = None
    _content_begins: int | None = None  # after so many bytes of the connection
    _declared: int | None = None
    _only_head = False
    _ends_connection = False  # a body of unknown length ends with the connection
    _is_raw = False  # the body is sent as it is written; such a reply was begun, and not to HEAD

    # Attributes of the stock request, made when they are read.
    requestHeaders = _lazily(lambda request: StockHeaders(request.headers))
    responseHeaders = _lazily(lambda request: StockHeaders())
    content = _lazily(lambda request: BytesIO())
    path = _lazily(_find_path)
    args = _lazily(lambda request: parse_qs(request.uri.partition(b"?")[2], 1))
    prepath = _lazily(lambda request: [])
    postpath = _lazily(
        lambda request: [unquote_to_bytes(part) for part in request.path[1:].split(b"/")]
    )
    received_cookies = _lazily(_parse_cookies)
    cookies = _lazily(lambda request: [])
    notifications = _lazily(lambda request: [])
    client = _lazily(lambda request: request.connection.peer)
    host = _lazily(lambda request: request.connection.host)
    transport = _lazily(lambda request: request.connection.transport)
    site = _lazily(lambda request: request.connection.site)
    _adapterCache = _lazily(lambda request: {})
    request_id = _lazily(request_id_of)
    contender = _lazily(lambda request: id(request.connection))
    entrance = _lazily(lambda request: request.connection.entrance)

    def __init__(self, connection: Http1Connection, parser: Http1Parser) -> None:
        """Represent the request that `parser` has just completed."""
        # The base classes are not initialised: they would make what is lazy here.
        self.connection = connection
        self.channel: Any = connection
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
        """Return what fires at the end of the reply; it fails at once if the client is gone."""
        waiting: Deferred[None] = super().notifyFinish()
        if self._disconnected:
            waiting.errback(ConnectionDone())
        return waiting

    @property
    def shown_path(self) -> str:
        """The path as a log may show it: without a token, even one that is there by mistake."""
        return shown_path(self.path)

    def getHeader(self, key: AnyStr) -> AnyStr | None:
        """Return the last value of a header field, None if it is absent."""
        if isinstance(key, str) or "requestHeaders" in self.__dict__:
            return super().getHeader(key)
        values = self.headers.get(key.lower())
        return values[-1] if values else None

    def keep_little(self) -> int:
        """Drop a long head except what is read at the end; return how many bytes that is."""
        self.uri = self.path
        self.headers = {
            name: values for name, values in self.headers.items() if name in _READ_LATER
        }
        self.head_memory.block = self.head_memory.fields_key = None
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
        return UpgradedConnection(self, self.connection, unread)

    def end_upgraded(self) -> None:
        """End the connection of a request that was upgraded, after what was written."""
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
        """Render a resource; what it returns is the body, or `NOT_DONE_YET`."""
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

    # The whole reply at once.

    def send(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole reply in one write and finish the request (`IHttp1Request.send`).

        Raises ValueError for a header with a line end in it, RuntimeError after `write`.
        """
        channel = self.channel
        if channel is None:
            return
        if self.startedWriting:
            raise RuntimeError("A reply that was begun with write cannot be sent as a whole.")
        head = self._format_head(status, headers, len(body))
        self.code = status
        self.startedWriting = 1
        if status in NO_BODY_CODES or self.method == b"HEAD":
            channel.writer.write(head)
        else:
            self.sentLength = len(body)
            channel.writer.write_pair(head, body)
        self._end()

    def send_content(self, status: int, headers: Iterable[Header], reader: ContentReader) -> None:
        """Send a whole reply as the client reads (`IHttp1Request.send_content`)."""
        channel = self.channel
        if channel is None:
            reader.close()
            return
        head = self._format_head(status, headers, reader.size)
        self.code = status
        self.startedWriting = 1
        if self.method == b"HEAD":
            reader.close()
            channel.writer.write(head)
            self._end()
            return
        self.sentLength = reader.size
        self.reply_began = perf_counter()
        self._content_begins = channel.writer.bytes_sent + len(head)
        channel.writer.send_content(head, reader, self._end)

    def _format_head(self, status: int, headers: Iterable[Header], length: int) -> bytes:
        fields = _format_fields(tuple(headers))
        size = b"" if status in NO_BODY_CODES else b"Content-Length: %d\r\n" % length
        end = _CRLF
        if not self.persistent:
            end = _CLOSE + _CRLF
        elif self.clientproto != HTTP_1_1:
            end = _KEEP_ALIVE + _CRLF
        dates = self.connection.date_lines[self.isSecure()]
        return b"".join((STATUS_LINES[status], dates, fields, size, end))

    # The reply in pieces.

    def start(
        self,
        status: int,
        headers: Iterable[Header],
        length: int | None = None,
        *,
        closes_connection: bool = False,
    ) -> None:
        """Begin a reply that is written in pieces (`IHttp1Request.start`)."""
        self.setResponseCode(status)
        fields = self.responseHeaders
        for name, content in headers:
            fields.setRawHeaders(name, [content])
        if status in NO_BODY_CODES:
            fields.removeHeader(b"content-type")
        elif length is not None:
            fields.setRawHeaders(b"Content-Length", [b"%d" % length])
        if closes_connection:
            self.persistent, self._ends_connection = False, True
            if self.channel is not None:
                self.channel.shorten_head(self)

    def write(self, data: bytes) -> None:
        """Send a piece of the body; the head is sent with the first one."""
        if self.channel is None:
            if self.finished:
                raise RuntimeError("A request was written to after it was finished.")
            return
        if self._encoder is not None:
            data = self._encoder.encode(data)
        self._write_piece(data)

    def write_content(self, content: Content) -> None:
        """Send a short piece of the body that other replies contain too."""
        if self._is_raw and self.channel is not None and self._encoder is None:
            self.sentLength += content.size
            self.channel.writer.write(content.whole())
        else:
            self.write(content.whole())

    def find_free_send(self) -> tuple[DirectSend | None, Connections | None]:
        """Return what sends content past the request (`IHttp1Request.find_free_send`)."""
        is_free = self._is_raw and self.channel is not None and self._encoder is None
        send = self.channel.writer.find_free_send() if is_free else None
        return send, self.connection.registry

    def continue_after(self, rest: bytes) -> None:
        """Send what is left of content (`IHttp1Request.continue_after`)."""
        if rest and self.channel is not None:
            self.channel.writer.write(rest)

    def finish(self) -> None:
        """Complete the reply; does nothing if it is complete or the client is gone."""
        channel = self.channel
        if channel is None:
            return
        if self._encoder is not None:
            self._write_piece(self._encoder.finish())
        end = b"" if self.startedWriting else self._begin(0)
        if self.chunked:
            end += _LAST_CHUNK
        if end:
            channel.writer.write(end)
        self._end()

    def _write_piece(self, data: bytes) -> None:
        head = b"" if self.startedWriting else self._begin(None)
        if self._only_head:
            data = b""
        self.sentLength += len(data)
        if data and self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if head or data:
            self.channel.writer.write(head + data)

    def _finish_with(self, body: bytes) -> None:
        """Finish with a whole body that a resource returned."""
        channel = self.channel
        if channel is None:
            return
        if self._encoder is not None or self.startedWriting:
            self.write(body)
            self.finish()
            return
        head = self._begin(len(body))
        if self._only_head:
            body = b""
        self.sentLength = len(body)
        channel.writer.write_pair(head, body)
        self._end()

    def _begin(self, length: int | None) -> bytes:
        """Return the head of the reply; `length` is that of the body if it is known."""
        self.startedWriting = 1
        self.reply_began = perf_counter()
        fields = self.responseHeaders
        self._only_head = self._only_head or self.method == b"HEAD" or self.code in NO_BODY_CODES
        self._choose_framing(fields, length)
        self._add_stock_fields(fields)
        if any(b"close" in value.lower() for value in fields.getRawHeaders(b"connection", [])):
            self.persistent = False
        phrase = b" ".join(self.code_message.splitlines())
        dates = self.connection.date_lines[self.isSecure()]
        lines = [b"HTTP/1.1 %d %b\r\n" % (self.code, phrase), dates]
        for name, values in fields.getAllRawHeaders():
            if name not in _OWN_FIELDS:
                lines += [b"%b: %b\r\n" % (name, value) for value in values]
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if not self.persistent:
            lines.append(_CLOSE)
        elif self.clientproto != HTTP_1_1:
            lines.append(_KEEP_ALIVE)
        lines.append(_CRLF)
        return b"".join(lines)

    def _choose_framing(self, fields: StockHeaders, length: int | None) -> None:
        """Decide how the client finds the end of the body (RFC 9112, section 6)."""
        declared = fields.getRawHeaders(b"content-length")
        if self.code in NO_BODY_CODES:
            fields.removeHeader(b"content-length")
        elif declared is not None:
            self._declared = int(declared[-1])
        elif length is not None and (length or self.method != b"HEAD"):
            fields.setRawHeaders(b"content-length", [b"%d" % length])
        elif self.clientproto == HTTP_1_1 and not self._ends_connection:
            self.chunked = int(not self._only_head)
        else:
            self.persistent = False
            self._is_raw = not self._only_head

    def _add_stock_fields(self, fields: StockHeaders) -> None:
        if self.lastModified is not None and not fields.hasHeader(b"last-modified"):
            fields.setRawHeaders(b"last-modified", [datetimeToString(self.lastModified)])
        if self.etag is not None:
            fields.setRawHeaders(b"etag", [self.etag])
        if self.cookies:
            fields.setRawHeaders(b"set-cookie", self.cookies)
        if (
            self.defaultContentType is not None
            and self.code not in NO_BODY_CODES
            and fields.getRawHeaders(b"content-length") != [b"0"]
            and not fields.hasHeader(b"content-type")
        ):
            fields.setRawHeaders(b"content-type", [self.defaultContentType])

    def _end(self) -> None:
        """Release the connection, and fire what waits for the end of the reply."""
        channel = self.channel
        if self.producer is not None:
            self._log.error("A producer is still registered: {path}.", path=self.shown_path)
            self.unregisterProducer()
        if self._declared is not None and self.sentLength != self._declared and not self._only_head:
            self.persistent = (
                False  # otherwise the client would wait for more, or take the rest for a reply
            )
        self.finished = 1
        self.channel = None
        if "notifications" in self.__dict__:
            waiting, self.notifications = self.notifications, []
            for finished in waiting:
                finished.callback(None)
        channel.answered(self)

    def _send_error(self, error: ErrorReply, *headers: tuple[bytes, bytes]) -> None:
        self.send(error.status, ERROR_HEADERS + headers, format_body(error))

    # The connection.

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Pause and resume a producer of the body as the client reads."""
        if self.channel is None:
            producer.stopProducing()
            return
        if self.producer is not None:
            raise ValueError("A producer is registered already.")
        self.producer = producer
        self.streamingProducer = streaming
        self.channel.writer.register_producer(producer, streaming)

    def unregisterProducer(self) -> None:
        """Release the producer."""
        self.producer = None
        if self.channel is not None:
            self.channel.writer.unregister_producer()

    def loseConnection(self) -> None:
        """Close the connection once everything written is sent."""
        if self.channel is not None:
            self.channel.lose_connection()

    def abort(self, reason: CutOff = "failed") -> None:
        """Drop the connection (`IHttp1Request.abort`)."""
        self.connection.abort(reason)

    def note_cut_off(self, reason: CutOff) -> bool:
        """Note that the connection ended before the reply, and how much of it was sent.

        Returns whether the reply was cut off. It was not if the client ended a stream, or left
        before its reply began, or if the connection was upgraded.
        """
        writer = self.connection.writer
        begins, waiting = self._content_begins, writer.waiting_bytes
        sent = self.sentLength if begins is None else writer.bytes_sent - begins
        self.sentLength = max(0, min(self.sentLength, sent - waiting))
        is_open_ended = self.has_own_timeout or not self.startedWriting
        if self.code == SWITCHING or (reason == "client" and is_open_ended):
            return False
        self.cut_off = reason
        return True

    def connectionLost(self, reason: Failure) -> None:
        """Note that the client is gone; what waits for the end of the reply fails with `reason`."""
        self._disconnected = True
        self.channel = None
        self.producer = None  # which refers to the request
        if "notifications" in self.__dict__:
            waiting, self.notifications = self.notifications, []
            for finished in waiting:
                finished.errback(reason)


class IdentifiedRequest(Request):
    """A request whose response has its id, whatever its status."""

    def _format_head(self, status: int, headers: Iterable[Header], length: int) -> bytes:
        fields = tuple(headers)
        head = super()._format_head(status, fields, length)
        if status >= 500 and any(name == REQUEST_ID for name, _ in fields):
            return head  # as errors of the server always have it
        return b"%b%b: %b\r\n\r\n" % (head.removesuffix(_CRLF), *id_header(self))

    def _begin(self, length: int | None) -> bytes:
        name, content = id_header(self)
        self.responseHeaders.setRawHeaders(name, [content])
        return super()._begin(length)


def identified(kind: type[Request]) -> type[Request]:
    """Return the requests of a kind whose responses have their ids."""
    bases = (IdentifiedRequest,) if kind is Request else (IdentifiedRequest, kind)
    return type(f"Identified{kind.__name__}", bases, {})
