"""Files and functions that one live request passes through, the depth of imports, and more.

    .venv/bin/python bench/request_trace.py [--calls] [--files]

A daemon serves plain HTTP in this process, and a client sends it requests. Each request is traced
twice: the first for its path, and one more after it, each on a new connection; a read also a third
time, as its connection repeats it. A frame is a call of a function, a move is a change of the file
that is executed, at a call or at a return; only files of treedb count. The put over a WebSocket is
one message and its answer, on a socket that is open. The PUT of rules has an admin's token.
`--calls` also lists the functions, those of the last request of each kind, and `--files` the files
of the first, in the order in which it comes to them. At the end: how many modules a command loads.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import attrs
from twisted.internet import reactor as global_reactor
from twisted.internet.threads import blockingCallFromThread, deferToThread

import treedbd
from treedbd import TreeService, load_settings

PACKAGE = pathlib.Path(treedbd.__file__).parent
ROOT = str(PACKAGE) + os.sep
VERSION = """
import sys
from treedbd.cli.main import main
main(["--version"])
print(len(sys.modules))
"""
WAIT_S = 30
_LENGTH = re.compile(rb"content-length: ([0-9]+)", re.IGNORECASE)

reactor: Any = global_reactor


class Request(NamedTuple):
    """A request to trace; `{}` in path and body is replaced, so that it is new each time."""

    name: str
    method: str
    path: str
    headers: str = ""
    body: str = ""


UPGRADE = (
    b"GET /.ws?v=5 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
SOCKET_PUT = Request(
    "WebSocket put", "", "", body='{"t":"d","d":{"r":1,"a":"p","b":{"p":"/users/{}/age","d":37}}}'
)
REQUESTS = (
    Request("GET of a leaf", "GET", "/users/{}/name.json"),
    Request("GET of an object", "GET", "/users/{}.json"),
    Request("GET of a query", "GET", '/users/{}.json?orderBy="$key"&limitToFirst=1'),
    Request("PUT of a leaf", "PUT", "/users/{}/age.json", body="37"),
    Request("PATCH of an object", "PATCH", "/users/{}.json", body='{"age":38}'),
    Request("POST of a child", "POST", "/users/{}/notes.json", body='"a note"'),
    Request("DELETE of a leaf", "DELETE", "/users/{}/age.json"),
    Request("SSE open", "GET", "/users/{}.json", headers="Accept: text/event-stream\r\n"),
    Request(
        "PUT of rules",
        "PUT",
        "/.settings/rules.json",
        headers="Authorization: Bearer owner\r\n",  # an admin's token in development mode
        body='{"rules":{".read":true,".write":true,"{}":{".validate":"newData.isString()"}}}',
    ),
)


class Call(NamedTuple):
    """A call of a function of treedb, or its return."""

    event: str
    file: str
    function: str


class Tracer:
    """Records the calls in all threads that are started after it, while `is_on`."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self.calls: list[Call] = []
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record an event of the interpreter (`sys.setprofile`)."""
        if not self.is_on or event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_filename.startswith(ROOT):
            self.calls.append(Call(event, code.co_filename.removeprefix(ROOT), code.co_name))


class Trace(NamedTuple):
    """What one request was traced to do."""

    name: str
    files: int
    frames: int
    moves: int
    calls: tuple[Call, ...]


def summarise(name: str, calls: list[Call]) -> Trace:
    """Count files, frames and moves."""
    moves = sum(before.file != after.file for before, after in itertools.pairwise(calls))
    frames = sum(call.event == "call" for call in calls)
    return Trace(name, len({call.file for call in calls}), frames, moves, tuple(calls))


def send(connection: socket.socket, request: Request, key: str) -> None:
    """Send a request, and receive its response or the first event of its stream."""
    target, body = request.path.replace("{}", key), request.body.replace("{}", key)
    head = f"{request.method} {target} HTTP/1.1\r\nHost: localhost\r\n{request.headers}"
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    connection.sendall(f"{head}{length}\r\n{body}".encode())
    received = b""
    while not _is_complete(received):
        piece = connection.recv(65_536)
        if not piece:
            raise RuntimeError(f"The connection was closed after {received!r}.")
        received += piece
    if not received.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"{request.name} failed: {received!r}")


def _is_complete(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return False
    length = _LENGTH.search(head)
    return len(body) == int(length[1]) if length else b"\n\n" in body


def put_over_socket(connection: socket.socket, request: Request, key: str) -> None:
    """Send a put over an open WebSocket, and receive its answer."""
    text = request.body.replace("{}", key).encode()
    connection.sendall(bytes((0x81, 0x80 | len(text))) + bytes(4) + text)  # masked with zeros
    answer = connection.recv(65_536)
    if b'"ok"' not in answer:
        raise RuntimeError(f"{request.name} failed: {answer!r}")


def trace(
    connection: socket.socket,
    request: Request,
    key: str,
    name: str,
    tracer: Tracer,
    send: Callable[[socket.socket, Request, str], None] = send,
) -> Trace:
    """Trace one request."""
    blockingCallFromThread(reactor, tracer.calls.clear)
    tracer.is_on = True
    send(connection, request, key)
    blockingCallFromThread(reactor, lambda: None)  # what follows the response counts
    tracer.is_on = False
    return summarise(name, tracer.calls)


def trace_all(port: int, tracer: Tracer) -> Iterator[tuple[Request, list[Trace]]]:
    """Trace each request twice, and reads once more; runs in a thread of its own."""
    address = ("127.0.0.1", port)
    warm_up = Request("", "PUT", "/users/{}.json", body='{"name":"Ada","age":36}')
    for number, request in enumerate(REQUESTS):
        traces = []
        key = f"u{number}"
        for name in ("first", "again"):
            with contextlib.closing(socket.create_connection(address, WAIT_S)) as connection:
                for each in ("warm", key):
                    send(connection, warm_up, each)
                if "event-stream" not in request.headers:  # a stream would not end
                    send(connection, request, "warm")
                    send(connection, warm_up, "warm")
                traces.append(trace(connection, request, key, name, tracer))
                if name == "again" and request.method == "GET" and not request.headers:
                    traces.append(trace(connection, request, key, "repeated", tracer))
        yield request, traces
    with contextlib.closing(socket.create_connection(address, WAIT_S)) as connection:
        connection.sendall(UPGRADE)
        received = b""
        while b'"t":"c"' not in received:
            received += connection.recv(65_536)
        put_over_socket(connection, SOCKET_PUT, "warm")
        yield (
            SOCKET_PUT,
            [
                trace(connection, SOCKET_PUT, "u", name, tracer, put_over_socket)
                for name in ("first", "again")
            ],
        )


def import_depth() -> int:
    """Return the number of modules on the longest chain of imports within treedb."""
    imports = {_module_of(file): _imports_of(file) for file in PACKAGE.rglob("*.py")}
    depths: dict[str, int] = {}

    def depth_of(module: str) -> int:
        if module not in depths:
            depths[module] = 1 + max(map(depth_of, imports[module] & imports.keys()), default=0)
        return depths[module]

    return max(map(depth_of, imports))


def _module_of(file: pathlib.Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(file: pathlib.Path) -> set[str]:
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(file.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue  # it imports nothing when the program runs
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        nodes += ast.iter_child_nodes(node)
    return found - {_module_of(file)}


def loaded_modules() -> int:
    """Return how many modules are loaded when `treedb --version` has run, Python's own included."""
    done = subprocess.run(
        [sys.executable, "-c", VERSION], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def report(wanted: argparse.Namespace, port: int, tracer: Tracer) -> None:
    """Trace all requests and print what was counted."""
    for request, traces in trace_all(port, tracer):
        for each in traces:
            print(
                f"{request.name:20} {each.name + ':':10}{each.files:3} files "
                f"{each.frames:4} frames {each.moves:4} moves"
            )
        for file in dict.fromkeys(call.file for call in traces[0].calls) if wanted.files else ():
            print(f"    {file}")
        for call in traces[-1].calls if wanted.calls else ():
            if call.event == "call":
                print(f"    {call.file} {call.function}")
    print(f"import depth: {import_depth()} modules")
    print(f"treedb --version: {loaded_modules()} modules loaded")


def main() -> None:
    """Serve, trace and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", action="store_true", help="list the functions, too")
    parser.add_argument("--files", action="store_true", help="list the files, too")
    wanted = parser.parse_args()
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    with tempfile.TemporaryDirectory() as folder:
        flags = {"data": f"{folder}/data", "listen": ["tcp:0:interface=127.0.0.1"]}
        settings = load_settings(None, flags, pathlib.Path(folder))
        service = TreeService(attrs.evolve(settings, quiet=True), reactor)
        service.privilegedStartService()
        service.startService()
        port = int(service.urls()[0].rpartition(":")[2])
        failures: list[object] = []
        tracing = deferToThread(report, wanted, port, tracer)
        tracing.addErrback(failures.append)
        tracing.addBoth(lambda _: service.stopService())
        tracing.addBoth(lambda _: reactor.stop())
        reactor.run()
    if failures:
        raise SystemExit(str(failures[0]))


if __name__ == "__main__":
    main()
