"""Hostile sockets: what breaks RFC 6455, floods, and readers that do not read.

One client that behaves is served all the while, and the log of the daemon shows no traceback.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Client, print_request
from tests.test_streams_bounds import resident_bytes
from tests.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    print_close,
    print_frame,
)

MIB = 1_048_576
GROWTH_BYTES: Final = 16 * MIB
MAX_DELAY_S: Final = 10.0
ROUND_TRIPS: Final = 10
PAUSE_S: Final = 0.01
MEDIAN_DELAY_S: Final = 0.3
TEXT_BYTES: Final = b'{"t":"d","d":{"r":1,"a":"s","b":{}}}'

VIOLATIONS: Final[dict[str, tuple[bytes, int]]] = {
    "no mask": (print_frame(TEXT, TEXT_BYTES, is_masked=False), 1002),
    "no mask of a ping": (print_frame(PING, is_masked=False), 1002),
    **{
        f"reserved bits {bits}": (print_frame(TEXT, TEXT_BYTES, reserved=bits), 1002)
        for bits in range(1, 8)
    },
    **{f"opcode {code}": (print_frame(code, b"x"), 1002) for code in (3, 4, 5, 6, 7, 11, 12, 15)},
    "a ping in fragments": (print_frame(PING, b"x", is_final=False), 1002),
    "a close in fragments": (print_frame(CLOSE, is_final=False), 1002),
    "a long ping": (print_frame(PING, bytes(126)), 1002),
    "a long close": (print_frame(CLOSE, (1000).to_bytes(2, "big") + b"x" * 124), 1002),
    "a continuation of nothing": (print_frame(CONTINUATION, b"x"), 1002),
    "a text in a text": (print_frame(TEXT, b"x", is_final=False) + print_frame(TEXT, b"y"), 1002),
    "a close of one byte": (print_frame(CLOSE, b"\x03"), 1002),
    **{
        f"the code {code}": (print_close(code), 1002)
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535)
    },
    "a reason that is not UTF-8": (print_frame(CLOSE, b"\x03\xe8\xff\xfe"), 1007),
    "text that is not UTF-8": (print_frame(TEXT, b"\xff"), 1007),
    "text cut in a character": (print_frame(TEXT, b'{"a":"\xe2\x82'), 1007),
    "surrogates in UTF-8": (print_frame(TEXT, b"\xed\xa0\x80"), 1007),
    "fragments that are not UTF-8": (
        print_frame(TEXT, b"\xe2\x82", is_final=False) + print_frame(CONTINUATION, b"\x28"),
        1007,
    ),
    "binary": (print_frame(BINARY, TEXT_BYTES), 1003),
    "binary in fragments": (
        print_frame(BINARY, b"x", is_final=False) + print_frame(CONTINUATION, b"y"),
        1003,
    ),
    "a length with its highest bit": (b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1009),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1002),
    "TLS": (bytes.fromhex("16030102000100"), 1002),
}


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("hostile")) as running:
        yield running
        assert "Traceback" not in running.log, running.log


class Neighbour:
    """A client that writes and listens while others misbehave; it measures its round trips.

    It pauses between them, as a client does that is not itself a flood.
    """

    def __init__(self, tree: Client) -> None:
        self._tree = tree
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.delays: list[float] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        assert self.error is None, self.error
        assert self.delays
        assert max(self.delays) < MAX_DELAY_S
        assert statistics.median(self.delays) < MEDIAN_DELAY_S

    def _run(self) -> None:
        try:
            with RealtimeClient(self._tree) as client:
                client.listen("neighbour")
                at = 0
                while not (self._ended.is_set() and at >= ROUND_TRIPS):
                    client.received.clear()
                    begin = time.monotonic()
                    client.put("neighbour", at)
                    self.delays.append(time.monotonic() - begin)
                    assert [push.body["d"] for push in client.pushed] == [at]
                    at += 1
                    self._ended.wait(PAUSE_S)
        except BaseException as error:
            self.error = error


@pytest.fixture
def neighbour(tree: Client) -> Iterator[Neighbour]:
    with Neighbour(tree) as running:
        yield running


@pytest.mark.parametrize("violation", VIOLATIONS)
@pytest.mark.parametrize("secure", [False, True])
def test_what_breaks_the_protocol_is_closed_with_its_code(
    tree: Client, violation: str, secure: bool
) -> None:
    data, code = VIOLATIONS[violation]
    with RealtimeClient(Client(tree.daemon, tree.host, secure=secure)) as client:
        client.send(data)
        closed = client.await_close()
        assert closed in (code, 1008, None) if violation in ("HTTP", "TLS") else closed == code
        client.await_end()


def test_random_bytes_do_no_harm(tree: Client, neighbour: Neighbour) -> None:
    assert neighbour is not None
    for _ in range(200):
        with RealtimeClient(tree) as client, contextlib.suppress(ConnectionError):
            client.send(os.urandom(200))


def test_requests_behind_a_violation_are_not_done(tree: Client) -> None:
    put = b'{"t":"d","d":{"r":2,"a":"p","b":{"p":"after","d":1}}}'
    with RealtimeClient(tree) as client:
        client.send(print_frame(TEXT, b"x") + print_frame(TEXT, put))
        assert client.await_close() == 1008
    with RealtimeClient(tree) as client:
        client.send(print_close() + print_frame(TEXT, put))
        assert client.await_close() == 1000
    with RealtimeClient(tree) as client:
        client.put("barrier", 1)
    assert tree.get("/after.json") is None


# Floods.


def test_a_flood_of_pings_is_answered_at_most_once_each(tree: Client, neighbour: Neighbour) -> None:
    assert neighbour is not None
    before = resident_bytes(tree.daemon)
    flood = print_frame(PING, bytes(125)) * 1000
    with RealtimeClient(tree) as client:
        for _ in range(100):
            client.send(flood)
            while client.has_data():
                frame = client.receive_frame()
                assert frame is not None
                assert frame.opcode == PONG
        client.put("a", 1)
    assert resident_bytes(tree.daemon) - before < GROWTH_BYTES


def test_a_flood_of_pings_whose_answers_are_not_read_costs_little(
    tree: Client, neighbour: Neighbour
) -> None:
    assert neighbour is not None
    before = resident_bytes(tree.daemon)
    with RealtimeClient(tree) as client, contextlib.suppress(OSError):
        client.wire.socket.settimeout(2)
        flood = print_frame(PING, bytes(125)) * 10_000
        for _ in range(30):
            client.send(flood)
    assert resident_bytes(tree.daemon) - before < GROWTH_BYTES


@pytest.mark.parametrize("message", [b'{"t":"c","d":{"t":"p","d":{}}}', b"0", TEXT_BYTES])
def test_a_flood_of_messages_whose_answers_are_not_read_costs_little(
    tree: Client, neighbour: Neighbour, message: bytes
) -> None:
    assert neighbour is not None
    before = resident_bytes(tree.daemon)
    with RealtimeClient(tree) as client, contextlib.suppress(OSError):
        client.wire.socket.settimeout(2)
        flood = print_frame(TEXT, message) * 10_000
        for _ in range(20):
            client.send(flood)
    assert resident_bytes(tree.daemon) - before < GROWTH_BYTES


def test_thousands_of_listens_that_come_and_go_leave_nothing(
    tree: Client, neighbour: Neighbour
) -> None:
    assert neighbour is not None
    query = {"i": ".key", "l": 1}
    with RealtimeClient(tree) as client:
        levels = []
        for _ in range(4):
            numbers = []
            for at in range(1000):
                path = f"l/{at % 500}"
                numbers.append(client.send_request("q", {"p": path, "h": ""}))
                numbers.append(client.send_request("q", {"p": path, "h": "", "q": query, "t": at}))
                numbers.append(client.send_request("n", {"p": path}))
                numbers.append(client.send_request("n", {"p": path, "q": query, "t": at}))
            assert {client.await_answer(number).status for number in numbers} == {"ok"}
            client.received.clear()
            levels.append(resident_bytes(tree.daemon))
        assert levels[-1] - levels[0] < 4 * MIB
        assert client.pushes_during(lambda: tree.put("/l/1.json", 1)) == []


def test_fragments_of_one_byte_cost_no_more_than_their_bytes(
    tree: Client, neighbour: Neighbour
) -> None:
    assert neighbour is not None
    before = resident_bytes(tree.daemon)
    fragments = print_frame(CONTINUATION, b"xy", is_final=False) * 50_000
    with RealtimeClient(tree) as client:
        client.send(print_frame(TEXT, b"x", is_final=False))
        for _ in range(10):
            client.send(fragments)
        assert resident_bytes(tree.daemon) - before < GROWTH_BYTES


def test_sockets_that_open_and_vanish_leave_nothing(tree: Client, neighbour: Neighbour) -> None:
    assert neighbour is not None
    levels = []
    for _ in range(3):
        for _ in range(150):
            client = RealtimeClient(tree)
            client.send_request("q", {"p": "a", "h": ""})
            client.send(b"\x81")
            client.reset()
        levels.append(resident_bytes(tree.daemon))
    assert levels[-1] - levels[0] < 4 * MIB


def test_handshakes_that_stop_half_way_do_not_stop_others(
    tree: Client, neighbour: Neighbour
) -> None:
    assert neighbour is not None
    head = print_request("GET", "/.ws?v=5", None, {"Upgrade": "websocket"}, tree.host)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(tree.connect()) for _ in range(100)]
        for at, wire in enumerate(wires):
            wire.send(head[: 1 + at % (len(head) - 3)])
        with RealtimeClient(tree) as client:
            client.put("a", 1)


@pytest.mark.parametrize(("secure", "most"), [(False, 16_384), (True, 61_440)])
def test_idle_sockets_cost_little_memory(tmp_path: pathlib.Path, secure: bool, most: int) -> None:
    with Daemon(tmp_path) as daemon, contextlib.ExitStack() as stack:
        tree = Client(daemon, "demo.localhost", secure=secure)

        def open_some(count: int) -> int:
            for _ in range(count):
                stack.enter_context(RealtimeClient(tree)).succeed("q", {"p": "a", "h": ""})
            return resident_bytes(daemon)

        before = open_some(50)
        assert (open_some(300) - before) / 300 < most


# Readers that do not read.


@pytest.mark.parametrize("secure", [False, True])
def test_a_reader_that_stops_costs_little_and_then_receives_the_present_value(
    tree: Client, secure: bool
) -> None:
    with (
        RealtimeClient(tree) as writer,
        RealtimeClient(Client(tree.daemon, tree.host, secure=secure)) as stalled,
    ):
        for at in range(30):
            writer.put("big/x", f"{at} ".ljust(1_000_000, "x"))
        stalled.listen("big")
        stalled.received.clear()
        baseline = resident_bytes(tree.daemon)
        highest = 0
        with Neighbour(tree):
            for at in range(50):
                writer.put("big/x", f"{at} ".ljust(1_000_000, "x"))
                highest = max(highest, resident_bytes(tree.daemon))
        assert highest - baseline <= GROWTH_BYTES, (highest - baseline) / MIB
        stalled.read_until(lambda: seen_of(stalled) == "49", 60)
        assert len(stalled.pushed) < 25
        assert stalled.pushes_during(lambda: writer.put("big/y", 1))[-1].change == (
            "d",
            "big/y",
            1,
            None,
        )


def seen_of(client: RealtimeClient) -> str:
    """Return the number in the newest value of `big/x`."""
    value = client.pushed[-1].body["d"] if client.pushed else ""
    text = value["x"] if isinstance(value, dict) else value
    return str(text).partition(" ")[0]


def test_a_reader_that_asks_for_much_and_does_not_read_costs_little(
    tree: Client, neighbour: Neighbour
) -> None:
    assert neighbour is not None
    tree.put("/huge.json", {f"k{at}": "x" * 1_000_000 for at in range(10)})
    with RealtimeClient(tree) as client:
        client.get("huge")
        before = resident_bytes(tree.daemon)
        numbers = [client.send_request("g", {"p": "huge"}) for _ in range(40)]
        highest = 0
        for _ in range(50):
            tree.get("/small.json")
            highest = max(highest, resident_bytes(tree.daemon))
        assert highest - before <= GROWTH_BYTES, (highest - before) / MIB
        for number in numbers:
            assert len(client.await_answer(number, 60).data) == 10
            client.received.clear()
