"""The whole database as one Twisted service, with a stated order of start and stop.

Start, the privileged half: 1 certificates are read, 2 the endpoints are opened. Then: 3 the data
directory is locked, 4 its databases are found, 5 secrets, providers and rules files are
loaded. A step that fails undoes those before it and raises `CannotStart`.

Stop, within `STOP_SECONDS`: 1 the endpoints close, so no connection is accepted any more; 2
requests under way are answered, writes once they are durable; writes that are still queued after
`QUEUE_SECONDS` are refused; 3 streams and sockets end (`drain`), and after `DRAIN_SECONDS` all
connections that are left are dropped; 4 the stores are closed, unless the disk does not respond in
time; 5 the endpoints for operators close, and the data directory is unlocked. Between 3 and 4 the
archive gets what it lacks, within a second. A stopped service does not start again.

To embed the service, a program adds it to its own and mounts `resource()` in its own site, under
any prefix, or uses `database()`; `Settings.listen` may then be empty. The service changes nothing
of the process, neither signals nor the clock nor the exit status: that is done by `daemon`.

The parts of a service are made here from its settings (`make_runtime` to `project_specs`): the
packages below do not know the settings. PostgreSQL (`ClusterService`) and OpenTelemetry
(`make_tracer`) need libraries that are not installed everywhere, so the modules that use them, and
those of the archive, are imported only if the settings require it. If several workers serve the
same databases, the service
of each has a `WorkerContext`. A `DescriptorPlan` says how many connections and open databases fit
into the files that a process may open.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs
from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredList, DeferredLock, maybeDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import (
    IListeningPort,
    IOpenSSLClientConnectionCreator,
    IProtocolFactory,
    IReactorTime,
)
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.reflect import namedAny

from treedbd.audit.audit import Audit
from treedbd.audit.auditor import READER
from treedbd.config.certificate import ServerContext
from treedbd.config.credentials import Credentials
from treedbd.config.endpoints import Endpoint
from treedbd.config.hooks import ConfiguredHooks
from treedbd.config.listening import CannotStart, Listening
from treedbd.config.settings import HSTS_S, Settings, TracingSettings
from treedbd.counting import Counting, Levelling
from treedbd.database.active_rules import SlowRulesLog
from treedbd.database.answers import AnswerPool
from treedbd.database.catalog import Catalog
from treedbd.database.data_directory import stored_bytes
from treedbd.database.election import Election, FileElection, SoleElection
from treedbd.database.expirer import PURPOSE, Expirer
from treedbd.database.files import find_files
from treedbd.database.first_hooks import FirstHooks
from treedbd.database.open_databases import OpenBounds
from treedbd.database.requests import SHUTTING_DOWN, ProjectSpec, Unavailable, UnknownDatabase
from treedbd.database.runtime import (
    MeasureRules,
    Problem,
    RulesExchange,
    RunInThread,
    Runtime,
    Statistics,
)
from treedbd.database.session_owners import MemoryOwner, OwnerFile, SessionOwner
from treedbd.database.volatile_exchange import VolatileLink
from treedbd.embedding.database import LocalDatabase
from treedbd.embedding.requests import LocalAccess
from treedbd.files import read_installation
from treedbd.hooks.deliverer import ELECTION, Deliverer, FindHooked, find_in_files
from treedbd.hooks.functions import FunctionService
from treedbd.http1.parser import Header
from treedbd.http1.registry import RequestLogging, ServerOptions
from treedbd.http1.server import Http1Factory
from treedbd.limits import Limits
from treedbd.loop import Turns, do_nothing
from treedbd.names import (
    DEFAULT_DATABASE,
    DatabaseName,
    TrustedProxies,
    parse_label,
    parse_trusted_proxies,
)
from treedbd.operating.metrics import SampleBoard, Sources
from treedbd.operating.operations import Operations
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.standby.client import FirstClient
from treedbd.standby.office import NotPromoted, Office, Superseded
from treedbd.standby.replacement import finish_all
from treedbd.standby.standby import NotOfStandby, Standby
from treedbd.standby.term import TermUnreadable
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotOpenStore, StoreFailed, StoreUnreachable
from treedbd.store.sqlite.engine import DESCRIPTORS_PER_FILE
from treedbd.store.sqlite.shared import MORE_IF_SHARED
from treedbd.traces import Tracer
from treedbd.tree.event import EVENT_BYTES
from treedbd.web.activity import Activity, ProjectActivity, RequestCounts
from treedbd.web.audit import RequestAudit
from treedbd.web.auth.fetch import (
    AuthorityFile,
    BadAuthority,
    TrustStore,
    get,
)
from treedbd.web.auth.jwt import BadCredentials
from treedbd.web.auth.verifier import ADMIN, Auth, Authenticator, HostLogin, Identify, identity_of
from treedbd.web.console import CONSOLE_ENTRANCE
from treedbd.web.context import make_context
from treedbd.web.listeners import StreamRegistry
from treedbd.web.realtime.opening import RealtimeEndpoint
from treedbd.web.request import RequestParser
from treedbd.web.request_log import (
    AccessLogForm,
    FindIdentity,
    RequestLog,
    RequestLogOptions,
    traced,
)
from treedbd.web.resource import RESERVED, TreeResource
from treedbd.web.response import Cors

if TYPE_CHECKING:
    from treedbd.archive.archiver import Archiver
    from treedbd.cluster.service import ClusterService

FindTrust: TypeAlias = Callable[[], AuthorityFile | TrustStore]
"""Returns by what certificates of other daemons are verified now."""
ARCHIVE: Final = "archive"
"""The name of the archive's cursors, and of its election; its modules are loaded if it is used."""
QUEUE_SECONDS: Final = 1.0
TRUSTED_S: Final = 600.0
"""Seconds after which the authorities of the system are read again: it takes some milliseconds."""
STOP_SECONDS: Final = 8.5
"""For all of a stop: the stores have the time that requests, streams and sockets leave."""
_CANNOT_START: Final = (
    *(CannotOpenStore, StoreFailed, StoreUnreachable),
    *(Unavailable, BadCredentials),
    *(Superseded, NotPromoted, TermUnreadable, NotOfStandby),
)


