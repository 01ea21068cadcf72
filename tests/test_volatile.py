"""Volatile nodes of a daemon: over its workers, over a restart, and in its files."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.command import run_command
from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.replica import Replica
from tests.rest import Client
from tests.sse import EventStream
from tests.system import wait_until
from tests.workers_of import kill, one_of_each, worker_of, worker_pids

RULES = """{"rules": {".read": true, ".write": true, "boards": {"$board": {
    "cursors": {"$user": {".volatile": true}}, "typing": {".volatile": {"hz": 20}}}}}}"""
CONFIG = """
default_project = "shop"
workers = 2
[projects.shop]
rules_file = "rules.json"
"""
SECRET = "volatile-value-7f3a"


def make_daemon(folder: pathlib.Path) -> Daemon:
    """Return a daemon of two workers."""
    (folder / "rules.json").write_text(RULES)
    return Daemon(folder, config=CONFIG)


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with make_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def clients_of(daemon: Daemon) -> list[Client]:
    """Return clients, one at each worker."""

    def make() -> Client:
        client = Client(daemon)
        client.request("GET", "/.health")
        return client

    return one_of_each(daemon, make, lambda client: client.wire.socket)


def await_value(client: Client, target: str, value: Any) -> None:
    """Return when a read shows a value."""
    wait_until(lambda: client.get(target) == value)


def holds_secret(path: pathlib.Path) -> bool:
    """Return whether a file has the secret; False if it is removed meanwhile."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        return SECRET.encode() in path.read_bytes()
    return False


def await_replica(stream: EventStream, replica: Replica, value: Any) -> None:
    """Apply what a stream sends to what it has made until now; return when that is a value."""
    while not replica.equals(value):
        change = stream.next_change()
        replica.apply(change.event, change.json["path"], change.json["data"])


def test_the_writes_of_one_client_keep_their_order_whichever_workers_take_them(
    shared_daemon: Daemon,
) -> None:
    first, second = clients_of(shared_daemon)
    url = "/boards/o/cursors/ada.json"
    for number in range(0, 120, 2):
        first.put(url, number)
        second.put(url, number + 1)
        wait_until(lambda: first.get(url) == second.get(url))
        assert first.get(url) == number + 1


def test_a_stored_leaf_takes_the_place_of_volatile_children_at_all_workers(
    shared_daemon: Daemon,
) -> None:
    first, second = clients_of(shared_daemon)
    opened = [(EventStream(each, "/boards.json"), Replica()) for each in clients_of(shared_daemon)]
    for number in range(30):
        url = f"/boards/leaf{number}"
        first.put(f"{url}.json", {"title": 1, "typing": number})
        if number % 3:
            first.put(f"{url}/cursors/ada.json", number)
        second.put(f"{url}.json", "leaf")
        assert second.get(f"{url}.json") == "leaf"
    leaves = {f"leaf{number}": "leaf" for number in range(30)}
    wait_until(lambda: first.get("/boards.json") == second.get("/boards.json"))
    wait_until(lambda: leaves.items() <= first.get("/boards.json").items())
    for stream, replica in opened:
        await_replica(stream, replica, first.get("/boards.json"))


def test_all_workers_come_to_the_same_state(shared_daemon: Daemon) -> None:
    first, second = clients_of(shared_daemon)
    for number in range(20):
        first.put("/boards/a/cursors/ada.json", {"x": number})
        second.put("/boards/a/cursors/bob.json", {"x": number})
        (first, second)[number % 2].put("/boards/a/typing/who.json", number)
    expected = {
        "cursors": {"ada": {"x": 19}, "bob": {"x": 19}},
        "typing": {"who": 19},
    }
    for client in (first, second):
        await_value(client, "/boards/a.json", expected)
    second.put("/boards/a.json", {"title": "A", "cursors": {"cyd": 1}})
    expected = {"title": "A", "cursors": {"cyd": 1}}
    for client in (first, second):
        await_value(client, "/boards/a.json", expected)
    assert first.get("/boards/a/typing.json") is None
    stream, replica = EventStream(first, "/boards/a/cursors.json"), Replica()
    second.put("/boards/a/cursors/ada.json", 5)
    await_replica(stream, replica, {"cyd": 1, "ada": 5})


