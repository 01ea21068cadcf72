"""A bounded load on one URL, by `wrk` if it is installed, else by a small client of our own.

Both keep a number of connections busy with one request at a time each, for a number of seconds, and
return how many requests a second were answered. Only addresses of this machine are loaded.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import attrs

_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")
_FAULTS = re.compile(r"(Non-2xx[^\n]*|Socket errors[^\n]*)")
_STATUS = re.compile(rb"HTTP/1\.1 2[0-9]{2} ")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
WAIT_S = 30.0


def measure(url: str, connections: int, seconds: float, core: int, put: str | None = None) -> float:
    """Return the requests a second that `url` answers; `put` is the body of a PUT, None for GET.

    The load runs on the core `core`. `wrk` needs whole seconds, so `seconds` are rounded up for it;
    our own client goes on for a while if nothing has been answered by then. Raises RuntimeError if
    a status is not 2xx, a connection breaks, or nothing is answered.
    """
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost"):
        raise ValueError("Loads go to this machine only.")
    wrk = shutil.which("wrk")
    if wrk is not None:
        rate = _by_wrk(wrk, url, connections, seconds, core, put)
    else:
        with _on_core(core):
            rate = _by_own_client(url, connections, seconds, put)
    if not rate:
        raise RuntimeError(f"{url} answered nothing.")
    return rate


def pin(core: int) -> list[str]:
    """Return a command prefix that keeps a process on one core; empty without `taskset`."""
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(core)] if taskset else []


@contextlib.contextmanager
def _on_core(core: int) -> Iterator[None]:
    """Keep this process on one core within a block, if the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _by_wrk(
    wrk: str, url: str, connections: int, seconds: float, core: int, put: str | None
) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        command = [wrk, "-t1", f"-c{connections}", f"-d{math.ceil(seconds)}s"]
        if put is not None:
            script.write(f"wrk.method = 'PUT'\nwrk.body = [[{put}]]\n")
            script.flush()
            command += ["-s", script.name]
        said = subprocess.run(
            [*pin(core), *command, url], capture_output=True, text=True, check=True
        ).stdout
    if faults := _FAULTS.search(said):
        raise RuntimeError(faults[1])
    return float(_RATE.findall(said)[0])


def _by_own_client(url: str, connections: int, seconds: float, put: str | None) -> float:
    parts = urlsplit(url)
    method, body = ("GET", b"") if put is None else ("PUT", put.encode())
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    request = (
        f"{method} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for _ in range(connections):
            connection = socket.create_connection((parts.hostname, parts.port))
            caller = _Caller(opened.enter_context(connection), request)
            selector.register(connection, selectors.EVENT_READ, caller)
            caller.send()
        answered = 0
        start = time.monotonic()
        took = 0.0
        while took < seconds or (not answered and took < seconds + WAIT_S):
            answered += sum(key.data.receive() for key, _ in selector.select(1))
            took = time.monotonic() - start
        return answered / took


@attrs.define
class _Caller:
    """A connection that sends the same request again after each response."""

    connection: socket.socket
    request: bytes
    head: bytes = b""
    missing: int | None = None
    """Bytes of the body that are still to be received, None before its head is complete."""

    def send(self) -> None:
        """Send the request."""
        self.head, self.missing = b"", None
        self.connection.sendall(self.request)

    def receive(self) -> bool:
        """Receive a piece; if it completes a response, send again and return True."""
        piece = self.connection.recv(1 << 20)
        if not piece:
            raise RuntimeError("The server closed a connection.")
        if self.missing is None:
            self.head += piece
            head, end, piece = self.head.partition(b"\r\n\r\n")
            if not end:
                return False
            self.missing = _length(head)
        self.missing -= len(piece)
        if self.missing:
            return False
        self.send()
        return True


def _length(head: bytes) -> int:
    """Return the length of the body that follows a head."""
    if not _STATUS.match(head):
        raise RuntimeError(f"The response is not a success: {head.splitlines()[0]!r}.")
    length = _LENGTH.search(head)
    if length is None:
        raise RuntimeError("The response has no Content-Length.")
    return int(length[1])
