"""The link of a service to OpenTelemetry, whose libraries are loaded only if spans are exported."""

from __future__ import annotations

from typing import Any

from twisted.python.reflect import namedAny

from treedbd.config.tracing_settings import TracingSettings
from treedbd.traces import Tracer


def make_tracer(settings: TracingSettings, reactor: Any) -> Tracer | None:
    """Return what exports spans as the settings say, None if they do not want any."""
    if not settings.endpoint:
        return None
    make = namedAny("treedbd.opentelemetry.OpenTelemetryTracer")
    tracer: Tracer = make(settings.endpoint, settings.sample, settings.service_name, reactor)
    return tracer
