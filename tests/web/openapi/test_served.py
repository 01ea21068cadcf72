"""`/.openapi.json` as clients receive it."""

from __future__ import annotations

import gzip
import json
import pathlib

import attrs
import pytest
from twisted.web.resource import Resource

from tests.web.tree_server import OPTIONS, TreeServer
from treedbd.web.http1.factory import Http1Factory

TARGET = "/.openapi.json"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path)


def test_it_is_served_at_every_host_without_a_token(server: TreeServer) -> None:
    replies = [
        server.request("GET", TARGET, host=host)
        for host in ("localhost", "demo.localhost", "127.0.0.1", "other.localhost")
    ]
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert json.loads(replies[0].body)["openapi"] == "3.1.0"
    assert replies[0][b"content-type"] == b"application/json; charset=utf-8"
    assert replies[0][b"access-control-allow-origin"] == b"*"
    assert replies[0][b"cache-control"] == b"public, max-age=300"
    assert server.request("GET", TARGET, host="elsewhere.example").status == 421


def test_head_and_options_are_answered_and_nothing_else(server: TreeServer) -> None:
    head = server.request("HEAD", TARGET)
    assert (head.status, head.body) == (200, b"")
    assert int(head[b"content-length"]) == len(server.request("GET", TARGET).body)
    options = server.request("OPTIONS", TARGET, headers=["Access-Control-Request-Method: GET"])
    assert (options.status, options[b"allow"]) == (204, b"GET, HEAD, OPTIONS")
    assert server.request("PUT", TARGET, b"1").status == 405


def test_it_is_compressed_as_other_responses_are(server: TreeServer) -> None:
    plain = server.request("GET", TARGET)
    encoded = server.request("GET", TARGET, headers=["Accept-Encoding: gzip"])
    server.clock.advance(1)
    assert encoded[b"content-encoding"] == b"gzip"
    assert gzip.decompress(encoded.body) == plain.body
    assert len(encoded.body) * 5 < len(plain.body)


def test_a_client_that_has_it_does_not_receive_it_again(server: TreeServer) -> None:
    tag = server.request("GET", TARGET)[b"etag"].decode()
    for header in (tag, f'"other", W/{tag}', "*"):
        reply = server.request("GET", TARGET, headers=[f"If-None-Match: {header}"])
        assert (reply.status, reply.body, reply[b"etag"]) == (304, b"", tag.encode())
    assert server.request("GET", TARGET, headers=['If-None-Match: "other"']).status == 200


def test_without_a_page_for_browsers_it_is_there(tmp_path: pathlib.Path) -> None:
    server = TreeServer(tmp_path, options=attrs.evolve(OPTIONS, has_page=False))
    paths = json.loads(server.request("GET", TARGET).body)["paths"]
    assert TARGET in paths
    assert "/.docs/interface.md" not in paths
    assert server.request("GET", "/.docs/interface.md").status == 404


def test_mounted_under_a_prefix_it_says_where_its_paths_begin(server: TreeServer) -> None:
    root, inner = Resource(), Resource()
    root.putChild(b"api", inner)
    inner.putChild(b"d b", server.resource)
    assert json.loads(server.request("GET", TARGET).body)["servers"] == [{"url": "/"}]
    server.factory = Http1Factory(root, OPTIONS.limits, server.clock)
    reply = server.request("GET", f"/api/d%20b{TARGET}")
    assert json.loads(reply.body)["servers"] == [{"url": "/api/d%20b"}]
