"""The address of a request: host, `ns`, path and raw query, in development mode."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.rest import Client, Wire, check_error, check_refused, configured, escape, print_request

LABEL_OF_63 = "a" * 63
ILLEGAL_LABELS = (
    *("-", "--", "a-", "-a", "--a", "a--", "a--b--c", "a---b", "a--b-", "-a--b", "a_b", "a b"),
    *("a.b", "a/b", "é", "a" * 64, "default--" + "a" * 55),
)


# Hosts and ns


@pytest.mark.parametrize(
    ("host", "query"),
    [
        ("demo.localhost", ""),
        ("demo.localhost:1", ""),
        ("demo.localhost:65535", ""),
        ("DEMO.LocalHost", ""),
        ("default--demo.localhost", ""),
        ("Default--Demo.localhost", ""),
        ("localhost", ""),
        ("localhost:9000", ""),
        ("LOCALHOST", ""),
        ("127.0.0.1", ""),
        ("127.0.0.1:80", ""),
        ("10.1.2.3", ""),
        ("[::1]", ""),
        ("[::1]:8443", ""),
        ("127.0.0.1", "?ns=demo"),
        ("127.0.0.1", "?ns=default--demo"),
        ("localhost", "?ns=demo"),
        ("[::1]", "?ns=demo"),
        ("localhost", "?ns=d%65mo"),
        ("localhost", "?ns=DEMO"),
        ("demo.localhost", "?ns=demo"),
        ("demo.localhost", "?ns=default--demo"),
        ("default--demo.localhost", "?ns=demo"),
    ],
)
def test_the_default_database_of_demo_has_these_addresses(
    shared_daemon: Daemon, host: str, query: str
) -> None:
    with Client(shared_daemon, "demo.localhost") as demo, Client(shared_daemon, host) as client:
        demo.put("/where.json", "home")
        assert client.request("GET", f"/where.json{query}").body == b'"home"'


@pytest.mark.parametrize(
    ("host", "query"),
    [
        ("eu--demo.localhost", ""),
        ("EU--demo.localhost:9", ""),
        ("localhost", "?ns=eu--demo"),
        ("127.0.0.1", "?ns=eu--demo"),
        ("eu--demo.localhost", "?ns=eu--demo"),
    ],
)
def test_another_database_of_demo_has_these_addresses(
    shared_daemon: Daemon, host: str, query: str
) -> None:
    with Client(shared_daemon, "demo.localhost") as demo, Client(shared_daemon, host) as client:
        demo.put("/where.json", "home")
        assert client.request("PUT", f"/where.json{query}", '"eu"').status == 200
        assert client.request("GET", f"/where.json{query}").body == b'"eu"'
        assert demo.get("/where.json") == "home"


@pytest.mark.parametrize(
    ("host", "ns"),
    [
        ("demo.localhost", "other"),
        ("demo.localhost", "eu--demo"),
        ("eu--demo.localhost", "demo"),
        ("eu--demo.localhost", "us--demo"),
    ],
)
def test_a_host_and_an_ns_that_disagree_are_refused(
    shared_daemon: Daemon, host: str, ns: str
) -> None:
    with Client(shared_daemon, host) as client:
        check_refused(client.request("GET", f"/a.json?ns={ns}"), 400)
        check_refused(client.request("PUT", f"/a.json?ns={ns}", "1"), 400)


@pytest.mark.parametrize("label", [*ILLEGAL_LABELS, ""])
def test_an_illegal_label_in_ns_is_refused(shared_daemon: Daemon, label: str) -> None:
    with Client(shared_daemon) as client:
        check_refused(client.request("GET", f"/a.json?ns={escape(label)}"), 400)


@pytest.mark.parametrize(
    "label", [each for each in ILLEGAL_LABELS if each.isascii() and not {" ", "/"} & set(each)]
)
def test_an_illegal_label_under_a_domain_is_not_found(shared_daemon: Daemon, label: str) -> None:
    with Client(shared_daemon, f"{label}.localhost") as client:
        check_error(client.request("GET", "/a.json"), 404, "not_found")


@pytest.mark.parametrize("label", ["a", "0", "a-b", "0-0", "a--b", "a-b--c-d", "lock", LABEL_OF_63])
def test_a_legal_label_is_accepted_in_host_and_ns(shared_daemon: Daemon, label: str) -> None:
    with (
        Client(shared_daemon, f"{label}.localhost") as by_host,
        Client(shared_daemon) as by_parameter,
    ):
        by_host.put("/a.json", label)
        assert by_parameter.get(f"/a.json?ns={label}") == label


@pytest.mark.parametrize(
    "host", ["example.com", "demo.example.com", "localhost.example.com", "demolocalhost", "local"]
)
def test_a_host_outside_the_domains_is_misdirected(shared_daemon: Daemon, host: str) -> None:
    with Client(shared_daemon, host) as client:
        check_error(client.request("GET", "/a.json"), 421, "misdirected")
        check_refused(client.request("PUT", "/a.json?ns=demo", "1"), 421)
        check_error(client.request("OPTIONS", "/a.json"), 421, "misdirected")


@pytest.mark.parametrize("hosts", [[], ["demo.localhost"] * 2, ["demo.localhost", "localhost"]])
@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
def test_a_missing_or_repeated_host_header_is_refused(
    shared_daemon: Daemon, hosts: list[str], method: str
) -> None:
    with Wire(shared_daemon.http) as wire:
        headers = [("Host", host) for host in hosts]
        wire.send(print_request(method, "/a.json", "1", headers, host=None))
        response = wire.receive(method)
        assert response.status == 400
        assert response.json["error"].startswith("invalid_")


@pytest.mark.parametrize("host", ["", "a b", "demo.localhost:x", "demo.localhost/x", "u@localhost"])
def test_an_invalid_host_header_is_refused(shared_daemon: Daemon, host: str) -> None:
    with Client(shared_daemon, host) as client:
        assert client.request("GET", "/a.json").status == 400


def test_http_1_0_without_a_host_is_refused_too(shared_daemon: Daemon) -> None:
    with Wire(shared_daemon.http) as wire:
        wire.send(b"GET /a.json HTTP/1.0\r\n\r\n")
        assert wire.receive().status == 400


@pytest.mark.parametrize("host", ["example.com", "a_b.localhost", "127.0.0.1", "demo.localhost"])
def test_health_is_served_for_any_host(shared_daemon: Daemon, host: str) -> None:
    with Client(shared_daemon, host) as client:
        response = client.request("GET", "/.health")
        assert response.status == 200
        assert client.request("HEAD", "/.health").status == 200
        assert client.request("GET", "/.health?x=1").status == 200
        for method in ("PUT", "BREW"):
            refused = client.request(method, "/.health", "1")
            check_error(refused, 405, "method_not_allowed")
            assert refused.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
def test_an_absolute_target_that_agrees_with_the_host_is_accepted(
    shared_daemon: Daemon, scheme: str
) -> None:
    with Client(shared_daemon, "eu--abs.localhost") as client:
        client.put("/a/b.json", 7)
        response = client.request("GET", f"{scheme}://eu--abs.localhost/a/b.json?print=pretty")
        assert (response.status, response.body) == (200, b"7")
        response = client.request("GET", f"{scheme}://EU--abs.LOCALHOST/a/b.json")
        assert (response.status, response.body) == (200, b"7")


@pytest.mark.parametrize("target", ["http://other.localhost/a.json", "http://127.0.0.1/a.json"])
def test_an_absolute_target_that_disagrees_with_the_host_is_refused(
    shared_daemon: Daemon, target: str
) -> None:
    with Client(shared_daemon, "demo.localhost") as client:
        assert client.request("GET", target).status == 400
        assert client.request("PUT", target, "1").status == 400


@pytest.mark.parametrize("target", ["a.json", "*", "localhost:80", "ftp://localhost/a.json", "//"])
def test_a_target_of_another_form_is_refused(shared_daemon: Daemon, target: str) -> None:
    with Client(shared_daemon) as client:
        assert client.request("GET", target).status in (400, 404)


def test_forwarded_headers_are_ignored(shared_daemon: Daemon) -> None:
    with (
        Client(shared_daemon, "demo.localhost") as demo,
        Client(shared_daemon, "shop.localhost") as shop,
    ):
        demo.put("/whose.json", "demo")
        shop.put("/whose.json", "shop")
        forwarded = {
            "X-Forwarded-Host": "shop.localhost",
            "X-Forwarded-Proto": "https",
            "X-Forwarded-For": "10.0.0.1",
            "Forwarded": "host=shop.localhost",
        }
        assert demo.request("GET", "/whose.json", headers=forwarded).body == b'"demo"'


def test_reading_creates_nothing_and_a_write_creates_a_file(shared_daemon: Daemon) -> None:
    with Client(shared_daemon, "eu--made.localhost") as client:
        file = shared_daemon.data / "made" / "eu.shelf"
        for target in ("/a.json", "/.json", "/a.json?shallow=true", '/a.json?orderBy="$key"'):
            assert client.request("GET", target).body == b"null"
        assert client.request("PUT", "/a.json", "{").status == 400
        assert client.request("PUT", "/a.json", "1", {"If-Match": "*"}).status == 412
        assert client.request("PATCH", "/a.json", '{"a":1,"a/b":1}').status == 400
        assert not file.parent.exists()
        client.put("/a.json", 1)
        assert file.is_file()


# Hosts of configured services

ANY_HOSTS = (
    *("db.example.com", "SHOP.db.Example.COM:8443", "shop.localhost", "localhost", "127.0.0.1:80"),
    *("[::1]:1", "a_b.example", "intranet", "eu--shop.example.com.", "x--y--z"),
)
PROJECT = """
default_project = "demo"
[projects.demo]
rules_file = "open.json"
databases = ["default", "eu"]
"""


@pytest.fixture(scope="module")
def without_domains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with configured(tmp_path_factory.mktemp("without"), PROJECT) as daemon:
        yield daemon


@pytest.mark.parametrize("host", ANY_HOSTS)
def test_without_domains_any_host_names_nothing(without_domains: Daemon, host: str) -> None:
    with Client(without_domains, host) as client:
        client.put("/host.json", host)
        assert client.get("/host.json?ns=demo") == host
        assert client.get("/host.json?ns=eu--demo") is None
        assert client.request("OPTIONS", "/host.json").status == 204
        check_refused(client.request("GET", "/host.json?ns=shop"), 404)


@pytest.mark.parametrize("host", ["a b", "u@h", "h:x", ""])
def test_without_domains_a_malformed_host_is_refused_all_the_same(
    without_domains: Daemon, host: str
) -> None:
    with Client(without_domains, host) as client:
        assert client.request("GET", "/a.json").status == 400


def test_with_domains_only_they_and_addresses_of_the_machine_are_served(
    tmp_path: pathlib.Path,
) -> None:
    expected = {
        "db.example.com": 200,
        "DEMO.DB.example.com:1": 200,
        "eu--demo.db.example.com": 200,
        "localhost": 200,
        "10.0.0.1": 200,
        "shop.db.example.com": 404,
        "a_b.db.example.com": 404,
        "example.com": 421,
        "demo.localhost": 421,
        "demo.db.example.com.evil.test": 421,
    }
    with configured(tmp_path, f'domains = ["db.example.com"]{PROJECT}') as daemon:
        assert {host: status_at(daemon, host) for host in expected} == expected


def test_with_emulator_only_names_of_this_machine_are_served(tmp_path: pathlib.Path) -> None:
    expected = {
        "localhost": 200,
        "demo.localhost:9000": 200,
        "a_b.localhost": 200,
        "SHOP.LocalHost": 200,
        "127.0.0.1": 200,
        "[::1]": 200,
        "demo.example.com": 421,
        "localhost.example.com": 421,
        "xlocalhost": 421,
    }
    with configured(tmp_path, f"emulator = true{PROJECT}") as daemon:
        assert {host: status_at(daemon, host) for host in expected} == expected


def status_at(daemon: Daemon, host: str) -> int:
    with Client(daemon, host) as client:
        return client.request("GET", "/a.json").status


# Paths


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("/a/b.json", "/a/b/.json"),
        ("/a/b.json", "//a///b.json"),
        ("/a/b.json", "/a//b/.json"),
        ("/a/b.json", "/a/b//.json"),
        ("/a/b.json", "/%61/%62.json"),
        ("/a/b.json", "/a/b%2Ejson"),
        ("/a/b.json", "/a/b.%6a%73%6f%6E"),
        ("/.json", "//.json"),
        ("/.json", "/%2ejson"),
        ("/a+b.json", "/a%2Bb.json"),
        ("/a%20b.json", "/a%20b/.json"),
        ("/%C3%A9.json", "/%c3%a9.json"),
        ("/é.json", "/%c3%a9.json"),
        ('/a"b.json', "/a%22b.json"),
        ("/{a}.json", "/%7Ba%7D.json"),
        ("/a;b=1.json", "/a%3Bb%3d1.json"),
        ("/a:@!*'(),&=~-_.json", "/a%3A%40!*'()%2C&%3D~-_.json"),
    ],
)
def test_a_path_may_be_written_in_many_ways(tree: Client, written: str, read: str) -> None:
    tree.put(written, {"x": 1})
    assert tree.get(read) == {"x": 1}


def test_a_plus_in_the_path_is_a_plus(tree: Client) -> None:
    tree.put("/a+b.json", 1)
    assert tree.get("/.json") == {"a+b": 1}


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "target",
    [
        *("/", "/a", "/a/b", "/a/", "/a.json/b", "/json", "/a.JSON", "/a.jsonx", "/a.json%20"),
        *("/a.b", "/%zz", "/%ff", "/a/%", "/%zz/a", "/a.json/%zz", "/%zz?x=%zz"),
    ],
)
def test_a_path_that_does_not_end_with_json_is_not_found(
    tree: Client, method: str, target: str
) -> None:
    body = None if method in ("GET", "DELETE") else "{}"
    assert ".json" in check_error(tree.request(method, target, body), 404, "not_found")


@pytest.mark.parametrize("key", [*".#$[]/", *map(chr, range(0x20)), "\x7f"])
@pytest.mark.parametrize("where", ["/{}.json", "/a{}b.json", "/x/{}/y.json"])
def test_an_illegal_key_in_a_path_is_refused(tree: Client, key: str, where: str) -> None:
    target = where.format(f"%{ord(key):02X}")
    check_error(tree.request("GET", target), 400, "invalid_path")
    check_error(tree.request("PUT", target, "1"), 400, "invalid_path")


@pytest.mark.parametrize("target", ["/a$b.json", "/a[0].json", "/a.b.json", "/../a.json"])
def test_an_illegal_unescaped_key_is_refused(tree: Client, target: str) -> None:
    check_error(tree.request("GET", target), 400, "invalid_path")


def test_an_escaped_slash_is_never_a_separator(tree: Client) -> None:
    tree.put("/a/b.json", 1)
    check_error(tree.request("GET", "/a%2Fb.json"), 400, "invalid_path")
    check_error(tree.request("GET", "/a%2fb.json"), 400, "invalid_path")
    check_error(tree.request("DELETE", "/a%2F.json"), 400, "invalid_path")
    assert tree.get("/.json") == {"a": {"b": 1}}


@pytest.mark.parametrize("character", ["x", "é", "€", "\U0001f600", " "])
def test_a_key_has_768_bytes_at_most(tree: Client, character: str) -> None:
    longest = character * (768 // len(character.encode()))
    tree.put(f"/{escape(longest)}.json", 1)
    assert tree.get("/.json") == {longest: 1}
    tree.put("/.json", {longest: 2})
    assert tree.get(f"/{escape(longest)}.json") == 2
    longer = f"/{escape(longest + character)}.json"
    check_error(tree.request("PUT", longer, "1"), 400, "invalid_path")
    check_error(tree.request("GET", longer), 400, "invalid_path")
    body = json.dumps({longest + character: 1})
    check_error(tree.request("PUT", "/.json", body), 400, "invalid_data")
    check_error(tree.request("PATCH", "/.json", body), 400, "invalid_data")


def test_a_path_has_32_keys_at_most(tree: Client) -> None:
    deepest = "/k" * 32
    tree.put(f"{deepest}.json", 1)
    assert tree.get(f"{deepest}.json") == 1
    assert tree.request("PUT", f"{deepest}/.priority.json", "1").status == 200
    check_error(tree.request("GET", f"{deepest}/k.json"), 400, "invalid_path")
    check_error(tree.request("PUT", f"{deepest}/k.json", "1"), 400, "invalid_path")


def test_the_longest_legal_path_is_accepted(tree: Client) -> None:
    path = "".join(f"/{escape('é' * 384)}" for _ in range(32))
    assert len(path) > 73_000
    tree.put(f"{path}.json", "deep")
    assert tree.get(f"{path}.json") == "deep"


@pytest.mark.parametrize(
    ("path_keys", "body", "is_accepted"),
    [
        (0, {"depth": 32}, True),
        (0, {"depth": 33}, False),
        (31, {"a": 1}, True),
        (31, [1], True),
        (31, {"a": {"b": 1}}, False),
        (31, [[1]], False),
        (32, {"a": 1}, False),
        (32, [1], False),
        (31, {"a": {".value": 1, ".priority": 2}}, True),
    ],
)
def test_path_and_body_together_have_32_keys_at_most(
    tree: Client, path_keys: int, body: object, is_accepted: bool
) -> None:
    if isinstance(body, dict) and "depth" in body:
        nested: object = 1
        for _ in range(body["depth"]):
            nested = {"k": nested}
        body = nested
    target = "/k" * path_keys + ".json" if path_keys else "/.json"
    response = tree.request("PUT", target, json.dumps(body))
    if is_accepted:
        assert response.status == 200
        assert tree.get(target) == json.loads(response.body)
    else:
        check_error(response, 400, "invalid_data")
        assert tree.get("/.json") is None


def test_the_key_of_a_push_counts_for_the_depth(tree: Client) -> None:
    assert tree.request("POST", "/k" * 31 + ".json", "1").status == 200
    check_error(tree.request("POST", "/k" * 32 + ".json", "1"), 400, "invalid_data")
    check_error(tree.request("POST", "/k" * 33 + ".json", "1"), 400, "invalid_path")


def test_a_patch_key_counts_for_the_depth(tree: Client) -> None:
    assert tree.request("PATCH", "/k" * 30 + ".json", '{"a/b":1}').status == 200
    response = tree.request("PATCH", "/k" * 30 + ".json", '{"a/b/c":1}')
    check_error(response, 400, "invalid_data")


@pytest.mark.parametrize(
    "target", ["/.foo.json", "/a/.b.json", "/.a/b.json", "/..json", "/.value/a.json", "/a/./b.json"]
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_other_segments_that_begin_with_a_dot_are_refused(
    tree: Client, target: str, method: str
) -> None:
    check_error(tree.request(method, target, "1"), 400, "invalid_path")


@pytest.mark.parametrize(
    "target",
    [
        *("/%.json", "/%z.json", "/%zz.json", "/a%4.json", "/%u0041.json", "/a/%g0/b.json"),
        *("/%ff.json", "/%c3.json", "/%c3%28.json", "/%c0%af.json", "/%ed%a0%80.json"),
        *("/%f4%90%80%80.json", "/a/%80/b.json", "/%.json?x=%zz"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_an_invalid_escape_in_the_path_is_refused(tree: Client, target: str, method: str) -> None:
    check_error(tree.request(method, target, "1"), 400, "invalid_path")


# The query string


@pytest.mark.parametrize(
    "query",
    [
        *("%", "x=%", "x=%z1", "%zz=1", "x=%ff", "x=%c3", "x=%ed%a0%80", "print=pretty&x=%zz"),
        *("x=%c3%28&y=1", "orderBy=%zz"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_an_invalid_escape_in_the_query_is_refused(tree: Client, query: str, method: str) -> None:
    check_error(tree.request(method, f"/a.json?{query}", "1"), 400, "invalid_query")


@pytest.mark.parametrize(
    "query",
    [
        "print=pretty&print=pretty",
        "print=pretty&print=silent",
        "print=pretty&%70rint=pretty",
        "shallow=true&x=1&shallow=true",
        "shallow=true&shallow=false",
        'orderBy="$key"&orderBy="$key"',
        'orderBy="$key"&limitToFirst=1&limitToFirst=1',
        'orderBy="$key"&limitToLast=1&limitToLast=2',
        'orderBy="$key"&startAt="a"&startAt="a"',
        'orderBy="$key"&endAt="a"&endAt="a"',
        'orderBy="$key"&equalTo="a"&equalTo="a"',
        'orderBy="$key"&startAfter="a"&startAfter="a"',
        'orderBy="$key"&endBefore="a"&endBefore="a"',
        "timeout=1s&timeout=1s",
        "v=2&v=2&shallow=true",
        "callback=a&callback=a",
        "download=a&download=a",
        "format=export&format=export",
        "auth=a&auth=a",
        "access_token=a&access_token=a",
    ],
)
def test_a_known_parameter_given_twice_is_refused(shared_daemon: Daemon, query: str) -> None:
    with Client(shared_daemon) as client:
        check_error(client.request("GET", f"/a.json?{query}"), 400, "invalid_query")


@pytest.mark.parametrize(
    "query",
    [
        *("", "x", "x=1", "x=1&x=2", "&", "&&", "=", "=1", "x=1;y=2", ";", "Print=pretty"),
        *("PRINT=nonsense", "ORDERBY=1", '{"raw"}="', "x={}&y=[]", "x=|^`\\", "x=é", "x=?y"),
    ],
)
def test_unknown_parameters_are_ignored(tree: Client, query: str) -> None:
    tree.put("/a.json", {"b": [1, 2]})
    response = tree.request("GET", f"/a.json?{query}")
    assert (response.status, response.body) == (200, b'{"b":[1,2]}')


def test_a_semicolon_does_not_separate_parameters(tree: Client) -> None:
    tree.put("/a.json", {"b": {"c": 1}})
    check_error(tree.request("GET", "/a.json?shallow=true;v=2"), 400, "invalid_query")
    check_error(tree.request("GET", "/a.json?print=pretty;x=1"), 400, "invalid_query")
    assert tree.request("GET", "/a.json?x=1;shallow=true").body == b'{"b":{"c":1}}'


@pytest.mark.parametrize(
    "query",
    ["orderBy", "orderBy=", "limitToFirst", "print", "v", "callback", "timeout", "shallow"],
)
def test_a_parameter_without_a_value_is_checked(shared_daemon: Daemon, query: str) -> None:
    with Client(shared_daemon) as client:
        check_error(client.request("GET", f"/a.json?{query}"), 400, "invalid_query")


@pytest.mark.parametrize("query", ["ns=demo&ns=demo", "ns", "x=1&ns"])
def test_a_repeated_or_empty_ns_is_refused(shared_daemon: Daemon, query: str) -> None:
    with Client(shared_daemon) as client:
        check_refused(client.request("GET", f"/a.json?{query}"), 400)


def test_quotes_braces_and_pluses_need_no_escape(tree: Client) -> None:
    tree.put("/.json", {"p": {"a b": 1, "x": "{}"}, "q": {"a b": 2, "x": "+"}})
    for order in ('"a b"', '"a+b"', '"a%20b"', "%22a+b%22", '"a%20b%22'):
        if " " not in order:
            assert tree.get(f"/.json?orderBy={order}&equalTo=2") == {"q": {"a b": 2, "x": "+"}}
    assert tree.get('/.json?orderBy="x"&equalTo="{}"') == {"p": {"a b": 1, "x": "{}"}}
    assert tree.get('/.json?orderBy="x"&equalTo="%2B"') == {"q": {"a b": 2, "x": "+"}}
    assert tree.get('/.json?orderBy="x"&equalTo="+"') is None


def test_a_value_may_contain_a_question_mark_and_equals_signs(tree: Client) -> None:
    tree.put("/.json", {"p": {"x": "a=b?c"}})
    assert tree.get('/.json?orderBy="x"&equalTo="a=b?c"') == {"p": {"x": "a=b?c"}}


def test_paths_are_case_sensitive(tree: Client) -> None:
    tree.put("/a.json", 1)
    assert tree.get("/A.json") is None