class TreeService(MultiService):
    """All databases of a data directory, as a service of Twisted (`IService`).

    `privilegedStartService` and `startService`, in this order, start it, and raise `CannotStart`;
    `stopService` stops it, for good. A parent service, such as an `Application`, calls them.
    Meanwhile `resource()`, mounted in a site of the program, serves clients over HTTP, and
    `database()` reads, writes and watches in process. With `listen` in the settings the service
    also opens endpoints of its own; without it, it opens none.

    Attributes:
        catalog: the databases.
        activity: what clients do with the databases.
        has_given_up: whether it was stopped while one of its threads waited for a disk that did not
            respond.

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
        """Prepare; nothing is opened yet. If `reactor` is None, it is the global one.

        `identify` is called with each request, and returns its caller: a dict, which rules see as
        `auth`; `ADMIN`, whom rules do not bind; or None for the caller that the token of the
        request names, if it has one. It may return an awaitable of these. `context` is that of one
        of several workers; None if no other process serves the databases, whatever the settings
        say.
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
        hooks = ConfiguredHooks(settings)
        runtime = make_runtime(settings, self._reactor, self._cluster, context, hooks=hooks)
        self.catalog: Final = make_catalog(settings, self._plan, runtime, self._cluster, context)
        self._make_readers(runtime)
        self._credentials = Credentials(settings, self.catalog, self._reactor, hooks)
        self._authenticator = Authenticator(self._credentials.verifier, self._reactor, time.time)
        requests = RequestCounts(settings.projects, any_project=settings.development)
        self.activity: Final = make_activity(settings, self._reactor, context, requests)
        self._resource = self._make_resource(requests, identify)
        self._factory = self._make_factory()
        adopt = None if context is None else context.adopt_port
        self._listening = Listening(settings, self._reactor, adopt)
        self._operations = self._make_operations(requests, runtime)
        self._office, self._standby = self._make_office(runtime)
        self._lock: DirectoryLock | None = None
        self.has_given_up = False
        self._local_access = LocalAccess(
            self._resource, self.catalog, self._reactor, settings.limits
        )
        self._reloading = DeferredLock()

    def _make_readers(self, runtime: Runtime) -> None:
        """Make what reads the change logs, and what removes expired nodes."""
        self._archiver = self._make_archiver(runtime)
        self._audit = self._make_audit(runtime)
        self._expirer = self._make_expirer(runtime)
        self._deliverer = self._make_deliverer(runtime)

    def _make_archiver(self, runtime: Runtime) -> Archiver | None:
        """Return what writes the archive that the settings name; None if they name none."""
        settings = self._settings
        if not settings.archive.to:
            return None
        make = namedAny("treedbd.archive.archiver.Archiver")
        archiver: Archiver = make(
            settings.archive,
            settings.data,
            is_shared=settings.is_cluster,
            catalog=self.catalog,
            runtime=runtime,
            reactor=self._reactor,
            election=make_election(ARCHIVE, settings, self._reactor, self._cluster),
        )
        return archiver

    def _make_audit(self, runtime: Runtime) -> Audit | None:
        """Return what audits writes and requests; None if nothing does."""
        settings = self._settings
        if settings.audit.directory is None:
            return None
        return Audit(
            settings.audit,
            settings.audit.directory,
            catalog=self.catalog,
            runtime=runtime,
            election=make_election(READER, settings, self._reactor, self._cluster),
            has_files=self._cluster is None,
            reactor=self._reactor,
        )

    def _make_expirer(self, runtime: Runtime) -> Expirer:
        """Return what removes the nodes whose time is over."""
        settings, reactor, cluster = self._settings, self._reactor, self._cluster
        make = partial(make_election, PURPOSE, settings, reactor, cluster)
        expirer = Expirer(self.catalog, runtime, make)
        runtime.statistics.find_expiry_lag = expirer.lag_s
        return expirer

    def _make_deliverer(self, runtime: Runtime) -> Deliverer:
        """Return what sends the events of hooks."""
        settings = self._settings
        find_hooked: FindHooked | None = None
        if self._cluster is not None:
            find_hooked = self._cluster.find_hooked
        elif settings.engine != "memory":
            pool = self._reactor.getThreadPool()
            in_thread: RunInThread = partial(deferToThreadPool, self._reactor, pool)
            find_hooked = find_in_files(self.catalog.file_of, in_thread)
        return Deliverer(
            catalog=self.catalog,
            runtime=runtime,
            election=make_election(ELECTION, settings, self._reactor, self._cluster),
            reactor=self._reactor,
            allowed=settings.webhooks.allow,
            functions=FunctionService(
                settings.functions.url,
                settings.domains[0] if settings.domains else "localhost",
                settings.functions,
            ),
            make_creator=SystemTrust(self._reactor).creator_for,
            find_hooked=find_hooked,
            is_used=any(project.webhooks for project in settings.projects.values()),
        )

    def _make_resource(self, requests: RequestCounts, identify: Identify | None) -> TreeResource:
        settings, process, audit = self._settings, self._context, self._audit
        context = make_context(
            settings=settings,
            authenticator=self._authenticator,
            clock=self._reactor,
            wall_clock=time.time,
            counts=None if process is None else process.counts,
            levels=None if process is None else process.levels,
            login=None if identify is None else HostLogin(identify, self._reactor),
            audit=None if audit is None else RequestAudit(audit.recorder, self._authenticator),
        )
        refused = requests.note_refusal if settings.ops_listen else None
        resource = TreeResource(context, self.catalog, self.activity, refused)
        if self._cluster is not None and settings.reads == "local":
            resource.writer.lag_ms = self._cluster.lag_ms
        if process is not None:
            resource.inspection.ask_others = process.inspect
        resource.hooks.describe = self._deliverer.describe
        resource.dead_letters.test = self._deliverer.test
        return resource

    def _make_office(self, runtime: Runtime) -> tuple[Office | None, Standby | None]:
        """Return the term of the data directory, and what follows the first.

        None if no standby can follow this daemon, and None unless this is a standby.
        """
        is_shared = self._context is not None
        trust = make_trust(self._settings)
        office = make_office(
            self._settings,
            runtime,
            self.catalog,
            self._reactor,
            trust=trust,
            is_shared=is_shared,
        )
        if office is None:
            return None, None
        projects = self._settings.projects
        self._resource.standbys.attach(office, runtime, projects, is_shared=is_shared)
        self.catalog.problem_sources.append(office.problems)
        is_standby = bool(self._settings.standby_of)
        return office, self._make_standby(office, runtime, trust) if is_standby else None

    def _make_standby(self, office: Office, runtime: Runtime, trust: FindTrust) -> Standby:
        settings, resource = self._settings, self._resource
        standby = Standby(
            make_first(settings, self._credentials, self._reactor, trust),
            url=settings.standby_url or None,
            projects=settings.projects,
            data=settings.data,
            catalog=self.catalog,
            runtime=runtime,
            office=office,
        )
        resource.show_lag(standby.lag_ms)
        resource.standbys.promote, resource.standbys.describe = standby.promote, standby.describe
        runtime.statistics.find_standby_lag = standby.find_lag_s
        self.catalog.problem_sources.append(standby.problems)
        standby.changed = partial(resource.show_lag, None)
        return standby

    def _make_factory(self) -> Http1Factory:
        settings, tracer, log = self._settings, self._tracer, self._resource.log_request
        recall = self._authenticator.recall
        request_log = make_request_log(settings, recall, self._reactor)
        adapt = None if tracer is None else partial(traced, tracer=tracer, reserved=RESERVED)
        server = ServerOptions(
            logs=RequestLogging(log, log) if log else request_log.logging(),
            refusal_headers=Cors(settings.http.cors_origins).fixed or (),
            secure_headers=secure_headers(settings),
            counts=None if self._context is None else self._context.counts,
            activity=self.activity,
            rates=self._resource.rates,
            trusted_proxies=settings.trusted_proxies,
            adapt_requests=adapt,
            held=self._resource.shared_reads.held,
        )
        limits = attrs.evolve(settings.limits, connections=self._plan.connections)
        factory = Http1Factory(self._resource, limits, self._reactor, server)
        self._resource.inspection.attach(factory.connections)
        return factory

    def _make_operations(self, requests: RequestCounts, runtime: Runtime) -> Operations:
        context = self._context
        open_port = None if context is None else context.adopt_ops_port
        return Operations(
            self._settings,
            self._reactor,
            sources=Sources(
                requests=requests,
                statistics=runtime.statistics,
                answers=runtime.answer_pool,
                streams=self._resource.streams,
                sockets=self._resource.realtime.sockets,
                queries=self._resource.data.missing_indexes,
                server=self._factory,
                archive=None if self._archiver is None else self._archiver.counts,
                auditor=None if self._audit is None else self._audit.auditor,
                deliverer=self._deliverer,
            ),
            catalog=self.catalog,
            activity=self.activity,
            endpoints=Listening(self._settings, self._reactor, open_port, is_ops=True),
            endpoints_of_clients=self._listening,
            board=None if context is None else context.samples,
        )

    def resource(self, *, console: bool = False) -> TreeResource:
        """Return the whole interface over HTTP, an `IResource` to be mounted under any prefix.

        With `console` the console is at `.console/` below that prefix.
        """
        if console:
            self._resource.console_files.mount()
        return self._resource

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return self._listening.urls()

    def console_urls(self) -> list[str]:
        """Return the URLs of the endpoints that `console_listen` names."""
        return self._listening.console_urls()

    def ops_urls(self) -> list[str]:
        """Return the URLs of the endpoints for operators."""
        return self._operations.endpoints.urls()

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
        self.catalog.dialect(found)
        return LocalDatabase(self._local_access, found, identity_of(auth))

    def has_open_rules(self) -> bool:
        """Return whether the default project has the open rules of development mode."""
        project = self._settings.default_project
        try:
            return bool(project) and self.catalog.rules(project).current is OPEN
        except Unavailable:
            return False  # the rules cannot be read, so this is not known

    def privilegedStartService(self) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`."""
        trusts = trusted_on_endpoints(self._settings).trusts
        self._listening.open(
            self._factory,
            partial(self._factory.behind_proxy, is_trusted=trusts),
            self._factory.with_entrance(CONSOLE_ENTRANCE),
        )
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
            self._open_data()
            self._credentials.load()
        except _CANNOT_START as error:
            self._listening.close()
            self._operations.close_at_once()
            self.catalog.close_at_once()
            if self._cluster is not None:
                self._cluster.connections.close()
            self._unlock()
            raise CannotStart.because(error) from None
        if self._tracer is not None:
            self._tracer.start()
        self._local_access.refusal = None
        self._start_readers()
        self._operations.start()
        self._resource.backups.start()
        MultiService.startService(self)

    def _start_readers(self) -> None:
        """Start what reads the logs of this daemon or of another one, and removes expired nodes."""
        if self._standby is not None:
            self._standby.start()
        elif self._office is not None:
            self._office.start()
        if self._archiver is not None:
            self._archiver.start()
        if self._audit is not None:
            self._audit.start()
        self._expirer.start()
        self._deliverer.start()

    def stopService(self) -> Deferred[None]:
        """Stop in the order that the module states; never fails."""
        return Deferred.fromCoroutine(self._stop())

    def reload(self, settings: Settings | None = None) -> Deferred[bool]:
        """Read certificates, secrets, providers and rules again; an invalid file changes nothing.

        Databases that could not be opened are tried again, in the background. Of `settings` only
        the secret files, rules files and providers of the projects are used. Fires with whether all
        was valid; what was not is logged. Reloads run one after the other.
        """
        return self._reloading.run(lambda: Deferred.fromCoroutine(self._reload(settings)))

    async def _reload(self, settings: Settings | None) -> bool:
        is_valid = True
        self.catalog.retry_refused()
        try:
            await self._credentials.reload(None if settings is None else settings.projects)
        except BadCredentials as error:
            self._log.error("{reason} What was loaded before stays in use.", reason=str(error))
            is_valid = False
        else:
            self._resource.streams.recheck(self._authenticator.trusts)
            self._resource.realtime.sockets.recheck(self._authenticator.trusts)
        is_valid &= self._listening.reload()
        return self._operations.endpoints.reload() and is_valid

    async def _stop(self) -> None:
        self._resource.inspection.close()
        if self._office is not None:
            self._office.stop()
        if self._standby is not None:
            await self._standby.stop()
        end_at = self._reactor.seconds() + STOP_SECONDS
        self._local_access.refusal = SHUTTING_DOWN
        self._resource.backups.stop()
        self._operations.is_ending = True
        refusal = self._reactor.callLater(QUEUE_SECONDS, self._refuse_writes)
        await self._listening.close()
        follow = None if self._context is None else self.catalog.poll
        streams, realtime = self._resource.streams, self._resource.realtime
        await drain(self._factory, streams, realtime, self._reactor, follow)
        if refusal.active():
            refusal.cancel()
        self._credentials.close()
        await self._stop_readers()
        await self._close_stores(end_at - self._reactor.seconds())
        self._operations.close_at_once()
        if self._cluster is not None:
            self.has_given_up |= not await self._cluster.stop()
        if not self.has_given_up:
            self._unlock()
        if self._tracer is not None:
            await self._tracer.stop()
        await maybeDeferred(MultiService.stopService, self)

    async def _stop_readers(self) -> None:
        """Stop what reads the logs of this daemon, and what removes expired nodes."""
        await self._expirer.stop()
        await self._deliverer.stop()
        if self._archiver is not None:
            await self._archiver.stop()
        if self._audit is not None:
            self.has_given_up |= not await self._audit.stop()

    def _open_data(self) -> None:
        """Open the stores, and find out whether this daemon is the first."""
        if self._standby is not None:
            self._standby.refuse_writes()
        self._open_stores()
        if self._office is not None:
            self._office.load()
        if self._standby is not None:
            self._standby.check()

    def _open_stores(self) -> None:
        if self._settings.engine == "memory":
            return
        if self._context is not None:
            self.catalog.open(self._context.lock, accept_loss=self._settings.accept_loss)
            return
        self._listening.ensure_data_directory()
        self._lock = DirectoryLock(self._settings.data)
        self._lock.note_urls(self.urls())
        if self._standby is not None:
            finish_all(self._settings.data)
        if self._cluster is not None:
            self._cluster.connect()
        self.catalog.open(self._lock, accept_loss=self._settings.accept_loss)
        if self._cluster is not None:
            self._cluster.start()

    def _refuse_writes(self) -> None:
        self._resource.refuse_writes()
        self.catalog.refuse_writes()

    async def _close_stores(self, seconds: float) -> None:
        """Close all stores, or give up waiting for a disk after some seconds."""
        try:
            await self.catalog.close().addTimeout(seconds, self._reactor)
        except DeferredTimeoutError:
            self.has_given_up = True
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


_THIS_MACHINE: Final = parse_trusted_proxies(("127.0.0.0/8", "::1", "unix"))


def make_runtime(
    settings: Settings,
    reactor: Any,
    cluster: ClusterService | None,
    context: WorkerContext | None,
    *,
    hooks: ConfiguredHooks,
) -> Runtime:
    """Return what all databases share; commits and rules are measured for metrics only."""
    in_thread: RunInThread = partial(deferToThreadPool, reactor, reactor.getThreadPool())
    return Runtime(
        reactor,
        os.urandom,
        in_thread if cluster is None else cluster.connections.run,
        AnswerPool(settings.limits.kept_answer_bytes),
        entry_bytes=settings.streams.retain_entry_bytes,
        followed_bytes=EVENT_BYTES if context or cluster else 0,
        readers=settings.readers,
        first_cursors=_first_cursors(settings),
        hook_limits=settings.webhooks,
        hooks_of=hooks.of,
        first_hooks=FirstHooks(None if settings.engine == "memory" else settings.data),
        watched_fields=settings.limits.watched_fields_per_path,
        volatile_link=_make_volatile_link(cluster, context),
        volatile_bytes=settings.limits.volatile_bytes,
        send_hint=do_nothing if context is None else context.send_hint,
        measure_rules=_measure_rules(settings, reactor),
        statistics=Statistics(is_measuring=bool(settings.ops_listen)),
        owner=_make_owner(settings, in_thread, cluster),
    )


def _make_volatile_link(
    cluster: ClusterService | None, context: WorkerContext | None
) -> VolatileLink | None:
    """Return what sends other processes what is volatile; None if no other has the databases."""
    if cluster is not None:
        return cluster.volatile.link
    return None if context is None else context.volatile_link


def _make_owner(
    settings: Settings, in_thread: RunInThread, cluster: ClusterService | None
) -> SessionOwner:
    """Return the owner of the sessions of this process."""
    if settings.engine == "memory":
        return MemoryOwner()
    make_file = partial(OwnerFile, settings.data, in_thread, os.urandom)
    if cluster is None:
        return make_file()
    # Other daemons keep their files in data directories of their own.
    return cluster.make_owner(partial(make_file, knows_all=False))


def make_election(
    name: str, settings: Settings, reactor: Any, cluster: ClusterService | None
) -> Election:
    """Return the election of the process that reads the change logs for the purpose `name`."""
    if settings.engine == "memory":
        return SoleElection()
    if cluster is not None:
        return cluster.make_election(name)
    in_thread: RunInThread = partial(deferToThreadPool, reactor, reactor.getThreadPool())
    return FileElection(settings.data, name, in_thread, reactor)


def make_trust(settings: Settings) -> FindTrust:
    """Return what finds the authorities that certify the first, and the standbys of a first.

    Raises `ConfigError`.
    """
    if settings.standby_ca_file is None:
        signer = "an authority of the system, and there is no standby_ca_file"
        return partial(TrustStore, None, signer)  # the system's may change
    try:
        authorities = AuthorityFile(settings.standby_ca_file, "an authority of standby_ca_file")
    except BadAuthority as error:
        raise settings.location.at("standby_ca_file").error(
            f"names {settings.standby_ca_file}, which {error.problem}"
        ) from None
    return lambda: authorities


class SystemTrust:
    """The authorities of the system, which may change: they are read again now and then."""

    def __init__(self, clock: IReactorTime) -> None:
        """Read them at the first use."""
        self._clock = clock
        self._store: TrustStore | None = None
        self._until = 0.0

    def creator_for(self, host: str) -> IOpenSSLClientConnectionCreator:
        """Return the creator of TLS connections to a host, as a `TrustStore` does."""
        now = self._clock.seconds()
        if self._store is None or now >= self._until:
            self._store, self._until = TrustStore(None), now + TRUSTED_S
        return self._store.creator_for(host)


def make_office(
    settings: Settings,
    runtime: Runtime,
    catalog: Catalog,
    reactor: Any,
    *,
    trust: FindTrust,
    is_shared: bool,
) -> Office | None:
    """Return the term of the data directory; None if nothing can follow this daemon."""
    if settings.engine == "memory" or settings.is_cluster:
        return None

    def ask(url: str) -> Awaitable[bytes]:
        return get(reactor, trust() if url.startswith("https://") else None, url)

    return Office(settings.data, runtime, catalog, ask, is_shared=is_shared)


def make_first(
    settings: Settings, credentials: Credentials, reactor: Any, trust: FindTrust
) -> FirstClient:
    """Return what sends the requests of a standby."""

    def make_creator(host: str) -> IOpenSSLClientConnectionCreator:
        return trust().creator_for(host)

    url, token_of = settings.standby_of, credentials.token_for_first
    return FirstClient(reactor, url, make_creator, token_of, projects=settings.projects)


def _first_cursors(settings: Settings) -> dict[str, bool]:
    """Return the readers of the logs of all databases, and whether they need whole entries."""
    readers = {}
    if settings.archive.to:
        readers[ARCHIVE] = True
    if settings.audit.directory is not None:
        readers[READER] = False
    return readers


def make_catalog(
    settings: Settings,
    plan: DescriptorPlan,
    runtime: Runtime,
    cluster: ClusterService | None,
    context: WorkerContext | None,
) -> Catalog:
    """Return the databases; nothing is opened yet."""
    return Catalog(
        settings.data,
        settings.engine,
        project_specs(settings),
        any_project=settings.development,
        first_rules=OPEN if settings.development else DENY,
        max_databases=settings.limits.databases,
        bounds=OpenBounds(plan.open_databases, settings.limits.cache_bytes),
        rules_limits=settings.rules,
        runtime=runtime,
        retain_events=settings.streams.retain_events,
        others=context,
        make_files=find_files if cluster is None else cluster.make_files,
    )


def _measure_rules(settings: Settings, reactor: Any) -> MeasureRules | None:
    least_ms = settings.log.slow_rule_ms
    return SlowRulesLog(least_ms / 1000, reactor.seconds).measure if least_ms else None


def make_activity(
    settings: Settings, reactor: Any, context: WorkerContext | None, requests: RequestCounts
) -> Activity:
    """Return the counts of requests; `requests` is added to only if there are metrics."""

    async def measure(names: Sequence[DatabaseName]) -> Sequence[int]:
        def add_up() -> list[int]:
            return stored_bytes(settings.data, names)

        return await deferToThreadPool(reactor, reactor.getThreadPool(), add_up)

    return Activity(
        reactor,
        None if settings.engine == "memory" else measure,
        None if context is None else context.find_activity,
        requests.add if settings.ops_listen else None,
    )


def make_request_log(settings: Settings, find_identity: FindIdentity, reactor: Any) -> RequestLog:
    """Return the log of requests that the settings describe."""
    form: AccessLogForm = "none"
    if settings.http.access_log:
        form = "combined" if settings.http.access_log == "combined" else "fields"
    return RequestLog(
        RequestLogOptions(form, settings.log.sample, settings.log.slow_request_s),
        find_identity,
        RequestParser(settings),
        reactor.seconds,
    )


def secure_headers(settings: Settings) -> tuple[Header, ...]:
    """Return the headers of each response over TLS: `Strict-Transport-Security` (RFC 6797)."""
    seconds = settings.http.hsts_s
    if seconds is None:
        is_public = any(not endpoint.is_loopback for endpoint in settings.client_endpoints)
        seconds = 0 if settings.is_local or not is_public else HSTS_S
    if not seconds:
        return ()
    directives = b"; includeSubDomains" if settings.http.hsts_subdomains else b""
    return ((b"Strict-Transport-Security", b"max-age=%d%b" % (seconds, directives)),)


def trusted_on_endpoints(settings: Settings) -> TrustedProxies:
    """Return the peers whose PROXY headers count: this machine, if no proxy is configured."""
    return settings.trusted_proxies or _THIS_MACHINE


def project_specs(settings: Settings) -> dict[str, ProjectSpec]:
    """Return what the catalog knows of each configured project."""
    return {
        name: ProjectSpec(
            name,
            project.databases,
            project.dialect,
            project.require_index,
            is_file_managed=project.rules_file is not None,
            databases_max=project.databases_max,
            create_databases=project.create_databases,
            database_bytes=project.database_bytes,
            database_nodes=project.database_nodes,
        )
        for name, project in settings.projects.items()
    }


DRAIN_SECONDS: Final = 5.0
"""How long requests under way may take after the stop has begun."""
STREAMS_SECONDS: Final = 1.5
"""After these, streams and sockets end even if requests are under way."""
DRAIN_POLL_S: Final = 0.02
WRITTEN_SECONDS: Final = 2.0
"""How long the writes of streams and sockets that end may take."""


async def drain(
    factory: Http1Factory,
    streams: StreamRegistry,
    realtime: RealtimeEndpoint,
    clock: Any,
    follow: Callable[[], None] | None,
) -> None:
    """Wait for requests under way, then end streams and sockets, which receive events until then.

    If other processes write too, `follow` is called first, so that what they have acknowledged is
    sent. After `DRAIN_SECONDS` all connections that are left are dropped. Then wait, at most
    `WRITTEN_SECONDS`, for the writes that streams and sockets have left for their end.
    """
    streams_end_at = clock.seconds() + STREAMS_SECONDS

    def end_streams() -> None:
        nonlocal follow
        if follow is not None:
            # The events are sent in slices, until the next call.
            follow_once, follow = follow, None
            follow_once()
            return
        is_late = clock.seconds() >= streams_end_at
        if is_late or factory.connections.count <= streams.connected + len(realtime.sockets):
            streams.end()
            realtime.end()

    drained = factory.drain()
    polling = LoopingCall(end_streams)
    polling.clock = clock
    polling.start(DRAIN_POLL_S)
    late = clock.callLater(DRAIN_SECONDS, factory.abort)
    await drained
    polling.stop()
    streams.end()
    if late.active():
        late.cancel()
    # The next process does the writes that are left.
    written = DeferredList([streams.written(), realtime.ended()], consumeErrors=True)
    await written.addTimeout(WRITTEN_SECONDS, clock, lambda _, __: None)


def make_cluster(settings: Settings, reactor: Any) -> ClusterService | None:
    """Return the service of the cluster that the settings require; None if they require none.

    Raises `ConfigError` if the libraries are not installed.
    """
    if not settings.is_cluster:
        return None
    try:
        make = namedAny("treedbd.cluster.service.ClusterService")
        make_settings = namedAny("treedbd.store.postgresql.connection.PostgresqlSettings")
    except ImportError:
        raise settings.location.at("engine").error(
            "needs the library psycopg, which is not installed",
            f"run {read_installation().line_for('postgresql')}",
        ) from None
    postgresql = make_settings(
        settings.engine, is_cluster="," in settings.engine.partition("//")[2].partition("/")[0]
    )
    is_strict, retain = settings.reads == "strict", settings.streams.retain_events
    cluster: ClusterService = make(postgresql, reactor, retain=retain, is_strict=is_strict)
    return cluster


def make_tracer(settings: TracingSettings, reactor: Any) -> Tracer | None:
    """Return the exporter of spans that the settings describe; None if they describe none."""
    if not settings.endpoint:
        return None
    make = namedAny("treedbd.operating.opentelemetry.OpenTelemetryTracer")
    tracer: Tracer = make(settings.endpoint, settings.sample, settings.service_name, reactor)
    return tracer


class WorkerContext(Protocol):
    """The other workers, and what they share.

    `workers/process.OtherWorkers` is the only class: a service does not know the processes.
    """

    @property
    def checks_files(self) -> bool:
        """Whether this worker, and no other, checks files for damage."""
        ...

    @property
    def lock(self) -> DirectoryLock:
        """The lock of the data directory, which their parent holds."""
        ...

    @property
    def samples(self) -> SampleBoard:
        """The memory in which workers share the values of their metrics."""
        ...

    @property
    def counts(self) -> Counting:
        """How many connections and streams all workers have."""
        ...

    @property
    def levels(self) -> Levelling:
        """How much of their rates the callers of all workers have used."""
        ...

    def adopt_port(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        """Accept connections of an endpoint that the parent has opened."""
        ...

    def adopt_ops_port(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        """Accept connections of an endpoint for operators that the parent has opened."""
        ...

    def send_hint(self, name: DatabaseName) -> None:
        """Send the others the hint that this worker has written a database."""
        ...

    @property
    def volatile_link(self) -> VolatileLink:
        """Exchanges what is volatile with the others."""
        ...

    def find_problems(self) -> Awaitable[list[Problem]]:
        """Return the problems of the others."""
        ...

    def find_activity(self, project: str) -> Awaitable[list[ProjectActivity]]:
        """Return the activity at the others with the databases of a project."""
        ...

    def inspect(self, question: bytes) -> Awaitable[Mapping[int, bytes]]:
        """Return the answers of the others to what an admin wants to see (`web/inspection`)."""
        ...

    def report_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Make the others refuse a database that this worker has found damaged."""
        ...

    def delete(self, name: DatabaseName) -> Awaitable[None]:
        """Delete a database, which all workers let go of first; raise `Unavailable`."""
        ...

    def rules_of(self, project: str) -> RulesExchange:
        """Return how the workers agree on the rules of a project."""
        ...


RESERVED_FILES: Final = 512
"""Descriptors for all else: connections that are refused, temporary files, snapshots."""
UNLIMITED: Final = 2**31 - 1
_DEFAULT: Final = Limits()


@attrs.frozen
class DescriptorPlan:
    """How many connections and databases are open at a time.

    `warning` is a sentence for the operator if the settings allow more than that; else None.
    """

    connections: int
    open_databases: int
    warning: str | None = None


def descriptor_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def plan_descriptors(limits: Limits, per_database: int, available: int) -> DescriptorPlan:
    """Divide the `available` descriptors, of which an open database needs `per_database`.

    If there are too few, databases get a quarter, or what connections leave if that is more. There
    is a warning only if the operator has changed a limit.
    """
    reserved = min(RESERVED_FILES, available // 4)
    needed = limits.connections + limits.open_databases * per_database + RESERVED_FILES
    if needed <= available:
        return DescriptorPlan(limits.connections, limits.open_databases)
    free = available - reserved
    for_databases = max(free // 4, free - limits.connections) // per_database
    most_databases = max(1, min(limits.open_databases, for_databases))
    for_connections = free - most_databases * per_database
    most_connections = max(1, min(limits.connections, for_connections))
    chosen = (limits.connections, limits.open_databases)
    if chosen == (_DEFAULT.connections, _DEFAULT.open_databases):
        return DescriptorPlan(most_connections, most_databases)
    return DescriptorPlan(
        most_connections,
        most_databases,
        f"The process may open {available} files, and the settings connections = "
        f"{limits.connections} and open_databases = {limits.open_databases} need {needed}: at most "
        f"{most_connections} connections and {most_databases} databases are open at a time. Raise "
        "the limit (LimitNOFILE= in a unit of systemd, ulimit -n in a shell), or lower the "
        "settings.",
    )
