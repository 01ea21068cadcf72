"""A service in front of a daemon that does one thing wrong, for judges that have to notice it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.message import Message
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

import attrs

from tests.closing import Closing
from tests.daemon import Response

EACH: Final = 8
"""Of the requests that a fault may concern, one of so many is treated wrongly."""


@attrs.frozen
class Asked:
    """A request, and how it is sent on to the daemon."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    send: Callable[[Asked], Response]


class FaultyFront(Closing):
    """Sends requests on to `upstream`, but every eighth that `fault` is about in its own way.

    `faults` counts those.
    """

    def __init__(self, upstream: str, fault: str) -> None:
        """Listen on a free port; `fault` is one of `FAULTS`, or `none`."""
        self.upstream: Final = upstream
        self.faults = 0
        self._is_concerned, self._treat = (_nothing, _honest) if fault == "none" else FAULTS[fault]
        self._lock = threading.Lock()
        self._count = 0
        self.first: dict[str, tuple[Asked, Response]] = {}
        """The first request that the fault concerns at each path, and its response."""
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def respond(self, asked: Asked) -> Response:
        """Return the response to a request."""
        if not self._is_concerned(asked):
            return asked.send(asked)
        with self._lock:
            self._count += 1
            is_due = self._count % EACH == 0 and asked.path in self.first
            self.faults += is_due
        if is_due:
            return self._treat(self, asked)
        response = asked.send(asked)
        if response.status == 200:
            self.first.setdefault(asked.path, (asked, response))
        return response

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """The server of a front."""

    def __init__(self, front: FaultyFront) -> None:
        self.front: Final = front
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, with one of its own to the daemon."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65_536

    def setup(self) -> None:
        super().setup()
        assert isinstance(self.server, _Server)
        self._front = self.server.front
        self._daemon = HTTPConnection(urlsplit(self._front.upstream).netloc, timeout=30)

    def finish(self) -> None:
        self._daemon.close()
        super().finish()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        asked = Asked(self.command, self.path, _kept(self.headers), body, self._send_on)
        response = self._front.respond(asked)
        self.send_response(response.status)
        for name, content in _kept(response.headers).items():
            self.send_header(name, content)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)

    do_PUT = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _send_on(self, asked: Asked) -> Response:
        self._daemon.request(asked.method, asked.path, asked.body or None, asked.headers)
        response = self._daemon.getresponse()
        return Response(response.status, response.headers, response.read())


def _kept(headers: Message) -> dict[str, str]:
    names = ("If-Match", "X-TreeDB-ETag", "ETag", "Content-Type")
    return {name: headers[name] for name in names if name in headers}


def _nothing(_: Asked) -> bool:
    return False


def _honest(_: FaultyFront, asked: Asked) -> Response:
    return asked.send(asked)


def _is_read(asked: Asked) -> bool:
    return asked.method == "GET"


def _is_swap(asked: Asked) -> bool:
    return "If-Match" in asked.headers


def _is_write(asked: Asked) -> bool:
    return asked.method == "PUT" and not _is_swap(asked) and asked.body.startswith(b'"')


def _is_add(asked: Asked) -> bool:
    return asked.body.startswith(b'{".sv"')


def _is_push(asked: Asked) -> bool:
    return asked.method == "POST"


def _answer_old(front: FaultyFront, asked: Asked) -> Response:
    return front.first[asked.path][1]


def _pretend(front: FaultyFront, asked: Asked) -> Response:
    response = front.first[asked.path][1]
    return response._replace(body=asked.body)


def _send_twice(_: FaultyFront, asked: Asked) -> Response:
    response = asked.send(asked)
    asked.send(asked)
    return response


def _send_old_again(front: FaultyFront, asked: Asked) -> Response:
    response = asked.send(asked)
    asked.send(front.first[asked.path][0])
    return response


def _forget_condition(_: FaultyFront, asked: Asked) -> Response:
    return asked.send(attrs.evolve(asked, headers={}))


def _mismatch_anyway(_: FaultyFront, asked: Asked) -> Response:
    """Apply a swap, and say that it found something else."""
    response = asked.send(asked)
    return response._replace(status=412, body=b'{"error":"condition_failed","message":""}')


def _refuse_anyway(_: FaultyFront, asked: Asked) -> Response:
    """Apply a write, and say that it was not."""
    response = asked.send(asked)
    return response._replace(status=504, body=b'{"error":"timeout","message":""}')


Fault = tuple[Callable[[Asked], bool], Callable[[FaultyFront, Asked], Response]]
FAULTS: Final[dict[str, Fault]] = {
    "a stale read": (_is_read, _answer_old),
    "a lost write": (_is_write, _pretend),
    "a write that comes back": (_is_write, _send_old_again),
    "a doubled increment": (_is_add, _send_twice),
    "a lost update": (_is_swap, _forget_condition),
    "a mismatch that took effect": (_is_swap, _mismatch_anyway),
    "a time-out that took effect": (_is_write, _refuse_anyway),
    "a doubled push": (_is_push, _send_twice),
    "a lost push": (_is_push, _answer_old),
}
