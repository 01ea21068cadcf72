"""The parts of a service, made as its settings say: the packages below do not know the settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import attrs
from twisted.internet.threads import deferToThreadPool

from treedbd.cluster_link import ClusterLink
from treedbd.config.endpoints import AUTHORITY_CERTIFICATE, LOCAL_CERTIFICATE
from treedbd.config.http_settings import HSTS_S
from treedbd.config.settings import Settings
from treedbd.database.answer_pool import AnswerPool
from treedbd.database.catalog import Catalog
from treedbd.database.data_directory import stored_bytes
from treedbd.database.database_files import DatabaseFiles
from treedbd.database.open_databases import OpenBounds
from treedbd.database.project import ProjectSpec
from treedbd.database.runtime import MeasureRules, Runtime
from treedbd.database.session_owner import MemoryOwner, OwnerFile, SessionOwner
from treedbd.database.slow_rules import SlowRulesLog
from treedbd.database.statistics import Statistics
from treedbd.descriptors import DescriptorPlan
from treedbd.names import DatabaseName, TrustedProxies, parse_trusted_proxies
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.tree.event import EVENT_BYTES
from treedbd.web.activity import Activity
from treedbd.web.auth.verifier import OWNER_TOKEN
from treedbd.web.cors import Cors
from treedbd.web.headers import Header
from treedbd.web.http1.served import AdaptRequests, RequestLogging, ServerOptions
from treedbd.web.options import DevelopmentFacts, WebOptions
from treedbd.web.rates import Rates
from treedbd.web.request import RequestParser
from treedbd.web.request_counts import RequestCounts
from treedbd.web.request_log import AccessLogForm, FindIdentity, RequestLog, RequestLogOptions
from treedbd.worker_context import WorkerContext

_THIS_MACHINE: Final = parse_trusted_proxies(("127.0.0.0/8", "::1", "unix"))


def make_runtime(
    settings: Settings, reactor: Any, cluster: ClusterLink | None, context: WorkerContext | None
) -> Runtime:
    """Return what all databases are given; commits and rules are measured for metrics only."""
    return Runtime(
        reactor,
        os.urandom,
        partial(deferToThreadPool, reactor, reactor.getThreadPool())
        if cluster is None
        else cluster.run_in_thread,
        AnswerPool(settings.limits.kept_answer_bytes),
        entry_bytes=settings.streams.retain_entry_bytes,
        followed_bytes=EVENT_BYTES if context or cluster else 0,
        watched_fields=settings.limits.watched_fields_per_path,
        send_hint=_tell_nobody if context is None else context.send_hint,
        measure_rules=_measure_rules(settings, reactor),
        statistics=Statistics(is_measuring=bool(settings.ops_listen)),
        owner=_make_owner(settings, reactor, cluster),
    )


def _make_owner(settings: Settings, reactor: Any, cluster: ClusterLink | None) -> SessionOwner:
    """Return what the sessions of this process belong to."""
    if settings.engine == "memory":
        return MemoryOwner()
    run_in_thread = partial(deferToThreadPool, reactor, reactor.getThreadPool())
    if cluster is None:
        return OwnerFile(settings.data, run_in_thread, os.urandom)
    return cluster.make_owner(
        # Other daemons keep theirs in data directories of their own.
        partial(OwnerFile, settings.data, run_in_thread, os.urandom, knows_all=False)
    )


def make_catalog(
    settings: Settings,
    plan: DescriptorPlan,
    runtime: Runtime,
    cluster: ClusterLink | None,
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
        make_files=DatabaseFiles if cluster is None else cluster.make_files,
    )


def _measure_rules(settings: Settings, reactor: Any) -> MeasureRules | None:
    least_ms = settings.log.slow_rule_ms
    return SlowRulesLog(least_ms / 1000, reactor.seconds).measure if least_ms else None


def make_activity(
    settings: Settings, reactor: Any, context: WorkerContext | None, requests: RequestCounts
) -> Activity:
    """Return what counts the requests of clients; `requests` does so only if there are metrics."""

    async def measure(names: Sequence[DatabaseName]) -> Sequence[int]:
        def add_up() -> list[int]:
            return [stored_bytes(settings.data, name) for name in names]

        return await deferToThreadPool(reactor, reactor.getThreadPool(), add_up)

    return Activity(
        reactor,
        None if settings.engine == "memory" else measure,
        None if context is None else context.find_activity,
        requests.add if settings.ops_listen else None,
    )


def make_request_log(
    settings: Settings, options: WebOptions, find_identity: FindIdentity, reactor: Any
) -> RequestLog:
    """Return what logs requests, as the settings say."""
    form: AccessLogForm = "none"
    if settings.http.access_log:
        form = "combined" if settings.http.access_log == "combined" else "fields"
    parser = RequestParser(options)
    return RequestLog(
        RequestLogOptions(form, settings.log.sample, settings.log.slow_request_s),
        find_identity,
        lambda request: parser.locate(request).name,
        reactor.seconds,
    )


def _tell_nobody(_: DatabaseName) -> None:
    pass


def web_options(
    settings: Settings, context: WorkerContext | None, requests: RequestCounts
) -> WebOptions:
    """Return the options of the interface; refusals are counted by `requests` if there are metrics.

    What has a limit is counted for all workers.
    """
    is_local = settings.development or settings.emulator
    # A service that does not listen by itself is mounted in a program that knows its own hosts.
    has_own_hosts = bool(settings.domains and settings.listen)
    return WebOptions(
        domains=settings.domains,
        default_project=settings.default_project,
        etag_headers=settings.http.etag_headers,
        cors_origins=settings.http.cors_origins,
        compression=settings.http.compression,
        any_host=not is_local and not has_own_hosts,
        only_local_pages=is_local,
        own_hosts=_own_hosts(settings) if is_local else (),
        admin_token=None if settings.network is None else settings.network.admin_token,
        limits=settings.limits,
        streams=settings.streams,
        rates=settings.rates,
        project_rates={
            name: attrs.evolve(settings.rates, **project.rates)
            for name, project in settings.projects.items()
            if project.rates
        },
        counts=None if context is None else context.counts,
        levels=None if context is None else context.levels,
        trusted_proxies=settings.trusted_proxies,
        logs_requests=settings.development and not settings.quiet,
        has_page=settings.http.page,
        has_realtime=settings.realtime.enabled,
        development=_development_facts(settings) if settings.development else None,
        refused=requests.note_refusal if settings.ops_listen else None,
    )


def server_options(
    settings: Settings,
    options: WebOptions,
    logs: RequestLogging,
    activity: Activity,
    rates: Rates | None,
    adapt_requests: AdaptRequests | None,
) -> ServerOptions:
    """Return what the server does beside answering requests."""
    return ServerOptions(
        logs=logs,
        refusal_headers=Cors(options.cors_origins).fixed or (),
        secure_headers=secure_headers(settings),
        counts=options.counts,
        activity=activity,
        rates=rates,
        trusted_proxies=options.trusted_proxies,
        adapt_requests=adapt_requests,
    )


def secure_headers(settings: Settings) -> tuple[Header, ...]:
    """Return the headers of each response over TLS: `Strict-Transport-Security` (RFC 6797)."""
    seconds = settings.http.hsts_s
    if seconds is None:
        is_public = any(not endpoint.is_loopback for endpoint in settings.listen)
        is_local = settings.development or settings.emulator or not is_public
        seconds = 0 if is_local else HSTS_S
    if not seconds:
        return ()
    directives = b"; includeSubDomains" if settings.http.hsts_subdomains else b""
    return ((b"Strict-Transport-Security", b"max-age=%d%b" % (seconds, directives)),)


def trusted_on_endpoints(settings: Settings) -> TrustedProxies:
    """Return whose headers of the PROXY protocol count: of this machine, if none is configured."""
    return settings.trusted_proxies or _THIS_MACHINE


def _own_hosts(settings: Settings) -> tuple[str, ...]:
    # Names below `localhost` are this machine (RFC 6761, section 6.3).
    return ("*.localhost", *(() if settings.network is None else settings.network.hosts))


def _development_facts(settings: Settings) -> DevelopmentFacts:
    token = OWNER_TOKEN if settings.emulator else None
    name = LOCAL_CERTIFICATE if settings.network is None else AUTHORITY_CERTIFICATE
    return DevelopmentFacts((settings.data / name).absolute(), token)


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
