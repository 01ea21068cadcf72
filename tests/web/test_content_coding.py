"""Compressed request bodies: decoded within the limit, or refused in the documented form."""

from __future__ import annotations

import gzip
import json
import pathlib
import sys
import tracemalloc
import zlib

import pytest

from tests.http1.peer import ParsedReply
from tests.web.tree_server import TreeServer
from treedbd.http1.parser import (
    ZSTD_WINDOW_LOG,
    Coding,
    UnsupportedEncoding,
    decode_body,
    parse_coding,
)
from treedbd.limits import MIB, Limits
from treedbd.tree.types import InvalidData

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b'{"name":"Ada","list":[1,2,3]}' * 100
CODINGS: tuple[Coding, ...] = ("gzip", "zstd")
EMPTY_SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x00\x00\x00\x00"


def encode(data: bytes, coding: Coding) -> bytes:
    if coding == "gzip":
        return gzip.compress(data, mtime=0)
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: True})


@pytest.mark.parametrize(
    ("fields", "coding"),
    [
        ([], None),
        ([b""], None),
        ([b"identity"], None),
        ([b" , "], None),
        ([b"gzip"], "gzip"),
        ([b"GZip"], "gzip"),
        ([b"x-gzip"], "gzip"),
        ([b"zstd"], "zstd"),
        ([b"identity, zstd"], "zstd"),
        ([b"identity", b" gzip "], "gzip"),
    ],
)
def test_the_coding_of_a_body_is_named_by_its_header(
    fields: list[bytes], coding: Coding | None
) -> None:
    assert parse_coding({b"content-encoding": fields} if fields else {}) == coding


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ([b"br"], "br"),
        ([b"deflate"], "deflate"),
        ([b"utf-8"], "utf-8"),
        ([b"gzip, gzip"], "gzip, gzip"),
        ([b"gzip", b"zstd"], "gzip, zstd"),
        ([b"identity, br"], "br"),
        ([b"*"], "*"),
        ([b"gzip;q=1"], "gzip;q=1"),
    ],
)
def test_another_coding_or_several_are_refused_by_name(fields: list[bytes], shown: str) -> None:
    with pytest.raises(UnsupportedEncoding) as caught:
        parse_coding({b"content-encoding": fields})
    sentence = f"The Content-Encoding {shown} is not supported: send gzip, zstd or none."
    assert str(caught.value) == sentence


def test_the_name_of_a_coding_is_shown_in_part_if_it_is_long() -> None:
    assert len(str(UnsupportedEncoding("x" * 60_000))) < 200


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_is_decoded_up_to_the_limit(coding: Coding) -> None:
    body = encode(TEXT, coding)
    for limit in (len(TEXT), len(TEXT) + 1, 10 * MIB):
        assert decode_body(body, coding, limit) == TEXT
    for limit in (len(TEXT) - 1, 1):
        assert decode_body(body, coding, limit) is None
    assert decode_body(encode(b"", coding), coding, 1) == b""


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_beyond_the_limit_is_not_decoded_to_its_end(coding: Coding) -> None:
    bomb = encode(bytes(64 * MIB), coding)
    tracemalloc.start()
    assert decode_body(bomb, coding, MIB) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MIB


