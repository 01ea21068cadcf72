"""From the bytes of a connection to one complete request after the other, without I/O.

`Http1Parser.receive` receives bytes in whatever pieces they arrive and returns whether a request is
complete; what follows it is parsed at the next call. The work is shared:

- The request line is parsed here, by one expression, because the resource decides about methods and
  targets: it may know more methods than a parser has in its list, and a target may hold raw UTF-8
  and raw quotation marks, which clients do send.
- Everything after it in the head is parsed by llhttp (through `httptools`), with all its leniencies
  off: the header lines, which of Content-Length and Transfer-Encoding frames the body, keep-alive.
  It is given a fixed request line in place of the client's.
- A body of a known length is counted here. A chunked one is parsed by llhttp, and also followed
  chunk by chunk (`ChunkFollower`): llhttp does not report where in its input a message ended, so it
  never gets a byte beyond the end. If the two could disagree, the request is refused.

A request to upgrade the protocol is answered in HTTP/1.1 (RFC 9110, section 7.8).

Clients repeat themselves. What follows the method and the target in a head is a `HeaderBlock`; its
meaning depends on its bytes alone, so one that is known is not parsed again, whatever client sends
it (`HeaderBlocks`). A request that has arrived as a whole, and whose head has the same bytes as the
one before it on its connection, is not parsed at all. What resources and logs made of such a head
is kept in a `HeadMemory`.

The errors here are all that the HTTP server sends by itself. They concern the protocol, not the
database: bytes that are not a request, a limit that is exceeded, too many connections. The reply to
one has the same form as all errors and ends the connection. Errors in complete requests are up to
the resource. A reply that has begun cannot become an error: it is cut off (`CutOff`).

The body of a request may have a content coding (RFC 9110, section 8.4). Decoding is incremental and
stops at the limit, so a small body that would decode to gigabytes costs what a body of that limit
costs. A body is one gzip member or one zstd frame: of several, a body of empty ones could hold a
million.
"""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedIOBase, BytesIO
from typing import Final, Generic, Literal, NoReturn, Protocol, TypeAlias, TypeVar

import orjson
from attrs import frozen
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from treedbd.caches import empty_together
from treedbd.errors import in_one_line
from treedbd.limits import KIB, MIB, Limits
from treedbd.tree.types import InvalidData

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Header: TypeAlias = tuple[bytes, bytes]
"""Name and value of a field of a response."""

Headers: TypeAlias = Mapping[bytes, Sequence[bytes]]
"""The values of each field, by its name in lower case, in the order in which they came.

They are never changed: requests with the same head share them."""


def first(headers: Headers, name: bytes) -> str | None:
    """Return the first value of a field as text, None if the field is absent."""
    values = headers.get(name)
    return values[0].decode("latin-1") if values else None


def joined(headers: Headers, name: bytes) -> str | None:
    """Return all values of a list field, joined by commas; None if the field is absent."""
    values = headers.get(name)
    return b", ".join(values).decode("latin-1") if values else None


def is_true(headers: Headers, name: bytes) -> bool:
    """Return whether the first value of a field is `true`, in either case."""
    values = headers.get(name)
    return values is not None and values[0].lower() == b"true"


HTTP_1_1: Final = b"HTTP/1.1"
_REMEMBERED_BYTES: Final = 2 * KIB
"""Longer heads are parsed each time."""
KEPT_BYTES: Final = 16 * KIB
"""What was made of a head is dropped with the reply if it takes more, as it is estimated."""
CutOff: TypeAlias = Literal["client", "slow", "timeout", "stop", "failed"]
"""Why a reply did not reach its end: the client disconnected, read too slowly, or set a time-out
that has passed; the server stopped; or there was an error."""

