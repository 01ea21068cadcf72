"""Requests of a service that traces: each that is sampled has the span of OpenTelemetry.

Names and attributes are those of its semantic conventions for HTTP servers; of the target there is
no more than a log may show. Of requests that are not sampled nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twisted.python.failure import Failure

from treedbd.http1.parser import Http1Parser
from treedbd.http1.request import Request, RequestConnection
from treedbd.traces import Tracer
from treedbd.web.request import Question
from treedbd.web.response import address_of

TRACEPARENT: Final = b"traceparent"
DATA_ROUTE: Final = "/{path}.json"
"""The route of all places in the tree."""

_METHODS: Final = frozenset({b"GET", b"HEAD", b"PUT", b"POST", b"PATCH", b"DELETE", b"OPTIONS"})
_OTHER_METHOD: Final = "_OTHER"


class TracedRequest(Request):
    """One request and its reply, with a span if it is sampled.

    Attributes:
        tracer: decides which requests are sampled.
        reserved: the paths that are routes of their own.

    """

    tracer: Tracer
    reserved: frozenset[bytes]

    def __init__(self, connection: RequestConnection, parser: Http1Parser) -> None:
        """Represent the request that `parser` has just completed."""
        super().__init__(connection, parser)
        values = self.headers.get(TRACEPARENT, ())
        self.trace = self.tracer.begin(
            values[0] if len(values) == 1 else None, is_trusted=self.came_by_trusted_proxy
        )

    def connectionLost(self, reason: Failure) -> None:
        """Note that the client is gone."""
        super().connectionLost(reason)
        self._end_trace()

    def _end(self) -> None:
        try:
            self._end_trace()
        finally:
            super()._end()  # which may answer what the client has sent after this request

    def _end_trace(self) -> None:
        trace, self.trace = self.trace, None
        if trace is not None:
            method = self.method.decode("ascii") if self.method in _METHODS else _OTHER_METHOD
            route = self.path.decode("ascii") if self.path in self.reserved else DATA_ROUTE
            is_answered = bool(self.startedWriting)
            attributes = {**self._describe(), "http.request.method": method, "http.route": route}
            if is_answered:
                attributes["http.response.status_code"] = int(self.code)
            failed = not is_answered or self.code >= 500
            trace.end(f"{method} {route}", attributes, failed=failed)

    def _describe(self) -> dict[str, str | int | bool]:
        described: dict[str, str | int | bool] = {
            "url.scheme": "https" if self.isSecure() else "http",
            "url.path": self.shown_path,
            "network.protocol.version": self.clientproto.decode("ascii").removeprefix("HTTP/"),
        }
        if address := address_of(self):
            described["client.address"] = address
        question = self.head_memory.question
        if isinstance(question, Question):
            described["treedb.project"] = question.name.project
            described["treedb.database"] = question.name.database
        request_id = getattr(self, "request_id", None)
        if request_id is not None:
            described["treedb.request_id"] = str(request_id)
        return described


def traced(
    kind: type[Request], tracer: Tracer, reserved: Iterable[tuple[bytes, ...]]
) -> type[Request]:
    """Return the requests of a kind that have spans of `tracer`.

    `reserved` are the paths that are routes of their own, as segments.
    """
    paths = frozenset(b"/" + b"/".join(segments) for segments in reserved)
    bases = (TracedRequest,) if kind is Request else (TracedRequest, kind)
    return type(f"Traced{kind.__name__}", bases, {"tracer": tracer, "reserved": paths})
