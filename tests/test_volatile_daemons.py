"""Volatile nodes over two daemons that share a PostgreSQL."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Client
from tests.served import Cluster
from tests.several import Several
from tests.system import wait_until

OWNER: Final = {"Authorization": "Bearer owner"}
RULES: Final = """{"rules": {".read": true, ".write": true, "boards": {"$board": {
    "cursors": {"$user": {".volatile": true}}, "typing": {".volatile": {"hz": 20}}}}}}"""
SECRET: Final = "volatile-value-7f3a"
LISTENING: Final = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'DO %treedb.channel%'"
SENDING: Final = (
    "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_notify($1, payload)%'"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        for daemon in running.daemons:
            assert "Traceback" not in daemon.log


@pytest.fixture
def several(cluster: Cluster) -> Iterator[Several]:
    with Several(cluster) as processes:
        put_rules(processes.clients()[0])
        yield processes


def put_rules(client: Client, rules: str = RULES) -> None:
    assert client.request("PUT", "/.settings/rules.json", rules, OWNER).status == 200


def await_value(client: Client, target: str, value: Any) -> None:
    """Return when a read shows a value."""
    wait_until(lambda: client.get(target) == value)


def test_what_is_not_volatile_makes_no_connection(cluster: Cluster) -> None:
    with Several(cluster) as several:
        for client in several.clients():
            client.put("/a.json", 1)
    assert cluster.servers.primary.query(LISTENING) == []
    assert cluster.servers.primary.query(SENDING) == []


def test_a_write_is_seen_at_the_other_daemon(several: Several) -> None:
    first, second = several.clients()
    stream = several.streams("/boards/a/cursors.json")[1]
    first.put("/boards/a/cursors/ada.json", {"x": 1})
    assert stream.next_change().json == {"path": "/ada", "data": {"x": 1}}
    await_value(second, "/boards/a.json", {"cursors": {"ada": {"x": 1}}})
    first.put("/boards/a/cursors/ada/x.json", 2)
    assert stream.next_change().json == {"path": "/ada/x", "data": 2}
    socket = several.sockets()[0]
    socket.succeed("q", {"p": "boards/a/cursors/bob", "h": ""})
    second.put("/boards/a/cursors/bob.json", "ü")
    wait_until(lambda: first.get("/boards/a/cursors/bob.json") == "ü")
    second.request("DELETE", "/boards/a/cursors.json")
    await_value(first, "/boards/a.json", None)


def test_concurrent_writes_come_to_one_state(several: Several) -> None:
    clients = several.clients()
    for number in range(30):
        for at, client in enumerate(clients):
            client.put("/boards/a/cursors/ada.json", {"by": at, "n": number})
            client.put(f"/boards/a/typing/u{at}.json", number)
    for client in clients:
        await_value(client, "/boards/a/typing.json", {"u0": 29, "u1": 29})
    wait_until(lambda: clients[0].get("/boards/a.json") == clients[1].get("/boards/a.json"))
    assert clients[0].get("/boards/a/cursors/ada/n.json") == 29


def test_a_large_value_and_a_write_of_both_kinds(several: Several) -> None:
    first, second = several.clients()
    large = {"text": "ä€" * 4_000, "more": ["x" * 500] * 20}
    first.put("/boards/b/cursors/ada.json", large)
    await_value(second, "/boards/b/cursors/ada.json", large)
    leaf = "y" * 32_000
    second.put("/boards/b/typing.json", leaf)
    await_value(first, "/boards/b/typing.json", leaf)
    both = json.dumps({"title": "B", "cursors/bob": 1, "cursors/ada": None, "typing": None})
    response = first.request("PATCH", "/boards/b.json", both)
    assert (response.status, response.headers["X-TreeDB-Volatile"]) == (200, "part")
    await_value(second, "/boards/b.json", {"title": "B", "cursors": {"bob": 1}})


def test_rules_that_change_drop_it_everywhere(several: Several) -> None:
    clients = several.clients()
    clients[0].put("/boards/c.json", {"title": "C", "cursors": {"ada": 1}, "typing": "ada"})
    await_value(
        clients[1], "/boards/c.json", {"title": "C", "cursors": {"ada": 1}, "typing": "ada"}
    )
    put_rules(clients[1], RULES.replace(', "typing": {".volatile": {"hz": 20}}', ""))
    for client in clients:
        await_value(client, "/boards/c.json", {"title": "C", "cursors": {"ada": 1}})
    clients[0].put("/boards/c/typing.json", "bob")
    assert clients[1].get("/boards/c/typing.json") == "bob"
    clients[0].put("/boards/c/cursors/bob.json", 2)
    await_value(clients[1], "/boards/c/cursors.json", {"ada": 1, "bob": 2})


@pytest.mark.parametrize("connection", [LISTENING, SENDING], ids=["listening", "sending"])
def test_a_connection_that_ends_and_comes_back(
    cluster: Cluster, several: Several, connection: str
) -> None:
    first, second = several.clients()
    first.put("/boards/d/cursors/ada.json", 0)
    second.put("/boards/d/cursors/bob.json", 0)
    await_value(first, "/boards/d/cursors.json", {"ada": 0, "bob": 0})
    query = cluster.servers.primary.query
    ended = [query("SELECT pg_terminate_backend(%s)", each) for each in query(connection)]
    assert len(ended) == 2
    first.put("/boards/d/cursors/ada.json", 1)
    second.put("/boards/d/cursors/bob.json", None)
    second.put("/boards/d/cursors/cyd.json", 2)
    for client in (first, second):
        await_value(client, "/boards/d/cursors.json", {"ada": 1, "cyd": 2})
    first.put("/boards/d/cursors/ada.json", 3)
    await_value(second, "/boards/d/cursors/ada.json", 3)


def test_a_daemon_that_starts_receives_the_state(
    cluster: Cluster, several: Several, tmp_path: pathlib.Path
) -> None:
    first = several.clients()[0]
    cursors = {f"u{number}": {"text": "y" * 2000} for number in range(60)}
    for key, value in cursors.items():
        first.put(f"/boards/e/cursors/{key}.json", value)
    with Daemon(tmp_path, arguments=["--engine", cluster.dsn]) as daemon:
        third = Client(daemon, several.host)
        await_value(third, "/boards/e/cursors.json", cursors)
        third.put("/boards/e/cursors/u0.json", 1)
        await_value(first, "/boards/e/cursors/u0.json", 1)
        assert third.get("/boards/e/cursors.json") == cursors | {"u0": 1}


def test_another_daemon_removes_what_clients_of_a_killed_one_have_left(
    cluster: Cluster, several: Several, tmp_path: pathlib.Path
) -> None:
    first = several.clients()[0]
    first.put("/boards/f.json", {"title": "F"})
    with Daemon(tmp_path, arguments=["--engine", cluster.dsn]) as daemon:
        with RealtimeClient(Client(daemon, several.host)) as session:
            session.succeed("p", {"p": "boards/f/cursors/ada", "d": {"x": 1}})
            session.succeed("o", {"p": "boards/f/cursors/ada", "d": None})
            await_value(first, "/boards/f/cursors.json", {"ada": {"x": 1}})
            daemon.kill()
        cluster.servers.primary.query("UPDATE treedb.owners SET ends = now() WHERE NOT is_over")
        await_value(first, "/boards/f.json", {"title": "F"})
    assert first.get("/boards/f/cursors.json") is None


def test_nothing_is_in_the_tables(cluster: Cluster, several: Several) -> None:
    first, second = several.clients()
    both = {"title": "kept", "cursors": {"ada": {"text": SECRET}}, "typing": SECRET}
    first.put("/boards/g.json", both)
    await_value(second, "/boards/g.json", both)
    query = cluster.servers.primary.query
    tables = query("SELECT tablename FROM pg_tables WHERE schemaname = 'treedb'")
    assert len(tables) > 5
    found = {name: str(query(f"SELECT * FROM treedb.{name}")) for (name,) in tables}
    assert any("kept" in rows for rows in found.values())
    assert not [name for name, rows in found.items() if SECRET in rows]


def test_a_daemon_that_stops_removes_what_its_clients_have_left(
    several: Several, cluster: Cluster, tmp_path: pathlib.Path
) -> None:
    first = several.clients()[0]
    first.put("/boards/h.json", {"title": "H"})
    with Daemon(tmp_path, arguments=["--engine", cluster.dsn]) as daemon:
        with RealtimeClient(Client(daemon, several.host)) as session:
            for user in ("ada", "bob"):
                session.succeed("o", {"p": f"boards/h/cursors/{user}", "d": None})
                session.succeed("p", {"p": f"boards/h/cursors/{user}", "d": {"x": 1}})
            await_value(first, "/boards/h/cursors.json", {"ada": {"x": 1}, "bob": {"x": 1}})
        assert daemon.stop() == 0
        await_value(first, "/boards/h.json", {"title": "H"})
