"""How late nodes go whose time is over, and how long others wait while very many do.

    .venv/bin/python bench/expiry.py [--nodes N] [--rate N] [--seconds S] [--rounds N]

First `--rate` nodes a second go for `--seconds`: a stream receives when each has gone, and printed
is how late that was. None may be early, else the run ends with status 1. Then `--nodes` nodes go in
one moment, while one client writes a leaf of the same database every few milliseconds, from a
process of its own: printed are its times without expiry, and while the nodes go, as a ratio, and
how many nodes went in a second. In the end PUTs are compared that have a `.ttl` and that have none.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from servers import put, serve_treedb

RULES = {
    "rules": {
        ".read": True,
        ".write": True,
        "nodes": {"$id": {".ttl": "data.child('at').val()"}},
        "seconds": {"$id": {".ttl": 3600}},
    }
}
CONFIG = """
default_project = "demo"
[projects.demo]
rules_file = "ttl.json"
"""
CHUNK = 5000
PACE_S = 0.004
LEAD_S = 3.0
"""Seconds that a chunk of nodes is written before the first of them goes."""
ALONE_S = 3.0
"""Seconds that others write before many nodes are written."""
FILL_RATE = 4000
"""Nodes that are written in a second, or more."""
POLL_S = 0.25
WAIT_S = 1800.0


def now_ms() -> float:
    """Return the wall clock in milliseconds."""
    return time.time() * 1000


def connect(url: str) -> http.client.HTTPConnection:
    """Return a connection to a server."""
    address = urlsplit(url)
    return http.client.HTTPConnection(address.hostname or "", address.port, timeout=WAIT_S)


def call(client: http.client.HTTPConnection, method: str, path: str, body: object = None) -> bytes:
    """Make a request, and return the body of the response."""
    client.request(method, path, None if body is None else json.dumps(body))
    response = client.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{method} {path}: {response.status} {content[:200]!r}")
    return content


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of them are."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


# How late nodes go.


class Stream:
    """Receives which nodes have gone, and notes how late each was.

    Attributes:
        late_ms: how late each was, in the order in which they went.

    """

    def __init__(self, url: str) -> None:
        """Follow `/nodes`."""
        self.late_ms: list[float] = []
        self.due: dict[str, int] = {}
        self._client = connect(url)
        self._client.request("GET", "/nodes.json", headers={"Accept": "text/event-stream"})
        self._response = self._client.getresponse()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._response:
            if line.startswith(b"data: {"):
                self._note(json.loads(line[6:]), now_ms())

    def _note(self, event: dict[str, object], now: float) -> None:
        data, path = event["data"], str(event["path"]).strip("/")
        gone = data if isinstance(data, dict) else {}
        if path:
            gone = {path: data}
        for key, value in gone.items():
            if value is None and key in self.due:
                self.late_ms.append(now - self.due.pop(key))


def measure_lateness(url: str, rate: int, seconds: float) -> bool:
    """Make `rate` nodes a second go; print how late they were; return whether none was early."""
    stream, client = Stream(url), connect(url)
    count = int(rate * seconds)
    begin = int(now_ms() + LEAD_S * 1000)
    for at in range(0, count, rate):
        due = {f"n{n:08}": begin + n * 1000 // rate for n in range(at, min(at + rate, count))}
        stream.due.update(due)
        call(client, "PATCH", "/nodes.json", {key: {"at": time} for key, time in due.items()})
    end = time.monotonic() + seconds + WAIT_S
    while len(stream.late_ms) < count and time.monotonic() < end:
        time.sleep(0.05)
    late = stream.late_ms
    print(
        f"{rate} nodes a second: {len(late)} of {count} went, late by {statistics.median(late):.0f}"
        f" ms at the median, {quantile(late, 0.99):.0f} ms at p99, {max(late):.0f} ms at most; "
        f"the earliest by {min(late):.0f} ms"
    )
    return min(late) >= 0 and len(late) == count


# How long others wait.


def write_beside(url: str, connection: Connection) -> None:
    """Write a leaf every few milliseconds until something is received; send when and how long."""
    client = connect(url)
    took: list[tuple[float, float]] = []
    while not connection.poll():
        begin = time.time()
        call(client, "PUT", "/beside.json", len(took))
        took.append((begin, time.time() - begin))
        time.sleep(max(0.0, PACE_S - took[-1][1]))
    connection.send(took)


def fill(url: str, count: int, due_ms: int) -> None:
    """Write nodes that all go at one time."""
    client = connect(url)
    for at in range(0, count, CHUNK):
        nodes = {f"m{n:08}": {"at": due_ms, "text": "x" * 40} for n in range(at, at + CHUNK)}
        call(client, "PATCH", "/nodes.json", dict(list(nodes.items())[: count - at]))


def is_empty(client: http.client.HTTPConnection) -> bool:
    """Return whether all nodes have gone."""
    return call(client, "GET", "/nodes.json?shallow=true&limitToFirst=1") in (
        b"null",
        b"{}",
    )


def measure_waiting(url: str, count: int) -> None:
    """Make many nodes go in one moment; print the times of one who writes beside."""
    here, there = multiprocessing.Pipe()
    beside = multiprocessing.Process(target=write_beside, args=(url, there))
    beside.start()
    time.sleep(ALONE_S)
    begun = time.time()
    due_s = begun + 2 + count / FILL_RATE
    fill(url, count, int(due_s * 1000))
    filled = time.time()
    client = connect(url)
    time.sleep(max(0.0, due_s - filled) + POLL_S)
    while not is_empty(client):
        time.sleep(POLL_S)
    end_s = time.time()
    here.send(None)
    took: list[tuple[float, float]] = here.recv()
    beside.join()
    alone = [1000 * each for at, each in took if at < begun]
    swept = [1000 * each for at, each in took if max(due_s, filled) <= at <= end_s]
    filled_s = filled - begun
    print(f"{count} nodes written in {filled_s:.0f} s; they went in {end_s - due_s:.1f} s")
    for part, name in ((0.5, "median"), (0.99, "p99"), (1.0, "most")):
        before, during = quantile(alone, part), quantile(swept, part)
        print(
            f"a PUT beside {count} nodes that go, {name}: {before:.1f} ms before, "
            f"{during:.1f} ms meanwhile, ratio {during / before:.2f}"
        )


# What a PUT costs.


def time_puts(url: str, rounds: int) -> Iterator[tuple[str, float]]:
    """Yield how long PUTs take without and with a `.ttl` on their way, in turns."""
    client = connect(url)
    paths = {"without": "/plain/{}.json", "seconds": "/seconds/{}.json", "at": "/nodes/{}.json"}
    later = int(now_ms() + 3_600_000)
    for turn in range(rounds):
        for name, path in paths.items():
            begin = time.perf_counter()
            call(client, "PUT", path.format(f"k{turn % 500}"), {"at": later, "text": "x"})
            yield name, time.perf_counter() - begin


def measure_puts(url: str, rounds: int) -> None:
    """Print what PUTs take that have a `.ttl`, beside one that has none."""
    took: dict[str, list[float]] = {}
    for name, seconds in time_puts(url, rounds):
        took.setdefault(name, []).append(seconds)
    plain = statistics.median(took["without"])
    for name in ("seconds", "at"):
        ratio = statistics.median(took[name]) / plain
        print(f"a PUT with a .ttl ({name}), beside one without: {ratio:.2f}")


def main() -> None:
    """Run all, and print what there was."""
    parser = argparse.ArgumentParser(description="Make nodes go; see how late, and who waits.")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/ttl.json", "w") as file:
            json.dump(RULES, file)
        with serve_treedb(folder, CONFIG) as url:
            put(f"{url}/beside.json", "0")
            measure_puts(url, options.rounds)
            put(f"{url}/nodes.json", "null")
            is_right = measure_lateness(url, options.rate, options.seconds)
            measure_waiting(url, options.nodes)
    if not is_right:
        sys.exit(1)


if __name__ == "__main__":
    main()
