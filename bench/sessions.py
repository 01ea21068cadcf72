"""What the measurements of big trees share: a server, sessions that time requests, and records."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import attrs
from servers import TWISTD, Process, start

OWNER = {"Authorization": "Bearer owner"}
NO_HEADERS: Mapping[str, str] = {}
CONFIG = """
default_project = "demo"
emulator = true
[limits]
kept_answer_bytes = 0
write_body_bytes = 268435456
write_nodes = 10000000
[projects.demo]
databases = ["big", "small", "other"]
"""
CITIES = ("Paris", "Oslo", "Lima", "Quito", "Accra", "Hanoi", "Turin", "Porto")
PART = 5000
WAIT_S = 900.0


class Session:
    """A connection that is kept; `database` is addressed by its requests."""

    def __init__(self, url: str, database: str) -> None:
        """Prepare; the first request connects."""
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
        self._database = database

    def ask(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes, float]:
        """Send one request as an admin; return its status, its body and how long it took."""
        target = f"/{path}.json?ns={self._database}--demo&{query}"
        return self._send(method, target, body, headers)

    def put_rules(self, rules: Any) -> None:
        """Set the rules of the project."""
        document = json.dumps({"rules": rules}).encode()
        status, answer, _ = self._send(
            "PUT", f"/.settings/rules.json?ns={self._database}--demo", document
        )
        if status != 200:
            raise RuntimeError(f"The rules were not accepted: {answer!r}.")

    def read_turns(self) -> dict[str, float]:
        """Return what the daemon reports of its reactor's turns; empty if it counts none."""
        turns: dict[str, float] = json.loads(
            self._send("GET", f"/.health?ns={self._database}--demo", None)[1]
        ).get("turns")
        return turns or {}

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes, float]:
        begin = time.perf_counter()
        self._connection.request(method, target, body, {**OWNER, **headers})
        response = self._connection.getresponse()
        answer = response.read()
        return response.status, answer, time.perf_counter() - begin


@attrs.frozen
class Records:
    """A number of records of about 250 bytes, by keys that are in order."""

    count: int

    def key(self, number: int) -> str:
        """Return the key of a record."""
        return f"-Nabc{number:08}"

    def value(self, number: int) -> dict[str, Any]:
        """Return a record; its age is its own, and one in a thousand has the same group."""
        return {
            "age": number * 7919 % self.count,
            "bio": f"{number:06x} " * 22,
            "city": CITIES[number % len(CITIES)],
            "group": f"g{number // 50}",
            "name": f"User {number}",
        }

    def parts(self) -> Iterator[bytes]:
        """Iterate over bodies of PATCH requests that together hold all records."""
        for first in range(0, self.count, PART):
            numbers = range(first, min(first + PART, self.count))
            yield encode({self.key(number): self.value(number) for number in numbers})

    def document(self) -> bytes:
        """Return all of them as one body."""
        return b"{%s}" % b",".join(part[1:-1] for part in self.parts())


def encode(value: Any) -> bytes:
    """Return the JSON of a value, compact."""
    return json.dumps(value, separators=(",", ":")).encode()


def load(session: Session, path: str, records: Records) -> None:
    """Write all records below a path, in parts."""
    for part in records.parts():
        status, answer, _ = session.ask("PATCH", path, "print=silent&timeout=15min", part)
        if status != 204:
            raise RuntimeError(f"A part was not written: {status} {answer[:200]!r}.")


class Server:
    """A treedb of this machine with a log that can be read; it ends with its `with` block.

    Attributes:
        url: of the first endpoint, once it has started.
        flags: more flags of `treedb` for the next start.
        variables: what the environment of the next start has besides that of this process.

    """

    def __init__(self, folder: str, config: str = CONFIG) -> None:
        """Prepare a server whose files are all in `folder`."""
        self.folder = Path(folder)
        self.url = ""
        self.flags: tuple[str, ...] = ()
        self.variables: dict[str, str] = {}
        self._config = self.folder / "treedb.toml"
        self._config.write_text(config)
        self._log = self.folder / "log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._process: Process | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it is ready."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self.kill()

    @property
    def log(self) -> str:
        """All that it has printed since its first start."""
        return self._log.read_text()

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, always on the same port, and wait until it is ready."""
        begin = len(self.log) if self._log.exists() else 0
        words = ["-n", "--pidfile=", "treedb", "--listen", f"tcp:{self._port}:interface=127.0.0.1"]
        words += ["--data", str(self.folder / "data"), "--config", str(self._config)]
        with self._log.open("ab") as log:
            self._process = start(
                *(TWISTD, *words, *self.flags), output=log, variables=self.variables
            )
        self.url = self.await_line("treedb ready ", begin).split()[-1]

    def await_line(self, part: str, begin: int = 0, seconds: float = WAIT_S) -> str:
        """Wait until a whole line of the log, from character `begin` on, contains `part`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.log[begin:].splitlines(keepends=True):
                if part in line and line.endswith("\n"):
                    return line.strip()
            assert self._process is not None
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"The server did not print {part!r}:\n{self.log[begin:][-4000:]}")

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def cpu_s(self) -> float:
        """Return the seconds of processor time that it has used."""
        times = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, name: str) -> int:
        """Return bytes of its memory: `VmRSS` for what is resident, `VmHWM` for the peak of it."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    def forget_peak(self) -> None:
        """Reset the peak of its memory."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
