"""What is recorded of a request for OpenTelemetry: the seam between the service and the exporter.

A request that is sampled has a `Trace`, which is handed down with it; every other one has None, and
costs nothing else. A part of its work is recorded when it is over, as a span below that of the
request. What is recorded must not hold a token or data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

Attributes: TypeAlias = Mapping[str, str | int | bool]

NO_ATTRIBUTES: Final[Attributes] = {}

now_ns: Callable[[], int] = time.time_ns
"""The clock of spans: nanoseconds since 1970."""


class Trace(Protocol):
    """The span of one request that is sampled.

    One class has it, in `operating/opentelemetry`, whose library is not installed everywhere.
    """

    def record(
        self,
        name: str,
        began_ns: int,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        failed: bool = False,
    ) -> None:
        """Record a part of the request that is over now, as a child of its span."""
        ...

    def end(self, name: str, attributes: Attributes, *, failed: bool) -> None:
        """End the span of the request; parts of it may be recorded later."""
        ...


class Tracer(Protocol):
    """What decides which requests are sampled, and exports their spans.

    One class has it, `operating/opentelemetry.OpenTelemetryTracer`.
    """

    def begin(self, traceparent: bytes | None, *, is_trusted: bool) -> Trace | None:
        """Begin the span of a request; return None if it is not sampled.

        `traceparent` is the header of W3C Trace Context, None without one. That of a trusted proxy
        decides; any other can only leave out what would be sampled.
        """
        ...

    def start(self) -> None:
        """Begin to sample and to export."""
        ...

    async def stop(self) -> None:
        """Export what waits, for a bounded time, and end."""
        ...
