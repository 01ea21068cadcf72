"""The options of the interface: what the web layer is configured with."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from treedbd.limits import Limits, RateLimits, StreamLimits
from treedbd.loop import Counting, Levelling
from treedbd.names import NO_PROXIES, TrustedProxies


@attrs.frozen
class DevelopmentFacts:
    """What the page at `/` shows in development mode.

    `certificate` is the file that verifies the service, `token` an admin's that all may know, None
    if there is none.
    """

    certificate: pathlib.Path
    token: str | None


@attrs.frozen
class WebOptions:
    """Settings of the interface.

    `domains` are those whose subdomains name databases, in lower case. `default_project` is
    addressed if neither host nor `ns` names a project; empty for none. With `any_host` a host
    outside the domains names nothing, else it is misdirected. `own_hosts` name nothing in any case:
    hosts of this machine, whose pages count as local, and patterns such as `*.local`, whose pages
    do not. `cors_origins` holds `*` or origins. With `only_local_pages`, in development mode,
    requests of pages of other origins are refused. `admin_token` replaces the token `owner`. With
    `compression` longer responses are encoded as their clients accept it. `counts` are the streams
    of all processes that serve the same clients, `levels` what they count for `rates`;
    `project_rates` are those of the projects that have rates of their own. With `has_realtime` the
    real-time protocol is served. What `trusted_proxies` say of a request counts. With
    `logs_requests` each request is logged, and what its sender may have overlooked. With `has_page`
    there is a page for browsers, and the documentation; what that page shows in `development` mode
    is None in any other. `refused` is called with each request that is answered with an error, that
    error, and its code.
    """

    domains: tuple[str, ...] = ()
    default_project: str = ""
    any_host: bool = False
    etag_headers: tuple[str, ...] = ("Vendor", "Firebase", "TreeDB")
    cors_origins: tuple[str, ...] = ("*",)
    only_local_pages: bool = False
    own_hosts: tuple[str, ...] = ()
    admin_token: str | None = attrs.field(default=None, repr=False)
    compression: bool = True
    limits: Limits = Limits()
    streams: StreamLimits = StreamLimits()
    rates: RateLimits = RateLimits()
    project_rates: Mapping[str, RateLimits] = MappingProxyType({})
    counts: Counting | None = None
    trusted_proxies: TrustedProxies = NO_PROXIES
    levels: Levelling | None = None
    logs_requests: bool = False
    has_page: bool = True
    has_realtime: bool = True
    development: DevelopmentFacts | None = None
    refused: Callable[[Any, BaseException, str], None] | None = None
