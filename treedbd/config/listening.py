"""The ports of a service: opened at its endpoints or adopted, with certificates and URLs.

`open_endpoint` opens one endpoint, `url_of` returns its URL. `Listening` has all endpoints that one
key of the settings names, and their certificates, which may be in the data directory.

A socket that systemd or the parent of workers has opened is adopted. It belongs to the process that
opened it, so it is neither changed nor shut down here: at the stop only the descriptor of this
process is closed, and clients that connect after that wait for the next process.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.endpoints import TCP4ServerEndpoint, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.internet.tcp import Port as TcpPort
from twisted.internet.unix import Port as UnixPort
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from treedbd.config.certificate import (
    AUTHORITY_KEY,
    LAN_CERTIFICATE,
    BadCertificate,
    ServerContext,
    ensure_lan_certificate,
    ensure_local_certificate,
)
from treedbd.config.endpoints import LOCAL_KEY, CertificateFiles, Endpoint
from treedbd.config.settings import Settings, open_to_others
from treedbd.config.values import ConfigError, SettingLocation
from treedbd.database.data_directory import prepare
from treedbd.errors import OperatorError, in_one_line
from treedbd.files import (
    READABLE_BY_OTHERS,
    WAS_READABLE_BY_OTHERS,
    close_to_others,
    is_open_to_others,
)
from treedbd.store.directory_lock import DirectoryInUse, find_other
from treedbd.store.engine import CannotOpenStore

ACCEPTED_AT_ONCE: Final = 16
"""How many connections a port accepts in one turn of the reactor; each costs some 0.5 ms."""
OpenPort: TypeAlias = Callable[[Endpoint, IProtocolFactory, ServerContext | None], IListeningPort]
BehindProxy: TypeAlias = Callable[[IProtocolFactory], IProtocolFactory]
"""Returns a factory whose connections begin with a header of the PROXY protocol."""

NEXT_PORTS: Final = 20
"""How many ports are tried in place of a default one that is in use."""


class CannotStart(Exception):
    """The service cannot start; `str()` is one sentence for the operator."""

    @classmethod
    def because(cls, error: Exception) -> CannotStart:
        """Return the error of a start that fails with `error`.

        If another daemon serves the data directory, the sentence has its URLs.
        """
        if not isinstance(error, DirectoryInUse) or not error.urls:
            return cls(str(error))
        urls, holder = " ".join(error.urls), f"process {error.holder}"
        return cls(
            in_one_line(
                f"treedb runs already: {urls} ({holder} with the data directory "
                f"{error.directory}): {error.remedy}."
            )
        )


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
            endpoint.text, f"cannot be opened ({error})", "correct it, or choose another endpoint"
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

    Otherwise Twisted accepts 20 more each time while more clients connect than it accepts. A port
    that is not a `TcpPort` is returned unchanged.
    """
    if isinstance(port, TcpPort):
        own: Any = port
        accept_some = own.doRead

        def accept_few() -> None:
            own.numberAccepts = min(own.numberAccepts, count)
            accept_some()

        own.doRead = accept_few
    return port


def url_of(endpoint: Endpoint, address: object) -> str:
    """Return the URL of an open endpoint at its address, for clients on this machine.

    The URL of an endpoint for a proxy begins with `haproxy:`, since clients cannot use it.
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
    """Accept connections of a listening socket that another process has open too.

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

    Twisted would set the mode of the file and listen again with a backlog of its own; at the end it
    would remove the file, and shut the socket down for all processes that have it open.
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
    """Return the endpoint of Twisted; for one with TLS that of the TCP port below it."""
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
        # Twisted has the descriptors: it has removed them from the environment.
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
            "cannot be opened (it is not a listening stream socket)",
            "give the socket unit ListenStream=, and not Accept=yes",
        )
    os.set_inheritable(descriptor, False)
    return adopt_port(reactor, descriptor, family, factory)


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


