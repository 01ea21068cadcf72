"""Streams while eight clients write: whoever listens knows what is there, and missed nothing."""

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
from tests.sse import EventStream, Frame, Listener, put, told

WRITERS: Final = 8
ROUNDS: Final = 6
WRITES_A_ROUND: Final = 50
REMOVING: Final = 0.1
LIVES: Final = 4
OPENINGS: Final = 1000
OPENERS: Final = 4

WATCHED: Final = (
    "/.json",
    "/.json?resume=true",
    "/storm.json",
    "/storm/a.json",
    "/storm/a/b.json",
    "/storm/a/b/c.json",
    "/storm/a/b/c/d.json",
    '/storm/a.json?orderBy="$key"&limitToFirst=2',
    '/storm/a.json?orderBy="$key"&limitToLast=1',
    '/storm.json?orderBy="n"&limitToLast=2',
    '/storm/b.json?orderBy="$value"&startAt=0',
    '/storm/a/b.json?orderBy="$priority"&limitToFirst=2',
)
_TOKEN = re.compile(r'"(\d+):(\d+)"')


class Writer:
    """One client that writes all over the same few places; every write carries a token."""

    def __init__(self, daemon: Daemon, number: int) -> None:
        self._client = Client(daemon)
        self._chance = random.Random(number)
        self._number = number
        self._count = itertools.count()
        self.acknowledged = 0
        self.tokens: list[int] = []

    def write(self, times: int) -> None:
        """Write so many times, and note what was acknowledged."""
        kinds = (self._put, self._put, self._push, self._patch, self._swap)
        for _ in range(times):
            count = next(self._count)
            token = f"{self._number}:{count}"
            if self._chance.random() < REMOVING:
                self._remove(self._place())
            elif self._chance.choice(kinds)(self._place(), token):
                self.tokens.append(count)

    def close(self) -> None:
        self._client.close()

    def _place(self) -> str:
        keys = self._chance.choices("abcd", k=self._chance.randint(0, 4))
        return "/".join(["/storm", *keys])

    def _value(self, token: str) -> Any:
        return self._chance.choice(
            [
                token,
                {"n": self._chance.randint(0, 9), "by": token},
                {"a": {"b": {"c": token}}, "d": 1},
                {"a": self._chance.randint(0, 9), "b": token, "c": self._chance.randint(-9, 0)},
                [1, token],
                {".value": token, ".priority": self._chance.randint(0, 9)},
            ]
        )

    def _ask(self, method: str, place: str, value: Any, headers: Any = ()) -> bool:
        body = None if value is None else json.dumps(value)
        answer = self._client.ask(method, f"{place}.json", body, headers)
        assert answer.status in (200, 412), answer
        self.acknowledged += answer.status == 200
        return answer.status == 200

    def _put(self, place: str, token: str) -> bool:
        return self._ask("PUT", place, self._value(token))

    def _push(self, place: str, token: str) -> bool:
        return self._ask("POST", place, self._value(token))

    def _patch(self, place: str, token: str) -> bool:
        upper = self._chance.choice(["", "/storm", place])
        below = "" if upper else "storm/"
        parts = [f"{below}{part}" for part in self._chance.sample(["a/b", "b", "c/d", "a/c"], k=3)]
        return self._ask("PATCH", upper + "/", {part: self._value(token) for part in parts})

    def _remove(self, place: str) -> None:
        self._ask("DELETE", place, None)

    def _swap(self, place: str, token: str) -> bool:
        read = self._client.ask("GET", f"{place}.json", headers={"X-Vendor-ETag": "true"})
        return self._ask("PUT", place, self._value(token), {"If-Match": read.headers["ETag"]})


def tokens(frames: list[Frame]) -> dict[int, list[int]]:
    """Return for each writer what was heard of it, in the order in which it was heard."""
    heard: dict[int, list[int]] = defaultdict(list)
    for frame in frames:
        for writer, count in set(_TOKEN.findall(frame.data)):
            heard[int(writer)].append(int(count))
    return heard


def test_who_listens_to_a_storm_knows_at_every_pause_what_is_there(daemon: Daemon) -> None:
    writers = [Writer(daemon, number) for number in range(WRITERS)]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(WRITERS) as pool:
        for writer in writers:
            stack.callback(writer.close)
        reader = stack.enter_context(Client(daemon))
        targets = [target.replace('"', "%22") for target in WATCHED]
        listeners = {target: stack.enter_context(Listener(reader, target)) for target in targets}
        for _ in range(ROUNDS):
            list(pool.map(lambda writer: writer.write(WRITES_A_ROUND), writers))
            for target, listener in listeners.items():
                there = reader.get(target.replace("resume=true", ""))
                shows = lambda: listener.mirror.shows(there)  # noqa: E731, B023
                assert listener.await_state(shows), (target, listener.mirror.tree, there)
        everything, numbered = list(listeners.values())[:2]
        assert numbered.await_state(lambda: len(numbered.heard) == len(everything.heard))
    assert [told(frame) for frame in numbered.heard] == [told(frame) for frame in everything.heard]
    assert len({frame.id for frame in numbered.heard}) == len(numbered.heard)
    assert len(everything.heard) == 1 + sum(writer.acknowledged for writer in writers)
    heard = tokens(everything.heard)
    for number, writer in enumerate(writers):
        assert heard[number] == writer.tokens


