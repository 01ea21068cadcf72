"""Metrics: their meaning and their sources, how they are added up and printed.

A `Metric` is one entry of the table `METRICS`: its name, its labels, its meaning, and how it is
read from the `Sources` of a service. Names and labels are a promise to dashboards. The values of a
label are few and never chosen by clients: projects and databases that exist, methods, statuses,
codes of errors.

Parts of the service count; `Probes` measures in a worker thread what is not counted, such as sizes
on the disk. `read_samples` reads all values at one moment, `add_up` adds those of several
processes, and `format_samples` prints them by prometheus-client as OpenMetrics or Prometheus.
`operating/operations` serves the result.

Several workers share memory, the `SampleBoard`: each writes its values to its own part, once a
second and before it answers an operator, and reads the parts of the others. A worker that replaces
one that has ended continues to count from the values in its part, so no value that was shown ever
falls. A value that may fall, such as the number of open connections, counts only if it was written
lately. A part has two halves, which are written alternately, each with a check sum: if a worker
ends while it writes, or a part is read at that moment, the other half is valid.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pathlib
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import apsw
import attrs
import orjson
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

import twisted
from treedbd import __version__
from treedbd.audit.auditor import Auditor
from treedbd.counting import SECONDS, Histogram
from treedbd.database.answers import AnswerPool
from treedbd.database.data_directory import BACKUP_NOTE, measure_all
from treedbd.database.runtime import BATCH_WRITES, LATE_SECONDS, Problem, Statistics
from treedbd.hooks.deliverer import Deliverer
from treedbd.http1.server import Http1Factory
from treedbd.loop import BUCKETS_S, Turns
from treedbd.names import DatabaseName
from treedbd.web.activity import RequestCounts
from treedbd.web.listeners import SocketRegistry, StreamRegistry
from treedbd.web.reading import MissingIndexes

if TYPE_CHECKING:
    from treedbd.archive.upkeep import ArchiveCounts

Labels: TypeAlias = tuple[str, ...]
Buckets: TypeAlias = tuple[tuple[int, ...], float]
"""The observations in each bucket of a histogram, the last of which has no bound, and their sum."""
Samples: TypeAlias = "dict[str, dict[Labels, float | Buckets]]"
"""The values of each metric by its labels; of a histogram the buckets."""
Reading: TypeAlias = "float | Histogram | Mapping[Labels, float] | None"
"""A reading of a service: one value, values by labels, or None without a value."""
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

_BUILD: Final[Labels] = (
    __version__,
    ".".join(map(str, sys.version_info[:3])),
    twisted.__version__,
    apsw.sqlite_lib_version(),
)

LARGEST: Final = 20
"""How many databases, the largest, are shown with their sizes: each is a value of a label."""


@attrs.frozen
class Metric:
    """One metric: its name, its meaning, and how it is read.

    Attributes:
        read: returns the values from the sources of a service.
        labels: the names of the labels.
        bounds: the bounds of the buckets of a histogram.
        combine: joins the values of all processes in one; None if they all read the same.

    """

    name: str
    kind: Kind
    help: str
    read: Callable[[Any], Reading]
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    combine: Callable[[Iterable[float]], float] | None = sum

    @property
    def only_grows(self) -> bool:
        """Whether its values only grow, also while processes end and others start."""
        return self.kind != "gauge"


@attrs.frozen
class Facts:
    """The values that are not counted but measured for each scrape.

    Attributes:
        database_bytes: on the disk, of the largest databases.
        project_bytes: on the disk, of all databases of each project.
        disk_free_bytes: of the file system of the data; None without files.
        problems: how many things are not as they should be.
        write_problems: how many of them refuse writes.
        last_backup_at: seconds since 1970, 0 for never; None without files.
        certificate_ends_at: when the first certificate ends, in seconds since 1970; None without
            one.

    """

    database_bytes: Mapping[DatabaseName, int] = attrs.field(factory=dict)
    project_bytes: Mapping[str, int] = attrs.field(factory=dict)
    disk_free_bytes: int | None = None
    problems: int = 0
    write_problems: int = 0
    last_backup_at: float | None = None
    certificate_ends_at: float | None = None


@attrs.define
class Sources:
    """The parts of one service from which metrics are read.

    Attributes:
        archive: what is counted of the archive; None without one.
        auditor: audits writes; None if nothing does.
        deliverer: sends the events of webhooks.
        facts: the values that were measured last.
        turns: the turns of the event loop; None if they are not counted.
        process: the metrics of the process by name, as they were measured last.

    """

    requests: RequestCounts
    statistics: Statistics
    answers: AnswerPool
    streams: StreamRegistry
    sockets: SocketRegistry
    queries: MissingIndexes
    server: Http1Factory
    archive: ArchiveCounts | None = None
    auditor: Auditor | None = None
    deliverer: Deliverer | None = None
    turns: Turns | None = None
    facts: Facts = attrs.field(factory=Facts)
    process: Mapping[str, float] = attrs.field(factory=dict)

    def turn_seconds(self) -> Histogram | None:
        """Return how long the turns of the event loop took."""
        if self.turns is None:
            return None
        histogram = Histogram(BUCKETS_S)
        histogram.counts[:] = self.turns.counts
        histogram.total = self.turns.total_ns / 1e9
        return histogram


_Read = Callable[[Sources], Reading]


def _counter(name: str, text: str, read: _Read, *labels: str) -> Metric:
    return Metric(name=name, kind="counter", help=text, read=read, labels=labels)


def _gauge(
    name: str,
    text: str,
    read: _Read,
    *labels: str,
    combine: Callable[[Iterable[float]], float] = sum,
) -> Metric:
    return Metric(name=name, kind="gauge", help=text, read=read, labels=labels, combine=combine)


def _fact(name: str, text: str, read: _Read, *labels: str) -> Metric:
    """Return a gauge that is the same for all processes."""
    return Metric(name=name, kind="gauge", help=text, read=read, labels=labels, combine=None)


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
    return _by(Counter(s.requests.refused) + Counter(s.server.connections.refusals))


def _database_bytes(s: Sources) -> Mapping[Labels, float]:
    return {(each.project, each.database): size for each, size in s.facts.database_bytes.items()}


def _archived(read: Callable[[ArchiveCounts], float | None]) -> _Read:
    return lambda s: None if s.archive is None else read(s.archive)


def _webhooks(read: Callable[[Deliverer], Reading]) -> _Read:
    return lambda s: None if s.deliverer is None else read(s.deliverer)


def _process(name: str) -> _Read:
    return lambda s: s.process.get(name)


def _cursor_lag(name: str, text: str) -> Metric:
    """Return the gauge of the field of `Lag` that ends its name: the largest of all processes."""
    unit = name.rpartition("_")[2]

    def read(s: Sources) -> Mapping[Labels, float]:
        return _by({name: getattr(lag, unit) for name, lag in s.statistics.reader_lags.items()})

    return _gauge(name, text, read, "cursor", combine=max)


METRICS: Final[tuple[Metric, ...]] = (
    # Requests.
    _counter(
        "treedb_requests_total",
        "Requests that were answered; the project is empty if the request addresses none.",
        _requests,
        "method",
        "status",
        "project",
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
        lambda s: _by(s.server.connections.cut_off),
        "reason",
    ),
    _counter(
        "treedb_denied_total",
        "Requests that the rules denied; the operation is read, stream or write.",
        lambda s: dict(s.requests.denied.items()),
        "project",
        "operation",
    ),
    _counter(
        "treedb_token_failures_total",
        "Tokens that were not valid, by the reason.",
        lambda s: _by(s.requests.bad_tokens),
        "reason",
    ),
    _gauge("treedb_connections", "Open connections.", lambda s: s.server.connections.count),
    _gauge(
        "treedb_held_bytes",
        "What connections, streams and listens make the server hold, as it is estimated.",
        lambda s: s.server.connections.held.total,
    ),
    _counter(
        "treedb_held_refusals_total",
        "What was refused because the server would hold too much, by the setting of the limit.",
        lambda s: _by(s.server.connections.held.refused),
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
    # Volatile nodes, which all processes have.
    _counter(
        "treedb_volatile_writes_total",
        "Writes of volatile nodes alone, which are in memory and in no other metric of writes.",
        lambda s: s.statistics.volatile_writes,
    ),
    _gauge(
        "treedb_volatile_nodes",
        "Volatile nodes that have a value, of the process with most.",
        lambda s: s.statistics.count_volatile()[0],
        combine=max,
    ),
    _gauge(
        "treedb_volatile_bytes",
        "What these take in memory, as limits.volatile_bytes counts it.",
        lambda s: s.statistics.count_volatile()[1],
        combine=max,
    ),
    _gauge(
        "treedb_standby_lag_seconds",
        "How old the data of this standby may be; none of a first.",
        lambda s: s.statistics.find_standby_lag(),
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
        "Streams that requested missed events: they got them (resumed), or not (restarted).",
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
    # Readers of change logs.
    _cursor_lag(
        "treedb_log_cursor_lag_entries",
        "Writes that a reader of change logs has not read, of the open database with most.",
    ),
    _cursor_lag(
        "treedb_log_cursor_lag_bytes",
        "Bytes of these in the change log, of the open database with most.",
    ),
    _cursor_lag(
        "treedb_log_cursor_lag_seconds",
        "Age of the oldest of these, in the open database with the oldest; 0 without any.",
    ),
    _counter(
        "treedb_log_cursors_dropped_total",
        "How often a reader of a change log lost its place, because its lag was too long.",
        lambda s: s.statistics.dropped_cursors,
    ),
    # Expiry.
    _counter(
        "treedb_expired_nodes_total",
        "Nodes that were removed since the time was over that rules give them (.ttl).",
        lambda s: s.statistics.expired_nodes,
    ),
    _histogram(
        "treedb_expiry_late_seconds",
        "How late the last node of each write was that removed such nodes.",
        lambda s: s.statistics.expiry_seconds,
        LATE_SECONDS,
    ),
    _gauge(
        "treedb_expiry_lag_seconds",
        "How late the oldest node is that is not removed yet, in the process that removes them.",
        lambda s: s.statistics.find_expiry_lag(),
        combine=max,
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
        "project",
        "database",
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
    _gauge(
        "treedb_audit_lag_seconds",
        "Age of the oldest write that is not audited yet, 0 if all are; without an audit no value.",
        lambda s: None if s.auditor is None else s.auditor.lag_s(),
        combine=max,
    ),
    _counter(
        "treedb_webhook_requests_total",
        "Requests to receivers of webhooks: accepted by 2xx, or failed.",
        _webhooks(lambda d: _by({"accepted": d.counts.accepted, "failed": d.counts.failed})),
        "result",
    ),
    _counter(
        "treedb_webhook_retries_total",
        "Those that were not the first for their event.",
        _webhooks(lambda d: d.counts.retried),
    ),
    _histogram(
        "treedb_webhook_seconds",
        "How long requests to receivers of webhooks took.",
        _webhooks(lambda d: d.counts.seconds),
    ),
    _gauge(
        "treedb_webhook_lag_seconds",
        "How long the oldest event has waited that a receiver has not acknowledged, 0 without any.",
        _webhooks(lambda d: d.lag_s()),
        combine=max,
    ),
    _gauge(
        "treedb_webhook_dead_letters",
        "Events that receivers did not accept and that wait for an admin, of databases in use.",
        _webhooks(lambda d: d.count_dead()),
    ),
    _counter(
        "treedb_webhook_losses_total",
        "How often events of a webhook were lost, because its lag was too long.",
        _webhooks(lambda d: d.counts.lost),
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
    # The archive.
    _gauge(
        "treedb_archive_lag_seconds",
        "Age of the oldest write that the archive lacks: what is lost if the machine is.",
        _archived(lambda archive: archive.lag_s()),
        combine=max,
    ),
    _counter(
        "treedb_archive_segments_total",
        "Segments that were written to the archive.",
        _archived(lambda archive: archive.segments),
    ),
    _counter(
        "treedb_archive_bytes_total",
        "Bytes that were written to the archive.",
        _archived(lambda archive: archive.bytes),
    ),
    _counter(
        "treedb_archive_failures_total",
        "Failures to write to the archive; each is tried again.",
        _archived(lambda archive: archive.failures),
    ),
    _gauge(
        "treedb_archive_last_base_timestamp_seconds",
        "When the last base was written to the archive; 0 if none ever was.",
        _archived(lambda archive: archive.last_base_ms / 1000),
        combine=max,
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
        name="treedb_build_info",
        kind="gauge",
        help="Always 1; the versions are in the labels.",
        read=lambda _: {_BUILD: 1},
        labels=("version", "python", "twisted", "sqlite"),
        combine=None,
    ),
    _counter("process_cpu_seconds_total", "CPU time.", _process("process_cpu_seconds_total")),
    _gauge(
        "process_resident_memory_bytes", "Memory in use.", _process("process_resident_memory_bytes")
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

NOTHING: Final[Samples] = {}


def read_samples(metrics: Iterable[Metric], sources: Any) -> Samples:
    """Return the present values of metrics."""
    return {metric.name: _values_of(metric.read(sources)) for metric in metrics}


def _values_of(reading: Reading) -> dict[Labels, float | Buckets]:
    if reading is None:
        return {}
    if isinstance(reading, Histogram):
        return {(): (tuple(reading.counts), reading.total)}
    if isinstance(reading, Mapping):
        return dict(reading)
    return {(): reading}


def add_up(metrics: Iterable[Metric], parts: Sequence[Samples]) -> Samples:
    """Return the values of several processes together; the first is this process."""
    return {
        metric.name: _add_up(metric, [part.get(metric.name, {}) for part in parts])
        for metric in metrics
    }


def _add_up(
    metric: Metric, parts: Sequence[Mapping[Labels, float | Buckets]]
) -> dict[Labels, float | Buckets]:
    if metric.combine is None:
        return dict(parts[0])
    together: dict[Labels, list[Any]] = {}
    for part in parts:
        for labels, value in part.items():
            together.setdefault(labels, []).append(value)
    combine = _add_buckets if metric.kind == "histogram" else metric.combine
    return {labels: combine(values) for labels, values in together.items()}


def _add_buckets(values: Sequence[Buckets]) -> Buckets:
    counts = tuple(map(sum, zip(*(counts for counts, _ in values), strict=True)))
    return counts, sum(total for _, total in values)


def growing(metrics: Iterable[Metric], samples: Samples) -> Samples:
    """Return the values of the metrics that only grow."""
    return {
        metric.name: samples[metric.name]
        for metric in metrics
        if metric.only_grows and metric.name in samples
    }


def to_json(samples: Samples) -> dict[str, Any]:
    """Return values as JSON that `from_json` reads."""
    return {name: list(values.items()) for name, values in samples.items()}


def from_json(json: Mapping[str, Any]) -> Samples:
    """Return the values that `to_json` was given."""
    return {
        name: {tuple(labels): _value_from(value) for labels, value in values}
        for name, values in json.items()
    }


def _value_from(value: Any) -> float | Buckets:
    if isinstance(value, list):
        counts, total = value
        return tuple(counts), total
    number: float = value
    return number


@attrs.frozen(eq=False)
class _ReadValues(Collector):
    """The values of one scrape, as a registry reads them."""

    metrics: Iterable[Metric]
    samples: Samples

    def collect(self) -> Iterator[Family]:
        for metric in self.metrics:
            yield make_family(metric, self.samples.get(metric.name, {}))


def format_samples(metrics: Iterable[Metric], samples: Samples, accept: str) -> tuple[bytes, str]:
    """Return values as text in the format that a header `Accept` prefers, and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReadValues(metrics, samples))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def make_family(metric: Metric, values: Mapping[Labels, float | Buckets]) -> Family:
    """Return a metric with its values as a family of prometheus-client."""
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            if isinstance(value, tuple):
                counts, total = value
                bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
                buckets = list(zip(bounds, accumulate(counts), strict=True))
                histogram.add_metric(labels, buckets, total)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        if not isinstance(value, tuple):
            family.add_metric(labels, value)
    return family


