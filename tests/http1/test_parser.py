from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.caches import empty_caches
from treedbd.http1.parser import (
    ALL_BLOCK_BYTES,
    HeadCache,
    HeaderBlocks,
    Http1Parser,
    ProtocolError,
)
from treedbd.limits import Limits

LIMITS = Limits()
SMALL = Limits(
    request_line_bytes=60,
    header_bytes=80,
    header_count=3,
    write_body_bytes=10,
    held_body_bytes=1000,
)
LINE = b"GET / HTTP/1.1\r\n"
POST = b"POST / HTTP/1.1\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def parse_all(*pieces: bytes, limits: Limits = LIMITS) -> list[Http1Parser]:
    """Return a parser for each request, with the attributes it had when that was complete."""
    requests = []
    parser = Http1Parser(limits)
    for piece in pieces:
        complete = parser.receive(piece)
        while complete:
            requests.append(snapshot(parser))
            complete = parser.unread_bytes > 0 and parser.receive()
    return requests


def snapshot(parser: Http1Parser) -> Http1Parser:
    copy = Http1Parser(LIMITS)
    copy.method, copy.target, copy.version = parser.method, parser.target, parser.version
    copy.headers, copy.keep_alive, copy.body = parser.headers, parser.keep_alive, parser.body
    copy.head_memory = parser.head_memory
    return copy


def parse_one(*pieces: bytes, limits: Limits = LIMITS) -> Http1Parser:
    (request,) = parse_all(*pieces, limits=limits)
    return request


def content(request: Http1Parser) -> bytes | None:
    if request.body is None:
        return None
    request.body.seek(0)
    return request.body.read()


def error_of(*pieces: bytes, limits: Limits = LIMITS) -> tuple[int, str]:
    with pytest.raises(ProtocolError) as caught:
        parse_all(*pieces, limits=limits)
    return caught.value.reply.status, caught.value.reply.code


def test_a_head_is_parsed_field_by_field() -> None:
    request = parse_one(
        b"PUT /a%2Fb.json?x=1;y HTTP/1.1\r\nHost: db.example\r\nX-One: a\r\nx-one:b  \r\nE:\r\n\r\n"
    )
    assert (request.method, request.target) == (b"PUT", b"/a%2Fb.json?x=1;y")
    assert request.version == b"HTTP/1.1"
    assert request.headers == {b"host": [b"db.example"], b"x-one": [b"a", b"b"], b"e": [b""]}
    assert request.keep_alive
    assert request.body is None


@pytest.mark.parametrize(
    "target",
    [
        b'/a.json?orderBy="$key"&equalTo={"a":|^}',
        "/straße/日本.json".encode(),
        b"/\xff\x80.json",
        b"/a[0]<>\\`.json",
        b"http://db.example/a.json",
        b"HTTP://db.example",
        b"*",
        b"//a",
        b"/#part",
    ],
)
def test_a_target_is_kept_as_it_was_sent(target: bytes) -> None:
    assert parse_one(b"GET " + target + b" HTTP/1.1\r\n\r\n").target == target


