"""Reads: shallow, paging, print, JSONP, download, HEAD and OPTIONS, and large reads."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import pytest

from tests import expected
from tests.daemon import Daemon, Response
from tests.rest import JSON_TYPE, Client, check_error, configured, escape, print_request

NO_PAGE = {"Sec-Fetch-Site": "none"}
SCRIPT_TYPE = "application/javascript; charset=utf-8"
METHODS = {"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"}
MIXED = {
    "text": "x",
    "number": 1.5,
    "yes": True,
    "list": [1, {"a": "é"}, None, 4],
    "object": {"deep": {"er": "x" * 100}},
    "7": "seven",
}


def sized(value: Any) -> Any:
    if isinstance(value, dict | list):
        return {".sz": len(expected.compact(value))}
    return value


# Shallow


def test_a_shallow_read_shows_true_for_each_child(tree: Client) -> None:
    tree.put("/a.json", MIXED)
    response = tree.request("GET", "/a.json?shallow=true")
    assert response.json == dict.fromkeys(MIXED, True)
    assert response.headers["Content-Type"] == JSON_TYPE
    assert tree.get("/.json?shallow=true") == {"a": True}
    assert tree.get("/a.json?shallow=false") == tree.get("/a.json")


def test_a_shallow_read_of_the_second_version_shows_leaves_and_sizes(tree: Client) -> None:
    tree.put("/a.json", MIXED)
    response = tree.get("/a.json?shallow=true&v=2")
    assert response == {key: sized(value) for key, value in MIXED.items()}
    for key, value in MIXED.items():
        if isinstance(value, dict | list):
            size = len(tree.request("GET", f"/a/{key}.json").body)
            assert response[key] == {".sz": size}
    whole = len(tree.request("GET", "/a.json").body)
    assert tree.get("/.json?shallow=true&v=2") == {"a": {".sz": whole}}


def test_sizes_are_those_of_a_get_for_children_of_any_size(tree: Client) -> None:
    large = {
        "spread": {f"key {at}": {"text": "é" * at, "at": at} for at in range(300)},
        "array": [{"n": at, "t": "x" * 50} for at in range(300)],
        "sparse": {str(at): at for at in range(0, 500, 2)},
        "gaps": {str(at): at for at in range(0, 500, 3)},
        "string": "y" * 100_000,
        "ranked": {"a": {".value": 1, ".priority": 7}, ".priority": "p"},
    }
    tree.put("/.json", large)
    shown = tree.get("/.json?shallow=true&v=2")
    assert shown.pop("string") == large.pop("string")
    for key in large:
        size = len(tree.request("GET", f"/{key}.json").body)
        assert shown[key] == {".sz": size}, key
    assert isinstance(tree.get("/sparse.json"), list)
    assert isinstance(tree.get("/gaps.json"), dict)


@pytest.mark.parametrize("leaf", ["x", 1, 0, True, False, ""])
@pytest.mark.parametrize("query", ["shallow=true", "shallow=true&v=2"])
def test_a_shallow_read_of_a_leaf_is_the_leaf(tree: Client, leaf: Any, query: str) -> None:
    tree.put("/a.json", leaf)
    assert tree.request("GET", f"/a.json?{query}").body == json.dumps(leaf).encode()
    tree.put("/a.json", {".value": leaf, ".priority": 1})
    assert tree.request("GET", f"/a.json?{query}").body == json.dumps(leaf).encode()


@pytest.mark.parametrize("query", ["shallow=true", "shallow=true&v=2"])
def test_a_shallow_read_of_nothing_is_null(tree: Client, query: str) -> None:
    assert tree.request("GET", f"/none.json?{query}").body == b"null"


@pytest.mark.parametrize(
    "query",
    [
        *("shallow=true&v=1", "shallow=true&v=3", "shallow=true&v=", "shallow=true&v=02"),
        *("v=1", "v=3", "shallow=1", "shallow=yes", "shallow=TRUE"),
        *('shallow=true&orderBy="$key"', 'shallow=true&orderBy="$key"&limitToFirst=1'),
        *("shallow=true&limitToLast=1", 'shallow=true&startAt="a"', 'shallow=true&endAt="a"'),
        *('shallow=true&equalTo="a"', 'shallow=true&endBefore="a"'),
        *("shallow=true&limitToFirst=0", "shallow=true&limitToFirst=x"),
        *("shallow=true&startAfter=", "shallow=true&startAfter=a.b", 'shallow=true&startAfter="a'),
        "shallow=true&startAfter=a/b",
    ],
)
def test_parameters_that_exclude_shallow_are_refused(tree: Client, query: str) -> None:
    tree.put("/a.json", {"x": 1})
    check_error(tree.request("GET", f"/a.json?{query}"), 400, "invalid_query")


@pytest.mark.parametrize("version", ["", "&v=2"])
@pytest.mark.parametrize("fill", [0, 400])
def test_keys_are_paged_in_their_order(tree: Client, version: str, fill: int) -> None:
    keys = [*map(str, range(0, 40, 3)), "-3", "01", "a", "b", "B", "é", "z z", '"q"', "\U0001f600"]
    keys += ["2147483648", "10", "100", "-"]
    tree.put("/a.json", {key: {"x": key * 3 + "y" * fill} for key in set(keys)})
    in_order = sorted(set(keys), key=expected.rank_key)
    seen: list[str] = []
    start = ""
    while page := tree.get(f"/a.json?shallow=true{version}&limitToFirst=7{start}"):
        assert len(page) <= 7
        seen += page
        start = f"&startAfter={escape(json.dumps(seen[-1]))}"
    assert seen == in_order
    assert list(tree.get(f"/a.json?shallow=true{version}")) == in_order
    after_b = in_order[in_order.index("b") + 1 :]
    assert list(tree.get(f"/a.json?shallow=true{version}&startAfter=b")) == after_b
    assert list(tree.get(f"/a.json?shallow=true{version}&startAfter=aa")) == ["b", *after_b]
    assert list(tree.get(f"/a.json?shallow=true{version}&startAfter=-3&limitToFirst=1")) == ["0"]


# print, callback, download


def test_print_pretty_indents_by_two_spaces(tree: Client) -> None:
    tree.put("/a.json", {"b": {"c": [1, "é"]}, "d": 1})
    pretty = '{\n  "b": {\n    "c": [\n      1,\n      "é"\n    ]\n  },\n  "d": 1\n}'
    assert tree.request("GET", "/a.json?print=pretty").body == pretty.encode()
    assert tree.request("GET", "/a/d.json?print=pretty").body == b"1"
    assert tree.request("GET", "/none.json?print=pretty").body == b"null"
    assert tree.request("GET", "/a.json?print=pretty&shallow=true").body == (
        b'{\n  "b": true,\n  "d": true\n}'
    )
    assert tree.request("GET", '/a.json?print=pretty&orderBy="$key"&limitToLast=1').body == (
        b'{\n  "d": 1\n}'
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"])
def test_print_silent_is_204_on_every_method(tree: Client, method: str) -> None:
    tree.put("/a.json", {"x": 1})
    body = '{"y":1}' if method in ("PUT", "POST", "PATCH") else None
    response = tree.request(method, "/a.json?print=silent", body)
    assert (response.status, response.body) == (204, b"")


def test_the_header_print_affects_writes_only(tree: Client) -> None:
    tree.put("/a.json", 1)
    response = tree.request("GET", "/a.json", headers={"print": "silent"})
    assert (response.status, response.body) == (200, b"1")


@pytest.mark.parametrize("text", ["", "Pretty", "compact", "silent ", "1"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_another_value_of_print_is_refused(tree: Client, method: str, text: str) -> None:
    response = tree.request(method, f"/a.json?print={escape(text)}", "1")
    check_error(response, 400, "invalid_query")
    assert tree.get("/.json") is None


@pytest.mark.parametrize(
    "name",
    [
        *("f", "$", "_a1", "a.b.c", "$.$", "jQuery_1.cb2", "a" * 128),
        *("a.if", "If", "iff", "of", "nullable.this", "é", "a.é1", "\u03c0", "$é"),
    ],
)
def test_a_callback_wraps_the_json(tree: Client, name: str) -> None:
    tree.put("/a.json", {"x": "\u2028</script>"})
    escaped = escape(name)
    response = tree.request("GET", f"/a.json?callback={escaped}", headers=NO_PAGE)
    assert response.status == 200
    assert response.headers["Content-Type"] == SCRIPT_TYPE
    assert response.body.startswith(f"/**/{name}(".encode())
    assert response.body.endswith(b");")
    inner = response.body[len(f"/**/{name}(".encode()) : -2]
    assert json.loads(inner) == {"x": "\u2028</script>"}
    response = tree.request("GET", f"/none.json?callback={escaped}", headers=NO_PAGE)
    assert response.body == f"/**/{name}(null);".encode()
    target = f"/a.json?callback={escaped}&shallow=true"
    response = tree.request("GET", target, headers=NO_PAGE)
    assert response.body == f'/**/{name}({{"x":true}});'.encode()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "1a",
            "a-b",
            "a b",
            "a..b",
            ".a",
            "a.",
            "a(b)",
            "a;b",
            "a[0]",
            "alert(1)//",
            "a\u2028",
        ),
        *("a.1", "a" * 129, "a%0a", "a\t", "<script>", "a.b-c", "a.\u00b7", "\u20ac", "\u0301a"),
        *("function", "if", "null", "this", "true", "import", "super.a", "this.a", "new.target"),
    ],
)
def test_a_callback_that_is_not_an_identifier_is_refused(tree: Client, name: str) -> None:
    text = name if "%" in name else escape(name)
    response = tree.request("GET", f"/a.json?callback={text}")
    check_error(response, 400, "invalid_query")


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("report.json", "report.json"),
        ("a b.json", "a%20b.json"),
        ("é€.json", "%C3%A9%E2%82%AC.json"),
        ('a"b.json', "a%22b.json"),
        ("a;b,c'd(e)*.json", "a%3Bb%2Cc%27d%28e%29%2A.json"),
        ("100%.json", "100%25.json"),
    ],
)
def test_a_download_names_its_file(tree: Client, name: str, encoded: str) -> None:
    tree.put("/a.json", {"x": 1})
    response = tree.request("GET", f"/a.json?download={escape(name)}")
    assert (response.status, response.body) == (200, b'{"x":1}')
    disposition = response.headers["Content-Disposition"]
    assert disposition.isascii()
    assert disposition.startswith("attachment;")
    assert disposition.count('"') % 2 == 0
    assert disposition.endswith(f"filename*=UTF-8''{encoded}")


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("../../etc/passwd", "....etcpasswd"),
        ("a\\b.json", "ab.json"),
        ("a\r\nSet-Cookie: x=1.json", "aSet-Cookie%3A%20x%3D1.json"),
        ("a\x00b\x7f.json", "ab.json"),
        ("a\x80b\x9f\x85\xa0.json", "ab%C2%A0.json"),
    ],
)
def test_separators_and_control_characters_are_removed_from_the_name_of_a_download(
    tree: Client, name: str, encoded: str
) -> None:
    response = tree.request("GET", f"/a.json?download={escape(name)}")
    assert response.status == 200
    assert "Set-Cookie" not in response.headers
    assert response.headers["Content-Disposition"].endswith(f"filename*=UTF-8''{encoded}")


@pytest.mark.parametrize(
    ("name", "plain"),
    [("a b.json", "a b.json"), ("a%b", "a_b"), ("%41", "_41"), ('a"b%', "a_b_"), ("é#$&", "_#$&")],
)
def test_the_ascii_name_of_a_download_is_unambiguous(tree: Client, name: str, plain: str) -> None:
    response = tree.request("GET", f"/a.json?download={escape(name)}")
    assert f'; filename="{plain}"; ' in response.headers["Content-Disposition"]


def test_a_download_without_a_usable_name_is_still_a_download(tree: Client) -> None:
    for name in ("", "%2F", "%00"):
        response = tree.request("GET", f"/a.json?download={name}")
        assert response.status == 200
        assert response.headers["Content-Disposition"].startswith("attachment")


# HEAD, OPTIONS and CORS


@pytest.mark.parametrize(
    "target",
    [
        *("/a.json", "/none.json", "/a.json?shallow=true", "/a.json?print=pretty", "/a"),
        *('/a.json?orderBy="$key"&limitToFirst=1', "/a.json?callback=f", "/a.b.json"),
        *("/a.json?download=x", "/a.json?print=nonsense", "/large.json", "/.health"),
    ],
)
def test_head_is_get_without_the_body(tree: Client, target: str) -> None:
    tree.put("/a.json", {"x": 1, "y": 2})
    tree.put("/large.json", {f"k{at}": "x" * 1000 for at in range(1000)})
    read = tree.request("GET", target, headers=NO_PAGE)
    head = tree.request("HEAD", target, headers=NO_PAGE)
    assert head.status == read.status
    assert head.body == b""
    assert head.headers["Content-Length"] == str(len(read.body))
    # A large body is sent while it is rendered, and its length is not known before.
    left_out = {"Date", "Content-Length", "Transfer-Encoding"}
    assert {name: head.headers[name] for name in head.headers if name not in left_out} == {
        name: read.headers[name] for name in read.headers if name not in left_out
    }
    assert tree.request("HEAD", target, headers=NO_PAGE).status == read.status


def test_options_lists_the_methods(tree: Client) -> None:
    response = tree.request("OPTIONS", "/a.json")
    assert response.status in (200, 204)
    assert {name.strip() for name in response.headers["Allow"].split(",")} == METHODS


@pytest.mark.parametrize("host", ["localhost", "demo.localhost", "example.com", "127.0.0.1:1"])
def test_options_of_the_whole_server_lists_the_methods(shared_daemon: Daemon, host: str) -> None:
    with Client(shared_daemon, host) as client:
        response = client.request("OPTIONS", "*")
        assert (response.status, response.body) == (204, b"")
        assert {name.strip() for name in response.headers["Allow"].split(",")} == METHODS
        assert client.request("GET", "*").status == 400


@pytest.mark.parametrize("target", ["/a.json", "/", "/a", "/a.json?orderBy=nonsense"])
def test_a_preflight_is_answered(tree: Client, target: str) -> None:
    requested = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "PATCH",
        "Access-Control-Request-Headers": "if-match, x-vendor-etag, authorization",
    }
    response = tree.request("OPTIONS", target, headers=requested)
    assert response.status in (200, 204)
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    allowed = response.headers["Access-Control-Allow-Methods"]
    assert METHODS - {"OPTIONS", "HEAD"} <= {name.strip() for name in allowed.split(",")}
    allowed = response.headers["Access-Control-Allow-Headers"].lower()
    assert {"if-match", "x-vendor-etag", "authorization"} <= {
        name.strip() for name in allowed.split(",")
    }
    assert "Access-Control-Allow-Credentials" not in response.headers


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/a.json", 200),
        ("PUT", "/a.json", 200),
        ("GET", "/a", 404),
        ("PUT", "/a.b.json", 400),
        ("BREW", "/a.json", 405),
    ],
)
def test_every_response_may_be_read_by_pages_of_any_origin(
    tree: Client, method: str, target: str, status: int
) -> None:
    response = tree.request(method, target, "1", {"Origin": "http://localhost:3000"})
    assert response.status == status
    assert response.headers.get_all("Access-Control-Allow-Origin") == ["*"]
    exposed = response.headers["Access-Control-Expose-Headers"]
    assert "etag" in {name.strip().lower() for name in exposed.split(",")}
    assert "Access-Control-Allow-Credentials" not in response.headers


def test_origins_can_be_configured(tmp_path_factory: pytest.TempPathFactory) -> None:
    origins = '["https://app.example.com", "http://localhost:3000"]'
    config = f"""
