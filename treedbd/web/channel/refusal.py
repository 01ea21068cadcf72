"""What the channel itself refuses, and the bytes that say so.

A refusal here concerns the protocol, not the database: a request that never became one, a limit
passed, no room for a connection. Its answer has the one form of all errors and ends the
connection. Refusals of complete requests belong to the resource above.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, TypeAlias

import orjson
from attrs import frozen

HeaderLines: TypeAlias = Iterable[tuple[bytes, bytes]]

OWN_HEADERS: Final = (
    (b"Content-Type", b"application/json; charset=utf-8"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Cache-Control", b"no-store"),
)
STATUS_LINES: Final = {
    int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


@frozen
class Refusal:
    """An answer that ends the connection: a status, a code of the error table, a sentence."""

    status: int
    code: str
    message: str


class Refused(Exception):
    """Raised where bytes of a peer cannot become a request; carries the `Refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


BAD_TARGET: Final = Refusal(
    400, "invalid_path", "The request target must be a path or a URL, without raw spaces."
)
HEAD_TIMEOUT: Final = Refusal(408, "timeout", "The request took too long to arrive.")
BODY_TIMEOUT: Final = Refusal(408, "timeout", "The request body arrived too slowly.")
BODY_TOO_LARGE: Final = Refusal(413, "payload_too_large", "The request body is too large.")
LINE_TOO_LONG: Final = Refusal(414, "too_long", "The request line is too long.")
TOO_MANY_FROM_ADDRESS: Final = Refusal(
    429, "too_many_requests", "There are too many connections from this address."
)
HEADERS_TOO_LONG: Final = Refusal(431, "too_long", "The request headers are too long.")
INTERNAL: Final = Refusal(500, "internal_error", "The server failed to answer this request.")
NO_ROOM_FOR_BODY: Final = Refusal(
    503, "unavailable", "Too many request bodies are arriving, try again later."
)
TOO_MANY: Final = Refusal(503, "unavailable", "There are too many connections, try again later.")
SHUTTING_DOWN: Final = Refusal(503, "unavailable", "The server is shutting down.")


def malformed(message: str) -> Refused:
    """Return the error of bytes that break the syntax of HTTP (RFC 9112)."""
    return Refused(Refusal(400, "invalid_data", message))


def print_body(refusal: Refusal) -> bytes:
    """Return the JSON of a refusal: `{"error": code, "message": sentence}`."""
    return orjson.dumps({"error": refusal.code, "message": refusal.message})


def print_answer(refusal: Refusal, date_line: bytes, headers: HeaderLines = ()) -> bytes:
    """Return the whole last answer of a connection; `date_line` is a header line with CRLF."""
    body = print_body(refusal)
    lines = b"".join(b"%b: %b\r\n" % each for each in (*OWN_HEADERS, *headers))
    return b"%b%b%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        STATUS_LINES[refusal.status],
        date_line,
        lines,
        len(body),
        body,
    )
