"""The status of a cluster, as text and as JSON; needs the driver of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.names import DatabaseName
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import (
    PART,
    ClusterReport,
    ClusterStatus,
    DaemonStatus,
    StoredDatabase,
    examine,
    read_status,
)
from treedbd.store.postgresql.connection import PostgresqlSettings, SessionPool, cannot_connect
from treedbd.store.postgresql.moving import read_mark
from treedbd.store.postgresql.schema import MOVED, read_schema

ALIVE_S: Final = 60.0
"""A daemon that was not seen for longer counts as stopped."""
_GAP: Final = "  "


@attrs.frozen
class StatusReport:
    """All that is shown; `moved_to` is where the data was moved to, None if it was not."""

    server: ClusterReport
    status: ClusterStatus
    moved_to: str | None


def read_report(url: str) -> StatusReport:
    """Return the status of the PostgreSQL at `url`; nothing is changed there.

    Raises `CommandFailed`, `StoreUnreachable` or `OperatorError`.
    """
    settings = PostgresqlSettings(url)
    try:
        schema = read_schema(settings)
    except StoreUnreachable as error:
        raise cannot_connect(settings.subject, error) from None
    if schema is None:
        raise CommandFailed(
            f"{settings.subject} has no tables of treedb: the first daemon that starts with it "
            "creates them."
        )
    server = examine(settings)
    pool = SessionPool(settings, 1)
    try:
        moved_to = pool.run(lambda connection: read_mark(connection, MOVED))
        return StatusReport(server, read_status(pool), moved_to)
    finally:
        pool.close()


def as_json(report: StatusReport) -> str:
    """Return the status as one JSON object."""
    server = report.server
    content = {
        "server_version": server.server_version,
        "synchronous_standby_names": server.standby_names,
        "standbys": server.standbys,
        "warnings": _warnings(report),
        "moved_to": report.moved_to,
        "daemons": [_describe_daemon(report.status, each) for each in report.status.daemons],
        "databases": _describe_databases(report.status),
    }
    return orjson.dumps(content).decode()


def as_lines(report: StatusReport) -> Iterator[str]:
    """Yield the status as lines of text."""
    server = report.server
    yield f"PostgreSQL {server.server_version}"
    if server.standby_names:
        yield f"Synchronous standbys: {server.standby_names}; {server.standbys} follow."
    else:
        yield f"No synchronous standbys are set; {server.standbys} follow."
    for sentence in _warnings(report):
        yield f"Warning: {sentence}"
    yield ""
    daemons = [_describe_daemon(report.status, each) for each in report.status.daemons]
    yield from _table(_DAEMON_COLUMNS, daemons, "No daemon was seen during the last day.")
    yield ""
    databases = _describe_databases(report.status)
    yield from _table(_DATABASE_COLUMNS, databases, "There are no databases.")


_DAEMON_COLUMNS: Final = {
    "daemon": "name",
    "address": "address",
    "version": "version",
    "seen (s ago)": "seen_s",
    "databases": "databases",
    "commits": "commits",
    "conflicts": "conflicts",
    "lag (commits)": "lag",
    "greatest": "greatest_lag",
}
_DATABASE_COLUMNS: Final = {
    "database": "label",
    "sequence": "sequence",
    "commits": "commits",
    "rules epoch": "epoch",
    "daemons": "daemons",
    "greatest lag": "greatest_lag",
    "state": "state",
}


def _warnings(report: StatusReport) -> list[str]:
    warnings = list(report.server.warnings)
    if report.server.missing_rights:
        rights = ", ".join(report.server.missing_rights)
        warnings.append(f"This role lacks rights that a daemon needs: {rights}.")
    if report.moved_to is not None:
        warnings.append(f"The data was moved to {report.moved_to}; daemons refuse writes.")
    return warnings


def _describe_daemon(status: ClusterStatus, daemon: DaemonStatus) -> dict[str, Any]:
    lags = status.lags(daemon).values()
    return {
        "name": daemon.daemon,
        "address": daemon.address,
        "version": daemon.version,
        "seen_s": round(daemon.seen_s, 1),
        "databases": len(lags),
        "commits": daemon.counts.commits,
        "conflicts": daemon.counts.conflicts,
        "lag": sum(lags),
        "greatest_lag": max(lags, default=0),
    }


def _describe_databases(status: ClusterStatus) -> list[dict[str, Any]]:
    return [_describe_database(status, each) for each in (*status.databases, *status.unserved)]


def _describe_database(status: ClusterStatus, database: StoredDatabase) -> dict[str, Any]:
    lags = [
        status.lags(each)[database.db]
        for each in status.daemons
        if each.seen_s <= ALIVE_S and database.db in each.revs
    ]
    project = database.project if database.is_served else database.project.rpartition(".")[0]
    return {
        "label": DatabaseName(project, database.name).label,
        "sequence": database.seq,
        "commits": database.rev,
        "epoch": database.epoch,
        "daemons": len(lags),
        "greatest_lag": max(lags, default=0),
        "state": _state_of(database),
    }


def _state_of(database: StoredDatabase) -> str:
    if database.is_served:
        return "served" if database.epoch >= 0 else "moved away"
    return "being copied" if database.project.endswith(PART) else "being removed"


def _table(columns: dict[str, str], rows: Sequence[dict[str, Any]], instead: str) -> Iterator[str]:
    """Yield the lines of a table, numbers to the right; `instead` if it has no rows."""
    if not rows:
        yield instead
        return
    names = list(columns.values())
    cells = [[_print(row[name]) for name in names] for row in rows]
    widths = [
        max(len(title), *(len(line[at]) for line in cells)) for at, title in enumerate(columns)
    ]
    is_number = [not isinstance(rows[0][name], str) for name in names]
    for line in (list(columns), *cells):
        yield _GAP.join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ).rstrip()


def _print(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
