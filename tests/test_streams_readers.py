"""Readers that are slow, or do not read at all: they cost little, and nobody waits for them."""

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
from tests.sse import EventStream, Frame, Listener, put, told

MB: Final = 1_048_576
OPEN_PROJECT: Final = """
default_project = "demo"
[projects.demo]
rules_file = "open.json"
"""
EVENT_BYTES: Final = MB // 2
EVENTS: Final = 400
"""Of so many bytes each: 200 MB in all."""
MOST_GROWTH_BYTES: Final = 16 * MB
ON_TIME_S: Final = 1.0
LARGE_MB: Final = 30
SLOWLY_PER_S: Final = 2 * MB
TEN_SECONDS: Final = 10.0


class House:
    """A daemon, somebody who writes to it, and somebody who listens to a little clock in it."""

    def __init__(self, daemon: Daemon, client: Client, ticks: Listener) -> None:
        self.daemon = daemon
        self.client = client
        self.delays: list[float] = []
        self._ticks = ticks
        self._numbers = itertools.count(1)

    def write(self, key: str, number: int, size: int = EVENT_BYTES) -> None:
        """Put a value of so many bytes that is another one for each number."""
        body = b'"%d %b"' % (number, b"x" * size)
        assert self.client.ask("PUT", f"/big/{key}.json?print=silent", body).status == 204

    def tick(self) -> None:
        """Write something small and wait until it has been heard."""
        number = next(self._numbers)
        began = time.monotonic()
        self.client.put("/tick.json", number)
        assert self._ticks.await_state(lambda: self._ticks.mirror.tree == number)
        self.delays.append(time.monotonic() - began)

    def check_delays(self) -> None:
        """Check that everybody else was served in time."""
        assert max(self.delays) < ON_TIME_S
        assert statistics.median(self.delays) < ON_TIME_S / 10

    def fill(self) -> None:
        """Put a large value, of many parts."""
        parts = {f"p{number:02}": "y" * (MB // 32) for number in range(32)}
        for number in range(LARGE_MB):
            answer = self.client.ask(
                "PUT", f"/big/{number:02}.json?print=silent", json.dumps(parts)
            )
            assert answer.status == 204

    @property
    def peak(self) -> int:
        """The most memory that the daemon had at a time since the last `forget_peak`, in bytes."""
        status = pathlib.Path(f"/proc/{self.daemon.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def forget_peak(self) -> None:
        """Let the peak be what there is now (proc(5), clear_refs)."""
        pathlib.Path(f"/proc/{self.daemon.pid}/clear_refs").write_text("5")


@contextlib.contextmanager
def house(folder: pathlib.Path, settings: str = "", *, secure: bool = False) -> Iterator[House]:
    with (
        configured(folder, OPEN_PROJECT + settings) as daemon,
        Client(daemon, secure=secure) as client,
        Listener(client, "/tick.json") as ticks,
    ):
        yield House(daemon, client, ticks)


def number_of(value: str) -> int:
    return int(value.partition(" ")[0])


@pytest.mark.parametrize("secure", [False, True])
def test_who_does_not_read_costs_little_and_gets_one_value_when_it_wakes(
    tmp_path: pathlib.Path, secure: bool
) -> None:
    with house(tmp_path, secure=secure) as there, EventStream(there.client, "/big.json") as sleeper:
        assert told(sleeper.next_change()) == put("/", None)
        for number in range(20):
            there.write(f"k{number % 2}", number)
            there.tick()
        before = there.peak
        for number in range(20, EVENTS):
            there.write(f"k{number % 2}", number)
            if number % 4 == 0:
                there.tick()
        assert there.peak - before < MOST_GROWTH_BYTES
        there.check_delays()
        heard = [sleeper.next_change()]
        while heard[-1].path != "/":
            heard.append(sleeper.next_change())
        numbers = [number_of(frame.value) for frame in heard[:-1]]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) < EVENTS / 4
        value = there.client.get("/big.json")
        assert heard[-1].value == value
        assert {number_of(each) for each in value.values()} == {EVENTS - 2, EVENTS - 1}
        there.client.put("/big/k0.json", "more")
        assert told(sleeper.next_change()) == put("/k0", "more")


def test_many_who_do_not_read_share_what_waits_for_them(tmp_path: pathlib.Path) -> None:
    with house(tmp_path) as there, contextlib.ExitStack() as stack:
        there.write("k", 0, 8 * MB)
        there.write("k", 1, 8 * MB)
        there.client.put("/big.json", None)
        sleepers = [stack.enter_context(EventStream(there.client, "/big.json")) for _ in range(20)]
        before = there.peak
        there.write("k", 2, 8 * MB)
        assert there.peak - before < 3 * MOST_GROWTH_BYTES
        there.write("k", 3, 8 * MB)
        assert there.peak - before < 3 * MOST_GROWTH_BYTES
        for sleeper in sleepers[:3]:
            assert told(sleeper.next_change()) == put("/", None)
            assert number_of(sleeper.next_change().value) == 2
            last = sleeper.next_change()
            assert last.path == "/"
            assert number_of(last.value["k"]) == 3


def test_who_reads_nothing_for_too_long_is_closed(tmp_path: pathlib.Path) -> None:
    with house(tmp_path, "[streams]\nstalled_s = 1\n") as there:
        sleeper = EventStream(there.client, "/big.json")
        sleeper.next_change()
        there.write("k", 0, 8 * MB)
        poll = select.poll()
        poll.register(sleeper.wire.socket, 0)
        asked = time.monotonic()
        assert poll.poll(1000 * TEN_SECONDS)
        assert time.monotonic() - asked >= 1
        with pytest.raises(OSError, match=r"cut off|reset"):
            list(sleeper.frames())
        sleeper.close()
        there.tick()


def test_who_reads_slowly_is_not_closed(tmp_path: pathlib.Path) -> None:
    with (
        house(tmp_path, "[streams]\nstalled_s = 1\n") as there,
        EventStream(there.client, "/big.json") as slow,
    ):
        slow.next_change()
        there.write("k", 0, 9 * MB)
        received = bytearray()
        began = time.monotonic()
        while not received.endswith(b"}\n\n\r\n"):
            if len(received) < SLOWLY_PER_S * (time.monotonic() - began):
                piece = slow.wire.socket.recv(65_536)
                assert piece
                received += piece
            else:
                there.tick()
        assert len(received) > 9 * MB
        assert time.monotonic() - began > 3


@pytest.mark.parametrize("secure", [False, True])
def test_a_reader_that_does_not_read_does_not_keep_the_daemon_from_ending(
    tmp_path: pathlib.Path, secure: bool
) -> None:
    with house(tmp_path, secure=secure) as there:
        there.fill()
        with (
            EventStream(there.client, "/big.json"),
            EventStream(there.client, "/big/k.json") as other,
        ):
            other.next_change()
            there.write("k", 0, 8 * MB)
            there.tick()
            asked = time.monotonic()
            assert there.daemon.stop() == 0
            assert time.monotonic() - asked < TEN_SECONDS
        assert "Traceback" not in there.daemon.log


def test_a_frame_that_is_on_its_way_is_whole_before_the_daemon_ends(
    tmp_path: pathlib.Path,
) -> None:
    with house(tmp_path) as there, EventStream(there.client, "/big.json") as stream:
        stream.next_change()
        there.write("k", 0, 8 * MB)
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(there.daemon.stop)
            heard = list(stream.frames())
            assert ending.result() == 0
        assert [number_of(frame.value) for frame in heard] == [0]


# Long first values.


def check_growth(heard: list[Frame], began: int) -> None:
    """Check that numbers go up one by one from where the first value had them."""
    assert [told(frame) for frame in heard] == [
        put("/count", number) for number in range(began + 1, began + 1 + len(heard))
    ]


def test_a_long_value_is_of_one_moment_and_what_is_written_meanwhile_follows(
    tmp_path: pathlib.Path,
) -> None:
    with house(tmp_path) as there:
        there.fill()
        there.client.put("/big/count.json", 0)
        before = there.peak
        for _ in range(3):
            numbers = itertools.count(there.client.get("/big/count.json") + 1)
            with EventStream(there.client, "/big.json?resume=true") as stream:
                # All of these are written while the value is drawn or sent.
                for _ in range(50):
                    there.client.put("/big/count.json", next(numbers))
                there.tick()
                first = stream.next_change()
                value: dict[str, Any] = first.value
                last = there.client.get("/big/count.json")
                assert len(value) == LARGE_MB + 1
                assert first.id is not None
                heard = [stream.next_change() for _ in range(last - value["count"])]
                check_growth(heard, value["count"])
        assert there.peak - before < MOST_GROWTH_BYTES
        there.check_delays()


def test_who_falls_asleep_within_a_long_value_gets_all_of_it_and_then_the_present_one(
    tmp_path: pathlib.Path,
) -> None:
    with house(tmp_path) as there:
        there.fill()
        with EventStream(there.client, "/big.json") as sleeper:
            before = there.peak
            for number in range(60):
                there.write("k", number)
                there.tick()
            assert there.peak - before < MOST_GROWTH_BYTES
            there.check_delays()
            first = sleeper.next_change()
            assert (first.path, len(first.value) - LARGE_MB in (0, 1)) == ("/", True)
            second = sleeper.next_change()
            value = second.value
            assert second.path == "/"
            assert number_of(value["k"]) == 59
            assert len(value) == LARGE_MB + 1
            there.client.put("/big/k.json", "more")
            assert told(sleeper.next_change()) == put("/k", "more")


def test_who_leaves_within_a_long_value_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    with house(tmp_path) as there:
        there.fill()
        files = pathlib.Path(f"/proc/{there.daemon.pid}/fd")
        with EventStream(there.client, "/big.json") as stream:
            stream.next_change()
        before = len(list(files.iterdir()))
        for _ in range(10):
            EventStream(there.client, "/big.json").close()
        for _ in range(1000):
            there.tick()
            if len(list(files.iterdir())) <= before:
                break
        assert len(list(files.iterdir())) <= before
        assert "Traceback" not in there.daemon.log
