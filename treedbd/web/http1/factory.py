"""The HTTP/1.1 server of the daemon: a factory to give to an endpoint, plain or `ssl:`.

It replaces `twisted.web.server.Site` and renders the same resources. `connection` is the protocol
of a connection, `parser` parses requests, `request` and `reply` represent them, `connections`
counts, times and ends connections, and `treedbd.limits` bounds them. Nothing here knows what the
resource serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IProtocolFactory,
    IProtocolNegotiationFactory,
    IReactorTime,
)
from twisted.internet.protocol import Factory
from twisted.web.resource import IResource
from twisted.web.server import Site
from zope.interface import implementer

from treedbd.counts import Counting
from treedbd.limits import Limits
from treedbd.trusted_proxies import TrustedProxies
from treedbd.web.http1.connection import Http1Connection
from treedbd.web.http1.connections import (
    NO_HEADERS,
    NO_LOGGING,
    Connections,
    CountsCallers,
    CountsRequests,
    OwnHeaders,
    RequestLogging,
    ServedResource,
)
from treedbd.web.http1.interface import IHttp1Resource
from treedbd.web.http1.proxied import ProxiedFactory
from treedbd.web.http1.request import Request


@implementer(IProtocolNegotiationFactory)
class Http1Factory(Factory):
    """Makes an `Http1Connection` for every connection of one or more ports."""

    noisy = False

    def __init__(  # noqa: PLR0913, PLR0917 - all but three are given by name
        self,
        resource: IResource,
        limits: Limits,
        clock: IReactorTime,
        log_access: Callable[[Request], None] | RequestLogging | None = None,
        wall_clock: Callable[[], float] = time.time,
        headers: OwnHeaders = NO_HEADERS,
        counts: Counting | None = None,
        activity: CountsRequests | None = None,
        rates: CountsCallers | None = None,
    ) -> None:
        """Serve `resource`: a leaf gets every request, else its children are looked up.

        Time limits are counted with `clock`; `wall_clock` returns the seconds since 1970 for the
        Date of replies. `log_access` is called with every answered request, and must show no more
        of its target than `shown_path`. `headers` are added to replies. `counts` are the
        connections of all processes that serve the same clients; `activity` counts what they
        request, `rates` bound it.
        """
        site = Site(resource, reactor=clock)
        if log_access is None:
            log_access = NO_LOGGING
        elif not isinstance(log_access, RequestLogging):
            log_access = RequestLogging(log_access)
        served = ServedResource(
            resource,
            bool(resource.isLeaf),
            IHttp1Resource.providedBy(resource),
            site,
            log_access,
            headers,
            rates,
        )
        self._connections = Connections(served, limits, clock, wall_clock, counts, activity)
        self.protocol = partial(Http1Connection, self._connections)

    @property
    def connections(self) -> int:
        """How many connections are open, without those that were turned away."""
        return self._connections.count

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written so far, to closed connections too."""
        return self._connections.bytes_sent

    @property
    def errors(self) -> dict[int, int]:
        """How many errors the server has sent by itself, by status."""
        return dict(self._connections.errors)

    def trust(self, proxies: TrustedProxies) -> None:
        """Let the headers of `proxies` count; to be called before there are connections."""
        self._connections.trust(proxies)

    def acceptableProtocols(self) -> list[bytes]:
        """Return the protocols to negotiate over TLS."""
        return [b"http/1.1"]

    def behind_proxy(
        self, factory: IProtocolFactory, is_trusted: Callable[[str], bool]
    ) -> ProxiedFactory:
        """Return the factory of a port whose connections begin with a PROXY protocol header.

        `factory` is this one, or one that wraps it for TLS; `is_trusted` says from which addresses
        proxies connect.
        """
        return ProxiedFactory(self._connections, factory, is_trusted)

    def drain(self) -> Deferred[None]:
        """Close idle connections now, the others after the request under way.

        New connections are refused from now on. Fires when no connection is left; the caller
        decides how long to wait.
        """
        return self._connections.drain()

    def abort(self) -> None:
        """Drop all connections that are left."""
        self._connections.abort()
