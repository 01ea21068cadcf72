"""Minutes of mixed load against one daemon: what it holds must be level, and nothing may be lost.

    .venv/bin/python bench/soak.py [--minutes N] [--clients N] [--rate N] [--workers N] [--seed N]

Clients read, write, push, patch, query and watch, send malformed requests, disconnect at a random
byte, and leave responses and streams unread; rules and secrets are reloaded meanwhile. Samples are
taken of all processes of the daemon: resident memory, descriptors, threads, temporary files. After
the first two of fifteen minutes the median of the last third may exceed that of the first third by
a tenth and a few. At the end the tree must be what the acknowledged writes have made of it, the log
without a traceback, and no token in anything that was written. A failure is status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import attrs
from sessions import Server

from treedbd.web.auth.jwt import mint

SECRET: Final = b"a secret of the soak that no other program knows"
CONFIG: Final = """
default_project = "soak"
workers = {workers}
[limits]
head_s = 5
body_s = 5
write_stalled_s = 5
[streams]
stalled_s = 10
keep_alive_s = 5
[http]
access_log = true
[log]
format = "json"
sample = 0.05
[projects.soak]
secret_files = ["secret"]
rules_file = "rules.json"
"""
RULES: Final = {"rules": {".read": "auth != null", ".write": "auth.uid == 'soak'"}}
WARM_UP: Final = 2 / 15
"""The part of the run that is not judged: two minutes of fifteen."""
PAYLOADS: Final = (b"", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PUT / HTTP/1.1\r\nHost: a\r\n")


@attrs.frozen
class Sample:
    """What the processes of the daemon hold together, at a time in seconds."""

    at: float
    rss_mb: float
    descriptors: int
    threads: int
    files: int


class Client(threading.Thread):
    """One client with a part of the tree for itself, which it knows.

    Attributes:
        model: what its part must be; of a key whose last write had no answer nothing is known.
        counts: how often it did what.
        problem: why it has stopped; None if nothing is wrong.

    """

    def __init__(self, number: int, url: str, token: str, pause_s: float, seed: int) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.model: dict[str, Any] = {}
        self.unknown: set[str] = set()
        self.counts: dict[str, int] = {}
        self.problem: BaseException | None = None
        self.stopping = threading.Event()
        self._root = f"c{number}"
        address = urlsplit(url)
        self._address = (address.hostname or "", address.port or 0)
        self._token = token
        self._pause_s = pause_s
        self._dice = random.Random(seed * 1000 + number)
        self._connection = HTTPConnection(*self._address, timeout=60)

    def run(self) -> None:
        """Do one thing after the other until it is stopped, or something is wrong."""
        actions: Sequence[Callable[[], None]] = (
            *(self.put, self.put, self.patch, self.push, self.remove, self.read, self.read),
            *(self.query, self.watch, self.send_nonsense, self.disconnect, self.read_slowly),
        )
        try:
            while not self.stopping.wait(self._dice.random() * 2 * self._pause_s):
                action = self._dice.choice(actions)
                action()
                self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
        except BaseException as problem:
            self.problem = problem

    # What a client does.

    def put(self) -> None:
        """Set one key."""
        key, value = self._key(), self._value()
        self._write("PUT", key, value, {key: value})

    def patch(self) -> None:
        """Set some keys at once."""
        members = {self._key(): self._value() for _ in range(3)}
        self._write("PATCH", "", members, members)

    def push(self) -> None:
        """Push a child, and remove it again."""
        name = self._ask("POST", "pushed", self._value())["name"]
        self._ask("DELETE", f"pushed/{name}")

    def remove(self) -> None:
        """Remove one key."""
        key = self._key()
        self._write("DELETE", key, None, {key: None})

    def read(self) -> None:
        """Read one key, and compare it."""
        key = self._key()
        found = self._ask("GET", key)
        if key not in self.unknown and found != self.model.get(key):
            raise AssertionError(f"{self._root}/{key} is {found!r}, not {self.model.get(key)!r}.")

    def query(self) -> None:
        """Query some keys in their order."""
        found = self._ask("GET", "", query='&orderBy="$key"&limitToFirst=5')
        if found is not None and len(found) > 5:
            raise AssertionError("A query returns more than its limit.")

    def watch(self) -> None:
        """Open a stream, see one write of its own, and leave."""
        with socket.create_connection(self._address, 60) as stream:
            stream.sendall(self._head("GET", "", "Accept: text/event-stream\r\n"))
            received = self._receive_until(stream, b"event: put")
            self.put()
            if self._dice.random() < 0.7:
                self._receive_until(stream, b"event: put", received.partition(b"event: put")[2])

    def send_nonsense(self) -> None:
        """Send what is not a request, and check that the connection ends."""
        with socket.create_connection(self._address, 60) as peer:
            noise = self._dice.randbytes(self._dice.randrange(200))
            peer.sendall(self._dice.choice(PAYLOADS) + noise)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass

    def disconnect(self) -> None:
        """Send a write up to a random byte, and go: what becomes of it is not known."""
        body = json.dumps(self._value()).encode()
        request = self._head("PUT", "abandoned", f"Content-Length: {len(body)}\r\n") + body
        with socket.create_connection(self._address, 60) as peer:
            peer.sendall(request[: self._dice.randrange(len(request) + 1)])

    def read_slowly(self) -> None:
        """Request everything, read a little of it, and disconnect."""
        with socket.create_connection(self._address, 60) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.sendall(self._head("GET", "", "", everything=True))
            peer.recv(100)

    # How.

    def _key(self) -> str:
        return f"k{self._dice.randrange(30)}"

    def _value(self) -> Any:
        return {"n": self._dice.randrange(10**9), "t": "x" * self._dice.randrange(1, 3000)}

    def _target_of(self, key: str, query: str, *, everything: bool = False) -> str:
        place = "" if everything else f"{self._root}/{key}".rstrip("/")
        return quote(f"/{place}.json?auth={self._token}{query}", safe='/?&="$.-_')

    def _head(self, method: str, key: str, fields: str, *, everything: bool = False) -> bytes:
        target = self._target_of(key, "", everything=everything)
        return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()

    def _write(self, method: str, key: str, body: Any, written: dict[str, Any]) -> None:
        try:
            self._ask(method, key, body)
        except (OSError, HTTPException):
            self.unknown.update(written)
            raise
        self.unknown -= written.keys()
        self.model.update(written)

    def _ask(self, method: str, key: str, body: Any = None, query: str = "") -> Any:
        sent = None if body is None else json.dumps(body)
        self._connection.request(method, self._target_of(key, query), sent)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise AssertionError(f"{method} is {response.status}: {answer[:200]!r}")
        return json.loads(answer)

    def _receive_until(self, stream: socket.socket, part: bytes, received: bytes = b"") -> bytes:
        while part not in received:
            piece = stream.recv(65_536)
            if not piece:
                raise AssertionError("A stream has ended.")
            received += piece
        return received


def main() -> None:
    """Run the load, and judge."""
    options = parse()
    seconds = options.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        Path(folder, "secret").write_bytes(SECRET)
        Path(folder, "secret").chmod(0o600)
        Path(folder, "rules.json").write_text(json.dumps(RULES))
        with Server(folder, CONFIG.format(workers=options.workers)) as server:
            token = mint(SECRET, {"uid": "soak"}, now=time.time(), ttl_s=seconds + 3600)
            pause_s = options.clients / options.rate
            clients = [
                Client(number, server.url, token, pause_s, options.seed)
                for number in range(options.clients)
            ]
            samples = list(run(server, temporary, clients, seconds, options.samples))
            problems = [f"{each.name}: {each.problem!r}" for each in clients if each.problem]
            problems += [*judge(samples, seconds), *compare(server.url, token, clients)]
            stop(server)
            problems += look_through(Path(folder), token)
    print_counts(clients)
    if problems:
        sys.exit("\n".join(problems))
    print("level, nothing lost, no traceback, no token")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rate", type=float, default=150.0, help="actions a second, of all")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    return parser.parse_args()


def run(
    server: Server, temporary: Path, clients: Sequence[Client], seconds: float, samples: int
) -> Iterator[Sample]:
    """Run the clients for so long, reload now and then, and yield samples."""
    begin = time.monotonic()
    for client in clients:
        client.start()
    for number in range(1, samples + 1):
        time.sleep(max(0.0, begin + seconds * number / samples - time.monotonic()))
        if number % 3 == 0:
            os.kill(server.pid, signal.SIGHUP)
        sample = take_sample(server.pid, temporary, time.monotonic() - begin)
        print(
            f"{sample.at:6.0f} s  {sample.rss_mb:7.1f} MB  {sample.descriptors:4} descriptors  "
            f"{sample.threads:3} threads  {sample.files:3} files",
            flush=True,
        )
        yield sample
        if any(client.problem for client in clients):
            break
    for client in clients:
        client.stopping.set()
    for client in clients:
        client.join()


def processes_of(pid: int) -> list[int]:
    """Return a process and those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in processes_of(int(child)))]


