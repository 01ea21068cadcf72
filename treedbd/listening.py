"""The endpoints of a service and their certificates, and the data directory that both may need."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.logger import Logger

from treedbd.config.certificate import (
    LOCAL_KEY,
    BadCertificate,
    ServerContext,
    ensure_local_certificate,
)
from treedbd.config.credentials import READABLE_BY_OTHERS, WAS_READABLE_BY_OTHERS
from treedbd.config.endpoints import CertificateFiles, Endpoint
from treedbd.config.listen import CannotListen, open_endpoint, url_of
from treedbd.config.settings import Settings
from treedbd.database.data_directory import prepare
from treedbd.errors import OperatorError
from treedbd.files import close_to_others, is_open_to_others
from treedbd.store.engine import CannotOpenStore

OpenPort: TypeAlias = Callable[[Endpoint, IProtocolFactory, ServerContext | None], IListeningPort]


class CannotStart(Exception):
    """The service cannot start; `str()` is one sentence for the operator."""


class Listening:
    """The endpoints that the settings name.

    Attributes:
        ports: those that are open, with their endpoints.

    """

    _log = Logger()

    def __init__(self, settings: Settings, reactor: Any, open_port: OpenPort | None = None) -> None:
        """Nothing is opened yet; `open_port` opens one endpoint, None if the reactor does."""
        self.ports: list[tuple[Endpoint, IListeningPort]] = []
        self._settings = settings
        self._reactor = reactor
        self._open_port = self._open_by_reactor if open_port is None else open_port
        self._contexts: list[ServerContext] = []

    def open(self, factory: IProtocolFactory) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`, with none open."""
        try:
            for endpoint in self._settings.listen:
                context = self._read_certificate(endpoint) if endpoint.is_secure else None
                self.ports.append((endpoint, self._open_port(endpoint, factory, context)))
        except (CannotListen, BadCertificate) as error:
            self.close()
            raise CannotStart(self._in_listen(error)) from None
        except CannotOpenStore as error:
            self.close()
            raise CannotStart(str(error)) from None

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return [url_of(endpoint, port.getHost()) for endpoint, port in self.ports]

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

    def _open_by_reactor(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        return open_endpoint(endpoint, self._reactor, factory, context)

    def _read_certificate(self, endpoint: Endpoint) -> ServerContext:
        files = endpoint.certificate or self._ensure_local_certificate()
        if is_open_to_others(files.key):
            self._log.warn(READABLE_BY_OTHERS, file=str(files.key))
        context = ServerContext(files)
        self._contexts.append(context)
        return context

    def _ensure_local_certificate(self) -> CertificateFiles:
        self.ensure_data_directory()
        key = self._settings.data / LOCAL_KEY
        if close_to_others(key):
            self._log.warn(WAS_READABLE_BY_OTHERS, file=str(key))
        return ensure_local_certificate(self._settings.data, datetime.datetime.now(datetime.UTC))

    def _in_listen(self, error: OperatorError) -> str:
        """Return the message about an endpoint, or about a file that an endpoint names."""
        location = self._settings.listen_location
        return error.in_setting(location.source, location.key)
