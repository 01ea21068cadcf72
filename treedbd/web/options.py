"""What the web layer is configured with."""

from __future__ import annotations

import attrs

from treedbd.counts import Counting
from treedbd.limits import Limits, StreamLimits


@attrs.frozen
class WebOptions:
    """Settings of the interface.

    `domains` are those whose subdomains name databases, in lower case. `default_project` is
    addressed if neither host nor `ns` names a project; empty for none. With `any_host` a host
    outside the domains names nothing, else it is misdirected. `cors_origins` holds `*` or origins.
    With `only_local_pages`, in development mode, requests of pages of other origins are refused.
    With `compression` longer responses are encoded as their clients accept it. `counts` are the
    streams of all processes that serve the same clients.
    """

    domains: tuple[str, ...] = ()
    default_project: str = ""
    any_host: bool = False
    etag_headers: tuple[str, ...] = ("Vendor", "Firebase", "TreeDB")
    cors_origins: tuple[str, ...] = ("*",)
    only_local_pages: bool = False
    compression: bool = True
    limits: Limits = Limits()
    streams: StreamLimits = StreamLimits()
    counts: Counting | None = None
