"""The daemon that `attackers.py` attacks, and what it says of itself meanwhile."""

from __future__ import annotations

import datetime
import gzip
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
from sessions import WAIT_S, Server, Session
from turn_probe.sitecustomize import FIELDS

from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import LOCAL_CERTIFICATE, LOCAL_KEY

CHECKOUT = Path(__file__).parent.parent
MIB = 1 << 20
CONFIG = """
default_project = "demo"
emulator = true
[limits]
cache_bytes = 8388608
kept_answer_bytes = 8388608
[projects.demo]
databases = ["default", "other"]
"""
"""The caches are small, so that what they keep does not count as memory that an attack has left."""
OPEN = {".read": True, ".write": True}


class Attacked(Server):
    """A treedb that counts the turns of its reactor, and serves plain HTTP and TLS.

    Attributes:
        secure_url: of the endpoint with TLS.

    """

    def __init__(self, folder: str, clone: Path, workers: int, *, where: bool) -> None:
        """Prepare the treedb of a checkout; its longest turns say `where` they were, if wanted."""
        super().__init__(folder, CONFIG)
        ensure_local_certificate(self.folder, datetime.datetime.now(datetime.UTC))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.secure_url = f"https://127.0.0.1:{port}"
        files = f"privateKey={folder}/{LOCAL_KEY}:certKey={folder}/{LOCAL_CERTIFICATE}"
        self.flags = ("--listen", f"ssl:{port}:interface=127.0.0.1:{files}")
        if workers > 1:
            self.flags += ("--workers", str(workers))
        path = os.pathsep.join((str(CHECKOUT / "bench" / "turn_probe"), str(clone)))
        self.variables = {"PYTHONPATH": path, "TURN_PROBE": folder}
        if where:
            self.variables["TURN_PROBE_WHERE"] = "1"

    def start(self) -> None:
        """Start it; `url` is that of plain HTTP."""
        super().start()
        line = self.await_line("treedb ready ", len(self.log.rpartition("treedb ready ")[0]))
        self.url = next(each for each in line.split() if each.startswith("http://"))

    def restart(self) -> None:
        """Stop it as an operator does, and start it again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        for file in self.folder.glob("turns-*"):
            file.unlink()
        self.start()

    def processes(self) -> list[int]:
        """Return the numbers of the processes that serve."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def resident(self) -> int:
        """Return the bytes that are resident, of all processes."""
        return sum(self._status(pid, "VmRSS") for pid in self.processes())

    def peak(self) -> int:
        """Return the most bytes that were resident, since `begin`, of all processes."""
        return sum(self._status(pid, "VmHWM") for pid in self.processes())

    def begin(self) -> None:
        """Reset the peak of the memory and the longest turn."""
        for pid in self.processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        for file in self.folder.glob("turns-*"):
            with file.open("r+b") as opened:
                opened.write(bytes(FIELDS.size))

    def turns(self) -> Turns:
        """Return the longest turns since `begin`, of any process."""
        files = [file.read_bytes() for file in self.folder.glob("turns-*")]
        used, own, wall, counts = zip(*map(FIELDS.unpack, files), strict=True)
        return Turns(max(used) / 1e6, max(own) / 1e6, max(wall) / 1e6, sum(counts))

    def trim(self) -> None:
        """Make the processes free their garbage, and wait until they have."""
        files = [self.folder / f"trim-{pid}" for pid in self.processes()]
        files = [
            each for each in files if each.with_name(each.name.replace("trim", "turns")).exists()
        ]
        for each in files:
            each.touch()
        end = time.monotonic() + 10
        while any(each.exists() for each in files) and time.monotonic() < end:
            time.sleep(0.05)

    def where(self) -> str:
        """Return what the longest turn was doing; empty if nothing was seen."""
        found = [file.read_text() for file in self.folder.glob("where-*")]
        return max(found, key=lambda text: int(text.split()[0]), default="")

    @staticmethod
    def _status(pid: int, name: str) -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


@attrs.frozen
class Turns:
    """Milliseconds of the longest turns.

    `cpu_ms` is what the process used of the processor meanwhile, `thread_ms` what the thread of the
    reactor did, `wall_ms` the time by the clock: each may be of another turn.
    """

    cpu_ms: float
    thread_ms: float
    wall_ms: float
    long_ones: int
    """Those that used more than 50 ms of the processor."""


@attrs.frozen
class Scene:
    """What an attacker knows: where the server is, how much to do, and for how long."""

    url: str
    secure_url: str
    scale: float
    seconds: float

    def many(self, count: int) -> int:
        """Return how many, of as many at scale 1."""
        return max(2, round(count * self.scale))

    def repeatedly(self) -> Iterator[int]:
        """Count, while there is time; at least once."""
        end, number = time.monotonic() + self.seconds, 0
        while not number or time.monotonic() < end:
            yield number
            number += 1

    def owner(self) -> Session:
        """Return a connection of an admin to the attacked database."""
        return Session(self.url, "default")

    def client(self) -> Client:
        """Return a connection of a stranger."""
        return Client(self.url)


class Client:
    """A connection of a stranger, who has no token."""

    def __init__(self, url: str) -> None:
        """Prepare; the first request connects."""
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)

    def ask(self, method: str, target: str, body: Any = None, **headers: str) -> tuple[int, int]:
        """Send a request; return the status and the bytes of the response, which is not kept.

        `body` is bytes, or what to encode; headers are written with `_` for `-`.
        """
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, target, sent, named)
        response = self._connection.getresponse()
        received = 0
        while more := response.read(MIB):
            received += len(more)
        return response.status, received

    def begin(self, method: str, target: str, body: bytes | None = None, **headers: str) -> None:
        """Send a request, and do not wait for the response."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, target, body, named)

    def end(self) -> int:
        """Receive the response to a request that was begun; return its status."""
        response = self._connection.getresponse()
        response.read()
        return response.status

    def put_gzip(self, target: str, packed: bytes) -> int:
        """PUT a body that is compressed; return the status."""
        return self.ask("PUT", target, packed, Content_Encoding="gzip")[0]

    def tag(self, target: str) -> str:
        """Return the entity tag of a value."""
        self._connection.request("GET", target, None, {"X-Firebase-ETag": "true"})
        response = self._connection.getresponse()
        response.read()
        return response.headers["ETag"]


def pack(text: bytes) -> bytes:
    """Return what `text` is when compressed."""
    return gzip.compress(text, 6)
