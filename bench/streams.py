"""Streams: the cost of one write to many listeners, and of listeners while nothing is written.

    .venv/bin/python bench/streams.py [--listeners N,N] [--events N] [--seconds S] [--rounds N]

One writer, N listeners: of one path, and of N paths that one PATCH sets. The reference is the same
fan-out by the smallest `twisted.web` resource, with the same bytes. A write is sent when all have
received the one before. Servers share one core, the listeners and the writer another; all are
measured in turn, round by round, and medians and ratios are printed. `aim` is the most memory that
an idle stream should take.
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

# All listeners here share one address, and receive no keep-alive during a measurement.
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
WAIT_S = 30.0
WARM, MAX_IDLE = 100, 2000
AIMS_KIB = {False: 12, True: 60}
PUT_CONNECTIONS = 32
RESET = struct.pack("ii", 1, 0)  # closes without TIME_WAIT, so that ports do not run out


@attrs.define
class Measured:
    """The measurements of one server in one case."""

    rates: list[float] = attrs.field(factory=list)
    delays_s: list[float] = attrs.field(factory=list)
    busy: list[float] = attrs.field(factory=list)
    """The share of its core that the client used; near 1 the client is the bottleneck."""

    @property
    def rate(self) -> float:
        """Events a second, the median of the rounds."""
        return statistics.median(self.rates)

    def delay_ms(self, percent: int) -> float:
        """Return a percentile of the delays."""
        return 1000 * statistics.quantiles(self.delays_s, n=100)[percent - 1]


class Listeners:
    """Open streams; events are not parsed, only their bytes counted."""

    def __init__(self, base: str, paths: list[str]) -> None:
        """Open one stream for each path and wait for the first event of each."""
        self._sockets = {each.fileno(): each for each in (connect(base, path) for path in paths)}
        self._poll = select.epoll()
        for number, each in self._sockets.items():
            each.setblocking(False)
            self._poll.register(number, select.EPOLLIN)

    def receive(self, since: float) -> list[float]:
        """Wait until each has received one more event; return the delays since then, in seconds."""
        missing = dict.fromkeys(self._sockets, CHUNK_BYTES)
        receive = {number: each.recv_into for number, each in self._sockets.items()}
        buffer = bytearray(65_536)
        delays: list[float] = []
        while len(delays) < len(missing):
            ready = self._poll.poll(WAIT_S)
            if not ready:
                raise TimeoutError(f"{len(missing) - len(delays)} listeners received nothing.")
            for number, _ in ready:
                missing[number] -= receive[number](buffer)
                if not missing[number]:
                    delays.append(time.perf_counter() - since)
        if any(missing.values()):
            raise ValueError("A listener received more than one event.")
        return delays

    def close(self) -> None:
        """Disconnect."""
        self._poll.close()
        for each in self._sockets.values():
            each.close()


def connect(base: str, path: str) -> socket.socket:
    """Open a stream and receive its first event."""
    address = urlsplit(base)
    opened = socket.create_connection((address.hostname, address.port), WAIT_S)
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
        """Prepare a write that is the same each time."""
        address = urlsplit(base)
        self._socket = socket.create_connection((address.hostname, address.port), WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"{method} /{path}.json?print=silent HTTP/1.1\r\nHost: {address.netloc}\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send(self) -> float:
        """Send the write; return the time."""
        sent_at = time.perf_counter()
        self._socket.sendall(self._request)
        return sent_at

    def receive(self) -> None:
        """Receive the response, which is short."""
        response = self._socket.recv(65_536)
        if not response.startswith(b"HTTP/1.1 2"):
            raise ConnectionError(f"A write failed: {response!r}")

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


@contextlib.contextmanager
def listening(base: str, paths: list[str]) -> Iterator[Listeners]:
    """Listen within a block."""
    with contextlib.closing(Listeners(base, paths)) as listeners:
        yield listeners


def fan_out(writer: Writer, listeners: Listeners, writes: int, found: Measured) -> None:
    """Write several times, each time to all listeners, and record the measurements."""
    start, used, received = time.perf_counter(), time.process_time(), 0
    for _ in range(writes):
        delays = listeners.receive(writer.send())
        writer.receive()
        found.delays_s += delays
        received += len(delays)
    took = time.perf_counter() - start
    found.rates.append(received / took)
    found.busy.append((time.process_time() - used) / took)


def compare(
    treedb: str, reference: str, count: int, rounds: int, events: int, *, shared: bool
) -> None:
    """Measure one case with both servers and print it; a round has about `events` events."""
    names = [f"k{number:05}" for number in range(count)]
    paths = ["fan/one"] * count if shared else [f"fan/many/{name}" for name in names]
    writes = max(2, events // count)
    found = {"treedb": Measured(), "twisted.web": Measured()}
    with contextlib.ExitStack() as stack:
        opened = {
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
        for name, listeners in opened.items():
            fan_out(writers[name], listeners, 2, Measured())
        for _ in range(rounds):
            for name, listeners in opened.items():
                fan_out(writers[name], listeners, writes, found[name])
    for name, each in found.items():
        print(
            f"{'one path' if shared else 'N paths':10}{count:6,}  {name:12}{each.rate:10,.0f}/s"
            f"{each.delay_ms(50):10.2f} ms{each.delay_ms(99):10.2f} ms"
            f"{each.rate / found['twisted.web'].rate:8.2f}{statistics.median(each.busy):8.2f}",
            flush=True,
        )


def measure_memory(count: int, *, secure: bool) -> float:
    """Return the bytes that each of `count` idle streams of one path adds to a daemon."""
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
            await_disconnects(folder)
            with listening(base, [f"fan/many/k{number:05}" for number in range(listeners)]):
                rates.append(measure(url, PUT_CONNECTIONS, seconds, LOAD_CORE, '"small"'))
    without, beside = (statistics.median(rates) for rates in found.values())
    print(
        f"\nPUT, {PUT_CONNECTIONS} connections: {without:,.0f}/s alone, {beside:,.0f}/s beside "
        f"{count:,} listeners elsewhere: {beside / without:.2f}"
    )


def await_disconnects(folder: str) -> None:
    """Wait until the daemon of a folder has closed the connections of earlier listeners."""
    files = Path("/proc", Path(folder, "pid").read_text(), "fd")
    until = time.monotonic() + WAIT_S
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
        kib = measure_memory(min(max(counts), MAX_IDLE), secure=secure) / 1024
        print(f"an idle stream {'over TLS' if secure else 'in plain'}: {kib:.1f} KiB (aim {aim})")


if __name__ == "__main__":
    main()
