"""`/.openapi.json` as clients receive it."""

from __future__ import annotations

import gzip
import json
import pathlib

import attrs
import pytest
from twisted.web.resource import Resource

from tests.web.tree_server import SETTINGS, TreeServer
from treedbd.config.settings import HttpSettings
from treedbd.http1.server import Http1Factory

TARGET = "/.openapi.json"
PREFLIGHT = ["Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-a"]


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
    server = TreeServer(tmp_path, options=attrs.evolve(SETTINGS, http=HttpSettings(page=False)))
    paths = json.loads(server.request("GET", TARGET).body)["paths"]
    assert TARGET in paths
    assert "/.docs/interface.md" not in paths
    assert server.request("GET", "/.docs/interface.md").status == 404


def test_mounted_under_a_prefix_it_says_where_its_paths_begin(server: TreeServer) -> None:
    root, inner = Resource(), Resource()
    root.putChild(b"api", inner)
    inner.putChild(b"d b", server.resource)
    assert json.loads(server.request("GET", TARGET).body)["servers"] == [{"url": "/"}]
    server.factory = Http1Factory(root, SETTINGS.limits, server.clock)
    reply = server.request("GET", f"/api/d%20b{TARGET}")
    assert json.loads(reply.body)["servers"] == [{"url": "/api/d%20b"}]


OF_EVERY_MESSAGE = {"date", "content-type", "content-length", "connection", "transfer-encoding"}
"""What HTTP itself needs, or what the document says otherwise."""
SENT = [
    ("GET", "/.json", "/.json", ["X-TreeDB-ETag: true"]),
    ("GET", "/.json", "/.json?download=a.json", ["Accept-Encoding: gzip", "Origin: https://a.b"]),
    ("GET", "/.json", "/.json?print=silent", []),
    ("GET", "/.json", "/.json", ['If-None-Match: "74234e98"', "Last-Event-ID: 1"]),
    ("GET", "/{key1}.json", "/a.json?limitToFirst=1", []),
    ("PUT", "/{key1}.json", "/a.json", ['If-Match: "other"']),
    ("PUT", "/{key1}.json", "/a.json", ["If-Match: *", "X-TreeDB-ETag: true"]),
    ("PUT", "/{key1}.json", "/a.json", ["Content-Encoding: br"]),
    ("POST", "/{key1}.json", "/a.json", ["X-HTTP-Method-Override: TRACE"]),
    ("POST", "/{key1}.json", "/a.json", []),
    ("OPTIONS", "/{key1}.json", "/a.json", PREFLIGHT),
    ("GET", "/.settings/rules.json", "/.settings/rules.json", []),
    ("GET", "/.health", "/.health", []),
    ("GET", "/.openapi.json", "/.openapi.json", ["Accept-Encoding: gzip"]),
    ("GET", "/", "/", ["Accept: text/html"]),
    ("GET", "/", "/", []),
    ("GET", "/favicon.ico", "/favicon.ico", []),
    ("GET", "/.docs/rules.md", "/.docs/rules.md", []),
    ("GET", "/.docs/rules.md", "/.docs/rules.md", ["Accept: text/html"]),
]


@pytest.mark.parametrize(("method", "path", "target", "headers"), SENT)
def test_every_header_that_is_sent_is_in_it(
    server: TreeServer, method: str, path: str, target: str, headers: list[str]
) -> None:
    server.request("PUT", "/long.json", json.dumps("x" * 2000).encode())
    body = b"1" if method in ("PUT", "POST") else b""
    reply = server.request(method, target, body, headers)
    shown, required = read_headers(server, path, method, reply.status)
    sent = {name.decode().lower() for name, _ in reply.fields} - OF_EVERY_MESSAGE
    assert required <= sent <= shown


def test_every_header_of_a_stream_is_in_it(server: TreeServer) -> None:
    client = server.open_stream("/a.json")
    head = client.peer.transport.value().partition(b"\r\n\r\n")[0].decode()
    sent = {line.partition(":")[0].lower() for line in head.splitlines()[1:]} - OF_EVERY_MESSAGE
    shown, required = read_headers(server, "/{key1}.json", "GET", 200)
    assert {"x-accel-buffering"} | required <= sent <= shown


def read_headers(
    server: TreeServer, path: str, method: str, status: int
) -> tuple[set[str], set[str]]:
    """Return the headers of a response by the document, and those of them that are required."""
    document = json.loads(server.request("GET", TARGET).body)
    response = document["paths"][path][method.lower()]["responses"][str(status)]
    components = document["components"]
    shown = components["responses"][response["$ref"].rpartition("/")[2]]["headers"]
    required = [name for name in shown if components["headers"][name].get("required")]
    return {name.lower() for name in shown}, {name.lower() for name in required}
