"""Open the ports of endpoints; an error says why one cannot be opened, a URL where one is.

A socket that is open already is adopted: one that systemd has passed, or that the parent of workers
has opened. It belongs to its opener too, so nothing here changes or ends it: at the stop only this
process's reference to it is closed, and what connects then waits for the next process.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from typing import Any, Final

import attrs
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.internet.tcp import Port as TcpPort
from twisted.internet.unix import Port as UnixPort
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from treedbd.config.certificate import ServerContext
from treedbd.config.endpoints import Endpoint
from treedbd.errors import OperatorError

ACCEPTED_AT_ONCE: Final = 16
"""Connections of a port that are accepted before others have their turn, each some 0.5 ms."""


class CannotListen(OperatorError):
    """An endpoint that cannot be opened."""


class PortInUse(CannotListen):
    """An endpoint that cannot be opened because a program listens there already."""


def open_endpoint(
    endpoint: Endpoint, reactor: Any, factory: IProtocolFactory, context: ServerContext | None
) -> IListeningPort:
    """Open an endpoint and return its port; with a `context` connections use TLS.

    Raises `CannotListen`.
    """
    if context is not None:
        factory = in_tls(factory, context)
    opened: list[IListeningPort | Failure] = []
    try:
        if endpoint.is_passed:
            return accept_at_most(ACCEPTED_AT_ONCE, _open_passed(endpoint, reactor, factory))
        listening: Deferred[IListeningPort] = _without_tls(endpoint, reactor).listen(factory)
    except (ValueError, TypeError) as error:
        raise CannotListen(
            endpoint.text,
            f"cannot be opened ({error})",
            "correct it, or choose another endpoint",
        ) from None
    listening.addBoth(opened.append)
    if not opened:
        listening.cancel()
        raise _cannot_listen(endpoint, TimeoutError("it did not open immediately"))
    port = opened[0]
    if isinstance(port, Failure):
        raise _cannot_listen(endpoint, port.value)
    return accept_at_most(ACCEPTED_AT_ONCE, port)


def accept_at_most(count: int, port: IListeningPort) -> IListeningPort:
    """Bound how many connections a port accepts each time that it is ready.

    Twisted accepts 20 more each time, for as long as more connect than it accepts. A port that is
    not one of its own for a reactor that polls stays as it is.
    """
    if isinstance(port, TcpPort):
        own: Any = port
        accept_some = own.doRead

        def accept_few() -> None:
            own.numberAccepts = min(own.numberAccepts, count)
            accept_some()

        own.doRead = accept_few
    return port


def in_tls(factory: IProtocolFactory, context: ServerContext) -> IProtocolFactory:
    """Return a factory whose connections use TLS."""
    wrapped: IProtocolFactory = TLSMemoryBIOFactory(context, False, factory)
    return wrapped


def is_local(address: object) -> bool:
    """Return whether only this machine can connect to a socket that is bound to an address."""
    if isinstance(address, UNIXAddress):
        return True
    if not isinstance(address, IPv4Address | IPv6Address):
        return False
    return ipaddress.ip_address(address.host).is_loopback


def adopt_port(
    reactor: Any, descriptor: int, family: int, factory: IProtocolFactory
) -> IListeningPort:
    """Accept connections of a listening socket, of which another process has a descriptor too.

    `descriptor` stays open and belongs to the caller.
    """
    if family != socket.AF_UNIX:
        os.set_blocking(descriptor, False)
        port: IListeningPort = reactor.adoptStreamPort(descriptor, family, factory)
        return port
    with socket.socket(fileno=os.dup(descriptor)) as bound:
        adopted = _AdoptedUnixPort(bound.getsockname(), factory, reactor=reactor)
        adopted.adopt(bound.dup())
    return adopted


class _AdoptedUnixPort(UnixPort):
    """A Unix socket of another process: neither its file nor its backlog is changed.

    Twisted would set the mode of the file, listen again with a backlog of its own, and at the end
    remove the file and shut the socket down for all that have it.
    """

    _shouldShutdown = False

    def adopt(self, listening: socket.socket) -> None:
        """Accept from a socket."""
        self.socket = listening
        self.startListening()

    def startListening(self) -> None:
        """Accept connections."""
        port: Any = self
        port.socket.setblocking(False)
        port.factory.doStart()
        port.connected = True
        port.fileno = port.socket.fileno
        port.numberAccepts = 100
        port.startReading()

    def connectionLost(self, reason: Failure) -> None:
        """Close this reference to the socket."""
        TcpPort.connectionLost(self, reason)


def _without_tls(endpoint: Endpoint, reactor: Any) -> IStreamServerEndpoint:
    """Return the endpoint as Twisted has it; one with TLS as the port below it."""
    if endpoint.kind == "ssl":
        below: IStreamServerEndpoint = TCP4ServerEndpoint(
            reactor, endpoint.port, endpoint.backlog, endpoint.interface
        )
        return below
    found: IStreamServerEndpoint = serverFromString(reactor, endpoint.twisted_string)
    return found


def _open_passed(endpoint: Endpoint, reactor: Any, factory: IProtocolFactory) -> IListeningPort:
    """Adopt a socket that systemd has passed; it stays open until the process ends."""
    try:
        # Twisted knows the descriptors: it has taken them out of the environment.
        descriptor: int = getattr(serverFromString(reactor, endpoint.twisted_string), "fileno")  # noqa: B009
        with socket.socket(fileno=os.dup(descriptor)) as passed:
            family = passed.family
            is_stream = passed.type == socket.SOCK_STREAM
            is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except (LookupError, OSError):
        raise CannotListen(
            endpoint.text,
            "cannot be opened (systemd has passed no such socket)",
            "start the socket unit, whose FileDescriptorName= or place the endpoint names",
        ) from None
    if not is_stream or not is_listening:
        raise CannotListen(
            endpoint.text,
            "cannot be opened (it is no listening stream socket)",
            "let the socket unit have ListenStream=, and not Accept=yes",
        )
    os.set_inheritable(descriptor, False)
    return adopt_port(reactor, descriptor, family, factory)


def url_of(endpoint: Endpoint, address: object) -> str:
    """Return the URL of an open endpoint, at its address, as this machine reaches it.

    That of an endpoint for a proxy begins with `haproxy:`: others cannot use it.
    """
    if endpoint.is_proxied:
        return f"haproxy:{url_of(attrs.evolve(endpoint, is_proxied=False), address)}"
    if isinstance(address, UNIXAddress):
        return f"unix:{os.fsdecode(address.name or b'')}"
    if not isinstance(address, IPv4Address | IPv6Address):
        return endpoint.text
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound
    host = local.get(address.host, address.host)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.is_secure else 'http'}://{shown}:{address.port}"


def _cannot_listen(endpoint: Endpoint, error: BaseException | None) -> CannotListen:
    if isinstance(error, CannotListenError) and isinstance(error.socketError, OSError):
        error = error.socketError
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number else str(error)
    remedy = "stop the program that uses it, or choose another port"
    if number == errno.EACCES and endpoint.kind == "unix":
        remedy = "let the user that runs treedb write to its directory, or choose another endpoint"
    elif number == errno.EACCES:
        remedy = (
            "a port below 1024 needs the capability CAP_NET_BIND_SERVICE "
            "(AmbientCapabilities= in a systemd unit); grant it, or choose another port"
        )
    elif number == errno.EADDRINUSE:
        return PortInUse(endpoint.text, f"cannot be opened ({reason})", remedy)
    elif number == errno.EADDRNOTAVAIL:
        remedy = "use an address of this machine as its interface"
    return CannotListen(endpoint.text, f"cannot be opened ({reason})", remedy)