@attrs.frozen
class Probes:
    """Measures the process, the disk and the age of the backup; may be used in any thread.

    `folder` is the data directory, None without one. `label_of` returns the label of a project,
    empty for one that is not shown.
    """

    _folder: pathlib.Path | None
    _label_of: Callable[[str], str]
    _has_backups: bool = attrs.field(default=True, kw_only=True)
    _process: ProcessCollector = attrs.field(
        factory=lambda: ProcessCollector(registry=None), init=False
    )

    def look_at_process(self) -> Mapping[str, float]:
        """Return the metrics of this process by name; none without `/proc`."""
        families = self._process.collect()
        return {sample.name: sample.value for family in families for sample in family.samples}

    def look_at_data(self) -> Facts:
        """Return the facts about the data directory."""
        if self._folder is None:
            return Facts()
        sizes = measure_all(self._folder)
        projects: Counter[str] = Counter()
        for name, size in sizes.items():
            projects[self._label_of(name.project)] += size
        largest = heapq.nlargest(LARGEST, sizes.items(), key=itemgetter(1))
        return Facts(
            {name: size for name, size in largest if self._label_of(name.project)},
            projects,
            self._find_free_bytes(),
            last_backup_at=self._find_last_backup() if self._has_backups else None,
        )

    def _find_free_bytes(self) -> int | None:
        with contextlib.suppress(OSError):
            found = os.statvfs(self._folder or "")
            return found.f_bavail * found.f_frsize
        return None

    def _find_last_backup(self) -> float:
        with contextlib.suppress(OSError):
            # Its time, not its content, which another user may have written without read access.
            return (self._folder or pathlib.Path()).joinpath(BACKUP_NOTE).stat().st_mtime
        return 0.0


