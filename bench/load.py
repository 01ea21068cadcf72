"""A bounded load on one URL, by `wrk` where it is installed, else by a small client of our own.

Both keep a number of connections busy with one request at a time each, for a number of seconds, and
say how many requests a second were answered. Only addresses on this machine are ever loaded.
"""

from __future__ import annotations

import re
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from urllib.parse import urlsplit

_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")
_FAULTS = re.compile(r"(Non-2xx[^\n]*|Socket errors[^\n]*)")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


def measure(url: str, connections: int, seconds: int, core: int, put: str | None = None) -> float:
    """Return the requests a second that `url` answers; `put` is the body of a PUT, None for GET."""
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost"):
        raise ValueError("Loads go to this machine only.")
    wrk = shutil.which("wrk")
    if wrk is None:
        return _own_client(url, connections, seconds, put)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        command = [wrk, "-t1", f"-c{connections}", f"-d{seconds}s"]
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


def pin(core: int) -> list[str]:
    """Return what keeps a command on one core, nothing where there is only one."""
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(core)] if taskset else []


def _own_client(url: str, connections: int, seconds: int, put: str | None) -> float:
    parts = urlsplit(url)
    method, body = ("GET", b"") if put is None else ("PUT", put.encode())
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    request = (
        f"{method} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        connection = socket.create_connection((parts.hostname, parts.port))
        selector.register(connection, selectors.EVENT_READ, bytearray())
        connection.sendall(request)
    answered = 0
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        for key, _events in selector.select(1):
            received: bytearray = key.data
            received += key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
            if _is_whole(received):
                answered += 1
                received.clear()
                key.fileobj.sendall(request)  # type: ignore[union-attr]
    took = time.monotonic() - start
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    return answered / took


def _is_whole(received: bytearray) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    found = _LENGTH.search(head)
    return bool(end) and found is not None and len(body) >= int(found[1])
