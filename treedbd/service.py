"""The whole database as one Twisted service, with a stated order of start and stop.

Start, the privileged half: 1 certificates are read, 2 the endpoints are opened. Then: 3 the data
directory is locked, 4 its stores are opened and verified, 5 secrets, providers and rules files are
loaded. A step that fails undoes those before it and raises `CannotStart`.

Stop, in 9 seconds at most: 1 the endpoints close, so no connection is accepted any more; 2 requests
under way are answered, writes once they are durable; 3 streams end, and after `DRAIN_SECONDS` all
connections that are left are dropped; 4 the stores are closed; 5 the data directory is unlocked. A
stopped service does not start again.

To embed the service, a program adds it to its own and mounts `resource()` in its own site, under
any prefix; `Settings.listen` may then be empty. The service changes nothing of the process, neither
signals nor the clock nor the exit status: that is done by `tap`.
"""

from __future__ import annotations

import datetime
import os
import stat
import time
from functools import partial
from typing import Any, Final

from twisted.application.service import MultiService
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.error import TimeoutError as TwistedTimeoutError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.reflect import namedAny
from twisted.web.resource import IResource

from treedbd.config.certificate import (
    LOCAL_KEY,
    BadCertificate,
    ServerContext,
    ensure_local_certificate,
)
from treedbd.config.credentials import (
    READABLE_BY_OTHERS,
    WAS_READABLE_BY_OTHERS,
    BadCredentials,
    Credentials,
)
from treedbd.config.endpoints import CertificateFiles, Endpoint
from treedbd.config.listen import CannotListen, open_endpoint
from treedbd.config.settings import Settings
from treedbd.database.catalog import Catalog
from treedbd.database.database import ProjectSpec
from treedbd.database.runtime import Runtime
from treedbd.errors import OperatorError
from treedbd.files import close_to_others, create_directory, is_open_to_others
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.engine import CannotOpenStore, StoreFailed
from treedbd.store.lock import DirectoryLock
from treedbd.text import in_one_line
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.cors import Cors
from treedbd.web.http1.factory import Http1Factory
from treedbd.web.http1.request import Request
from treedbd.web.options import WebOptions
from treedbd.web.resource import TreeResource

DRAIN_SECONDS: Final = 4.0
CLOSE_SECONDS: Final = 5.0
DRAIN_POLL_S: Final = 0.02


class CannotStart(Exception):
    """The service cannot start; `str()` is one sentence for the operator."""


