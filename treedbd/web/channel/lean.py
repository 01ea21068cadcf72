"""The request object of the channel: `twisted.web.server.Request`, made cheap.

It serves whatever renders a stock request: resources of `twisted.web`, Klein, Werkzeug through
it. Its parts are made when they are first looked at (`lazy`). Beside the ordinary `write` and
`finish` there is one fast door, `send`, which puts a whole reply into one write.

It differs from the stock request where that one is wrong for this service: a form body arrives
untouched in `content`; errors are JSON; no reply names the server; answering after the client has
gone does nothing; nothing here logs the query of a URI, which may hold a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.error import UnsupportedMethod
from twisted.web.http import datetimeToString
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource
from twisted.web.server import NOT_DONE_YET

from treedbd.web.channel.framing import HTTP_1_1
from treedbd.web.channel.lazy import LazyRequest
from treedbd.web.channel.refusal import INTERNAL, OWN_HEADERS, STATUS_LINES, Refusal, print_body

_BODILESS: Final = frozenset({204, 304})
_CRLF: Final = b"\r\n"
_CLOSE: Final = b"Connection: close\r\n"
_KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_OWN_FIELDS: Final = frozenset({b"Connection", b"Date", b"Server", b"Transfer-Encoding"})


class LeanRequest(LazyRequest):
    """One request and its reply."""

    _log = Logger()
    _declared: int | None = None
    _only_head = False

    # Rendering.

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
        self._answer(body)

    def processingFailed(self, reason: Failure) -> Failure:
        """Log an error of the resource; tell the client only that there was one."""
        self._log.failure(
            "{method} {path} could not be answered.",
            failure=reason,
            method=self.method.decode("ascii"),
            path=self.shown_path,
        )
        if self.channel is not None:
            if self.startedWriting:
                self.channel.abort()  # a reply cut short must not look complete
            else:
                self._refuse(INTERNAL)
        return reason

    # The fast door.

    def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole reply in one write and finish the request.

        `headers` go out as they are; Content-Length, Date and Connection are added. A reply to
        HEAD has the length of `body` without it; 204 and 304 have neither. Does nothing where the
        request is answered already or the client is gone. Raises ValueError for a header with a
        line end in it, RuntimeError after `write`.
        """
        channel = self.channel
        if channel is None:
            return
        if self.startedWriting:
            raise RuntimeError("A reply that was begun with write cannot be sent as a whole.")
        head = self._print_head(status, headers, len(body))
        self.code = status
        self.startedWriting = 1
        if status in _BODILESS or self.method == b"HEAD":
            channel.outlet.write(head)
        else:
            self.sentLength = len(body)
            channel.outlet.write_pair(head, body)
        self._end()

    def _print_head(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], length: int
    ) -> bytes:
        parts = [STATUS_LINES[status], self.conversation.date_line]
        for name, value in headers:
            parts += (name, b": ", value, _CRLF)
        lines = len(parts) // 4 + 2
        if status not in _BODILESS:
            parts.append(b"Content-Length: %d\r\n" % length)
            lines += 1
        if not self.persistent:
            parts.append(_CLOSE)
            lines += 1
        elif self.clientproto != HTTP_1_1:
            parts.append(_KEEP_ALIVE)
            lines += 1
        parts.append(_CRLF)
        head = b"".join(parts)
        if head.count(b"\n") != lines + 1 or head.count(b"\r") != lines + 1:
            raise ValueError("A header holds a line end.")
        return head

    # The ordinary way.

    def write(self, data: bytes) -> None:
        """Send a piece of the body; the first one brings the head with it."""
        if self.channel is None:
            if self.finished:
                raise RuntimeError("A request was written to after it was finished.")
            return
        if self._encoder is not None:
            data = self._encoder.encode(data)
        self._write_piece(data)

    def _write_piece(self, data: bytes) -> None:
        head = b"" if self.startedWriting else self._begin(None)
        if self._only_head:
            data = b""
        self.sentLength += len(data)
        if data and self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if head or data:
            self.channel.outlet.write(head + data)

    def finish(self) -> None:
        """Complete the reply; does nothing where it is complete or the client is gone."""
        channel = self.channel
        if channel is None:
            return
        if self._encoder is not None:
            self._write_piece(self._encoder.finish())
        end = b"" if self.startedWriting else self._begin(0)
        if self.chunked:
            end += _LAST_CHUNK
        if end:
            channel.outlet.write(end)
        self._end()

    def _answer(self, body: bytes) -> None:
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
        channel.outlet.write_pair(head, body)
        self._end()

    def _begin(self, length: int | None) -> bytes:
        """Return the head of the reply; `length` is that of the body where it is known."""
        self.startedWriting = 1
        fields = self.responseHeaders
        self._only_head = self._only_head or self.method == b"HEAD" or self.code in _BODILESS
        self._choose_framing(fields, length)
        self._add_stock_fields(fields)
        if any(b"close" in value.lower() for value in fields.getRawHeaders(b"connection", [])):
            self.persistent = False
        phrase = b" ".join(self.code_message.splitlines())
        lines = [b"HTTP/1.1 %d %b\r\n" % (self.code, phrase), self.conversation.date_line]
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

    def _choose_framing(self, fields: Headers, length: int | None) -> None:
        """Decide how the client learns where the body ends (RFC 9112, section 6)."""
        declared = fields.getRawHeaders(b"content-length")
        if self.code in _BODILESS:
            fields.removeHeader(b"content-length")
        elif declared is not None:
            self._declared = int(declared[-1])
        elif length is not None and (length or self.method != b"HEAD"):
            fields.setRawHeaders(b"content-length", [b"%d" % length])
        elif self.clientproto == HTTP_1_1:
            self.chunked = int(not self._only_head)
        else:
            self.persistent = False

    def _add_stock_fields(self, fields: Headers) -> None:
        if self.lastModified is not None and not fields.hasHeader(b"last-modified"):
            fields.setRawHeaders(b"last-modified", [datetimeToString(self.lastModified)])
        if self.etag is not None:
            fields.setRawHeaders(b"etag", [self.etag])
        if self.cookies:
            fields.setRawHeaders(b"set-cookie", self.cookies)
        if (
            self.defaultContentType is not None
            and self.code not in _BODILESS
            and fields.getRawHeaders(b"content-length") != [b"0"]
            and not fields.hasHeader(b"content-type")
        ):
            fields.setRawHeaders(b"content-type", [self.defaultContentType])

    def _end(self) -> None:
        """Let go of the connection, and tell those who wait for the end of the reply."""
        channel = self.channel
        if self.producer is not None:
            self._log.error(
                "A producer was not unregistered at the end of {path}", path=self.shown_path
            )
            self.unregisterProducer()
        if self._declared is not None and self.sentLength != self._declared and not self._only_head:
            self.persistent = False  # the client waits for more, or takes the rest for a reply
        self.finished = 1
        self.channel = None
        if "notifications" in self.__dict__:
            waiting, self.notifications = self.notifications, []
            for finished in waiting:
                finished.callback(None)
        channel.answered(self)

    def _render_get_for_head(self, resource: IResource) -> Any:
        """Answer HEAD by a resource that only knows GET; the body goes nowhere."""
        self._only_head = True
        self.method = b"GET"
        try:
            return resource.render(self)
        finally:
            self.method = b"HEAD"

    def _refuse_method(self, allowed: Iterable[bytes]) -> None:
        message = f"The method {self.method.decode('ascii')} is not allowed here."
        refusal = Refusal(405, "method_not_allowed", message)
        self._refuse(refusal, (b"Allow", b", ".join(allowed)))

    def _refuse(self, refusal: Refusal, *headers: tuple[bytes, bytes]) -> None:
        self.send(refusal.status, OWN_HEADERS + headers, print_body(refusal))

    # The connection.

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Let the client's reading pace a producer of the body."""
        if self.channel is None:
            producer.stopProducing()
            return
        if self.producer is not None:
            raise ValueError("A producer is registered already.")
        self.producer = producer
        self.streamingProducer = streaming
        self.channel.outlet.register_producer(producer, streaming)

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self.producer = None
        if self.channel is not None:
            self.channel.outlet.unregister_producer()

    def loseConnection(self) -> None:
        """Close the connection once everything written is sent."""
        if self.channel is not None:
            self.channel.lose_connection()

    def connectionLost(self, reason: Failure) -> None:
        """Learn that the client is gone; whoever waits for the end of the reply is told why."""
        self._disconnected = True
        self.channel = None
        if "notifications" in self.__dict__:
            waiting, self.notifications = self.notifications, []
            for finished in waiting:
                finished.errback(reason)
