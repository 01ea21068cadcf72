"""Databases that admins create and delete, over each engine, seen from outside."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.access import admin, write_secret
from tests.daemon import Daemon, Response
from tests.rest import Client, check_error
from tests.served import DURABLE, ENGINES, Served
from tests.several import KINDS, Several
from tests.sse import EventStream
from tests.system import wait_until
from tests.websocket import SocketClosed
from tests.workers_of import kill, worker_of, worker_pids

STANDARD = {"X-TreeDB-Dialect": "standard"}
OWNER = {"Authorization": "Bearer owner", **STANDARD}
DATABASE = "/.settings/database.json"
PROJECTS = "/.inspect/projects.json"
GOING_AWAY = 1001
CONFIG = """
[projects.shop]
databases = "*"
databases_max = 3
secret_files = ["shop.secret"]
[projects.listed]
databases = ["eu"]
secret_files = ["listed.secret"]
[projects.foreign]
"""


@pytest.fixture(scope="module", params=ENGINES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with ENGINES[request.param](tmp_path_factory.mktemp("served")) as running:
        yield running


def has_several(served: Served) -> bool:
    """Return whether several processes serve the same databases."""
    return len(served.daemons) > 1 or "Workers: 2" in served.daemons[0].log


def label_of(client: Client) -> str:
    return client.host.partition(".")[0]


def create(client: Client) -> Response:
    return client.request("PUT", DATABASE, None, OWNER)


def delete(client: Client) -> Response:
    return client.request("DELETE", f"{DATABASE}?confirm={label_of(client)}", None, OWNER)


def delete_and_settle(pair: list[Client]) -> None:
    """Delete a database; another daemon lets go of it when it is next used, or soon after."""
    assert delete(pair[0]).json == {"name": label_of(pair[0])}
    assert pair[0].request("GET", "/.json", None, OWNER).json is None
    wait_until(lambda: pair[1].request("GET", "/.json", None, OWNER).body == b"null")


def databases_of(client: Client, project: str) -> list[Any]:
    listed = client.request("GET", PROJECTS, None, OWNER).json
    return [each["databases"] for each in listed if each["name"] == project]


@pytest.fixture
def pair(served: Served) -> Iterator[list[Client]]:
    with contextlib.ExitStack() as closing:
        if has_several(served):
            yield closing.enter_context(Several(served)).clients()
        else:
            (daemon,) = served.daemons
            first = closing.enter_context(Client.of_new_tree(daemon))
            yield [first, closing.enter_context(Client(daemon, first.host))]


def test_a_created_database_exists_and_is_empty(pair: list[Client]) -> None:
    first, second = pair
    assert create(first).json == {"name": label_of(first)}
    check_error(create(first), 409, "conflict")
    check_error(create(second), 409, "conflict")
    assert second.get("/.json") is None
    second.put("/a.json", 1)
    assert first.get("/.json") == {"a": 1}


def test_a_deleted_database_is_gone_everywhere_and_may_begin_again(pair: list[Client]) -> None:
    first, second = pair
    for number in range(3):
        second.put("/a.json", {"b": number})
        first.put("/c.json", "x" * 100_000)
        delete_and_settle(pair)
        second.put("/d.json", number)
        assert first.get("/.json") == {"d": number}
        log = first.request("GET", "/.settings/log.json", None, OWNER).json
        assert [(each["seq"], each["path"]) for each in log] == [(1, "/d")]


def test_the_rules_of_the_project_stay(pair: list[Client]) -> None:
    first, second = pair
    rules = '{"rules": {".read": true, "a": {".write": true}}}'
    first.put("/a.json", 1)
    assert first.request("PUT", "/.settings/rules.json", rules, OWNER).status == 200
    delete_and_settle(pair)
    assert second.request("PUT", "/b.json", "1").status == 403
    assert first.request("PUT", "/a.json", "2").status == 200
    assert second.request("GET", "/.settings/rules.json", None, OWNER).body == rules.encode()


def test_streams_end_with_cancel(pair: list[Client]) -> None:
    pair[0].put("/a.json", 1)
    streams = [EventStream(client, "/a.json") for client in pair]
    streams += [EventStream(client, '/.json?orderBy="$key"&limitToFirst=2') for client in pair]
    for stream in streams:
        stream.next_change()
    assert delete(pair[0]).status == 200
    for stream in streams:
        assert stream.next_change().event == "cancel"
        assert stream.next_frame() is None
    wait_until(lambda: pair[1].request("GET", "/a.json").body == b"null")
    with EventStream(pair[1], "/a.json") as again:
        assert json.loads(again.next_change().data) == {"path": "/", "data": None}
        pair[0].put("/a.json", 2)
        assert json.loads(again.next_change().data) == {"path": "/", "data": 2}


def test_what_streams_have_left_for_their_end_is_not_written(pair: list[Client]) -> None:
    writes = "onDisconnect=%7B%22PUT%22%3A%22gone%22%7D"
    pair[0].put("/a.json", 1)
    streams = [EventStream(client, f"/online.json?{writes}", OWNER) for client in pair]
    opened = [stream.status for stream in streams]
    delete_and_settle(pair)
    for stream in streams:
        stream.close()
    pair[1].put("/b.json", 1)
    assert opened == [200, 200]
    assert pair[0].get("/.json") == {"b": 1}


def test_writes_under_way_are_answered(pair: list[Client]) -> None:
    pair[0].put("/a.json", 1)
    statuses: list[int] = []

    def write() -> None:
        with Client(pair[1].daemon, pair[1].host) as client:
            while not deleted.is_set():
                statuses.append(client.request("PUT", "/a.json", "1").status)

    deleted = threading.Event()
    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    try:
        wait_until(lambda: len(statuses) > 20)
        assert delete(pair[0]).status == 200
        before = len(statuses)
        wait_until(lambda: len(statuses) > before + 20 and statuses[-1] == 200)
    finally:
        deleted.set()
        for writer in writers:
            writer.join()
    assert set(statuses) <= {200, 503}


def test_a_deletion_names_the_database_a_second_time(pair: list[Client]) -> None:
    client = pair[0]
    client.put("/a.json", 1)
    for query in ("", "?confirm=", "?confirm=other", "?confirm=true"):
        check_error(
            client.request("DELETE", f"{DATABASE}{query}", None, OWNER), 400, "invalid_query"
        )
    assert client.get("/a.json") == 1


def test_projects_are_listed_with_their_databases(pair: list[Client]) -> None:
    project = label_of(pair[0])
    pair[0].put("/a.json", 1)
    others = [Client(client.daemon, f"other--{client.host}") for client in pair]
    assert create(others[1]).json == {"name": f"other--{project}"}
    for client in pair:
        (databases,) = databases_of(client, project)
        names = [(each["name"], each["database"]) for each in databases]
        assert names == [(project, "default"), (f"other--{project}", "other")]
    assert delete(others[0]).status == 200
    check_error(delete(others[1]), 404, "not_found")
    for client in pair:
        (databases,) = databases_of(client, project)
        assert [each["name"] for each in databases] == [project]


@pytest.mark.parametrize("engine", DURABLE)
def test_a_deletion_outlasts_a_kill(engine: str, tmp_path: pathlib.Path) -> None:
    with ENGINES[engine](tmp_path) as service:
        daemon = service.daemons[0]
        with Client.of_new_tree(daemon) as client:
            client.put("/a.json", 1)
            assert delete(client).status == 200
            host = client.host
        service.kill(0)
        service.restart(0)
        with Client(daemon, host) as client:
            assert client.get("/.json") is None
            client.put("/b.json", 1)
            assert client.get("/.json") == {"b": 1}


def test_no_file_of_a_deleted_database_is_left(tmp_path: pathlib.Path) -> None:
    with (
        Daemon(tmp_path, arguments=["--workers", "2"]) as daemon,
        Client(daemon, "demo.localhost") as client,
    ):
        client.put("/a.json", 1)
        assert {file.name for file in (daemon.data / "demo").iterdir()} > {"default.shelf"}
        assert delete(client).status == 200
        assert list((daemon.data / "demo").iterdir()) == []


def test_a_worker_that_does_not_answer_is_waited_for_until_it_ends(tmp_path: pathlib.Path) -> None:
    with (
        Daemon(tmp_path, arguments=["--workers", "2"]) as daemon,
        Client(daemon, "demo.localhost") as client,
    ):
        client.put("/a.json", 1)
        own = worker_of(daemon, client.wire.socket)
        (other,) = set(worker_pids(daemon)) - {own}
        kill(other, signal.SIGSTOP)
        late = client.request("DELETE", f"{DATABASE}?confirm=demo&timeout=200ms", None, OWNER)
        check_error(late, 504, "timeout")
        check_error(client.request("GET", "/a.json", None, STANDARD), 503, "unavailable")
        kill(other)
        wait_until(lambda: client.request("GET", "/a.json").body == b"null")
        assert list((daemon.data / "demo").iterdir()) == []


def test_a_daemon_with_workers_that_is_killed_meanwhile_finishes_it_at_the_next_start(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path, arguments=["--workers", "2"]) as daemon:
        with Client(daemon, "demo.localhost") as client:
            client.put("/a.json", 1)
            own = worker_of(daemon, client.wire.socket)
            (other,) = set(worker_pids(daemon)) - {own}
            kill(other, signal.SIGSTOP)  # so it does not let go of the database
            client.request("DELETE", f"{DATABASE}?confirm=demo&timeout=200ms", None, OWNER)
        assert (daemon.data / "demo" / "default.shelf-removed").exists()
        daemon.kill()
        kill(other)
        daemon.start()
        assert list((daemon.data / "demo").iterdir()) == []
        with Client(daemon, "demo.localhost") as client:
            assert client.get("/.json") is None


# Sockets.


@pytest.mark.parametrize("served", KINDS, indirect=True)
def test_sockets_are_closed(served: Served) -> None:
    with Several(served) as several:
        client = several.clients()[0]
        client.put("/a.json", 1)
        sockets = several.sockets()
        for socket in sockets:
            assert socket.listen("/a") == 1
        assert delete(client).status == 200
        for socket in sockets:
            with pytest.raises(SocketClosed) as closed:
                socket.listen("/b")
            assert closed.value.code == GOING_AWAY


# Projects that are configured.


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("configured")
    write_secret(folder, "shop")
    write_secret(folder, "listed")
    with Daemon(folder, config=CONFIG) as daemon:
        yield daemon


def of_admin(
    daemon: Daemon, method: str, target: str, project: str = "shop", **more: str
) -> Response:
    headers = {"Authorization": f"Bearer {admin(project)}", **STANDARD} | more
    with Client(daemon, "localhost") as client:
        return client.request(method, target, None, headers)


def test_only_admins_create_delete_and_list(configured: Daemon) -> None:
    with Client(configured, "localhost") as client:
        for method, target in (
            ("PUT", f"{DATABASE}?ns=a--shop"),
            ("DELETE", f"{DATABASE}?ns=a--shop&confirm=a--shop"),
            ("GET", f"{PROJECTS}?ns=shop"),
        ):
            assert client.request(method, target).status == 401


def test_an_admin_sees_the_own_projects_only(configured: Daemon) -> None:
    (listed,) = of_admin(configured, "GET", f"{PROJECTS}?ns=eu--listed", "listed").json
    assert listed["name"] == "listed"
    assert [(each["name"], each["database"]) for each in listed["databases"]] == [
        ("eu--listed", "eu")
    ]
    assert listed["can_create"] is False
    (shop,) = of_admin(configured, "GET", f"{PROJECTS}?ns=shop").json
    assert (shop["name"], shop["can_create"]) == ("shop", True)


def test_a_project_that_lists_its_databases_has_no_others(configured: Daemon) -> None:
    check_error(of_admin(configured, "PUT", f"{DATABASE}?ns=eu--listed", "listed"), 409, "conflict")
    for method in ("PUT", "DELETE"):
        target = f"{DATABASE}?ns=us--listed&confirm=us--listed"
        check_error(of_admin(configured, method, target, "listed"), 404, "not_found")


def test_a_listed_database_is_empty_afterwards(configured: Daemon) -> None:
    with Client(configured, "localhost") as client:
        headers = {"Authorization": f"Bearer {admin('listed')}"}
        client.request("PUT", "/a.json?ns=eu--listed", "1", headers)
        target = f"{DATABASE}?ns=eu--listed&confirm=eu--listed"
        assert of_admin(configured, "DELETE", target, "listed").status == 200
        assert client.request("GET", "/.json?ns=eu--listed", None, headers).json is None
        assert of_admin(configured, "DELETE", target, "listed").status == 200


def test_a_project_has_no_more_databases_than_it_may(configured: Daemon) -> None:
    for name in "abc":
        assert of_admin(configured, "PUT", f"{DATABASE}?ns={name}--shop").status == 200
    refused = of_admin(configured, "PUT", f"{DATABASE}?ns=d--shop")
    assert "has 3 databases" in check_error(refused, 503, "unavailable")
    assert of_admin(configured, "GET", f"{PROJECTS}?ns=shop").json[0]["can_create"] is False
    assert of_admin(configured, "DELETE", f"{DATABASE}?ns=a--shop&confirm=a--shop").status == 200
    assert of_admin(configured, "PUT", f"{DATABASE}?ns=d--shop").status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("DELETE", "/.settings/database.json"), ("PUT", "/.settings/database.json")),
        *(("POST", "/.settings/backup.json"), ("POST", "/.settings/tokens.json")),
        *(("DELETE", "/.settings/cursors.json"), ("POST", "/.settings/functionTriggers.json")),
    ],
)
def test_a_condition_that_is_not_honoured_is_refused(
    configured: Daemon, method: str, path: str
) -> None:
    with Client(configured, "localhost") as client:
        auth = {"Authorization": f"Bearer {admin('shop')}", "X-TreeDB-Dialect": "standard"}
        target = f"{path}?ns=shop&confirm=shop&cursor=none"
        body = '{"uid":"ada"}'
        for condition in ('"x"', "*", "null_etag", ""):
            response = client.request(method, target, body, {**auth, "If-Match": condition})
            message = check_error(response, 400, "invalid_query")
            assert message == "If-Match is not possible here."
        message = check_error(
            client.request(method, f"{target}&dryRun=true", body, auth), 400, "invalid_query"
        )
        assert message == "dryRun is not possible here."
        response = client.request(method, f"{target}&dryRun=false", body, auth)
        assert response.status in {200, 404, 409, 503}


def test_no_rule_decides_it(configured: Daemon) -> None:
    headers = {"X-TreeDB-Explain": "true"}
    target = f"{DATABASE}?ns=c--shop&confirm=c--shop"
    assert of_admin(configured, "DELETE", target, **headers).json["allowed"] is True
    names = of_admin(configured, "GET", "/.inspect/databases.json?ns=shop").json
    assert {"name": "c--shop"} in names
