"""Open the ports of endpoints; an error says why one cannot be opened, a URL where one is."""

from __future__ import annotations

import errno
import os

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import SSL4ServerEndpoint, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.python.failure import Failure

from treedbd.config.certificate import ServerContext
from treedbd.config.endpoints import Endpoint
from treedbd.errors import OperatorError


class CannotListen(OperatorError):
    """An endpoint that cannot be opened."""


class PortInUse(CannotListen):
    """An endpoint that cannot be opened because a program listens there already."""


def open_endpoint(
    endpoint: Endpoint, reactor: object, factory: IProtocolFactory, context: ServerContext | None
) -> IListeningPort:
    """Open an endpoint and return its port; `context` is for `ssl`. Raises `CannotListen`."""
    opened: list[IListeningPort | Failure] = []
    try:
        listening: Deferred[IListeningPort] = (
            serverFromString(reactor, endpoint.twisted_string)
            if context is None
            else SSL4ServerEndpoint(
                reactor, endpoint.port, context, endpoint.backlog, endpoint.interface
            )
        ).listen(factory)
    except LookupError:
        raise CannotListen(
            endpoint.text,
            "cannot be opened (there is no such socket)",
            "let a socket unit of systemd pass it, or choose another endpoint",
        ) from None
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
    return port


def url_of(endpoint: Endpoint, address: object) -> str:
    """Return the URL of an open endpoint, at its address, as this machine reaches it."""
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
