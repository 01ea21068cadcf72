"""Streams at their edges: beside a reader that sleeps, amid silence, to the last byte."""

from __future__ import annotations

import json
import pathlib
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.rest import Client, Wire, check_error, configured, print_request
from tests.sse import EVENTS, KEEP_ALIVE, EventStream, Frame, Listener, put, told

MIB = 1_048_576
EVENT_BYTES = 1_000_000
EVENTS_BEHIND = 200
EVENTS_OF_WARM_UP = 60
GROWTH_BYTES = 16 * MIB
LATE_S = 2.0
USUALLY_LATE_S = 0.3

WRITERS = 8
ADDITIONS = 25

KEEP_ALIVE_S = 2.0
LIVELY = f"""
default_project = "shop"
[streams]
keep_alive_s = {KEEP_ALIVE_S}
[projects.shop]
rules_file = "open.json"
"""


WRITE_STALLED_S = 1.0
STALLED_S = 5.0
IMPATIENT = f"""
default_project = "shop"
[limits]
write_stalled_s = {WRITE_STALLED_S}
[streams]
stalled_s = {STALLED_S}
[projects.shop]
rules_file = "open.json"
"""


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a daemon whose streams soon say that they are alive."""
    with (
        configured(tmp_path_factory.mktemp("lively"), LIVELY) as daemon,
        Client(daemon) as client,
    ):
        yield client


# Readers that do not read.


def resident_bytes(daemon: Daemon) -> int:
    """Return how much memory the process has."""
    status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def long_text(number: int) -> str:
    """Return a text of the length of an event that no other number has."""
    return f"{number} ".ljust(EVENT_BYTES, "x")


def test_a_reader_that_does_not_read_costs_little_and_wakes_to_the_present_value(
    daemon: Daemon,
) -> None:
    with (
        Client.of_new_tree(daemon) as tree,
        Listener(tree, "/big.json") as reader,
        Listener(tree, "/tick.json") as punctual,
    ):
        for number in range(EVENTS_OF_WARM_UP):
            tree.put("/big/x.json", long_text(number))
        tree.put("/big.json", None)
        baseline = resident_bytes(daemon)
        with EventStream(tree, "/big.json") as sleeper:
            delays = []
            highest = 0
            for number in range(EVENTS_BEHIND):
                tree.put("/big/x.json", long_text(number))
                delays.append(delay_of(tree, punctual, number))
                highest = max(highest, resident_bytes(daemon))
            assert highest - baseline <= GROWTH_BYTES, (highest - baseline) / MIB
            assert max(delays) < LATE_S
            assert statistics.median(delays) < USUALLY_LATE_S
            wakes_to(sleeper, {"x": long_text(EVENTS_BEHIND - 1)})
            tree.put("/big/y.json", 1)
            assert told(sleeper.next_change()) == put("/y", 1)
        assert reader.await_state(lambda: reader.heard[-1].path == "/y")
        heard = [frame.value for frame in reader.heard[-1 - EVENTS_BEHIND : -1]]
        assert heard == [long_text(number) for number in range(EVENTS_BEHIND)]


@pytest.mark.parametrize("secure", [False, True])
def test_a_slow_reader_is_not_one_that_does_not_read(tmp_path: pathlib.Path, secure: bool) -> None:
    """It takes long over its first value, at times longer than a reader of no stream may."""
    value = {f"k{number}": "x" * MIB for number in range(8)}
    with configured(tmp_path, IMPATIENT) as daemon, Client(daemon) as client:
        for key, text in value.items():
            client.put(f"/big/{key}.json", text)
        with Wire(daemon.https if secure else daemon.http, daemon.ca) as wire:
            wire.send(print_request("GET", "/big.json", headers=EVENTS))
            received = bytearray(wire.socket.recv(65_536))
            pause = threading.Event()
            pause.wait(1.5 * WRITE_STALLED_S)
            until = time.monotonic() + 1.5 * STALLED_S
            while time.monotonic() < until:
                received += wire.socket.recv(65_536)
                pause.wait(0.1)
            while not received.endswith(b"}\n\n\r\n"):
                piece = wire.socket.recv(65_536)
                assert piece
                received += piece
        assert len(received) > 8 * MIB


def delay_of(tree: Client, listener: Listener, number: int) -> float:
    """Return in how many seconds a write was heard of."""
    begun = time.monotonic()
    tree.put("/tick.json", number)
    assert listener.await_state(lambda: listener.heard[-1].value == number)
    return time.monotonic() - begun


def wakes_to(sleeper: EventStream, present: Any) -> None:
    """Check that what was under way comes whole and in order, then one `put` of what is there."""
    assert told(sleeper.next_change()) == put("/", None)
    expected = 0
    while told(frame := sleeper.next_change())[1] == "/x":
        assert frame.value == long_text(expected)
        expected += 1
    assert expected < EVENTS_BEHIND / 2
    assert told(frame) == put("/", present)


# Silence.


def test_silence_is_broken_by_keep_alives_and_by_nothing_else(lively: Client) -> None:
    with EventStream(lively, "/silence.json?resume=true") as stream:
        assert told(stream.next_frame()) == put("/", None)
        begun = time.monotonic()
        for _ in range(2):
            assert stream.next_frame() == Frame(KEEP_ALIVE, "null", None)
        assert time.monotonic() - begun >= KEEP_ALIVE_S
        lively.put("/silence.json", 1)
        assert told(stream.next_frame()) == put("/", 1)


def test_no_keep_alive_is_sent_among_events(lively: Client) -> None:
    with EventStream(lively, "/busy.json") as stream:
        told(stream.next_frame())
        until = time.monotonic() + 3 * KEEP_ALIVE_S
        number = 0
        while time.monotonic() < until:
            number += 1
            lively.put("/busy.json", number)
            assert told(stream.next_frame()) == put("/", number)


# What is sent, to the byte.


def test_frames_are_these_bytes_and_end_with_the_last_chunk(daemon: Daemon) -> None:
    with Client.of_new_tree(daemon) as tree, tree.connect() as wire:
        wire.send(print_request("GET", "/a.json", headers=EVENTS, host=tree.host))
        with Listener(tree, "/a.json") as witness:
            tree.put("/a.json", {"z": [1, 2], "é": 'a"b\n'})
            tree.put("/a/b/c.json", 1.0)
            answer = tree.ask("PATCH", "/a.json", '{"z": null, "b/d": {"e": true}}')
            assert answer.status == 200
            tree.put("/.json", None)
            assert witness.await_state(lambda: len(witness.heard) == 5)
        assert daemon.stop() == 0
        answer = wire.receive()
        assert answer.body.decode() == (
            'event: put\ndata: {"path":"/","data":null}\n\n'
            'event: put\ndata: {"path":"/","data":{"z":[1,2],"é":"a\\"b\\n"}}\n\n'
            'event: put\ndata: {"path":"/b/c","data":1}\n\n'
            'event: patch\ndata: {"path":"/","data":{"z":null,"b/d":{"e":true}}}\n\n'
            'event: put\ndata: {"path":"/","data":null}\n\n'
        )
        assert wire.is_ended()


def test_a_priority_cannot_be_watched(daemon: Daemon) -> None:
    with Client.of_new_tree(daemon) as tree:
        answer = tree.ask("GET", "/a/.priority.json", headers=EVENTS)
        check_error(answer, 400, "invalid_path")


# What all write to at once.


def add_by_comparing(client: Client) -> None:
    """Add one to a number that nobody else has changed meanwhile, as often as it takes."""
    while True:
        known = client.ask("GET", "/n/compared.json", headers={"X-TreeDB-ETag": "true"})
        condition = {"If-Match": known.headers["ETag"]}
        body = json.dumps((known.json or 0) + 1)
        answer = client.ask("PUT", "/n/compared.json", body, condition)
        if answer.status == 200:
            return
        assert answer.status == 412, answer


def add_by_server_value(client: Client) -> None:
    """Let the daemon add one, above what some watch."""
    answer = client.ask("PATCH", "/.json", '{"n/added": {".sv": {"increment": 1}}}')
    assert answer.status == 200, answer


def add_both(client: Client) -> None:
    with client:
        for _ in range(ADDITIONS):
            add_by_comparing(client)
            add_by_server_value(client)


def test_what_many_add_to_is_heard_to_grow_by_one_each_time(daemon: Daemon) -> None:
    with (
        Client.of_new_tree(daemon) as tree,
        Listener(tree, "/n.json") as both,
        Listener(tree, "/n/compared.json") as compared,
        Listener(tree, "/n/added.json") as added,
    ):
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(add_both, [Client(daemon, tree.host) for _ in range(WRITERS)]))
        total = WRITERS * ADDITIONS
        growing = [None, *range(1, total + 1)]
        assert both.await_state(lambda: both.mirror.shows({"compared": total, "added": total}))
        for listener, path in ((compared, "/compared"), (added, "/added")):
            assert listener.await_state(lambda: listener.mirror.shows(total))  # noqa: B023
            assert [told(frame) for frame in listener.heard] == [
                put("/", number) for number in growing
            ]
            beside = [told(frame) for frame in both.heard if frame.path == path]
            assert beside == [put(path, number) for number in growing[1:]]
        assert len(both.heard) == 1 + 2 * total
