"""The endpoints of a service and their certificates, and the data directory that both may need."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.logger import Logger

from treedbd.config.authority import AUTHORITY_KEY, LAN_CERTIFICATE, ensure_lan_certificate
from treedbd.config.certificate import BadCertificate, ServerContext, ensure_local_certificate
from treedbd.config.endpoints import LOCAL_KEY, CertificateFiles, Endpoint
from treedbd.config.listen import CannotListen, PortInUse, in_tls, is_local, open_endpoint, url_of
from treedbd.config.settings import Settings, open_to_others
from treedbd.config.values import ConfigError
from treedbd.database.data_directory import prepare
from treedbd.errors import OperatorError, in_one_line
from treedbd.files import (
    READABLE_BY_OTHERS,
    WAS_READABLE_BY_OTHERS,
    close_to_others,
    is_open_to_others,
)
from treedbd.store.engine import CannotOpenStore
from treedbd.store.lock import DirectoryInUse, find_other

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

        If another daemon serves the data directory, it says where.
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


class Listening:
    """The endpoints that one key of the settings names.

    Attributes:
        ports: those that are open, with their endpoints.

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
        """Nothing is opened yet; `open_port` opens one endpoint, None if the reactor does.

        The key is `listen`, or `ops_listen` if it `is_ops`.
        """
        self._is_ops = is_ops
        self._endpoints = settings.ops_listen if is_ops else settings.listen
        self._location = settings.ops_location if is_ops else settings.listen_location
        self.ports: list[tuple[Endpoint, IListeningPort]] = []
        self._settings = settings
        self._reactor = reactor
        self._open_port = self._open_by_reactor if open_port is None else open_port
        self._contexts: list[ServerContext] = []

    def open(self, factory: IProtocolFactory, behind_proxy: BehindProxy | None = None) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`, with none open.

        `behind_proxy` is needed where connections are accepted.
        """
        try:
            for endpoint in self._endpoints:
                context = self._read_certificate(endpoint) if endpoint.is_secure else None
                if endpoint.is_proxied and behind_proxy is not None:
                    # The header comes before TLS.
                    inner = factory if context is None else in_tls(factory, context)
                    opened = self._open_here_or_next(endpoint, behind_proxy(inner), None)
                else:
                    opened = self._open_here_or_next(endpoint, factory, context)
                self.ports.append(opened)
                self._check_address(*opened)
        except (CannotListen, BadCertificate) as error:
            self.close()
            raise CannotStart(self._in_listen(error)) from None
        except (CannotOpenStore, ConfigError) as error:
            self.close()
            raise CannotStart.because(error) from None

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return [url_of(endpoint, port.getHost()) for endpoint, port in self.ports]

    def certificates_end_at(self) -> float | None:
        """Return when the first certificate in use ends, in seconds since 1970; None if none is."""
        ends = [context.ends_at() for context in self._contexts]
        return min((each for each in ends if each is not None), default=None)

    def reload(self) -> bool:
        """Read the certificates again, for new connections; return whether all are valid."""
        is_valid = True
        for context in self._contexts:
            try:
                context.reload()
            except BadCertificate as error:
                self._log.error(
                    "{reason} The certificate read before stays in use.",
                    reason=self._in_listen(error),
                )
                is_valid = False
        return is_valid

    def close(self) -> Deferred[Any]:
        """Accept no connection any more; fires when the ports are closed."""
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
        """Open an endpoint; a default one whose port is in use at the next port that is free."""
        try:
            return endpoint, self._open_port(endpoint, factory, context)
        except PortInUse as error:
            other = find_other(self._settings.data)
            if other is not None:
                raise other from None  # most likely that one is in the way
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

    def _check_address(self, endpoint: Endpoint, port: IListeningPort) -> None:
        """Raise `ConfigError` if others reach a socket that was open, where none may."""
        is_fixed = not endpoint.is_passed or self._settings.lets_others_reach(endpoint)
        if not is_fixed and not is_local(port.getHost()):
            raise open_to_others(self._settings, endpoint, self._location)

    def _open_by_reactor(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        return open_endpoint(endpoint, self._reactor, factory, context)

    def _read_certificate(self, endpoint: Endpoint) -> ServerContext:
        files = endpoint.certificate or self._ensure_own_certificate()
        if is_open_to_others(files.key):
            self._log.warn(READABLE_BY_OTHERS, file=str(files.key))
        context = ServerContext(files)
        self._contexts.append(context)
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

    def _in_listen(self, error: OperatorError) -> str:
        """Return the message about an endpoint, or about a file that an endpoint names."""
        return error.in_setting(self._location.source, self._location.key)
