"""The HTTP/1.1 channel of the daemon: a factory to give to an endpoint, plain or `ssl:`.

It stands where `twisted.web.server.Site` stands elsewhere and renders the same resources. What is
different lies below: `connection` tells how a connection lives, `framing` how requests are read,
`lean` how they are answered, `register` how connections are counted, timed and ended, `limits`
what bounds them. Nothing here knows what the resource serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory, IReactorTime
from twisted.internet.protocol import Factory
from twisted.web.resource import IResource
from twisted.web.server import Site
from zope.interface import implementer

from treedbd.web.channel.connection import Channel, Served
from treedbd.web.channel.lazy import LazyRequest
from treedbd.web.channel.limits import ChannelLimits
from treedbd.web.channel.refusal import HeaderLines
from treedbd.web.channel.register import Register


@implementer(IProtocolNegotiationFactory)
class ChannelFactory(Factory):
    """Makes a `Channel` for every connection of one or more ports."""

    noisy = False

    def __init__(
        self,
        resource: IResource,
        limits: ChannelLimits,
        clock: IReactorTime,
        log_access: Callable[[LazyRequest], None] | None = None,
        wall_clock: Callable[[], float] = time.time,
        refusal_headers: HeaderLines = (),
    ) -> None:
        """Serve `resource`: a leaf gets every request, else its children are looked up.

        Deadlines are counted with `clock`; `wall_clock` gives the seconds since 1970 for the Date
        of replies. `log_access` is called with every answered request, and must show no more of its
        target than `shown_path`. `refusal_headers` go out with what the channel refuses itself.
        """
        site = Site(resource, reactor=clock)
        judges_size = bool(getattr(resource, "judges_size", False))
        self._served = Served(
            resource, bool(resource.isLeaf), judges_size, site, log_access, tuple(refusal_headers)
        )
        self._register = Register(limits, clock, wall_clock)

    @property
    def connections(self) -> int:
        """How many connections are open, those not counted that were turned away."""
        return self._register.connections

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written so far, to closed connections too."""
        return self._register.bytes_sent

    @property
    def refusals(self) -> dict[int, int]:
        """How many answers the channel gave itself, by status."""
        return dict(self._register.refusals)

    def buildProtocol(self, addr: IAddress | None) -> Channel:
        """Make the protocol of a connection."""
        return Channel(self._register, self._served)

    def acceptableProtocols(self) -> list[bytes]:
        """Return what to agree on over TLS."""
        return [b"http/1.1"]

    def drain(self) -> Deferred[None]:
        """Close idle connections now, the others after the request under way.

        New connections are refused from here on. Fires when no connection is left; how long to
        wait is the caller's to decide.
        """
        return self._register.drain()

    def abort(self) -> None:
        """Drop all connections that are left."""
        self._register.abort()
