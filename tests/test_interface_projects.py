"""The projects and databases of a configuration file; no project is created on use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.rest import Client, check_error, check_refused, configured

DOMAIN = "db.example.com"
CONFIG = """
domains = ["db.example.com", "Other.Example"]
[projects.shop]
databases = ["default", "eu"]
rules_file = "open.json"
dialect = "standard"
[projects.open]
databases = "*"
rules_file = "open.json"
dialect = "standard"
[projects.plain]
rules_file = "open.json"
dialect = "standard"
[projects.listed]
databases = ["eu"]
rules_file = "open.json"
dialect = "standard"
"""
WRITES = [("PUT", "1"), ("POST", "1"), ("PATCH", '{"a":1}')]


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with configured(tmp_path_factory.mktemp("daemon"), CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def with_default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = f'default_project = "shop"\n{CONFIG}'
    with configured(tmp_path_factory.mktemp("daemon"), config) as running:
        yield running


@pytest.mark.parametrize(
    ("host", "query", "file"),
    [
        ("shop.db.example.com", "", "shop/default.shelf"),
        ("SHOP.DB.example.COM:8443", "", "shop/default.shelf"),
        ("default--shop.db.example.com", "", "shop/default.shelf"),
        ("eu--shop.db.example.com", "", "shop/eu.shelf"),
        ("eu--shop.other.example", "", "shop/eu.shelf"),
        ("plain.OTHER.example", "", "plain/default.shelf"),
        ("db.example.com", "?ns=plain", "plain/default.shelf"),
        ("other.example:1", "?ns=eu--shop", "shop/eu.shelf"),
        ("127.0.0.1", "?ns=eu--shop", "shop/eu.shelf"),
        ("localhost", "?ns=shop", "shop/default.shelf"),
        ("[::1]:9000", "?ns=eu--listed", "listed/eu.shelf"),
        ("us--open.db.example.com", "", "open/us.shelf"),
    ],
)
def test_a_configured_database_is_addressed(
    shared_daemon: Daemon, host: str, query: str, file: str
) -> None:
    with Client(shared_daemon, host) as client:
        assert client.request("PUT", f"/a.json{query}", '"here"').status == 200
        assert client.request("GET", f"/a.json{query}").body == b'"here"'
        assert (shared_daemon.data / file).is_file()


@pytest.mark.parametrize(
    "host",
    [
        *("shop.localhost", "demo.localhost", "shop.example.com", "example.com", "db.example.org"),
        *("xdb.example.com", "shop.db.example.com.evil.net", "evil", "shop"),
    ],
)
@pytest.mark.parametrize("query", ["", "?ns=shop"])
def test_a_name_outside_the_domains_is_misdirected(
    shared_daemon: Daemon, host: str, query: str
) -> None:
    with Client(shared_daemon, host) as client:
        check_refused(client.request("GET", f"/a.json{query}"), 421)
        check_refused(client.request("PUT", f"/a.json{query}", "1"), 421)
        check_error(client.request("GET", "/a.json"), 421, "misdirected")
        assert client.request("GET", "/.health").status == 200


@pytest.mark.parametrize("host", ["other", "eu--other", "default--other", "localhost", "demo"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "BREW"])
def test_an_unknown_project_is_not_found(shared_daemon: Daemon, host: str, method: str) -> None:
    with Client(shared_daemon, f"{host}.{DOMAIN}") as client:
        check_error(client.request(method, "/a.json", "1"), 404, "not_found")
    with Client(shared_daemon, "127.0.0.1") as client:
        check_refused(client.request(method, f"/a.json?ns={host}", "1"), 404)


@pytest.mark.parametrize("label", ["us--shop", "eu--plain", "us--listed", "listed"])
@pytest.mark.parametrize(("method", "body"), [("GET", None), ("DELETE", None), *WRITES])
def test_a_database_that_is_not_listed_is_not_found(
    shared_daemon: Daemon, label: str, method: str, body: str | None
) -> None:
    with Client(shared_daemon, f"{label}.{DOMAIN}") as client:
        check_error(client.request(method, "/a.json", body), 404, "not_found")
    database, _, project = label.rpartition("--")
    assert not (shared_daemon.data / project / f"{database or 'default'}.shelf").exists()


@pytest.mark.parametrize("label", ["a_b", "-shop", "a--b--shop", "eu.shop", "x" * 64])
def test_an_illegal_label_is_not_found_in_a_host_and_refused_in_ns(
    shared_daemon: Daemon, label: str
) -> None:
    with Client(shared_daemon, f"{label}.{DOMAIN}") as client:
        check_error(client.request("GET", "/a.json"), 404, "not_found")
    with Client(shared_daemon, "127.0.0.1") as client:
        check_refused(client.request("GET", f"/a.json?ns={label}"), 400)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", DOMAIN, "other.example"])
def test_without_a_project_the_error_says_how_to_name_one(shared_daemon: Daemon, host: str) -> None:
    with Client(shared_daemon, host) as client:
        message = check_error(client.request("GET", "/a.json"), 404, "not_found")
        assert "ns=" in message
        check_error(client.request("PUT", "/a.json", "1"), 404, "not_found")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", DOMAIN, "other.example:80"])
def test_without_a_project_the_default_one_is_used(with_default: Daemon, host: str) -> None:
    with Client(with_default, f"shop.{DOMAIN}") as shop, Client(with_default, host) as client:
        shop.put("/a.json", "shop")
        assert client.get("/a.json") == "shop"
        check_refused(client.request("GET", "/a.json?ns=none"), 404)


@pytest.mark.parametrize(
    "query",
    [
        *("ns=shop&x=%zz", "x=%zz&ns=shop", "ns=shop&shallow=%ff", "ns=shop&ns=shop"),
        *("ns=shop&print=pretty&print=pretty", "ns=sh%6Fp&x=%", "%zz=1&ns=shop&ns=none"),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", DOMAIN])
def test_an_invalid_query_still_names_its_project(
    shared_daemon: Daemon, host: str, query: str
) -> None:
    with Client(shared_daemon, host) as client:
        for method in ("GET", "PUT", "DELETE"):
            check_error(client.request(method, f"/a.json?{query}", "1"), 400, "invalid_query")


@pytest.mark.parametrize(
    ("query", "status"), [("ns=none&x=%zz", 404), ("ns=none&ns=shop", 404), ("ns=%ff", 400)]
)
def test_an_unknown_project_is_reported_before_an_invalid_query(
    shared_daemon: Daemon, query: str, status: int
) -> None:
    with Client(shared_daemon, "localhost") as client:
        check_refused(client.request("GET", f"/a.json?{query}"), status)


def test_a_refused_method_is_reported_before_an_invalid_query(shared_daemon: Daemon) -> None:
    with Client(shared_daemon, "localhost") as client:
        for method, status in (("PUT", 400), ("BREW", 405)):
            target = f"/.settings/rules.json?ns=shop&x-http-method-override={method}&x=%zz"
            assert client.request("POST", target, "{}").status == status


def test_a_project_may_have_any_legal_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = f'''
domains = ["{DOMAIN}"]
[projects.lock]
rules_file = "open.json"
'''
    with configured(tmp_path_factory.mktemp("lock"), config) as daemon:
        with Client(daemon, f"lock.{DOMAIN}") as client:
            client.put("/a.json", 1)
            assert client.get("/a.json") == 1
        daemon.restart()
        with Client(daemon, f"lock.{DOMAIN}") as client:
            assert client.get("/a.json") == 1


@pytest.mark.parametrize(("method", "body"), WRITES)
def test_the_first_write_creates_a_database_if_any_is_allowed(
    shared_daemon: Daemon, method: str, body: str
) -> None:
    name = f"made-by-{method.lower()}"
    file = shared_daemon.data / "open" / f"{name}.shelf"
    with Client(shared_daemon, f"{name}--open.{DOMAIN}") as client:
        assert client.get("/a.json") is None
        assert client.get("/.json?shallow=true") is None
        assert not file.exists()
        assert client.request(method, "/a.json", body).status == 200
        assert file.is_file()
        assert client.get("/a.json") is not None


@pytest.mark.parametrize(
    ("method", "target", "body", "headers", "status"),
    [
        ("PUT", "/a.json", "{", {}, 400),
        ("PUT", "/a.json", "", {}, 400),
        ("PUT", "/a.json", '{"a.b":1}', {}, 400),
        ("PUT", "/a.b.json", "1", {}, 400),
        ("PUT", "/a.json?timeout=1h", "1", {}, 400),
        ("PUT", "/a.json", "1", {"If-Match": '"nothing like it"'}, 412),
        ("PUT", "/a.json", "1", {"If-Match": "*"}, 412),
        ("POST", "/a.json", '{".sv":"nonsense"}', {}, 400),
        ("PATCH", "/a.json", '{"a":1,"a/b":1}', {}, 400),
        ("DELETE", "/a.json", None, {"If-Match": "*"}, 412),
        ("PUT", "/a", "1", {}, 404),
        ("BREW", "/a.json", "1", {}, 405),
    ],
)
def test_a_failed_write_creates_no_file(
    shared_daemon: Daemon,
    method: str,
    target: str,
    body: str | None,
    headers: dict[str, str],
    status: int,
) -> None:
    with Client(shared_daemon, f"unmade--open.{DOMAIN}") as client:
        assert client.request(method, target, body, headers).status == status
        assert not list(shared_daemon.data.glob("*/unmade.*"))


def test_databases_are_independent(shared_daemon: Daemon) -> None:
    names = ["one--open", "two--open", "open"]
    with (
        Client(shared_daemon, f"{names[0]}.{DOMAIN}") as one,
        Client(shared_daemon, f"{names[1]}.{DOMAIN}") as two,
        Client(shared_daemon, f"{names[2]}.{DOMAIN}") as three,
    ):
        for client, name in zip((one, two, three), names, strict=True):
            client.put("/who.json", name)
        assert [client.get("/who.json") for client in (one, two, three)] == names
        assert two.request("DELETE", "/.json").body == b"null"
        assert [client.get("/who.json") for client in (one, two, three)] == [
            names[0],
            None,
            names[2],
        ]


def test_an_absolute_target_names_the_database_as_its_host_does(shared_daemon: Daemon) -> None:
    with Client(shared_daemon, f"eu--shop.{DOMAIN}") as client:
        client.put("/abs.json", 1)
        assert client.get(f"https://eu--shop.{DOMAIN}/abs.json") == 1
        assert client.get(f"http://EU--shop.{DOMAIN.upper()}/abs.json") == 1
        assert client.request("GET", f"https://shop.{DOMAIN}/abs.json").status == 400


def test_a_database_created_on_use_exists_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with configured(tmp_path_factory.mktemp("restarted"), CONFIG) as daemon:
        with Client(daemon, f"later--open.{DOMAIN}") as client:
            client.put("/a.json", [1, 2])
        daemon.restart()
        with Client(daemon, f"later--open.{DOMAIN}") as client:
            assert client.get("/a.json") == [1, 2]


def test_the_interface_is_the_same_over_tls(shared_daemon: Daemon) -> None:
    with Client(shared_daemon, f"shop.{DOMAIN}", secure=True) as client:
        client.put("/tls.json", {"a": 1})
        assert client.get("/tls.json?shallow=true") == {"a": True}
        check_error(client.request("GET", "/tls"), 404, "not_found")
    with Client(shared_daemon, "evil.example", secure=True) as client:
        check_error(client.request("GET", "/a.json"), 421, "misdirected")
