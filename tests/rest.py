"""A small HTTP client for tests, which sends what it is given byte for byte.

`Wire` is one connection; `Client` sends requests for one database to one daemon, over a connection
that it keeps until the daemon closes it. Every response is checked for what all have in common.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import select
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from http.client import parse_headers
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

from tests.closing import Closing
from tests.daemon import Daemon, Response

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]

PATIENCE_S: Final = 120
PIECE_BYTES: Final = 65_536
UNREAD_BYTES: Final = 65_536
BODILESS: Final = frozenset({204, 304})
JSON_TYPE: Final = "application/json; charset=utf-8"
OPEN_RULES: Final = '{"rules": {".read": true, ".write": true}}'

_hosts = (f"t{number}.localhost" for number in itertools.count())


class Wire(Closing):
    """One connection: it sends bytes and receives responses."""

    def __init__(
        self,
        url: str | socket.socket,
        ca: pathlib.Path | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        """Use a connection, or connect to a URL; the certificate of https is verified by `ca`."""
        connected = url if isinstance(url, socket.socket) else _connect(url, ca, patience)
        self.socket: Final = connected
        self.file: Final = connected.makefile("rb")
        self._patience = patience

    def bound_unread(self) -> None:
        """Bound what the system receives unread: by itself it may keep dozens of megabytes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def send_until_response(self, data: bytes) -> None:
        """Send as many bytes as the peer accepts before it responds.

        One thread sends and receives: if two threads share a TLS socket, sent bytes can be lost.
        """
        rest = memoryview(data)
        with contextlib.suppress(ConnectionError):
            while rest and not self.has_response():
                rest = rest[self._send_some(rest[:PIECE_BYTES]) :]

    def has_response(self, wait_s: float = 0.0) -> bool:
        """Return whether the first bytes of a response are there, or arrive within a time."""
        end = time.monotonic() + wait_s
        while True:
            if self._has_bytes():
                return True
            remaining = end - time.monotonic()
            if remaining <= 0 or not select.select([self.socket], [], [], remaining)[0]:
                return False

    def receive(self, method: str = "GET") -> Response:
        """Read a whole response to a request of `method`; raise ConnectionError without one."""
        status, headers = self.receive_head()
        response = Response(status, headers, self.receive_body(method, status, headers))
        if response.status >= 200:
            check_headers(response)
        return response

    def receive_head(self) -> tuple[int, Message]:
        """Read the head of a response; raise ConnectionError without one."""
        line = self.file.readline()
        if not line:
            raise ConnectionError("The connection ended without a response.")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        return int(status), parse_headers(self.file)

    def receive_body(self, method: str, status: int, headers: Message) -> bytes:
        """Read the body that follows a head."""
        if method == "HEAD" or status < 200 or status in BODILESS:
            return b""
        if headers.get("Transfer-Encoding") == "chunked":
            return b"".join(iter(self._read_chunk, b""))
        length = headers.get("Content-Length")
        body = self.file.read() if length is None else self.file.read(int(length))
        if length is not None and len(body) < int(length):
            raise ConnectionError("The response was cut off.")
        return body

    def is_ended(self) -> bool:
        """Wait until the peer closes the connection; return whether it sent no more bytes."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.file.close()
        self.socket.close()

    def _has_bytes(self) -> bool:
        """Return whether a byte can be read without waiting; TLS may have received records only."""
        with self._without_waiting(), contextlib.suppress(ssl.SSLWantReadError):
            return self.file.peek(1) != b""
        return False

    def _send_some(self, data: memoryview) -> int:
        """Send what the socket accepts now; return its size, after a wait if that is 0."""
        with self._without_waiting(), contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
            return self.socket.send(data)
        select.select([self.socket], [self.socket], [], self._patience)
        return 0

    @contextlib.contextmanager
    def _without_waiting(self) -> Iterator[None]:
        self.socket.setblocking(False)
        try:
            yield
        finally:
            self.socket.settimeout(self._patience)

    def _read_chunk(self) -> bytes:
        chunk = self.file.read(int(self.file.readline(), 16))
        assert self.file.readline() == b"\r\n"
        return chunk


def _connect(url: str, ca: pathlib.Path | None, patience: float) -> socket.socket:
    address = urlsplit(url)
    assert address.hostname is not None
    host = reachable_host(address.hostname)
    connected = socket.create_connection((host, address.port), patience)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.scheme == "https":
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        connected = context.wrap_socket(connected, server_hostname=address.hostname)
    return connected


def reachable_host(host: str) -> str:
    """Return where a host is: those below `localhost` are this machine, as browsers have it."""
    return "127.0.0.1" if host.endswith(".localhost") else host


class Client(Closing):
    """Sends requests to one daemon with one Host header."""

    def __init__(self, daemon: Daemon, host: str = "localhost", *, secure: bool = False) -> None:
        """Prepare; the first request opens the connection."""
        self.daemon = daemon
        self.host = host
        self._secure = secure
        self._wire: Wire | None = None

    @classmethod
    def of_new_tree(cls, daemon: Daemon) -> Client:
        """Return a client of a project, in development mode, that no other test uses."""
        return cls(daemon, next(_hosts))

    def connect(self) -> Wire:
        """Return a new connection."""
        url = self.daemon.https if self._secure else self.daemon.http
        return Wire(url, self.daemon.ca)

    @property
    def wire(self) -> Wire:
        """The connection that is open after a request."""
        assert self._wire is not None
        return self._wire

    def request(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: Headers = (),
    ) -> Response:
        """Send a request and return its response; raise OSError if there is none."""
        if self._wire is None:
            self._wire = self.connect()
        try:
            self._wire.send(print_request(method, target, body, headers, self.host))
            response = self._wire.receive(method)
        except BaseException:
            self.close()
            raise
        if response.headers.get("Connection", "").lower() == "close":
            self.close()
        return response

    def get(self, target: str) -> Any:
        """Return the JSON at a target."""
        response = self.request("GET", target)
        assert response.status == 200, response
        return response.json

    def put(self, target: str, value: Any) -> None:
        """Set a value."""
        response = self.request("PUT", target, json.dumps(value))
        assert response.status == 200, response

    def close(self) -> None:
        """Close the connection if it is open."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def configured(folder: pathlib.Path, config: str) -> Daemon:
    """Return a daemon with a configuration; its file `open.json` holds rules that allow all."""
    (folder / "open.json").write_text(OPEN_RULES)
    return Daemon(folder, config=config)


