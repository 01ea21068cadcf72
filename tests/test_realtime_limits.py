"""Limits of the real-time protocol, each with its answer."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Client, configured
from tests.system import wait_until
from tests.websocket import Refused, WebSocket
from tests.websocket_frames import CONTINUATION, TEXT, print_frame

TARGET = "/.ws?v=5"
LISTENS = 5
WRITES = 4
BODY_BYTES = 100_000
SOCKETS = 6
OF_ADDRESS = 4
CONFIG = f"""
default_project = "shop"
[limits]
listens_per_connection = {LISTENS}
disconnect_writes_per_connection = {WRITES}
write_body_bytes = {BODY_BYTES}
string_bytes = 50_000
message_pieces = 10
body_s = 2
body_bytes_per_s = 1_000_000
handshake_s = 1
head_s = 1
idle_s = 2
[streams]
keep_alive_s = 20
[projects.shop]
rules_file = "open.json"
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with configured(tmp_path_factory.mktemp("limited"), CONFIG) as daemon, Client(daemon) as client:
        yield client


# Sockets.


@pytest.mark.parametrize(
    ("setting", "most"), [("sockets", SOCKETS), ("sockets_per_address", OF_ADDRESS)]
)
def test_one_socket_too_many_is_refused_at_the_handshake(
    tmp_path: pathlib.Path, setting: str, most: int
) -> None:
    config = (
        f'default_project = "shop"\n[limits]\n{setting} = {most}\n'
        '[projects.shop]\nrules_file = "open.json"\n'
    )
    with (
        configured(tmp_path, config) as daemon,
        Client(daemon) as tree,
        contextlib.ExitStack() as stack,
    ):
        open_clients = [stack.enter_context(RealtimeClient(tree)) for _ in range(most)]
        with pytest.raises(Refused) as refused:
            WebSocket(tree)
        assert refused.value.status == 503
        assert json.loads(refused.value.body)["error"]
        assert refused.value.headers["Retry-After"]
        for at, client in enumerate(open_clients):
            client.put(f"a/{at}", 1)
        assert len(tree.get("/a.json")) == most
        open_clients[0].leave()

        def is_admitted() -> bool:
            try:
                stack.enter_context(RealtimeClient(tree))
            except Refused:
                return False
            return True

        wait_until(is_admitted)


def test_sockets_that_come_and_go_do_not_use_up_the_limit(tmp_path: pathlib.Path) -> None:
    config = (
        'default_project = "shop"\n[limits]\nsockets = 3\nsockets_per_address = 3\n'
        '[projects.shop]\nrules_file = "open.json"\n'
    )
    with configured(tmp_path, config) as daemon, Client(daemon) as tree:
        for at in range(20):
            with RealtimeClient(tree) as client:
                client.put("a", at)
                client.leave()
            with contextlib.suppress(Refused):
                WebSocket(tree, headers={"Sec-WebSocket-Version": "7"})
        assert tree.get("/a.json") == 19


# Listens and disconnect writes.


