"""The real-time protocol beside the REST interface: events, round trips, messages.

    .venv/bin/python bench/realtime.py [--listeners N] [--events N] [--requests N] [--rounds N]

Events: one value is written over HTTP, and N listeners of its path receive it, once as streams of
Server-Sent Events and once as listens over WebSockets. Round trips: one client puts a value and
waits until it is durable, over HTTP and over a WebSocket. Messages: 32 WebSockets send requests
without waiting, and receive an answer for each. The server has one core, the clients another; all
is measured alternately, round by round, and medians and ratios are printed. `aim` is the ratio that
the WebSocket should reach: of events at least 0.8, of the time of a round trip at most 1.2.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from listeners import RESET, VALUE, WAIT_S, Listeners, Writer, dial
from servers import LOAD_CORE, OPEN_RULES, serve_treedb

CONFIG = """
default_project = "demo"
[limits]
connections_per_address = 20000
streams_per_address = 20000
sockets_per_address = 20000
[streams]
keep_alive_s = 3600
[projects.demo]
rules_file = "open.json"
"""
PIPES = 32
PIECE = 16_384
KEY = b"AAAAAAAAAAAAAAAAAAAAAA=="


class WebSocket:
    """A client that sends and counts frames."""

    def __init__(self, base: str, query: str = "") -> None:
        """Open a session, of the database that a query names, and receive its first message."""
        self.socket = dial(base)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        host = urlsplit(base).netloc.encode()
        self.socket.sendall(
            b"GET /.ws?v=5%b HTTP/1.1\r\nHost: %b\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
            % (query.encode(), host, KEY)
        )
        received = b""
        while b"\r\n\r\n" not in received or not received.endswith(b"}}}"):
            received += self.socket.recv(65_536)

    def send(self, message: bytes) -> None:
        """Send one message."""
        self.socket.sendall(frame(message))

    def send_in_pieces(self, message: bytes) -> None:
        """Send a long message as clients do."""
        pieces = [message[at : at + PIECE] for at in range(0, len(message), PIECE)]
        self.send(b"%d" % len(pieces))
        self.socket.sendall(b"".join(map(frame, pieces)))

    def drain(self) -> None:
        """Receive until it is closed."""
        with contextlib.suppress(OSError):
            while self.socket.recv(1 << 20):
                pass

    def receive(self, end: bytes) -> bytes:
        """Receive until some bytes."""
        received = b""
        while end not in received:
            more = self.socket.recv(65_536)
            if not more:
                raise ConnectionError("The server has closed a WebSocket.")
            received += more
        return received

    def close(self) -> None:
        """Disconnect."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # who receives from it is woken
        self.socket.close()


def frame(message: bytes) -> bytes:
    """Return a frame of a client, masked with zeros."""
    size = len(message)
    if size < 126:
        return struct.pack(">BB4x", 0x81, 0x80 | size) + message
    return struct.pack(">BBH4x", 0x81, 0x80 | 126, size) + message


def request(number: int, action: str, body: str) -> bytes:
    """Return a request."""
    return f'{{"t":"d","d":{{"r":{number},"a":"{action}","b":{body}}}}}'.encode()


def listen(base: str, path: str) -> socket.socket:
    """Open a WebSocket that listens at a path."""
    opened = WebSocket(base)
    opened.send(request(1, "q", f'{{"p":"/{path}","h":""}}'))
    opened.receive(b'"r":1')
    return opened.socket


def event_bytes(path: str) -> int:
    """Return the bytes of an event as a WebSocket receives it."""
    text = f'{{"t":"d","d":{{"a":"d","b":{{"p":"{path}","d":"{VALUE}"}}}}}}'
    return len(text) + (2 if len(text) < 126 else 4)


def events_per_second(listeners: Listeners, writer: Writer, events: int, count: int) -> float:
    """Return how many events the listeners receive in a second."""
    began = time.perf_counter()
    for _ in range(events):
        listeners.receive(writer.send())
        writer.receive()
    return count * events / (time.perf_counter() - began)