def test_a_worker_that_starts_receives_the_state(shared_daemon: Daemon) -> None:
    first, second = clients_of(shared_daemon)
    first.put("/boards/k.json", {"title": "K"})
    first.put("/boards/k/cursors/ada.json", {"text": "x" * 20_000})
    for number in range(30):
        first.put(f"/boards/k/cursors/u{number}.json", {"text": "y" * 2000})
    wait_until(lambda: second.get("/boards/k.json") == first.get("/boards/k.json"))
    dead = worker_of(shared_daemon, second.wire.socket)
    kill(dead)
    wait_until(lambda: dead not in worker_pids(shared_daemon))
    wait_until(lambda: len(worker_pids(shared_daemon)) == 2)
    clients = clients_of(shared_daemon)
    expected = first.get("/boards/k.json")
    assert len(expected["cursors"]) == 31
    assert [client.get("/boards/k.json") for client in clients] == [expected, expected]


def test_the_first_write_at_a_worker_that_starts_sees_what_the_others_have(
    shared_daemon: Daemon,
) -> None:
    first, second = clients_of(shared_daemon)
    first.put("/boards/i/typing.json", 100)
    dead = worker_of(shared_daemon, second.wire.socket)
    kill(dead)
    wait_until(lambda: dead not in worker_pids(shared_daemon))
    wait_until(lambda: len(worker_pids(shared_daemon)) == 2)
    clients = clients_of(shared_daemon)
    add = json.dumps({".sv": {"increment": 1}}).encode()
    written = [
        client.request("PUT", "/boards/i/typing.json", add).json
        for _ in range(10)
        for client in clients
    ]
    assert written == list(range(101, 121))


def test_what_a_client_sets_for_its_end_is_done(shared_daemon: Daemon) -> None:
    client = Client(shared_daemon)
    with RealtimeClient(client) as session:
        session.succeed("p", {"p": "boards/e/cursors/ada", "d": {"x": 1}})
        session.succeed("o", {"p": "boards/e/cursors/ada", "d": None})
        wait_until(lambda: client.get("/boards/e.json") == {"cursors": {"ada": {"x": 1}}})
    wait_until(lambda: client.get("/boards/e.json") is None)
    assert client.get("/boards/e/cursors.json") is None


def test_of_a_killed_worker_what_its_sessions_had_is_removed_and_of_others_set(
    shared_daemon: Daemon,
) -> None:
    client = Client(shared_daemon)
    url = "boards/d/cursors"
    sessions = one_of_each(
        shared_daemon,
        lambda: RealtimeClient(client),
        lambda session: session.wire.socket,
    )
    for name, session in zip("ab", sessions, strict=True):
        session.succeed("p", {"p": f"{url}/{name}", "d": "here"})
        session.succeed("o", {"p": f"{url}/{name}", "d": {"left": SECRET}})
    await_value(client, f"/{url}.json", {"a": "here", "b": "here"})
    assert not any(map(holds_secret, shared_daemon.folder.rglob("*")))
    dead = worker_of(shared_daemon, sessions[1].wire.socket)
    kill(dead)
    wait_until(lambda: dead not in worker_pids(shared_daemon))
    with Client(shared_daemon) as other:
        await_value(other, f"/{url}.json", {"a": "here"})
        sessions[0].close()
        await_value(other, f"/{url}.json", {"a": {"left": SECRET}})


def test_nothing_is_in_any_file_nor_left_after_a_restart(tmp_path: pathlib.Path) -> None:
    with make_daemon(tmp_path) as daemon:
        with Client(daemon) as client:
            client.put("/boards/a.json", {"title": "kept", "cursors": {"ada": {"text": SECRET}}})
            client.put("/boards/a/typing.json", SECRET)
            patch = json.dumps({"title": "kept too", "cursors/bob/text": SECRET}).encode()
            response = client.request("PATCH", "/boards/a.json", patch)
            assert (response.status, response.headers["X-TreeDB-Volatile"]) == (200, "part")
            assert client.get("/boards/a/cursors/bob/text.json") == SECRET
        daemon.stop()
        found = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert any(b"kept too" in path.read_bytes() for path in found)
        assert not [path for path in found if SECRET.encode() in path.read_bytes()]
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/boards.json") == {"a": {"title": "kept too"}}