def add_problems(facts: Facts, problems: Iterable[Problem], ends_at: float | None) -> Facts:
    """Return facts with the number of problems, and the end of the first certificate."""
    found = list(problems)
    return attrs.evolve(
        facts,
        problems=len(found),
        write_problems=sum(each.refuses_writes for each in found),
        certificate_ends_at=ends_at,
    )


HALF_BYTES: Final = 8 * 1024 * 1024
"""Room for the values of one worker; only written bytes need memory."""
_HALF_HEAD: Final = struct.Struct("<QdII")
"""How often the part was written, when, the length of the content, and its check sum."""


class SampleBoard:
    """The board of metrics, for worker `number` of `workers`."""

    def __init__(self, descriptor: int, number: int, workers: int) -> None:
        """Use the memory of `descriptor`."""
        self._file = descriptor
        self._number = number
        self._others = [each for each in range(workers) if each != number]
        found = self._read(number)
        self._written = 0 if found is None else found[0]

    def before(self) -> Samples:
        """Return the values that this worker, or its predecessor, has written last."""
        found = self._read(self._number)
        return NOTHING if found is None else found[2]

    def write(self, samples: Samples, now: float) -> None:
        """Write values for the others; `now` is in seconds of the clock that all workers share."""
        content = orjson.dumps(to_json(samples))
        if _HALF_HEAD.size + len(content) > HALF_BYTES:
            return  # the others see the previous values
        self._written += 1
        head = _HALF_HEAD.pack(self._written, now, len(content), zlib.crc32(content))
        os.pwrite(self._file, head + content, _half_start(self._number, self._written % 2))

    def read_others(self) -> list[tuple[float, Samples]]:
        """Return the values of all others, and when each was written."""
        found = [self._read(number) for number in self._others]
        return [(each[1], each[2]) for each in found if each is not None]

    def _read(self, number: int) -> tuple[int, float, Samples] | None:
        """Return how often a part was written, when it was written last, and its values."""
        halves = [half for at in (0, 1) if (half := self._read_half(_half_start(number, at)))]
        return max(halves, key=lambda half: half[0], default=None)

    def _read_half(self, start: int) -> tuple[int, float, Samples] | None:
        head = os.pread(self._file, _HALF_HEAD.size, start)
        if len(head) < _HALF_HEAD.size:
            return None
        count, at, size, check = _HALF_HEAD.unpack(head)
        if not count or size > HALF_BYTES:
            return None
        content = os.pread(self._file, size, start + _HALF_HEAD.size)
        if len(content) != size or zlib.crc32(content) != check:
            return None  # a worker is writing it
        json: dict[str, Any] = orjson.loads(content)
        return count, at, from_json(json)


def _half_start(number: int, half: int) -> int:
    return (2 * number + half) * HALF_BYTES
