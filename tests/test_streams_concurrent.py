"""Streams while eight clients write: a stream stays up to date and misses nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.daemon import Daemon
from tests.rest import Client
from tests.sse import EventStream, Frame, Listener, ReadingListener, change, put

WRITERS: Final = 8
ROUNDS: Final = 6
WRITES_A_ROUND: Final = 50
REMOVING: Final = 0.1
RUNS: Final = 4
OPENINGS: Final = 1000
OPENERS: Final = 4

WATCHED: Final = (
    "/.json",
    "/.json?resume=true",
    "/shared.json",
    "/shared/a.json",
    "/shared/a/b.json",
    "/shared/a/b/c.json",
    "/shared/a/b/c/d.json",
    '/shared/a.json?orderBy="$key"&limitToFirst=2',
    '/shared/a.json?orderBy="$key"&limitToLast=1',
    '/shared.json?orderBy="n"&limitToLast=2',
    '/shared/b.json?orderBy="$value"&startAt=0',
    '/shared/a/b.json?orderBy="$priority"&limitToFirst=2',
)
_TOKEN = re.compile(r'"(\d+):(\d+)"')


class TokenWriter:
    """One client that writes to a few shared paths; every write contains a token."""

    def __init__(self, daemon: Daemon, number: int) -> None:
        self._client = Client(daemon)
        self._random = random.Random(number)
        self._number = number
        self._count = itertools.count()
        self.acknowledged = 0
        self.tokens: list[int] = []

    def write(self, times: int) -> None:
        """Write `times` times, and record what was acknowledged."""
        kinds = (self._put, self._put, self._push, self._patch, self._swap)
        for _ in range(times):
            count = next(self._count)
            token = f"{self._number}:{count}"
            if self._random.random() < REMOVING:
                self._remove(self._path())
            elif self._random.choice(kinds)(self._path(), token):
                self.tokens.append(count)

    def close(self) -> None:
        self._client.close()

    def _path(self) -> str:
        keys = self._random.choices("abcd", k=self._random.randint(0, 4))
        return "/".join(["/shared", *keys])

    def _value(self, token: str) -> Any:
        return self._random.choice(
            [
                token,
                {"n": self._random.randint(0, 9), "by": token},
                {"a": {"b": {"c": token}}, "d": 1},
                {"a": self._random.randint(0, 9), "b": token, "c": self._random.randint(-9, 0)},
                [1, token],
                {".value": token, ".priority": self._random.randint(0, 9)},
            ]
        )

    def _send(self, method: str, path: str, value: Any, headers: Any = ()) -> bool:
        body = None if value is None else json.dumps(value)
        response = self._client.request(method, f"{path}.json", body, headers)
        assert response.status in (200, 412), response
        self.acknowledged += response.status == 200
        return response.status == 200

    def _put(self, path: str, token: str) -> bool:
        return self._send("PUT", path, self._value(token))

    def _push(self, path: str, token: str) -> bool:
        return self._send("POST", path, self._value(token))

    def _patch(self, path: str, token: str) -> bool:
        upper = self._random.choice(["", "/shared", path])
        below = "" if upper else "shared/"
        parts = [f"{below}{part}" for part in self._random.sample(["a/b", "b", "c/d", "a/c"], k=3)]
        return self._send("PATCH", upper + "/", {part: self._value(token) for part in parts})

    def _remove(self, path: str) -> None:
        self._send("DELETE", path, None)

    def _swap(self, path: str, token: str) -> bool:
        read = self._client.request("GET", f"{path}.json", headers={"X-Vendor-ETag": "true"})
        return self._send("PUT", path, self._value(token), {"If-Match": read.headers["ETag"]})


def tokens(frames: list[Frame]) -> dict[int, list[int]]:
    """Return the tokens of each writer, in the order in which they were received."""
    received: dict[int, list[int]] = defaultdict(list)
    for frame in frames:
        for writer, count in set(_TOKEN.findall(frame.data)):
            received[int(writer)].append(int(count))
    return received


def test_streams_equal_the_value_after_each_round_of_concurrent_writes(daemon: Daemon) -> None:
    writers = [TokenWriter(daemon, number) for number in range(WRITERS)]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(WRITERS) as pool:
        for writer in writers:
            stack.callback(writer.close)
        reader = stack.enter_context(Client(daemon))
        targets = [target.replace('"', "%22") for target in WATCHED]
        listeners = {target: stack.enter_context(Listener(reader, target)) for target in targets}
        for _ in range(ROUNDS):
            list(pool.map(lambda writer: writer.write(WRITES_A_ROUND), writers))
            for target, listener in listeners.items():
                present = reader.get(target.replace("resume=true", ""))
                is_equal = lambda: listener.replica.equals(present)  # noqa: E731, B023
                assert listener.wait_until(is_equal), (target, listener.replica.tree, present)
        plain, resumable = list(listeners.values())[:2]
        assert resumable.wait_until(lambda: len(resumable.received) == len(plain.received))
    assert [change(frame) for frame in resumable.received] == [
        change(frame) for frame in plain.received
    ]
    assert len({frame.id for frame in resumable.received}) == len(resumable.received)
    assert len(plain.received) == 1 + sum(writer.acknowledged for writer in writers)
    received = tokens(plain.received)
    for number, writer in enumerate(writers):
        assert received[number] == writer.tokens


def test_readers_of_what_changes_have_the_value_after_concurrent_writes(daemon: Daemon) -> None:
    writers = [TokenWriter(daemon, number) for number in range(WRITERS)]
    paths = ("/shared", "/shared/a", "/shared/a/b", "/shared/a/b/c")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(WRITERS) as pool:
        for writer in writers:
            stack.callback(writer.close)
        client = stack.enter_context(Client(daemon))
        readers = [stack.enter_context(Client(daemon)) for _ in paths]
        listeners = [
            stack.enter_context(ReadingListener(client, reader, path))
            for path, reader in zip(paths, readers, strict=True)
        ]
        for _ in range(ROUNDS):
            list(pool.map(lambda writer: writer.write(WRITES_A_ROUND), writers))
            for path, listener in zip(paths, listeners, strict=True):
                present = client.get(f"{path}.json")
                is_equal = lambda: listener.replica.equals(present)  # noqa: E731, B023
                assert listener.wait_until(is_equal), (path, listener.replica.tree, present)
        top = listeners[0]
        written = sum(writer.acknowledged for writer in writers)
        assert top.wait_until(lambda: len(top.received) == 1 + written)


def count_up(daemon: Daemon, number: int, written: dict[int, int], stop: threading.Event) -> None:
    """Write 1, 2, 3 … to a key of its own until the daemon has ended."""
    with contextlib.suppress(OSError), Client(daemon) as client:
        while not stop.is_set():
            client.put(f"/counts/{number}.json", written[number] + 1)
            written[number] += 1


def is_enough(received: dict[int, list[int]], count: int) -> bool:
    """Return whether `count` events of each writer were received."""
    return len(received) == WRITERS and min(map(len, received.values())) >= count


def test_received_events_survive_a_crash_and_continue_without_a_gap(daemon: Daemon) -> None:
    written = dict.fromkeys(range(WRITERS), 0)
    received: dict[int, list[int]] = defaultdict(list)
    last: str | None = None
    for run in range(RUNS):
        stop = threading.Event()
        with Client(daemon) as client, ThreadPoolExecutor(WRITERS) as pool:
            if run:
                present = dict(enumerate(client.get("/counts.json")))
                for number, counts in received.items():
                    assert present[number] >= counts[-1]
                    assert written[number] <= present[number] <= written[number] + 1
                    written[number] = present[number]
            headers = {} if last is None else {"Last-Event-ID": last}
            counters = [
                pool.submit(count_up, daemon, number, written, stop) for number in range(WRITERS)
            ]
            stream = EventStream(client, "/counts.json?resume=true", headers)
            with stream, contextlib.suppress(ConnectionError):
                for frame in stream.frames():
                    if frame.event == "put" and frame.path != "/":
                        received[int(frame.path[1:])].append(frame.value)
                        last = frame.id
                    else:
                        assert not run
                    if is_enough(received, 30 * (run + 1)):
                        daemon.kill()
            stop.set()
            for each in counters:
                each.result()
        daemon.start()
    for counts in received.values():
        assert counts == list(range(counts[0], counts[0] + len(counts)))


@contextlib.contextmanager
def writing(daemon: Daemon, write: Callable[[Client, int], None]) -> Iterator[None]:
    """Write 1, 2, 3 … without a pause, in a thread, while the `with` block runs."""
    stop = threading.Event()

    def write_on() -> None:
        with Client(daemon) as client:
            for number in itertools.count(1):
                if stop.is_set():
                    return
                write(client, number)

    with ThreadPoolExecutor(1) as pool, Client(daemon) as client:
        write(client, 0)
        future = pool.submit(write_on)
        try:
            yield
        finally:
            stop.set()
        future.result()


def write_pair(client: Client, number: int) -> None:
    """Write a number to two paths in one request."""
    body = json.dumps({"pair/x": number, "pair/y": number})
    assert client.request("PATCH", "/.json?print=silent", body).status == 204


def check_opening(client: Client, query: str) -> None:
    """Open a stream: it begins with one of the states and continues with the next ones."""
    with EventStream(client, f"/pair.json{query}") as stream:
        first = stream.next_change()
        number = first.value["x"]
        assert change(first) == put("/", {"x": number, "y": number})
        for next_one in (number + 1, number + 2):
            expected = ("patch", "/", {"x": next_one, "y": next_one})
            assert change(stream.next_change()) == expected


@pytest.mark.parametrize(
    ("query", "times"), [("", OPENINGS), ("?orderBy=%22$key%22&limitToLast=2", OPENINGS // 4)]
)
def test_a_stream_opened_during_writes_misses_nothing(
    daemon: Daemon, query: str, times: int
) -> None:
    def listen(_: int) -> None:
        with Client(daemon) as client:
            for _ in range(times // OPENERS):
                check_opening(client, query)

    with writing(daemon, write_pair), ThreadPoolExecutor(OPENERS) as pool:
        list(pool.map(listen, range(OPENERS)))
    assert "Traceback" not in daemon.log