def count_up(daemon: Daemon, number: int, written: dict[int, int], stop: threading.Event) -> None:
    """Write 1, 2, 3 … to a key of its own until there is no daemon any more."""
    with contextlib.suppress(OSError), Client(daemon) as client:
        while not stop.is_set():
            client.put(f"/counts/{number}.json", written[number] + 1)
            written[number] += 1


def is_enough(heard: dict[int, list[int]], count: int) -> bool:
    """Tell whether so much was heard of everyone."""
    return len(heard) == WRITERS and min(map(len, heard.values())) >= count


def test_what_was_heard_is_true_after_a_crash_and_goes_on_without_a_gap(daemon: Daemon) -> None:
    written = dict.fromkeys(range(WRITERS), 0)
    heard: dict[int, list[int]] = defaultdict(list)
    last: str | None = None
    for life in range(LIVES):
        stop = threading.Event()
        with Client(daemon) as client, ThreadPoolExecutor(WRITERS) as pool:
            if life:
                there = dict(enumerate(client.get("/counts.json")))
                for number, counts in heard.items():
                    assert there[number] >= counts[-1]
                    assert written[number] <= there[number] <= written[number] + 1
                    written[number] = there[number]
            headers = {} if last is None else {"Last-Event-ID": last}
            counting = [
                pool.submit(count_up, daemon, number, written, stop) for number in range(WRITERS)
            ]
            stream = EventStream(client, "/counts.json?resume=true", headers)
            with stream, contextlib.suppress(ConnectionError):
                for frame in stream.frames():
                    if frame.event == "put" and frame.path != "/":
                        heard[int(frame.path[1:])].append(frame.value)
                        last = frame.id
                    else:
                        assert not life
                    if is_enough(heard, 30 * (life + 1)):
                        daemon.kill()
            stop.set()
            for each in counting:
                each.result()
        daemon.start()
    for counts in heard.values():
        assert counts == list(range(counts[0], counts[0] + len(counts)))


@contextlib.contextmanager
def storm(daemon: Daemon, write: Callable[[Client, int], None]) -> Iterator[None]:
    """Let somebody write 1, 2, 3 … without a pause within a block."""
    stop = threading.Event()

    def go_on() -> None:
        with Client(daemon) as client:
            for number in itertools.count(1):
                if stop.is_set():
                    return
                write(client, number)

    with ThreadPoolExecutor(1) as pool, Client(daemon) as client:
        write(client, 0)
        writing = pool.submit(go_on)
        try:
            yield
        finally:
            stop.set()
        writing.result()


def write_pair(client: Client, number: int) -> None:
    """Write a number to two places at once."""
    body = json.dumps({"pair/x": number, "pair/y": number})
    assert client.ask("PATCH", "/.json?print=silent", body).status == 204


def check_opening(client: Client) -> None:
    """Open a stream: it begins with one of the states, and goes on with those behind it."""
    with EventStream(client, "/pair.json") as stream:
        first = stream.next_change()
        began = first.value["x"]
        assert told(first) == put("/", {"x": began, "y": began})
        for number in (began + 1, began + 2):
            heard = [told(stream.next_change()) for _ in range(2)]
            assert heard == [put("/x", number), put("/y", number)]


def check_opening_of_query(client: Client) -> None:
    """Do the same with a query: its window may have jumped over states, but shows whole ones."""
    with EventStream(client, "/pair.json?orderBy=%22$key%22&limitToLast=2") as stream:
        first = stream.next_change()
        began = first.value["x"]
        assert told(first) == put("/", {"x": began, "y": began})
        heard = dict(told(stream.next_change())[1:] for _ in range(2))
        assert heard["/x"] == heard["/y"] > began


@pytest.mark.parametrize(
    ("check", "times"), [(check_opening, OPENINGS), (check_opening_of_query, OPENINGS // 4)]
)
def test_who_begins_to_listen_within_a_storm_misses_nothing(
    daemon: Daemon, check: Callable[[Client], None], times: int
) -> None:
    def listen(_: int) -> None:
        with Client(daemon) as client:
            for _ in range(times // OPENERS):
                check(client)

    with storm(daemon, write_pair), ThreadPoolExecutor(OPENERS) as pool:
        list(pool.map(listen, range(OPENERS)))
    assert "Traceback" not in daemon.log
