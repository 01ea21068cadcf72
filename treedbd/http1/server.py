"""The HTTP/1.1 server of the daemon: a factory to give to an endpoint, plain or `ssl:`.

`Http1Factory` replaces `twisted.web.server.Site` and renders the same resources. `connection` is
the protocol of a connection, `connections` the registry that counts, times and ends them, `parser`
parses requests, `request` represents them and their replies, and `treedbd.limits` bounds them.
Nothing here knows what the resource serves.

An `EntranceFactory` is for ports whose requests the resource distinguishes from others: by name.

A `ProxiedFactory` is for connections from a proxy that begin with a header of the PROXY protocol,
before TLS. A `ProxiedConnection` reads only that header. Then it makes the protocol of the
connection proper, and hands over the transport, with the address of the client in place of the
proxy's. So from there on nothing is slower or different, and limits and logs read the address of
the client. Twisted's own wrapper would announce the connection before it knows the address. The
connection of a peer that is not trusted is closed at once. Until its header is complete, a
connection counts for `limits.connections`, and ends after `handshake_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IProtocol,
    IProtocolFactory,
    IProtocolNegotiationFactory,
    IReactorTime,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource
from zope.interface import implementer

from treedbd.http1.connection import Http1Connection
from treedbd.http1.parser import CutOff
from treedbd.http1.proxies import InvalidProxyHeader, read_proxy_header
from treedbd.http1.registry import DEFAULT_OPTIONS, Connections, RequestLogging, ServerOptions
from treedbd.limits import Limits

PROTOCOL: Final = b"http/1.1"
"""The protocol that is negotiated over TLS."""
_WARN_S: Final = 60.0

_log = Logger()


@implementer(IProtocolNegotiationFactory)
class Http1Factory(Factory):
    """Makes an `Http1Connection` for every connection of one or more ports.

    Attributes:
        connections: their registry.

    """

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
        self.connections: Final = Connections(
            resource=resource,
            limits=limits,
            clock=clock,
            wall_clock=wall_clock,
            options=options,
        )
        self.protocol = partial(Http1Connection, self.connections)

    def acceptableProtocols(self) -> list[bytes]:
        """Return the protocols to negotiate over TLS."""
        return [PROTOCOL]

    def behind_proxy(
        self, factory: IProtocolFactory, is_trusted: Callable[[str], bool]
    ) -> ProxiedFactory:
        """Return the factory of a port whose connections begin with a PROXY protocol header.

        `factory` is this one, or one that wraps it for TLS; `is_trusted` says from which addresses
        proxies connect.
        """
        return ProxiedFactory(self.connections, factory, is_trusted)

    def with_entrance(self, name: str) -> EntranceFactory:
        """Return the factory of ports whose requests have an entrance of this name."""
        return EntranceFactory(self.connections, name)

    def drain(self) -> Deferred[None]:
        """Close idle connections now, the others after the request under way.

        New connections are refused from now on. Fires when no connection is left; the caller
        decides how long to wait.
        """
        return self.connections.drain()

    def abort(self) -> None:
        """Drop all connections that are left."""
        self.connections.abort()


@implementer(IProtocolNegotiationFactory)
class EntranceFactory(Factory):
    """Makes an `Http1Connection` for every connection of some ports, which have one entrance.

    The connections belong to the registry of an `Http1Factory`, as those of its own ports do.
    """

    noisy = False

    def __init__(self, connections: Connections, name: str) -> None:
        """Add the connections to `connections`; their requests have the entrance `name`."""
        self.protocol = partial(Http1Connection, connections, name)

    def acceptableProtocols(self) -> list[bytes]:
        """Return the protocols to negotiate over TLS."""
        return [PROTOCOL]


class ProxiedFactory(Factory):
    """Makes a `ProxiedConnection` for every connection of trusted proxies.

    Attributes:
        connections: the registry to which they belong.
        factory: makes the protocols of the connections proper.

    """

    noisy = False

    def __init__(
        self,
        connections: Connections,
        factory: IProtocolFactory,
        is_trusted: Callable[[str], bool],
    ) -> None:
        """Serve connections by `factory`, which belongs to `connections`, after their headers.

        `is_trusted` returns whether an address is that of a trusted proxy; it is empty for a Unix
        socket.
        """
        self.connections: Final = connections
        self.factory: Final = factory
        self._is_trusted = is_trusted
        self._next_warning = -inf

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """Return a protocol, or None if the peer is not trusted, which closes the connection."""
        peer = getattr(addr, "host", "")
        if self._is_trusted(peer):
            return ProxiedConnection(self)
        self.warn("{peer} is not a trusted proxy", peer)
        return None

    def doStart(self) -> None:
        """Start the factory of the connections proper."""
        self.factory.doStart()

    def doStop(self) -> None:
        """Stop the factory of the connections proper."""
        self.factory.doStop()

    def warn(self, what: str, peer: str) -> None:
        """Log why a connection was closed, at most once a minute."""
        now = self.connections.clock.seconds()
        if now >= self._next_warning:
            self._next_warning = now + _WARN_S
            _log.warn(
                "A connection to a haproxy: endpoint is closed: " + what + ". Further ones of "
                "this minute are not logged.",
                peer=peer,
            )


class ProxiedConnection(Protocol):
    """A connection whose header of the PROXY protocol is not complete yet."""

    transport: Any
    bytes_sent = 0

    def __init__(self, proxied: ProxiedFactory) -> None:
        """Belong to `proxied`, by whose factory the protocol of the connection proper is made."""
        self._proxied = proxied
        self.connections = proxied.connections
        self._received = b""
        self._deadline = inf

    def connectionMade(self) -> None:
        """Wait for the header, or refuse the proxy."""
        connections = self.connections
        self._deadline = connections.clock.seconds() + connections.limits.handshake_s
        if connections.admit(self, "") is not None:
            self.abort()

    def dataReceived(self, data: bytes) -> None:
        """Receive a part of the header, or all of it and more."""
        self._received += data
        try:
            header = read_proxy_header(self._received)
        except InvalidProxyHeader:
            peer = getattr(self.transport.getPeer(), "host", "")
            self._proxied.warn("{peer} does not begin with a header of the PROXY protocol", peer)
            self.abort()
            return
        if header is None:
            return
        transport = self.transport
        peer, host = header.source or transport.getPeer(), header.destination or transport.getHost()
        protocol = self._proxied.factory.buildProtocol(peer)
        if protocol is None:
            self.abort()
            return
        self._hand_over(protocol, peer, host, self._received[header.length :])

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Forget the connection."""
        self.connections.remove(self)

    # From the registry of connections.

    def sweep(self, now: float) -> None:
        """Close a connection whose header does not arrive in time."""
        if now >= self._deadline:
            self.abort()

    def drain(self) -> None:
        """Close the connection: nothing was requested yet."""
        self.abort()

    def abort(self, _: CutOff = "failed") -> None:
        """Drop the connection."""
        self.transport.abortConnection()

    def set_logs(self, _: RequestLogging) -> None:
        """Do nothing: the connection proper has requests, and its logs from the registry."""

    def _hand_over(self, protocol: IProtocol, peer: IAddress, host: IAddress, rest: bytes) -> None:
        """Give the transport to the protocol of the connection proper."""
        transport = self.transport
        # Twisted's transports look up their protocol at every event.
        transport.protocol = protocol
        transport.getPeer = lambda: peer
        transport.getHost = lambda: host
        self.connections.remove(self)
        protocol.makeConnection(transport)
        if rest:
            protocol.dataReceived(rest)
