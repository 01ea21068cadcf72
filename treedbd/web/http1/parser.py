"""From the bytes of a connection to one complete request after the other, without I/O.

`Http1Parser.receive` is given bytes in whatever pieces they arrive and returns whether a request is
complete; what follows it stays unread until the next call. The work is shared:

- The request line is parsed here, by one expression, because the resource decides about methods and
  targets: it may know more methods than a parser has in its list, and a target may hold raw UTF-8
  and raw quotation marks, which clients do send.
- Everything after it is parsed by llhttp (through `httptools`), with all its leniencies off: the
  header lines, which of Content-Length and Transfer-Encoding frames the body, keep-alive. It is
  given a fixed request line in place of the client's.
- llhttp does not report where in its input a message ended, so it never gets a byte beyond the end:
  a head is cut at its empty line, a body is counted, a chunked one is followed chunk by chunk. If
  the two parsers could disagree, the request is refused.

A request to upgrade the protocol is answered in the protocol it came in (RFC 9110, section 7.8).
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from treedbd.limits import Limits
from treedbd.web.headers import Headers
from treedbd.web.http1.errors import (
    BAD_TARGET,
    BODY_TOO_LARGE,
    HEADERS_TOO_LONG,
    LINE_TOO_LONG,
    ProtocolError,
    malformed,
)

HTTP_1_1: Final = b"HTTP/1.1"

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^\x00-\x20\x7f]+) (HTTP/1\.[01])\r\n")
_LINE_WITH_BAD_TARGET = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/1\.[01]\r\n")
_TARGET_BUT_A_PATH = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://.*|\*")
_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
_NEVER_IN_A_HEAD = re.compile(rb"(?<!\r)\n|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\r\n]*)?\r\n")
_CHUNK_LINE_BYTES: Final = 1024
_SLASH: Final = ord("/")

# What is being parsed.
_HEAD: Final = 0
_COUNTED_BODY: Final = 1
_CHUNKS: Final = 2
_TRAILERS: Final = 3


class Http1Parser:
    """Parses the requests of one connection.

    After `receive` returned True these describe the request until the next call: `method`;
    `target`, as it was sent; `version`; `headers`, the fields by their names in lower case; `body`,
    None if there is none; `keep_alive`, whether the client wants to keep the connection.
    """

    method = b""
    target = b""
    version = HTTP_1_1
    keep_alive = False
    body: BytesIO | None = None

    def __init__(self, limits: Limits) -> None:
        """Parse within `limits`."""
        self.headers: Headers = {}
        self._limits = limits
        self._surely_short = min(limits.request_line_bytes, limits.header_bytes)
        self._parser = HttpRequestParser(self)
        self._fields: Headers = {}
        self._field_count = 0
        self._complete = False
        self._state = _HEAD
        self._unread = b""
        self._at = 0
        self._searched = 0
        self._content = BytesIO()
        self._content_bytes = 0
        self._remaining = 0
        self._trailer_bytes = 0

    @property
    def unread_bytes(self) -> int:
        """How many bytes were received that no request has used so far."""
        return len(self._unread) - self._at

    @property
    def in_body(self) -> bool:
        """Whether a head has been parsed whose body is not complete."""
        return self._state != _HEAD

    @property
    def body_bytes(self) -> int:
        """How many bytes of the body that is not complete have been received."""
        return self._content.tell() if self._state != _HEAD else 0

    @property
    def awaits_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before its body (RFC 9110, 10.1.1)."""
        return (
            self._state != _HEAD
            and self._at == len(self._unread)
            and not self._content.tell()
            and self.version == HTTP_1_1
            and self.headers.get(b"expect", [b""])[0].lower() == b"100-continue"
        )

    def close(self) -> None:
        """Release the parser of httptools, which refers back to this one."""
        del self._parser

    def hold(self, data: bytes) -> None:
        """Keep bytes without parsing them."""
        self._unread = self._unread[self._at :] + data
        self._searched = max(0, self._searched - self._at)
        self._at = 0

    def receive(self, data: bytes = b"") -> bool:
        """Receive bytes, return whether a request is complete; raise `ProtocolError`."""
        if self._at < len(self._unread):
            if data:
                self.hold(data)
        else:
            self._unread = data
            self._at = 0
        if self._state == _HEAD:
            self._receive_head()
        if self._state == _COUNTED_BODY:
            self._receive_counted()
        elif self._state != _HEAD:
            self._receive_chunks()
        if self._at == len(self._unread):
            self._unread = b""
            self._at = self._searched = 0
        complete, self._complete = self._complete, False
        return complete

    def _receive_head(self) -> None:
        data, at = self._unread, self._at
        empty_lines = _EMPTY_LINES.match(data, at)
        if empty_lines is not None:  # allowed before a request: RFC 9112, section 2.2
            at = self._at = empty_lines.end()
        end = data.find(b"\r\n\r\n", max(at, self._searched))
        if end < 0 or end + 2 - at > self._surely_short:
            self._check_large_or_partial(end)
        if end < 0:
            self._searched = max(at, len(data) - 3)
        else:
            self._at = end + 4
            self._read_head(data, at, end + 4)

    def _check_large_or_partial(self, end: int) -> None:
        """Refuse a head, whole or not, that is too long or cannot become valid.

        Without this the server would wait for a client of another protocol until its time is up.
        """
        data, at = self._unread, self._at
        line_end = data.find(b"\r\n", at)
        whole_line = line_end >= 0
        line_so_far = line_end if whole_line else len(data) - data.endswith(b"\r")
        if line_so_far - at > self._limits.request_line_bytes:
            raise ProtocolError(LINE_TOO_LONG)
        if whole_line:
            headers = line_end + 2
            if (end + 2 if end >= 0 else len(data)) - headers > self._limits.header_bytes:
                raise ProtocolError(HEADERS_TOO_LONG)
            _match_line(data, at)
        if end < 0 and _NEVER_IN_A_HEAD.search(data, max(at, self._searched)):
            raise malformed("The request contains a control character, or a line end without CR.")

    def _read_head(self, data: bytes, at: int, end: int) -> None:
        line = _match_line(data, at)
        self.method, self.target, self.version = line.groups()
        if self.target[0] != _SLASH and not _TARGET_BUT_A_PATH.fullmatch(self.target):
            raise ProtocolError(BAD_TARGET)
        try:
            self._parser.feed_data(b"POST / " + data[line.start(3) : end])
        except HttpParserUpgrade:
            self._forget_upgrade()
        except HttpParserError as error:
            raise _explain(error) from None
        if self._field_count > self._limits.header_count:
            raise ProtocolError(HEADERS_TOO_LONG)
        self.headers = self._pop_fields()
        self.body = None
        if not self._complete:
            self._begin_body()

    def _forget_upgrade(self) -> None:
        """Let a new parser parse the same framing again, without the upgrade.

        The old one treats what follows the head, the body too, as another protocol.
        """
        count = self._field_count
        fields = self._pop_fields()
        self._complete = False
        self._parser = HttpRequestParser(self)
        lines = (
            b"%b: %b\r\n" % (name, b", ".join(fields[name]))
            for name in (b"content-length", b"transfer-encoding", b"connection")
            if name in fields
        )
        self._parser.feed_data(b"POST / %b\r\n%b\r\n" % (self.version, b"".join(lines)))
        self._fields, self._field_count = fields, count

    def _pop_fields(self) -> Headers:
        fields, self._fields = self._fields, {}
        self._field_count = 0
        return fields

    def _begin_body(self) -> None:
        coding = self.headers.get(b"transfer-encoding")
        if coding is None:
            self._remaining = int(self.headers[b"content-length"][0])
            if self._remaining > self._limits.write_body_bytes:
                raise ProtocolError(BODY_TOO_LARGE)
            self._state = _COUNTED_BODY
        else:
            if self.version != HTTP_1_1 or [name.lower() for name in coding] != [b"chunked"]:
                raise malformed("The only supported transfer coding is chunked, with HTTP/1.1.")
            self._remaining = self._content_bytes = self._trailer_bytes = 0
            self._state = _CHUNKS
        self._content = BytesIO()

    def _receive_counted(self) -> None:
        end = min(len(self._unread), self._at + self._remaining)
        self._remaining -= end - self._at
        self._feed_body(end)
        if not self._remaining:
            self._end_body()

    def _receive_chunks(self) -> None:
        """Find how far the body reaches, and let the parser parse that much."""
        data, at = self._unread, self._at
        ended = False
        while at < len(data) and not ended:
            if self._remaining:
                step = min(self._remaining, len(data) - at)
                self._remaining -= step
            elif self._state == _CHUNKS:
                step = self._measure_chunk_line(data, at)
            else:
                step = self._measure_trailer(data, at)
                ended = step == 2
            if not step:
                break
            at += step
        self._feed_body(at)
        if ended:
            self._end_body()

    def _measure_chunk_line(self, data: bytes, at: int) -> int:
        """Return the length of the line at `at` that begins a chunk, 0 if it is not whole."""
        line = _CHUNK_LINE.match(data, at)
        if line is None:
            if len(data) - at > _CHUNK_LINE_BYTES or data.find(b"\n", at) >= 0:
                raise malformed("A chunk does not begin with its size on a line that ends in CRLF.")
            return 0
        size = int(line[1], 16)
        self._content_bytes += size
        if self._content_bytes > self._limits.write_body_bytes:
            raise ProtocolError(BODY_TOO_LARGE)
        if size:
            self._remaining = size + 2
        else:
            self._state = _TRAILERS
        return line.end() - at

    def _measure_trailer(self, data: bytes, at: int) -> int:
        """Return the length of the trailer line at `at`, 0 if it is not whole."""
        end = data.find(b"\n", at) + 1
        if end and not data.endswith(b"\r\n", at, end):
            raise malformed("The trailer contains a line end without CR.")
        step = end - at if end else 0
        if self._trailer_bytes + (step or len(data) - at) > self._limits.header_bytes:
            raise ProtocolError(HEADERS_TOO_LONG)
        self._trailer_bytes += step
        return step

    def _feed_body(self, end: int) -> None:
        piece = memoryview(self._unread)[self._at : end]
        self._at = end
        try:
            self._parser.feed_data(piece)
        except HttpParserError as error:
            raise _explain(error) from None

    def _end_body(self) -> None:
        if not self._complete:
            raise malformed("The body does not end where its framing says.")
        self._pop_fields()  # trailer fields are ignored
        self._state = _HEAD
        self._content.seek(0)
        self.body = self._content
        self._content = BytesIO()

    # Called by the parser of httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a field of the head, or of the trailer."""
        name = name.lower()
        self._field_count += 1
        if name in self._fields:
            self._fields[name].append(value.rstrip())
        else:
            self._fields[name] = [value.rstrip()]

    def on_body(self, data: bytes) -> None:
        """Receive a piece of the content."""
        self._content.write(data)

    def on_message_complete(self) -> None:
        """Note that the message has ended."""
        self._complete = True
        self.keep_alive = self._parser.should_keep_alive()


def _match_line(data: bytes, at: int) -> re.Match[bytes]:
    line = _LINE.match(data, at)
    if line is None:
        if _LINE_WITH_BAD_TARGET.match(data, at):
            raise ProtocolError(BAD_TARGET)
        raise malformed("The request line must be: method, target, HTTP/1.1 or HTTP/1.0.")
    return line


def _explain(error: HttpParserError) -> ProtocolError:
    return malformed(f"The request is not valid HTTP: {error}.")
