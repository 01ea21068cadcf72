"""Which database a socket reaches, and from which pages: hosts, namespaces, origins, processes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import OPEN_RULES, Client
from tests.websocket import Refused, WebSocket

CONFIG = """
domains = ["db.test"]
default_project = "shop"
[projects.shop]
rules_file = "open.json"
databases = ["default", "eu"]
[projects.other]
rules_file = "open.json"
"""


@pytest.fixture(scope="module")
def configured_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("addressing")
    (folder / "open.json").write_text(OPEN_RULES)
    with Daemon(folder, config=CONFIG) as running:
        yield running


@pytest.mark.parametrize(
    ("host", "query", "label"),
    [
        ("shop.db.test", "", "shop"),
        ("SHOP.db.test:8443", "", "shop"),
        ("eu--shop.db.test", "", "eu--shop"),
        ("default--shop.db.test", "", "shop"),
        ("other.db.test", "", "other"),
        ("db.test", "&ns=other", "other"),
        ("127.0.0.1", "&ns=eu--shop", "eu--shop"),
        ("localhost:9000", "&ns=shop", "shop"),
        ("shop.db.test", "&ns=shop", "shop"),
        ("shop.db.test", "&ns=default--shop", "shop"),
        ("eu--shop.db.test", "&ns=eu--shop", "eu--shop"),
        ("127.0.0.1", "", "shop"),
        ("db.test", "", "shop"),
    ],
)
def test_a_socket_reaches_the_database_that_its_address_names(
    configured_daemon: Daemon, host: str, query: str, label: str
) -> None:
    with (
        Client(configured_daemon, "127.0.0.1") as tree,
        RealtimeClient(tree, f"/.ws?v=5{query}", host=host) as client,
    ):
        assert client.hello["h"] == host
        client.put("where", [host, query])
        assert tree.get(f"/where.json?ns={label}") == [host, query]


@pytest.mark.parametrize(
    ("host", "query", "status"),
    [
        ("unknown.db.test", "", 404),
        ("nowhere--shop.db.test", "", 404),
        ("example.com", "", 421),
        ("shop.db.test", "&ns=other", 400),
        ("127.0.0.1", "&ns=unknown", 404),
        ("127.0.0.1", "&ns=_", 400),
        ("127.0.0.1", "&ns=shop&ns=other", 400),
        ("-.db.test", "", 404),
    ],
)
def test_an_address_that_names_no_database_is_refused_at_the_handshake(
    configured_daemon: Daemon, host: str, query: str, status: int
) -> None:
    tree = Client(configured_daemon, host)
    rest = tree.request("GET", f"/a.json?{query.removeprefix('&')}")
    assert rest.status == status
    with pytest.raises(Refused) as refused:
        WebSocket(tree, f"/.ws?v=5{query}")
    assert refused.value.status == status
    assert json.loads(refused.value.body)["error"] == rest.json["error"]


def test_databases_do_not_see_each_other(configured_daemon: Daemon) -> None:
    with (
        RealtimeClient(Client(configured_daemon, "shop.db.test")) as one,
        RealtimeClient(Client(configured_daemon, "eu--shop.db.test")) as two,
    ):
        one.listen("seen")
        assert one.pushes_during(lambda: two.put("seen", 1)) == []
        assert two.get("seen") == 1
        assert one.get("seen") is None


def test_a_database_comes_into_being_with_the_first_write(daemon: Daemon) -> None:
    with Client.of_new_tree(daemon) as tree, RealtimeClient(tree) as client:
        project = tree.host.partition(".")[0]
        assert client.listen("a") is None
        assert not list(daemon.data.glob(f"{project}/*.shelf"))
        assert [push.change for push in client.pushes_during(lambda: client.put("a", 1))] == [
            ("d", "a", 1, None)
        ]
        assert list(daemon.data.glob(f"{project}/*.shelf"))


# Origins.


@pytest.mark.parametrize(
    "origin", ["https://example.com", "null", "http://localhost:3000", "file://"]
)
def test_any_page_may_connect_outside_development_mode(
    configured_daemon: Daemon, origin: str
) -> None:
    headers = {"Origin": origin}
    with RealtimeClient(Client(configured_daemon, "shop.db.test"), headers=headers) as client:
        client.put("origin", origin)
        assert client.get("origin") == origin


def test_in_development_mode_pages_of_this_machine_may_connect(tree: Client) -> None:
    for origin in ("http://localhost:3000", "https://app.localhost", "http://127.0.0.1:5173"):
        with RealtimeClient(tree, headers={"Origin": origin}) as client:
            client.put("origin", origin)
            assert client.get("origin") == origin


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_in_development_mode_pages_of_other_sites_are_refused_as_over_rest(
    tree: Client, headers: dict[str, str]
) -> None:
    assert tree.request("PUT", "/origin.json", "1", headers).status == 403
    with pytest.raises(Refused) as refused:
        WebSocket(tree, headers=headers)
    assert refused.value.status == 403


def test_pages_of_the_origins_that_are_configured_are_not_distinguished(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "open.json").write_text(OPEN_RULES)
    config = CONFIG + '[http]\ncors_origins = ["https://app.example"]\n'
    with Daemon(tmp_path, config=config) as daemon:
        for origin in ("https://app.example", "https://other.example"):
            headers = {"Origin": origin}
            with RealtimeClient(Client(daemon, "shop.db.test"), headers=headers) as client:
                client.put("a", origin)
                assert client.get("a") == origin