ERROR_HEADERS: Final = (
    (b"Content-Type", b"application/json; charset=utf-8"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Cache-Control", b"no-store"),
)
STATUS_LINES: Final = {
    int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


@frozen
class ErrorReply:
    """A reply that ends the connection: a status, a code of the error table, a sentence.

    The client may try again in `retry_after_s` seconds, None if that is not known.
    """

    status: int
    code: str
    message: str
    retry_after_s: int | None = None


class ProtocolError(Exception):
    """The bytes of a client cannot become a request; `reply` says why."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.message)
        self.reply = reply


BAD_TARGET: Final = ErrorReply(
    400, "invalid_path", "The request target must be a path or a URL, without raw spaces."
)
HEAD_TIMEOUT: Final = ErrorReply(408, "request_timeout", "The request took too long to arrive.")
BODY_TIMEOUT: Final = ErrorReply(408, "request_timeout", "The request body arrived too slowly.")
BODY_TOO_LARGE: Final = ErrorReply(413, "payload_too_large", "The request body is too large.")
LINE_TOO_LONG: Final = ErrorReply(414, "too_long", "The request line is too long.")
TOO_MANY_FROM_ADDRESS: Final = ErrorReply(
    429, "too_many_requests", "There are too many connections from this address.", 1
)
HEADERS_TOO_LONG: Final = ErrorReply(431, "too_long", "The request headers are too long.")
INTERNAL: Final = ErrorReply(500, "internal_error", "The server failed to answer this request.")
TOO_MANY_BODIES: Final = ErrorReply(
    503, "unavailable", "Too many request bodies are arriving; try again later.", 1
)
HELD_TOO_MUCH: Final = ErrorReply(
    503,
    "unavailable",
    "The server holds too much for its clients at present; try again later.",
    1,
)
TOO_MANY: Final = ErrorReply(
    503, "unavailable", "There are too many connections; try again later.", 1
)
SHUTTING_DOWN: Final = ErrorReply(503, "unavailable", "The server is shutting down.", 1)
_MALFORMED: Final = (400, "invalid_data")

REPLIES: Final = (
    ErrorReply(*_MALFORMED, ""),
    *(each for each in tuple(vars().values()) if isinstance(each, ErrorReply)),
)
"""All replies to errors, whatever their sentences."""


def malformed(message: str) -> ProtocolError:
    """Return the error of bytes that break the syntax of HTTP (RFC 9112)."""
    return ProtocolError(ErrorReply(*_MALFORMED, message))


def format_body(error: ErrorReply) -> bytes:
    """Return the JSON of an error: `{"error": code, "message": sentence}`."""
    return orjson.dumps({"error": error.code, "message": error.message})


def format_reply(error: ErrorReply, date_lines: bytes, headers: Iterable[Header] = ()) -> bytes:
    """Return the whole last reply of a connection; `date_lines` are header lines with CRLF."""
    body = format_body(error)
    if error.retry_after_s is not None:
        headers = (*headers, (b"Retry-After", b"%d" % error.retry_after_s))
    lines = b"".join(b"%b: %b\r\n" % each for each in (*ERROR_HEADERS, *headers))
    return b"%b%b%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        STATUS_LINES[error.status],
        date_lines,
        lines,
        len(body),
        body,
    )


_USED_ONCE: Final = 8192
"""Hashes of keys that were used once."""


class HeadCache(Generic[K, T]):
    """Keeps what was made of the bytes of heads that were used last, in a bounded number of bytes.

    It has two generations. What is added or found is in the younger one; when that has half of the
    bytes, it becomes the older one, and what was in the older one is forgotten. So a use costs one
    look-up, and many keys that are used once do not displace those that are used often. By
    `add_at_second_use` they do not even enter: of a first use only the hash is kept, in a table in
    which the last of those that share a place stays.

    Attributes:
        size: how many bytes the entries take, as they are estimated.

    """

    def __init__(self, limit: int, size_of: Callable[[K, T], int]) -> None:
        """Keep at most `limit` bytes; `size_of` returns those of an entry."""
        self._half = limit // 2
        self._size_of = size_of
        self._young: dict[K, T] = {}
        self._old: dict[K, T] = {}
        self._young_size = 0
        self._old_size = 0
        self._used_once = array("q", bytes(8 * _USED_ONCE))
        empty_together(self)

    @property
    def size(self) -> int:
        """How many bytes the entries take."""
        return self._young_size + self._old_size

    def __len__(self) -> int:
        """Return how many entries there are; one that was used again may count twice."""
        return len(self._young) + len(self._old)

    def find(self, key: K) -> T | None:
        """Return what is kept, None if nothing is."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.add(key, value)
        return value

    def add(self, key: K, value: T) -> None:
        """Keep a value under a key that has none in the younger generation."""
        size = self._size_of(key, value)
        if self._young_size + size > self._half:
            self._old, self._old_size = self._young, self._young_size
            self._young, self._young_size = {}, 0
            if size > self._half:
                return
        self._young[key] = value
        self._young_size += size

    def add_at_second_use(self, key: K, value: T) -> None:
        """Keep a value as `add` does if this was called with the key before, not long ago."""
        number = hash(key)
        place = number % _USED_ONCE
        if self._used_once[place] == number:
            self.add(key, value)
        else:
            self._used_once[place] = number

    def cache_clear(self) -> None:
        """Forget everything."""
        self._used_once = array("q", bytes(8 * _USED_ONCE))
        self._young, self._old = {}, {}
        self._young_size = self._old_size = 0


class FieldsKey(Protocol):
    """Header fields as a key: a `HeaderBlock`, or what proxies say in one.

    Each is equal to itself only.
    """

    @property
    def size(self) -> int:
        """How many bytes they take in memory, about."""


class HeaderBlock:
    """What a head says after its method and target: the version of HTTP, and the header fields.

    Requests with the same bytes there share it, and nothing else of them is in it.

    Attributes:
        lines: the bytes, from the version to the empty line.
        fields: the fields.
        keep_alive: whether the client wants to keep the connection.
        body_bytes: how long the body is, None if it is chunked.
        origin: the block of which it has everything but the length of the body, None if it is that.
        is_kept: whether it is short enough to be kept for further requests.
        size: how many bytes it takes in memory, about.
        forwarded: what trusted proxies say in it (`ForwardedRequest`), None until that is read.

    """

    __slots__ = (
        *("body_bytes", "fields", "forwarded", "is_kept", "keep_alive", "lines"),
        *("origin", "size"),
    )

    def __init__(
        self,
        lines: bytes,
        fields: Headers,
        *,
        keep_alive: bool,
        body_bytes: int | None,
        origin: HeaderBlock | None = None,
    ) -> None:
        self.lines: Final = lines
        self.fields: Final = fields
        self.keep_alive: Final = keep_alive
        self.body_bytes: Final = body_bytes
        self.is_kept: Final = len(lines) <= _REMEMBERED_BYTES
        self.size: Final = (
            2 * len(lines) + _FIELD_BYTES * (len(fields) + 1) + _VALUE_BYTES * lines.count(b"\n")
        )
        self.forwarded: object = None
        self.origin: Final = origin

    def with_length(self, lines: bytes, length: bytes) -> HeaderBlock:
        """Return this block with another length of the body, above 0; `lines` are its bytes."""
        return HeaderBlock(
            lines,
            {**self.fields, _CONTENT_LENGTH: [length]},
            keep_alive=self.keep_alive,
            body_bytes=int(length),
            origin=self,
        )


class HeadMemory:
    """What is remembered of a head, for the requests of one connection that repeat it.

    Attributes:
        block: its header block, None if that was long and is dropped.
        fields_key: its header fields, whatever the length of the body, in keys of what is
            remembered of requests; None if the head is too long for that.
        question: what the resource made of the head, of any type; None at first.
        like: what it made of another head that differs in the target only, until it has made that.
        logged: what the access log made of it, None until it is logged.
        identity: the caller that has opened a stream with it, None without one.
        size: how many bytes the block takes in memory, about; the resource adds what it makes of
            parameters and fields. Beyond `KEPT_BYTES` it is dropped with the reply.

    """

    __slots__ = ("block", "fields_key", "identity", "like", "logged", "question", "size")

    def __init__(
        self, block: HeaderBlock | None = None, fields_key: FieldsKey | None = None
    ) -> None:
        self.block = block
        self.fields_key = fields_key
        self.question: object = None
        self.like: object = None
        self.logged: object = None
        self.identity: object = None
        self.size = 0 if block is None else block.size


class _FieldCollector:
    """Collects what the parser of httptools finds in a header block."""

    def __init__(self) -> None:
        self.fields: dict[bytes, list[bytes]] = {}
        self.count = 0
        self.keep_alive = False
        self.parser = HttpRequestParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a field."""
        name = name.lower()
        self.count += 1
        if name in self.fields:
            self.fields[name].append(value.rstrip())
        else:
            self.fields[name] = [value.rstrip()]

    def on_headers_complete(self) -> None:
        """Note what the parser knows at this moment only."""
        self.keep_alive = self.parser.should_keep_alive()


def parse_block(lines: bytes, limits: Limits) -> HeaderBlock:
    """Parse what follows method and target in a head; raise `ProtocolError`."""
    found = _FieldCollector()
    try:
        found.parser.feed_data(b"POST / " + lines)
    except HttpParserUpgrade:
        pass  # it is answered in HTTP/1.1
    except HttpParserError as error:
        raise _explain(error) from None
    finally:
        del found.parser  # which refers to it
    fields = found.fields
    body_bytes: int | None = 0
    if found.count > limits.header_count:
        raise ProtocolError(HEADERS_TOO_LONG)
    if _TRANSFER_CODING in fields:
        codings = [name.lower() for name in fields[_TRANSFER_CODING]]
        if not lines.startswith(HTTP_1_1) or codings != [b"chunked"]:
            raise malformed("The only supported transfer coding is chunked, with HTTP/1.1.")
        body_bytes = None
    elif _CONTENT_LENGTH in fields:
        body_bytes = int(fields[_CONTENT_LENGTH][0])
    return HeaderBlock(lines, fields, keep_alive=found.keep_alive, body_bytes=body_bytes)


_CONTENT_LENGTH: Final = b"content-length"
_TRANSFER_CODING: Final = b"transfer-encoding"
_LENGTH_LINE = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,9})\r\n")
"""As nearly all clients send it."""
ALL_BLOCK_BYTES: Final = 4 * MIB
"""What all header blocks take that are kept: those of some 2,000 clients with a token each."""
_FIELD_BYTES: Final = 200
"""What a parsed field takes in memory beside its values, and a block beside its fields."""
_VALUE_BYTES: Final = 50
"""What a value takes beside its bytes."""


class HeaderBlocks:
    """The header blocks that were parsed last, of all connections of a server.

    Requests to write differ in the length of their bodies, so a block is found by its bytes with
    another length in place of its own.
    """

    def __init__(self, limits: Limits) -> None:
        """Parse within `limits`."""
        self._limits = limits
        self._kept: HeadCache[bytes, HeaderBlock] = HeadCache(ALL_BLOCK_BYTES, _size_of_block)

    @property
    def size(self) -> int:
        """How many bytes they take, as they are estimated."""
        return self._kept.size

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._kept)

    def find(self, lines: bytes) -> HeaderBlock:
        """Return the block of `lines`, from the version to the empty line; raise `ProtocolError`.

        It is parsed if it is not known.
        """
        block = self._kept.find(lines)
        if block is not None:
            return block
        if len(lines) > _REMEMBERED_BYTES:
            return parse_block(lines, self._limits)
        length = _LENGTH_LINE.search(lines)
        if length is None:
            return self._parse(lines)
        origin = b"%b1%b" % (lines[: length.start(1)], lines[length.end(1) :])
        block = self._kept.find(origin) or self._parse(origin)
        return block if lines == origin else block.with_length(lines, length[1])

    def _parse(self, lines: bytes) -> HeaderBlock:
        block = parse_block(lines, self._limits)
        self._kept.add(lines, block)
        return block


def _size_of_block(_: bytes, block: HeaderBlock) -> int:
    return block.size


REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^\x00-\x20\x7f]+) (HTTP/1\.[01])\r\n")
"""Method, target, version (RFC 9112, section 3)."""
_LINE_WITH_BAD_TARGET = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/1\.[01]\r\n")
_TARGET_BUT_A_PATH = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://.*|\*")
NEVER_IN_A_HEAD = re.compile(rb"(?<!\r)\n|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def refuse_line(data: bytes, at: int) -> NoReturn:
    """Raise the `ProtocolError` for the line at `at`, which is not a request line."""
    if _LINE_WITH_BAD_TARGET.match(data, at):
        raise ProtocolError(BAD_TARGET)
    raise malformed("The request line must be: method, target, HTTP/1.1 or HTTP/1.0.")


def check_target(target: bytes) -> None:
    """Raise `ProtocolError` for a target that is neither a URL nor `*`; a path needs no check."""
    if not _TARGET_BUT_A_PATH.fullmatch(target):
        raise ProtocolError(BAD_TARGET)


_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\r\n]*)?\r\n")
_CHUNK_LINE_BYTES: Final = 1024


class ChunkFollower:
    """Finds the end of a chunked body in the pieces in which it arrives (RFC 9112, 7.1).

    Its chunks and its trailer are measured here, not parsed.

    Attributes:
        has_ended: whether the empty line after the trailer was found.

    """

    def __init__(self, limits: Limits) -> None:
        """Begin before the first chunk; content and trailer are bounded by `limits`."""
        self.has_ended = False
        self._limits = limits
        self._remaining = 0
        self._content_bytes = 0
        self._trailer_bytes = 0
        self._in_trailer = False

    def follow(self, data: bytes, at: int) -> int:
        """Return how far the body reaches in `data`, from `at` on; raise `ProtocolError`.

        A line that is not whole is not followed; it begins `data` the next time.
        """
        while at < len(data) and not self.has_ended:
            if self._remaining:
                step = min(self._remaining, len(data) - at)
                self._remaining -= step
            elif not self._in_trailer:
                step = self._measure_chunk_line(data, at)
            else:
                step = self._measure_trailer(data, at)
                self.has_ended = step == 2
            if not step:
                break
            at += step
        return at

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
            self._in_trailer = True
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


SEGMENT_BYTES: Final = 256 * KIB


class LongBody(BufferedIOBase):
    """A long body in memory: a binary file to which data is always appended.

    It is kept in segments: a single buffer that grows to hundreds of megabytes is moved each time
    that it grows, and no client is answered while the system does that.
    """

    def __init__(self) -> None:
        """Begin without content."""
        self._segments: list[bytearray] = []
        self._size = 0
        self._at = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]  # of bytes only
        """Append to the end, which becomes the position."""
        rest = memoryview(data)
        while rest:
            if self._size % SEGMENT_BYTES == 0:
                self._segments.append(bytearray())
            part = rest[: SEGMENT_BYTES - self._size % SEGMENT_BYTES]
            self._segments[-1] += part
            self._size += len(part)
            rest = rest[len(part) :]
        self._at = self._size
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, all that are left without a size."""
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < end:
            number, begin = divmod(self._at, SEGMENT_BYTES)
            part = self._segments[number][begin : begin + end - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Set the position, and return it."""
        self._at = max(0, offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
_MAX_EMPTY_LINES: Final = 8
"""Old clients send one after a body; a client that sends nothing else sends no requests."""
_SLASH: Final = ord("/")


class Http1Parser:
    """Parses the requests of one connection.

    After `receive` returned True these describe the request until the next call: `method`;
    `target`, as it was sent; `version`; `headers`, the fields by their names in lower case; `body`,
    None if there is none; `body_size`, its bytes; `keep_alive`, whether the client wants to keep
    the connection; `head_bytes`, how long the head was, 0 if it was short; `head_memory`, the same
    for requests that follow each other with the same head.

    `in_body` says whether a head has been parsed whose body is not complete.
    """

    method = b""
    target = b""
    version = HTTP_1_1
    keep_alive = False
    body_size = 0
    head_bytes = 0
    body: BufferedIOBase | None = None
    in_body = False

    def __init__(self, limits: Limits, blocks: HeaderBlocks | None = None) -> None:
        """Parse within `limits`; `blocks` are those of the server, None for ones of its own."""
        self.headers: Headers = {}
        self._limits = limits
        self._blocks = HeaderBlocks(limits) if blocks is None else blocks
        self._block: HeaderBlock | None = None  # of the last head, if it may be kept
        self._surely_short = min(limits.request_line_bytes, limits.header_bytes)
        self._complete = False
        self._unread = b""
        self._at = 0
        self._searched = 0
        self._content: BufferedIOBase = BytesIO()
        self._remaining = 0
        self._chunks: ChunkFollower | None = None  # of the body, if it is chunked
        self.head_memory = HeadMemory()
        self._parsed_any = False
        self._known = b""  # the head that the attributes describe, if it is remembered
        self._known_body = 0
        self._empty_lines = 0  # before the next head

    @property
    def unread_bytes(self) -> int:
        """How many bytes were received that no request has used so far."""
        return len(self._unread) - self._at

    @property
    def body_bytes(self) -> int:
        """How many bytes of the body that is not complete have been received."""
        return self._content.tell() if self.in_body else 0

    @property
    def awaits_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before its body (RFC 9110, 10.1.1)."""
        return (
            self.in_body
            and self._at == len(self._unread)
            and not self._content.tell()
            and self.version == HTTP_1_1
            and self.headers.get(b"expect", [b""])[0].lower() == b"100-continue"
        )

    def end(self) -> bytes:
        """Stop parsing; return what no request has used, and release what is held."""
        unread, self._unread = self._unread[self._at :], b""
        self._at = self._searched = 0
        self.in_body, self._chunks = False, None
        self._content = BytesIO()
        self.close()
        return unread

    def close(self) -> None:
        """Release what is known, and the parser of chunks, which refers back to this one."""
        self.__dict__.pop("_chunk_parser", None)
        self.forget()

    def forget(self) -> None:
        """Release what describes the last request."""
        self._known = self.target = b""
        self._block = None
        self.headers = {}
        self.head_memory = HeadMemory()
        self.head_bytes = 0

    def hold(self, data: bytes) -> None:
        """Keep bytes without parsing them."""
        self._unread = self._unread[self._at :] + data
        self._searched = max(0, self._searched - self._at)
        self._at = 0

    def receive(self, data: bytes = b"") -> bool:
        """Receive bytes, return whether a request is complete; raise `ProtocolError`."""
        known = self._known
        if known and (self._unread or data.startswith(known)) and self._repeats(data):
            return True
        if self._at < len(self._unread):
            if data:
                self.hold(data)
        else:
            self._unread = data
            self._at = 0
        if not self.in_body:
            self._receive_head()
        if self.in_body:
            self._receive_counted() if self._chunks is None else self._receive_chunks(self._chunks)
        if self._at == len(self._unread):
            self._unread = b""
            self._at = self._searched = 0
        complete, self._complete = self._complete, False
        return complete

    def _repeats(self, data: bytes) -> bool:
        """Return whether the next whole request has the head of the one before it.

        Then the attributes describe it already, except its body. `data` has just been received.
        """
        known, body = self._known, self._known_body
        if len(data) != len(known) + body or self._unread:
            return self._repeats_among_others(data)
        if self.in_body:
            return False
        if body:
            self.body = BytesIO(data[len(known) :])
        return True

    def _repeats_among_others(self, data: bytes) -> bool:
        """Return the same if `data` is not exactly one request."""
        known, body = self._known, self._known_body
        if self.in_body or (data and self._unread):
            return False
        received = data or self._unread
        begin = self._at + len(known)
        end = begin + body
        if len(received) < end or not received.startswith(known, self._at):
            return False
        if body:
            self.body = BytesIO(received[begin:end])
        is_last = end == len(received)
        self._unread, self._at = (b"", 0) if is_last else (received, end)
        self._searched = 0
        return True

    def _receive_head(self) -> None:
        data, at = self._unread, self._at
        empty_lines = _EMPTY_LINES.match(data, at)
        if empty_lines is not None:  # allowed before a request: RFC 9112, section 2.2
            at = self._skip_lines(empty_lines.end())
        end = data.find(b"\r\n\r\n", max(at, self._searched))
        if end < 0 or end + 2 - at > self._surely_short:
            self._check_large_or_partial(end)
        if end < 0:
            self._searched = max(at, len(data) - 3)
        else:
            self._at = end + 4
            self._read_head(data, at, end + 4)

    def _skip_lines(self, end: int) -> int:
        """Skip the empty lines up to `end`, and return it; raise `ProtocolError` for too many."""
        self._known = b""  # so that the next head is read, and the lines before it are over
        self._empty_lines += (end - self._at) // 2
        if self._empty_lines > _MAX_EMPTY_LINES:
            refuse_line(self._unread, self._at)
        self._at = end
        return end

    def _check_large_or_partial(self, end: int) -> None:
        """Refuse a head, whole or not, that is too long or cannot become valid.

        Without this the server would wait for a client of another protocol until the head times
        out.
        """
        data, at = self._unread, self._at
        line_end = data.find(b"\r\n", at)
        whole_line = line_end >= 0
        line_so_far = line_end if whole_line else len(data) - data.endswith(b"\r")
        if line_so_far - at > self._limits.request_line_bytes:
            raise ProtocolError(LINE_TOO_LONG)
        if whole_line:
            headers = line_end + 2
            # The last of these may be half of the empty line, which is not a header line.
            so_far = end + 2 if end >= 0 else len(data) - data.endswith(b"\r\n\r")
            if so_far - headers > self._limits.header_bytes:
                raise ProtocolError(HEADERS_TOO_LONG)
            if REQUEST_LINE.match(data, at) is None:
                refuse_line(data, at)
        # The pattern sees what is before: a CR there ends the body of another request, not a line.
        is_bare = data.startswith(b"\n", at)
        if end < 0 and (is_bare or NEVER_IN_A_HEAD.search(data, max(at, self._searched))):
            raise malformed("The request contains a control character, or a line end without CR.")

    def _read_head(self, data: bytes, at: int, end: int) -> None:
        self._known = b""
        self._empty_lines = 0
        line = REQUEST_LINE.match(data, at) or refuse_line(data, at)
        self.method, self.target, self.version = line.groups()
        if self.target[0] != _SLASH:
            check_target(self.target)
        lines, block = data[line.start(3) : end], self._block
        if block is None or lines != block.lines:
            block = self._blocks.find(lines)
            self._block = block if block.is_kept else None
        self.headers, self.keep_alive = block.fields, block.keep_alive
        is_long = end - at > _REMEMBERED_BYTES
        self.head_memory = HeadMemory(block, None if is_long else block.origin or block)
        self.head_bytes = end - at if is_long else 0
        self.body = None
        self.body_size = self._remaining = 0
        if block.body_bytes == 0:
            self._complete = True
        else:
            self._begin_body(block.body_bytes)
        self._remember(data, at, end)

    def _remember(self, data: bytes, at: int, end: int) -> None:
        """Remember a head for the next request; not the first one, often the only one."""
        if self._parsed_any and self._chunks is None and end - at <= _REMEMBERED_BYTES:
            self._known = data[at:end]
            self._known_body = self._remaining
        self._parsed_any = True

    def _begin_body(self, size: int | None) -> None:
        if size is None:
            self._chunks = ChunkFollower(self._limits)
            self._chunk_parser = self._make_chunk_parser()
        else:
            self._remaining = size
            if size > self._limits.write_body_bytes:
                raise ProtocolError(BODY_TOO_LARGE)
        self.in_body = True
        is_long = size is None or size > SEGMENT_BYTES  # a chunked one may become so
        self._content = LongBody() if is_long else BytesIO()

    def _make_chunk_parser(self) -> HttpRequestParser:
        """Return a parser of httptools before a chunked body.

        It does not see an upgrade, after which it would take the body for another protocol.
        """
        parser = HttpRequestParser(self)
        connection = b", ".join(self.headers.get(b"connection", ()))
        lines = (self.version, b"Transfer-Encoding: chunked", b"Connection: " + connection)
        parser.feed_data(b"POST / %b\r\n\r\n" % b"\r\n".join(lines))
        return parser

    def _receive_counted(self) -> None:
        end = min(len(self._unread), self._at + self._remaining)
        self._remaining -= end - self._at
        self._content.write(memoryview(self._unread)[self._at : end])
        self._at = end
        if not self._remaining:
            self._complete = True
            self._end_body()

    def _receive_chunks(self, chunks: ChunkFollower) -> None:
        end = chunks.follow(self._unread, self._at)
        piece = memoryview(self._unread)[self._at : end]
        self._at = end
        try:
            self._chunk_parser.feed_data(piece)
        except HttpParserError as error:
            raise _explain(error) from None
        if chunks.has_ended:
            if not self._complete:
                raise malformed("The body does not end where its framing says.")
            del self._chunk_parser
            self._end_body()

    def _end_body(self) -> None:
        self.in_body, self._chunks = False, None
        self.body_size = self._content.tell()
        self._content.seek(0)
        self.body = self._content
        self._content = BytesIO()

    # Called by the parser of a chunked body; the fields of a trailer are ignored.

    def on_body(self, data: bytes) -> None:
        """Receive a piece of the content."""
        self._content.write(data)

    def on_message_complete(self) -> None:
        """Note that the message has ended."""
        self._complete = True
        self.keep_alive = self._chunk_parser.should_keep_alive()


def _explain(error: HttpParserError) -> ProtocolError:
    return malformed(f"The request is not valid HTTP: {error}.")


_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class BadEncoding(ValueError):
    """Bytes that do not decode to text; `problem` says why, from the verb on."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def decode(raw: bytes) -> str:
    """Return the text of percent-encoded UTF-8 (RFC 3986, section 2.1); raise `BadEncoding`."""
    if b"%" in raw:
        if _BROKEN.search(raw):
            raise BadEncoding("holds a % without two hexadecimal digits")
        raw = decode_leniently(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadEncoding("is not UTF-8") from None


def decode_leniently(raw: bytes) -> bytes:
    """Return the bytes of percent-encoded ones; a broken escape stays as it is."""
    return _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw)


Coding: TypeAlias = Literal["gzip", "zstd"]

ACCEPTED: Final[Header] = (b"Accept-Encoding", b"gzip, zstd")
"""The header of a response to a body in another coding (RFC 9110, section 15.5.16)."""
ZSTD_WINDOW_LOG: Final = 23
"""The largest window of the coding zstd is 8 MiB (RFC 9659, section 3)."""

_CODINGS: Final[dict[str, Coding]] = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}
_NO_CODING: Final = frozenset({"", "identity"})
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_MAX_SHOWN_CHARACTERS: Final = 64


class UnsupportedEncoding(Exception):
    """The body is in a content coding that is not decoded here, or in several."""

    def __init__(self, codings: str) -> None:
        """`codings` are those that the request lists."""
        shown = in_one_line(codings[:_MAX_SHOWN_CHARACTERS])
        super().__init__(f"The Content-Encoding {shown} is not supported: send gzip, zstd or none.")


class _Decoder(Protocol):
    """The common interface of the decompressors of zlib and of zstd."""

    @property
    def eof(self) -> bool:
        """Whether the end of the member or frame has been reached."""

    @property
    def unused_data(self) -> bytes:
        """What follows that end."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return the decoded bytes, `max_length` at most."""


def parse_coding(headers: Headers) -> Coding | None:
    """Return the content coding of a request, None for none; raise `UnsupportedEncoding`."""
    field = joined(headers, b"content-encoding")
    if field is None:
        return None
    names = [name for part in field.split(",") if (name := part.strip().lower()) not in _NO_CODING]
    if not names:
        return None
    coding = _CODINGS.get(names[0])
    if coding is None or len(names) > 1:
        raise UnsupportedEncoding(", ".join(names))
    return coding


def decode_body(body: bytes, coding: Coding, limit: int) -> bytes | None:
    """Return a body decoded, None if it has more than `limit` bytes then.

    Raises `InvalidData` for one that is not exactly one whole member or frame.
    """
    decoder = _make_decoder(coding)
    try:
        decoded = decoder.decompress(body, limit + 1)
    except (zlib.error, zstd.ZstdError):
        raise InvalidData(f"The body is not valid {coding}.") from None
    if len(decoded) > limit:
        return None
    if not decoder.eof:
        raise InvalidData(f"The body is not valid {coding}: its end is missing.")
    if decoder.unused_data:
        raise InvalidData(f"The body is not valid {coding}: something follows its end.")
    return decoded


def decode_pieces(sent: Iterator[bytes], coding: Coding, size: int) -> Iterator[bytes]:
    """Yield a body decoded, in pieces of at most `size` bytes; raise `InvalidData` as above."""
    decoder = _make_decoder(coding)
    while not decoder.eof:
        # zlib returns here the input that it had no room to decode; zstd keeps its own, and says
        # whether it needs more.
        data: bytes = getattr(decoder, "unconsumed_tail", b"")
        if not data and getattr(decoder, "needs_input", True):
            data = next(sent, b"")
            if not data:
                raise InvalidData(f"The body is not valid {coding}: its end is missing.")
        try:
            piece = decoder.decompress(data, size)
        except (zlib.error, zstd.ZstdError):
            raise InvalidData(f"The body is not valid {coding}.") from None
        if piece:
            yield piece
    if decoder.unused_data or next(sent, b""):
        raise InvalidData(f"The body is not valid {coding}: something follows its end.")


def _make_decoder(coding: Coding) -> _Decoder:
    if coding == "gzip":
        return zlib.decompressobj(_GZIP_BITS)
    return zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
    )
