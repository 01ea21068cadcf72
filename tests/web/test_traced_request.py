"""Requests with spans: when these end, and what they say (`tests/test_tracing.py` exports them)."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.web.server import NOT_DONE_YET

from tests.http1.peer import ScriptedResource, Server
from treedbd.http1.registry import ServerOptions
from treedbd.traces import NO_ATTRIBUTES, Attributes
from treedbd.web.request_log import traced


class _Recorder:
    """A tracer that samples each request and keeps what ends, in order; also their only trace."""

    def __init__(self) -> None:
        self.ended: list[object] = []

    def begin(self, traceparent: bytes | None, *, is_trusted: bool) -> _Recorder:
        """Sample a request."""
        return self

    def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    def record(
        self,
        name: str,
        began_ns: int,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        failed: bool = False,
    ) -> None:
        """Do nothing."""

    def end(self, name: str, attributes: Attributes, *, failed: bool) -> None:
        """Keep the path and the status of a request that is over."""
        self.ended.append((attributes["url.path"], attributes["http.response.status_code"]))


def test_the_span_of_a_request_ends_before_what_was_sent_after_it_is_answered() -> None:
    tracer = _Recorder()

    def answer(request: Any) -> Any:
        if request.path == b"/b":
            request.send(404, (), b"")
        return NOT_DONE_YET

    resource = ScriptedResource(answer)
    options = ServerOptions(adapt_requests=partial(traced, tracer=tracer, reserved=()))
    peer = Server(resource, options=options).connect()
    peer.send(
        b"".join(b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % name for name in (b"a", b"b"))
    )
    resource.requests[0].send(200, (), b"")
    assert tracer.ended == [("/a", 200), ("/b", 404)]
