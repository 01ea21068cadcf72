"""What the web layer is configured with."""

from __future__ import annotations

import attrs

from treedbd.limits import Limits, StreamLimits


@attrs.frozen
class WebOptions:
    """Settings of the interface.

    `domains` are those whose subdomains name databases, in lower case. `default_project` is
    addressed if neither host nor `ns` names a project; empty for none. `cors_origins` holds `*` or
    origins.
    """

    domains: tuple[str, ...] = ()
    default_project: str = ""
    etag_headers: tuple[str, ...] = ("Vendor", "Firebase", "TreeDB")
    cors_origins: tuple[str, ...] = ("*",)
    limits: Limits = Limits()
    streams: StreamLimits = StreamLimits()
