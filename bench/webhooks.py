"""Webhooks: how many events a second, and whether a bad receiver and kills lose or mix up any.

    .venv/bin/python bench/webhooks.py [--events N] [--paths N] [--kills N] [--away SECONDS]

First a receiver that accepts everything: the rate of events, of one hook. Then one that fails half
the time, hangs now and then, answers slowly, and is away twice, while the daemon is killed: each
event of each path has to come at least once, and in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from tests.access import admin, at, write_secret
from tests.daemon import Daemon

CONFIG = """
[webhooks]
allow = ["127.0.0.1/32"]
first_wait_s = 0.1
longest_wait_s = 2.0
timeout_s = 2.0
attempts = 1000
[projects.shop]
secret_files = ["shop.secret"]
[[projects.shop.webhooks]]
name = "orders"
on = "/orders/$id"
url = "http://127.0.0.1:{port}/"
secret_file = "shop.secret"
"""
ADMIN = admin("shop")
AT_ONCE = 50
"""Events of one write."""


class Receiver:
    """A receiver in a thread of its own."""

    def __init__(self, *, is_bad: bool) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.accepted: dict[str, set[int]] = defaultdict(set)
        self.requests = 0
        self.is_away = False
        self._is_bad = is_bad
        self._random = random.Random(7)
        self._loop = asyncio.new_event_loop()
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = server.sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    @property
    def done(self) -> int:
        """How many events were accepted."""
        return sum(map(len, list(self.accepted.values())))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                body = await reader.readexactly(length)
                if self.is_away or not await self._take(json.loads(body), writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def _take(self, event: dict[str, object], writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return False to close the connection without an answer."""
        path, value = str(event["path"]), event["after"]
        assert isinstance(value, int)
        self.requests += 1
        self.seen[path].append(value)
        chance = self._random.random() if self._is_bad else 1.0
        if chance < 0.002:
            await asyncio.sleep(5)
            return False
        if chance < 0.02:
            await asyncio.sleep(self._random.random() / 2)
        if 0.02 < chance < 0.1:
            return False
        if 0.1 < chance < 0.5:
            writer.write(b"HTTP/1.1 500 Bad\r\nContent-Length: 0\r\n\r\n")
            return True
        self.accepted[path].add(value)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True


def write(daemon: Daemon, first: int, count: int, paths: int) -> None:
    """Write `count` values, each of another path, in as few writes as there are values of one."""
    values: dict[str, int] = {}
    for number in range(first, first + count):
        values[f"k{number % paths}"] = number
        if len(values) == min(AT_ONCE, paths) or number == first + count - 1:
            target = at("/orders.json", ADMIN, ns="shop")
            assert daemon.request("PATCH", target, json.dumps(values)).status == 200
            values = {}


def wait(receiver: Receiver, count: int) -> None:
    """Wait until so many events were accepted."""
    while receiver.done < count:
        time.sleep(0.01)


def run(folder: Path, receiver: Receiver) -> Daemon:
    """Return a daemon whose hook calls a receiver."""
    write_secret(folder, "shop")
    return Daemon(folder, config=CONFIG.format(port=receiver.port))


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Print the rate of events to a receiver that accepts everything."""
    receiver = Receiver(is_bad=False)
    with run(folder, receiver) as daemon:
        write(daemon, 0, 1, options.paths)
        wait(receiver, 1)
        began = time.perf_counter()
        write(daemon, 1, options.events, options.paths)
        written = time.perf_counter() - began
        wait(receiver, options.events + 1)
        seconds = time.perf_counter() - began
    print(
        f"{options.events:,} events accepted in {seconds:.1f} s: {options.events / seconds:,.0f}/s "
        f"(written in {written:.1f} s)"
    )


def torture(folder: Path, options: argparse.Namespace) -> None:
    """Print what a bad receiver and kills have done."""
    receiver = Receiver(is_bad=True)
    began = time.perf_counter()
    with run(folder, receiver) as daemon:
        size = options.events // (options.kills + 1)
        for part in range(options.kills + 1):
            first = part * size
            count = options.events - first if part == options.kills else size
            write(daemon, first, count, options.paths)
            if part in (1, 2):
                receiver.is_away = True
                time.sleep(options.away)
                receiver.is_away = False
            if part < options.kills:
                wait(receiver, first + size // 2)
                daemon.kill()
                daemon.start()
        wait(receiver, options.events)
    seconds = time.perf_counter() - began
    expected = {
        f"/orders/k{key}": [*range(key, options.events, options.paths)]
        for key in range(options.paths)
    }
    for path, values in expected.items():
        firsts = list(dict.fromkeys(receiver.seen[path]))
        assert firsts == values, f"{path}: {firsts} is not {values}"
        assert receiver.accepted[path] == set(values), path
    print(
        f"{options.events:,} events to a bad receiver, {options.kills} kills: {seconds:.1f} s, "
        f"{receiver.requests:,} requests; each came, in order"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--paths", type=int, default=200)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--away", type=float, default=10.0, help="seconds")
    options = parser.parse_args()
    for part in (measure, torture):
        with tempfile.TemporaryDirectory() as folder:
            part(Path(folder), options)


if __name__ == "__main__":
    main()
