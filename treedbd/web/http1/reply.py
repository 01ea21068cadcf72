"""The reply of a request: `twisted.web.server.Request` with cheaper writing.

Beside the ordinary `write` and `finish` there is `send`, which puts a whole reply into one write of
the connection, and `send_content` for a long one. It differs from the stock request where that one
is wrong for this service: errors are JSON; no reply names the server; writing after the client has
gone does nothing; what is logged never holds the query of a URI, which may hold a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import NO_BODY_CODES, SWITCHING, datetimeToString
from twisted.web.http_headers import Headers as StockHeaders
from twisted.web.server import Request as StockRequest
from twisted.web.server import Site

from treedbd.caches import bounded_cache
from treedbd.web.content import Content, ContentReader
from treedbd.web.headers import Header
from treedbd.web.http1.direct_send import DirectSend
from treedbd.web.http1.errors import ERROR_HEADERS, STATUS_LINES, CutOff, ErrorReply, format_body
from treedbd.web.http1.parser import HTTP_1_1
from treedbd.web.http1.tally import Tally
from treedbd.web.http1.writer import ConnectionWriter

_CRLF: Final = b"\r\n"
_CLOSE: Final = b"Connection: close\r\n"
_KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_REMEMBERED_FIELDS: Final = 128
_OWN_FIELDS: Final = frozenset({b"Connection", b"Date", b"Server", b"Transfer-Encoding"})


class RequestConnection(Protocol):
    """What a request knows of its connection; `date_lines` begin its plain and secure replies."""

    secure: bool
    date_lines: list[bytes]
    peer: IAddress
    host: IAddress
    site: Site
    writer: ConnectionWriter
    sent_past: Tally

    @property
    def transport(self) -> Any:
        """The transport of the connection."""

    def answered(self, request: Any) -> None:
        """Note that a request has its whole reply."""

    def shorten_head(self, request: Any) -> None:
        """Keep little of a long head: its reply lasts, or another protocol follows."""

    def lose_connection(self) -> None:
        """Close once everything is sent."""

    def abort(self, reason: CutOff = "failed") -> None:
        """Drop the connection."""


class Reply(StockRequest):
    """One reply.

    Attributes:
        connection: the connection that the request came over.
        channel: the same, None once the reply is complete or cannot be sent.
        persistent: whether the connection stays open after the reply; may be set to False.
        shown_path: the path as a log may show it.
        reply_began: when a reply that is not sent at once began, in seconds of `perf_counter`.
        cut_off: why the reply ended before its end, None while it did not.

    """

    connection: RequestConnection
    channel: Any
    persistent: bool
    shown_path: str
    has_own_timeout: bool
    isSecure: Callable[[], bool]

    _log = Logger()
    reply_began: float | None = None
    cut_off: CutOff | None = None
    _content_begins: int | None = None  # after so many bytes of the connection
    _declared: int | None = None
    _only_head = False
    _ends_connection = False  # a body of unknown length ends with the connection
    _is_raw = False  # the body is sent as it is written; such a reply was begun, and not to HEAD

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

    def find_free_send(self) -> tuple[DirectSend | None, Tally | None]:
        """Return what sends content past the request (`IHttp1Request.find_free_send`)."""
        is_free = self._is_raw and self.channel is not None and self._encoder is None
        send = self.channel.writer.find_free_send() if is_free else None
        return send, self.connection.sent_past

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
            self.persistent = False  # the client waits for more, or reads the rest as a reply
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

        Returns whether that is a reply cut off. A client may end a stream, and go before its reply
        begins; what speaks another protocol has ends of its own.
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


@bounded_cache(_REMEMBERED_FIELDS)
def _format_fields(headers: tuple[Header, ...]) -> bytes:
    """Return header lines; raise ValueError for a line end in one. Most replies share theirs."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers):
        raise ValueError("A header holds a line end.")
    return lines
