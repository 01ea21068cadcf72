"""Several workers, one daemon: what a client or an operator sees of them from outside."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import socket
from collections.abc import Iterator

import pytest

from tests.command import run_command
from tests.daemon import Daemon, Response
from tests.realtime import RealtimeClient
from tests.rest import Client, Wire, check_error
from tests.sse import EventStream
from tests.system import find_port, wait_until
from tests.workers_of import is_running, kill, one_of_each, worker_of, worker_pids

TWO = ["--workers", "2"]
DENY = '{"rules": {".read": false, ".write": false}}'
OWNER = {"Authorization": "Bearer owner"}


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), arguments=TWO) as running:
        yield running


def clients_of(tree: Client) -> list[Client]:
    """Return clients of the same tree, one for each worker."""

    def make() -> Client:
        client = Client(tree.daemon, tree.host)
        client.request("GET", "/.health")
        return client

    return one_of_each(tree.daemon, make, lambda client: client.wire.socket)


def streams_of(tree: Client, target: str) -> list[EventStream]:
    """Return streams of the same target, one at each worker, after their first value."""

    def make() -> EventStream:
        stream = EventStream(tree, target)
        stream.next_change()
        return stream

    return one_of_each(tree.daemon, make, lambda stream: stream.wire.socket)


# Limits.


def test_connections_of_an_address_are_counted_over_all_workers(tmp_path: pathlib.Path) -> None:
    config = "[limits]\nconnections_per_address = 6\n[projects.shop]\n"
    with Daemon(tmp_path, config=config, arguments=TWO) as daemon:
        wires = one_of_each(daemon, lambda: connected(daemon), lambda wire: wire.socket)
        wires += [connected(daemon) for _ in range(4)]
        with Wire(daemon.http) as refused:
            check_error(refused.receive(), 429, "too_many_requests")
        wires.pop().close()
        wait_until(lambda: is_admitted(daemon))


def test_streams_of_an_address_are_counted_over_all_workers(tmp_path: pathlib.Path) -> None:
    config = (
        '[limits]\nstreams_per_address = 4\n[projects.shop]\nrules_file = "open.json"\n'
        'databases = ["default"]\n'
    )
    (tmp_path / "open.json").write_text('{"rules": {".read": true, ".write": true}}')
    with Daemon(tmp_path, config=config, arguments=TWO) as daemon:
        client = Client(daemon, "localhost")
        target = "/a.json?ns=shop"
        streams = [EventStream(client, target) for _ in range(4)]
        assert [stream.status for stream in streams] == [200] * 4
        assert [EventStream(client, target).status for _ in range(4)] == [429] * 4
        streams.pop().close()
        wait_until(lambda: EventStream(client, target).status == 200)


def test_the_rate_of_an_address_holds_for_all_workers_together(tmp_path: pathlib.Path) -> None:
    # One request a second and so many at once: what comes back meanwhile does not count.
    config = "[rates]\nrequests_per_address = 1\nburst_s = 3600\n[projects.shop]\n"
    with Daemon(tmp_path, config=config, arguments=TWO) as daemon:
        wires = one_of_each(daemon, lambda: connected(daemon), lambda wire: wire.socket)
        admitted = sum(ask_for_nothing(wire) != 429 for _ in range(1900) for wire in wires)
        assert 3400 <= admitted < 3800


def ask_for_nothing(wire: Wire) -> int:
    wire.send(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return wire.receive().status


def test_what_a_worker_held_is_free_when_it_has_died(tmp_path: pathlib.Path) -> None:
    config = "[limits]\nconnections_per_address = 6\n[projects.shop]\n"
    with Daemon(tmp_path, config=config, arguments=TWO) as daemon:
        wires = [connected(daemon) for _ in range(6)]
        dead = worker_of(daemon, wires[0].socket)
        kill(dead)
        wait_until(lambda: len(worker_pids(daemon)) == 2 and dead not in worker_pids(daemon))
        wait_until(lambda: is_admitted(daemon))
        assert not is_running(dead)


def connected(daemon: Daemon) -> Wire:
    """Return a connection that a worker has accepted; others may still be counted for a moment."""
    while True:
        wire = Wire(daemon.http)
        if health(wire).status == 200:
            return wire
        wire.close()


def health(wire: Wire) -> Response:
    wire.send(b"GET /.health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return wire.receive()


def is_admitted(daemon: Daemon) -> bool:
    with Wire(daemon.http) as wire, contextlib.suppress(ConnectionError):
        return health(wire).status == 200
    return False


# The processes.


def test_a_worker_that_dies_is_started_again(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        client = Client.of_new_tree(daemon)
        client.put("/a.json", 1)
        before = worker_pids(daemon)
        kill(before[0])
        daemon.await_line(r"Worker \d has ended \(.*signal 9.*\) and is started again")
        daemon.await_line(r"Worker \d serves again")
        after = worker_pids(daemon)
        assert len(after) == 2
        assert before[0] not in after
        first, second = clients_of(client)
        first.put("/a.json", 2)
        assert second.get("/a.json") == 2


def test_a_worker_that_hangs_is_killed_and_others_go_on(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        tree = Client.of_new_tree(daemon)
        tree.put("/a.json", 1)
        clients = clients_of(tree)
        still = worker_of(daemon, clients[0].wire.socket)
        kill(still, signal.SIGSTOP)
        clients[1].put("/a.json", 2)
        daemon.await_line(r"Worker \d gives no sign of life and is killed")
        daemon.await_line(r"Worker \d serves again")
        assert not is_running(still)
        assert [each.get("/a.json") for each in clients_of(tree)] == [2, 2]


def is_free(port: int) -> bool:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_workers_end_with_their_parent_and_keep_nothing(tmp_path: pathlib.Path) -> None:
    port = find_port()  # nobody else is given it in between
    endpoint = f"tcp:{port}:interface=127.0.0.1"
    with Daemon(tmp_path, listen=[endpoint], arguments=TWO) as daemon:
        client = Client.of_new_tree(daemon)
        client.put("/a.json", 1)
        pids = worker_pids(daemon)
        kill(pids[0], signal.SIGSTOP)
        daemon.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        wait_until(lambda: is_free(port))  # the last thread of a process ends after the first
        daemon.start()
        assert Client(daemon, client.host).get("/a.json") == 1


def test_the_daemon_stops_with_all_its_workers(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        tree = Client.of_new_tree(daemon)
        clients = clients_of(tree)
        for number, client in enumerate(clients):
            client.put(f"/k{number}.json", number)
        streams = streams_of(tree, "/.json")
        pids = worker_pids(daemon)
        assert daemon.stop() == 0
        assert not any(map(is_running, pids))
        for stream in streams:
            assert list(stream.frames()) == []
        assert not list(daemon.data.rglob("*-wal"))
        daemon.start()
        assert Client(daemon, tree.host).get("/.json") == {"k0": 0, "k1": 1}
        assert "is checked" not in daemon.log


def test_an_operator_who_ends_a_worker_gets_another(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        kill(worker_pids(daemon)[1], signal.SIGTERM)
        daemon.await_line(r"Worker \d has ended .* and is started again")
        daemon.await_line(r"Worker \d serves again")
        assert daemon.stop() == 0


def test_a_reload_reaches_all_workers(tmp_path: pathlib.Path) -> None:
    config = '[projects.shop]\ndatabases = ["default"]\nrules_file = "rules.json"\n'
    (tmp_path / "rules.json").write_text('{"rules": {".read": true}}')
    with Daemon(tmp_path, config=config, arguments=TWO) as daemon:
        tree = Client(daemon, "localhost")
        clients = clients_of(tree)
        assert [each.request("GET", "/a.json?ns=shop").status for each in clients] == [200, 200]
        (tmp_path / "rules.json").write_text(DENY)
        daemon.signal(signal.SIGHUP)
        daemon.await_line("The reload of certificates, secrets, providers and rules files is done")
        statuses = [each.request("GET", "/a.json?ns=shop").status for each in clients]
        assert statuses == [401, 401]
        (tmp_path / "rules.json").write_text("{")
        daemon.signal(signal.SIGHUP)
        daemon.await_line("The reload of .* failed")


def test_a_worker_that_cannot_start_ends_the_start_with_a_sentence(tmp_path: pathlib.Path) -> None:
    config = '[projects.shop]\nsecret_files = ["missing.secret"]\n'
    daemon = Daemon(tmp_path, config=config, arguments=TWO)
    done = daemon.run()
    assert done.returncode == 1
    assert "missing.secret" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_port_in_use_ends_the_start_with_a_sentence(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = Daemon(tmp_path, listen=[f"tcp:{port}:interface=127.0.0.1"], arguments=TWO)
        done = daemon.run()
    assert done.returncode == 1
    assert "stop the program that uses it, or choose another port" in done.stderr


def test_a_second_daemon_is_refused(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO):
        done = Daemon(tmp_path).run()
        assert done.returncode == 1
        assert "treedb runs already: http" in done.stderr


def test_a_second_daemon_is_refused_when_the_lock_file_was_removed(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        (daemon.data / "treedb.lock").unlink()
        second = Daemon(tmp_path)
        for _ in range(2):
            done = second.run()
            assert done.returncode == 1
            assert "is in use by another treedb, whose treedb.lock was" in done.stderr
        assert not (daemon.data / "treedb.lock").exists()


def test_the_health_is_that_of_all_workers(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        tree = Client.of_new_tree(daemon)
        tree.put("/a.json", 1)
        clients = clients_of(tree)
        assert [each.request("GET", "/.health").status for each in clients] == [200, 200]
        (shelf,) = daemon.data.rglob("*.shelf")
        shelf.rename(shelf.with_suffix(".away"))
        statuses = [each.request("GET", "/.health").status for each in clients]
        assert statuses == [503, 503]
        shelf.with_suffix(".away").rename(shelf)


def test_damage_that_one_worker_finds_keeps_all_from_reading_and_writing(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        tree = Client.of_new_tree(daemon)
        tree.put("/a.json", {f"k{number}": "x" * 3000 for number in range(200)})
        daemon.kill()
        (shelf,) = daemon.data.rglob("*.shelf")
        run_command("check", "--data", str(daemon.data))
        with shelf.open("r+b") as file:
            file.seek(40 * 4096)
            file.write(bytes(4096))
        daemon.start()
        daemon.await_line("it is neither read nor written")
        for client in clients_of(Client(daemon, tree.host)):
            wait_until(lambda client=client: client.request("GET", "/a/k0.json").status == 503)  # type: ignore[misc]
            wait_until(lambda client=client: client.request("PUT", "/b.json", "1").status == 503)  # type: ignore[misc]


def test_a_backup_is_made_and_restored_while_workers_write(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        tree = Client.of_new_tree(daemon)
        for number, client in enumerate(clients_of(tree)):
            client.put(f"/k{number}.json", number)
        target = tmp_path / "backup"
        done = run_command("backup", str(target), "--data", str(daemon.data))
        assert done.status == 0, done.errors
    restored = tmp_path / "restored" / "data"
    done = run_command("restore", str(target), "--data", str(restored))
    assert done.status == 0, done.errors
    with Daemon(tmp_path / "restored") as again:
        assert Client(again, tree.host).get("/.json") == {"k0": 0, "k1": 1}


def test_the_memory_of_a_process_cannot_be_shared(tmp_path: pathlib.Path) -> None:
    done = Daemon(tmp_path, arguments=[*TWO, "--engine", "memory"]).run()
    assert done.returncode == 1
    assert "what is in memory cannot be shared" in done.stderr


def test_the_log_names_workers_and_holds_no_token(tmp_path: pathlib.Path) -> None:
    config = '[http]\naccess_log = true\n[projects.shop]\ndatabases = ["default"]\n'
    with Daemon(tmp_path, config=config, arguments=TWO) as daemon:
        daemon.request("GET", "/a.json?ns=shop&auth=secret-token-in-query")
        daemon.await_line(r"Worker \d: GET /a.json")
        assert "secret-token-in-query" not in daemon.log
        assert json.dumps("x") not in daemon.log


def test_the_activity_of_all_workers_is_shown_by_any_of_them(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        tree = Client(daemon)
        for client in clients_of(tree):
            for _ in range(5):
                assert client.request("PUT", "/a.json?ns=demo", "1").status == 200
        with (
            contextlib.closing(EventStream(tree, "/a.json?ns=demo")) as stream,
            RealtimeClient(tree, "/.ws?v=5&ns=demo"),
            RealtimeClient(tree, "/.ws?v=5&ns=demo"),
        ):
            stream.next_change()
            shown = [
                client.request("GET", "/.inspect/activity.json?ns=demo&auth=owner").json
                for client in clients_of(tree)
            ]
    for each in shown:
        (demo,) = each["databases"]
        assert demo["requests"] >= 10
        assert (demo["streams"], demo["sockets"]) == (1, 2)
        assert demo["bytes"] > 0
        assert {slow["path"] for slow in each["slowest"]} <= {"/a", "/.inspect/activity.json"}


def test_what_an_admin_inspects_is_of_all_workers(tmp_path: pathlib.Path) -> None:
    admin, requests = "ns=demo&auth=owner", "/.inspect/requests.json"
    profile = f"/.settings/profile.json?{admin}"
    with Daemon(tmp_path, arguments=TWO) as daemon:
        tree = Client(daemon)
        first, second = clients_of(tree)
        assert first.request("GET", f"{requests}?{admin}").json == []
        with (
            contextlib.closing(EventStream(tree, f"{requests}?{admin}&path=/a")) as feed,
            contextlib.closing(EventStream(tree, profile)) as profiled,
            contextlib.closing(EventStream(tree, "/a.json?ns=demo")) as stream,
            RealtimeClient(tree, "/.ws?v=5&ns=demo") as client,
        ):
            first_frame = feed.next_frame()
            assert first_frame is not None
            assert first_frame.event == "keep-alive"
            stream.next_change()
            first.request("PUT", "/a/first.json?ns=demo", "1")
            second.request("PUT", "/a/second.json?ns=demo", "1")
            client.put("a/third", 1)
            sent: set[str] = set()
            while not sent >= {"/a/first", "/a/second", "/a/third"}:
                frame = feed.next_change()
                assert frame.event == "request"
                sent.add(frame.path)
            profiled.next_frame()
            written: set[tuple[str, ...]] = set()
            while not written >= {("a", "first"), ("a", "second"), ("a", "third")}:
                operation = profiled.next_change().json
                if operation["name"] in ("rest-write", "realtime-write"):
                    written.add(tuple(operation["path"]))
            for each in (first, second):
                shown = each.request("GET", f"{requests}?{admin}&path=/a").json
                paths = [request["path"] for request in shown if request["method"] == "PUT"]
                assert sorted(paths) == ["/a/first", "/a/second", "/a/third"]
                connections = each.request("GET", f"/.inspect/connections.json?{admin}").json
                assert connections["streams"]["count"] == 1
                assert connections["sockets"]["count"] == 1
                activity = each.request("GET", f"/.inspect/activity.json?{admin}").json
                assert len(activity["series"]["writes"]) == 120
    assert "Traceback" not in daemon.log
