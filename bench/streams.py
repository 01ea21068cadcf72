"""Streams: what one write to many listeners costs, and what they cost while nothing is written.

    .venv/bin/python bench/streams.py [--listeners N,N] [--events N] [--seconds S] [--rounds N]

One writer, N listeners: of one path, and of N paths that one PATCH sets. Beside them stands the
same fan-out by the least `twisted.web` resource, with the same bytes. A write is sent when all have
heard the one before. Servers have one core, the listeners and the writer another; all are measured
in turn, round by round, and what is printed are medians and ratios. `aim` is what an idle
stream is to take at most.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import socket
import ssl
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from load import measure
from servers import LOAD_CORE, put, serve_reference, serve_treedb

# Listeners here share one address and are to be silent while nothing is written.
CONFIG = """
default_project = "demo"
[limits]
connections_per_address = 20000
streams_per_address = 20000
[streams]
keep_alive_s = 3600
[projects.demo]
rules_file = "open.json"
"""
VALUE = "x" * 60
FRAME = b'event: put\ndata: {"path":"/","data":"%s"}\n\n' % VALUE.encode()
CHUNK_BYTES = len(b"%x\r\n%b\r\n" % (len(FRAME), FRAME))
PATIENCE_S = 30.0
WARM, MOST_IDLE = 100, 2000
AIMS_KIB = {False: 12, True: 60}
PUT_CONNECTIONS = 32
RESET = struct.pack("ii", 1, 0)  # closes without a trace, so that ports do not run out


@attrs.define
class Findings:
    """What was measured of one server in one case."""

    rates: list[float] = attrs.field(factory=list)
    delays_s: list[float] = attrs.field(factory=list)
    busy: list[float] = attrs.field(factory=list)
    """The share of its core that the client used; near 1 it would have measured itself."""

    @property
    def rate(self) -> float:
        """Events a second, the median of the rounds."""
        return statistics.median(self.rates)

    def delay_ms(self, percent: int) -> float:
        """Return a percentile of the delays."""
        return 1000 * statistics.quantiles(self.delays_s, n=100)[percent - 1]


class Listeners:
    """Open streams, which are heard but not understood: arrivals are told by counting bytes."""

    def __init__(self, base: str, paths: list[str]) -> None:
        """Open one stream for each path and wait for the first event of each."""
        self._sockets = {each.fileno(): each for each in (connect(base, path) for path in paths)}
        self._poll = select.epoll()
        for number, each in self._sockets.items():
            each.setblocking(False)
            self._poll.register(number, select.EPOLLIN)

    def hear(self, since: float) -> list[float]:
        """Wait until each has got one more event; return the delays since a moment, in seconds."""
        left = dict.fromkeys(self._sockets, CHUNK_BYTES)
        receive = {number: each.recv_into for number, each in self._sockets.items()}
        buffer = bytearray(65_536)
        delays: list[float] = []
        while len(delays) < len(left):
            ready = self._poll.poll(PATIENCE_S)
            if not ready:
                raise TimeoutError(f"{len(left) - len(delays)} listeners heard nothing.")
            for number, _ in ready:
                left[number] -= receive[number](buffer)
                if not left[number]:
                    delays.append(time.perf_counter() - since)
        if any(left.values()):
            raise ValueError("A listener heard more than it should.")
        return delays

    def close(self) -> None:
        """Leave."""
        self._poll.close()
        for each in self._sockets.values():
            each.close()


def connect(base: str, path: str) -> socket.socket:
    """Open a stream and read its beginning."""
    address = urlsplit(base)
    opened = socket.create_connection((address.hostname, address.port), PATIENCE_S)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    if address.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        opened = context.wrap_socket(opened)
    head = f"GET /{path}.json HTTP/1.1\r\nHost: {address.netloc}\r\nAccept: text/event-stream\r\n"
    opened.sendall(f"{head}\r\n".encode())
    received = b""
    while not received.endswith(b"\n\n\r\n"):
        more = opened.recv(65_536)
        if not more or b"200" not in (received + more)[:15]:
            raise ConnectionError(f"No stream was opened: {received + more!r}")
        received += more
    return opened


class Writer:
    """One connection that writes."""

    def __init__(self, base: str, method: str, path: str, body: bytes) -> None:
        """Write the same each time."""
        address = urlsplit(base)
        self._socket = socket.create_connection((address.hostname, address.port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"{method} /{path}.json?print=silent HTTP/1.1\r\nHost: {address.netloc}\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send(self) -> float:
        """Send a write; return when."""
        sent_at = time.perf_counter()
        self._socket.sendall(self._request)
        return sent_at

    def receive(self) -> None:
        """Read the answer, which is short."""
        answer = self._socket.recv(65_536)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise ConnectionError(f"A write failed: {answer!r}")

    def close(self) -> None:
        """Leave."""
        self._socket.close()


@contextlib.contextmanager
def listening(base: str, paths: list[str]) -> Iterator[Listeners]:
    """Listen within a block."""
    with contextlib.closing(Listeners(base, paths)) as listeners:
        yield listeners


def fan_out(writer: Writer, listeners: Listeners, writes: int, found: Findings) -> None:
    """Write some times, each time to all listeners, and note how it went."""
    start, used, heard = time.perf_counter(), time.process_time(), 0
    for _ in range(writes):
        delays = listeners.hear(writer.send())
        writer.receive()
        found.delays_s += delays
        heard += len(delays)
    took = time.perf_counter() - start
    found.rates.append(heard / took)
    found.busy.append((time.process_time() - used) / took)


def compare(
    treedb: str, reference: str, count: int, rounds: int, events: int, *, shared: bool
) -> None:
    """Measure one case with both servers and print it; a round has about so many `events`."""
    names = [f"k{number:05}" for number in range(count)]
    paths = ["fan/one"] * count if shared else [f"fan/many/{name}" for name in names]
    writes = max(2, events // count)
    found = {"treedb": Findings(), "twisted.web": Findings()}
    with contextlib.ExitStack() as stack:
        heard = {
            "treedb": stack.enter_context(listening(treedb, paths)),
            "twisted.web": stack.enter_context(listening(reference, paths)),
        }
        if shared:
            writer = Writer(treedb, "PUT", "fan/one", json.dumps(VALUE).encode())
        else:
            body = json.dumps(dict.fromkeys(names, VALUE)).encode()
            writer = Writer(treedb, "PATCH", "fan/many", body)
        writers = {"treedb": writer, "twisted.web": Writer(reference, "PUT", "", FRAME)}
        for writer in writers.values():
            stack.callback(writer.close)
        for name, listeners in heard.items():
            fan_out(writers[name], listeners, 2, Findings())
        for _ in range(rounds):
            for name, listeners in heard.items():
                fan_out(writers[name], listeners, writes, found[name])
    for name, each in found.items():
        print(
            f"{'one path' if shared else 'N paths':10}{count:6,}  {name:12}{each.rate:10,.0f}/s"
            f"{each.delay_ms(50):10.2f} ms{each.delay_ms(99):10.2f} ms"
            f"{each.rate / found['twisted.web'].rate:8.2f}{statistics.median(each.busy):8.2f}",
            flush=True,
        )


def measure_memory(count: int, *, secure: bool) -> float:
    """Return the bytes that each of so many silent streams of one path adds to a daemon."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, CONFIG, secure=secure) as base,
        listening(base, ["fan/one"] * WARM),
    ):
        before = resident_bytes(folder)
        with listening(base, ["fan/one"] * count):
            return (resident_bytes(folder) - before) / count


