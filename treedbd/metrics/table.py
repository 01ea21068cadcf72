"""All metrics: one entry each, with its name, its labels, what it means, and how it is read.

Names and labels are a promise to dashboards. The values of a label are few and never chosen by
clients: projects and databases that exist, methods, statuses, codes of errors.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import apsw

import twisted
from treedbd import __version__
from treedbd.database.runtime import BATCH_WRITES
from treedbd.loop import BUCKETS_S, SECONDS
from treedbd.metrics.samples import Labels, Metric, Reading
from treedbd.metrics.sources import Sources

_Read = Callable[[Sources], Reading]


def _counter(name: str, text: str, read: _Read, *labels: str) -> Metric:
    return Metric(name, "counter", text, read, labels)


def _gauge(
    name: str,
    text: str,
    read: _Read,
    *labels: str,
    combine: Callable[[Iterable[float]], float] = sum,
) -> Metric:
    return Metric(name, "gauge", text, read, labels, combine=combine)


def _fact(name: str, text: str, read: _Read, *labels: str) -> Metric:
    """Return a gauge that is the same for all processes."""
    return Metric(name, "gauge", text, read, labels, combine=None)


def _histogram(name: str, text: str, read: _Read, bounds: tuple[float, ...] = SECONDS) -> Metric:
    return Metric(name, "histogram", text, read, bounds=bounds)


def _by(values: Mapping[str, float]) -> Mapping[Labels, float]:
    """Return values by their only label."""
    return {(label,): value for label, value in values.items()}


def _requests(s: Sources) -> Mapping[Labels, float]:
    answered = s.requests.answered.items()
    return {
        (method.decode(), str(status), project): count
        for (method, status, project), count in answered
    }


def _refusals(s: Sources) -> Mapping[Labels, float]:
    return _by(Counter(s.requests.refused) + Counter(s.server.refusals))


def _database_bytes(s: Sources) -> Mapping[Labels, float]:
    return {(each.project, each.database): size for each, size in s.facts.database_bytes.items()}


def _process(name: str) -> _Read:
    return lambda s: s.process.get(name)


_BUILD: Final[Labels] = (
    __version__,
    ".".join(map(str, sys.version_info[:3])),
    twisted.__version__,
    apsw.sqlite_lib_version(),
)

METRICS: Final[tuple[Metric, ...]] = (
    # Requests.
    _counter(
        "treedb_requests_total",
        "Requests that were answered; the project is empty if the request addresses none.",
        _requests,
        *("method", "status", "project"),
    ),
    _histogram(
        "treedb_request_seconds",
        "From the complete request to the end of its response; streams are not counted.",
        lambda s: s.requests.seconds,
    ),
    _counter(
        "treedb_received_bytes_total",
        "Bytes of the bodies of requests.",
        lambda s: _by(s.requests.received),
        "project",
    ),
    _counter(
        "treedb_sent_bytes_total",
        "Bytes of the bodies of responses; streams, and what was cut off, are not counted.",
        lambda s: _by(s.requests.sent),
        "project",
    ),
    _counter(
        "treedb_refusals_total",
        "Requests and connections that were refused, by the code of the error.",
        _refusals,
        "code",
    ),
    _counter(
        "treedb_cut_off_total",
        "Responses whose connection ended before they did, by the reason.",
        lambda s: _by(s.server.cut_off),
        "reason",
    ),
    _counter(
        "treedb_denied_total",
        "Requests that the rules denied; the operation is read, stream or write.",
        lambda s: dict(s.requests.denied.items()),
        *("project", "operation"),
    ),
    _counter(
        "treedb_token_failures_total",
        "Tokens that were not valid, by the reason.",
        lambda s: _by(s.requests.bad_tokens),
        "reason",
    ),
    _gauge("treedb_connections", "Open connections.", lambda s: s.server.connections),
    _gauge(
        "treedb_held_bytes",
        "What connections, streams and listens make the server hold, as it is estimated.",
        lambda s: s.server.held.total,
    ),
    _counter(
        "treedb_held_refusals_total",
        "What was refused because the server would hold too much, by the setting of the limit.",
        lambda s: _by(s.server.held.refused),
        "limit",
    ),
    _counter(
        "treedb_kept_answers_total",
        "Reads by whether their answer was in memory (hit) or was made (miss).",
        lambda s: _by({"hit": s.answers.hits, "miss": s.answers.misses}),
        "result",
    ),
    _counter(
        "treedb_unindexed_queries_total",
        "Queries whose index no rule declares.",
        lambda s: s.queries.unindexed,
    ),
    _histogram(
        "treedb_rule_seconds",
        "Evaluations of rules that depend on the data or the time.",
        lambda s: s.statistics.rule_seconds,
    ),
    # Writes.
    _counter("treedb_writes_total", "Writes that are durable.", lambda s: s.statistics.writes),
    _gauge(
        "treedb_waiting_writes",
        "Writes that wait for the commit before theirs.",
        lambda s: s.statistics.waiting_writes,
    ),
    _histogram(
        "treedb_commit_seconds",
        "From the first write of a batch that is applied until all of them are durable.",
        lambda s: s.statistics.commit_seconds,
    ),
    _histogram(
        "treedb_commit_writes",
        "Writes that are committed together.",
        lambda s: s.statistics.commit_writes,
        BATCH_WRITES,
    ),
    _histogram(
        "treedb_sync_seconds",
        "What of each commit is spent waiting for the disk.",
        lambda s: s.statistics.sync_seconds,
    ),
    # Streams.
    _gauge("treedb_streams", "Open streams.", lambda s: len(s.streams)),
    _counter("treedb_events_total", "Events for streams.", lambda s: s.streams.events_sent),
    _counter(
        "treedb_event_bytes_total",
        "Bytes of these events, without the values that streams begin with.",
        lambda s: s.streams.event_bytes,
    ),
    _counter(
        "treedb_stale_streams_total",
        "How often a stream lost events because its client did not read, and began again.",
        lambda s: s.streams.overflowed,
    ),
    _counter(
        "treedb_resumptions_total",
        "Streams that asked for what they missed: they got it (resumed), or not (restarted).",
        lambda s: _by({"resumed": s.statistics.resumed, "restarted": s.statistics.restarted}),
        "result",
    ),
    # Sockets of the real-time protocol.
    _gauge("treedb_sockets", "Open WebSockets.", lambda s: len(s.sockets)),
    _counter("treedb_sockets_opened_total", "WebSockets opened.", lambda s: s.sockets.opened),
    _counter(
        "treedb_socket_refusals_total",
        "What was refused to WebSockets, and those closed, by the setting of the limit.",
        lambda s: _by(s.sockets.refused),
        "limit",
    ),
    _counter(
        "treedb_socket_messages_total",
        "Messages from clients (in), and to them (out); events are not counted.",
        lambda s: _by({"in": s.sockets.messages_in, "out": s.sockets.messages_out}),
        "direction",
    ),
    _gauge("treedb_listens", "Listens of WebSockets.", lambda s: s.sockets.listens),
    _counter("treedb_listen_events_total", "Events for listens.", lambda s: s.sockets.events_sent),
    _counter(
        "treedb_listen_event_bytes_total",
        "Bytes of these events, without the values that listens begin with.",
        lambda s: s.sockets.event_bytes,
    ),
    _counter(
        "treedb_stale_listens_total",
        "How often a listen lost events because its client did not read, and got its value again.",
        lambda s: s.sockets.overflowed,
    ),
    _gauge(
        "treedb_disconnect_sessions",
        "Streams and WebSockets with something to be written at their end that is not done yet.",
        lambda s: s.statistics.disconnect_sessions,
    ),
    _counter(
        "treedb_disconnect_writes_total",
        "What was to be written at the end of these, and was done, or refused then.",
        lambda s: _by(
            {"done": s.statistics.disconnect_writes, "refused": s.statistics.disconnect_refusals}
        ),
        "result",
    ),
    # Databases.
    _gauge(
        "treedb_databases_open",
        "Databases whose files are open, counted by each process.",
        lambda s: s.statistics.count_open(),
    ),
    _fact(
        "treedb_store_bytes",
        "Bytes on the disk of the largest databases.",
        _database_bytes,
        *("project", "database"),
    ),
    _fact(
        "treedb_project_store_bytes",
        "Bytes on the disk of all databases of a project.",
        lambda s: _by(s.facts.project_bytes),
        "project",
    ),
    _fact(
        "treedb_disk_free_bytes",
        "Bytes that are free in the file system of the data directory.",
        lambda s: s.facts.disk_free_bytes,
    ),
    _fact(
        "treedb_problems",
        "What keeps databases from being served as they should be, as /.health lists it.",
        lambda s: s.facts.problems,
    ),
    _fact(
        "treedb_write_problems",
        "Those of the problems that refuse writes.",
        lambda s: s.facts.write_problems,
    ),
    _fact(
        "treedb_last_backup_timestamp_seconds",
        "When treedb backup last saved everything; 0 if it never did.",
        lambda s: s.facts.last_backup_at,
    ),
    _fact(
        "treedb_certificate_end_timestamp_seconds",
        "When the first certificate ends that is served.",
        lambda s: s.facts.certificate_ends_at,
    ),
    # Processes.
    _histogram(
        "treedb_turn_seconds",
        "Turns of the event loop: while one lasts, no other client is served.",
        Sources.turn_seconds,
        BUCKETS_S,
    ),
    _gauge("treedb_processes", "Processes that serve.", lambda _: 1),
    Metric(
        "treedb_build_info",
        "gauge",
        "Always 1; the versions are in the labels.",
        lambda _: {_BUILD: 1},
        ("version", "python", "twisted", "sqlite"),
        combine=None,
    ),
    _counter("process_cpu_seconds_total", "CPU time.", _process("process_cpu_seconds_total")),
    _gauge(
        "process_resident_memory_bytes",
        "Memory in use.",
        _process("process_resident_memory_bytes"),
    ),
    _gauge(
        "process_virtual_memory_bytes",
        "Memory that is mapped.",
        _process("process_virtual_memory_bytes"),
    ),
    _gauge("process_open_fds", "Open descriptors.", _process("process_open_fds")),
    _gauge("process_max_fds", "Descriptors that may be open.", _process("process_max_fds")),
    _gauge(
        "process_start_time_seconds",
        "When the first of the processes began, in seconds since 1970.",
        _process("process_start_time_seconds"),
        combine=min,
    ),
)
