"""A collector of OpenTelemetry for tests: it receives spans over OTLP and HTTP, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import attrs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.closing import Closing

PATIENCE_S: Final = 120


@attrs.frozen
class ReceivedSpan:
    """One span; ids are in hex, `parent` is empty for a root. Times are in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    began: int
    ended: int
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector(Closing):
    """A collector at `url`.

    Attributes:
        bodies: the requests as they came, undecoded.
        headers: the header fields of the last request.

    """

    def __init__(self) -> None:
        """Listen on a free port of loopback."""
        self.bodies: list[bytes] = []
        self.headers: dict[str, str] = {}
        self._spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                is_right = self.path == "/v1/traces"
                self.send_response(200 if is_right else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                if is_right:
                    collector._receive(body, dict(self.headers))

            def log_message(self, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        """The endpoint to configure."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def await_spans(self, is_enough: Callable[[list[ReceivedSpan]], object]) -> list[ReceivedSpan]:
        """Return all spans so far, as soon as they are enough; AssertionError if they never are."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_enough(self._spans), PATIENCE_S), self._spans
            return list(self._spans)

    def _receive(self, body: bytes, headers: dict[str, str]) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        received = [
            _read_span(span, _read_attributes(group.resource.attributes))
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self.bodies.append(body)
            self.headers = headers
            self._spans += received
            self._changed.notify_all()


def _read_span(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        _read_attributes(span.attributes),
        resource,
    )


def _read_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