def test_a_frame_that_needs_a_larger_window_than_the_coding_allows_is_refused() -> None:
    for window_log, is_valid in ((ZSTD_WINDOW_LOG, True), (ZSTD_WINDOW_LOG + 1, False)):
        compressor = zstd.ZstdCompressor(
            options={
                zstd.CompressionParameter.window_log: window_log,
                zstd.CompressionParameter.content_size_flag: False,
            }
        )
        body = compressor.compress(TEXT) + compressor.flush()
        if is_valid:
            assert decode_body(body, "zstd", MIB) == TEXT
        else:
            with pytest.raises(InvalidData):
                decode_body(body, "zstd", MIB)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_that_is_not_one_whole_member_or_frame_is_refused(coding: Coding) -> None:
    body = encode(TEXT, coding)
    damaged = bytearray(body)
    damaged[len(body) // 2] ^= 0xFF
    for bad in (
        *(b"", b"{}", TEXT, body[:1], body[: len(body) // 2], body[:-1], bytes(damaged)),
        *(body + b"\0", body + body, body + b"{}", zlib.compress(TEXT)),
        *(encode(TEXT, other) for other in CODINGS if other != coding),
    ):
        with pytest.raises(InvalidData, match=f"^The body is not valid {coding}"):
            decode_body(bad, coding, MIB)


def test_a_frame_with_nothing_in_it_is_no_body() -> None:
    assert decode_body(EMPTY_SKIPPABLE_FRAME, "zstd", MIB) == b""


# Over the interface.


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path)


def send(server: TreeServer, method: str, target: str, body: bytes, *headers: str) -> ParsedReply:
    return server.request(method, target, body, headers)


@pytest.mark.parametrize("coding", CODINGS)
def test_every_method_takes_a_compressed_body(server: TreeServer, coding: Coding) -> None:
    encoding = f"Content-Encoding: {coding}"
    put = send(server, "PUT", "/a.json", encode(TEXT[:29], coding), encoding)
    assert (put.status, put.body) == (200, b'{"list":[1,2,3],"name":"Ada"}')
    assert (
        send(server, "PATCH", "/a.json", encode(b'{"list":null}', coding), encoding).status == 200
    )
    post = send(server, "POST", "/b.json", encode(b"1", coding), encoding)
    name = json.loads(post.body)["name"]
    read = send(server, "GET", "/.json", b"")
    assert json.loads(read.body) == {"a": {"name": "Ada"}, "b": {name: 1}}


@pytest.mark.parametrize("dialect", ["", "?ns=demo"])
@pytest.mark.parametrize(
    ("coding", "body", "status", "code"),
    [
        ("br", b"1", 415, "unsupported_encoding"),
        ("gzip, gzip", b"1", 415, "unsupported_encoding"),
        ("gzip", b"1", 400, "invalid_data"),
        ("zstd", b"1", 400, "invalid_data"),
        ("gzip", gzip.compress(b"{", mtime=0), 400, "invalid_data"),
        ("zstd", zstd.compress(b""), 400, "invalid_data"),
        (
            "gzip",
            gzip.compress(bytes(Limits().write_body_bytes + 1), mtime=0),
            413,
            "payload_too_large",
        ),
        ("zstd", zstd.compress(bytes(Limits().write_body_bytes + 1)), 413, "payload_too_large"),
    ],
    ids=["br", "two", "raw-gzip", "raw-zstd", "json", "empty", "bomb-gzip", "bomb-zstd"],
)
def test_a_body_that_cannot_be_decoded_is_refused_in_both_dialects(
    server: TreeServer, dialect: str, coding: str, body: bytes, status: int, code: str
) -> None:
    reply = send(server, "PUT", f"/a.json{dialect}", body, f"Content-Encoding: {coding}")
    error = json.loads(reply.body)
    assert reply.status == status
    assert list(error) == (["error"] if dialect else ["error", "message"])
    if not dialect:
        assert error["error"] == code
    sentence = error["error" if dialect else "message"]
    assert sentence.endswith(".")
    if status == 415:
        assert coding in sentence
        assert reply[b"accept-encoding"] == b"gzip, zstd"
    assert send(server, "GET", "/a.json", b"").body == b"null"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_the_coding_of_a_body_that_nobody_reads_does_not_matter(
    server: TreeServer, method: str
) -> None:
    assert send(server, method, "/a.json", b"x", "Content-Encoding: br").status == 200


def test_a_coding_that_is_not_supported_is_refused_before_the_body_and_after_the_method(
    server: TreeServer,
) -> None:
    header = "Content-Encoding: br"
    assert send(server, "PUT", "/a", b"x", header).status == 404
    assert send(server, "PUT", "/a.b.json", b"x", header).status == 400
    assert send(server, "PUT", "/a.json", b"", header).status == 415
    assert send(server, "POST", "/a.json?x-http-method-override=PUT", b"1", header).status == 415
