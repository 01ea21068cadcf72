"""Requests as a client sends them: however they are cut into pieces, they are the same requests."""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

from treedbd.http1.parser import Http1Parser, ProtocolError
from treedbd.limits import Limits

TOKENS: Final = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\x00", b"GET ", b"POST ", b"/"),
    *(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"Host: a\r\n", b"Content-Length: 3\r\n", b"abc", b"0"),
    *(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n", b"3;x=y\r\nabc\r\n", b"*"),
    *(b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"http://a/", b"\xff"),
    *(b"Expect: 100-continue\r\n", b"Content-Length: 03\r\n", b"Content-Length: +3\r\n", b", 3"),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"),
)
_WIDE: Final = Limits()
_NARROW: Final = Limits(
    request_line_bytes=60, header_bytes=90, header_count=4, write_body_bytes=10, held_body_bytes=999
)


class _Seen(NamedTuple):
    method: bytes
    target: bytes
    version: bytes
    headers: dict[bytes, list[bytes]]
    keep_alive: bool
    body: bytes | None


def check(data: bytes) -> None:
    """Parse what follows the first byte whole and in pieces; that byte chooses limits and cuts."""
    choice, stream = (data[:1] or b"\0")[0], data[1:]
    limits = _NARROW if choice & 1 else _WIDE
    whole, refused = _parse([stream], limits)
    for seed in (choice, choice + 256):
        pieces = _cut(stream, random.Random(seed))
        again, refused_again = _parse(pieces, limits)
        if again != whole:
            raise AssertionError("Other requests are parsed of the same bytes in pieces.")
        if (refused is None) != (refused_again is None):
            raise AssertionError("The same bytes are refused only whole, or only in pieces.")
    for seen in whole:
        _check_limits(seen, limits)


def _parse(pieces: list[bytes], limits: Limits) -> tuple[list[_Seen], ProtocolError | None]:
    """Return the requests in a stream of bytes, and the error that ends it."""
    found: list[_Seen] = []
    parser = Http1Parser(limits)
    try:
        for piece in pieces:
            is_complete = parser.receive(piece)
            while is_complete:
                found.append(_look(parser))
                is_complete = parser.unread_bytes > 0 and parser.receive()
    except ProtocolError as error:
        if not 400 <= error.reply.status < 500:
            raise AssertionError("Bytes of a client are an error of the server.") from error
        return found, error
    finally:
        parser.close()
    return found, None


def _look(parser: Http1Parser) -> _Seen:
    body = None
    if parser.body is not None:
        parser.body.seek(0)
        body = parser.body.read()
    headers: Any = parser.headers
    return _Seen(
        parser.method, parser.target, parser.version, dict(headers), parser.keep_alive, body
    )


def _cut(stream: bytes, dice: random.Random) -> list[bytes]:
    """Cut bytes into pieces: a few, or each byte alone if there are not many."""
    if len(stream) < 300 and dice.random() < 0.3:
        return [stream[at : at + 1] for at in range(len(stream))]
    cuts = sorted(dice.randrange(len(stream) + 1) for _ in range(dice.choice((1, 2, 5))))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def _check_limits(seen: _Seen, limits: Limits) -> None:
    assert seen.body is None or len(seen.body) <= limits.write_body_bytes
    assert sum(map(len, seen.headers.values())) <= limits.header_count
    assert len(seen.method) + len(seen.target) <= limits.request_line_bytes
    assert not any(byte <= 32 or byte == 127 for byte in seen.method + seen.target)
    for name, values in seen.headers.items():
        assert name == name.lower()
        assert not any(b"\n" in value or b"\r" in value or b"\0" in value for value in values)
