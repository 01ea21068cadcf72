"""Spans for a collector of OpenTelemetry, exported over OTLP and HTTP.

Spans wait in a bounded queue, and a thread of the library exports them, so no request waits for a
collector. Spans without room in the queue, or without a collector, are dropped, with a warning in
the log at most once a minute.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.logger import Logger

from treedbd import __version__
from treedbd.traces import NO_ATTRIBUTES, Attributes, Trace, now_ns

FLUSH_SECONDS: Final = 2.0
"""How long the end of the service waits for spans to be exported."""
EXPORT_SECONDS: Final = 5.0
"""How long one export may take, retries included."""
WARNING_SECONDS: Final = 60.0
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED: Final = 0x01


class OpenTelemetryTracer:
    """A `Tracer` that exports to one collector."""

    _log = Logger()

    def __init__(self, endpoint: str, sample: float, service_name: str, reactor: Any) -> None:
        """Export the fraction `sample` of the requests to `endpoint`; start nothing yet."""
        self._endpoint = endpoint
        self._sample = sample
        self._service_name = service_name
        self._reactor = reactor
        self._provider: TracerProvider | None = None
        self._tracer: Any = None
        self._warned_at = -WARNING_SECONDS

    def start(self) -> None:
        """Begin to sample and to export."""
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        resource = Resource.create(
            {
                "service.name": self._service_name,
                "service.version": __version__,
                "service.instance.id": str(uuid.uuid4()),
            }
        )
        exporter = OTLPSpanExporter(endpoint=self._endpoint, timeout=EXPORT_SECONDS)
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        watched = _WatchedExporter(exporter, self._note_failure)
        self._provider.add_span_processor(BatchSpanProcessor(watched))
        self._tracer = self._provider.get_tracer("treedb", __version__)

    def begin(self, traceparent: bytes | None, *, is_trusted: bool) -> Trace | None:
        """Begin the span of a request; return None if it is not sampled."""
        if self._tracer is None:
            return None
        found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
        is_wanted = found is None or bool(int(found[3], 16) & _SAMPLED)
        # Only a trusted proxy may cause more requests to be sampled than the setting says.
        decides = is_trusted and found is not None
        if not is_wanted or not (decides or random.random() < self._sample):  # noqa: S311
            return None
        parent = None if found is None else _remote(found)
        span = self._tracer.start_span("request", parent, SpanKind.SERVER)
        return _RequestTrace(self._tracer, span)

    async def stop(self) -> None:
        """Export the spans that wait, for at most `FLUSH_SECONDS`, and end."""
        provider, self._provider, self._tracer = self._provider, None, None
        if provider is None:
            return
        done: Deferred[None] = Deferred()

        def flush() -> None:
            try:
                provider.force_flush(int(FLUSH_SECONDS * 1000))
            finally:
                self._reactor.callFromThread(_fire, done)
                provider.shutdown()

        # The end of the process does not wait for a daemon thread.
        threading.Thread(target=flush, name="traces", daemon=True).start()
        try:
            await done.addTimeout(FLUSH_SECONDS, self._reactor)
        except DeferredTimeoutError:
            self._warn()

    def _note_failure(self) -> None:
        """Note, in the thread of the export, that spans were dropped."""
        self._reactor.callFromThread(self._warn)

    def _warn(self) -> None:
        now = self._reactor.seconds()
        if now - self._warned_at >= WARNING_SECONDS:
            self._warned_at = now
            self._log.warn(
                "Traces cannot be exported to {endpoint}, and are dropped until they can.",
                endpoint=self._endpoint,
            )


class _RequestTrace:
    """The span of one request (`Trace`)."""

    def __init__(self, tracer: Any, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span)

    def record(
        self,
        name: str,
        began_ns: int,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        failed: bool = False,
    ) -> None:
        """Record a part of the request that ends now."""
        span = self._tracer.start_span(
            name, self._context, attributes=attributes, start_time=began_ns
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now_ns())

    def end(self, name: str, attributes: Attributes, *, failed: bool) -> None:
        """End the span of the request."""
        self._span.update_name(name)
        self._span.set_attributes(dict(attributes))
        if failed:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _WatchedExporter(SpanExporter):
    """An exporter that reports failures."""

    def __init__(self, exporter: SpanExporter, note_failure: Callable[[], None]) -> None:
        self._exporter = exporter
        self._note_failure = note_failure

    def export(self, spans: Any) -> SpanExportResult:
        """Export spans."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self._note_failure()
        return result

    def shutdown(self) -> None:
        """End, and abort an export under way."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return whether all spans are exported; this exporter keeps none."""
        return self._exporter.force_flush(timeout_millis)


def _remote(found: re.Match[bytes]) -> Any:
    """Return the context of the span of the sender."""
    parent = SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(_SAMPLED))
    return set_span_in_context(NonRecordingSpan(parent))


def _fire(done: Deferred[None]) -> None:
    if not done.called:
        done.callback(None)