def resident_bytes(folder: str) -> int:
    """Return the memory of the daemon of a folder."""
    pages = Path("/proc", Path(folder, "pid").read_text(), "statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def measure_writes(base: str, folder: str, count: int, rounds: int, seconds: float) -> None:
    """Print the rate of small writes with and without listeners elsewhere in the tree."""
    url = f"{base}/apps/shop/users/u0000001/name.json"
    found: dict[int, list[float]] = {0: [], count: []}
    for _ in range(rounds):
        for listeners, rates in found.items():
            await_silence(folder)
            with listening(base, [f"fan/many/k{number:05}" for number in range(listeners)]):
                rates.append(measure(url, PUT_CONNECTIONS, seconds, LOAD_CORE, '"small"'))
    without, beside = (statistics.median(rates) for rates in found.values())
    print(
        f"\nPUT, {PUT_CONNECTIONS} connections: {without:,.0f}/s alone, {beside:,.0f}/s beside "
        f"{count:,} listeners elsewhere: {beside / without:.2f}"
    )


def await_silence(folder: str) -> None:
    """Wait until the daemon of a folder has seen that those before have left."""
    files = Path("/proc", Path(folder, "pid").read_text(), "fd")
    until = time.monotonic() + PATIENCE_S
    while len(os.listdir(files)) > WARM and time.monotonic() < until:
        time.sleep(0.1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listeners", default="100,1000,5000")
    parser.add_argument("--events", type=int, default=20_000, help="of a round")
    parser.add_argument("--seconds", type=float, default=2, help="of the writes beside listeners")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    counts = [int(count) for count in wanted.listeners.split(",")]
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {LOAD_CORE})
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, CONFIG) as treedb,
        serve_reference("fanout") as reference,
    ):
        put(f"{treedb}/fan/one.json", '"nothing"')
        print(f"{'':30}{'events':>12}{'p50':>13}{'p99':>13}{'ratio':>8}{'client':>8}")
        for shared in (True, False):
            for count in counts:
                compare(treedb, reference, count, wanted.rounds, wanted.events, shared=shared)
        measure_writes(treedb, folder, max(counts), wanted.rounds, wanted.seconds)
    for secure, aim in AIMS_KIB.items():
        kib = measure_memory(min(max(counts), MOST_IDLE), secure=secure) / 1024
        print(f"an idle stream {'over TLS' if secure else 'in plain'}: {kib:.1f} KiB (aim {aim})")


if __name__ == "__main__":
    main()