def take_sample(pid: int, temporary: Path, at: float) -> Sample:
    """Return what the processes of a daemon hold now."""
    rss = threads = descriptors = 0
    for each in processes_of(pid):
        lines = Path(f"/proc/{each}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        rss += int(status["VmRSS"].split()[0])
        threads += int(status["Threads"])
        descriptors += len(os.listdir(f"/proc/{each}/fd"))
    return Sample(at, rss / 1024, descriptors, threads, len(list(temporary.iterdir())))


def judge(samples: Sequence[Sample], seconds: float) -> Iterator[str]:
    """Yield what has grown after the warm-up."""
    judged = [sample for sample in samples if sample.at >= seconds * WARM_UP]
    third = max(1, len(judged) // 3)
    for name, part, some in (
        ("rss_mb", 0.1, 8.0),
        ("descriptors", 0.1, 24),
        ("threads", 0.1, 2),
        ("files", 0.1, 3),
    ):
        first, last = (
            statistics.median(getattr(sample, name) for sample in part_of)
            for part_of in (judged[:third], judged[-third:])
        )
        print(f"{name}: {first:.1f} at first, {last:.1f} at last")
        if last > first * (1 + part) + some:
            yield f"{name} has grown from {first:.1f} to {last:.1f}."


def compare(url: str, token: str, clients: Sequence[Client]) -> Iterator[str]:
    """Yield where the tree differs from what the clients received."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", f"/.json?auth={token}&format=export")
    tree = json.loads(connection.getresponse().read()) or {}
    connection.close()
    for client in clients:
        found = tree.get(client.name.replace("client ", "c")) or {}
        for key, value in client.model.items():
            if key not in client.unknown and found.get(key) != value:
                yield f"{client.name}: {key} is {found.get(key)!r}, not {value!r}."


def stop(server: Server) -> None:
    """Stop the daemon, and wait for its end."""
    os.kill(server.pid, signal.SIGTERM)
    end = time.monotonic() + 20
    while Path(f"/proc/{server.pid}/fd").exists() and time.monotonic() < end:
        if server.log.rstrip().endswith("Server Shut Down.") or '"Server Shut Down."' in server.log:
            break
        time.sleep(0.1)


def look_through(folder: Path, token: str) -> Iterator[str]:
    """Yield tracebacks in the log, and files that hold a token."""
    log = Path(folder, "log").read_text()
    if "Traceback" in log:
        yield "The log has a traceback:\n" + log[log.index("Traceback") :][:3000]
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "secret":
            content = file.read_bytes()
            if token.encode() in content or SECRET in content:
                yield f"{file.name} holds a token or the secret."


def print_counts(clients: Sequence[Client]) -> None:
    """Print how often the clients did what."""
    totals: dict[str, int] = {}
    for client in clients:
        for action, count in client.counts.items():
            totals[action] = totals.get(action, 0) + count
    print(", ".join(f"{count} {action}" for action, count in sorted(totals.items())))


if __name__ == "__main__":
    main()
