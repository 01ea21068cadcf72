"""The reference of the interface is true: its examples are run, its tables compared."""

from __future__ import annotations

import pathlib
import re
import socket
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPResponse
from typing import NamedTuple
from urllib.parse import quote

import attrs
import pytest

from tests.daemon import Daemon
from tests.pages import ANY, DOCS, matches, read_blocks
from tests.rest import Client
from tests.websocket import WebSocket
from treedbd import limits
from treedbd.http1 import parser as protocol
from treedbd.web.errors import STATUS

PAGE = (DOCS / "interface.md").read_text()
BLOCKS = read_blocks("interface.md", "http", "sse", "ws")
WAIT_S = 30
SENT_AS_IS = "/?=&%:,\"$'()*+.~-_"

_HEADER = re.compile(r"([A-Za-z][A-Za-z-]*): (.*)")


class Lines(NamedTuple):
    """A request or a response on the page: its first line, headers and body."""

    first: str
    headers: list[tuple[str, str]]
    body: str


def split_lines(block: str, mark: str) -> Lines:
    first, *rest = [line[2:] for line in block.splitlines() if line.startswith(mark)]
    headers = []
    while rest and not rest[0].startswith(("event:", "data:", "id:")):
        found = _HEADER.fullmatch(rest[0])
        if found is None:
            break
        headers.append((found[1], found[2]))
        del rest[0]
    return Lines(first, headers, "\n".join(rest))


class Stream:
    """A connection with a stream, after its head."""

    def __init__(self, connection: socket.socket, response: HTTPResponse) -> None:
        self._connection = connection
        self._response = response

    def next_event(self) -> str:
        lines = []
        while line := self._response.readline().decode().removesuffix("\n"):
            lines.append(line)
        return "\n".join(lines)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class Reader:
    """Sends the examples of the page, in their order."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._address = ("127.0.0.1", daemon.port)
        self._last_id = ""
        self._socket: WebSocket | None = None
        self.stream: Stream | None = None

    def exchange(self, block: str) -> None:
        """Send a request of the page, and compare its response."""
        request, shown = split_lines(block, "> "), split_lines(block, "< ")
        connection = socket.create_connection(self._address, WAIT_S)
        connection.sendall(self._print(request))
        response = HTTPResponse(connection, method=request.first.split()[0])
        response.begin()
        if "text/event-stream" in response.headers.get("Content-Type", ""):
            self.close()
            self.stream = Stream(connection, response)
            body = self.stream.next_event()
            self._last_id = body.rpartition("id: ")[2]
        else:
            body = response.read().decode().removesuffix("\n")
            connection.close()
        assert str(response.status) == shown.first, body
        assert matches(shown.body, body), body
        self._check_headers(shown, response.headers)

    def talk(self, block: str) -> None:
        """Send messages of the page over one WebSocket, and compare what is received."""
        if self._socket is None:
            self._socket = WebSocket(Client(self._daemon))
        for line in block.splitlines():
            if line.startswith("> "):
                self._socket.send_text(line[2:])
            else:
                received = self._socket.next_text()
                assert matches(line.removeprefix("< "), received), received

    def close(self) -> None:
        for each in (self.stream, self._socket):
            if each is not None:
                each.close()

    def _print(self, request: Lines) -> bytes:
        method, target = request.first.split()
        headers = {"Host": "localhost", "Connection": "close", **dict(request.headers)}
        if headers.get("Last-Event-ID") == ANY:
            headers["Last-Event-ID"] = self._last_id
        if request.body:
            headers["Content-Length"] = str(len(request.body.encode()))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        target = quote(target, safe=SENT_AS_IS)
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n{request.body}".encode()

    @staticmethod
    def _check_headers(shown: Lines, received: Message) -> None:
        for name, value in shown.headers:
            assert received[name] == value


@pytest.fixture
def reader(tmp_path: pathlib.Path) -> Iterator[Reader]:
    with Daemon(tmp_path) as daemon:
        reader = Reader(daemon)
        yield reader
        reader.close()


def test_every_example_is_received_as_the_page_shows_it(reader: Reader) -> None:
    assert len(BLOCKS) > 50
    for kind, block in BLOCKS:
        if kind == "http":
            reader.exchange(block)
        elif kind == "ws":
            reader.talk(block)
        else:
            assert reader.stream is not None
            assert matches(block.strip(), reader.stream.next_event())


def rows_after(heading: str) -> list[list[str]]:
    """Return the cells of the table below a line of the page."""
    table = PAGE.partition(f"{heading}\n")[2].strip().splitlines()[2:]
    cells = [line.strip("|").split("|") for line in table]
    rows = []
    for line, parts in zip(table, cells, strict=True):
        if not line.startswith("|"):
            break
        rows.append([part.strip() for part in parts])
    return rows


def as_number(text: str) -> float:
    return float(text.replace(",", "").split()[0])


def test_the_limits_that_can_be_set_have_the_defaults_of_the_page() -> None:
    heading = "These are settings, with their defaults; [`conf/treedb.toml`](../conf/treedb.toml)"
    rows = rows_after(f"{heading} describes them:\n".rstrip("\n"))
    shown = {setting.strip("`"): as_number(default) for _, setting, default, _ in rows}
    defaults = attrs.asdict(limits.Limits())
    not_for_clients = {
        *("body_bytes_per_s", "read_bytes_per_s"),
        *("cache_bytes", "kept_answer_bytes", "linger_s"),
    }
    assert shown == {name: defaults[name] for name in defaults.keys() - not_for_clients}


def test_the_limits_that_are_off_are_those_of_the_page() -> None:
    rows = rows_after("These are off unless the configuration sets them:")
    shown = {name.strip("`") for _, names, _ in rows for name in names.split(", ")}
    rates = {field.name for field in attrs.fields(limits.RateLimits)} - {"burst_s"}
    assert shown == rates | {"database_bytes", "database_nodes"}
    assert not any(attrs.asdict(limits.RateLimits(), filter=lambda f, _: f.name in rates).values())


def test_the_fixed_limits_are_those_of_the_page() -> None:
    shown = [as_number(value) for _, value, _ in rows_after("These are fixed:")]
    assert shown == [
        limits.MAX_DEPTH,
        limits.MAX_KEY_BYTES,
        limits.MAX_WHOLE_NODES,
        limits.MAX_BODY_NESTING,
        limits.MAX_PATCH_MEMBERS,
        limits.MAX_SHOWN_BYTES,
        limits.MAX_CALLBACK_CHARACTERS,
        limits.MAX_TOKEN_CHARACTERS,
        limits.MAX_TOKEN_REQUEST_BYTES,
        limits.MAX_MADE_TOKEN_S,
        limits.MAX_RENEWED_S,
        limits.MAX_CLAIM_LEVELS,
        limits.MAX_UID_CHARACTERS,
        limits.MAX_TIMEOUT_S,
        limits.MAX_DESCRIBED_CHILDREN,
        limits.MAX_RESUMED_WRITES,
        limits.WAITING_DRAFTS,
        limits.MAX_CHANGED_KEYS,
    ]


def test_the_errors_are_those_of_the_page() -> None:
    replies = [each for each in vars(protocol).values() if isinstance(each, protocol.ErrorReply)]
    known = {*STATUS.values(), (500, "internal_error"), (400, "invalid_data")}
    known |= {(reply.status, reply.code) for reply in replies}
    rows = rows_after("An error means that nothing was written, except for 504 `in_doubt`.\n")
    shown = {
        (int(status), code.strip("`"))
        for statuses, code, _ in rows
        for status in statuses.split(", ")
    }
    assert shown == known
