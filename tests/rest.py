"""A small HTTP client for tests: it sends what it is given, byte for byte, and hides nothing.

`Wire` is one connection; `Client` asks one daemon for one database, over a connection that it keeps
as long as the daemon lets it. Every answer is checked for what all answers promise.
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
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from tests.closing import Closing
from tests.daemon import Daemon

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]

PATIENCE_S: Final = 30
PIECE_BYTES: Final = 65_536
BODILESS: Final = frozenset({204, 304})
JSON_TYPE: Final = "application/json; charset=utf-8"
OPEN_RULES: Final = '{"rules": {".read": true, ".write": true}}'

_hosts = (f"t{number}.localhost" for number in itertools.count())


class Answer(NamedTuple):
    """What came back; names of headers in any case."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class Wire(Closing):
    """One connection: bytes out, answers in."""

    def __init__(
        self, url: str, ca: pathlib.Path | None = None, patience: float = PATIENCE_S
    ) -> None:
        """Connect to a URL; one with https is verified by `ca`."""
        address = urlsplit(url)
        assert address.hostname is not None
        connected = socket.create_connection((address.hostname, address.port), patience)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.scheme == "https":
            context = ssl.create_default_context(cafile=None if ca is None else str(ca))
            connected = context.wrap_socket(connected, server_hostname=address.hostname)
        self.socket: Final = connected
        self._file = connected.makefile("rb")
        self._patience = patience

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def send_until_answered(self, data: bytes) -> None:
        """Send as many bytes as the peer takes before it answers.

        One thread does both: two that share a TLS socket, one to send and one to receive, can lose
        what was sent.
        """
        rest = memoryview(data)
        with contextlib.suppress(ConnectionError):
            while rest and not self.is_answered():
                rest = rest[self._send_some(rest[:PIECE_BYTES]) :]

    def is_answered(self, wait_s: float = 0.0) -> bool:
        """Tell whether the first bytes of an answer are there, or come within a time."""
        until = time.monotonic() + wait_s
        while True:
            if self._has_bytes():
                return True
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                return False

    def receive(self, method: str = "GET") -> Answer:
        """Read one answer, whole, to a request of `method`; raise ConnectionError without one."""
        line = self._file.readline()
        if not line:
            raise ConnectionError("The connection ended without an answer.")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = parse_headers(self._file)
        answer = Answer(int(status), headers, self._read_body(method, int(status), headers))
        if answer.status >= 200:
            check_promises(answer)
        return answer

    def is_ended(self) -> bool:
        """Wait until the peer has closed the connection; tell whether it sent nothing more."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close."""
        self._file.close()
        self.socket.close()

    def _has_bytes(self) -> bool:
        """Tell whether bytes can be read without waiting; TLS may have had only its own to read."""
        with self._without_waiting(), contextlib.suppress(ssl.SSLWantReadError):
            return self._file.peek(1) != b""
        return False

    def _send_some(self, data: memoryview) -> int:
        """Send what the peer takes now and return how much, else wait until there may be more."""
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

    def _read_body(self, method: str, status: int, headers: Message) -> bytes:
        if method == "HEAD" or status < 200 or status in BODILESS:
            return b""
        if headers.get("Transfer-Encoding") == "chunked":
            return b"".join(iter(self._read_chunk, b""))
        length = headers.get("Content-Length")
        body = self._file.read() if length is None else self._file.read(int(length))
        if length is not None and len(body) < int(length):
            raise ConnectionError("The answer was cut off.")
        return body

    def _read_chunk(self) -> bytes:
        chunk = self._file.read(int(self._file.readline(), 16))
        assert self._file.readline() == b"\r\n"
        return chunk


class Client(Closing):
    """Asks one daemon with one Host header."""

    def __init__(self, daemon: Daemon, host: str = "localhost", *, secure: bool = False) -> None:
        """Connect when something is asked."""
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

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: Headers = (),
    ) -> Answer:
        """Ask; raises OSError where no answer comes."""
        if self._wire is None:
            self._wire = self.connect()
        try:
            self._wire.send(print_request(method, target, body, headers, self.host))
            answer = self._wire.receive(method)
        except BaseException:
            self.close()
            raise
        if answer.headers.get("Connection", "").lower() == "close":
            self.close()
        return answer

    def get(self, target: str) -> Any:
        """Return the JSON at a target."""
        answer = self.ask("GET", target)
        assert answer.status == 200, answer
        return answer.json

    def put(self, target: str, value: Any) -> None:
        """Set a value."""
        answer = self.ask("PUT", target, json.dumps(value))
        assert answer.status == 200, answer

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def configured(folder: pathlib.Path, config: str) -> Daemon:
    """Return a daemon with a configuration; the file `open.json` beside it lets all do all."""
    (folder / "open.json").write_text(OPEN_RULES)
    return Daemon(folder, config=config)


def print_request(
    method: str,
    target: str,
    body: bytes | str | None = None,
    headers: Headers = (),
    host: str | None = "localhost",
) -> bytes:
    """Return the bytes of a request; without a Host header for None."""
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
    """Percent-encode a key, whole, for a path or a query."""
    return quote(key, safe="")


def check_promises(answer: Answer) -> None:
    """Check what every answer promises."""
    assert answer.headers.get_all("X-Content-Type-Options") == ["nosniff"], answer
    assert "Server" not in answer.headers, answer
    assert len(answer.headers.get_all("Content-Type", [])) <= 1, answer
    assert "html" not in answer.headers.get("Content-Type", ""), answer
    if answer.status in BODILESS:
        assert "Content-Type" not in answer.headers, answer
        assert answer.headers.get("Content-Length", "0") == "0", answer


def check_refused(answer: Answer, status: int) -> None:
    """Check an error for what it has in every dialect: a status, and JSON that says why."""
    assert answer.status == status, answer
    assert answer.headers["Content-Type"] == JSON_TYPE
    assert answer.json["error"], answer


def check_error(answer: Answer, status: int, code: str) -> str:
    """Check an error for its documented form; return its message."""
    assert answer.status == status, answer
    assert answer.headers["Content-Type"] == JSON_TYPE
    assert list(answer.json) == ["error", "message"], answer
    assert answer.json["error"] == code, answer
    message: str = answer.json["message"]
    assert isinstance(message, str)
    assert message
    return message
