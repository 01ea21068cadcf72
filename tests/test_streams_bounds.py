"""Streams at their edges: readers that do not read, silence, long values, refusals, ends, resuming.

What a stream costs the daemon is bounded whatever its reader does; what it says is said exactly.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import select
import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.access import Tree, at, trusting
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
PATIENCE_S = 20
SMALL_WINDOW = 4096

LONG_PARTS = 300
LONG_PART_BYTES = 100_000
WRITES_MEANWHILE = 100

STALLED_S = 1.0
KEEP_ALIVE_S = 1.0
LIVELY = f"""
default_project = "shop"
[streams]
keep_alive_s = {KEEP_ALIVE_S}
stalled_s = {STALLED_S}
[projects.shop]
rules_file = "open.json"
"""
FEW_EACH = """
domains = ["db.test"]
[limits]
streams_per_database = 2
streams_per_address = 3
[projects.shop]
rules_file = "open.json"
databases = "*"
dialect = "standard"
"""
FEW_IN_ALL = """
domains = ["db.test"]
[limits]
streams = 2
[projects.shop]
rules_file = "open.json"
dialect = "standard"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("bounds")) as daemon:
        yield daemon


@pytest.fixture
def tree(running: Daemon) -> Iterator[Client]:
    with Client.of_new_tree(running) as client:
        yield client


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a daemon that says soon that it is alive, and soon gives up who does not read."""
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


def test_a_reader_that_never_reads_is_closed_after_a_while_and_others_are_not(
    lively: Client,
) -> None:
    with (
        Listener(lively, "/big.json") as reader,
        EventStream(lively, "/big.json", receive_bytes=SMALL_WINDOW) as sleeper,
    ):
        begun = time.monotonic()
        for number in range(16):
            lively.put("/big/x.json", long_text(number))
        assert is_hung_up(sleeper)
        assert time.monotonic() - begun >= STALLED_S
        lively.put("/big/y.json", 1)
        assert reader.await_state(lambda: reader.heard[-1].path == "/y")
    lively.put("/big.json", None)


def is_hung_up(stream: EventStream) -> bool:
    """Wait, without reading, until the peer has dropped the connection; tell whether it has."""
    poll = select.poll()
    poll.register(stream.wire.socket, 0)
    return bool(poll.poll(PATIENCE_S * 1000))


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


# Long values.


def test_a_long_value_comes_whole_while_others_write_and_read(tree: Client) -> None:
    for begin in range(0, LONG_PARTS, 100):
        parts = {f"p{number}": part(number) for number in range(begin, begin + 100)}
        answer = tree.ask("PATCH", "/long.json?print=silent", json.dumps(parts))
        assert answer.status == 204
    tree.put("/long/count.json", 0)
    with EventStream(tree, "/long.json") as stream, ThreadPoolExecutor(1) as pool:
        delays = []
        reading = None
        for number in range(1, WRITES_MEANWHILE + 1):
            begun = time.monotonic()
            tree.put("/long/count.json", number)
            assert tree.get("/long/count.json") == number
            delays.append(time.monotonic() - begun)
            if number == WRITES_MEANWHILE // 2:
                reading = pool.submit(stream.next_change)
        assert max(delays) < LATE_S
        assert reading is not None
        kind, path, value = told(reading.result())
        assert (kind, path) == ("put", "/")
        begin = value.pop("count")
        assert value == {f"p{number}": part(number) for number in range(LONG_PARTS)}
        assert begin < WRITES_MEANWHILE
        for number in range(begin + 1, WRITES_MEANWHILE + 1):
            assert told(stream.next_change()) == put("/count", number)


def part(number: int) -> str:
    return f"{number} ".ljust(LONG_PART_BYTES, "x")


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


def check_stream_headers(stream: EventStream) -> None:
    expected = {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
        "X-Content-Type-Options": "nosniff",
        "Transfer-Encoding": "chunked",
    }
    assert stream.status == 200
    assert {name: stream.headers.get_all(name) for name in expected} == {
        name: [value] for name, value in expected.items()
    }
    for name in ("Content-Length", "ETag", "Server"):
        assert name not in stream.headers


def test_headers_are_the_same_with_a_token_and_without(
    tree: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with EventStream(tree, "/a.json") as stream:
        check_stream_headers(stream)
    with trusting(tmp_path_factory.mktemp("tokens"), "", ["shop"]) as daemon:
        shop = Tree(daemon, "shop")
        bearer = {"Authorization": f"Bearer {shop.admin}"}
        for target, headers in ((at("/a.json", shop.admin), {}), ("/a.json", bearer)):
            with EventStream(shop, target, headers) as stream:
                check_stream_headers(stream)


def test_head_gets_the_head_of_a_stream_and_opens_none(tree: Client) -> None:
    answer = tree.ask("HEAD", "/a.json", headers=EVENTS)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert tree.get("/a.json") is None
    check_error(tree.ask("GET", "/a.json?shallow=true", headers=EVENTS), 400, "invalid_query")


# The end.


def test_sigterm_ends_streams_in_good_order_whoever_reads_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        Daemon(tmp_path_factory.mktemp("stopped")) as daemon,
        Client.of_new_tree(daemon) as tree,
        contextlib.ExitStack() as stack,
    ):
        listeners = [stack.enter_context(Listener(tree, f"/{key}.json")) for key in "aab"]
        stack.enter_context(EventStream(tree, "/big.json", receive_bytes=SMALL_WINDOW))
        for number in range(8):
            tree.put("/big/x.json", long_text(number))
        tree.put("/a.json", "the last")
        daemon.signal(signal.SIGTERM)
        for listener in listeners:
            listener.await_end()
            assert listener.is_ended
            assert listener.ended_with is None
        assert [listener.mirror.tree for listener in listeners] == ["the last"] * 2 + [None]
        assert daemon.wait(PATIENCE_S) == 0


# Refusals.


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/a.json?shallow=true", 400, "invalid_query"),
        ("/a.json?print=pretty", 400, "invalid_query"),
        ("/a.json?print=silent", 400, "invalid_query"),
        ("/a.json?callback=f", 400, "invalid_query"),
        ("/a.json?download=f.json", 400, "invalid_query"),
        ("/a.json?resume=perhaps", 400, "invalid_query"),
        ("/a.json?limitToFirst=1", 400, "invalid_query"),
        ("/a%23b.json", 400, "invalid_path"),
        ("/a/.priority.json", 400, "invalid_path"),
        ("/a", 404, "not_found"),
    ],
)
def test_what_cannot_be_a_stream_is_an_ordinary_error(
    tree: Client, target: str, status: int, code: str
) -> None:
    check_error(tree.ask("GET", target, headers=EVENTS), status, code)


def test_a_database_and_an_address_have_so_many_streams_and_no_more(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        configured(tmp_path_factory.mktemp("few"), FEW_EACH) as daemon,
        Client(daemon, "one--shop.db.test") as one,
        Client(daemon, "two--shop.db.test") as two,
        Client(daemon, "nothing.db.test") as nowhere,
    ):
        check_error(nowhere.ask("GET", "/a.json", headers=EVENTS), 404, "not_found")
        with opened(one), opened(one):
            refused = one.ask("GET", "/a.json", headers=EVENTS)
            assert "database" in check_error(refused, 429, "too_many_requests")
            with opened(two):
                refused = two.ask("GET", "/a.json", headers=EVENTS)
                assert "address" in check_error(refused, 429, "too_many_requests")
            assert one.get("/a.json") is None
        await_room(one)


def test_the_service_has_so_many_streams_and_no_more(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        configured(tmp_path_factory.mktemp("few"), FEW_IN_ALL) as daemon,
        Client(daemon, "shop.db.test") as shop,
    ):
        with opened(shop), opened(shop):
            check_error(shop.ask("GET", "/a.json", headers=EVENTS), 503, "unavailable")
            assert shop.ask("HEAD", "/a.json").status == 200
        await_room(shop)


def opened(client: Client) -> EventStream:
    """Return a stream that is counted: its first value has come."""
    stream = EventStream(client, "/a.json")
    assert told(stream.next_change()) == put("/", None)
    return stream


def await_room(client: Client) -> None:
    """Wait until a stream is let in again."""
    until = time.monotonic() + PATIENCE_S
    while True:
        with EventStream(client, "/a.json") as stream:
            if stream.status == 200:
                return
        assert time.monotonic() < until


# Resuming.


def test_identifiers_stand_behind_the_data_and_only_where_asked_for(tree: Client) -> None:
    with tree.connect() as wire, EventStream(tree, "/r.json") as plain:
        wire.send(print_request("GET", "/r.json?resume=true", headers=EVENTS, host=tree.host))
        tree.put("/r.json", 1)
        assert [plain.next_change().id for _ in range(2)] == [None, None]
        lines = read_lines(wire, "put", 2)
    for line in ("event: put", 'data: {"path":"/","data":1}'):
        assert line in lines
    data = [at for at, line in enumerate(lines) if line.startswith("data: ")]
    assert len(data) == 2
    assert all(lines[at + 1].startswith("id: ") and lines[at + 2] == "" for at in data)


def read_lines(wire: Wire, kind: str, count: int) -> list[str]:
    """Read the body of a stream, its chunks taken out, until so many events of a kind are whole."""
    text = b""
    while text.count(b"event: %b\n" % kind.encode()) < count or not text.endswith(b"\n\n\r\n"):
        received = wire.socket.recv(65_536)
        assert received
        text += received
    body = text.partition(b"\r\n\r\n")[2]
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return found.decode().split("\n")


def resume(client: Client, last: str, target: str = "/r.json?resume=true") -> EventStream:
    return EventStream(client, target, {"Last-Event-ID": last})


def test_whoever_resumes_hears_what_was_missed_in_place_of_the_first_put(daemon: Daemon) -> None:
    host = "resumed.localhost"
    with Client(daemon, host) as tree:
        tree.put("/r.json", {"a": 0})
        with EventStream(tree, "/r.json?resume=true") as stream:
            assert told(stream.next_change()) == put("/", {"a": 0})
            tree.put("/r/a.json", 1)
            last = stream.next_change().id
        assert last is not None
        tree.put("/elsewhere.json", 1)
        tree.put("/r/a.json", 2)
        assert tree.ask("PATCH", "/r.json", '{"b": {".sv": {"increment": 2}}}').status == 200
        tree.put("/r/a.json", 2)
        missed = [put("/a", 2), ("patch", "/", {"b": 2}), put("/a", 2)]
        ids = check_resumes(tree, last, missed)
    daemon.restart()
    with Client(daemon, host) as tree:
        assert check_resumes(tree, last, missed) == ids
        for known, still_missed in zip(ids, ([*missed[1:]], [*missed[2:]], []), strict=True):
            check_resumes(tree, known, still_missed)


def check_resumes(tree: Client, last: str, missed: list[tuple[str, str, Any]]) -> list[str]:
    """Check what a resumed stream tells, up to a write elsewhere in it; return the identifiers."""
    with resume(tree, last) as stream:
        frames = [stream.next_change() for _ in missed]
        assert [told(frame) for frame in frames] == missed
        with EventStream(tree, "/r.json") as fresh:
            assert fresh.next_change().path == "/"
        return [frame.id or "" for frame in frames]


@pytest.mark.parametrize(
    "last",
    ["", "1", "2", "x", "-1", "999999999999", "1-0000000000000000", "1-", "é", "1" * 500, "null"],
)
def test_an_identifier_that_is_not_known_begins_anew(tree: Client, last: str) -> None:
    tree.put("/r.json", 1)
    tree.put("/r.json", 2)
    with resume(tree, last) as stream:
        assert told(stream.next_change()) == put("/", 2)
        tree.put("/r.json", 3)
        assert told(stream.next_change()) == put("/", 3)


def test_an_identifier_without_resume_and_one_of_another_tree_begin_anew(
    tree: Client, running: Daemon
) -> None:
    tree.put("/r.json", 1)
    with EventStream(tree, "/r.json?resume=true") as stream:
        last = stream.next_change().id or ""
    tree.put("/r.json", 2)
    with resume(tree, last, "/r.json") as stream:
        frame = stream.next_change()
        assert (told(frame), frame.id) == (put("/", 2), None)
    with Client.of_new_tree(running) as other:
        other.put("/r.json", 1)
        other.put("/r.json", 3)
        with resume(other, last) as stream:
            assert told(stream.next_change()) == put("/", 3)


# Queries.


def test_a_query_begins_with_what_it_selects_and_tells_who_enters_and_leaves(tree: Client) -> None:
    tree.put("/q.json", {key: {"rank": rank} for rank, key in enumerate("abcd", 1)})
    with EventStream(tree, '/q.json?orderBy="rank"&limitToFirst=2') as stream:
        expect(stream, put("/", {"a": {"rank": 1}, "b": {"rank": 2}}))
        tree.put("/q/d/rank.json", 9)
        tree.put("/q/e.json", {"rank": 0})
        expect(stream, put("/b", None), put("/e", {"rank": 0}))
        tree.put("/q/a/more.json", True)
        expect(stream, put("/a", {"rank": 1, "more": True}))
        tree.put("/q/e.json", None)
        expect(stream, put("/e", None), put("/b", {"rank": 2}))
        assert tree.ask("PATCH", "/q.json", '{"a/rank": 8, "b/rank": 7}').status == 200
        tree.put("/q/c/rank.json", 2)
        heard = [told(stream.next_change()) for _ in range(4)]
        assert put("/a", None) in heard[:3]
        assert heard[3] == put("/c", {"rank": 2})


def expect(stream: EventStream, *events: tuple[str, str, Any]) -> None:
    """Check that these events come next, in any order: those of one write have none."""
    heard = [told(stream.next_change()) for _ in events]
    assert sorted(heard, key=repr) == sorted(events, key=repr)