def test_one_listen_too_many_is_unavailable_and_the_others_go_on(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        for at in range(LISTENS):
            client.listen(f"l/{at}")
        answer = client.request("q", {"p": "l/more", "h": ""})
        assert answer.status == "unavailable"
        assert isinstance(answer.data, str)
        query = {"i": ".key", "l": 1}
        assert client.request("q", {"p": "l", "h": "", "q": query, "t": 1}).status == "unavailable"
        client.listen("l/0")  # again, in the place of the former
        assert len(client.pushes_during(lambda: limited.put("/l/1.json", 1))) == 1
        client.succeed("n", {"p": "l/0"})
        client.listen("l/more")
        with RealtimeClient(limited) as other:
            other.listen("l/more")


def test_a_denied_listen_does_not_use_up_the_limit(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        for _ in range(3 * LISTENS):
            assert client.request("q", {"p": "a.b", "h": ""}).status == "failure"
            assert (
                client.request("q", {"p": "a", "h": "", "q": {"l": 0}, "t": 1}).status == "failure"
            )
        for at in range(LISTENS):
            client.listen(f"l/{at}")


def test_one_disconnect_write_too_many_is_unavailable_and_the_others_run(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        for at in range(WRITES):
            client.succeed("o", {"p": f"d/{at}", "d": at})
        answer = client.request("o", {"p": "d/more", "d": 1})
        assert answer.status == "unavailable"
        client.succeed("o", {"p": "d/0", "d": "again"})
        client.leave()
    wait_until(lambda: limited.get("/d.json") == ["again", 1, 2, 3])


# Messages.


def put_text(number: int, size: int) -> str:
    body = {"p": "big", "d": "x" * size}
    envelope = {"t": "d", "d": {"r": number, "a": "p", "b": body}}
    return json.dumps(envelope, separators=(",", ":"))


def test_a_message_that_is_too_long_is_answered_and_the_connection_goes_on(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        client.send_long(put_text(1, BODY_BYTES + 1))
        assert client.await_answer(1).status == "too_big"
        client.send_text(put_text(2, BODY_BYTES + 1))
        assert client.await_answer(2).status == "too_big"
        client.put("b", 1)


@pytest.mark.parametrize("number", [0, 2**53])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_number_of_a_message_that_is_too_long_is_one_up_to_2_53(
    limited: Client, number: int, is_first: bool
) -> None:
    def text_of(number: int) -> str:
        request = {"r": number, "a": "p", "b": {"p": "big", "d": "x" * (BODY_BYTES + 1)}}
        if not is_first:
            request = dict(reversed(request.items()))
        return json.dumps({"t": "d", "d": request}, separators=(",", ":"))

    with RealtimeClient(limited) as client:
        client.send_long(text_of(number))
        assert client.await_answer(number).status == "too_big"
    for beyond in (2**53 + 1, 10**17, 10**300):
        with RealtimeClient(limited) as client:
            client.send_long(text_of(beyond))
            assert client.await_close() == 1008


def test_a_frame_that_is_far_too_long_closes_the_connection(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        with contextlib.suppress(ConnectionError):
            client.send_text(put_text(1, 10 * BODY_BYTES))
        assert client.await_close() in (1009, None)
    assert limited.get("/big.json") is None


def test_a_string_that_is_too_long_is_refused(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        assert client.request("p", {"p": "s", "d": "x" * 50_001}).status in ("failure", "too_big")
        client.put("s", "x" * 50_000)


def test_more_pieces_than_allowed_close_the_connection(limited: Client) -> None:
    for count in ("11", "999999"):
        with RealtimeClient(limited) as client:
            client.send_text(count)
            assert client.await_close() == 1009
    with RealtimeClient(limited) as client:
        client.send_text("10")
        for piece in put_text(1, 10)[:9]:
            client.send_text(piece)
        client.send_text(put_text(1, 10)[9:])
        assert client.await_answer(1).status == "ok"


@pytest.mark.parametrize("declared", [2**20, 2**30, 2**40, 2**62])
def test_a_frame_that_declares_too_much_closes_the_connection_at_once(
    limited: Client, declared: int
) -> None:
    with RealtimeClient(limited) as client:
        client.send(print_frame(TEXT, b"", declared=declared))
        assert client.await_close() == 1009


def test_fragments_without_end_close_the_connection(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        client.send(print_frame(TEXT, b"x" * 10_000, is_final=False))
        fragment = print_frame(CONTINUATION, b"x" * 10_000, is_final=False)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                client.send(fragment)
                if client.has_data():
                    break
        assert client.await_close() in (1009, None)


def test_empty_fragments_without_end_close_the_connection(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        client.send(print_frame(TEXT, b"", is_final=False))
        fragments = print_frame(CONTINUATION, b"", is_final=False) * 10_000
        with contextlib.suppress(ConnectionError):
            for _ in range(300):
                client.send(fragments)
                if client.has_data():
                    break
        assert client.await_close(20) in (1008, 1009, None)


def test_a_message_that_does_not_come_to_an_end_is_given_up(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        client.send_text("3")
        client.send_text("{")
        assert client.await_close(15) == 1008
    with RealtimeClient(limited) as client:
        client.send(b"\x81\xfe\x10")
        assert client.await_close(15) == 1008


def test_an_idle_socket_outlives_the_deadlines_of_requests(limited: Client) -> None:
    with RealtimeClient(limited) as client:
        assert not client.has_data(3.5)
        client.put("idle", 1)


def test_a_handshake_that_comes_slowly_is_given_up(limited: Client) -> None:
    with limited.connect() as wire:
        wire.send(b"GET /.ws?v=5 HTTP/1.1\r\nHost: localhost\r\nUpgrade: webs")
        assert wire.receive().status == 408
        assert wire.is_ended()


# The quota and the daemon.


def test_a_write_beyond_the_quota_is_unavailable(tmp_path: pathlib.Path) -> None:
    config = (
        'default_project = "shop"\n[projects.shop]\nrules_file = "open.json"\n'
        "database_bytes = 100_000\n"
    )
    text = "x" * 200_000
    with (
        configured(tmp_path, config) as daemon,
        Client(daemon) as tree,
        RealtimeClient(tree) as client,
    ):
        assert tree.request("PUT", "/a.json", json.dumps(text)).status == 507
        assert client.request("p", {"p": "a", "d": text}).status == "unavailable"
        client.put("a", "short")


def test_a_daemon_that_stops_closes_sockets_so_that_clients_come_back(daemon: Daemon) -> None:
    with Client(daemon, "demo.localhost") as tree, RealtimeClient(tree) as client:
        client.put("a", 1)
        assert daemon.stop() == 0
        assert client.await_close() in (1001, 1012)
        controls = [each for each in client.received if not hasattr(each, "action")]
        assert len(controls) == 1  # the answer to the put alone: `s` would keep it away for ever
