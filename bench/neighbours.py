"""How long other clients wait while one does something large.

    .venv/bin/python bench/neighbours.py [--scale S] [--only PATTERN] [--seconds S]

At scale 1 a body of 200 MB is written, a tree of 250 MB is read by a client that takes 1 MB a
second, for `--seconds`, an index over its million records is built, 100,000 members are patched, a
file is imported, a million records are removed, and messages of 9 MB are sent over a WebSocket,
while others listen to what they write. A value of 28 MB is read indented, in both dialects, in an
order and for its tag, and is shown by a 412. Meanwhile one client reads a leaf of the same
database, one writes a leaf of another, each every few milliseconds, from processes of their own.
Printed are their times, and of the daemon its longest turn, as it says itself, the processor time,
and the growth of its memory at the peak, as a multiple of the body where there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import attrs
from realtime import WebSocket, request
from servers import LOAD_CORE, run_treedb
from sessions import NO_HEADERS, OWNER, WAIT_S, Records, Server, Session, encode, load

RECORDS, BODY_RECORDS, PATCH_MEMBERS = 1_000_000, 800_000, 100_000
DRAWN_RECORDS = 110_000
OPEN = {".read": True, ".write": True}
MESSAGE_BYTES = 9_000_000
LISTENERS = 4
PACE_S = 0.004
SLOW_BYTES_PER_S = 1_000_000
ALL = "timeout=15min"


@attrs.frozen
class Scene:
    """The server, and how much is done to it."""

    server: Server
    session: Session
    scale: float
    seconds: float

    def records(self, count: int) -> Records:
        """Return records, as many at scale 1."""
        return Records(max(10, round(count * self.scale)))


@attrs.frozen
class Done:
    """What a load was: its bytes, and what to say of it."""

    body_bytes: int = 0
    note: str = ""


Load: TypeAlias = Callable[[Scene], Done]


def rest(scene: Scene) -> Done:
    """Do nothing for a while."""
    time.sleep(min(5.0, scene.seconds))
    return Done()


def write_silently(scene: Scene) -> Done:
    """Write one body whose response is empty."""
    return _write(scene, f"{ALL}&print=silent")


def write_echoed(scene: Scene) -> Done:
    """Write the same body again; the response is as long."""
    return _write(scene, ALL)


def read_slowly(scene: Scene) -> Done:
    """Read the tree at a slow rate."""
    address = urlsplit(scene.server.url)
    begin, received = time.monotonic(), 0
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        authorization = f"Authorization: {OWNER['Authorization']}"
        head = f"GET /records.json?ns=big--demo HTTP/1.1\r\nHost: {address.netloc}"
        connection.sendall(f"{head}\r\n{authorization}\r\n\r\n".encode())
        connection.settimeout(1.0)  # nothing comes when all has been read
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < begin + scene.seconds:
                time.sleep(max(0.0, begin + received / SLOW_BYTES_PER_S - time.monotonic()))
                received += len(connection.recv(65_536))
    return Done(note=f"{received / 1e6:.0f} MB received")


def build_index(scene: Scene) -> Done:
    """Declare an index over the tree, and wait until it is built."""
    begin = len(scene.server.log)
    scene.session.put_rules(OPEN | {"records": {".indexOn": ["age"]}})
    built = "The index age of /records in the database big--demo is built."
    scene.server.await_line(built, begin, 600)
    return Done()


def patch_members(scene: Scene) -> Done:
    """Replace a leaf in many records by one PATCH."""
    records = scene.records(PATCH_MEMBERS)
    members = {f"{records.key(number)}/name": f"New {number}" for number in range(records.count)}
    body = encode(members)
    _require(scene.session.ask("PATCH", "records", f"{ALL}&print=silent", body), 204)
    return Done(len(body))


def import_file(scene: Scene) -> Done:
    """Import a file by the command."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "records.json")
        file.write_bytes(scene.records(BODY_RECORDS // 8).document())
        words = ["import", str(file), f"{scene.server.url}/imported.json?ns=big--demo", "--quiet"]
        done = run_treedb(*words, token="owner")
        if done.returncode:
            return Done(note=(done.stderr.strip() or "failed").splitlines()[-1][:60])
        return Done(note=f"{file.stat().st_size / 1e6:.0f} MB of file")


def remove_all(scene: Scene) -> Done:
    """Remove the tree."""
    _require(scene.session.ask("DELETE", "records", f"{ALL}&print=silent"), 204)
    return Done()


def send_string(scene: Scene) -> Done:
    """Set a value that is one string."""
    return _send(scene, "p", b'"%b"' % (b"x" * round(MESSAGE_BYTES * scene.scale)))


def send_array(scene: Scene) -> Done:
    """Set a value that is one array of digits."""
    return _send(scene, "p", b"[%b1]" % (b"1," * round(MESSAGE_BYTES // 9 * scene.scale)))


def send_members(scene: Scene) -> Done:
    """Merge many small members."""
    count = round(100_000 * scene.scale)
    return _send(scene, "m", encode({f"key{number:06}": "x" * 75 for number in range(count)}))


def read_drawn(
    query: str, headers: Mapping[str, str] = NO_HEADERS, method: str = "GET", status: int = 200
) -> Load:
    """Return a load that reads a value, or fails to write it, and is sent it in a form."""

    def read(scene: Scene) -> Done:
        path, records = "drawn", scene.records(DRAWN_RECORDS)
        if scene.session.ask("GET", path, "shallow=true&limitToFirst=1")[1] == b"null":
            load(scene.session, path, records)
        body = b"1" if method == "PUT" else None
        sent = scene.session.ask(method, path, query, body, headers)
        _require(sent, status)
        return Done(note=f"{len(sent[1]) / 1e6:.0f} MB")

    return read


LOADS: dict[str, Load] = {
    "nothing": rest,
    "PUT of 200 MB, silent": write_silently,
    "PUT of 200 MB, echoed": write_echoed,
    "250 MB to a slow reader": read_slowly,
    "index over 1,000,000": build_index,
    "PATCH of 100,000 members": patch_members,
    "import of 25 MB": import_file,
    "DELETE of 1,000,000": remove_all,
    "message: string of 9 MB": send_string,
    "message: 1,000,000 items": send_array,
    "message: 100,000 members": send_members,
    "28 MB, indented": read_drawn("print=pretty", {"X-TreeDB-Dialect": "standard"}),
    "28 MB, indented, Firebase": read_drawn("print=pretty"),
    "28 MB, by age": read_drawn("orderBy=%22age%22"),
    "28 MB, for its tag": read_drawn("", {"If-None-Match": '"x"'}),
    "28 MB, shown by a 412": read_drawn("", {"If-Match": '"x"'}, "PUT", 412),
}


@attrs.frozen
class Times:
    """Milliseconds that a neighbour waited."""

    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        """Return those of all requests."""
        cuts = statistics.quantiles([*seconds, seconds[-1]], n=100, method="inclusive")
        return cls(1000 * cuts[49], 1000 * cuts[98], 1000 * max(seconds))

    def __str__(self) -> str:
        return f"{self.p50:7.1f}{self.p99:8.1f}{self.longest:8.0f}"


def main() -> None:
    """Run all loads and print one line for each."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        session = Session(server.url, "big")
        scene = Scene(server, session, options.scale, options.seconds)
        session.put_rules(OPEN)
        session.ask("PUT", "leaf", "", b"1")
        load(session, "records", scene.records(RECORDS))
        print(f"{'':26}{'s':>7}{'CPU s':>7}{'GET p50    p99     max':>24}", end="")
        print(f"{'PUT p50    p99     max':>24}{'turn ms':>9}{'memory':>10}")
        for name, run in LOADS.items():
            if re.search(options.only, name):
                print(f"{name:26}{measure(scene, run)}", flush=True)
        session.close()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of all that is done")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the slow reader")
    parser.add_argument("--only", default="", metavar="PATTERN", help="loads by their names")
    return parser.parse_args()


def measure(scene: Scene, run: Callable[[Scene], Done]) -> str:
    """Return the line of a load."""
    server = scene.server
    server.forget_peak()
    resting, used = server.memory("VmRSS"), server.cpu_s()
    scene.session.read_turns()
    with neighbours(server.url) as times:
        begin = time.perf_counter()
        done = run(scene)
        took = time.perf_counter() - begin
    used = server.cpu_s() - used
    turn = scene.session.read_turns().get("longest_ms", "-")
    grown = server.memory("VmHWM") - resting
    memory = f"{grown / done.body_bytes:.1f} x" if done.body_bytes else f"{grown / 1e6:.0f} MB"
    reads, writes = (Times.of(each) for each in times)
    line = f"{took:7.1f}{used:7.1f} {reads} {writes}{turn:>9}{memory:>10}  {done.note}"
    return line.rstrip()


@contextlib.contextmanager
def neighbours(url: str) -> Iterator[list[list[float]]]:
    """Run a reader and a writer within a block; yield the lists of their seconds."""
    times: list[list[float]] = []
    context = multiprocessing.get_context("fork")
    started = []
    for words in (("big", "GET", "leaf"), ("other", "PUT", "leaf")):
        ours, theirs = context.Pipe()
        process = context.Process(target=call, args=(url, *words, theirs))
        process.start()
        ours.recv()  # it is ready
        started.append((process, ours))
    try:
        yield times
    finally:
        for process, pipe in started:
            pipe.send("end")
            times.append(pipe.recv())
            process.join()


def call(url: str, database: str, method: str, path: str, pipe: Connection) -> None:
    """Send small requests until the other end of `pipe` ends it; send their seconds back."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {LOAD_CORE})
    session = Session(url, database)
    body = b'{"n":1,"text":"a small record"}' if method == "PUT" else None
    session.ask(method, path, "", body)
    pipe.send("ready")
    times: list[float] = []
    while not times or not pipe.poll(PACE_S):
        status, answer, seconds = session.ask(method, path, "", body)
        if status >= 300:
            raise RuntimeError(f"A neighbour was refused: {status} {answer!r}.")
        times.append(seconds)
    pipe.send(times)


def _write(scene: Scene, query: str) -> Done:
    body = scene.records(BODY_RECORDS).document()
    status, answer, _ = scene.session.ask("PUT", "written", query, body)
    _require((status, answer[:200], 0.0), 204 if "silent" in query else 200)
    return Done(len(body))


def _send(scene: Scene, action: str, value: bytes) -> Done:
    """Write a value by one message, while others listen at its place and above."""
    target = scene.server.url, "&ns=big--demo"
    listeners = [WebSocket(*target) for _ in range(LISTENERS)]
    for number, each in enumerate(listeners):
        path = ("messages", "messages/new")[number % 2]
        each.send(request(1, "q", f'{{"p":"{path}","h":""}}'))
        each.receive(b'"r":1')
    writer = WebSocket(*target)
    writer.socket.settimeout(WAIT_S)
    body = request(2, action, '{"p":"messages/new","d":#}').replace(b"#", value)
    with reading(listeners):
        writer.send_in_pieces(body)
        answer = writer.receive(b"}}}")
    writer.close()
    if b'"s":"ok"' not in answer:
        raise RuntimeError(f"The message was refused: {answer!r}.")
    return Done(len(body), f"{LISTENERS} listen")


@contextlib.contextmanager
def reading(clients: list[WebSocket]) -> Iterator[None]:
    """Receive what clients are sent within a block, and close them after it."""
    threads = [threading.Thread(target=each.drain, daemon=True) for each in clients]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for client in clients:
            client.close()


def _require(response: tuple[int, bytes, float], expected: int) -> None:
    """Raise RuntimeError unless a response has a status."""
    status, answer, _ = response
    if status != expected:
        raise RuntimeError(f"The load was refused: {status} {answer[:200]!r}.")


if __name__ == "__main__":
    main()