@pytest.mark.parametrize(
    "method", [b"GET", b"BREW", b"get", b"M-SEARCH", b"DESCRIBE", b"PRI", b"X!"]
)
def test_any_token_is_accepted_as_a_method(method: bytes) -> None:
    assert parse_one(method + b" / HTTP/1.1\r\n\r\n").method == method


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: x, Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_keep_alive_follows_version_and_connection(head: bytes, kept: bool) -> None:
    assert parse_one(head).keep_alive is kept


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET a HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET ?a HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET db.example:443 HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"CONNECT db.example:443 HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET /a b HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET /a\tb HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET /a\x00b HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET /a\x7fb HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET  / HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"GET /  HTTP/1.1\r\n\r\n", (400, "invalid_path")),
        (b"G@T / HTTP/1.1\r\n\r\n", (400, "invalid_data")),
        (b"G\xc3\x89T / HTTP/1.1\r\n\r\n", (400, "invalid_data")),
        (b" GET / HTTP/1.1\r\n\r\n", (400, "invalid_data")),
        (b"GET / HTTP/1.1 \r\n\r\n", (400, "invalid_data")),
        (b"GET / http/1.1\r\n\r\n", (400, "invalid_data")),
        (b"GET / HTTP/1.2\r\n\r\n", (400, "invalid_data")),
        (b"GET / HTTP/2.0\r\n\r\n", (400, "invalid_data")),
        (b"GET / HTTP/0.9\r\n\r\n", (400, "invalid_data")),
        (b"GET /\r\n\r\n", (400, "invalid_data")),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, "invalid_data")),
        (b"\x16\x03\x01\x02\x00\x01\x00", (400, "invalid_data")),
        (b"SSH-2.0-client\r\n", (400, "invalid_data")),
        (b"GET / HTTP/1.1\nHost: a\n\n", (400, "invalid_data")),
        (LINE + b"A: b\nB: c\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A: b\n\r\n", (400, "invalid_data")),
        (LINE + b"A: b\r\n c\r\n\r\n", (400, "invalid_data")),
        (LINE + b" A: b\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A : b\r\n\r\n", (400, "invalid_data")),
        (LINE + b": b\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A: b\x00c\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A: b\x01c\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A: b\x7fc\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A: b\rc\r\n\r\n", (400, "invalid_data")),
        (LINE + b"A\xc3\xa9: b\r\n\r\n", (400, "invalid_data")),
        (POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", (400, "invalid_data")),
        (POST + b"Content-Length: 1, 1\r\n\r\nx", (400, "invalid_data")),
        (POST + b"Content-Length: +1\r\n\r\nx", (400, "invalid_data")),
        (POST + b"Content-Length: -1\r\n\r\nx", (400, "invalid_data")),
        (POST + b"Content-Length: 0x1\r\n\r\nx", (400, "invalid_data")),
        (POST + b"Content-Length:\r\n\r\n", (400, "invalid_data")),
        (POST + b"Content-Length: 99999999999999999999\r\n\r\n", (400, "invalid_data")),
        (
            POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            (400, "invalid_data"),
        ),
        (
            POST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            (400, "invalid_data"),
        ),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", (400, "invalid_data")),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", (400, "invalid_data")),
        (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n", (400, "invalid_data")),
        (POST + b"Transfer-Encoding: identity\r\n\r\n", (400, "invalid_data")),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", (400, "invalid_data")),
    ],
)
def test_bytes_that_break_the_syntax_are_an_error(data: bytes, expected: tuple[int, str]) -> None:
    assert error_of(data) == expected


@pytest.mark.parametrize(
    "tail",
    [
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\nx\r\n",
        b"1_0\r\n",
        b"0x1\r\nx\r\n",
        b" 1\r\nx\r\n",
        b"1 \r\nx\r\n",
        b"1\nx\r\n",
        b"\r\n",
        b"1\r\nxy\r\n",
        b"1\r\nx\n0\r\n\r\n",
        b"1;a=\x00\r\nx\r\n0\r\n\r\n",
        b"0\r\nA : b\r\n\r\n",
        b"0\r\nA: b\x00\r\n\r\n",
        b"f" * 16 + b"\r\n",
        b"1;" + b"a" * 1100,
    ],
)
def test_broken_chunks_are_an_error(tail: bytes) -> None:
    assert error_of(CHUNKED + tail) == (400, "invalid_data")
    assert error_of(CHUNKED, *[tail[at : at + 1] for at in range(len(tail))]) == (
        400,
        "invalid_data",
    )


def test_bytes_that_cannot_become_valid_are_an_error_before_the_head_is_complete() -> None:
    for start in (
        b"\x16\x03",
        b"GET /\x00",
        b"GET / HTTP/3\r\n",
        LINE + b"A: \x01",
        LINE + b"A: b\n",
    ):
        assert error_of(start)[0] == 400


@pytest.mark.parametrize(
    "start",
    [
        *(b"3\n", b"\n", b"3;a=b\n", b"3\r\nabc\r\n5\n", b"0\n", b"3\r\nabc\n"),
        *(b"0\r\nA: b\n", b"0\r\n\n", b"0\r\nA: b\r\nC: d\n"),
    ],
)
def test_a_line_end_without_cr_in_a_chunked_body_is_an_error_at_once(start: bytes) -> None:
    assert error_of(CHUNKED + start) == (400, "invalid_data")
    assert error_of(CHUNKED, *[start[at : at + 1] for at in range(len(start))])[0] == 400
    assert parse_all(CHUNKED, *[start[at : at + 1] for at in range(len(start) - 1)]) == []


def test_a_body_has_the_length_of_its_content_length() -> None:
    stream = POST + b"Content-Length: 3\r\n\r\nabc" + LINE + b"\r\n"
    first, second = parse_all(stream)
    assert content(first) == b"abc"
    assert content(second) is None
    assert second.method == b"GET"