default_project = "shop"
[http]
cors_origins = {origins}
[projects.shop]
rules_file = "open.json"
"""
    folder = tmp_path_factory.mktemp("origins")
    with configured(folder, config) as daemon, Client(daemon) as client:
        for origin in json.loads(origins):
            for method in ("GET", "OPTIONS"):
                response = client.request(method, "/a.json", headers={"Origin": origin})
                assert response.headers.get_all("Access-Control-Allow-Origin") == [origin]
                assert "origin" in response.headers["Vary"].lower()
        with client.connect() as wire:
            wire.send(b"GET /a.json HTTP/9\r\nOrigin: https://app.example.com\r\n\r\n")
            assert "Access-Control-Allow-Origin" not in wire.receive().headers
        for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            response = client.request("GET", "/a.json", headers=headers)
            assert response.status == 200
            assert "Access-Control-Allow-Origin" not in response.headers
            assert "origin" in response.headers["Vary"].lower()


# Large reads


def resident_bytes(pid: int) -> int:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_a_large_read_uses_bounded_memory_while_others_are_served(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Four readers read thirty megabytes each: memory grows little, and no other client waits."""
    with Daemon(tmp_path_factory.mktemp("large")) as daemon, Client(daemon) as client:
        part = {f"record {at}": {"text": f"{at:05}" * 60, "n": at} for at in range(9000)}
        parts = {f"part{at}": part for at in range(10)}
        for name in parts:
            client.put(f"/big/{name}.json", part)
        client.put("/small.json", "small")
        whole = len(expected.compact(parts))
        assert whole > 30_000_000
        client.request("GET", "/big/part0.json")
        before = resident_bytes(daemon.pid)
        readers = [client.connect() for _ in range(4)]
        for reader in readers:
            reader.send(print_request("GET", "/big.json"))
        for number in range(20):
            assert client.get("/small.json") == "small"
            client.put("/n.json", number)
        responses: list[Response] = []
        threads = [
            threading.Thread(target=lambda reader=reader: responses.append(reader.receive()))
            for reader in readers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(response.body) for response in responses] == [whole] * 4
        assert responses[0].json == parts
        assert resident_bytes(daemon.pid) - before < 25_000_000
        for reader in readers:
            reader.close()


