"""Limits of streams: readers that do not read, keep-alives, exact bytes, concurrent writers."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.rest import Client, Wire, check_error, configured, print_request
from tests.sse import EVENTS, KEEP_ALIVE, EventStream, Frame, Listener, change, put

MIB = 1_048_576
EVENT_BYTES = 1_000_000
QUEUED_EVENTS = 200
WARM_UP_EVENTS = 60
GROWTH_BYTES = 16 * MIB
MAX_DELAY_S = 30.0
"""Far less than the daemon's patience with a client that does not read."""

WRITERS = 8
ADDITIONS = 25

KEEP_ALIVE_S = 2.0
FREQUENT = f"""
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


PATIENT = """
default_project = "shop"
[limits]
write_stalled_s = 3600
[streams]
stalled_s = 3600
[projects.shop]
rules_file = "open.json"
"""


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that does not disconnect clients that do not read."""
    with configured(tmp_path_factory.mktemp("patient"), PATIENT) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def frequent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a daemon with a short keep-alive interval."""
    with (
        configured(tmp_path_factory.mktemp("frequent"), FREQUENT) as daemon,
        Client(daemon) as client,
    ):
        yield client


# Readers that do not read.


def resident_bytes(daemon: Daemon) -> int:
    """Return the resident memory of the process."""
    status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def long_text(number: int) -> str:
    """Return a text of `EVENT_BYTES` bytes, a different one for each number."""
    return f"{number} ".ljust(EVENT_BYTES, "x")


def test_a_client_that_does_not_read_costs_little_and_then_receives_the_present_value(
    patient: Daemon,
) -> None:
    with (
        Client(patient) as tree,
        Listener(tree, "/big.json") as reader,
        Listener(tree, "/tick.json") as ticks,
    ):
        for number in range(WARM_UP_EVENTS):
            tree.put("/big/x.json", long_text(number))
        tree.put("/big.json", None)
        baseline = resident_bytes(patient)
        with EventStream(tree, "/big.json") as stalled:
            delays = []
            highest = 0
            for number in range(QUEUED_EVENTS):
                tree.put("/big/x.json", long_text(number))
                delays.append(delay_of(tree, ticks, number))
                highest = max(highest, resident_bytes(patient))
            assert highest - baseline <= GROWTH_BYTES, (highest - baseline) / MIB
            assert max(delays) < MAX_DELAY_S
            check_events_after_stall(stalled, {"x": long_text(QUEUED_EVENTS - 1)})
            tree.put("/big/y.json", 1)
            assert change(stalled.next_change()) == put("/y", 1)
        assert reader.wait_until(lambda: reader.received[-1].path == "/y")
        received = [frame.value for frame in reader.received[-1 - QUEUED_EVENTS : -1]]
        assert received == [long_text(number) for number in range(QUEUED_EVENTS)]


@pytest.mark.parametrize("secure", [False, True])
def test_a_slow_client_is_not_disconnected(tmp_path: pathlib.Path, secure: bool) -> None:
    """It reads its first value slowly, and pauses for longer than `write_stalled_s`."""
    value = {f"k{number}": "x" * MIB for number in range(8)}
    with configured(tmp_path, IMPATIENT) as daemon, Client(daemon) as client:
        for key, text in value.items():
            client.put(f"/big/{key}.json", text)
        with Wire(daemon.https if secure else daemon.http, daemon.ca) as wire:
            wire.bound_unread()
            wire.send(print_request("GET", "/big.json", headers=EVENTS))
            received = bytearray(wire.socket.recv(65_536))
            pause = threading.Event()
            pause.wait(1.5 * WRITE_STALLED_S)
            until = time.monotonic() + 1.5 * STALLED_S
            while time.monotonic() < until:
                received += wire.socket.recv(65_536)
                pause.wait(0.1)
            while not received.endswith(b"}\n\n"):
                piece = wire.socket.recv(65_536)
                assert piece
                received += piece
        assert len(received) > 8 * MIB


def delay_of(tree: Client, listener: Listener, number: int) -> float:
    """Return the seconds from a write to its event."""
    start = time.monotonic()
    tree.put("/tick.json", number)
    assert listener.wait_until(lambda: listener.received[-1].value == number)
    return time.monotonic() - start


def check_events_after_stall(stalled: EventStream, value: Any) -> None:
    """Check that events already sent are complete and in order, then one `put` of the value."""
    assert change(stalled.next_change()) == put("/", None)
    expected = 0
    while change(frame := stalled.next_change())[1] == "/x":
        assert frame.value == long_text(expected)
        expected += 1
    assert expected < QUEUED_EVENTS / 2
    assert change(frame) == put("/", value)


# Keep-alives.


def test_between_events_only_keep_alives_are_sent(frequent: Client) -> None:
    with EventStream(frequent, "/silence.json?resume=true") as stream:
        assert change(stream.next_frame()) == put("/", None)
        start = time.monotonic()
        for _ in range(2):
            assert stream.next_frame() == Frame(KEEP_ALIVE, "null", None)
        assert time.monotonic() - start >= KEEP_ALIVE_S
        frequent.put("/silence.json", 1)
        assert change(stream.next_frame()) == put("/", 1)


def test_no_keep_alive_is_sent_between_frequent_events(frequent: Client) -> None:
    with EventStream(frequent, "/busy.json") as stream:
        change(stream.next_frame())
        until = time.monotonic() + 3 * KEEP_ALIVE_S
        number = 0
        while time.monotonic() < until:
            number += 1
            frequent.put("/busy.json", number)
            assert change(stream.next_frame()) == put("/", number)


# The exact bytes.


def test_frames_have_exact_bytes_and_nothing_follows_the_last(daemon: Daemon) -> None:
    with Client.of_new_tree(daemon) as tree, tree.connect() as wire:
        wire.send(print_request("GET", "/a.json", headers=EVENTS, host=tree.host))
        with Listener(tree, "/a.json") as listener:
            tree.put("/a.json", {"z": [1, 2], "é": 'a"b\n'})
            tree.put("/a/b/c.json", 1.0)
            response = tree.request("PATCH", "/a.json", '{"z": null, "b/d": {"e": true}}')
            assert response.status == 200
            tree.put("/.json", None)
            assert listener.wait_until(lambda: len(listener.received) == 5)
        assert daemon.stop() == 0
        response = wire.receive()
        assert response.body.decode() == (
            'event: put\ndata: {"path":"/","data":null}\n\n'
            'event: put\ndata: {"path":"/","data":{"z":[1,2],"é":"a\\"b\\n"}}\n\n'
            'event: put\ndata: {"path":"/b/c","data":1}\n\n'
            'event: patch\ndata: {"path":"/","data":{"z":null,"b/d":{"e":true}}}\n\n'
            'event: put\ndata: {"path":"/","data":null}\n\n'
        )
        assert wire.is_ended()


def test_a_priority_cannot_be_watched(daemon: Daemon) -> None:
    with Client.of_new_tree(daemon) as tree:
        response = tree.request("GET", "/a/.priority.json", headers=EVENTS)
        check_error(response, 400, "invalid_path")


# Concurrent writers.


def add_by_comparing(client: Client) -> None:
    """Add one to a number by compare-and-swap, as often as it takes."""
    while True:
        read = client.request("GET", "/n/compared.json", headers={"X-TreeDB-ETag": "true"})
        condition = {"If-Match": read.headers["ETag"]}
        body = json.dumps((read.json or 0) + 1)
        response = client.request("PUT", "/n/compared.json", body, condition)
        if response.status == 200:
            return
        assert response.status == 412, response


def add_by_server_value(client: Client) -> None:
    """Add one by a server value, in a write above the watched path."""
    response = client.request("PATCH", "/.json", '{"n/added": {".sv": {"increment": 1}}}')
    assert response.status == 200, response


def add_both(client: Client) -> None:
    with client:
        for _ in range(ADDITIONS):
            add_by_comparing(client)
            add_by_server_value(client)


def test_concurrent_increments_are_received_one_by_one(daemon: Daemon) -> None:
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
        assert both.wait_until(lambda: both.replica.equals({"compared": total, "added": total}))
        for listener in (compared, added):
            assert listener.wait_until(lambda: listener.replica.equals(total))  # noqa: B023
            assert [change(frame) for frame in listener.received] == [
                put("/", number) for number in growing
            ]
        beside = [change(frame) for frame in both.received[1:]]
        assert [each for each in beside if each[0] == "put"] == [
            put("/compared", number) for number in growing[1:]
        ]
        assert [each for each in beside if each[0] == "patch"] == [
            ("patch", "/", {"added": number}) for number in growing[1:]
        ]
        assert len(both.received) == 1 + 2 * total
