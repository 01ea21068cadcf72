"""The whole database as one Twisted service, with a stated order of start and stop.

Start, the privileged half: 1 certificates are read, 2 the endpoints are opened. Then: 3 the data
directory is locked, 4 its databases are found, 5 secrets, providers and rules files are
loaded. A step that fails undoes those before it and raises `CannotStart`.

Stop, within `STOP_SECONDS`: 1 the endpoints close, so no connection is accepted any more; 2
requests under way are answered, writes once they are durable; those that still wait for their turn
after `QUEUE_SECONDS` are refused; 3 streams end, and after `DRAIN_SECONDS` all connections that are
left are dropped; 4 the stores are closed, unless the disk does not respond until the end of that
time; 5 the endpoints for operators close, and the data directory is unlocked. A stopped service
does not start again.

To embed the service, a program adds it to its own and mounts `resource()` in its own site, under
any prefix, or uses `database()`; `Settings.listen` may then be empty. The service changes nothing
of the process, neither signals nor the clock nor the exit status: that is done by `daemon`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import attrs
from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.logger import Logger
from twisted.python.reflect import namedAny

from treedbd.cluster_link import make_cluster
from treedbd.config.credentials import Credentials
from treedbd.config.project_secrets import BadCredentials
from treedbd.config.settings import Settings
from treedbd.database.catalog import Catalog
from treedbd.database.errors import SHUTTING_DOWN, Unavailable, UnknownDatabase
from treedbd.database.runtime import Runtime
from treedbd.descriptors import descriptor_limit, plan_descriptors
from treedbd.draining import drain
from treedbd.embedding.local_database import LocalDatabase
from treedbd.embedding.local_requests import LocalAccess
from treedbd.listening import CannotStart, Listening
from treedbd.loop import Turns
from treedbd.names import DEFAULT_DATABASE, DatabaseName, parse_label
from treedbd.operations import CountingParts, Operations
from treedbd.rules.ruleset import OPEN
from treedbd.service_parts import (
    make_activity,
    make_catalog,
    make_request_log,
    make_runtime,
    server_options,
    trusted_on_endpoints,
    web_options,
)
from treedbd.store.engine import CannotOpenStore, StoreFailed, StoreUnreachable
from treedbd.store.lock import DirectoryLock
from treedbd.store.sqlite.engine import DESCRIPTORS_PER_FILE
from treedbd.store.sqlite.shared_shelf import MORE_IF_SHARED
from treedbd.tracing_link import make_tracer
from treedbd.web.activity import Activity
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.auth.host_login import ADMIN, Auth, HostLogin, Identify, identity_of
from treedbd.web.http1.factory import Http1Factory
from treedbd.web.http1.served import RequestLogging
from treedbd.web.options import WebOptions
from treedbd.web.request_counts import RequestCounts
from treedbd.web.resource import RESERVED, TreeResource
from treedbd.web.traced_request import traced
from treedbd.worker_context import WorkerContext

QUEUE_SECONDS: Final = 1.0
STOP_SECONDS: Final = 8.5
"""For all of a stop: the stores have what requests, streams and sockets leave of it."""
_CANNOT_START: Final = (
    *(CannotOpenStore, StoreFailed, StoreUnreachable),
    *(Unavailable, BadCredentials),
)


class TreeService(MultiService):
    """All databases of a data directory, as a service of Twisted (`IService`).

    `privilegedStartService` and `startService`, in this order, start it, and raise `CannotStart`;
    `stopService` stops it, for good. A parent service, such as an `Application`, calls them.
    Meanwhile `resource()`, mounted in a site of the program, serves clients over HTTP, and
    `database()` reads, writes and watches in process. With `listen` in the settings the service
    also opens endpoints of its own; without it, it opens none.
    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any = None,
        context: WorkerContext | None = None,
        *,
        identify: Identify | None = None,
    ) -> None:
        """Prepare; nothing is opened yet. `reactor` is the global one if None.

        `identify` is called with each request, and returns who sends it: a dict, which rules see
        as `auth`; `ADMIN`, whom rules do not bind; or None, and then the token of the request
        counts, if it has one. It may return an awaitable of these. `context` is that of a worker,
        which serves the same databases as others; None if no other process does, whatever the
        settings say.
        """
        MultiService.__init__(self)
        self._context = context
        # Not imported at the top, because importing the reactor installs it.
        self._reactor = namedAny("twisted.internet.reactor") if reactor is None else reactor
        self._settings = settings
        per_file = DESCRIPTORS_PER_FILE + (0 if context is None else MORE_IF_SHARED)
        self._plan = plan_descriptors(settings.limits, per_file, descriptor_limit())
        self._tracer = make_tracer(settings.tracing, self._reactor)
        self._cluster = make_cluster(settings, self._reactor)
        runtime = make_runtime(settings, self._reactor, self._cluster, context)
        self._catalog = make_catalog(settings, self._plan, runtime, self._cluster, context)
        self._credentials = Credentials(settings, self._catalog, self._reactor)
        self._authenticator = Authenticator(self._credentials.verifier, self._reactor, time.time)
        requests = RequestCounts(settings.projects, any_project=settings.development)
        self._activity = make_activity(settings, self._reactor, context, requests)
        options = web_options(settings, context, requests)
        login = None if identify is None else HostLogin(identify, self._reactor)
        self._resource = self._make_resource(options, login)
        self._factory = self._make_factory(options)
        self._listening = Listening(
            settings, self._reactor, None if context is None else context.adopt_port
        )
        self._operations = self._make_operations(requests, runtime)
        self._lock: DirectoryLock | None = None
        self._has_given_up = False
        self._local_access = LocalAccess(
            self._resource, self._catalog, self._reactor, settings.limits
        )
        self._reloading = DeferredLock()

    def _make_resource(self, options: WebOptions, login: HostLogin | None) -> TreeResource:
        own = self._catalog, options, self._authenticator, self._reactor
        resource = TreeResource(*own, time.time, self._activity, login)
        if self._cluster is not None and self._settings.reads == "local":
            resource.writer.lag_ms = self._cluster.lag_ms
        return resource

    def _make_factory(self, options: WebOptions) -> Http1Factory:
        log, tracer = self._resource.log_request, self._tracer
        recall = self._authenticator.recall
        request_log = make_request_log(self._settings, options, recall, self._reactor)
        server = server_options(
            self._settings,
            options,
            RequestLogging(log, log) if log else request_log.logging(),
            self._activity,
            self._resource.rates,
            None if tracer is None else partial(traced, tracer=tracer, reserved=RESERVED),
        )
        limits = attrs.evolve(options.limits, connections=self._plan.connections)
        server = attrs.evolve(server, held=self._resource.shared_reads.held)
        return Http1Factory(self._resource, limits, self._reactor, server)

    def _make_operations(self, requests: RequestCounts, runtime: Runtime) -> Operations:
        context = self._context
        open_port = None if context is None else context.adopt_ops_port
        return Operations(
            self._settings,
            self._reactor,
            CountingParts(
                requests,
                runtime,
                self._catalog,
                *(self._resource.streams, self._resource.realtime.door.sockets),
                self._resource.data.missing_indexes,
                self._factory,
                self._activity,
            ),
            Listening(self._settings, self._reactor, open_port, is_ops=True),
            self._listening.certificates_end_at,
            None if context is None else context.samples,
        )

    @property
    def activity(self) -> Activity:
        """What clients do with the databases."""
        return self._activity

    @property
    def has_given_up(self) -> bool:
        """Whether it was stopped while a thread of its waited for a disk that does not respond."""
        return self._has_given_up

    def resource(self) -> TreeResource:
        """Return the whole interface over HTTP, an `IResource` to be mounted under any prefix."""
        return self._resource

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return self._listening.urls()

    def ops_urls(self) -> list[str]:
        """Return those of the endpoints for operators."""
        return self._operations.urls()

    def show_turns(self, turns: Turns) -> None:
        """Show the turns of the process to admins and operators."""
        self._resource.show_turns(turns)
        self._operations.show_turns(turns)

    def database(
        self, project: str, name: str = DEFAULT_DATABASE, *, auth: Auth = ADMIN
    ) -> LocalDatabase:
        """Return a database, to be read, written and watched in this process as `auth`.

        Rules do not bind `ADMIN`. Raises `UnknownDatabase` for a project that is not there, or an
        illegal name.
        """
        found = parse_label(f"{name}--{project}")
        if found != DatabaseName(project, name):
            raise UnknownDatabase(DatabaseName(project, name), is_project_known=False)
        self._catalog.dialect(found)
        return LocalDatabase(self._local_access, found, identity_of(auth))

    @property
    def catalog(self) -> Catalog:
        """The databases."""
        return self._catalog

    def has_open_rules(self) -> bool:
        """Return whether the default project has the open rules of development mode."""
        project = self._settings.default_project
        try:
            return bool(project) and self._catalog.rules(project).current is OPEN
        except Unavailable:
            return False  # as far as is known

    def privilegedStartService(self) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`."""
        trusts = trusted_on_endpoints(self._settings).trusts
        self._listening.open(self._factory, partial(self._factory.behind_proxy, is_trusted=trusts))
        try:
            self._operations.open()
        except CannotStart:
            self._listening.close()
            raise
        MultiService.privilegedStartService(self)

    def startService(self) -> None:
        """Lock the data directory, find the databases, load credentials; raise `CannotStart`."""
        if self._plan.warning is not None and not self._settings.development:
            self._log.warn("{warning}", warning=self._plan.warning)
        try:
            self._open_stores()
            self._credentials.load()
        except _CANNOT_START as error:
            self._listening.close()
            self._operations.close_at_once()
            self._catalog.close_at_once()
            if self._cluster is not None:
                self._cluster.close_at_once()
            self._unlock()
            raise CannotStart.because(error) from None
        if self._tracer is not None:
            self._tracer.start()
        self._local_access.refusal = None
        self._operations.start()
        MultiService.startService(self)

    def stopService(self) -> Deferred[None]:
        """Stop in the order that the module states; never fails."""
        return Deferred.fromCoroutine(self._stop())

    def reload(self, settings: Settings | None = None) -> Deferred[bool]:
        """Read certificates, secrets, providers and rules again; an invalid file changes nothing.

        Databases that could not be opened are tried again, in the background.
        Of `settings` only the secret files, rules files and providers of the projects are used.
        Fires with whether all was valid; what was not is logged. Reloads are done one after the
        other.
        """
        return self._reloading.run(lambda: Deferred.fromCoroutine(self._reload(settings)))

    async def _reload(self, settings: Settings | None) -> bool:
        is_valid = True
        self._catalog.retry_refused()
        try:
            await self._credentials.reload(None if settings is None else settings.projects)
        except BadCredentials as error:
            self._log.error("{reason} What was loaded before stays in use.", reason=str(error))
            is_valid = False
        else:
            self._resource.streams.recheck(self._authenticator.trusts)
            self._resource.realtime.door.recheck(self._authenticator.trusts)
        is_valid &= self._listening.reload()
        return self._operations.reload() and is_valid

    async def _stop(self) -> None:
        end_at = self._reactor.seconds() + STOP_SECONDS
        self._local_access.refusal = SHUTTING_DOWN
        self._operations.begin_ending()
        refusal = self._reactor.callLater(QUEUE_SECONDS, self._refuse_writes)
        await self._listening.close()
        follow = None if self._context is None else self._catalog.poll
        resource = self._resource
        sockets = resource.realtime.door
        await drain(self._factory, resource.streams, sockets, self._reactor, follow)
        if refusal.active():
            refusal.cancel()
        self._credentials.close()
        await self._close_stores(end_at - self._reactor.seconds())
        self._operations.close_at_once()
        if self._cluster is not None:
            self._has_given_up |= not await self._cluster.stop()
        if not self._has_given_up:
            self._unlock()
        if self._tracer is not None:
            await self._tracer.stop()
        await maybeDeferred(MultiService.stopService, self)

    def _open_stores(self) -> None:
        if self._settings.engine == "memory":
            return
        if self._context is not None:
            self._catalog.open(self._context.lock, accept_loss=self._settings.accept_loss)
            return
        self._listening.ensure_data_directory()
        self._lock = DirectoryLock(self._settings.data)
        self._lock.note_urls(self.urls())
        if self._cluster is not None:
            self._cluster.connect()
        self._catalog.open(self._lock, accept_loss=self._settings.accept_loss)
        if self._cluster is not None:
            self._cluster.start()

    def _refuse_writes(self) -> None:
        self._resource.refuse_writes()
        self._catalog.refuse_writes()

    async def _close_stores(self, seconds: float) -> None:
        """Close all stores, or give up waiting for a disk after some seconds."""
        try:
            await self._catalog.close().addTimeout(seconds, self._reactor)
        except DeferredTimeoutError:
            self._has_given_up = True
            self._log.critical(
                "The disk did not respond within {n:.1f} s: the stores are not closed. Nothing "
                "that was acknowledged is lost; what was not acknowledged may be.",
                n=seconds,
            )
        except Exception:
            self._log.failure("A store could not be closed.")

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