def http_round_trips(base: str, requests: int) -> list[float]:
    """Return the seconds of puts over HTTP, one after the other."""
    writer = Writer(base, "PUT", "trip", b'"%b"' % VALUE.encode())
    seconds = []
    for _ in range(requests):
        began = writer.send()
        writer.receive()
        seconds.append(time.perf_counter() - began)
    writer.close()
    return seconds


def socket_round_trips(base: str, requests: int) -> list[float]:
    """Return the seconds of puts over a WebSocket, one after the other."""
    client = WebSocket(base)
    seconds = []
    for number in range(requests):
        message = request(number, "p", f'{{"p":"/trip","d":"{VALUE}"}}')
        began = time.perf_counter()
        client.send(message)
        client.receive(b'"r":%d' % number)
        seconds.append(time.perf_counter() - began)
    client.close()
    return seconds


def messages_per_second(base: str, action: str, body: str, requests: int) -> float:
    """Return how many requests are answered in a second, sent without waiting."""
    clients = [WebSocket(base) for _ in range(PIPES)]
    each = requests // PIPES
    batch = b"".join(frame(request(number, action, body)) for number in range(each))
    began = time.perf_counter()
    for client in clients:
        client.socket.settimeout(WAIT_S)
        client.socket.sendall(batch)
    for client in clients:
        answered, rest = 0, b""
        while answered < each:
            received = rest + client.socket.recv(1 << 20)
            answered += received.count(b'"s":"ok"')
            rest = received[-7:] if not received.endswith(b'"s":"ok"') else b""
            answered -= rest.count(b'"s":"ok"')
    seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    return each * PIPES / seconds


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--listeners", type=int, default=1000)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "open.json").write_text(OPEN_RULES)
        with serve_treedb(folder, CONFIG) as base:
            for _ in range(wanted.rounds):
                for name, figure in measure_round(base, wanted):
                    found.setdefault(name, []).append(figure)
    show(found, wanted.listeners)


def measure_round(base: str, wanted: argparse.Namespace) -> list[tuple[str, float]]:
    """Measure everything once."""
    paths, figures = ["hot"] * wanted.listeners, []
    writer = Writer(base, "PUT", "hot", b'"%b"' % VALUE.encode())
    with contextlib.closing(Listeners(base, paths)) as streams:
        counted = streams, writer, wanted.events, wanted.listeners
        figures.append(("events SSE", events_per_second(*counted)))
    sockets = Listeners(base, paths, listen, event_bytes("hot"))
    with contextlib.closing(sockets):
        counted = sockets, writer, wanted.events, wanted.listeners
        figures.append(("events WebSocket", events_per_second(*counted)))
    writer.close()
    trips = http_round_trips(base, wanted.requests // 4)
    figures.append(("put HTTP", statistics.median(trips) * 1000))
    trips = socket_round_trips(base, wanted.requests // 4)
    figures.append(("put WebSocket", statistics.median(trips) * 1000))
    put = f'{{"p":"/m","d":"{VALUE}"}}'
    figures.append(("gets", messages_per_second(base, "g", '{"p":"/trip"}', wanted.requests * 4)))
    figures.append(("puts", messages_per_second(base, "p", put, wanted.requests)))
    return figures


def show(found: dict[str, list[float]], listeners: int) -> None:
    """Print medians and ratios."""
    median = {name: statistics.median(figures) for name, figures in found.items()}
    ratio = median["events WebSocket"] / median["events SSE"]
    print(f"events a second to {listeners} listeners: SSE {median['events SSE']:,.0f}, ", end="")
    print(f"WebSocket {median['events WebSocket']:,.0f}, ratio {ratio:.2f} (aim 0.8)")
    ratio = median["put WebSocket"] / median["put HTTP"]
    print(f"durable put, round trip: HTTP {median['put HTTP']:.2f} ms, ", end="")
    print(f"WebSocket {median['put WebSocket']:.2f} ms, ratio {ratio:.2f} (aim 1.2)")
    print(f"messages in and out a second on one core: {median['gets']:,.0f} gets, ", end="")
    print(f"{median['puts']:,.0f} durable puts")


if __name__ == "__main__":
    main()
