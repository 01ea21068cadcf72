"""What operators see of the real-time protocol: its metrics, and its lines in the logs."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.access import Tree, trusting
from tests.daemon import Daemon
from tests.ops import OPS_LISTEN, scrape
from tests.realtime import RealtimeClient
from tests.rest import Client
from tests.system import wait_until
from tests.websocket import Refused, WebSocket
from tests.websocket_frames import TEXT, print_frame
from tests.workers_of import one_of_each

LIMIT = 2
OF_ADDRESS = 4
CONFIG = f"""
{OPS_LISTEN}
[limits]
sockets_per_address = {OF_ADDRESS}
listens_per_connection = {LIMIT}
disconnect_writes_per_connection = {LIMIT}
message_pieces = 10
string_bytes = 50_000
write_body_bytes = 100_000
body_s = 1
body_bytes_per_s = 1_000_000
[streams]
keep_alive_s = 1
"""
RULES = {
    "open": {".read": True, ".write": True},
    "gate": {".read": True, ".write": True},
    "gated": {".write": "root.child('gate').val() === true"},
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("operators")
    with trusting(folder, CONFIG, ["shop"], "--workers", "1") as running:
        with Tree(running, "shop") as tree:
            tree.put_rules(RULES)
        yield running


@pytest.fixture
def tree(daemon: Daemon) -> Iterator[Tree]:
    with Tree(daemon, "shop") as client:
        yield client
    wait_until(lambda: scrape(daemon).get("treedb_sockets") == 0)


def open_too_many(tree: Tree) -> None:
    with ExitStack() as opened:
        for _ in range(OF_ADDRESS):
            opened.enter_context(RealtimeClient(tree))
        with pytest.raises(Refused):
            RealtimeClient(tree)


def ask_too_often(action: str) -> Callable[[Tree], None]:
    def ask(tree: Tree) -> None:
        with RealtimeClient(tree) as client:
            bodies = [{"p": f"open/{number}", "d": 1, "h": ""} for number in range(LIMIT + 1)]
            statuses = [client.request(action, body).status for body in bodies]
        assert statuses == ["ok"] * LIMIT + ["unavailable"]

    return ask


def send_a_long_message(tree: Tree) -> None:
    with RealtimeClient(tree) as client:
        client.send_request("p", {"p": "open/long", "d": "x" * 100_000})
        assert client.await_answer(1).status == "too_big"


def declare_a_long_frame(tree: Tree) -> None:
    with RealtimeClient(tree) as client:
        client.send(print_frame(TEXT, b"", declared=2**30))
        assert client.await_close() == 1009


def announce_many_pieces(tree: Tree) -> None:
    with RealtimeClient(tree) as client:
        client.send_text("11")
        assert client.await_close() == 1009


def leave_a_message_incomplete(tree: Tree) -> None:
    with RealtimeClient(tree) as client:
        client.send_text("3")
        assert client.await_close() == 1008


def be_silent(tree: Tree) -> None:
    with RealtimeClient(tree) as client:
        client.answers_pings = False
        assert client.await_close() is None


REFUSALS: list[tuple[str, Callable[[Tree], None]]] = [
    ("sockets_per_address", open_too_many),
    ("listens_per_connection", ask_too_often("q")),
    ("disconnect_writes_per_connection", ask_too_often("o")),
    ("write_body_bytes", send_a_long_message),
    ("write_body_bytes", declare_a_long_frame),
    ("message_pieces", announce_many_pieces),
    ("body_s", leave_a_message_incomplete),
    ("keep_alive_s", be_silent),
]


@pytest.mark.parametrize(("limit", "reach"), REFUSALS)
def test_each_limit_that_is_reached_is_counted_once(
    daemon: Daemon, tree: Tree, limit: str, reach: Callable[[Tree], None]
) -> None:
    name = "treedb_socket_refusals_total"
    before = scrape(daemon)
    reach(tree)
    found = scrape(daemon)
    assert found.get(name, limit=limit) == before.get(name, limit=limit) + 1
    assert sum(found.of(name).values()) == sum(before.of(name).values()) + 1


def test_sockets_and_listens_are_counted_while_they_are_there(daemon: Daemon, tree: Tree) -> None:
    def counts() -> tuple[float, float]:
        found = scrape(daemon)
        return found.get("treedb_sockets"), found.get("treedb_listens")

    with RealtimeClient(tree) as client, RealtimeClient(tree) as other:
        client.listen("open/a")
        client.listen("open/b")
        client.listen("open/b")
        other.listen("open/a")
        assert counts() == (2, 3)
        client.succeed("n", {"p": "open/a"})
        assert counts() == (2, 2)
        other.leave()
        wait_until(lambda: counts() == (1, 1))
    wait_until(lambda: counts() == (0, 0))


def test_each_message_is_counted_and_events_apart(daemon: Daemon, tree: Tree) -> None:
    def counts() -> tuple[float, ...]:
        found = scrape(daemon)
        ways = [found.get("treedb_socket_messages_total", direction=way) for way in ("in", "out")]
        events = ("treedb_listen_events_total", "treedb_listen_event_bytes_total")
        return (*ways, *map(found.get, events))

    before = counts()
    with RealtimeClient(tree) as client:
        client.listen("open/m")
        client.put("open/m", "an event")
        client.get("open/m")
        client.succeed("n", {"p": "open/m"})
    taken, sent, events, size = (now - then for now, then in zip(counts(), before, strict=True))
    assert (taken, sent, events) == (4, 5, 1)  # the hello, and the answers
    assert 40 < size < 100


def test_what_is_written_at_the_end_is_pending_then_done_or_refused(
    daemon: Daemon, tree: Tree
) -> None:
    name = "treedb_disconnect_writes_total"

    def counts() -> tuple[float, ...]:
        found = scrape(daemon)
        results = [found.get(name, result=each) for each in ("done", "refused")]
        return found.get("treedb_disconnect_sessions"), *results

    tree.seed("/gate.json", True)
    pending, done, refused = counts()
    assert pending == 0
    with RealtimeClient(tree) as client:
        client.succeed("o", {"p": "open/left", "d": 1})
        client.succeed("o", {"p": "gated/left", "d": 1})
        assert counts() == (1, done, refused)
        tree.seed("/gate.json", False)
        client.leave()
    wait_until(lambda: counts() == (0, done + 1, refused + 1))


def test_what_is_cancelled_is_not_counted(daemon: Daemon, tree: Tree) -> None:
    before = scrape(daemon).of("treedb_disconnect_writes_total")
    with RealtimeClient(tree) as client:
        client.succeed("o", {"p": "open/left", "d": 1})
        client.succeed("oc", {"p": "open"})
        client.leave()
    wait_until(lambda: scrape(daemon).get("treedb_disconnect_sessions") == 0)
    assert scrape(daemon).of("treedb_disconnect_writes_total") == before


def test_the_access_log_has_a_line_when_it_ends_and_never_calls_it_slow(
    tmp_path: pathlib.Path,
) -> None:
    config = '[http]\naccess_log = true\n[log]\nformat = "json"\nslow_request_s = 0.001'
    with trusting(tmp_path, config, ["shop"]) as daemon, Tree(daemon, "shop") as tree:
        tree.put_rules(RULES)

        def lines() -> list[dict[str, object]]:
            found = [json.loads(line) for line in daemon.log.splitlines() if line[:1] == "{"]
            return [line for line in found if line.get("path") == "/.ws"]

        with RealtimeClient(tree, "/.ws?v=5&ls=secret") as client:
            client.put("open/a", 1)
            assert lines() == []
            client.leave()
        wait_until(lambda: bool(lines()))
        (line,) = lines()
        assert (line["method"], line["status"], line["client"]) == ("GET", 101, "127.0.0.1")
        assert line["level"] == "info"
        assert "secret" not in daemon.log


def test_development_mode_logs_when_it_is_opened_and_when_it_is_closed(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path) as daemon, Client(daemon) as tree:
        with RealtimeClient(tree, "/.ws?v=5&ns=demo&ls=secret&p=1") as client:
            daemon.await_line(r"GET /\.ws WebSocket opened$")
            assert "closed after" not in daemon.log
            client.leave()
        daemon.await_line(r"GET /\.ws WebSocket closed after [0-9.]+ m?s$")
        with pytest.raises(Refused):
            WebSocket(tree, headers={"Sec-WebSocket-Version": "7"})
        daemon.await_line(r"GET /\.ws 426 ")
        assert daemon.log.count("WebSocket opened") == 1
        assert "no parameter" not in daemon.log
        assert "secret" not in daemon.log


def test_any_worker_shows_the_sockets_of_all(tmp_path: pathlib.Path) -> None:
    config = f'{OPS_LISTEN}\ndefault_project = "shop"'
    with trusting(tmp_path, config, ["shop"], "--workers", "2") as daemon:
        with Tree(daemon, "shop") as tree:
            tree.put_rules(RULES)
        clients = one_of_each(
            daemon,
            lambda: RealtimeClient(Tree(daemon, "shop")),
            lambda client: client.wire.socket,
        )
        for client in clients:
            client.listen("open")
        wait_until(lambda: scrape(daemon).get("treedb_sockets") == 2)
        wait_until(lambda: scrape(daemon).get("treedb_listens") == 2)
        for client in clients:
            client.close()
        wait_until(lambda: scrape(daemon).get("treedb_sockets") == 0)
        assert scrape(daemon).get("treedb_listens") == 0
