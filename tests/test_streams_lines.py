"""Streams as programs read them that take lines off a socket and know no more of HTTP."""

from __future__ import annotations

import json
import pathlib
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.daemon import Daemon
from tests.micropython import HEAP, STAND_INS, find_micropython
from tests.rest import Client, Wire
from tests.sse import EVENTS

WRITES: Final = 50
KEEP_ALIVES: Final = 2
CONFIG: Final = """
default_project = "demo"
[streams]
keep_alive_s = 1
[projects.demo]
rules_file = "rules.json"
"""
RULES: Final = '{"rules": {"hidden": {}, "$other": {".read": true, ".write": true}}}'
Interpreter = Callable[[], list[str]]
INTERPRETERS: Final[dict[str, Interpreter]] = {
    "CPython": lambda: [sys.executable],
    "MicroPython": lambda: [find_micropython(), "-X", f"heapsize={HEAP}"],
}


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two workers"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("lines")
    (folder / "rules.json").write_text(RULES)
    arguments = ["--workers", request.param]
    with Daemon(folder, config=CONFIG, arguments=arguments) as daemon, Client(daemon) as client:
        yield client


def data_of(path: str, value: object) -> str:
    """Return the data of a put."""
    return json.dumps({"path": path, "data": value}, separators=(",", ":"))


@pytest.mark.parametrize("query", ["", '?orderBy="$key"&limitToFirst=100'], ids=["plain", "query"])
@pytest.mark.parametrize("secure", [False, True], ids=["TCP", "TLS"])
@pytest.mark.parametrize("interpreter", INTERPRETERS.values(), ids=INTERPRETERS.keys())
def test_a_program_that_knows_no_chunks_receives_every_event(
    client: Client, interpreter: Interpreter, secure: bool, query: str, tmp_path: pathlib.Path
) -> None:
    client.put("/board.json", None)
    daemon = client.daemon
    port = str(urlsplit(daemon.https if secure else daemon.http).port)
    words = ["localhost", port, f"/board.json{query}", str(1 + WRITES), str(KEEP_ALIVES)]
    if secure:
        authority = tmp_path / "authority.der"
        authority.write_bytes(ssl.PEM_cert_to_DER_cert(daemon.ca.read_text()))
        words.append(str(authority))
    program = [*interpreter(), str(STAND_INS / "listen.py"), *words]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listening:
        assert listening.stdout is not None
        received = [listening.stdout.readline().decode()]
        for number in range(WRITES):
            client.put(f"/board/k{number}.json", number)
        output, errors = listening.communicate()
    assert errors == b""
    lines = [*received, *output.decode().splitlines(keepends=True)]
    changes = [line for line in lines if not line.startswith("keep-alive")]
    assert changes == [
        f"put {data_of('/', None)}\n",
        *(f"put {data_of(f'/k{number}', number)}\n" for number in range(WRITES)),
    ]
    assert lines[-KEEP_ALIVES:] == ["keep-alive null\n"] * KEEP_ALIVES
    assert listening.returncode == 0


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize("query", ["", '?orderBy="$value"', '?where={"$key":{"!=":"b"}}'])
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_the_body_of_a_stream_is_its_events_alone(
    client: Client, secure: bool, version: str, size: int, query: str
) -> None:
    first = {"a": "x" * size}
    client.put("/first.json", first)
    daemon = client.daemon
    with Wire(daemon.https if secure else daemon.http, daemon.ca) as wire:
        accept = "".join(f"{name}: {value}\r\n" for name, value in EVENTS.items())
        head = f"GET /first.json{query} {version}\r\nHost: localhost\r\n{accept}\r\n"
        wire.send(head.encode())
        lines = wire.socket.makefile("rb")
        head_lines = list(iter(lines.readline, b"\r\n"))
        assert head_lines[0] == b"HTTP/1.1 200 OK\r\n"
        fields = [line.partition(b":")[0].lower() for line in head_lines[1:]]
        assert fields.count(b"connection") == 1
        assert b"Connection: close\r\n" in head_lines
        assert b"transfer-encoding" not in fields
        assert b"content-length" not in fields
        client.put("/first/a.json", 7)
        events = (data_of("/", first), data_of("/a", 7))
        expected = "".join(f"event: put\ndata: {data}\n\n" for data in events).encode()
        assert lines.read(len(expected)) == expected


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/a.json?shallow=true", 400),
        ('/a.json?orderBy="$nothing"', 400),
        ("/a.json?auth=malformed", 401),
        ("/hidden.json", 403),
        ("/hidden.json?ns=demo", 401),
        ("/a.json?ns=unknown", 404),
        ("/a", 404),
    ],
)
def test_a_stream_that_is_refused_has_a_length(client: Client, target: str, status: int) -> None:
    response = client.request("GET", target, headers=EVENTS)
    assert response.status == status
    assert response.headers["Content-Length"] == str(len(response.body))
    assert "Transfer-Encoding" not in response.headers