class Listening:
    """The endpoints for clients, or those for operators, as the settings name them.

    Attributes:
        ports: the open ports, with their endpoints.

    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        open_port: OpenPort | None = None,
        *,
        is_ops: bool = False,
    ) -> None:
        """Open nothing yet; `open_port` opens one endpoint, None for `open_endpoint`.

        The endpoints are those for clients, or with `is_ops` those of `ops_listen`.
        """
        self._is_ops = is_ops
        self._endpoints = settings.ops_listen if is_ops else settings.client_endpoints
        self.ports: list[tuple[Endpoint, IListeningPort]] = []
        self._settings = settings
        self._reactor = reactor
        self._open_port = self._open_by_reactor if open_port is None else open_port
        self._contexts: list[tuple[ServerContext, SettingLocation]] = []

    def open(
        self,
        factory: IProtocolFactory,
        behind_proxy: BehindProxy | None = None,
        console: IProtocolFactory | None = None,
    ) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`, with none open.

        `console` is the factory of the ports that `console_listen` names, None for `factory`.
        `behind_proxy` is needed by a process that accepts connections.
        """
        settings = self._settings
        console = factory if console is None else console
        try:
            for endpoint in self._endpoints:
                has_console = settings.names_for_console(endpoint)
                self._open(endpoint, console if has_console else factory, behind_proxy)
        except (CannotOpenStore, ConfigError) as error:
            self.close()
            raise CannotStart.because(error) from None
        except CannotStart:
            self.close()
            raise

    def _open(
        self,
        endpoint: Endpoint,
        factory: IProtocolFactory,
        behind_proxy: BehindProxy | None,
    ) -> None:
        location = self._location_of(endpoint)
        try:
            context = self._read_certificate(endpoint, location) if endpoint.is_secure else None
            if endpoint.is_proxied and behind_proxy is not None:
                # The header comes before TLS.
                inner = factory if context is None else in_tls(factory, context)
                opened = self._open_here_or_next(endpoint, behind_proxy(inner), None)
            else:
                opened = self._open_here_or_next(endpoint, factory, context)
        except (CannotListen, BadCertificate) as error:
            raise CannotStart(error.in_setting(location.source, location.key)) from None
        self.ports.append(opened)
        self._check_address(*opened, location)

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return [url_of(endpoint, port.getHost()) for endpoint, port in self.ports]

    def console_urls(self) -> list[str]:
        """Return those of the URLs that `console_listen` names."""
        return [
            url_of(endpoint, port.getHost())
            for endpoint, port in self.ports
            if self._settings.names_for_console(endpoint)
        ]

    def certificates_end_at(self) -> float | None:
        """Return when the first certificate ends, in seconds since 1970; None without one."""
        ends = [context.ends_at() for context, _ in self._contexts]
        return min((each for each in ends if each is not None), default=None)

    def reload(self) -> bool:
        """Read the certificates again, for new connections; return whether all are valid."""
        is_valid = True
        for context, location in self._contexts:
            try:
                context.reload()
            except BadCertificate as error:
                self._log.error(
                    "{reason} The certificate read before stays in use.",
                    reason=error.in_setting(location.source, location.key),
                )
                is_valid = False
        return is_valid

    def close(self) -> Deferred[Any]:
        """Stop accepting connections; fires when the ports are closed."""
        ports, self.ports = self.ports, []
        return gatherResults(
            [maybeDeferred(port.stopListening) for _, port in ports], consumeErrors=True
        )

    def ensure_data_directory(self) -> None:
        """Create the data directory if it is missing; raise `CannotOpenStore`."""
        if prepare(self._settings.data):
            self._log.warn(
                "Other users of this machine can enter {folder}: run chmod 700 on it.",
                folder=str(self._settings.data),
            )

    def _open_here_or_next(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> tuple[Endpoint, IListeningPort]:
        """Open an endpoint; if the port is a default one and in use, open the next free port."""
        try:
            return endpoint, self._open_port(endpoint, factory, context)
        except PortInUse as error:
            other = find_other(self._settings.data)
            if other is not None:
                raise other from None  # that daemon most likely uses the port
            if self._is_ops or not self._settings.has_default_ports:
                raise
            in_use = error
        for port in range(endpoint.port + 1, endpoint.port + 1 + NEXT_PORTS):
            moved = endpoint.at_port(port)
            with contextlib.suppress(PortInUse):
                opened = moved, self._open_port(moved, factory, context)
                self._log.warn(
                    "Port {port} is in use, by another program: listening on {next} instead.",
                    port=endpoint.port,
                    next=port,
                )
                return opened
        raise in_use

    def _check_address(
        self, endpoint: Endpoint, port: IListeningPort, location: SettingLocation
    ) -> None:
        """Raise `ConfigError` if other machines reach an adopted socket, and must not."""
        is_fixed = not endpoint.is_passed or self._settings.lets_others_reach(endpoint)
        if not is_fixed and not is_local(port.getHost()):
            raise open_to_others(self._settings, endpoint, location)

    def _open_by_reactor(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        return open_endpoint(endpoint, self._reactor, factory, context)

    def _read_certificate(self, endpoint: Endpoint, location: SettingLocation) -> ServerContext:
        files = endpoint.certificate or self._ensure_own_certificate()
        if is_open_to_others(files.key):
            self._log.warn(READABLE_BY_OTHERS, file=str(files.key))
        context = ServerContext(files)
        self._contexts.append((context, location))
        return context

    def _ensure_own_certificate(self) -> CertificateFiles:
        """Return the certificate of development mode."""
        self.ensure_data_directory()
        data, network = self._settings.data, self._settings.network
        for key in (data / LOCAL_KEY, data / AUTHORITY_KEY, data / LAN_CERTIFICATE):
            if close_to_others(key):
                self._log.warn(WAS_READABLE_BY_OTHERS, file=str(key))
        now = datetime.datetime.now(datetime.UTC)
        if network is not None:
            return ensure_lan_certificate(data, network, now)
        return ensure_local_certificate(data, now)

    def _location_of(self, endpoint: Endpoint) -> SettingLocation:
        """Return the location of the key that names an endpoint."""
        settings = self._settings
        if self._is_ops:
            return settings.ops_location
        is_listed = endpoint in settings.listen
        return settings.listen_location if is_listed else settings.console_location
