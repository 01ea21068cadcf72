"""Watched queries: what a write costs beside 0, 1, 100 and 1,000 of them.

    .venv/bin/python bench/watched_queries.py [--items N] [--seconds S] [--rounds N] [--rate N]
                                             [--most N]

One collection of small objects, a writer that sets one of them at a steady rate, and N streams,
each of another query of the collection: half of them select by an owner, half a range of numbers
with a limit. The processor time of the daemon for each write, the delay of its answer, and the
events that the streams receive are measured alternately, round by round; medians are printed, and
how they compare with the same writes beside one plain stream of one of the objects. Then 1,000
writes that are sent without waiting, so that they are committed in batches, are timed beside one
watched query, and beside none. The server has one core, the clients another.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from listeners import WAIT_S, dial, open_stream
from realtime import WebSocket, frame, request
from servers import put, serve_treedb
from streams import CONFIG, prepare

RULES = '{"rules": {".read": true, ".write": true, "items": {".indexOn": ["owner", "n"]}}}'
COUNTS = (0, 1, 100, 1000)
OWNERS = 500
BATCH = 1000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def item(choice: random.Random) -> dict[str, object]:
    """Return an object of the collection."""
    owner, number = f"u{choice.randrange(OWNERS)}", choice.randrange(1_000_000)
    return {"owner": owner, "n": number, "text": "x" * 40}


def query(number: int, count: int) -> str:
    """Return the parameters of one of so many queries; no two are the same."""
    if number % 2 == 0:
        return print_query(orderBy='"owner"', equalTo=f'"u{number // 2 % OWNERS}"')
    return print_query(orderBy='"n"', startAt=str(1_000_000 * number // count), limitToFirst="10")


def print_query(**parameters: str) -> str:
    """Return parameters as a URL has them."""
    return "&".join(f"{name}={quote(text)}" for name, text in parameters.items())


class Streams:
    """Open streams that are read in a thread, and whose events are counted."""

    def __init__(self, base: str, targets: list[str]) -> None:
        """Open them, and wait for the first event of each."""
        self.events = 0
        self._poll = select.epoll()
        self._sockets = {each.fileno(): each for each in (open_stream(base, t) for t in targets)}
        for number, each in self._sockets.items():
            each.setblocking(False)
            self._poll.register(number, select.EPOLLIN)
        self._is_over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect."""
        self._is_over = True
        self._thread.join()
        for each in self._sockets.values():
            each.close()

    def _read(self) -> None:
        while not self._is_over:
            for number, _ in self._poll.poll(0.05):
                self.events += self._sockets[number].recv(1 << 20).count(b"event: p")


class Writer:
    """One connection that sets objects of the collection, a random one each time."""

    def __init__(self, base: str, items: int) -> None:
        self._socket = dial(base)
        self._host = urlsplit(base).netloc
        self._items = items
        self._random = random.Random(1)

    def write(self) -> float:
        """Write, and wait for the answer; return the seconds."""
        body = json.dumps(item(self._random))
        target = f"/items/k{self._random.randrange(self._items):05}.json?print=silent"
        head = f"PUT {target} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        began = time.perf_counter()
        self._socket.sendall((head + body).encode())
        if not self._socket.recv(65_536).startswith(b"HTTP/1.1 204"):
            raise ConnectionError("A write failed.")
        return time.perf_counter() - began

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


