"""Compressed responses: which coding a client gets, and that it decodes to what others get."""

from __future__ import annotations

import gzip
import json
import pathlib
import sys
from typing import Any

import attrs
import pytest

from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, TreeServer
from treedbd.config.settings import HttpSettings
from treedbd.tree.hashes import etag
from treedbd.web.response import Cors, choose_coding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VALUES = {"short": "x" * 1000, "medium": "y" * 5000, "long": "z" * 100_000}


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return make_server(tmp_path)


def make_server(folder: pathlib.Path, **options: Any) -> TreeServer:
    server = TreeServer(folder, options=attrs.evolve(SETTINGS, http=HttpSettings(**options)))
    server.write("PUT", "/", VALUES)
    server.write("PUT", "/large", {f"k{at}": "x" * 300 for at in range(8000)})
    return server


def get(server: TreeServer, key: str, accepted: str, *headers: str) -> ParsedReply:
    peer = server.get(
        f"/{key}.json",
        "".join(f"{line}\r\n" for line in (f"Accept-Encoding: {accepted}", *headers)),
    )
    for _ in range(5):
        server.clock.advance(0)
    (reply,) = peer.read()
    return reply


def decode(reply: ParsedReply) -> bytes:
    if b"content-encoding" not in reply:
        return reply.body
    return {b"gzip": gzip.decompress, b"zstd": zstd.decompress}[reply[b"content-encoding"]](
        reply.body
    )


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("x-gzip", "gzip"),
        ("GZIP;Q=0.5", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1, zstd;q=0.9", "gzip"),
        ("*", "zstd"),
        ("zstd;q=0, *;q=0.1", "gzip"),
        ("identity;q=0, gzip;q=0.001", "gzip"),
        ("identity;q=0.5, gzip;q=0.4", None),
        ("identity, gzip", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=2", None),
        ("gzip;level=9", None),
        ("identity;q=0", None),
        ("deflate, br", None),
        ("", None),
    ],
)
def test_the_coding_is_the_one_that_the_client_prefers(accepted: str, coding: str | None) -> None:
    assert choose_coding({b"accept-encoding": [accepted.encode()]}) == coding
    assert choose_coding({}) is None


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("key", ["medium", "long", "large"])
def test_a_response_decodes_to_what_others_get(server: TreeServer, key: str, coding: str) -> None:
    plain = get(server, key, "identity")
    for _ in range(2):
        reply = get(server, key, coding)
        assert reply[b"content-encoding"] == coding.encode()
        assert b"Accept-Encoding" in reply[b"vary"]
        assert len(reply.body) < len(plain.body) / 10
        assert decode(reply) == plain.body
    assert b"content-encoding" not in plain
    assert b"Accept-Encoding" in plain[b"vary"]


def test_a_short_response_is_sent_as_it_is(server: TreeServer) -> None:
    reply = get(server, "short", "gzip")
    assert b"content-encoding" not in reply
    assert b"vary" not in reply
    assert reply.body == json.dumps(VALUES["short"]).encode()


@pytest.mark.parametrize("key", ["medium", "long"])
def test_the_tag_of_a_response_is_that_of_the_value(server: TreeServer, key: str) -> None:
    tag = etag(VALUES[key])
    reply = get(server, key, "gzip", "X-TreeDB-ETag: true")
    assert (reply[b"etag"], reply[b"content-encoding"]) == (tag.encode(), b"gzip")
    same = get(server, key, "gzip", f"If-None-Match: {tag}")
    assert (same.status, same.body, same[b"vary"]) == (304, b"", b"Accept-Encoding")
    assert b"content-encoding" not in same


@pytest.mark.parametrize("key", ["medium", "long", "large"])
def test_a_reply_to_head_has_no_body_in_any_coding(server: TreeServer, key: str) -> None:
    peer = server.connect()
    head = f"HEAD /{key}.json HTTP/1.1\r\nHost: demo.localhost\r\nAccept-Encoding: gzip\r\n\r\n"
    peer.send(head.encode())
    for _ in range(5):
        server.clock.advance(0)
    (reply,) = peer.read(b"HEAD")
    read = get(server, key, "gzip")
    assert (reply.status, reply[b"content-encoding"]) == (200, b"gzip")
    framing = (b"date", b"transfer-encoding")  # a body of unknown length is sent in chunks
    assert [field for field in reply.fields if field[0] not in framing] == [
        field for field in read.fields if field[0] not in framing
    ]
    if b"content-length" in reply:
        assert int(reply[b"content-length"]) == len(read.body)
    assert server.resource.shared_reads.memory.total == 0
    peer.send(b"GET /short.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    assert peer.read()[0].status == 200  # the connection goes on


def test_vary_also_names_the_origin_where_that_counts(tmp_path: pathlib.Path) -> None:
    server = make_server(tmp_path, cors_origins=("https://app.example.com",))
    assert Cors(("https://app.example.com",)).fixed is None
    for key in ("medium", "long", "large"):
        reply = get(server, key, "gzip", "Origin: https://app.example.com")
        assert reply[b"vary"] == b"Origin, Accept-Encoding"
        assert json.loads(decode(reply))


def test_compression_can_be_turned_off(tmp_path: pathlib.Path) -> None:
    server = make_server(tmp_path, compression=False)
    for key in ("medium", "long", "large"):
        reply = get(server, key, "gzip, zstd")
        assert b"content-encoding" not in reply
        assert b"vary" not in reply
        assert json.loads(reply.body)


def test_a_slow_client_gets_all_of_a_compressed_body(server: TreeServer) -> None:
    value = {f"k{at}": f"{at * 7919 % 10007:x}" * 20 for at in range(8000)}
    server.write("PUT", "/mixed", value)
    peer = server.get("/mixed.json", "Accept-Encoding: gzip\r\n", room=2000)
    data = b""
    for _ in range(1000):
        piece = peer.transport.value()
        peer.transport.clear()
        data += piece
        if peer.transport.producer:
            peer.transport.producer.resumeProducing()
        server.clock.advance(0)
    peer.transport.write(data)
    (reply,) = peer.read()
    assert json.loads(decode(reply)) == value
    assert server.resource.shared_reads.memory.total == 0