class TreeService(MultiService):
    """The database as a service; `listen` of the settings may be empty if it is embedded."""

    _log = Logger()

    def __init__(self, settings: Settings, reactor: Any = None) -> None:
        """Prepare; nothing is opened yet. `reactor` is the global one if None."""
        MultiService.__init__(self)
        # Not imported at the top, because importing the reactor installs it.
        self._reactor = namedAny("twisted.internet.reactor") if reactor is None else reactor
        self._settings = settings
        self._catalog = self._make_catalog()
        self._credentials = Credentials(settings, self._catalog, self._reactor)
        self._authenticator = Authenticator(self._credentials.verifier, self._reactor, time.time)
        self._resource = TreeResource(
            self._catalog, _web_options(settings), self._authenticator, self._reactor, time.time
        )
        self._factory = Http1Factory(
            self._resource,
            settings.limits,
            self._reactor,
            self._log_access if settings.http.access_log else None,
            error_headers=Cors(settings.http.cors_origins).fixed or (),
        )
        self._contexts: list[ServerContext] = []
        self._ports: list[tuple[Endpoint, IListeningPort]] = []
        self._lock: DirectoryLock | None = None

    def resource(self) -> IResource:
        """Return the whole interface, to be mounted under any prefix."""
        return self._resource

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return [_url(endpoint, port.getHost()) for endpoint, port in self._ports]

    def has_open_rules(self) -> bool:
        """Return whether the default project has the open rules of development mode."""
        return self._catalog.rules(self._settings.default_project).current is OPEN

    def privilegedStartService(self) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`."""
        try:
            self._open_endpoints()
        except (CannotListen, BadCertificate) as error:
            self._close_endpoints()
            raise CannotStart(self._in_listen(error)) from None
        except CannotOpenStore as error:
            self._close_endpoints()
            raise CannotStart(str(error)) from None
        MultiService.privilegedStartService(self)

    def startService(self) -> None:
        """Lock the data directory, open the stores, load credentials; raise `CannotStart`."""
        try:
            self._open_stores()
            self._credentials.load()
        except (CannotOpenStore, StoreFailed, BadCredentials) as error:
            self._close_endpoints()
            self._catalog.close()  # closes at once: no write is under way
            self._unlock()
            raise CannotStart(str(error)) from None
        MultiService.startService(self)

    def stopService(self) -> Deferred[None]:
        """Stop in the order that the module states; never fails."""
        return Deferred.fromCoroutine(self._stop())

    def reload(self, settings: Settings | None = None) -> bool:
        """Read certificates, secrets, providers and rules again; an invalid file changes nothing.

        Of `settings` only the secret files, rules files and providers of the projects are used.
        Returns whether all was valid; what was not is logged.
        """
        is_valid = True
        try:
            self._credentials.load(None if settings is None else settings.projects)
        except BadCredentials as error:
            self._log.error("{reason} What was loaded before stays in use.", reason=str(error))
            is_valid = False
        else:
            self._resource.streams.recheck(self._authenticator.trusts)
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

    async def _stop(self) -> None:
        await self._close_endpoints()
        await self._drain()
        self._credentials.close()
        if await self._close_stores():
            self._unlock()
        await maybeDeferred(MultiService.stopService, self)

    def _in_listen(self, error: OperatorError) -> str:
        """Return the message about an endpoint, or about a file that an endpoint names."""
        location = self._settings.listen_location
        return error.in_setting(location.source, location.key)

    def _make_catalog(self) -> Catalog:
        settings = self._settings
        return Catalog(
            settings.data,
            settings.engine,
            {
                name: ProjectSpec(
                    name,
                    project.databases,
                    project.dialect,
                    project.require_index,
                    is_file_managed=project.rules_file is not None,
                )
                for name, project in settings.projects.items()
            },
            any_project=settings.development,
            first_rules=OPEN if settings.development else DENY,
            max_databases=settings.limits.databases,
            rules_limits=settings.rules,
            runtime=Runtime(
                self._reactor,
                os.urandom,
                partial(deferToThreadPool, self._reactor, self._reactor.getThreadPool()),
            ),
            retain_events=settings.streams.retain_events,
        )

    def _open_endpoints(self) -> None:
        for endpoint in self._settings.listen:
            context = None
            if endpoint.is_secure:
                files = endpoint.certificate or self._ensure_local_certificate()
                if is_open_to_others(files.key):
                    self._log.warn(READABLE_BY_OTHERS, file=str(files.key))
                context = ServerContext(files)
                self._contexts.append(context)
            port = open_endpoint(endpoint, self._reactor, self._factory, context)
            self._ports.append((endpoint, port))

    def _ensure_local_certificate(self) -> CertificateFiles:
        self._ensure_data_directory()
        key = self._settings.data / LOCAL_KEY
        if close_to_others(key):
            self._log.warn(WAS_READABLE_BY_OTHERS, file=str(key))
        return ensure_local_certificate(self._settings.data, datetime.datetime.now(datetime.UTC))

    def _ensure_data_directory(self) -> None:
        """Create the data directory if it is missing; one that holds anything keeps its mode."""
        folder = self._settings.data
        try:
            create_directory(folder)
            is_open = is_open_to_others(folder)
            if is_open and not any(folder.iterdir()):
                folder.chmod(stat.S_IRWXU)
                is_open = False
        except OSError as error:
            raise CannotOpenStore(
                f"The data directory {folder}",
                f"cannot be used ({error.strerror})",
                "let the user that runs treedb write to it, or choose another directory",
            ) from None
        if is_open:
            self._log.warn(
                "Other users of this machine can enter {folder}: run chmod 700 on it.",
                folder=str(folder),
            )

    def _open_stores(self) -> None:
        if self._settings.engine == "memory":
            return
        self._ensure_data_directory()
        self._lock = DirectoryLock(self._settings.data)
        self._catalog.open()

    def _close_endpoints(self) -> Deferred[Any]:
        ports, self._ports = self._ports, []
        return gatherResults(
            [maybeDeferred(port.stopListening) for _, port in ports], consumeErrors=True
        )

    async def _drain(self) -> None:
        """Let requests under way finish, then end the streams, which receive events until then."""
        streams = self._resource.streams
        streams_end_at = self._reactor.seconds() + DRAIN_SECONDS / 2

        def end_streams() -> None:
            is_late = self._reactor.seconds() >= streams_end_at
            if is_late or self._factory.connections <= len(streams):
                streams.end()

        drained = self._factory.drain()
        polling = LoopingCall(end_streams)
        polling.clock = self._reactor
        polling.start(DRAIN_POLL_S)
        late = self._reactor.callLater(DRAIN_SECONDS, self._factory.abort)
        await drained
        polling.stop()
        streams.end()
        if late.active():
            late.cancel()

    async def _close_stores(self) -> bool:
        """Close all stores; return whether no thread can be writing to one any more."""
        try:
            await self._catalog.close().addTimeout(CLOSE_SECONDS, self._reactor)
        except TwistedTimeoutError:
            self._log.critical(
                "The last writes were not durable within {n} s: the disk does not respond.",
                n=CLOSE_SECONDS,
            )
            return False
        except Exception:
            self._log.failure("A store could not be closed.")
        return True

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _log_access(self, request: Request) -> None:
        self._log.info(
            "{client} {method} {path} {status} {sent}",
            client=getattr(request.client, "host", "-"),
            method=in_one_line(request.method.decode("latin-1")),
            path=in_one_line(request.shown_path),
            status=request.code,
            sent=request.sentLength,
        )


def _web_options(settings: Settings) -> WebOptions:
    return WebOptions(
        domains=settings.domains,
        default_project=settings.default_project,
        etag_headers=settings.http.etag_headers,
        cors_origins=settings.http.cors_origins,
        limits=settings.limits,
        streams=settings.streams,
    )


def _url(endpoint: Endpoint, address: object) -> str:
    if isinstance(address, UNIXAddress):
        return f"unix:{os.fsdecode(address.name or b'')}"
    if not isinstance(address, IPv4Address | IPv6Address):
        return endpoint.text
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound
    host = local.get(address.host, address.host)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.is_secure else 'http'}://{shown}:{address.port}"