def cpu_seconds(folder: str) -> float:
    """Return the processor time that the daemon of a folder has used."""
    stat = Path("/proc", Path(folder, "pid").read_text(), "stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_S


def pace(writer: Writer, rate: int, seconds: float) -> list[float]:
    """Write at a steady rate for some seconds, or as fast as that is possible."""
    due, delays = time.perf_counter(), list[float]()
    for _ in range(round(rate * seconds)):
        time.sleep(max(0.0, due - time.perf_counter()))
        delays.append(writer.write())
        due += 1 / rate
    return delays


def time_batch(base: str, items: int) -> float:
    """Return the seconds until a thousand writes that do not wait are all acknowledged."""
    choice = random.Random(2)
    client = WebSocket(base)
    messages = []
    for number in range(BATCH):
        body = json.dumps({"p": f"items/k{choice.randrange(items):05}", "d": item(choice)})
        messages.append(frame(request(number + 1, "p", body)))
    began = time.perf_counter()
    client.socket.sendall(b"".join(messages))
    client.socket.settimeout(WAIT_S)
    answered, rest = 0, b""
    while answered < BATCH:
        received = rest + client.socket.recv(1 << 20)
        answered += received.count(b'"s":"ok"')
        rest = received[-7:] if not received.endswith(b'"s":"ok"') else b""
        answered -= rest.count(b'"s":"ok"')
    seconds = time.perf_counter() - began
    client.close()
    return seconds


@contextlib.contextmanager
def opened(base: str, targets: list[str]) -> Iterator[Streams]:
    """Open streams within a block."""
    streams = Streams(base, targets)
    try:
        yield streams
    finally:
        streams.close()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--most", type=int, default=1000, help="queries that are watched at once")
    wanted = parser.parse_args()
    prepare()
    found: dict[str, list[tuple[float, float, float]]] = {}
    batches: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, serve_treedb(folder, CONFIG) as base:
        Path(folder, "open.json").write_text(RULES)
        os.kill(int(Path(folder, "pid").read_text()), 1)
        fill(base, wanted.items)
        for _ in range(wanted.rounds):
            for name, targets in cases(wanted.most):
                with opened(base, targets) as streams:
                    found.setdefault(name, []).append(measure(base, folder, streams, wanted))
            for name, targets in batch_cases():
                with opened(base, targets):
                    batches.setdefault(name, []).append(time_batch(base, wanted.items))
    show(found, batches)


def fill(base: str, items: int) -> None:
    """Write the collection."""
    choice = random.Random(0)
    objects = {f"k{number:05}": item(choice) for number in range(items)}
    put(f"{base}/items.json", json.dumps(objects))


def cases(most: int) -> Iterator[tuple[str, list[str]]]:
    """Yield what is watched, and how it is called."""
    yield "1 plain stream", ["/items/k00000.json"]
    for count in (count for count in COUNTS if count <= most):
        yield f"{count} queries", [f"/items.json?{query(at, count)}" for at in range(count)]


def batch_cases() -> Iterator[tuple[str, list[str]]]:
    """Yield the same for the writes that do not wait."""
    yield "nothing watched", []
    yield "a query with a limit", ["/items.json?" + print_query(orderBy='"n"', limitToLast="20")]
    yield "a query without a limit", ["/items.json?" + print_query(orderBy='"n"', startAt="900000")]


def measure(
    base: str, folder: str, streams: Streams, wanted: argparse.Namespace
) -> tuple[float, float, float]:
    """Return the processor time in ms, the delay in ms, and the events, for one write."""
    with contextlib.closing(Writer(base, wanted.items)) as writer:
        pace(writer, wanted.rate, 0.2)
        events, used = streams.events, cpu_seconds(folder)
        delays = pace(writer, wanted.rate, wanted.seconds)
        used = cpu_seconds(folder) - used
        count = len(delays)
        return (
            1000 * used / count,
            1000 * statistics.median(delays),
            (streams.events - events) / count,
        )


def show(
    found: dict[str, list[tuple[float, float, float]]], batches: dict[str, list[float]]
) -> None:
    """Print medians and ratios."""
    reference = statistics.median(each[0] for each in found["1 plain stream"])
    print(f"{'watched':26}{'CPU ms':>10}{'ratio':>8}{'delay ms':>10}{'events':>8}   for each write")
    for name, measured in found.items():
        cpu, delay, events = (statistics.median(each[at] for each in measured) for at in range(3))
        print(f"{name:26}{cpu:10.3f}{cpu / reference:8.2f}{delay:10.2f}{events:8.2f}")
    alone = statistics.median(batches["nothing watched"])
    for name, seconds in batches.items():
        took = statistics.median(seconds)
        print(f"{BATCH} writes at once, {name}: {took:.3f} s, ratio {took / alone:.2f}")


if __name__ == "__main__":
    main()
