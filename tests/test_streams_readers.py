"""Clients that read slowly or not at all: they cost little, and no other client waits."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import re
import select
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.daemon import Daemon
from tests.rest import Client, configured
from tests.sse import EventStream, Frame, Listener, change, put

MB: Final = 1_048_576
OPEN_PROJECT: Final = """
default_project = "demo"
[projects.demo]
rules_file = "open.json"
"""
EVENT_BYTES: Final = MB // 2
EVENTS: Final = 96
"""48 MB in all."""
MAX_GROWTH_BYTES: Final = 16 * MB
MAX_DELAY_S: Final = 1.0
LARGE_MB: Final = 20
SLOW_BYTES_PER_S: Final = 2 * MB
TEN_SECONDS: Final = 10.0


class Workload:
    """A daemon, a client that writes to it, and a stream that measures delays."""

    def __init__(self, daemon: Daemon, client: Client, ticks: Listener) -> None:
        self.daemon = daemon
        self.client = client
        self.delays: list[float] = []
        self._ticks = ticks
        self._numbers = itertools.count(1)

    def write(self, key: str, number: int, size: int = EVENT_BYTES) -> None:
        """Put a value of `size` bytes, a different one for each number."""
        body = b'"%d %b"' % (number, b"x" * size)
        assert self.client.request("PUT", f"/big/{key}.json?print=silent", body).status == 204

    def tick(self) -> None:
        """Write a small value and wait for its event."""
        number = next(self._numbers)
        start = time.monotonic()
        self.client.put("/tick.json", number)
        assert self._ticks.wait_until(lambda: self._ticks.replica.tree == number)
        self.delays.append(time.monotonic() - start)

    def check_delays(self) -> None:
        """Check that the small values arrived in time."""
        assert max(self.delays) < MAX_DELAY_S
        assert statistics.median(self.delays) < MAX_DELAY_S / 10

    def fill(self) -> None:
        """Put a large value of many parts."""
        parts = {f"p{number:02}": "y" * (MB // 32) for number in range(32)}
        for number in range(LARGE_MB):
            response = self.client.request(
                "PUT", f"/big/{number:02}.json?print=silent", json.dumps(parts)
            )
            assert response.status == 204

    @property
    def peak(self) -> int:
        """The peak resident memory of the daemon, in bytes."""
        status = pathlib.Path(f"/proc/{self.daemon.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@contextlib.contextmanager
def workload(
    folder: pathlib.Path, settings: str = "", *, secure: bool = False
) -> Iterator[Workload]:
    with (
        configured(folder, OPEN_PROJECT + settings) as daemon,
        Client(daemon, secure=secure) as client,
        Listener(client, "/tick.json") as ticks,
    ):
        yield Workload(daemon, client, ticks)


def stalled_stream(client: Client) -> EventStream:
    """Open a stream of `/big` whose client can leave little to the system."""
    stream = EventStream(client, "/big.json")
    stream.wire.bound_unread()
    return stream


def number_of(value: str) -> int:
    return int(value.partition(" ")[0])


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_does_not_read_costs_little_and_then_receives_one_value(
    tmp_path: pathlib.Path, secure: bool
) -> None:
    with (
        workload(tmp_path, secure=secure) as load,
        stalled_stream(load.client) as stalled,
    ):
        assert change(stalled.next_change()) == put("/", None)
        for number in range(20):
            load.write(f"k{number % 2}", number)
            load.tick()
        before = load.peak
        for number in range(20, EVENTS):
            load.write(f"k{number % 2}", number)
            if number % 4 == 0:
                load.tick()
        assert load.peak - before < MAX_GROWTH_BYTES
        load.check_delays()
        received = [stalled.next_change()]
        while received[-1].path != "/":
            received.append(stalled.next_change())
        numbers = [number_of(frame.value) for frame in received[:-1]]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) < EVENTS / 4
        value = load.client.get("/big.json")
        assert received[-1].value == value
        assert {number_of(each) for each in value.values()} == {EVENTS - 2, EVENTS - 1}
        load.client.put("/big/k0.json", "more")
        assert change(stalled.next_change()) == put("/k0", "more")


def test_many_clients_that_do_not_read_share_their_queued_events(tmp_path: pathlib.Path) -> None:
    with workload(tmp_path) as load, contextlib.ExitStack() as stack:
        load.write("k", 0, 8 * MB)
        load.write("k", 1, 8 * MB)
        load.client.put("/big.json", None)
        stalled_streams = [stack.enter_context(stalled_stream(load.client)) for _ in range(20)]
        before = load.peak
        load.write("k", 2, 8 * MB)
        assert load.peak - before < 3 * MAX_GROWTH_BYTES
        load.write("k", 3, 8 * MB)
        assert load.peak - before < 3 * MAX_GROWTH_BYTES
        for stalled in stalled_streams[:3]:
            assert change(stalled.next_change()) == put("/", None)
            assert number_of(stalled.next_change().value) == 2
            last = stalled.next_change()
            assert last.path == "/"
            assert number_of(last.value["k"]) == 3


def test_a_client_that_reads_nothing_for_too_long_is_disconnected(tmp_path: pathlib.Path) -> None:
    with workload(tmp_path, "[streams]\nstalled_s = 1\n") as load:
        stalled = stalled_stream(load.client)
        stalled.next_change()
        load.write("k", 0, 8 * MB)
        poll = select.poll()
        poll.register(stalled.wire.socket, 0)
        start = time.monotonic()
        assert poll.poll(1000 * TEN_SECONDS)
        assert time.monotonic() - start >= 1
        with pytest.raises(OSError, match=r"cut off|reset"):
            list(stalled.frames())
        stalled.close()
        load.tick()


def test_a_client_that_reads_slowly_is_not_disconnected(tmp_path: pathlib.Path) -> None:
    with (
        workload(tmp_path, "[streams]\nstalled_s = 1\n") as load,
        EventStream(load.client, "/big.json") as slow,
    ):
        slow.next_change()
        load.write("k", 0, 5 * MB)
        received = bytearray()
        start = time.monotonic()
        while not received.endswith(b"}\n\n"):
            if len(received) < SLOW_BYTES_PER_S * (time.monotonic() - start):
                piece = slow.wire.socket.recv(65_536)
                assert piece
                received += piece
            else:
                load.tick()
        assert len(received) > 5 * MB
        assert time.monotonic() - start > 2


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_does_not_read_does_not_delay_the_end_of_the_daemon(
    tmp_path: pathlib.Path, secure: bool
) -> None:
    with workload(tmp_path, secure=secure) as load:
        load.fill()
        with (
            EventStream(load.client, "/big.json"),
            EventStream(load.client, "/big/k.json") as other,
        ):
            other.next_change()
            load.write("k", 0, 8 * MB)
            load.tick()
            start = time.monotonic()
            assert load.daemon.stop() == 0
            assert time.monotonic() - start < TEN_SECONDS
        assert "Traceback" not in load.daemon.log


def test_a_frame_being_sent_is_completed_before_the_daemon_ends(
    tmp_path: pathlib.Path,
) -> None:
    with workload(tmp_path) as load, EventStream(load.client, "/big.json") as stream:
        stream.next_change()
        load.write("k", 0, 8 * MB)
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(load.daemon.stop)
            received = list(stream.frames())
            assert stopping.result() == 0
        assert [number_of(frame.value) for frame in received] == [0]


# Large first values.


def check_counts(received: list[Frame], first: int) -> None:
    """Check that the numbers increase by one, from that of the first value on."""
    assert [change(frame) for frame in received] == [
        put("/count", number) for number in range(first + 1, first + 1 + len(received))
    ]


def test_a_large_first_value_is_a_snapshot_and_later_writes_follow(
    tmp_path: pathlib.Path,
) -> None:
    with workload(tmp_path) as load:
        load.fill()
        load.client.put("/big/count.json", 0)
        before = load.peak
        for _ in range(3):
            numbers = itertools.count(load.client.get("/big/count.json") + 1)
            with EventStream(load.client, "/big.json?resume=true") as stream:
                # All of these are written while the value is rendered or sent.
                for _ in range(50):
                    load.client.put("/big/count.json", next(numbers))
                load.tick()
                first = stream.next_change()
                value: dict[str, Any] = first.value
                last = load.client.get("/big/count.json")
                assert len(value) == LARGE_MB + 1
                assert first.id is not None
                received = [stream.next_change() for _ in range(last - value["count"])]
                check_counts(received, value["count"])
        assert load.peak - before < MAX_GROWTH_BYTES
        load.check_delays()


def test_a_client_that_stalls_within_a_large_value_receives_it_and_then_the_present_one(
    tmp_path: pathlib.Path,
) -> None:
    with workload(tmp_path) as load:
        load.fill()
        with EventStream(load.client, "/big.json") as stalled:
            before = load.peak
            for number in range(60):
                load.write("k", number)
                load.tick()
            assert load.peak - before < MAX_GROWTH_BYTES
            load.check_delays()
            first = stalled.next_change()
            assert (first.path, len(first.value) - LARGE_MB in (0, 1)) == ("/", True)
            second = stalled.next_change()
            value = second.value
            assert second.path == "/"
            assert number_of(value["k"]) == 59
            assert len(value) == LARGE_MB + 1
            load.client.put("/big/k.json", "more")
            assert change(stalled.next_change()) == put("/k", "more")


def test_a_disconnect_within_a_large_value_leaves_no_open_file(tmp_path: pathlib.Path) -> None:
    with workload(tmp_path) as load:
        load.fill()
        files = pathlib.Path(f"/proc/{load.daemon.pid}/fd")
        with EventStream(load.client, "/big.json") as stream:
            stream.next_change()
        before = len(list(files.iterdir()))
        for _ in range(10):
            EventStream(load.client, "/big.json").close()
        for _ in range(1000):
            load.tick()
            if len(list(files.iterdir())) <= before:
                break
        assert len(list(files.iterdir())) <= before
        assert "Traceback" not in load.daemon.log
