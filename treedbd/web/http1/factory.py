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
from twisted.internet.interfaces import IProtocolFactory, IProtocolNegotiationFactory, IReactorTime
from twisted.internet.protocol import Factory
from twisted.web.resource import IResource
from twisted.web.server import Site
from zope.interface import implementer

from treedbd.held_bytes import HeldBytes
from treedbd.http1.interface import IHttp1Resource
from treedbd.limits import Limits
from treedbd.web.http1.connection import Http1Connection
from treedbd.web.http1.connections import Connections
from treedbd.web.http1.proxy_protocol import ProxiedFactory
from treedbd.web.http1.served import DEFAULT_OPTIONS, ServedResource, ServerOptions


@implementer(IProtocolNegotiationFactory)
class Http1Factory(Factory):
    """Makes an `Http1Connection` for every connection of one or more ports."""

    noisy = False

    def __init__(
        self,
        resource: IResource,
        limits: Limits,
        clock: IReactorTime,
        options: ServerOptions = DEFAULT_OPTIONS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve `resource`: a leaf gets every request, else its children are looked up.

        Time limits are counted with `clock`; `wall_clock` returns the seconds since 1970 for the
        Date of replies.
        """
        served = ServedResource(
            resource,
            bool(resource.isLeaf),
            IHttp1Resource.providedBy(resource),
            Site(resource, reactor=clock),
            options,
        )
        self._connections = Connections(served, limits, clock, wall_clock)
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

    @property
    def refusals(self) -> dict[str, int]:
        """How many errors the server has sent by itself without any resource, by code."""
        return dict(self._connections.refusals)

    @property
    def cut_off(self) -> dict[str, int]:
        """How many replies ended before their end, by the reason."""
        return dict(self._connections.cut_off)

    @property
    def held(self) -> HeldBytes:
        """What the connections make the server hold."""
        return self._connections.held

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
