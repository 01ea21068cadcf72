"""`treedb cluster status` and `treedb move`: databases in PostgreSQL shown, or moved.

Both need the driver of PostgreSQL, which treedb alone does not install: the modules that import it
are imported when a command runs, after `require_driver`. The work of a move is in `moving`.
"""

from __future__ import annotations

import pathlib
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import orjson

from treedbd.cli.exit import DONE, CommandFailed, Status, make_printable, print_line
from treedbd.cli.options import add_config_option, add_flag, read_settings
from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError
from treedbd.errors import OperatorError
from treedbd.files import read_installation
from treedbd.names import DatabaseName
from treedbd.store.engine import DiskFull, StoreFailed, StoreUnreachable

if TYPE_CHECKING:  # they import the driver
    from treedbd.store.postgresql.cluster import (
        ClusterReport,
        ClusterStatus,
        DaemonStatus,
        StoredDatabase,
    )


ALIVE_S: Final = 60.0
"""A daemon that was not seen for longer counts as stopped."""
_GAP: Final = "  "
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
_DESCRIPTION: Final = (
    "Bring all databases, with their rules and change logs, from the embedded engine to PostgreSQL "
    "or back. FROM.toml is the configuration of the daemons that have the data, TO.toml that of "
    "the daemons that are to have it; one names a URL postgresql://… as its engine, and each has a "
    "data directory of its own. Run it on the machine with the data directory of the embedded "
    "engine, as the user of its daemon. Leave the daemons running: most is copied meanwhile, then "
    "they refuse writes with 503 while the rest is copied and all is verified, which takes "
    "seconds, and go on serving reads. When the command has said that the data is moved, stop them "
    "and start those of TO.toml. If it fails, the old daemons accept writes again; run it again."
)


def require_driver() -> None:
    """Raise `CommandFailed` if the driver of PostgreSQL cannot be imported."""
    try:
        import psycopg  # noqa: F401
    except ImportError:  # or the library of PostgreSQL is missing, which it needs
        raise CommandFailed(
            "The driver of PostgreSQL is not installed: run "
            f"{read_installation().line_for('postgresql')}."
        ) from None


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands of `cluster` to its parser."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    status = commands.add_parser("status", help="show the server, the daemons and the databases")
    status.description = (
        "Show the PostgreSQL that a configuration names, the daemons that use it and their lag, "
        "and its databases. Nothing is changed."
    )
    add_config_option(status, summary="the configuration file of a daemon")
    add_flag(status, "--json", "print one JSON object")
    status.set_defaults(run=_show_status)


def _show_status(arguments: Namespace) -> Status:
    settings = read_settings(arguments)
    if not settings.is_cluster:
        raise CommandFailed(
            f'The engine is "{settings.engine}", which has no cluster: choose a configuration '
            "whose engine is a URL postgresql://… by --config."
        )
    require_driver()
    try:
        report = read_report(settings.engine)
    except (OperatorError, StoreUnreachable) as error:
        raise CommandFailed(str(error)) from None
    if arguments.json:
        print_line(as_json(report))
    else:
        for line in as_lines(report):
            print_line(make_printable(line))
    return DONE


@attrs.frozen
class StatusReport:
    """The whole status; `moved_to` is where the data was moved to, None if it was not."""

    server: ClusterReport
    status: ClusterStatus
    moved_to: str | None


def read_report(url: str) -> StatusReport:
    """Return the status of the PostgreSQL at `url`; nothing is changed there.

    Raises `CommandFailed`, `StoreUnreachable` or `OperatorError`.
    """
    from treedbd.store.postgresql.cluster import examine, read_status
    from treedbd.store.postgresql.connection import PostgresqlSettings, SessionPool, cannot_connect
    from treedbd.store.postgresql.moving import read_mark
    from treedbd.store.postgresql.schema import MOVED, read_schema

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
    from treedbd.store.postgresql.cluster import PART

    if database.is_served:
        return "served" if database.epoch >= 0 else "moved away"
    return "being copied" if database.project.endswith(PART) else "being removed"


def _table(columns: dict[str, str], rows: Sequence[dict[str, Any]], instead: str) -> Iterator[str]:
    """Yield the lines of a table, with numbers to the right; `instead` if it has no rows."""
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


def add_move_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of `move` to its parser."""
    parser.description = _DESCRIPTION
    summary = "the configuration of the daemons that have the data"
    add_config_option(parser, metavar="FROM.toml", summary=summary)
    parser.add_argument(
        "--to",
        metavar="TO.toml",
        type=pathlib.Path,
        required=True,
        help="the configuration of the daemons that are to have it",
    )
    choice = parser.add_mutually_exclusive_group()
    add_flag(
        choice,
        "--replace",
        "replace what is there: databases of the same names in PostgreSQL are removed, a data "
        "directory gets another name",
    )
    add_flag(
        choice,
        "--undo",
        "after a move that was killed: make the old daemons accept writes again, and remove "
        "the incomplete copy",
    )
    add_flag(parser, "--quiet", "print errors only")
    parser.set_defaults(run=_move)


def _move(arguments: Namespace) -> Status:
    source, target = _read_both(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave it unfinished
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)
    require_driver()
    from treedbd.cli import moving

    try:
        if arguments.undo:
            undo = moving.undo_inward if target.is_cluster else moving.undo_outward
            undo(source, target, is_quiet=arguments.quiet)
        else:
            move = moving.move_inward if target.is_cluster else moving.move_outward
            move(source, target, replace=arguments.replace, is_quiet=arguments.quiet)
    except (OperatorError, StoreUnreachable, StoreFailed, DiskFull) as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"The move failed ({error.strerror}: {error.filename}).") from None
    return DONE


def _interrupt(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _read_both(arguments: Namespace) -> tuple[Settings, Settings]:
    """Return the settings of the daemons that have the data, and of those that are to have it."""
    if getattr(arguments, "config", None) is None:
        raise CommandFailed("Choose the configuration of the daemons with the data by --config.")
    source = read_settings(arguments)
    try:
        target = load_settings(arguments.to, {}, pathlib.Path.cwd())
    except ConfigError as error:
        raise CommandFailed(str(error)) from None
    if "memory" in (source.engine, target.engine):
        raise CommandFailed("The memory engine stores nothing that could be moved.")
    if source.is_cluster == target.is_cluster:
        raise CommandFailed(
            "One configuration must have the embedded engine (sqlite), and the other a URL "
            "postgresql://… as engine."
        )
    if source.data.resolve() == target.data.resolve():
        raise CommandFailed(
            f"Both configurations have the data directory {source.data}: choose another for one."
        )
    return source, target