def test_of_a_large_body_above_volatile_nodes_what_is_volatile_is_left_out(
    shared_daemon: Daemon,
) -> None:
    client = Client(shared_daemon)
    client.put("/boards/l/cursors/ada.json", 1)
    large = {"title": "x" * 300_000}
    whole = json.dumps(large | {"typing": 1, "cursors": {"bob": {"x": 1}}}).encode()
    stream, replica = EventStream(Client(shared_daemon), "/boards/l.json"), Replica()
    put = client.request("PUT", "/boards/l.json", whole)
    await_replica(stream, replica, large)
    assert (put.status, put.headers["X-TreeDB-Volatile"]) == (200, "dropped")
    assert put.json == client.get("/boards/l.json") == large
    patch = json.dumps(large | {"typing": 1, "kept": 2}).encode()
    client.put("/boards/l/cursors/ada.json", 1)
    patched = client.request("PATCH", "/boards/l.json", patch)
    shown = large | {"kept": 2, "cursors": {"ada": 1}}
    await_replica(stream, replica, shown)
    assert (patched.status, patched.headers["X-TreeDB-Volatile"]) == (200, "dropped")
    assert client.get("/boards/l.json") == shown
    put = client.request("PUT", "/boards/l.json", json.dumps(large))
    assert "X-TreeDB-Volatile" not in put.headers
    dropping = json.dumps(large | {"typing": 1}).encode()
    refused = client.request("PUT", "/boards/l.json", dropping, {"If-Match": "*"})
    assert (refused.status, client.get("/boards/l.json")) == (400, large)
    refused = client.request("PUT", "/boards/l/typing.json", json.dumps(large).encode())
    assert refused.status == 413
    assert client.get("/boards/l.json") == large


def test_streams_near_volatile_nodes_have_no_identifiers(shared_daemon: Daemon) -> None:
    client = clients_of(shared_daemon)[0]
    client.put("/plain/a.json", 1)
    with EventStream(client, "/plain.json?resume=true") as stream:
        last = stream.next_change().id
        assert last
    headers = {"Last-Event-ID": last}
    with EventStream(client, "/boards/f.json?resume=true", headers) as stream:
        first = stream.next_change()
        assert (first.path, first.id) == ("/", "")
        client.put("/boards/f/title.json", "stored")
        assert stream.next_change().id == ""
        client.put("/boards/f/cursors/ada.json", {"x": 1})
        assert stream.next_change().id == ""
    with EventStream(client, "/boards/f/title.json?resume=true") as stream:
        assert stream.next_change().id


def test_commands_say_what_was_left_out_of_a_large_body(
    shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    client, file = Client(shared_daemon), tmp_path / "board.json"
    large = {"title": "x" * 300_000}
    file.write_text(json.dumps(large | {"typing": 1}))
    url = f"{shared_daemon.http}/boards"
    imported = run_command("import", "--merge", file, f"{url}/m", "--quiet")
    assert (imported.status, "was left out" in imported.errors) == (0, True)
    client.put("/plain/b.json", large | {"typing": 1})
    copied = run_command("cp", f"{shared_daemon.http}/plain/b", f"{url}/c")
    assert (copied.status, "was left out" in copied.errors) == (0, True)
    assert client.get("/boards/c.json") == client.get("/boards/m.json") == large
    moved = run_command("mv", f"{shared_daemon.http}/plain/b", f"{url}/n")
    assert (moved.status, "by itself" in moved.errors) == (1, True)
    assert client.get("/plain/b/typing.json") == 1


def test_tags_and_conditions_are_those_of_what_is_read(shared_daemon: Daemon) -> None:
    client = Client(shared_daemon)
    client.put("/boards/t/cursors/ada.json", 1)
    tag = client.request("GET", "/boards/t.json", headers={"X-Firebase-ETag": "true"}).headers
    condition = {"If-Match": tag["ETag"]}
    written = client.request("PUT", "/boards/t/cursors/ada.json", b"2", {"If-Match": '"no"'})
    assert written.status == 412
    written = client.request("PUT", "/boards/t/cursors/bob.json", b"null")
    assert written.headers["X-TreeDB-Volatile"] == "all"
    assert client.request("PUT", "/boards/t.json", b'{"title":1}', condition).status == 200
    assert client.request("PUT", "/boards/t.json", b'{"title":2}', condition).status == 412
    assert client.get("/boards/t.json") == {"title": 1}
    long = json.dumps("x" * 40_000).encode()
    assert client.request("PUT", "/boards/t/typing.json", long).status == 413
