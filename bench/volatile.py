"""Volatile nodes beside stored ones: writes a second, and cursors of many users on one board.

    .venv/bin/python bench/volatile.py [--users N] [--hz N] [--seconds S] [--rounds N]

Writes: PUTs of 50 bytes over HTTP with 128 connections, messages of 32 WebSockets that do not wait,
and round trips of one WebSocket. Board: each of N users moves his cursor at `--hz`, over a
WebSocket, and N streams listen to all of them; once to volatile nodes without a rate, once with a
rate of 20 events a second, once to stored ones. `events` are the values that listeners received in
a second, `frames` what they came in; the delay is from the sending of a value until it, or a later
one of its user, has been received. The server has one core, the clients another.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from listeners import connect
from load import cpu_s, measure, percentiles_ms
from realtime import WebSocket, frame, messages_per_second, request, socket_round_trips
from servers import LOAD_CORE, serve_treedb

RULES = {
    "rules": {
        ".read": True,
        ".write": True,
        "trip": {},
        "volatile": {"$user": {".volatile": True}},
        "rate20": {"$user": {".volatile": {"hz": 20}}},
        "stored": {},
    }
}
CONFIG = """
default_project = "demo"
[limits]
connections_per_address = 20000
streams_per_address = 20000
sockets_per_address = 20000
[streams]
keep_alive_s = 3600
[projects.demo]
rules_file = "rules.json"
"""
KINDS = ("volatile", "rate20", "stored")
VALUE = '"' + "x" * 48 + '"'
LOOKED_AT = 5
"""Listeners whose events are read; of the others the frames are counted."""
NUMBERS = re.compile(rb'"u(\d+)":\{"n":(\d+)|"path":"/u(\d+)","data":\{"n":(\d+)')


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--hz", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rules.json").write_text(json.dumps(RULES))
        with serve_treedb(folder, CONFIG) as base:
            for kind in ("volatile", "stored"):
                measure_writes(base, kind, wanted)
            pid = int(Path(folder, "pid").read_text())
            for kind in KINDS:
                print(f"board, {kind}: {measure_board(base, pid, kind, wanted)}", flush=True)


def measure_writes(base: str, kind: str, wanted: argparse.Namespace) -> None:
    """Print how many values are written in a second."""
    http, messages, trips = [], [], []
    for _ in range(wanted.rounds):
        http.append(measure(f"{base}/{kind}/one.json", 128, 1.0, LOAD_CORE, VALUE))
        body = f'{{"p":"/{kind}/two","d":{VALUE}}}'
        messages.append(messages_per_second(base, "p", body, 6400))
    for _ in range(wanted.rounds):
        trips += _trips(base, kind)
    print(
        f"writes, {kind}: {statistics.median(http):.0f}/s over HTTP, "
        f"{statistics.median(messages):.0f}/s in messages, "
        f"{1e6 * statistics.median(trips):.0f} µs for one after the other",
        flush=True,
    )


def _trips(base: str, kind: str) -> list[float]:
    if kind == "stored":
        return socket_round_trips(base, 300)
    client, seconds = WebSocket(base), []
    for number in range(300):
        message = request(number, "p", f'{{"p":"/{kind}/three","d":{VALUE}}}')
        began = time.perf_counter()
        client.send(message)
        client.receive(b'"r":%d' % number)
        seconds.append(time.perf_counter() - began)
    client.close()
    return seconds


def measure_board(base: str, pid: int, kind: str, wanted: argparse.Namespace) -> str:
    """Return what the users of one board see of each other."""
    with contextlib.ExitStack() as opened:
        users = [
            opened.enter_context(contextlib.closing(WebSocket(base))) for _ in range(wanted.users)
        ]
        listeners = [
            opened.enter_context(contextlib.closing(connect(base, kind)))
            for _ in range(wanted.users)
        ]
        board = Board(kind, users, listeners)
        used = cpu_s(pid) or 0.0
        board.run(wanted.hz, wanted.seconds)
        used = (cpu_s(pid) or 0.0) - used
        return f"{board.describe()}, {used:.1f} s of processor time"


class Board:
    """Users that write, and listeners that receive."""

    def __init__(self, kind: str, users: list[WebSocket], listeners: list[socket.socket]) -> None:
        self._kind, self._users = kind, users
        self._poll = select.epoll()
        self._listeners = {each.fileno(): each for each in listeners}
        self._answers = {each.socket.fileno(): each.socket for each in users}
        for number, each in (self._listeners | self._answers).items():
            each.setblocking(False)
            self._poll.register(number, select.EPOLLIN)
        self._looked_at = {each.fileno(): bytearray() for each in listeners[:LOOKED_AT]}
        self._sent: dict[tuple[int, int], float] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._delays: list[float] = []
        self._values = self._frames = self._written = 0
        self._took = 0.0

    def run(self, hz: float, seconds: float) -> None:
        """Write at a rate, and receive."""
        began = time.perf_counter()
        due = [began + number / (hz * len(self._users)) for number in range(len(self._users))]
        counts = [0] * len(self._users)
        while (now := time.perf_counter()) < began + seconds:
            for user, at in enumerate(due):
                if at <= now:
                    counts[user] += 1
                    self._write(user, counts[user], now)
                    due[user] = max(at + 1 / hz, now - 1 / hz)
            self._receive(0.001)
        self._took = time.perf_counter() - began
        end = time.perf_counter() + 2
        while time.perf_counter() < end:
            self._receive(0.05)

    def describe(self) -> str:
        """Return the figures."""
        p50, p99 = percentiles_ms(self._delays)
        late = len(self._sent) * len(self._looked_at) - len(self._delays)
        values = self._values / len(self._looked_at) * len(self._listeners) / self._took
        return (
            f"{self._written / self._took:.0f} writes/s, {values:.0f} events/s in "
            f"{self._frames / self._took:.0f} frames/s, delay p50 {p50:.1f} ms, p99 {p99:.1f} ms, "
            f"{late} not received"
        )

    def _write(self, user: int, number: int, now: float) -> None:
        body = f'{{"p":"/{self._kind}/u{user}","d":{{"n":{number},"x":{number % 900},"y":7}}}}'
        with contextlib.suppress(BlockingIOError):
            self._users[user].socket.send(frame(request(number, "p", body)))
            self._sent[user, number] = now
            self._written += 1

    def _receive(self, wait: float) -> None:
        for number, _ in self._poll.poll(wait):
            if number in self._answers:
                self._answers[number].recv(65_536)
                continue
            received = self._listeners[number].recv(65_536)
            self._frames += received.count(b"event: p")
            if number in self._looked_at:
                self._look(number, received)

    def _look(self, listener: int, received: bytes) -> None:
        text = self._looked_at[listener]
        text += received
        end = text.rfind(b"\n\n") + 2
        if end < 2:
            return
        now = time.perf_counter()
        for user, number in _found(bytes(text[:end])):
            self._values += 1
            before = self._seen.get((listener, user), 0)
            for each in range(before + 1, number + 1):
                at = self._sent.get((user, each))
                if at is not None:
                    self._delays.append(now - at)
            self._seen[listener, user] = max(before, number)
        del text[:end]


def _found(text: bytes) -> Iterator[tuple[int, int]]:
    for user, number, other, its in NUMBERS.findall(text):
        yield int(user or other), int(number or its)


if __name__ == "__main__":
    main()
