"""Streams in memory: what is written to a connection, when, and in how many writes."""

from __future__ import annotations

import errno
import io
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock

from tests.web.channel.peer import Peer, Scripted, Server
from treedbd.database.catalog import Catalog, DatabaseName
from treedbd.database.platform import Platform
from treedbd.rules.ruleset import OPEN
from treedbd.store.selection import select
from treedbd.web.channel.factory import ChannelFactory
from treedbd.web.channel.limits import ChannelLimits
from treedbd.web.identity.gate import Gate
from treedbd.web.options import WebOptions
from treedbd.web.resource import TreeResource
from treedbd.web.streams import StreamLimits

WALL = 1_700_000_000.0
BUFFER_BYTES = 10_000
LONG_BYTES = 3 * 1_048_576
PATIENT = ChannelLimits(idle_s=1e6, write_stalled_s=1e6)


class SlowClock(Clock):
    """A clock by which looking at it may take time, so that work is done in slices."""

    lag = 0.0

    def seconds(self) -> float:
        """Return the time, which may be later by now."""
        self.rightNow += self.lag
        return super().seconds()


class House(Server):
    """The whole interface over a memory that forgets, with a clock of the test's own."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(Scripted())
        self.clock = self.slow_clock = SlowClock()
        self.catalog = Catalog(
            folder,
            "memory",
            {},
            any_project=True,
            first_rules=OPEN,
            platform=Platform(self.clock, os.urandom, self._run),
            retain_events=100,
        )
        self.resource = TreeResource(
            catalog=self.catalog,
            options=WebOptions(domains=("localhost",)),
            gate=Gate(lambda _: None, lambda: WALL),
            stream_limits=StreamLimits(buffer_bytes=BUFFER_BYTES),
            clock=self.clock,
            wall_clock=lambda: WALL,
        )
        self.factory = ChannelFactory(self.resource, PATIENT, self.clock)

    def write(self, method: str, path: str, value: Any) -> None:
        """Write something, and let everybody hear of it."""
        self.begin_write(method, path, value)
        self.clock.advance(0)

    def begin_write(self, method: str, path: str, value: Any) -> Peer:
        """Ask for a write; it is done with all others of the same turn."""
        body = json.dumps(value).encode()
        head = f"{method} {path}.json HTTP/1.1\r\nHost: demo.localhost\r\n"
        peer = self.connect()
        peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return peer

    def listen(self, target: str, headers: str = "") -> Ear:
        """Open a stream."""
        return Ear(self, target, headers)

    @staticmethod
    def _run(work: Callable[[], None]) -> Deferred[None]:
        return execute(work)


class Ear:
    """The client end of a stream."""

    def __init__(self, house: House, target: str, headers: str) -> None:
        self.peer = house.connect()
        head = f"GET {target} HTTP/1.1\r\nHost: demo.localhost\r\nAccept: text/event-stream\r\n"
        self.peer.send(f"{head}{headers}\r\n".encode())
        self.ids: list[str] = []
        self._is_head_read = False

    @property
    def producer(self) -> Any:
        """What the transport paces."""
        return self.peer.transport.producer

    def hear(self) -> list[tuple[str, str]]:
        """Return what was sent since the last time: kinds and data."""
        data = self.peer.transport.value()
        self.peer.transport.clear()
        if not self._is_head_read:
            head, _, data = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            self._is_head_read = True
        body = b""
        while data and not data.startswith(b"0\r\n"):
            size, _, data = data.partition(b"\r\n")
            body += data[: int(size, 16)]
            data = data[int(size, 16) + 2 :]
        frames = re.findall(r"event: (\S+)\ndata: (.*)\n(?:id: (\S+)\n)?\n", body.decode())
        self.ids = [found for _, _, found in frames if found]
        return [(kind, data) for kind, data, _ in frames]


def put(path: str, value: Any) -> tuple[str, str]:
    return "put", json.dumps({"path": path, "data": value}, separators=(",", ":"))


@pytest.fixture
def house(tmp_path: pathlib.Path) -> House:
    return House(tmp_path)


def test_a_batch_is_one_write_to_each_stream(house: House) -> None:
    ears = [house.listen("/a.json") for _ in range(3)]
    for ear in ears:
        assert ear.hear() == [put("/", None)]
        ear.peer.transport.writes = 0
    for number in range(5):
        house.begin_write("PUT", f"/a/{number}", number)
    house.clock.advance(0)
    for ear in ears:
        assert ear.hear() == [put(f"/{number}", number) for number in range(5)]
        assert ear.peer.transport.writes == 1


def test_the_first_value_comes_with_the_head_in_one_write(house: House) -> None:
    ear = house.listen("/a.json")
    assert ear.peer.transport.writes == 1
    assert ear.hear() == [put("/", None)]


def test_silence_is_broken_after_its_time_and_not_by_what_waits_for_a_reader(
    house: House,
) -> None:
    ear, sleeper = house.listen("/a.json"), house.listen("/a.json")
    for each in (ear, sleeper):
        each.hear()
    sleeper.producer.pauseProducing()
    house.pass_time(29)
    assert ear.hear() == []
    house.pass_time(1)
    assert ear.hear() == [("keep-alive", "null")]
    sleeper.producer.resumeProducing()
    assert sleeper.hear() == []
    house.write("PUT", "/a", 1)
    house.pass_time(29)
    assert ear.hear() == [put("/", 1)]
    house.pass_time(1)
    assert ear.hear() == [("keep-alive", "null")]


def test_what_a_reader_missed_a_little_of_waits_for_it(house: House) -> None:
    ear = house.listen("/a.json")
    ear.hear()
    ear.producer.pauseProducing()
    for number in range(10):
        house.write("PUT", "/a", number)
    assert ear.hear() == []
    ear.producer.resumeProducing()
    assert ear.hear() == [put("/", number) for number in range(10)]


@pytest.mark.parametrize(
    ("query", "selected"),
    [("", {"n": 49, "z": 1}), ("?orderBy=%22$key%22&limitToLast=1", {"z": 1})],
)
def test_a_reader_that_missed_too_much_gets_the_present_value_and_goes_on_from_there(
    house: House, query: str, selected: Any
) -> None:
    house.write("PUT", "/a", {"z": 1})
    ear = house.listen(f"/a.json{query}")
    ear.hear()
    ear.producer.pauseProducing()
    house.write("PUT", "/a/zz", "x" * BUFFER_BYTES)
    for number in range(50):
        house.write("PUT", "/a/n", number)
    house.write("DELETE", "/a/zz", None)
    assert house.resource.streams.went_stale == 1
    ear.producer.resumeProducing()
    assert ear.hear() == [put("/", selected)]
    house.write("PUT", "/a/zzz", 3)
    assert put("/zzz", 3) in ear.hear()


def test_a_reader_that_does_not_read_is_dropped_in_the_end(house: House) -> None:
    ear, other = house.listen("/a.json"), house.listen("/a.json")
    ear.producer.pauseProducing()
    house.pass_time(59)
    assert not ear.peer.is_dropped
    house.pass_time(1)
    assert ear.peer.is_dropped
    assert not other.peer.is_dropped
    assert len(house.resource.streams) == 1


def test_a_reader_that_reads_again_is_not_dropped(house: House) -> None:
    ear = house.listen("/a.json")
    ear.producer.pauseProducing()
    house.pass_time(59)
    ear.producer.resumeProducing()
    house.pass_time(10)
    assert not ear.peer.is_dropped


def fill(house: House) -> None:
    """Put a value that is too long to be sent at once."""
    for number in range(12):
        house.write("PUT", f"/long/{number}", "x" * (LONG_BYTES // 12))


def test_a_long_value_is_sent_at_the_speed_of_the_reader(house: House) -> None:
    fill(house)
    ear = house.listen("/long.json")
    ear.producer.pauseProducing()
    sent = len(ear.peer.transport.value())
    assert 0 < sent < LONG_BYTES
    house.write("PUT", "/long/12", "later")
    assert len(ear.peer.transport.value()) == sent
    ear.producer.resumeProducing()
    house.clock.advance(0)
    (kind, data), *rest = ear.hear()
    assert kind == "put"
    assert [len(part) for part in json.loads(data)["data"]] == [LONG_BYTES // 12] * 12
    assert rest == [put("/12", "later")]


def listen_slowly(house: House) -> Ear:
    """Open a stream whose long value is still being drawn."""
    fill(house)
    house.slow_clock.lag = 0.001
    ear = house.listen("/long.json")
    assert ear.peer.transport.value() == b""
    return ear


def test_what_is_written_while_a_long_value_is_drawn_comes_behind_it(house: House) -> None:
    ear = listen_slowly(house)
    house.begin_write("PUT", "/long/12", "later")
    house.clock.advance(0)
    first, second = ear.hear()
    assert len(json.loads(first[1])["data"]) == 12
    assert second == put("/12", "later")


def test_one_that_leaves_while_its_value_is_drawn_is_forgotten(house: House) -> None:
    ear = listen_slowly(house)
    assert len(house.resource.streams) == 1
    waiting = len(house.clock.getDelayedCalls())
    ear.peer.hang_up()
    assert len(house.resource.streams) == 0
    # The next slice, and the beat of the streams.
    assert len(house.clock.getDelayedCalls()) == waiting - 2


def test_one_whose_value_finds_no_room_to_be_drawn_is_told_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullFile(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    fill(house)
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda _: FullFile())
    (answer,) = house.listen("/long.json").peer.read()
    assert answer.status == 503
    assert json.loads(answer.body)["error"] == "unavailable"
    assert len(house.resource.streams) == 0


def test_one_that_ends_while_its_value_is_drawn_ends_in_good_order(house: House) -> None:
    ear = listen_slowly(house)
    house.resource.streams.end()
    house.slow_clock.lag = 0.0
    house.clock.pump([0.01] * 10)
    (answer,) = ear.peer.read()
    assert (answer.status, answer.body) == (200, b"")


def test_one_that_ends_within_a_long_frame_ends_behind_it_with_its_first_last_words(
    house: House,
) -> None:
    ear = house.listen("/a.json")
    ear.hear()
    house.begin_write("PUT", "/a", "x" * LONG_BYTES)
    house.clock.callLater(0, ear.producer.pauseProducing)
    house.clock.advance(0)
    house.resource.streams.recheck(lambda *_: False)
    house.resource.streams.end()
    ear.producer.resumeProducing()
    house.clock.advance(0)
    assert [kind for kind, _ in ear.hear()] == ["put", "auth_revoked"]
    assert len(house.resource.streams) == 0


def test_a_stream_ends_with_the_last_chunk_and_so_does_its_connection(house: House) -> None:
    ear = house.listen("/a.json")
    house.resource.streams.end()
    assert ear.peer.transport.value().endswith(b"\r\n0\r\n\r\n")
    assert ear.peer.is_closed
    assert len(house.resource.streams) == 0


def test_what_a_client_sends_while_it_listens_is_not_looked_at(house: House) -> None:
    ear = house.listen("/a.json")
    ear.hear()
    ear.peer.send(b"PUT /b.json HTTP/1.1\r\nHost: demo.localhost\r\nContent-Length: 1\r\n\r\n1")
    house.write("PUT", "/a", 1)
    assert ear.hear() == [put("/", 1)]
    house.resource.streams.end()
    assert ear.peer.transport.value() == b"0\r\n\r\n"
    assert ear.peer.is_closed
    assert house.listen("/b.json").hear() == [put("/", None)]


def test_head_opens_no_stream(house: House) -> None:
    peer = house.connect()
    for _ in range(2):
        peer.send(
            b"HEAD /a.json HTTP/1.1\r\nHost: demo.localhost\r\nAccept: text/event-stream\r\n\r\n"
        )
    answers = peer.read(b"HEAD", b"HEAD")
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0][b"content-type"] == b"text/event-stream; charset=utf-8"
    assert len(house.resource.streams) == 0


def test_events_are_counted(house: House) -> None:
    ears = [house.listen("/a.json"), house.listen("/a.json?orderBy=%22$key%22&limitToFirst=1")]
    house.write("PATCH", "/a", {"x": 1, "y": 2})
    assert [len(ear.hear()) for ear in ears] == [2, 2]
    assert house.resource.streams.opened == 2
    assert house.resource.streams.events_sent == 2


def test_one_that_left_watches_no_more(house: House) -> None:
    database = house.catalog.database(DatabaseName("demo"))
    ears = [house.listen(target) for target in ("/a.json", "/a.json?orderBy=%22$key%22")]
    assert database._watchers.count == 2
    assert len(database._permits.held) == 2
    ears[0].peer.hang_up()
    house.resource.streams.end()
    assert database._watchers.count == 0
    assert len(database._permits.held) == 0


def test_streams_of_one_path_get_each_what_they_asked_for(house: House) -> None:
    house.write("PUT", "/a", {"b": 1, "c": 2})
    query = "orderBy=%22$key%22&limitToFirst=1"
    targets = ["", "?resume=true", f"?{query}", f"?{query}&resume=true"]
    ears = [house.listen(f"/a.json{target}") for target in targets]
    for ear in ears:
        ear.hear()
    house.write("PATCH", "/a", {"b": 3, "c": 4})
    patched = ("patch", '{"path":"/","data":{"b":3,"c":4}}')
    assert [ear.hear() for ear in ears] == [[patched], [patched], [put("/b", 3)], [put("/b", 3)]]
    assert [len(ear.ids) for ear in ears] == [0, 1, 0, 1]


QUERY = "/a.json?orderBy=%22$key%22&limitToFirst=1"


def test_a_query_is_asked_anew_once_for_all_its_streams(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.write("PUT", "/a", {"b": 1, "c": 2})
    ears = [house.listen(QUERY) for _ in range(5)]
    asked = []

    def count(*question: Any) -> Any:
        asked.append(question)
        return select(*question)

    monkeypatch.setattr("treedbd.web.watched.select", count)
    for ear in ears:
        ear.hear()
    house.write("DELETE", "/a/b", None)
    assert [ear.hear() for ear in ears] == [[put("/b", None), put("/c", 2)]] * 5
    assert len(asked) == 1


def test_streams_whose_window_breaks_are_dropped_and_nobody_else(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.write("PUT", "/a", {"b": 1, "c": 2})
    broken = [house.listen(QUERY), house.listen(QUERY)]
    plain = house.listen("/a.json")
    for ear in (*broken, plain):
        ear.hear()
    troubles = [OSError("the disk of a test")]

    def fail_once(*question: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return select(*question)

    monkeypatch.setattr("treedbd.web.watched.select", fail_once)
    house.write("DELETE", "/a/b", None)
    assert [ear.peer.is_dropped for ear in broken] == [True, True]
    assert plain.hear() == [put("/b", None)]
    assert len(house.resource.streams) == 1