def test_a_content_length_of_zero_means_no_body() -> None:
    assert content(parse_one(POST + b"Content-Length: 0\r\n\r\n")) is None
    assert content(parse_one(CHUNKED + b"0\r\n\r\n")) == b""


def test_trailers_and_extensions_of_chunks_are_ignored() -> None:
    request, after = parse_all(
        CHUNKED + b'3;a="b"\r\nabc\r\n0\r\nX-Evil: yes\r\nHost: x\r\n\r\n' + LINE + b"A: b\r\n\r\n"
    )
    assert content(request) == b"abc"
    assert request.headers == {b"transfer-encoding": [b"chunked"]}
    assert after.headers == {b"a": [b"b"]}


def test_empty_lines_before_a_request_are_skipped() -> None:
    assert len(parse_all(b"\r\n\r\n" + LINE + b"\r\n\r\n" + LINE + b"\r\n")) == 2
    assert len(parse_all(b"\r", b"\n", b"\r\n", LINE, b"\r", b"\n")) == 1
    eight = [b"\r\n"] * 8
    assert len(parse_all(*eight, LINE + b"\r\n", *eight, LINE + b"\r\n")) == 2


@pytest.mark.parametrize("pieces", [[b"\r\n" * 9], [b"\r\n"] * 9, [b"\r\n" * 8, b"\r", b"\n"]])
def test_more_empty_lines_are_refused_however_they_come(pieces: list[bytes]) -> None:
    first = LINE + b"\r\n"
    with pytest.raises(ProtocolError, match="request line"):
        parse_all(first, *pieces)
    with pytest.raises(ProtocolError, match="request line"):
        parse_all(first, first, *pieces, first)


