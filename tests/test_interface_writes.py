"""PUT, POST, PATCH and DELETE: their effects, their responses, and the order of their errors."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

import pytest

from tests import expected
from tests.daemon import Daemon
from tests.rest import JSON_TYPE, Client, Wire, check_error, escape, print_request

PUSH_ALPHABET = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
TOO_LARGE = b"x" * (16 * 1_048_576 + 1)


# PUT


@pytest.mark.parametrize(
    ("body", "echo"),
    [
        ("1", "1"),
        ('"x"', '"x"'),
        ("false", "false"),
        ("null", "null"),
        ('{"a": {"b" : [1, null, 3]}}', '{"a":{"b":[1,null,3]}}'),
        ('{"a":1.0,"b":null,"c":{}}', '{"a":1}'),
        ('{"0":"a","1":"b"}', '["a","b"]'),
        ('{".value":"x",".priority":1}', '"x"'),
    ],
)
def test_a_put_returns_what_a_get_then_reads(tree: Client, body: str, echo: str) -> None:
    response = tree.request("PUT", "/a.json", body)
    assert (response.status, response.body) == (200, echo.encode())
    assert response.headers["Content-Type"] == JSON_TYPE
    assert tree.request("GET", "/a.json").body == echo.encode()


def test_a_put_replaces_everything_below(tree: Client) -> None:
    tree.put("/a.json", {"x": {"deep": 1}, "y": 2})
    tree.put("/a.json", {"z": 3})
    assert tree.get("/a.json") == {"z": 3}
    tree.put("/.json", {"b": 1})
    assert tree.get("/.json") == {"b": 1}


def test_a_put_creates_the_parents(tree: Client) -> None:
    tree.put("/a/b/c/d.json", 1)
    assert tree.get("/.json") == {"a": {"b": {"c": {"d": 1}}}}


# POST


def test_a_push_key_has_20_characters_and_begins_with_the_time(tree: Client) -> None:
    before = int(time.time() * 1000)
    response = tree.request("POST", "/list.json", '{"x":1}')
    after = int(time.time() * 1000)
    assert response.status == 200
    assert list(response.json) == ["name"]
    name = response.json["name"]
    assert response.body == b'{"name":"%b"}' % name.encode()
    assert len(name) == 20
    assert set(name) <= set(PUSH_ALPHABET)
    milliseconds = 0
    for character in name[:8]:
        milliseconds = milliseconds * 64 + PUSH_ALPHABET.index(character)
    assert before <= milliseconds <= after
    assert tree.get("/list.json") == {name: {"x": 1}}


def test_push_keys_are_strictly_increasing(tree: Client) -> None:
    names = [tree.request("POST", "/list.json", str(at)).json["name"] for at in range(300)]
    assert names == sorted(set(names))
    ordered = tree.request("GET", '/list.json?orderBy="$key"').json
    assert list(ordered) == names
    assert list(ordered.values()) == list(range(300))


def test_push_keys_of_all_paths_of_a_database_are_increasing(tree: Client) -> None:
    names = [tree.request("POST", f"/list{at % 3}.json", "1").json["name"] for at in range(60)]
    assert names == sorted(set(names))


def test_pushes_of_many_clients_never_share_a_key(shared_daemon: Daemon) -> None:
    host = "pushed.localhost"
    names: list[list[str]] = [[] for _ in range(8)]

    def push(own: list[str]) -> None:
        with Client(shared_daemon, host) as client:
            own += [client.request("POST", "/list.json", str(at)).json["name"] for at in range(50)]

    threads = [threading.Thread(target=push, args=(own,)) for own in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(own == sorted(own) for own in names)
    assert len({name for own in names for name in own}) == 400
    with Client(shared_daemon, host) as client:
        assert len(client.get("/list.json")) == 400


def test_push_keys_increase_over_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Daemon(tmp_path_factory.mktemp("restarted")) as daemon:
        with Client(daemon) as client:
            before = client.request("POST", "/list.json", "1").json["name"]
        daemon.restart()
        with Client(daemon) as client:
            assert client.request("POST", "/list.json", "2").json["name"] > before


def test_a_push_works_at_the_root_and_at_a_leaf(tree: Client) -> None:
    name = tree.request("POST", "/.json", "1").json["name"]
    assert tree.get("/.json") == {name: 1}
    second = tree.request("POST", f"/{name}.json", "2").json["name"]
    assert tree.get("/.json") == {name: {second: 2}}


# PATCH


def test_a_patch_changes_only_the_keys_given(tree: Client) -> None:
    tree.put("/a.json", {"x": {"deep": 1}, "y": 2, "z": 3})
    response = tree.request("PATCH", "/a.json", '{ "x" : {"other": 1} , "z":null, "n":[1] }')
    assert (response.status, response.body) == (200, b'{"x":{"other":1},"z":null,"n":[1]}')
    assert response.headers["Content-Type"] == JSON_TYPE
    assert tree.get("/a.json") == {"x": {"other": 1}, "y": 2, "n": [1]}


@pytest.mark.parametrize(
    "body",
    [
        '{"b":1,"a":2}',
        '{"a":{},"b":[]}',
        '{"a":[null,1]}',
        '{"/a/b":1,"c/d":{"e":2}}',
        '{"a":null}',
    ],
)
def test_a_patch_returns_the_body_that_was_sent(tree: Client, body: str) -> None:
    response = tree.request("PATCH", "/x.json", body)
    assert (response.status, response.body) == (200, body.encode())


def test_a_patch_accepts_paths_as_keys(tree: Client) -> None:
    tree.put("/u.json", {"a": {"name": "A", "age": 1}, "b": {"name": "B"}})
    body = {"a/age": 2, "/b/name": "BB", "c/d/e": [True], "a/gone/too": None}
    assert tree.request("PATCH", "/u.json", json.dumps(body)).status == 200
    assert tree.get("/u.json") == {
        "a": {"name": "A", "age": 2},
        "b": {"name": "BB"},
        "c": {"d": {"e": [True]}},
    }
    assert (
        tree.request("PATCH", "/.json", '{"u/a":null,"/u/b":null,"u/c/d/e/0":null}').status == 200
    )
    assert tree.request("GET", "/.json").body == b"null"


def test_a_patch_turns_a_leaf_into_a_container(tree: Client) -> None:
    tree.put("/a.json", "leaf")
    assert tree.request("PATCH", "/a.json", '{"x":1}').status == 200
    assert tree.get("/.json") == {"a": {"x": 1}}


def test_a_patch_reaches_into_arrays(tree: Client) -> None:
    tree.put("/a.json", ["x", "y", "z"])
    assert tree.request("PATCH", "/a.json", '{"1":"Y","3/b":1}').status == 200
    assert tree.get("/a.json") == ["x", "Y", "z", {"b": 1}]


def test_a_patch_must_be_an_object_or_null_which_removes(tree: Client) -> None:
    tree.put("/a.json", {"x": 1})
    for body in ("1", '"x"', "true", "[]", "[1]", '[{"a":1}]'):
        check_error(tree.request("PATCH", "/a.json", body), 400, "invalid_data")
    assert tree.get("/a.json") == {"x": 1}
    response = tree.request("PATCH", "/a.json", "null")
    assert (response.status, response.body) == (200, b"null")
    assert tree.request("GET", "/.json").body == b"null"


def test_an_empty_patch_changes_nothing(tree: Client) -> None:
    for present in (None, 1, {"x": 1}):
        tree.put("/a.json", present)
        response = tree.request("PATCH", "/a.json", "{}")
        assert (response.status, response.body) == (200, b"{}")
        assert tree.get("/a.json") == present


@pytest.mark.parametrize(
    "body",
    [
        '{"a":1,"a/b":2}',
        '{"a/b":2,"a":1}',
        '{"a":1,"/a":2}',
        '{"a":null,"a/b/c/d":1}',
        '{"/a/b":1,"a/b/c":2,"z":3}',
        '{"a/b":1,"/a/b":1}',
        '{"a":{},"a/b":2}',
        '{"a":1,"a/.priority":2}',
        '{"a-":1,"a":2,"a/b":3}',
        '{"":1}',
        '{"/":1}',
        '{"a.b":1}',
        '{"a/b$c":1}',
        '{"a/[0]":1}',
        '{"ok":1,"a/\\u0000":1}',
        '{"ok":1,"b":{"c.d":1}}',
        '{"ok":1,".hidden":1}',
        '{"ok":1,"a":{".sv":"nonsense"}}',
        '{"ok":1,".value":1}',
    ],
)
def test_an_invalid_patch_changes_nothing(tree: Client, body: str) -> None:
    tree.put("/x.json", {"a": {"b": {"c": 0}}})
    check_error(tree.request("PATCH", "/x.json", body), 400, "invalid_data")
    assert tree.get("/.json") == {"x": {"a": {"b": {"c": 0}}}}


def test_similar_paths_in_one_patch_do_not_conflict(tree: Client) -> None:
    body = {"a": 1, "ab": 2, "a-/b": 3, "b/a": 4, "b/ab": 5, "B/a": 6}
    assert tree.request("PATCH", "/x.json", json.dumps(body)).status == 200
    assert tree.get("/x.json") == {
        "a": 1,
        "ab": 2,
        "a-": {"b": 3},
        "b": {"a": 4, "ab": 5},
        "B": {"a": 6},
    }


def test_no_reader_sees_a_part_of_a_patch(shared_daemon: Daemon) -> None:
    host = "torn.localhost"
    filler = {f"k{at}": "x" * 500 for at in range(40)}
    torn: list[object] = []
    done = threading.Event()
    with Client(shared_daemon, host) as client:
        client.put("/.json", {"first": {"n": 0, **filler}, "second": {"deep": {"n": 0}, **filler}})

        def read() -> None:
            with Client(shared_daemon, host) as reader:
                while not done.is_set():
                    value = reader.get("/.json")
                    if value["first"]["n"] != value["second"]["deep"]["n"]:
                        torn.append(value)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for at in range(1, 150):
            body = json.dumps({"first/n": at, "second/deep/n": at})
            assert client.request("PATCH", "/.json", body).status == 200
        done.set()
        for reader in readers:
            reader.join()
        assert not torn
        assert client.get("/first/n.json") == 149


# DELETE


def test_a_delete_returns_null_for_any_value(tree: Client) -> None:
    tree.put("/a.json", {"b": 1, "c": 2})
    for target in ("/a/b.json", "/a/b.json", "/none/at/all.json", "/a.json", "/.json", "/.json"):
        response = tree.request("DELETE", target)
        assert (response.status, response.body) == (200, b"null")
        assert response.headers["Content-Type"] == JSON_TYPE
    assert tree.request("GET", "/.json").body == b"null"


def test_the_body_of_a_delete_and_of_a_get_is_ignored(tree: Client) -> None:
    tree.put("/a.json", 1)
    assert tree.request("GET", "/a.json", "{nonsense").body == b"1"
    assert tree.request("DELETE", "/a.json", "{nonsense").status == 200
    assert tree.get("/a.json") is None


# What all writes share


@pytest.mark.parametrize(("method", "status"), [("PUT", 200), ("POST", 200), ("PATCH", 200)])
@pytest.mark.parametrize(
    "content_type",
    [
        *("application/json", "application/x-www-form-urlencoded", "text/plain", "image/png"),
        *("multipart/form-data; boundary=x", "multipart/form-data", "nonsense", ""),
        *("application/json; charset=utf-16",),
    ],
)
def test_the_content_type_is_never_checked(
    tree: Client, method: str, status: int, content_type: str
) -> None:
    body = '{"a":"b=c&d=e"}'
    response = tree.request(method, "/x.json", body, {"Content-Type": content_type})
    assert response.status == status
    target = f"/x/{response.json['name']}.json" if method == "POST" else "/x.json"
    assert tree.get(target) == {"a": "b=c&d=e"}


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH"])
@pytest.mark.parametrize("body", [None, b"", b" ", b"\r\n\t "])
def test_a_missing_body_is_refused(tree: Client, method: str, body: bytes | None) -> None:
    tree.put("/a.json", 1)
    check_error(tree.request(method, "/a.json", body), 400, "invalid_data")
    assert tree.get("/a.json") == 1


@pytest.mark.parametrize(
    ("method", "body"), [("PUT", "1"), ("POST", "1"), ("PATCH", '{"a":1}'), ("DELETE", None)]
)
@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?print=silent", {}),
        ("", {"print": "silent"}),
        ("", {"Print": "silent"}),
        ("?print=silent", {"print": "silent"}),
        ("?print=pretty", {"print": "silent"}),
    ],
)
def test_a_silent_write_is_204_without_a_body(
    tree: Client, method: str, body: str | None, query: str, headers: dict[str, str]
) -> None:
    tree.put("/x.json", {"old": 1})
    response = tree.request(method, f"/x.json{query}", body, headers)
    assert (response.status, response.body) == (204, b"")
    assert tree.get("/x.json") != {"old": 1}


def test_a_silent_write_that_fails_has_a_body(tree: Client) -> None:
    check_error(tree.request("PUT", "/x.json?print=silent", "{"), 400, "invalid_data")
    check_error(tree.request("PUT", "/x?print=silent", "1"), 404, "not_found")


def test_a_pretty_write_is_indented_by_two_spaces(tree: Client) -> None:
    response = tree.request("PUT", "/x.json?print=pretty", '{"a":{"b":[1,"x"]}}')
    assert response.body == b'{\n  "a": {\n    "b": [\n      1,\n      "x"\n    ]\n  }\n}'
    response = tree.request("PATCH", "/x.json?print=pretty", '{"c":1}')
    assert response.body == b'{\n  "c": 1\n}'
    response = tree.request("POST", "/x.json?print=pretty", "1")
    assert response.body == b'{\n  "name": "%b"\n}' % response.json["name"].encode()
    assert tree.request("DELETE", "/x.json?print=pretty").body == b"null"


@pytest.mark.parametrize("how", ["header", "HEADER", "query"])
def test_a_post_may_override_its_method(tree: Client, how: str) -> None:
    def request(method: str, body: str | None, query: str = "") -> bytes:
        target, headers = f"/a.json?x=1{query}", {}
        if how == "query":
            target += f"&x-http-method-override={method}"
        else:
            name = "X-HTTP-Method-Override"
            headers[name if how == "header" else name.upper()] = method
        response = tree.request("POST", target, body, headers)
        assert response.status == 200, response
        return response.body

    assert request("PUT", '{"a":1,"b":2}') == b'{"a":1,"b":2}'
    assert request("PATCH", '{"b":3}') == b'{"b":3}'
    assert request("GET", None) == b'{"a":1,"b":3}'
    assert request("GET", None, "&shallow=true") == b'{"a":true,"b":true}'
    assert request("GET", "", "&print=pretty") == b'{\n  "a": 1,\n  "b": 3\n}'
    assert request("DELETE", None) == b"null"
    assert tree.get("/.json") is None


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_only_a_post_may_override_its_method(tree: Client, method: str) -> None:
    tree.put("/a.json", {"x": 1})
    header = {"X-HTTP-Method-Override": "DELETE" if method != "DELETE" else "GET"}
    assert tree.request(method, "/a.json", '{"y":2}', header).status == 200
    shown = {"GET": {"x": 1}, "PUT": {"y": 2}, "PATCH": {"x": 1, "y": 2}, "DELETE": None}
    assert tree.get("/a.json") == shown[method]


def test_an_override_to_anything_else_is_refused(tree: Client) -> None:
    for method in ("BREW", "OPTIONS", "CONNECT"):
        response = tree.request("POST", "/a.json", "1", {"X-HTTP-Method-Override": method})
        assert response.status in (400, 405), response
    assert tree.get("/.json") is None


@pytest.mark.parametrize("method", ["TRACE", "BREW", "get", "Put", "PROPFIND", "COPY"])
def test_another_method_is_405_with_those_allowed(tree: Client, method: str) -> None:
    response = tree.request(method, "/a.json", "1")
    check_error(response, 405, "method_not_allowed")
    allowed = {name.strip() for name in response.headers["Allow"].split(",")}
    assert allowed == {"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"}


@pytest.mark.parametrize(
    ("method", "target", "body", "headers", "status"),
    [
        # An unknown path comes before everything else.
        ("BREW", "/a", b"1", {}, 404),
        ("PUT", "/a?timeout=x", b"{", {}, 404),
        ("PUT", "/a?x=%zz", b"1", {"If-Match": "no"}, 404),
        # Then the method.
        ("BREW", "/a.json?timeout=x", b"{", {}, 405),
        ("BREW", "/a.json", b"1", {"If-Match": "no"}, 405),
        # Then the size.
        ("PUT", "/a.json", TOO_LARGE, {}, 413),
        ("PUT", "/a.json?timeout=x", TOO_LARGE, {}, 413),
        ("PUT", "/a.json", TOO_LARGE, {"If-Match": "no"}, 413),
        # Then what is malformed, and the condition last.
        ("PUT", "/a.json?timeout=x", b"1", {"If-Match": "no"}, 400),
        ("PUT", "/a.json", b"{", {"If-Match": "no"}, 400),
        ("PUT", "/a.b.json", b"1", {"If-Match": "no"}, 400),
        ("PATCH", "/a.json", b'{"a":1,"a/b":1}', {"If-Match": "no"}, 400),
        ("PUT", "/a.json", b'{".sv":"x"}', {"If-Match": "no"}, 400),
        ("PUT", "/a.json", b"1", {"If-Match": "no"}, 412),
    ],
)
def test_errors_have_the_documented_order(
    tree: Client, method: str, target: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    response = tree.request(method, target, body, headers)
    assert response.status == status, response
    assert tree.get("/.json") is None


def test_a_body_may_be_chunked(tree: Client) -> None:
    with Wire(tree.daemon.http) as wire:
        head = print_request(
            "PUT", "/a.json", headers={"Transfer-Encoding": "chunked"}, host=tree.host
        )
        wire.send(head + b'4\r\n{"a"\r\n5;x=y\r\n:[1,2\r\n2\r\n]}\r\n0\r\nX-Trailer: 1\r\n\r\n')
        assert wire.receive().body == b'{"a":[1,2]}'
        wire.send(print_request("GET", "/a.json", host=tree.host))
        assert wire.receive().body == b'{"a":[1,2]}'


def make_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 3 or kind < 0.3:
        leaves = [None, True, 7, -1.5, "x", "é" * rng.randrange(3000)]
        return rng.choice(leaves)
    count = rng.choice([0, 1, 2, 3, 12])
    if kind < 0.45:
        return [make_value(rng, depth + 1) for _ in range(count)]
    return {make_key(rng): make_value(rng, depth + 1) for _ in range(count)}


def make_key(rng: random.Random) -> str:
    return rng.choice(["0", "1", "2", "7", "a", "b", "é", "z z", f"k{rng.randrange(40)}"])


def make_path(rng: random.Random) -> str:
    return "/".join(make_key(rng) for _ in range(rng.randrange(1, 5)))


@pytest.mark.parametrize("seed", range(4))
def test_a_long_history_of_writes_equals_the_model(tree: Client, seed: int) -> None:
    """Values of all shapes at overlapping paths, so that rows of the store are split and joined."""
    rng = random.Random(seed)
    value: Any = {}
    for _ in range(120):
        path, body = make_path(rng), make_value(rng)
        kind = rng.random()
        if kind < 0.2:
            assert tree.request("DELETE", f"/{escape_path(path)}.json").status == 200
            value = expected.set_at(value, path, None)
        elif kind < 0.5:
            changes = {f"p{at}/{make_path(rng)}": make_value(rng) for at in range(4)}
            response = tree.request("PATCH", f"/{escape_path(path)}.json", json.dumps(changes))
            assert response.status == 200, response
            for below, item in changes.items():
                value = expected.set_at(value, f"{path}/{below}", expected.tree(item))
        else:
            tree.put(f"/{escape_path(path)}.json", body)
            value = expected.set_at(value, path, expected.tree(body))
        other = make_path(rng)
        read = tree.request("GET", f"/{escape_path(other)}.json", headers={"X-Vendor-ETag": "true"})
        shown = expected.printed(expected.child_at(value, other))
        assert expected.comparable(read.json) == expected.comparable(shown)
        assert read.headers["ETag"] == expected.entity_tag(shown)
    assert expected.comparable(tree.get("/.json")) == expected.comparable(
        expected.printed(value) or None
    )
    sizes = tree.get("/.json?shallow=true&v=2")
    for key, size in sizes.items():
        child = expected.printed(value[key])
        is_container = isinstance(child, dict | list)
        assert size == ({".sz": len(expected.compact(child))} if is_container else child)


def escape_path(path: str) -> str:
    return "/".join(map(escape, path.split("/")))


def test_a_read_after_the_response_to_a_write_sees_it(shared_daemon: Daemon) -> None:
    with (
        Client(shared_daemon, "seen.localhost") as writer,
        Client(shared_daemon, "seen.localhost") as reader,
    ):
        for at in range(200):
            writer.put("/n.json", at)
            assert reader.get("/n.json") == at
