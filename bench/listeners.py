"""Clients of streams for measurements: many listeners, and one connection that writes."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from functools import cache
from urllib.parse import urlsplit

VALUE = "x" * 60
FRAME = b'event: put\ndata: {"path":"/","data":"%s"}\n\n' % VALUE.encode()
EVENT_BYTES = len(FRAME)
WAIT_S = 30.0
RESET = struct.pack("ii", 1, 0)  # closes without TIME_WAIT, so that ports do not run out


class Listeners:
    """Open streams; events are not parsed, only their bytes counted."""

    def __init__(
        self,
        base: str,
        paths: list[str],
        open_one: Callable[[str, str], socket.socket] | None = None,
        event_bytes: int = EVENT_BYTES,
    ) -> None:
        """Open one stream for each path by `open_one`, and wait for the first event of each."""
        open_one = connect if open_one is None else open_one
        self._event_bytes = event_bytes
        self._sockets = {each.fileno(): each for each in (open_one(base, path) for path in paths)}
        self._poll = select.epoll()
        for number, each in self._sockets.items():
            each.setblocking(False)
            self._poll.register(number, select.EPOLLIN)

    def receive(self, since: float) -> list[float]:
        """Wait until each has received one more event; return the delays since then, in seconds."""
        missing = dict.fromkeys(self._sockets, self._event_bytes)
        receive = {number: each.recv_into for number, each in self._sockets.items()}
        buffer = bytearray(65_536)
        delays: list[float] = []
        while len(delays) < len(missing):
            ready = self._poll.poll(WAIT_S)
            if not ready:
                raise TimeoutError(f"{len(missing) - len(delays)} listeners received nothing.")
            for number, _ in ready:
                try:
                    missing[number] -= receive[number](buffer)
                except ssl.SSLWantReadError:  # a record without data, such as a session ticket
                    continue
                if not missing[number]:
                    delays.append(time.perf_counter() - since)
        if any(missing.values()):
            raise ValueError("A listener received more than one event.")
        return delays

    def count(self, until: float) -> int:
        """Receive until a time of the monotonic clock; return how many bytes came, of all."""
        receive = {number: each.recv_into for number, each in self._sockets.items()}
        buffer = bytearray(65_536)
        total = 0
        while time.monotonic() < until:
            for number, _ in self._poll.poll(0.1):
                total += receive[number](buffer)
        return total

    def close(self) -> None:
        """Disconnect."""
        self._poll.close()
        for each in self._sockets.values():
            each.close()


@cache
def client_context() -> ssl.SSLContext:
    """Return a context that trusts any server; one for all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def dial(base: str) -> socket.socket:
    """Connect to a server, over TLS if its URL says so."""
    address = urlsplit(base)
    opened = socket.create_connection((address.hostname, address.port), WAIT_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.scheme == "https":
        opened = client_context().wrap_socket(opened)
    return opened


def connect(base: str, path: str) -> socket.socket:
    """Open a stream of a path and receive its first event."""
    return open_stream(base, f"/{path}.json")


def open_stream(base: str, target: str) -> socket.socket:
    """Open a stream of what a target of HTTP names, and receive its first event."""
    address = urlsplit(base)
    opened = dial(base)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    head = f"GET {target} HTTP/1.1\r\nHost: {address.netloc}\r\nAccept: text/event-stream\r\n"
    opened.sendall(f"{head}\r\n".encode())
    received = b""
    while not received.endswith(b"\n\n"):
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
        self._socket = dial(base)
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