def test_a_large_read_is_a_consistent_snapshot(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Daemon(tmp_path_factory.mktemp("moment")) as daemon, Client(daemon) as client:
        keys = [f"k{at:04}" for at in range(2000)]
        client.put("/big.json", {key: {"n": 0, "fill": "x" * 2000} for key in keys})
        done = threading.Event()

        def write() -> None:
            with Client(daemon) as writer:
                at = 0
                while not done.is_set():
                    at += 1
                    body = {f"{key}/n": at for key in (keys[0], keys[999], keys[-1])}
                    assert writer.request("PATCH", "/big.json", json.dumps(body)).status == 200

        thread = threading.Thread(target=write)
        thread.start()
        seen: list[set[int]] = []
        try:
            for _ in range(8):
                read = client.get("/big.json")
                seen.append({read[key]["n"] for key in (keys[0], keys[999], keys[-1])})
        finally:
            done.set()
            thread.join()
        assert all(len(moment) == 1 for moment in seen), seen
        assert len(set(map(tuple, seen))) > 1


@pytest.mark.parametrize("query", ["callback=f", "print=pretty", "format=export", "download=x"])
def test_a_large_read_works_with_every_form(tree: Client, query: str) -> None:
    large = {f"k{at}": {"text": "x" * 500, "n": at} for at in range(2000)}
    tree.put("/a.json", large)
    response = tree.request("GET", f"/a.json?{query}", headers=NO_PAGE)
    body = response.body
    if query == "callback=f":
        assert body[:6] == b"/**/f("
        assert body[-2:] == b");"
        body = body[6:-2]
    assert response.status == 200
    assert json.loads(body) == large


def test_a_reader_that_disconnects_does_no_harm(shared_daemon: Daemon, tree: Client) -> None:
    tree.put("/a.json", {f"k{at}": "x" * 1000 for at in range(5000)})
    for _ in range(5):
        with tree.connect() as wire:
            wire.send(print_request("GET", "/a.json", host=tree.host))
            assert wire.socket.recv(10)
    assert tree.get("/a/k1.json") == "x" * 1000
    assert "Traceback" not in shared_daemon.log
