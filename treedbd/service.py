"""Everything that runs, as one Twisted service: opened, kept alive and closed in a stated order.

Start, the privileged half: 1 certificates are read, 2 the endpoints are opened. Then: 3 the data
directory is locked, 4 the stores in it are opened and verified, 5 secrets and files of rules are
read. A step that fails undoes those before it and raises `CannotStart` with one sentence for the
operator.

Stop, in 9 seconds at most: 1 the endpoints close, so nobody new gets in; 2 requests under
way are answered, writes made durable first; 3 streams end, and who is not done by `DRAIN_SECONDS`
is cut off; 4 the stores are closed; 5 the data directory is unlocked. A stopped service does not
start again.

A host program embeds the service: it adds it to its own, and mounts `resource()` in its own site
under any prefix; `Settings.listen` may then be empty. Nothing of the process is touched here, no
signal, no clock, no exit: that is `tap`'s.
"""

from __future__ import annotations

import datetime
import os
import stat
import time
from collections.abc import Callable, Generator
from typing import Any, Final

import attrs
from twisted.application.service import MultiService
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, gatherResults, inlineCallbacks, maybeDeferred
from twisted.internet.error import TimeoutError as TookTooLong
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.reflect import namedAny
from twisted.web.resource import IResource

from treedbd.certificate import (
    LOCAL_KEY,
    CertificateFiles,
    ServerContext,
    Unusable,
    keep_local_certificate,
)
from treedbd.config import Settings
from treedbd.database.catalog import Catalog, ProjectSpec
from treedbd.database.platform import Platform
from treedbd.endpoints import CannotListen, Endpoint, open_endpoint
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.files import close_to_others, is_open_to_others, make_directory
from treedbd.store.lock import DirectoryLock
from treedbd.store.mapping import Failed, Refused
from treedbd.tree.line import in_one_line
from treedbd.trust import OTHERS_COULD_READ, OTHERS_MAY_READ, Trust, Untrustworthy
from treedbd.web.channel.factory import ChannelFactory
from treedbd.web.channel.lazy import LazyRequest
from treedbd.web.channel.limits import ChannelLimits
from treedbd.web.identity.gate import Gate
from treedbd.web.options import WebOptions
from treedbd.web.resource import TreeResource
from treedbd.web.send import headers_for_all
from treedbd.web.streams import StreamLimits

DRAIN_SECONDS: Final = 4.0
CLOSE_SECONDS: Final = 5.0
DRAIN_BEAT: Final = 0.02


class CannotStart(Exception):
    """What keeps the service from starting; one sentence says so."""