def print_request(
    method: str,
    target: str,
    body: bytes | str | None = None,
    headers: Headers = (),
    host: str | None = "localhost",
) -> bytes:
    """Return the bytes of a request; it has no Host header if `host` is None."""
    lines = [f"{method} {target} HTTP/1.1"]
    if host is not None:
        lines.append(f"Host: {host}")
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines += [f"{name}: {content}" for name, content in pairs]
    content = b""
    if body is not None:
        content = body.encode() if isinstance(body, str) else body
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def escape(key: str) -> str:
    """Percent-encode a key for a path or a query, its slashes too."""
    return quote(key, safe="")


def check_headers(response: Response) -> None:
    """Check the headers of a response for what all responses have in common."""
    assert response.headers.get_all("X-Content-Type-Options") == ["nosniff"], response
    assert "Server" not in response.headers, response
    assert len(response.headers.get_all("Content-Type", [])) <= 1, response
    assert "html" not in response.headers.get("Content-Type", ""), response
    if response.status in BODILESS:
        assert "Content-Type" not in response.headers, response
        assert response.headers.get("Content-Length", "0") == "0", response


def check_refused(response: Response, status: int) -> None:
    """Check an error for what every dialect has: a status, and JSON with a reason."""
    assert response.status == status, response
    assert response.headers["Content-Type"] == JSON_TYPE
    assert response.json["error"], response


def check_error(response: Response, status: int, code: str) -> str:
    """Check an error for its documented form; return its message.

    Only one in rules, which are data, may have a hint, and a list of all errors in them.
    """
    assert response.status == status, response
    assert response.headers["Content-Type"] == JSON_TYPE
    members = ["error", "message", *(each for each in ("hint", "errors") if each in response.json)]
    assert list(response.json) == members, response
    assert "hint" not in members or code == "invalid_data", response
    assert response.json["error"] == code, response
    message: str = response.json["message"]
    assert isinstance(message, str)
    assert message
    return message
