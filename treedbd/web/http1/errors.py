"""The errors that the HTTP server sends by itself, and the bytes of their replies.

An error here concerns the protocol, not the database: bytes that are not a request, a limit that is
exceeded, too many connections. Its reply has the same form as all errors and ends the connection.
Errors in complete requests are up to the resource. A reply that has begun cannot become an error:
it is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Literal, TypeAlias

import orjson
from attrs import frozen

from treedbd.web.headers import Header

ERROR_HEADERS: Final = (
    (b"Content-Type", b"application/json; charset=utf-8"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Cache-Control", b"no-store"),
)
CutOff: TypeAlias = Literal["client", "slow", "timeout", "stop", "failed"]
"""Why a reply did not reach its end: its client went, read too slowly, or not within the time that
it allowed itself; the server stops; or there was an error."""
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
"""All that there are, whatever their sentences."""


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