@pytest.mark.parametrize(
    ("head", "body", "kept"),
    [
        (b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", None, True),
        (b"Connection: upgrade, close\r\nUpgrade: h2c\r\n", None, False),
        (b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n", b"abc", True),
        (b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n", b"ab", True),
    ],
)
def test_an_upgrade_is_ignored(head: bytes, body: bytes | None, kept: bool) -> None:
    sent = b"2\r\nab\r\n0\r\n\r\n" if b"chunked" in head else body or b""
    stream = POST + head + b"\r\n" + sent
    request = parse_all(stream + LINE + b"\r\n" if kept else stream)[0]
    assert content(request) == body
    assert request.headers[b"upgrade"] == [b"h2c"]
    assert len(request.headers[b"connection"]) == 1
    assert request.keep_alive is kept


def test_a_line_end_without_cr_after_a_body_that_ends_with_cr_is_an_error() -> None:
    stream = POST + b"Content-Length: 1\r\n\r\n\r"
    assert error_of(stream + b"\n") == error_of(stream, b"\n") == (400, "invalid_data")


def test_an_upgrade_with_a_framing_that_is_not_valid_is_an_error() -> None:
    head = b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    assert error_of(head + b"Transfer-Encoding: chunks\r\n\r\n0\r\n\r\n") == (400, "invalid_data")


def test_a_request_line_may_be_as_long_as_its_limit() -> None:
    line = b"GET /" + b"a" * (60 - 14) + b" HTTP/1.1"
    assert len(line) == 60
    end = b"\r\nA: b\r\n\r\n"
    for pieces in (
        (line + end,),
        (line, end),
        (line + end[:1], end[1:]),
        (line + end[:2], end[2:]),
    ):
        assert parse_one(*pieces, limits=SMALL).target[-1:] == b"a"
    longer = b"GET /a" + line[5:]
    for pieces in ((longer + end,), (longer + b"\r\n",), (longer + b"\r",), (longer,)):
        assert error_of(*pieces, limits=SMALL) == (414, "too_long")


def test_headers_may_be_as_long_as_their_limit() -> None:
    headers = b"A: " + b"b" * 75 + b"\r\n"
    assert len(headers) == 80
    assert parse_one(LINE + headers + b"\r\n", limits=SMALL).headers[b"a"][0][:1] == b"b"
    longer = LINE + headers[:-2] + b"b\r\n"
    for pieces in ((longer + b"\r\n",), (longer,), (longer[:-2] + b"b", b"b")):
        assert error_of(*pieces, limits=SMALL) == (431, "too_long")


def test_headers_as_long_as_their_limit_may_be_cut_anywhere() -> None:
    request = LINE + b"A: " + b"b" * 75 + b"\r\n\r\n"
    for cut in range(1, len(request)):
        assert len(parse_all(request[:cut], request[cut:], limits=SMALL)) == 1


def test_there_may_be_as_many_headers_as_their_limit() -> None:
    assert len(parse_one(LINE + b"A: b\r\n" * 3 + b"\r\n", limits=SMALL).headers[b"a"]) == 3
    assert error_of(LINE + b"A: b\r\n" * 4 + b"\r\n", limits=SMALL) == (431, "too_long")


def test_a_body_too_large_is_an_error_by_its_length_alone() -> None:
    assert parse_all(POST + b"Content-Length: 10\r\n\r\n", limits=SMALL) == []
    assert error_of(POST + b"Content-Length: 11\r\n\r\n", limits=SMALL) == (
        413,
        "payload_too_large",
    )


def test_a_chunked_body_too_large_is_an_error_by_the_size_of_its_chunks() -> None:
    assert (
        content(parse_one(CHUNKED + b"a\r\n0123456789\r\n0\r\n\r\n", limits=SMALL)) == b"0123456789"
    )
    assert error_of(CHUNKED + b"a\r\n0123456789\r\n1\r\n", limits=SMALL)[0] == 413


def test_trailers_are_bounded_like_headers() -> None:
    line = b"A: " + b"b" * 35 + b"\r\n"
    assert content(parse_one(CHUNKED + b"0\r\n" + line + b"\r\n", limits=SMALL)) == b""
    assert error_of(CHUNKED + b"0\r\n" + line * 3, limits=SMALL)[0] == 431
    assert error_of(CHUNKED + b"0\r\n" + b"a" * 100, limits=SMALL)[0] == 431


def test_a_client_that_waits_for_continue_is_recognised() -> None:
    parser = Http1Parser(LIMITS)
    head = POST + b"Content-Length: 3\r\nExpect: 100-Continue\r\n\r\n"
    parser.receive(head)
    assert parser.awaits_continue
    parser.receive(b"a")
    assert not parser.awaits_continue
    sending = Http1Parser(LIMITS)
    sending.receive(head + b"a")
    assert not sending.awaits_continue
    chunked = Http1Parser(LIMITS)
    chunked.receive(CHUNKED[:-2] + b"Expect: 100-continue\r\n\r\n5")
    assert not chunked.awaits_continue
    old = Http1Parser(LIMITS)
    old.receive(head.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert not old.awaits_continue


STREAM = b"".join(
    (
        LINE + b"Host: a\r\n\r\n",
        POST + b"Content-Length: 5\r\n\r\nhello",
        b"\r\n",
        CHUNKED + b"3;x\r\nabc\r\nA\r\n0123456789\r\n00\r\nT: u\r\n\r\n",
        b'PUT /"x" HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n\r\n',
        LINE + b"Connection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"DELETE / HTTP/1.1\r\n\r\n",
    )
)


def parsers_own(parser: Http1Parser, data: bytes) -> object:
    """Return the memory of the head of `data`, a whole request."""
    assert parser.receive(data)
    return parser.head_memory


GET_A = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
GET_B = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
PUT_4 = b"PUT /a HTTP/1.1\r\nContent-Length: 4\r\n\r\n"


def test_a_head_that_repeats_is_the_same_one() -> None:
    parser = Http1Parser(LIMITS)
    first, second, third = (parsers_own(parser, GET_A) for _ in range(3))
    assert first is not second  # a stream is the only request of its connection
    assert second is third
    other = parsers_own(parser, GET_B)
    assert other is not third
    assert parser.target == b"/b"
    assert parsers_own(parser, GET_A) not in (third, other)
    assert parser.target == b"/a"


def test_requests_that_repeat_have_bodies_of_their_own() -> None:
    parser = Http1Parser(LIMITS)
    bodies = []
    for body in (b"1111", b"2222", b"3333", b"4444"):
        assert parser.receive(PUT_4 + body)
        bodies.append(content(parser))
    assert bodies == [b"1111", b"2222", b"3333", b"4444"]
    assert parser.receive(GET_A)
    assert parser.body is None


@pytest.mark.parametrize(
    ("pieces", "targets"),
    [
        ([PUT_4 + b"1", b"234" + GET_A], [b"/a", b"/a"]),
        ([GET_A[:20], GET_A[20:]], [b"/a"]),
        ([PUT_4, GET_A[:4]], [b"/a"]),
        ([b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"] * 2, [b"/c"] * 2),
    ],
)
def test_only_what_arrives_whole_repeats_a_head(pieces: list[bytes], targets: list[bytes]) -> None:
    for before in (GET_A, PUT_4 + b"0000"):
        found = parse_all(before, before, *pieces)
        assert [request.target for request in found[2:]] == targets
        assert found[2].head_memory is not found[1].head_memory


def test_requests_that_arrive_together_repeat_their_head_too() -> None:
    parser = Http1Parser(LIMITS)
    sent = b"".join(PUT_4 + b"%04d" % number for number in range(6))
    assert parser.receive(sent + PUT_4 + b"00")
    bodies, memories = [content(parser)], [parser.head_memory]
    while parser.receive():
        bodies.append(content(parser))
        memories.append(parser.head_memory)
    assert parser.in_body
    assert parser.receive(b"06")
    bodies.append(content(parser))
    assert bodies == [b"%04d" % number for number in range(6)] + [b"0006"]
    assert len(set(map(id, memories[1:]))) == 1
    assert memories[0] is not memories[1]
    assert parser.unread_bytes == 0


def test_a_head_repeats_only_where_a_request_begins() -> None:
    parser = Http1Parser(LIMITS)
    put = b"PUT /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(GET_A)
    assert parser.receive(GET_A + GET_A + GET_A + put + GET_A + GET_A + GET_B)
    methods = [parser.method]
    bodies = []
    while parser.receive():
        methods.append(parser.method)
        bodies.append(None if parser.body is None else content(parser))
    assert methods == [b"GET"] * 3 + [b"PUT"] + [b"GET"] * 2
    assert bodies == [None, None, GET_A, None, None]
    assert parser.target == b"/b"


def test_what_is_known_of_a_head_is_dropped_at_the_end() -> None:
    parser = Http1Parser(LIMITS)
    assert parsers_own(parser, GET_A) is not parsers_own(parser, GET_A)
    parser.close()
    assert GET_A not in vars(parser).values()
    assert parser.headers == {}


def test_a_long_head_is_not_remembered() -> None:
    parser = Http1Parser(LIMITS)
    long = b"GET /a HTTP/1.1\r\nHost: x\r\nA: %b\r\n\r\n" % (b"a" * 2048)
    first, second, third = (parsers_own(parser, long) for _ in range(3))
    assert len({id(first), id(second), id(third)}) == 3


def describe(requests: list[Http1Parser]) -> list[object]:
    return [(r.method, r.target, r.version, r.headers, content(r), r.keep_alive) for r in requests]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
@settings(max_examples=examples(200), deadline=None)
def test_requests_are_the_same_however_their_bytes_are_split(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    whole = describe(parse_all(STREAM))
    assert len(whole) == 6
    assert describe(parse_all(*pieces)) == whole


MIXED = (
    GET_A,
    GET_B,
    b"PUT /b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.0\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    *(
        b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n%b" % (number, body)
        for number, body in (
            (b"0", b""),
            (b"1", b"1"),
            (b"2", b"22"),
            (b"02", b"33"),
            (b"9", GET_A[:9]),
        )
    ),
    b"PUT /a HTTP/1.1\r\ncontent-length: 3\r\nHost: x\r\n\r\n333",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\n"
    b"Content-Length: 2\r\n\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nT: u\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: close, upgrade\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n1\r\nc\r\n0\r\n\r\n",
)
"""Requests whose heads have much in common."""
REFUSED = (
    b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\n Content-Length: 2\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n",
    b"PUT /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(MIXED), st.integers(0, 80)), max_size=30),
    st.sampled_from(REFUSED),
)
@settings(max_examples=examples(200), deadline=None)
def test_what_others_have_sent_makes_no_difference(
    sent: list[tuple[int, bytes, int]], refused: bytes
) -> None:
    blocks = HeaderBlocks(LIMITS)
    parsers = [Http1Parser(LIMITS, blocks) for _ in range(3)]
    for number, data, cut in sent:
        parser = parsers[number]
        whole = parser.receive(data[:cut]) or parser.receive(data[cut:])
        assert whole
        assert describe([parser]) == describe([parse_one(data)])
    for parser in parsers:
        with pytest.raises(ProtocolError) as caught:
            parser.receive(refused)
        assert error_of(refused) == (caught.value.reply.status, caught.value.reply.code)


def test_several_requests_that_arrive_together_have_their_own_heads() -> None:
    blocks = HeaderBlocks(LIMITS)
    for _ in range(2):
        parser = Http1Parser(LIMITS, blocks)
        found = []
        complete = parser.receive(b"".join(MIXED))
        while complete:
            found.append(snapshot(parser))
            complete = parser.unread_bytes > 0 and parser.receive()
        assert describe(found) == describe([parse_one(each) for each in MIXED])


def test_header_blocks_are_parsed_once_whatever_the_target_and_the_length_of_the_body() -> None:
    blocks = HeaderBlocks(LIMITS)
    for number in range(1, 40):
        put = b"PUT /%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (number, number)
        parser = Http1Parser(LIMITS, blocks)
        assert parser.receive(put + b"1" * number)
        assert parser.headers[b"content-length"] == [b"%d" % number]
        assert Http1Parser(LIMITS, blocks).receive(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
    assert len(blocks) == 2


def test_header_blocks_of_many_clients_take_a_bounded_memory() -> None:
    blocks = HeaderBlocks(LIMITS)
    for number in range(5000):
        head = b"GET / HTTP/1.1\r\nCookie: %d%b\r\n\r\n" % (number, b"c" * (number % 2500))
        assert Http1Parser(LIMITS, blocks).receive(head)
        assert blocks.size <= ALL_BLOCK_BYTES
    assert 100 < len(blocks) < 5000
    empty_caches()
    assert (len(blocks), blocks.size) == (0, 0)


@pytest.mark.parametrize(
    "line", [b"A%d: b\r\n", b"Aa: %d0\r\n", b"Cookie: %d\r\n", b"A-Longer-Name: %0300d\r\n"]
)
def test_header_blocks_take_no_more_memory_than_is_counted(line: bytes) -> None:
    blocks = HeaderBlocks(LIMITS)
    count = min(90, 1900 // len(line % 10))
    tracemalloc.start()
    for number in range(50):
        lines = b"".join([line % each for each in range(number + 10, number + 10 + count)])
        blocks.find(b"HTTP/1.1\r\nHost: %d\r\n%b\r\n" % (number, lines))
    lines = b""
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(blocks) == 50
    assert taken < 1.1 * blocks.size


def test_the_header_blocks_of_a_thousand_clients_with_tokens_are_kept() -> None:
    blocks = HeaderBlocks(LIMITS)
    heads = [b"HTTP/1.1\r\nHost: x\r\nAuthorization: %0320d\r\n\r\n" % each for each in range(1000)]
    found = [blocks.find(head) for head in heads]
    assert all(blocks.find(head) is block for head, block in zip(heads, found, strict=True))


def size_of(key: str, value: int) -> int:
    return len(key) + value


def test_what_is_used_again_stays_and_all_of_it_is_bounded() -> None:
    cache = HeadCache(1000, size_of)
    cache.add("often", 10)
    for number in range(500):
        assert cache.find(f"{number}") is None
        cache.add(f"{number}", 20)
        assert cache.find("often") == 10
        assert cache.size <= 1000
        assert len(cache) <= 50
    assert cache.find("499") == 20
    assert cache.find("1") is None


def test_what_is_larger_than_a_generation_is_not_kept() -> None:
    cache = HeadCache(1000, size_of)
    cache.add("large", 600)
    assert cache.find("large") is None
    assert cache.size == 0


def test_a_head_cache_is_emptied_with_the_others() -> None:
    cache = HeadCache(1000, size_of)
    cache.add("a", 10)
    empty_caches()
    assert cache.find("a") is None
    assert cache.size == 0


def test_a_stream_may_arrive_byte_by_byte() -> None:
    pieces = [STREAM[at : at + 1] for at in range(len(STREAM))]
    assert describe(parse_all(*pieces)) == describe(parse_all(STREAM))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(1, 50))
@settings(max_examples=examples(100), deadline=None)
def test_a_chunked_body_is_its_chunks_joined(chunks: list[bytes], step: int) -> None:
    sent = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    pieces = [sent[at : at + step] for at in range(0, len(sent), step)]
    assert content(parse_one(CHUNKED, *pieces)) == b"".join(chunks)


@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from([b"", LINE, POST, CHUNKED]))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_become_a_request_or_a_protocol_error(pieces: list[bytes], start: bytes) -> None:
    parser = Http1Parser(SMALL)
    status = 200
    try:
        for piece in (start, *pieces):
            parser.receive(piece)
    except ProtocolError as error:
        status = error.reply.status
    assert status in {200, 400, 413, 414, 431}