class TreeService(MultiService):
    """The database as a service; `listen` of the settings may be empty where it is embedded."""

    _log = Logger()

    def __init__(self, settings: Settings, reactor: Any = None) -> None:
        """Prepare; nothing is opened yet. `reactor` is the global one unless it is given."""
        MultiService.__init__(self)
        # Not imported at the top, because importing the reactor chooses it.
        self._reactor = namedAny("twisted.internet.reactor") if reactor is None else reactor
        self._settings = settings
        self._catalog = self._make_catalog()
        self._trust = Trust(settings, self._catalog, self._reactor)
        self._gate = Gate(self._trust.verifier, time.time)
        self._resource = TreeResource(
            catalog=self._catalog,
            gate=self._gate,
            options=_web_options(settings),
            stream_limits=StreamLimits(
                **_named_as_in(StreamLimits, settings.limits, settings.streams)
            ),
            clock=self._reactor,
            wall_clock=time.time,
        )
        self._factory = ChannelFactory(
            self._resource,
            ChannelLimits(
                body_bytes=settings.limits.write_body_bytes,
                **_named_as_in(ChannelLimits, settings.limits),
            ),
            self._reactor,
            self._log_access if settings.http.access_log else None,
            refusal_headers=headers_for_all(settings.http.cors_origins),
        )
        self._contexts: list[ServerContext] = []
        self._ports: list[tuple[Endpoint, IListeningPort]] = []
        self._lock: DirectoryLock | None = None

    def resource(self) -> IResource:
        """Return the whole interface, to be mounted under any prefix."""
        return self._resource

    def urls(self) -> list[str]:
        """Return where the open endpoints can be reached from this machine."""
        return [_url(endpoint, port.getHost()) for endpoint, port in self._ports]

    def is_open(self) -> bool:
        """Tell whether everybody may write to the default project, since nobody has put rules."""
        return self._catalog.rulebook(self._settings.default_project).rules is OPEN

    def privilegedStartService(self) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`."""
        try:
            self._open_endpoints()
        except (CannotListen, Unusable) as error:
            self._close_endpoints()
            raise CannotStart(self._say_of_listen(error)) from None
        except Refused as error:
            self._close_endpoints()
            raise CannotStart(str(error)) from None
        MultiService.privilegedStartService(self)

    def startService(self) -> None:
        """Lock the data directory and open the stores; raise `CannotStart`."""
        try:
            self._open_stores()
            self._trust.read()
        except (Refused, Failed, Untrustworthy) as error:
            self._close_endpoints()
            self._catalog.close()  # at once, since nothing is under way
            self._unlock()
            raise CannotStart(str(error)) from None
        MultiService.startService(self)

    @inlineCallbacks
    def stopService(self) -> Generator[Deferred[Any], Any, None]:
        """Close everything in the order that the module states; never fails."""
        yield self._close_endpoints()
        yield self._drain()
        self._trust.close()
        closed = yield self._close_stores()
        if closed:
            self._unlock()
        yield maybeDeferred(MultiService.stopService, self)

    def reload(self, settings: Settings | None = None) -> None:
        """Read certificates, secrets, providers and rules again; a bad file changes nothing.

        `settings` say anew which files of secrets and rules and which providers the projects have;
        nothing else in them is looked at.
        """
        try:
            self._trust.read(None if settings is None else settings.projects)
        except Untrustworthy as error:
            self._log.error("{reason} What was read before stays in force.", reason=str(error))
        else:
            self._resource.streams.recheck(self._gate.trusts)
        for context in self._contexts:
            try:
                context.reload()
            except Unusable as error:
                self._log.error(
                    "{reason} The one read before stays in force.",
                    reason=self._say_of_listen(error),
                )

    def _say_of_listen(self, error: Exception) -> str:
        """Return the sentence for an endpoint or for a file that one names."""
        place = self._settings.listen_place
        return in_one_line(f"{place.source}: {place.key}: {error}.")

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
                    is_governed=project.rules_file is not None,
                )
                for name, project in settings.projects.items()
            },
            any_project=settings.development,
            first_rules=OPEN if settings.development else DENY,
            most_databases=settings.limits.databases,
            rules_limits=settings.rules.limits(),
            platform=Platform(self._reactor, os.urandom, self._run_in_thread),
            retain_events=settings.streams.retain_events,
        )

    def _open_endpoints(self) -> None:
        for endpoint in self._settings.listen:
            context = None
            if endpoint.is_secure:
                files = endpoint.certificate or self._keep_local_certificate()
                if is_open_to_others(files.key):
                    self._log.warn(OTHERS_MAY_READ, file=str(files.key))
                context = ServerContext(files)
                self._contexts.append(context)
            port = open_endpoint(endpoint, self._reactor, self._factory, context)
            self._ports.append((endpoint, port))

    def _keep_local_certificate(self) -> CertificateFiles:
        self._keep_folder()
        key = self._settings.data / LOCAL_KEY
        if close_to_others(key):
            self._log.warn(OTHERS_COULD_READ, file=str(key))
        return keep_local_certificate(self._settings.data, datetime.datetime.now(datetime.UTC))

    def _keep_folder(self) -> None:
        """Make the data directory; one that was there keeps its mode if it holds anything."""
        folder = self._settings.data
        try:
            make_directory(folder)
            is_open = is_open_to_others(folder)
            if is_open and not any(folder.iterdir()):
                folder.chmod(stat.S_IRWXU)
                is_open = False
        except OSError as error:
            raise Refused(
                f"The data directory {folder} cannot be used ({error.strerror}): let the user "
                "that runs treedb write to it, or name another."
            ) from None
        if is_open:
            self._log.warn(
                "Others may look into {folder}: chmod 700 keeps them out.", folder=str(folder)
            )

    def _open_stores(self) -> None:
        if self._settings.engine == "memory":
            return
        self._keep_folder()
        self._lock = DirectoryLock(self._settings.data)
        self._catalog.open()

    def _close_endpoints(self) -> Deferred[Any]:
        ports, self._ports = self._ports, []
        return gatherResults(
            [maybeDeferred(port.stopListening) for _, port in ports], consumeErrors=True
        )

    @inlineCallbacks
    def _drain(self) -> Generator[Deferred[Any], Any, None]:
        """Let requests under way finish, then end the streams, which hear of them until then."""
        streams = self._resource.streams
        patience_ends = self._reactor.seconds() + DRAIN_SECONDS / 2

        def end_streams() -> None:
            is_late = self._reactor.seconds() >= patience_ends
            if is_late or self._factory.connections <= len(streams):
                streams.end()

        drained = self._factory.drain()
        ending = LoopingCall(end_streams)
        ending.clock = self._reactor
        ending.start(DRAIN_BEAT)
        late = self._reactor.callLater(DRAIN_SECONDS, self._factory.abort)
        yield drained
        ending.stop()
        streams.end()
        if late.active():
            late.cancel()

    @inlineCallbacks
    def _close_stores(self) -> Generator[Deferred[Any], Any, bool]:
        try:
            yield self._catalog.close().addTimeout(CLOSE_SECONDS, self._reactor)
        except TookTooLong:
            self._log.critical(
                "The disk did not take the last writes within {n} s.", n=CLOSE_SECONDS
            )
            return False
        except Exception:
            self._log.failure("A store was not closed in good order.")
        return True

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _run_in_thread(self, commit: Callable[[], None]) -> Deferred[None]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), commit)

    def _log_access(self, request: LazyRequest) -> None:
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
        write_body_bytes=settings.limits.write_body_bytes,
        write_nodes=settings.limits.write_nodes,
        string_bytes=settings.limits.string_bytes,
    )


def _named_as_in(kind: type[Any], *records: Any) -> dict[str, Any]:
    """Return those fields of the records that carry the names of the fields of `kind`."""
    names = {field.name for field in attrs.fields(kind)}
    merged = {name: value for each in records for name, value in attrs.asdict(each).items()}
    return {name: value for name, value in merged.items() if name in names}


def _url(endpoint: Endpoint, address: object) -> str:
    if isinstance(address, UNIXAddress):
        return f"unix:{os.fsdecode(address.name or b'')}"
    if not isinstance(address, IPv4Address | IPv6Address):
        return endpoint.text
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound
    host = local.get(address.host, address.host)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.is_secure else 'http'}://{shown}:{address.port}"
