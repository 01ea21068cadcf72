"""A receiver of webhooks: a real server, which answers as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs

from tests.closing import Closing


@attrs.frozen
class Received:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The event in it."""
        found: dict[str, Any] = json.loads(self.body)
        return found


class Receiver(Closing):
    """A server at a port of this machine, over TLS if a context is given.

    Attributes:
        respond: returns the status of the answer; 0 closes the connection without one.
        received: the requests, in the order in which they came.

    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.respond: Callable[[Received], int] = lambda _: 200
        self.received: list[Received] = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received = Received(self.path, dict(self.headers.items()), body)
                status = receiver.take(received)
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"said")

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Say nothing of connections that were cut off."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, received: Received) -> int:
        """Record a request, and return the status of its answer."""
        with self._changed:
            self.received.append(received)
            self._changed.notify_all()
        return self.respond(received)

    def wait(self, is_reached: Callable[[], object], seconds: float = 120) -> None:
        """Wait until something is so, which becomes so with a request."""
        with self._changed:
            assert self._changed.wait_for(is_reached, seconds), len(self.received)

    def close(self) -> None:
        """Close it; connections end with the process."""
        self._server.shutdown()
        self._server.server_close()
