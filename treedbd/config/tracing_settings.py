"""The settings of OpenTelemetry, `[tracing]`."""

from __future__ import annotations

import importlib.util
from typing import Final
from urllib.parse import urlsplit

import attrs

from treedbd.config.values import ConfigError, SettingLocation, key, number, text
from treedbd.files import read_installation

_LIBRARIES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_PATH: Final = "/v1/traces"


def _endpoint(raw: object, location: SettingLocation) -> str:
    """Read the URL of a collector; one without a path gets that of OTLP over HTTP."""
    url = text(raw, location)
    if not url:
        return url
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable():
        raise location.error(
            "must be a URL such as http://127.0.0.1:4318, without a user, a query or a fragment",
            "correct it, and put what is secret into OTEL_EXPORTER_OTLP_HEADERS",
        )
    return url if parts.path.strip("/") else url.rstrip("/") + _PATH


def _name(raw: object, location: SettingLocation) -> str:
    name = text(raw, location)
    if not name or not name.isprintable():
        raise location.error("must be a name")
    return name


@attrs.frozen
class TracingSettings:
    """`[tracing]`: where spans are sent, which part of the requests, and by which name."""

    endpoint: str = key("", _endpoint)
    sample: float = key(1.0, number(0, 1))
    service_name: str = key("treedb", _name)

    def check_libraries(self, location: SettingLocation) -> None:
        """Raise `ConfigError` if spans are to be sent and the libraries are not installed."""
        if self.endpoint and not all(map(_is_installed, _LIBRARIES)):
            raise _missing(location)


def _missing(location: SettingLocation) -> ConfigError:
    return location.at("endpoint").error(
        "needs the libraries of OpenTelemetry, which are not installed",
        f"run {read_installation().line_for('opentelemetry')}",
    )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
